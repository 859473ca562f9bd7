"""What the percentiles of TPOT take beyond steps: how far texts differ in the drafts that they accept.

``python -m tools.fitting tails SHARED/measured/serving_inferencex.csv`` prints it, with its errors on the systems that
it is fitted to and on those kept aside: a third of the systems (GPU, framework, model), by a hash of the name, drawn
before anybody looked. It is written in ``configs/acceptance.yaml`` by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import click
import numpy as np

from inferplan.serving.techniques.speculation import Speculation
from inferplan.units import Array
from inferplan.validation.deploy import deployment_of, drafts_of
from inferplan.validation.importers import read_file
from inferplan.validation.predict import served_run
from inferplan.validation.rows import Row
from tools.fitting.priced import MOST_USERS

_EXPONENTS = np.arange(0.0, 0.301, 0.01)
_STATISTICS = {"median": 50.0, "p90": 90.0, "p99": 99.0}


def system_of(row: Row) -> str:
    """GPU, framework and model."""
    return "/".join(row.cells[name] for name in ("gpu", "framework", "model"))


def kept_aside(rows: Sequence[Row]) -> frozenset[str]:
    """The third of the systems whose names have the least hashes."""
    systems = {system_of(row) for row in rows if row.run is not None and not row.run.suspect}
    ordered = sorted(systems, key=lambda system: sha256(system.encode()).hexdigest())
    return frozenset(ordered[: (len(ordered) + 2) // 3])


@dataclass(frozen=True, eq=False)
class Drafted:
    """A row with drafts, and what its requests take for a token where all texts are alike."""

    row: Row
    drafts: Speculation
    alike: Array

    @classmethod
    def of(cls, row: Row) -> Drafted:
        """The row, simulated."""
        assert row.run is not None
        deployment = deployment_of(row.run)[0]
        result = served_run(deployment, row.run)
        result.records.paces = None
        return cls(row, drafts_of(row.run, deployment), result.tpot)

    def error(self, texts: float, statistic: str) -> float | None:
        """Logarithm of predicted over measured TPOT: of the median, and of a percentile over the median."""
        measured, middle = (self.row.measured.at("tpot", one) for one in (statistic, "median"))
        if measured is None or middle is None:
            return None
        paces = replace(self.drafts, texts=texts).paces(len(self.alike), seed=0)
        found, half = np.percentile(self.alike * (1.0 if paces is None else paces), [_STATISTICS[statistic], 50.0])
        return float(np.log(found / measured if statistic == "median" else found / half * middle / measured))


def _errors(rows: Sequence[Drafted], texts: float, statistic: str) -> Array:
    found = (one.error(texts, statistic) for one in rows)
    return np.asarray([error for error in found if error is not None])


def _report(parts: dict[str, list[Drafted]]) -> Iterator[str]:
    """The exponent at which the 99th percentile over the median is least off, and the errors of both parts."""
    means = [float(np.mean(np.abs(_errors(parts["fit"], float(texts), "p99")))) for texts in _EXPONENTS]
    best = float(_EXPONENTS[int(np.argmin(means))])
    yield f"exponent {best:.2f}; MAPE / median, bias in percent of the median and of percentiles over it"
    for part, rows in parts.items():
        for texts in (0.0, best):
            cells = []
            for statistic in _STATISTICS:
                errors = np.expm1(_errors(rows, texts, statistic))
                off = 100 * np.abs(errors)
                cells.append(f"{statistic} {np.mean(off):.1f}/{np.median(off):.1f}, {100 * np.median(errors):+.1f}")
            yield f"{part}, {len(rows)} rows, exponent {texts:.2f}: {'; '.join(cells)}"


@click.command("tails")
@click.argument("path", type=click.Path(path_type=Path))
def command(path: Path) -> None:
    """Fit how far texts differ in the drafts that they accept to the rows of PATH; print it."""
    rows = read_file(path, {})[1]
    aside = kept_aside(rows)
    parts: dict[str, list[Drafted]] = {"fit": [], "aside": []}
    for row in rows:
        run = row.run
        if run is not None and not run.suspect and run.draft is not None and (run.concurrency or 0) <= MOST_USERS:
            parts["aside" if system_of(row) in aside else "fit"].append(Drafted.of(row))
    for line in _report(parts):
        click.echo(line)
