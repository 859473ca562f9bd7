"""What a simulated run says: latencies at percentiles, rates, queue, cache, and whether it was steady at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from inferplan.serving.autoscaling import Life
from inferplan.serving.batch_means import Precision, half_width
from inferplan.serving.class_results import PERCENTILES, class_records, intervals_of, metrics_of
from inferplan.serving.failures import Outage
from inferplan.serving.records import CANCELLED, FINISHED, REJECTED, TIMED_OUT, Meter, Records
from inferplan.serving.session_results import SessionFigures, session_figures, session_record
from inferplan.serving.techniques.tiers import tier_records
from inferplan.serving.verdict import Verdict, capacity_band, load_of_capacity, near_capacity, verdict_of
from inferplan.shown import Shown
from inferplan.table import SCHEMA_VERSION
from inferplan.traffic.requests import Slo, TrafficClass
from inferplan.units import Array, BoolArray

_Amount = TypeVar("_Amount", int, float)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SimulationResult(Shown):
    """One run. Arrays hold the requests that finished, in the order they were sent; times in seconds.

    ``warmup``, ``cooldown``: requests at the head and at the end that were sent and are in no figure, because the
    system was filling or running empty around them. ``metered``: between which seconds rates and meters count, absent
    for the whole run. ``bases``: what the step prices of its pools rest on, each once. ``conditions``: the flags and
    the load generator, because a latency under load belongs to them. ``converged``: whether the figures are as sure as
    was asked for; ``None`` where the length was given. ``lives``, ``outages``: of replicas that come and go.
    """

    records: Records
    meters: Sequence[Meter]
    closed: bool
    slo: Slo = field(default_factory=Slo)
    warmup: int = 0
    cooldown: int = 0
    metered: tuple[float, float] | None = None
    converged: bool | None = None
    precision: Precision | None = None
    capacity_rate: float | None = None
    """Requests a second that leave when more arrive than can, where that was simulated."""
    untiered_rate: float | None = None
    """The same without cache tiers, where there are any."""
    bases: tuple[str, ...] = ("roofline",)
    capacity: float = 0.0
    """Tokens that the cache of one attention rank holds; where pools are apart, of one that decodes."""
    prompt_pool: tuple[int, float] = (0, 0.0)
    """Of pools apart: the first meters, of ranks that compute prompts; tokens that the cache of one of them holds."""
    slots: int = 0
    lives: Sequence[Life] = ()
    outages: Sequence[Outage] = ()
    conditions: dict[str, Any] = field(default_factory=dict)
    anchor: tuple[float, float] = (1.0, 1.0)
    """Measured over predicted TTFT and TPOT of a user's own rows."""
    bands: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Factors on the mean TTFT and TPOT between which 80 % of measurements lie, where they are known."""

    @property
    def counted(self) -> slice:
        """Which of the requests that were sent are in the figures."""
        return slice(self.warmup, len(self.records.prompt) - self.cooldown)

    @cached_property
    def arrival(self) -> Array:
        """Seconds at which each request was sent, those that never finished too; NaN where it never was."""
        return self._column("arrival")

    @cached_property
    def status(self) -> npt.NDArray[np.uint8]:
        """What became of each request: the codes of :mod:`inferplan.serving.records`."""
        return np.frombuffer(bytes(self.records.status), dtype=np.uint8)[self.counted]

    @cached_property
    def _done(self) -> BoolArray:
        return np.equal(self.status, FINISHED)

    def _column(self, name: str) -> Array:
        return np.asarray(getattr(self.records, name)[self.counted], dtype=np.float64)

    @cached_property
    def ttft(self) -> Array:
        """Time to the first token of each finished request."""
        return (self._column("first") - self.arrival)[self._done] * self.anchor[0]

    @cached_property
    def answer_ttft(self) -> Array:
        """Time to the first token after the thought of each finished request; empty where nobody thinks."""
        return np.zeros(0) if self.records.before is None else self._until("answered")

    @cached_property
    def e2el(self) -> Array:
        """Time to the last token of each finished request."""
        return self._until("finish")

    def _until(self, event: str) -> Array:
        """Time to something that follows the first token of each finished request."""
        if self.anchor == (1.0, 1.0):
            return (self._column(event) - self.arrival)[self._done]
        rest = (self._column(event) - self._column("first"))[self._done]
        return self.ttft + rest * self.anchor[1]

    @cached_property
    def tpot(self) -> Array:
        """``(last - first)/(output - 1)`` of each finished request with more than one output token."""
        output = self._column("output")[self._done]
        many = output > 1
        return np.divide((self.e2el - self.ttft)[many], output[many] - 1)

    @cached_property
    def wait(self) -> Array:
        """Time until a request was admitted into the batch, or its client gave up; for those still waiting, until the
        end of the run.
        """
        admitted = self._column("admitted")
        seen = self.status != REJECTED
        finish = self._column("finish")
        until = np.where(np.isnan(admitted), np.where(np.isnan(finish), self.end, finish), admitted)
        waited: Array = (until - self.arrival)[seen]
        return waited

    @cached_property
    def start(self) -> float:
        """Seconds of the first arrival."""
        arrived = self.arrival[~np.isnan(self.arrival)]
        return float(np.min(arrived)) if len(arrived) else 0.0

    @cached_property
    def end(self) -> float:
        """Seconds of the last finish."""
        finish = self._column("finish")
        return float(np.nanmax(finish)) if np.any(~np.isnan(finish)) else self.start

    @property
    def window(self) -> tuple[float, float]:
        """Between which seconds rates and meters count."""
        return self.metered or (self.start, self.end)

    @property
    def duration(self) -> float:
        """Seconds that rates and meters count; a closed loop follows an anchor, as its users do."""
        return max(self.window[1] - self.window[0], 1e-12) * self._stretch

    @cached_property
    def _stretch(self) -> float:
        """How much longer requests take by the anchor, in a closed loop; an open one keeps its own time."""
        if not self.closed or self.anchor == (1.0, 1.0) or not len(self.e2el):
            return 1.0
        return float(np.sum(self.e2el) / np.sum((self._column("finish") - self.arrival)[self._done]))

    @property
    def counts(self) -> dict[str, int]:
        """Every request that was sent is in exactly one of the other entries."""
        return _counts(self)

    @cached_property
    def _left(self) -> BoolArray:
        """Of all requests that were sent, those that finished while rates count."""
        finish, (start, end) = np.asarray(self.records.finish, dtype=np.float64), self.window
        finished = np.frombuffer(bytes(self.records.status), dtype=np.uint8) == FINISHED
        inside: BoolArray = finished & (finish > start) & (finish <= end)
        return inside

    @property
    def request_rate(self) -> float:
        """Finished requests a second."""
        return float(np.sum(self._left)) / self.duration

    @property
    def output_rate(self) -> float:
        """Output tokens of finished requests a second."""
        return float(np.sum(np.asarray(self.records.output)[self._left])) / self.duration

    @property
    def input_rate(self) -> float:
        """Prompt tokens of finished requests a second."""
        return float(np.sum(np.asarray(self.records.prompt)[self._left])) / self.duration

    @cached_property
    def attained(self) -> BoolArray:
        """Which finished requests meet every limit of the SLO."""
        good = np.ones(len(self.ttft), dtype=bool)
        tpot = (self.e2el - self.ttft) / np.maximum(self._column("output")[self._done] - 1, 1)
        for name, limit in self.slo.limits.items():
            good &= (tpot if name == "tpot" else getattr(self, name)) <= limit
        return good

    @property
    def goodput(self) -> float | None:
        """Requests a second that meet the SLO; ``None`` without one."""
        if not self.slo.limits:
            return None
        return self.request_rate * float(np.mean(self.attained)) if len(self.attained) else 0.0

    @property
    def preemptions(self) -> int:
        """How often a request lost its cache and was computed again, over all engines."""
        return sum(meter.preemptions for meter in self.meters)

    @property
    def in_system(self) -> float:
        """Mean number of requests in the system: the seconds of all of them in it while rates count, over those."""
        return _seconds_inside(self.records, self.window) * self._stretch / self.duration

    @property
    def mean_batch(self) -> float:
        """Mean number of requests that decode while the engine is busy, a replica; of those that decode at all."""
        return _mean_batch([meter for meter in self.meters if meter.batch_seconds])

    @property
    def kv_use(self) -> dict[str, float]:
        """Share of the cache in use: mean over busy time, and peak."""
        return _cache_use(self.meters)

    basis = property(lambda self: " and ".join(self.bases), doc="The bases in words.")

    @cached_property
    def hit_rate(self) -> float:
        """Share of the prompt tokens of admitted requests that were found in the prefix cache."""
        hits, tokens = self.records.hits(self.counted)
        return hits / tokens if tokens else 0.0

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
        keys = ("mean", *(f"p{q}" for q in PERCENTILES))
        if not self.steady:
            return dict.fromkeys(keys)
        own = name.removesuffix("_s")
        values = _gap_percentiles(self.records) if own == "itl" else _percentiles(getattr(self, own))
        return dict(zip(keys, values))

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

    def band(self, name: str) -> tuple[float, float] | None:
        """Factors on the mean of a latency between which 80 % of measured means lie; of a sum those of its parts."""
        if name not in ("e2el", "answer_ttft"):
            return self.bands.get(name)
        first, rest, whole = self.bands.get("ttft"), self.bands.get("tpot"), getattr(self, name)
        if first is None or rest is None or not len(whole):
            return None
        share = float(np.sum(self.ttft) / np.sum(whole))
        return share * first[0] + (1 - share) * rest[0], share * first[1] + (1 - share) * rest[1]


def parts(result: SimulationResult) -> list[tuple[TrafficClass, SimulationResult]]:
    """The run as each class of traffic sees it: its requests alone, counted while those of the run are.

    What steps and caches were used for is not told apart: the meters of a part only know how long its requests waited.
    """
    records = result.records
    if records.of is None:
        return []
    of = np.asarray(records.of)
    return [(one, part_of(result, of == place, one.slo)) for place, one in enumerate(records.classes)]


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


def _counts(result: SimulationResult) -> dict[str, int]:
    """What became of the requests in the figures; only sessions have calls that are cancelled."""
    arrived = int(np.sum(~np.isnan(result.arrival)))
    codes = (FINISHED, REJECTED, TIMED_OUT, CANCELLED)
    finished, rejected, gone, cancelled = (int(np.sum(result.status == code)) for code in codes)
    return {
        "arrived": arrived,
        "finished": finished,
        "rejected": rejected,
        "timed_out": gone,
        **({} if result.records.sessions is None else {"cancelled": cancelled}),
        "waiting": arrived - finished - rejected - gone - cancelled,
    }


def while_counting(result: SimulationResult) -> tuple[int, int]:
    """How many of all requests were sent, and how many finished, while rates count."""
    arrival, (start, end) = np.asarray(result.records.arrival, dtype=np.float64), result.window
    return int(np.sum((arrival >= start) & (arrival <= end))), round(result.request_rate * result.duration)


def _seconds_inside(records: Records, window: tuple[float, float]) -> float:
    """Seconds that all requests together are in the system in a window of time."""
    start, end = window
    arrival, finish = np.asarray(records.arrival), np.asarray(records.finish)
    seen = np.frombuffer(bytes(records.status), dtype=np.uint8) != REJECTED
    until = np.minimum(np.where(np.isnan(finish), end, finish), end)
    held = np.maximum(until - np.maximum(arrival, start), 0.0)
    return float(np.nansum(held[seen]))


def _mean_batch(meters: Sequence[Meter]) -> float:
    """Decodes of a busy second."""
    busy = sum(meter.busy for meter in meters)
    return sum(meter.batch_seconds for meter in meters) / busy if busy else 0.0


def _cache_use(meters: Sequence[Meter]) -> dict[str, float]:
    busy = sum(meter.busy for meter in meters)
    mean = sum(meter.kv_seconds for meter in meters) / busy if busy else 0.0
    return {"mean": mean, "peak": max((meter.kv_peak for meter in meters), default=0.0)}


def _cache(result: SimulationResult) -> dict[str, Any]:
    """The share of the cache in use and its tokens: of all replicas, and of each pool where they are apart."""

    def record(use: Mapping[str, float], capacity: float) -> dict[str, float]:
        return {"use_mean": use["mean"], "use_peak": use["peak"], "capacity_tokens": capacity}

    (ranks, of_prompts), capacity = result.prompt_pool, result.capacity
    pools = {
        "prefill": record(_cache_use(result.meters[:ranks]), of_prompts),
        "decode": record(_cache_use(result.meters[ranks:]), capacity),
    }
    return {**record(result.kv_use, capacity), "pools": pools if ranks else None}


def _percentiles(values: Array) -> list[float | None]:
    if not len(values):
        return [None] * (1 + len(PERCENTILES))
    return [float(np.mean(values)), *(float(x) for x in np.percentile(values, PERCENTILES))]


def _gap_percentiles(records: Records) -> list[float | None]:
    gaps, weights = np.asarray(records.gaps), np.asarray(records.gap_weights)
    if not len(gaps) or not weights.sum() > 0:
        return [None] * (1 + len(PERCENTILES))
    order = np.argsort(gaps)
    gaps, reached = gaps[order], np.cumsum(weights[order])
    at = np.searchsorted(reached, np.asarray(PERCENTILES) / 100 * reached[-1])
    mean = float(np.sum(gaps * weights[order]) / reached[-1])
    return [mean, *(float(gaps[min(i, len(gaps) - 1)]) for i in at)]


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
        "intervals": {f"{name}_s": intervals_of(result, name) for name in metrics_of(result)},
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
        "classes": class_records(parts(result)) or None,
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
    """Between which seconds 80 % of measured means lie; null where no held-out error is known."""
    record: dict[str, float | None] = {}
    for name in metrics_of(result):
        mean, band = result.percentiles(f"{name}_s")["mean"], result.band(name)
        record[f"{name}_low_s"] = None if mean is None or band is None else mean * band[0]
        record[f"{name}_high_s"] = None if mean is None or band is None else mean * band[1]
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
