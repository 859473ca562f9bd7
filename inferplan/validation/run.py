"""A file of measurements from end to end: rows, predictions, what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from inferplan.errors import InferplanError, NotFiniteError
from inferplan.validation.deploy import deployment_of
from inferplan.validation.predict import Prediction, predict
from inferplan.validation.rows import Row
from inferplan.validation.score import Scored

_FEW = 24
"""Below so many rows a pool of processes costs more than it saves."""


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """With which constants rows are priced. ``calibration``: a file instead of the device's own; ``ideal``: none."""

    calibration: str | None = None
    ideal: bool = False
    processes: int | None = None


def price_row(row: Row, pricing: Pricing) -> Scored:
    """A row with its prediction, or the reason why there is none."""
    if row.run is None:
        return Scored(row=row, prediction=None, refused=row.refused)
    try:
        deployment, notes = deployment_of(row.run, pricing.calibration, pricing.ideal)
        found = predict(row.run, row.measured, deployment)
    except NotFiniteError:
        raise
    except InferplanError as error:
        reason = f"{error.what}: {error.because}" if error.because else error.what
        return Scored(row=row, prediction=None, refused=" ".join(reason.split()))
    if found.ttft is None and found.tpot is None:
        return Scored(row=row, prediction=None, refused="no request finishes in the simulation")
    return Scored(row=row, prediction=replace(found, notes=(*row.notes, *notes)))


def price_rows(
    rows: Sequence[Row], pricing: Pricing | None = None, progress: Callable[[int], None] | None = None
) -> list[Scored]:
    """Every row priced, in order, on all cores. ``progress`` is called with the number of rows that are done."""
    pricing = pricing or Pricing()
    workers = pricing.processes or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if len(rows) < _FEW or workers == 1:
        return list(_counted((price_row(row, pricing) for row in rows), progress))
    with ProcessPoolExecutor(max_workers=workers) as pool:
        found: Iterable[Scored] = pool.map(price_row, rows, [pricing] * len(rows), chunksize=8)
        return list(_counted(found, progress))


def _counted(found: Iterable[Scored], progress: Callable[[int], None] | None) -> Iterable[Scored]:
    for number, one in enumerate(found, start=1):
        if progress is not None:
            progress(number)
        yield one


def prediction_cells(scored: Scored) -> dict[str, str]:
    """What ``--rows`` adds to a row of the input."""
    found = scored.prediction or Prediction()

    def milliseconds(value: float | None) -> str:
        return "" if value is None else f"{value * 1e3:.6g}"

    return {
        "ttft_predicted_ms": milliseconds(found.ttft),
        "tpot_predicted_ms": milliseconds(found.tpot),
        "refused": scored.refused,
    }
