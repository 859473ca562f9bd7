"""What percentiles take beyond steps: how far texts differ in the drafts that they accept, and how long a first burst
waits for kernels.

``python -m tools.fitting tails SHARED/measured/serving_inferencex.csv`` prints both with their errors on the systems
that they are fitted to and on those kept aside: a third of the systems (GPU, framework, model), by a hash of the name,
drawn before anybody looked. They are written in ``configs/acceptance.yaml`` and ``configs/clients.yaml`` by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import click
import numpy as np

from inferplan.serving.result import SimulationResult
from inferplan.units import Array
from inferplan.validation.deploy import deployment_of, drafts_of
from inferplan.validation.importers import read_file
from inferplan.validation.predict import served_run
from inferplan.validation.rows import Row
from tools.fitting.priced import MOST_USERS

_EXPONENTS = np.arange(0.0, 0.301, 0.01)
_SECONDS = np.arange(0.0, 4.01, 0.1)
_STATISTICS = {"median": 50.0, "p90": 90.0, "p99": 99.0}
_SLOW = ("mi300x", "mi355x")
"""GPUs whose engine compiles kernels when they are first called: SGLang with AITER."""


def system_of(row: Row) -> str:
    """GPU, framework and model."""
    return "/".join(row.cells[name] for name in ("gpu", "framework", "model"))


def kept_aside(rows: Sequence[Row]) -> frozenset[str]:
    """The third of the systems whose names have the least hashes."""
    systems = sorted({system_of(row) for row in rows if not row.run or not row.run.suspect}, key=_hash)
    return frozenset(systems[: (len(systems) + 2) // 3])


def _hash(system: str) -> str:
    return sha256(system.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Tail:
    """A row and its run, by what one constant makes of a latency of each request."""

    row: Row
    metric: str
    values: Callable[[float], Array]

    def errors(self, constant: float, statistic: str) -> tuple[float, float] | None:
        """Logarithms of predicted over measured: of a percentile, and of it over the median."""
        measured, middle = (self.row.measured.at(self.metric, one) for one in (statistic, "median"))
        if measured is None or middle is None:
            return None
        found, half = np.percentile(self.values(constant), [_STATISTICS[statistic], 50.0])
        return float(np.log(found / measured)), float(np.log(found / half * middle / measured))


def drafted(row: Row) -> Tail:
    """TPOT of a row with drafts, by how far texts differ."""
    assert row.run is not None
    deployment = deployment_of(row.run)[0]
    drafts, result = drafts_of(row.run, deployment), served_run(deployment, row.run)
    result.records.paces = None
    alike = result.e2el - result.ttft
    steps = np.asarray(result.records.output[result.counted], dtype=np.float64) - 1

    def values(texts: float) -> Array:
        paces = replace(drafts, texts=texts).paces(len(alike), np.random.default_rng((0, 9)))
        return alike / steps * (1.0 if paces is None else paces)

    return Tail(row, "tpot", values)


def burst(row: Row) -> Tail:
    """TTFT of a row, by how long the users that begin together wait for kernels."""
    assert row.run is not None
    result: SimulationResult = served_run(deployment_of(row.run)[0], row.run)
    first = result.arrival <= result.start
    return Tail(row, "ttft", lambda seconds: result.ttft + seconds * first)


def _report(name: str, tails: dict[str, list[Tail]], constants: Array, ratio: bool) -> Iterator[str]:
    """The constant at which the 99th percentile of the rows that a fit may see is least off, and both parts with it."""

    def off(tails: Sequence[Tail], constant: float, statistic: str) -> Array:
        found = [one.errors(float(constant), statistic) for one in tails]
        return np.asarray([error[ratio and statistic != "median"] for error in found if error is not None])

    means = [float(np.mean(np.abs(off(tails["fit"], constant, "p99")))) for constant in constants]
    best = float(constants[int(np.argmin(means))])
    yield f"{name}: {best:.2f}"
    for part, rows in tails.items():
        for constant in (0.0, best):
            cells = []
            for statistic in _STATISTICS:
                errors = np.expm1(off(rows, constant, statistic))
                if len(errors):
                    mape, median = 100 * np.mean(np.abs(errors)), 100 * np.median(np.abs(errors))
                    cells.append(f"{statistic} {mape:.1f}/{median:.1f}, bias {100 * np.median(errors):+.1f}")
            yield f"  {part}, {len(rows)} rows, at {constant:.2f}: {'; '.join(cells)}"


@click.command("tails")
@click.argument("path", type=click.Path(path_type=Path))
def command(path: Path) -> None:
    """Fit how far texts differ and how long first bursts wait to the rows of PATH; print both."""
    rows = [row for row in read_file(path, {})[1] if row.run is not None and not row.run.suspect]
    rows = [row for row in rows if (row.run.concurrency or 0) <= MOST_USERS] if rows else rows
    aside = kept_aside(rows)
    parts = {
        "fit": [row for row in rows if system_of(row) not in aside],
        "aside": [row for row in rows if system_of(row) in aside],
    }
    drafts = {part: [drafted(row) for row in mine if _drafts(row)] for part, mine in parts.items()}
    for line in _report("texts, by p99 over the median", drafts, _EXPONENTS, ratio=True):
        click.echo(line)
    bursts = {part: [burst(row) for row in mine if _compiles(row)] for part, mine in parts.items()}
    for line in _report("first burst of SGLang on AMD in seconds, by p99", bursts, _SECONDS, ratio=False):
        click.echo(line)


def _drafts(row: Row) -> bool:
    return row.run is not None and row.run.draft is not None


def _compiles(row: Row) -> bool:
    run = row.run
    return run is not None and run.engine == "sglang" and run.gpu in _SLOW and run.prefill is None
