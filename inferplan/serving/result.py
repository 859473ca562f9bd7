"""What a simulated run says: latencies at percentiles, rates, queue, cache, and whether it was steady at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor, inf, isfinite
from typing import Any, TypeVar

import numpy as np

from inferplan.serving.batch_means import half_width
from inferplan.serving.class_results import FIGURES, METRICS, PERCENTILES, at_percentile, figures_of, metrics_of
from inferplan.serving.records import FINISHED, Meter, Records
from inferplan.serving.run_figures import RunFigures, cache_use
from inferplan.serving.session_results import SessionFigures, session_figures, session_record
from inferplan.serving.techniques.tiers import tier_records
from inferplan.serving.verdict import Verdict, capacity_band, load_of_capacity, near_capacity, verdict_of
from inferplan.table import SCHEMA_VERSION
from inferplan.traffic.requests import Slo, TrafficClass
from inferplan.units import BoolArray

_Amount = TypeVar("_Amount", int, float)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SimulationResult(RunFigures):
    """The figures of a run, as far as it was steady, and what they say of the load."""

    @cached_property
    def sessions(self) -> SessionFigures | None:
        """What became of the sessions of agents; ``None`` where requests are of none."""
        return session_figures(self)

    @cached_property
    def verdict(self) -> Verdict:
        """See :data:`inferplan.serving.verdict.Verdict`; docs/serving.md says how it is decided."""
        return verdict_of(self)

    @property
    def steady(self) -> bool:
        """Whether percentiles say anything beyond this run."""
        return self.verdict != "overloaded"

    def percentiles(self, name: str) -> dict[str, float | None]:
        """Mean and percentiles of a latency, such as ``ttft_s`` or ``itl_s``; ``None`` where the queue grows."""
        if not self.steady:
            return dict.fromkeys(FIGURES)
        own = name.removesuffix("_s")
        return _gap_figures(self.records) if own == "itl" else figures_of(getattr(self, own))

    def interval(self, name: str, percentile: float | None = None) -> tuple[float, float] | None:
        """95 % confidence interval of the mean or a percentile of ``ttft``, ``tpot`` or ``e2el``, by batch means; for
        this seed and others, not for the prices of steps. ``None`` for too few requests, where the queue grows, and for
        a trace, which has no others.
        """
        values = getattr(self, name)
        error = half_width(values, percentile) if self.steady and "traffic" in self.conditions else None
        if error is None:
            return None
        middle = float(np.mean(values) if percentile is None else np.percentile(values, percentile))
        return middle - error, middle + error

    def to_dict(self) -> dict[str, Any]:
        """The record that ``inferplan simulate --format json`` prints; units are in the keys."""
        return record_of(self)


def class_parts(result: SimulationResult) -> list[tuple[TrafficClass, SimulationResult]]:
    """The run as each class of traffic sees it: its requests alone, counted while those of the run are.

    What steps and caches were used for is not told apart: the meters of a part only know how long its requests waited.
    """
    records = result.records
    if records.of is None:
        return []
    of = np.asarray(records.of)
    return [(one, part_of(result, of == place, one.slo)) for place, one in enumerate(records.classes)]


def limits_missed(result: SimulationResult) -> str:
    """Whose limits too few requests, or sessions, keep: ``"71% of the requests keep them, 90% have to"``; empty where
    enough do."""
    whole = [("", result.slo, result)] if result.slo.limits else []
    missed = []
    for name, slo, part in [*whole, *((one.name, one.slo, part) for one, part in class_parts(result))]:
        if not slo.limits or not part.counts["arrived"]:
            continue
        share = int(np.sum(part.attained)) / part.counts["arrived"]
        if share < slo.percentile / 100:
            of = f" of {name}" if name else ""
            missed.append(f"{share:.1%} of the requests{of} keep them, {slo.percentile:g}% have to")
    sessions, limit, share = result.sessions, result.slo.session, result.slo.percentile
    kept = None if sessions is None or limit is None else sessions.within(limit)
    if kept is not None and kept < share / 100:
        missed.append(f"{kept:.1%} of the sessions take no longer than {limit:g} s, {share:g}% have to")
    return "; ".join(missed)


def part_of(result: SimulationResult, mine: BoolArray, slo: Slo) -> SimulationResult:
    """The run as some of its requests see it, under limits of their own."""
    counted = result.counted
    part = replace(
        result,
        records=result.records.only(mine),
        meters=(),
        slo=slo,
        warmup=int(np.sum(mine[: counted.start])),
        cooldown=int(np.sum(mine[counted.stop :])),
        metered=result.window,
        capacity_rate=None,
    )
    return replace(part, meters=(Meter(waited={"queue": float(np.sum(part.wait))}),))


def while_counting(result: SimulationResult) -> tuple[int, int]:
    """How many of all requests were sent, and how many finished, while rates count."""
    arrival, (start, end) = np.asarray(result.records.arrival, dtype=np.float64), result.window
    return int(np.sum((arrival >= start) & (arrival <= end))), round(result.request_rate * result.duration)


def _cache(result: SimulationResult) -> dict[str, Any]:
    """The share of the cache in use and its tokens: of all replicas, and of each pool where they are apart."""

    def record(use: Mapping[str, float], capacity: float) -> dict[str, float]:
        tokens = floor(capacity) if isfinite(capacity) else capacity  # as the engine's log counts them
        return {"use_mean": use["mean"], "use_peak": use["peak"], "capacity_tokens": tokens}

    (ranks, of_prompts), capacity = result.prompt_pool, result.capacity
    pools = {
        "prefill": record(cache_use(result.meters[:ranks]), of_prompts),
        "decode": record(cache_use(result.meters[ranks:]), capacity),
    }
    return {**record(result.kv_use, capacity), "pools": pools if ranks else None}


def _gap_figures(records: Records) -> dict[str, float | None]:
    """Those of the time between tokens, each as often as it was seen."""
    gaps, weights = np.asarray(records.gaps), np.asarray(records.gap_weights)
    if not len(gaps) or not weights.sum() > 0:
        return dict.fromkeys(FIGURES)
    order = np.argsort(gaps)
    gaps, reached = gaps[order], np.cumsum(weights[order])
    at = np.searchsorted(reached, np.asarray(PERCENTILES) / 100 * reached[-1])
    mean = float(np.sum(gaps * weights[order]) / reached[-1])
    return dict(zip(FIGURES, [mean, *(float(gaps[min(i, len(gaps) - 1)]) for i in at)]))


def record_of(result: SimulationResult) -> dict[str, Any]:
    """The record of a run; units are in the keys."""
    counts, limits = result.counts, result.slo.limits
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": result.verdict,
        **{name: result.percentiles(name) for name in ("ttft_s", "tpot_s", "itl_s", "e2el_s")},
        "answer_ttft_s": result.percentiles("answer_ttft_s") if len(result.answer_ttft) else None,
        **_bands(result),
        "reasoning": _reasoning(result),
        "intervals": {f"{name}_s": _intervals(result, name) for name in metrics_of(result)},
        "run": _run(result),
        "capacity": _capacity(result),
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
        "classes": [_class_record(*each) for each in class_parts(result)] or None,
        "sessions": session_record(result.sessions, result.slo.session),
        "queue": {
            "wait_mean_s": float(np.mean(result.wait)) if len(result.wait) and result.steady else None,
            "wait_max_s": float(np.max(result.wait)) if len(result.wait) else None,
            "in_system_mean": result.in_system if counts["arrived"] else None,
            "blocked_by": _summed(meter.blocked_by for meter in result.meters),
            "waited_for_s": _waited(result),
        },
        "batch_mean": result.mean_batch,
        "kv": _cache(result),
        "preemptions": result.preemptions,
        "prefix_cache_hit_rate": result.hit_rate,
        "cache_tiers": tier_records(result),
        "adapters": adapters_found(result),
        "steps": sum(meter.steps for meter in result.meters),
        "prompt_steps": sum(meter.prompt_steps for meter in result.meters),
        "basis": result.basis,
        "anchor": None if result.anchor == (1.0, 1.0) else {"ttft": result.anchor[0], "tpot": result.anchor[1]},
        "conditions": result.conditions,
    }


def _reasoning(result: SimulationResult) -> dict[str, float | None] | None:
    """Output tokens before and in the answers of the requests that finished, on average; null where nobody thinks."""
    before = result.records.before
    if before is None or not len(result.answer_ttft):
        return None
    done = result.status == FINISHED
    thoughts = np.asarray(before[result.counted], dtype=np.float64)[done]
    answers = np.asarray(result.records.output[result.counted], dtype=np.float64)[done] - thoughts
    lengths = result.conditions.get("reasoning")
    return {
        "before_answer_tokens_mean": float(np.mean(thoughts)),
        "answer_tokens_mean": float(np.mean(answers)),
        "budget_tokens": None if lengths is None else lengths["budget_tokens"],
        "cut_share": None if lengths is None else lengths["cut_share"],
    }


def _bands(result: SimulationResult) -> dict[str, float | None]:
    """Between which seconds 80 % of measured means lie, and of measured 99th percentiles of TTFT; null where no error
    is known."""
    record: dict[str, float | None] = {}
    for name in metrics_of(result):
        mean, band = result.percentiles(f"{name}_s")["mean"], result.band(name)
        record[f"{name}_low_s"] = None if mean is None or band is None else mean * band[0]
        record[f"{name}_high_s"] = None if mean is None or band is None else mean * band[1]
    tail, late = result.percentiles("ttft_s")["p99"], None if result.tail is None else result.tail.between(99.0)
    record["ttft_p99_low_s"] = None if tail is None or late is None else max(tail + late[0], 0.0)
    record["ttft_p99_high_s"] = None if tail is None or late is None else tail + late[1]
    return record


def _run(result: SimulationResult) -> dict[str, Any]:
    """How long the run was, what is in its figures, and whether that was enough."""
    precision, (arrived, finished) = result.precision, while_counting(result)
    return {
        "sent": int(np.sum(~np.isnan(np.asarray(result.records.arrival)))),
        "warmup": result.warmup,
        "cooldown": result.cooldown,
        "converged": result.converged,
        "arrived_while_counting": arrived,
        "finished_while_counting": finished,
        "tolerance": None if precision is None else precision.tolerance,
        "percentile": None if precision is None else precision.percentile,
    }


def _capacity(result: SimulationResult) -> dict[str, Any] | None:
    """What the deployment can serve beside what comes; null where it was not simulated."""
    if result.capacity_rate is None:
        return None
    low, high = capacity_band(result)
    return {
        "requests_per_s": result.capacity_rate,
        "without_tiers_requests_per_s": result.untiered_rate,
        "low_requests_per_s": result.capacity_rate * low,
        "high_requests_per_s": result.capacity_rate * high,
        "load": load_of_capacity(result),
        "within_error": near_capacity(result),
    }


def adapters_found(result: SimulationResult) -> dict[str, Any] | None:
    """How often the LoRA adapter of an admitted request was in device memory; null without adapters."""
    load = result.conditions["adapter_load"]
    if load is None:
        return None
    found, loaded = (
        sum(getattr(meter, name) for meter in result.meters) for name in ("adapters_found", "adapters_loaded")
    )
    return {
        "hit_rate": found / (found + loaded) if found + loaded else None,
        "found": found,
        "loaded": loaded,
        "load_s": load["seconds"],
        "load_total_s": loaded * load["seconds"],
    }


def _waited(result: SimulationResult) -> dict[str, float]:
    """Mean seconds a request waited, by what the first of the queue waited for."""
    requests = max(result.counts["arrived"] - result.counts["rejected"], 1)
    return {reason: total / requests for reason, total in _summed(meter.waited for meter in result.meters).items()}


def _summed(counters: Iterable[Mapping[str, _Amount]]) -> dict[str, _Amount]:
    """The sums over all engines, by key."""
    total: dict[str, _Amount] = {}
    for counter in counters:
        for key, value in counter.items():
            total[key] = total[key] + value if key in total else value
    return total


def _shares_of_limits(one: TrafficClass, part: SimulationResult) -> dict[str, float]:
    """Each limited latency of a class, at its percentile, over its limit; infinite where its queue grows."""
    return {
        name: at_percentile(part, name, one.slo.percentile) / limit if part.steady else inf
        for name, limit in one.slo.limits.items()
    }


def _intervals(result: SimulationResult, name: str) -> dict[str, list[float] | None]:
    """95 % confidence intervals of the mean and the percentiles of a latency."""
    found = {"mean": result.interval(name), **{f"p{q}": result.interval(name, q) for q in PERCENTILES}}
    return {key: None if interval is None else list(interval) for key, interval in found.items()}


def _class_record(one: TrafficClass, part: SimulationResult) -> dict[str, Any]:
    """The record of a class and its part of a run; units are in the keys."""
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
        "intervals": {f"{name}_s": _intervals(part, name) for name in METRICS},
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
        "meets": all(share <= 1 for share in _shares_of_limits(one, part).values())
        if limits and counts["arrived"]
        else None,
    }


def _finite(value: float) -> float | None:
    return value if value < inf else None
