"""``python -m tools.fitting filters``: the constants of ``configs/filters.yaml``, from the rows of its kernels that are
marked as fit, and their errors, from the others."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import click
import numpy as np
from scipy.optimize import least_squares

from inferplan.catalog.files import config_root, load_hardware
from inferplan.catalog.filters import as_filed, blocks_of
from inferplan.devices.constants import Fit
from inferplan.estimate.roofline import fitted_time, ideal_time
from inferplan.work.filters import FEW, Filters, label_of
from inferplan.work.ops import Op

_USUAL = ((1e-5, 1e-9, 0.05), (1e-4, 1e-10, 0.02), (5e-5, 2e-9, 0.5))
"""Constants from which a fit begins: overhead, swept, memory."""
_LEAST, _MOST = (1e-7, 1e-13, 1e-3), (1e-3, 1e-7, 1.0)

_APART = ("flashinfer", "top-k")
"""Rejects tokens until one is left, so that the probabilities decide as well: its error is its own."""
_ZIPF = -1.1
"""The power of the rank that probabilities follow in vLLM's benchmark_topk_topp.py (create_logits), with k = 50."""
_STATED = re.compile(r"k (\d+), logits normal with deviation (\d+)")


class Passes(NamedTuple):
    """How often FlashInfer's kernel for top-k goes through the probabilities of a row: the mean, and by how many times
    the mean the longest of e rows takes more than one."""

    mean: float
    spread: float


USUAL = (50, None)
PASSES: dict[tuple[int, float | None], Passes] = {
    USUAL: Passes(2.42, 0.41),
    (10, 1.0): Passes(10.3, 0.21),
    (100, 1.0): Passes(7.9, 0.26),
    (10, 5.0): Passes(2.02, 0.39),
    (100, 5.0): Passes(1.67, 0.36),
}
"""By k and the deviation of normal logits, ``None`` for Zipf's: :func:`passes` of 400 rows of some 130,000 tokens."""


def passes(vocabulary: int, kept: int, deviation: float | None, rows: int) -> Passes:
    """As TopKSamplingFromProbKernel counts them (include/flashinfer/sampling.cuh): a round draws a token of those above
    ``low``, up to which it reads, and counts with one pass those above it and above the mean of it and ``high``; it
    ends with fewer than k above the token. deviation: of normal logits; ``None``: Zipf's."""
    draw, taken = np.random.default_rng(0), []
    ranked = np.arange(1, vocabulary + 1) ** _ZIPF
    for _ in range(rows):
        weights = draw.permutation(ranked) if deviation is None else np.exp(draw.normal(0.0, deviation, vocabulary))
        taken.append(_row_passes(weights / weights.sum(), kept, draw))
    ordered = np.sort(taken)
    # of 64 rows: an order statistic's share for each of those that were drawn
    shares = np.diff((np.arange(len(ordered) + 1) / len(ordered)) ** 64)
    mean = float(np.mean(ordered))
    return Passes(mean, float(ordered @ shares / mean - 1.0) / float(np.log(64)))


def _row_passes(chances: np.ndarray, kept: int, draw: np.random.Generator) -> float:
    low, high, count = 0.0, 1.0, 0.0
    while low < high:
        upto = np.cumsum(np.where(chances > low, chances, 0.0))
        found = min(int(np.searchsorted(upto, draw.random() * upto[-1], side="right")), len(chances) - 1)
        count += 1.0 + found / len(chances)
        pivot = chances[found], (chances[found] + high) / 2
        above = [int(np.count_nonzero(chances > one)) for one in pivot]
        if above[0] < kept:
            break
        low, high = pivot if above[1] < kept else (pivot[1], high)
    return count


class Timed(NamedTuple):
    """A row of ``tests/benchmarks/filters.csv``. softmax: seconds of one, which is in the price and not in the row.
    fit: whether constants were fitted to it. passes: where they decide, those that its probabilities take."""

    kernel: str
    filters: str
    gpu: str
    rows: float
    vocabulary: int
    seconds: float
    fit: bool
    softmax: float
    source: str
    passes: Passes | None

    @property
    def op(self) -> Op:
        """What was timed."""
        asked = tuple(self.filters.split("+"))
        chosen = as_filed(Filters(asked=asked, kernel=self.kernel), blocks_of(load_hardware(self.gpu)) or 1)
        if self.passes is not None:
            chosen = replace(chosen, spread=self.passes.spread)
        (op,) = chosen.ops(self.rows, self.vocabulary, 1)
        return op

    @property
    def label(self) -> str:
        """The label of its constants."""
        return self.op.label

    def priced(self, overhead: float, swept: float, memory: float) -> float:
        """Seconds by such constants, of which ``swept`` is that of Zipf's probabilities."""
        op = self.op
        if self.passes is not None:
            swept *= self.passes.mean / PASSES[USUAL].mean
        fit = Fit(overhead=overhead, memory=memory, sharpness=1.0, terms={"swept": swept})
        ideal = ideal_time(op, op.work(), load_hardware(self.gpu), fit.terms)
        return float(np.asarray(fitted_time(ideal, fit).total)) - self.softmax


def timed() -> list[Timed]:
    """Every row, in the order of kernels and filters."""
    with (config_root().parent / "tests" / "benchmarks" / "filters.csv").open(encoding="utf-8", newline="") as file:
        found = [_timed(row) for row in csv.DictReader(file)]
    return sorted(found, key=lambda row: (row.label, row.filters))


def _timed(row: dict[str, str]) -> Timed:
    rows, vocabulary = float(row["rows"]), int(row["vocabulary"])
    given = "probabilities are given" in row["conditions"]  # it samples from probabilities
    softmax = 8.0 * rows * vocabulary / load_hardware(row["gpu"]).memory.bandwidth if given else 0.0
    seconds = 1e-3 * float(row["ms"])
    taken = None
    if (row["kernel"], row["filters"]) == _APART:
        stated = _STATED.search(row["conditions"])
        taken = PASSES[(int(stated[1]), float(stated[2])) if stated else USUAL]
    known = row["kernel"], row["filters"], row["gpu"], rows, vocabulary, seconds
    return Timed(*known, fit=row["role"] == "fit", softmax=softmax, source=row["source"], passes=taken)


Constants = tuple[float, float, float]
"""Overhead, swept and memory."""


def fitted(rows: Iterable[Timed]) -> dict[str, Constants]:
    """The constants of each kernel and its filters, by label: least squares of the logarithm.

    A sort of few rows sweeps nothing, one of many has its overhead; what top-k with top-p sweeps is what top-p does,
    for its rows of the fit are all of one number of rows.
    """
    known = {label: [row for row in each if row.fit] for label, each in groupby(rows, key=lambda row: row.label)}
    found: dict[str, Constants] = {}
    for label in sorted(known, key=lambda label: (FEW not in label, label != "sort.top-p", label)):
        kernel, _, filters = label.partition(".")
        if not known[label]:
            continue
        overhead = swept = None
        if kernel.endswith(FEW):
            swept = _LEAST[1]
        elif label_of(f"{kernel}{FEW}", filters) in found:
            overhead = found[label_of(f"{kernel}{FEW}", filters)][0]
            swept = found["sort.top-p"][1] if filters == "top-k+top-p" else None
        found[label] = _least(known[label], (overhead, swept, None))
    return dict(sorted(found.items()))


def _least(rows: list[Timed], given: tuple[float | None, float | None, float | None]) -> Constants:
    free = [place for place, value in enumerate(given) if value is None]

    def whole(logs: np.ndarray) -> Constants:
        values = [value if value is not None else 0.0 for value in given]
        for place, value in zip(free, np.exp(logs)):
            values[place] = float(value)
        return values[0], values[1], min(values[2], 1.0)

    def off(logs: np.ndarray) -> list[float]:
        return [float(np.log(row.priced(*whole(logs)) / row.seconds)) for row in rows]

    least, most = (np.log([ends[place] for place in free]) for ends in (_LEAST, _MOST))
    starts = [np.log([start[place] for place in free]) for start in _USUAL]
    best = min((least_squares(off, start, bounds=(least, most)) for start in starts), key=lambda one: one.cost)
    return whole(best.x)


@click.command()
def command() -> None:
    """Print the constants, and between which factors 80 % of the other rows lie."""
    rows = timed()
    constants = fitted(rows)
    for label, (overhead, swept, memory) in constants.items():
        click.echo(f"{label}: overhead {overhead:.4g}, swept {swept:.4g}, memory {memory:.4g}")
    aside = [row for row in rows if not row.fit]
    for name, apart in ((" ".join(_APART), True), ("the others", False)):
        mine = [row for row in aside if ((row.kernel, row.filters) == _APART) is apart]
        ratios = [row.seconds / row.priced(*constants[row.label]) for row in mine]
        low, high = np.quantile(ratios, (0.1, 0.9))
        click.echo(f"error of {name}: low {low:.2f}, high {high:.2f} ({len(ratios)} rows)")
    for (kept, deviation), _ in PASSES.items():
        found = passes(131_072, kept, deviation, 400)
        said = "Zipf" if deviation is None else f"normal, deviation {deviation:g}"
        click.echo(f"passes of flashinfer's top-k, k {kept}, {said}: {found.mean:.3g}, spread {found.spread:.2f}")
