"""What a run says of each kind of traffic in it: latencies at percentiles, goodput, whether its limits are kept."""

from __future__ import annotations

from math import inf

import numpy as np

from inferplan.serving.run_figures import RunFigures
from inferplan.units import Array

METRICS = ("ttft", "tpot", "e2el")
PERCENTILES = (50, 90, 95, 99)
"""Those of a record."""
FIGURES = ("mean", *(f"p{q}" for q in PERCENTILES))
"""Of a latency in a record."""
_ROUNDING = 1e-9
"""Of a place among the requests: what rounding adds to a whole one."""


def figures_of(values: Array) -> dict[str, float | None]:
    """Mean and percentiles of values; ``None`` for none."""
    if not len(values):
        return dict.fromkeys(FIGURES)
    return dict(zip(FIGURES, [float(np.mean(values)), *(float(x) for x in np.percentile(values, PERCENTILES))]))


def metrics_of(result: RunFigures) -> tuple[str, ...]:
    """Latencies that a run has: where somebody thinks, until the first token of the answer too."""
    return METRICS if result.records.before is None else (*METRICS, "answer_ttft")


def at_percentile(run: RunFigures, name: str, percentile: float) -> float:
    """A latency at a percentile of the requests; those that were refused or given up are infinitely late.
    See :func:`percentile_beside`.
    """
    return percentile_beside(getattr(run, name), percentile, run.counts["arrived"] - run.counts["finished"])


def percentile_with_lost(values: Array, percentile: float) -> float:
    """A percentile of values of which those of lost requests are infinite. See :func:`percentile_beside`."""
    there = values[np.isfinite(values)]
    return percentile_beside(there, percentile, len(values) - len(there))


def percentile_beside(values: Array, percentile: float, lost: int) -> float:
    """A percentile of finite values beside so many ``lost`` ones that are infinite; infinite without any value.

    On the line between its two neighbours (``numpy.percentile``); infinite where one of these is lost.
    """
    among = percentile_among(len(values), percentile, lost)
    return inf if among is None else float(np.percentile(values, among))


def percentile_among(count: int, percentile: float, lost: int) -> float | None:
    """The percentile of ``count`` values that is one of them and of ``lost`` infinite ones; ``None`` where that is
    infinite."""
    if not lost:
        return percentile if count else None
    place, last = (count + lost - 1) * percentile / 100, count - 1
    if last < 0 or place > last + _ROUNDING:
        return None
    return 100 * min(place / max(last, 1), 1.0)
