"""What a run says of each kind of traffic in it: latencies at percentiles, goodput, whether its limits are kept."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from inferplan.serving.run_figures import RunFigures, Served
from inferplan.traffic.requests import TrafficClass
from inferplan.units import Array

METRICS = ("ttft", "tpot", "e2el")
PERCENTILES = (50, 90, 95, 99)
"""Those of a record."""
_ROUNDING = 1e-9
"""Of a place among the requests: what rounding adds to a whole one."""


def metrics_of(result: RunFigures) -> tuple[str, ...]:
    """Latencies that a run has: where somebody thinks, until the first token of the answer too."""
    return METRICS if result.records.before is None else (*METRICS, "answer_ttft")


def at_percentile(served: Served, name: str, percentile: float) -> float:
    """A latency at a percentile of the requests; those that were refused or given up are infinitely late.
    See :func:`percentile_beside`.
    """
    return percentile_beside(getattr(served, name), percentile, served.counts["arrived"] - served.counts["finished"])


def percentile_beside(values: Array, percentile: float, lost: int) -> float:
    """A percentile of finite values beside so many ``lost`` ones that are infinite; infinite without any value.

    On the line between its two neighbours (``numpy.percentile``); infinite where one of these is lost.
    """
    if not lost:
        return float(np.percentile(values, percentile)) if len(values) else inf
    place, last = (len(values) + lost - 1) * percentile / 100, len(values) - 1
    if last < 0 or place > last + _ROUNDING:
        return inf
    return float(np.percentile(values, 100 * min(place / max(last, 1), 1.0)))


def shares_of_limits(one: TrafficClass, part: RunFigures) -> dict[str, float]:
    """Each limited latency of a class, at its percentile, over its limit; infinite where its queue grows."""
    return {
        name: at_percentile(part, name, one.slo.percentile) / limit if part.steady else inf
        for name, limit in one.slo.limits.items()
    }


def intervals_of(result: RunFigures, name: str) -> dict[str, list[float] | None]:
    """95 % confidence intervals of the mean and the percentiles of a latency."""
    found = {"mean": result.interval(name), **{f"p{q}": result.interval(name, q) for q in PERCENTILES}}
    return {key: None if interval is None else list(interval) for key, interval in found.items()}


def class_records(parts: Sequence[tuple[TrafficClass, RunFigures]]) -> list[dict[str, Any]]:
    """The record of each class and its part of a run; units are in the keys."""
    return [_record(one, part) for one, part in parts]


def _record(one: TrafficClass, part: RunFigures) -> dict[str, Any]:
    limits, counts = one.slo.limits, part.counts
    held = bool(limits and counts["arrived"])
    good = int(np.sum(part.attained))
    return {
        "name": one.name,
        "share": one.share,
        "priority": one.priority,
        "weight": one.weight,
        "requests": counts,
        "overloaded": not part.steady,
        **{f"{name}_s": part.percentiles(f"{name}_s") for name in METRICS},
        "intervals": {f"{name}_s": intervals_of(part, name) for name in METRICS},
        "slo": {f"{name}_s": limit for name, limit in limits.items()},
        "percentile": one.slo.percentile,
        "at_percentile": {
            f"{name}_s": _finite(at_percentile(part, name, one.slo.percentile)) if part.steady else None
            for name in METRICS
        },
        "requests_per_s": part.request_rate,
        "goodput_requests_per_s": part.goodput,
        "slo_attained": good / counts["arrived"] if held else None,
        "wait_mean_s": float(np.mean(part.wait)) if len(part.wait) and part.steady else None,
        "meets": all(share <= 1 for share in shares_of_limits(one, part).values())
        if limits and counts["arrived"]
        else None,
    }


def _finite(value: float) -> float | None:
    return value if value < inf else None
