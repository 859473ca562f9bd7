"""The figures of a simulated run: latencies of its requests, rates, what steps and caches were used for.

Whether the run was steady, so that they say anything beyond it, is for :mod:`inferplan.serving.verdict` to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from inferplan.devices.constants import LateTokens
from inferplan.serving.autoscaling import Life
from inferplan.serving.batch_means import RunPrecision
from inferplan.serving.failures import Outage
from inferplan.serving.records import CANCELLED, FINISHED, REJECTED, TIMED_OUT, Meter, Records
from inferplan.shown import Shown
from inferplan.traffic.requests import Slo
from inferplan.units import Array, BoolArray


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunFigures(Shown):
    """One run, or the part of it that one class of traffic sees. Arrays hold the requests that finished, in the order
    they were sent; times in seconds.

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
    precision: RunPrecision | None = None
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
    tail: LateTokens | None = None
    """How late first tokens are at the 99th percentile, where it was measured."""
    first_burst: float = 0.0
    """By which share of their time to the first token the requests of a closed loop take longer that come all at once,
    first of all; the mean stays (:func:`uneven`)."""

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
        return self.records.outcome[self.counted]

    @cached_property
    def _done(self) -> BoolArray:
        return np.equal(self.status, FINISHED)

    def _column(self, name: str) -> Array:
        return np.asarray(getattr(self.records, name)[self.counted], dtype=np.float64)

    @cached_property
    def ttft(self) -> Array:
        """Time to the first token of each finished request."""
        return self._even + self._uneven

    @cached_property
    def _even(self) -> Array:
        """Time to the first token where a first burst takes as long as its steps."""
        return (self._column("first") - self.arrival)[self._done] * self.anchor[0]

    @cached_property
    def _uneven(self) -> Array:
        if not self.first_burst:
            return np.zeros(len(self._even))
        first = (self.arrival == self.start)[self._done]
        return uneven(self._even, first, self.first_burst, self.conditions["latency_s"])

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
        if self.anchor == (1.0, 1.0) and self.records.paces is None:
            return (self._column(event) - self.arrival)[self._done] + self._uneven
        rest = (self._column(event) - self._column("first"))[self._done]
        paces = 1.0 if self.records.paces is None else self.records.paces[self.counted][self._done]
        return self.ttft + rest * paces * self.anchor[1]

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
        """What became of the requests in the figures: each that was sent is in exactly one of the other entries; only
        sessions have calls that are cancelled."""
        arrived = int(np.sum(~np.isnan(self.arrival)))
        codes = (FINISHED, REJECTED, TIMED_OUT, CANCELLED)
        finished, rejected, gone, cancelled = (int(np.sum(self.status == code)) for code in codes)
        return {
            "arrived": arrived,
            "finished": finished,
            "rejected": rejected,
            "timed_out": gone,
            **({} if self.records.sessions is None else {"cancelled": cancelled}),
            "waiting": arrived - finished - rejected - gone - cancelled,
        }

    @cached_property
    def _left(self) -> BoolArray:
        """Of all requests that were sent, those that finished while rates count."""
        finish, (start, end) = np.asarray(self.records.finish, dtype=np.float64), self.window
        inside: BoolArray = (self.records.outcome == FINISHED) & (finish > start) & (finish <= end)
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
        (start, end), records = self.window, self.records
        finish = np.asarray(records.finish)
        until = np.minimum(np.where(np.isnan(finish), end, finish), end)
        held = np.maximum(until - np.maximum(np.asarray(records.arrival), start), 0.0)
        return float(np.nansum(held[records.outcome != REJECTED])) * self._stretch / self.duration

    @property
    def mean_batch(self) -> float:
        """Mean number of requests that decode while the engine is busy, a replica; of those that decode at all."""
        decoding = [meter for meter in self.meters if meter.batch_seconds]
        busy = sum(meter.busy for meter in decoding)
        return sum(meter.batch_seconds for meter in decoding) / busy if busy else 0.0

    @property
    def kv_use(self) -> dict[str, float]:
        """Share of the cache in use: mean over busy time, and peak."""
        return cache_use(self.meters)

    basis = property(lambda self: " and ".join(self.bases), doc="The bases in words.")

    @cached_property
    def hit_rate(self) -> float:
        """Share of the prompt tokens of admitted requests that were found in the prefix cache."""
        hits, tokens = self.records.hits(self.counted)
        return hits / tokens if tokens else 0.0

    def band(self, name: str) -> tuple[float, float] | None:
        """Factors on the mean of a latency between which 80 % of measured means lie; of a sum those of its parts."""
        if name not in ("e2el", "answer_ttft"):
            return self.bands.get(name)
        first, rest, whole = self.bands.get("ttft"), self.bands.get("tpot"), getattr(self, name)
        if first is None or rest is None or not len(whole):
            return None
        share = float(np.sum(self.ttft) / np.sum(whole))
        return share * first[0] + (1 - share) * rest[0], share * first[1] + (1 - share) * rest[1]


def uneven(ttft: Array, first: BoolArray, share: float, latency: float) -> Array:
    """Seconds by which each request is late beside its steps, where those of the ``first`` burst take a share longer.

    The others are sooner by as much in all, each by the seconds of ``latency`` at the most: where that is too little
    the burst takes less. Nobody is late where one request alone comes first, or none comes after.
    """
    others = int(np.sum(~first))
    longer: Array = np.where(first, share * ttft, 0.0)
    if not others or np.sum(first) < 2:
        return np.zeros(len(ttft))
    sooner = float(np.sum(longer)) / others
    kept = min(latency / sooner, 1.0)
    return kept * (longer - np.where(first, 0.0, sooner))


def cache_use(meters: Sequence[Meter]) -> dict[str, float]:
    """Share of the cache in use: mean over busy time, and peak."""
    busy = sum(meter.busy for meter in meters)
    mean = sum(meter.kv_seconds for meter in meters) / busy if busy else 0.0
    return {"mean": mean, "peak": max((meter.kv_peak for meter in meters), default=0.0)}
