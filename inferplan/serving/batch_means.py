"""How sure a figure of a simulated run is: batch means.

Latencies of requests that follow each other are alike, so the spread of single ones says too little about the error of
their mean. A run is cut into batches of consecutive requests, each long enough that batches are nearly independent; the
figure is taken of each batch, and its error follows from their spread by Student's t with ``BATCHES - 1`` degrees of
freedom (Law, Simulation Modeling and Analysis, 5th ed., section 9.5.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferplan.errors import UsageError
from inferplan.units import Array

BATCHES = 20
STUDENT_95 = 2.093
"""Two-sided 95 % point of Student's t with 19 degrees of freedom."""
STUDENT_99_9 = 3.579
"""One-sided 99.9 % point of the same."""
_FEWEST_IN_BATCH = 10


@dataclass(frozen=True, kw_only=True)
class Precision:
    """When a simulation is long enough.

    tolerance: half the width of the 95 % confidence interval of the ``percentile`` of TTFT and of TPOT over its value.
    fewest, most: requests of one run. A run that is not sure enough with ``most`` of them says so.
    """

    tolerance: float = 0.03
    percentile: float = 95.0
    fewest: int = 2000
    most: int = 200_000

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise UsageError(f"a tolerance is a share between 0 and 1, not {self.tolerance:g}")
        if not 0 < self.fewest <= self.most:
            raise UsageError(
                f"a run of {self.fewest} to {self.most} requests is none", hint="at least one, and no more"
            )


def half_width(values: Array, percentile: float | None = None) -> float | None:
    """Half the width of the 95 % confidence interval of the mean, or of a percentile, of ``values`` in order of time.

    ``None`` for fewer than ten values a batch: those say nothing about their error.
    """
    if len(values) < BATCHES * _FEWEST_IN_BATCH:
        return None
    batches = np.array_split(values, BATCHES)
    figures = [np.mean(batch) if percentile is None else np.percentile(batch, percentile) for batch in batches]
    return STUDENT_95 * float(np.std(figures, ddof=1)) / float(np.sqrt(BATCHES))


def halves_agree(values: Array, percentile: float, tolerance: float) -> bool:
    """Whether the two halves of ``values``, in order of time, have the same percentile: within ``tolerance`` (relative)
    or within what two halves of a steady run differ by in 95 of 100 cases.
    """
    error = half_width(values, percentile)
    if error is None:
        return False
    first, second = (float(np.percentile(half, percentile)) for half in np.array_split(values, 2))
    return abs(second - first) <= max(2 * error, tolerance * min(first, second))
