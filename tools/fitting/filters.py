"""``python -m tools.fitting filters``: the constants of ``configs/filters.yaml``, from the rows of its kernels that are
marked as fit, and their errors, from the others."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

import click
import numpy as np
from scipy.optimize import least_squares

from inferplan.catalog.files import config_root, load_hardware
from inferplan.catalog.filters import blocks_of
from inferplan.devices.constants import Fit
from inferplan.estimate.roofline import fitted_time, ideal_time
from inferplan.work.filters import Filters
from inferplan.work.ops import Op

_USUAL = ((1e-5, 1e-9, 0.05), (1e-4, 1e-10, 0.02), (5e-5, 2e-9, 0.5))
"""Constants from which a fit begins: overhead, swept, memory."""
_LEAST, _MOST = (1e-7, 1e-13, 1e-3), (1e-3, 1e-7, 1.0)

_APART = ("flashinfer", "top-k")
"""Rejects tokens until one is left, so that the probabilities decide as well: its error is its own."""


class Timed(NamedTuple):
    """A row of ``tests/benchmarks/filters.csv``. softmax: seconds of one, which is in the price and not in the row.
    fit: whether constants were fitted to it."""

    kernel: str
    filters: str
    gpu: str
    rows: float
    vocabulary: int
    seconds: float
    fit: bool
    softmax: float
    source: str

    @property
    def op(self) -> Op:
        """What was timed."""
        asked = tuple(self.filters.split("+"))
        chosen = Filters(asked=asked, kernel=self.kernel, blocks=blocks_of(load_hardware(self.gpu)) or 1)
        (op,) = chosen.ops(self.rows, self.vocabulary, 1)
        return op

    def priced(self, overhead: float, swept: float, memory: float) -> float:
        """Seconds by such constants."""
        op = self.op
        fit = Fit(overhead=overhead, memory=memory, sharpness=1.0, terms={"swept": swept})
        ideal = ideal_time(op, op.work(), load_hardware(self.gpu), fit.terms)
        return float(np.asarray(fitted_time(ideal, fit).total)) - self.softmax


def timed() -> list[Timed]:
    """Every row, in the order of kernels and filters."""
    with (config_root().parent / "tests" / "benchmarks" / "filters.csv").open(encoding="utf-8", newline="") as file:
        found = [_timed(row) for row in csv.DictReader(file)]
    return sorted(found, key=lambda row: (row.kernel, row.filters))


def _timed(row: dict[str, str]) -> Timed:
    rows, vocabulary = float(row["rows"]), int(row["vocabulary"])
    given = "probabilities are given" in row["conditions"]  # it samples from probabilities
    softmax = 8.0 * rows * vocabulary / load_hardware(row["gpu"]).memory.bandwidth if given else 0.0
    seconds = 1e-3 * float(row["ms"])
    known = row["kernel"], row["filters"], row["gpu"], rows, vocabulary, seconds
    return Timed(*known, fit=row["role"] == "fit", softmax=softmax, source=row["source"])


def fitted(rows: Iterable[Timed]) -> dict[tuple[str, str], tuple[float, float, float]]:
    """Overhead, swept and memory of each kernel and its filters: least squares of the logarithm."""
    found = {}
    for key, each in groupby(rows, key=lambda row: (row.kernel, row.filters)):
        known = [row for row in each if row.fit]
        if known:
            found[key] = _least(known)
    return found


def _least(rows: list[Timed]) -> tuple[float, float, float]:
    def off(logs: np.ndarray) -> list[float]:
        return [float(np.log(row.priced(*np.exp(logs)) / row.seconds)) for row in rows]

    bounds = (np.log(_LEAST), np.log(_MOST))
    best = min((least_squares(off, np.log(start), bounds=bounds) for start in _USUAL), key=lambda one: one.cost)
    overhead, swept, memory = (float(value) for value in np.exp(best.x))
    return overhead, swept, min(memory, 1.0)


@click.command()
def command() -> None:
    """Print the constants, and between which factors 80 % of the other rows lie."""
    rows = timed()
    constants = fitted(rows)
    for (kernel, filters), (overhead, swept, memory) in constants.items():
        click.echo(f"{kernel} {filters}: overhead {overhead:.4g}, swept {swept:.4g}, memory {memory:.4g}")
    aside = [row for row in rows if not row.fit]
    for name, apart in ((" ".join(_APART), True), ("the others", False)):
        mine = [row for row in aside if ((row.kernel, row.filters) == _APART) is apart]
        ratios = [row.seconds / row.priced(*constants[row.kernel, row.filters]) for row in mine]
        low, high = np.quantile(ratios, (0.1, 0.9))
        click.echo(f"error of {name}: low {low:.2f}, high {high:.2f} ({len(ratios)} rows)")
