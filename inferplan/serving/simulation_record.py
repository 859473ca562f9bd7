"""The JSON of a simulated run (docs/json.md)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from inferplan.serving.result import SimulationResult

SCHEMA_VERSION = 1


def record_of(result: SimulationResult) -> dict[str, Any]:
    """The record of a run; units are in the keys."""
    counts, limits = result.counts, result.slo.limits
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": result.verdict,
        **{name: result.percentiles(name) for name in ("ttft_s", "tpot_s", "itl_s", "e2el_s")},
        **_bands(result),
        "requests": counts,
        "rejected_because": result.records.refused,
        "duration_s": result.duration,
        "throughput": {
            "requests_per_s": result.request_rate,
            "output_tokens_per_s": result.output_rate,
            "total_tokens_per_s": result.output_rate + result.input_rate,
        },
        "goodput_requests_per_s": result.goodput,
        "slo": {f"{name}_s": limit for name, limit in limits.items()},
        "slo_attained": float(np.mean(result.attained)) if limits and len(result.attained) else None,
        "queue": {
            "wait_mean_s": float(np.mean(result.wait)) if len(result.wait) and result.steady else None,
            "wait_max_s": float(np.max(result.wait)) if len(result.wait) else None,
            "in_system_mean": result.in_system if counts["arrived"] else None,
            "blocked_by": _blocked(result),
        },
        "batch_mean": result.mean_batch,
        "kv": {
            "use_mean": result.kv_use["mean"],
            "use_peak": result.kv_use["peak"],
            "capacity_tokens": result.capacity,
        },
        "preemptions": result.preemptions,
        "prefix_cache_hit_rate": result.hit_rate,
        "steps": sum(meter.steps for meter in result.meters),
        "prompt_steps": sum(meter.prompt_steps for meter in result.meters),
        "basis": result.basis,
        "anchor": None if result.anchor == (1.0, 1.0) else {"ttft": result.anchor[0], "tpot": result.anchor[1]},
        "conditions": result.conditions,
    }


def _bands(result: SimulationResult) -> dict[str, float | None]:
    """Between which seconds 80 % of measured means lie; null where no held-out error is known."""
    record: dict[str, float | None] = {}
    for name in ("ttft", "tpot", "e2el"):
        mean, band = result.percentiles(f"{name}_s")["mean"], result.band(name)
        record[f"{name}_low_s"] = None if mean is None or band is None else mean * band[0]
        record[f"{name}_high_s"] = None if mean is None or band is None else mean * band[1]
    return record


def _blocked(result: SimulationResult) -> dict[str, int]:
    """How often each reason kept a request in the queue, over all engines."""
    total: Counter[str] = Counter()
    for meter in result.meters:
        total.update(meter.blocked_by)
    return dict(total)
