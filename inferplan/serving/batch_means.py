"""How sure a figure of a simulated run is: batch means.

Latencies of requests that follow each other are alike, so the spread of single ones says too little about the error of
their mean. A run is cut into batches of consecutive requests, each long enough that batches are nearly independent; the
figure is taken of each batch, and its error follows from their spread by Student's t with one degree of freedom less
than there are batches (Law, Simulation Modeling and Analysis, 5th ed., section 9.5.3). The percentile of a batch says
nothing where hardly a value lies beyond it: a batch holds ten of those on average, and where values are short of that
there are fewer batches, down to five.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from inferplan.errors import UsageError
from inferplan.units import Array

BATCHES = 20
"""Into which a run is cut, at most."""
_STUDENT_95 = (
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
)
"""Two-sided 95 % points of Student's t with 4 to 19 degrees of freedom."""
STUDENT_99_9 = 3.579
"""One-sided 99.9 % point of the same with 19."""
_FEWEST_BATCHES, _FIRST_BATCHES = 5, 8
"""Fewer have no interval; a first run is long enough for so many, because the spread of five is a guess."""
_BEYOND = 10
"""Values of a batch on each side of its figure, on average: of a percentile, and of a mean all of them."""
_FEWEST_VALUES = 200
"""Neighbours are alike: in a shorter run no batches are long enough to be told apart."""


@dataclass(frozen=True, kw_only=True)
class RunPrecision:
    """When a simulation is long enough.

    tolerance: half the width of the 95 % confidence interval of the ``percentile`` of TTFT and of TPOT over its value.
    fewest, most: requests of one run; no run has fewer than ``counted`` asks for. A run that is not sure enough with
    ``most`` of them says so.
    """

    tolerance: float = 0.02
    percentile: float = 95.0
    fewest: int = 2000
    most: int = 200_000

    @property
    def counted(self) -> float:
        """Requests in the figures of a first run: 1,600 for the 95th percentile, 8,000 for the 99th, infinitely many
        for the largest value, which has no interval.
        """
        return fewest_values(self.percentile, _FIRST_BATCHES)

    def __post_init__(self) -> None:
        if not 0 < self.percentile <= 100:
            raise UsageError(f"a percentile is in (0, 100], not {self.percentile:g}")
        if not 0 < self.tolerance < 1:
            raise UsageError(f"a tolerance is a share between 0 and 1, not {self.tolerance:g}")
        if not 0 < self.fewest <= self.most:
            raise UsageError(
                f"a run of {self.fewest} to {self.most} requests is none", hint="at least one, and no more"
            )


def student_95(batches: int) -> float:
    """Two-sided 95 % point of Student's t with one degree of freedom less than ``batches``, 5 to 20 of them."""
    return _STUDENT_95[batches - _FEWEST_BATCHES]


def batch_size(percentile: float | None) -> float:
    """Values that a batch takes: ten for the mean, 20 for the median, 200 for the 95th percentile, 1,000 for the 99th,
    and no number for the 100th.
    """
    beyond = 1.0 if percentile is None else min(percentile, 100 - percentile) / 100
    return round(_BEYOND / beyond, 6) if beyond else inf


def fewest_values(percentile: float | None, batches: int = _FEWEST_BATCHES) -> float:
    """Values without which there is no interval: those of five batches, or of so many, and 200 at least."""
    return max(batches * batch_size(percentile), _FEWEST_VALUES)


def half_width(values: Array, percentile: float | None = None) -> float | None:
    """Half the width of the 95 % confidence interval of the mean, or of a percentile, of ``values`` in order of time.

    ``None`` for fewer values than five batches take, and for fewer than 200: those say nothing about their error.
    """
    if len(values) < fewest_values(percentile):
        return None
    count = int(min(len(values) // batch_size(percentile), BATCHES))
    if percentile is None:
        figures = np.array([np.mean(batch) for batch in np.array_split(values, count)])
    else:
        figures = percentiles_in_turn(values, count, percentile)
    return student_95(count) * float(np.std(figures, ddof=1)) / float(np.sqrt(count))


def percentiles_in_turn(values: Array, parts: int, percentile: float) -> Array:
    """The percentile of each of so many parts of ``values``, in order; as even as can be, the longer ones first
    (``numpy.array_split``).
    """
    each, longer = divmod(len(values), parts)
    split = longer * (each + 1)
    rows = values[:split].reshape(longer, each + 1), values[split:].reshape(parts - longer, each)
    return np.concatenate([np.percentile(one, percentile, axis=1) for one in rows if len(one)])


def halves_agree(values: Array, percentile: float, tolerance: float) -> bool:
    """Whether the two halves of ``values``, in order of time, have the same percentile: within ``tolerance`` (relative)
    or within what two halves of a steady run differ by in 95 of 100 cases.
    """
    error = half_width(values, percentile)
    if error is None:
        return False
    first, second = map(float, percentiles_in_turn(values, 2, percentile))
    return abs(second - first) <= max(2 * error, tolerance * min(first, second))
