"""Measured rows beside what the rows of other models predict for them, in a file.

``python -m tools.fitting serving FILE --unseen UNSEEN.csv`` writes it (:mod:`tools.fitting.serving`); the bands and the
accuracy page are made of it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from inferplan.devices.anchors import METRICS
from inferplan.errors import InferplanError
from inferplan.units import Array
from inferplan.validation.deploy import deployment_of
from inferplan.validation.importers import read_file
from inferplan.validation.predict import Prediction, impossible
from inferplan.validation.rows import Row
from inferplan.validation.score import Scored

Kind = Literal["predicted", "scripted"]
"""From what a row states, or with the flags of its run script, too."""


def unseen_csv(rows: Sequence[Row], predicted: Array, scripted: Array) -> str:
    """The rows with TTFT and TPOT in seconds of both kinds: (rows, 2) each."""
    columns = list(dict.fromkeys(name for row in rows for name in row.cells))
    names = [f"{metric}_{kind}_ms" for kind in get_args(Kind) for metric in METRICS]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [*columns, *names], lineterminator="\n")
    writer.writeheader()
    for row, values in zip(rows, np.hstack([predicted, scripted]) * 1e3):
        writer.writerow({**row.cells, **{name: f"{value:.6g}" for name, value in zip(names, values)}})
    return buffer.getvalue()


def read_unseen(path: Path, kind: Kind = "predicted") -> list[Scored]:
    """The rows of such a file with the predictions of one kind."""
    with path.open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    found = []
    for row, given in zip(read_file(path, {})[1], cells):
        fast: tuple[str, ...] = ()
        if row.run is not None:
            with suppress(InferplanError):
                fast = impossible(deployment_of(row.run)[0], row.run, row.measured)
        values: dict[tuple[str, str], float] = {
            (metric, "mean"): float(given[f"{metric}_{kind}_ms"]) * 1e-3 for metric in METRICS
        }
        known = all(map(np.isfinite, values.values()))
        prediction = Prediction(figures=values, impossible=fast) if known else None
        found.append(Scored(row=row, prediction=prediction))
    return found
