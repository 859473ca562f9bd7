"""What users see of failures: a run before one, while replicas are missing, while the backlog is worked off, and after.

An episode begins with a failure and is over when all replicas are back and no more requests are in the fleet than on
average before: before the first failure of a steady load, and for some time before each one of a load that changes. A
failure before that belongs to the same episode.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from inferplan.errors import InfeasibleError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.serving.class_results import percentile_with_lost
from inferplan.serving.failures import Outage
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.records import FINISHED, REJECTED
from inferplan.serving.result import SimulationResult
from inferplan.serving.run_length import COUNTED
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import OpenLoop, Requests, Slo, Traffic
from inferplan.units import Array, BoolArray

_BINS = 4
"""Bins of a timeline in the time that a replica takes to be back."""
_RESTARTS = 3.0
"""Times of a restart that a run lasts beyond the last failure, at first."""
_ROUNDING = 1e-6
"""Of a mean number of requests: all users of a closed loop, always."""
MOST_REQUESTS = 200_000
"""Of a run that goes on until the backlog is gone."""


class Episode(NamedTuple):
    """Failures until the fleet is as before. at, back: when the first is, and when all replicas take requests again.
    over: when the backlog is gone; infinite where the run ends before. peak: most requests in the fleet meanwhile.
    level: the mean before.
    """

    at: float
    back: float
    over: float
    peak: int
    level: float
    outages: tuple[Outage, ...]


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Requests that arrive from ``start`` to ``stop``, in seconds; of several episodes those of each.

    latencies: seconds at the percentile of the limits, infinite where more never finish. within: the share that keeps
    every limit; ``None`` without requests or limits. most, mean: requests in the fleet.
    """

    name: str
    start: float
    stop: float
    arrived: int
    latencies: dict[str, float]
    within: float | None
    anew: int
    most: int
    replicas: float


@dataclass(frozen=True, eq=False)
class Outages:
    """A run with failures, looked at. recent: seconds before a failure that it is compared with; ``None``: those before
    the first failure, without their first quarter."""

    result: SimulationResult
    recent: float | None = None

    @cached_property
    def arrival(self) -> Array:
        return np.asarray(self.result.records.arrival, dtype=np.float64)

    @cached_property
    def finished(self) -> BoolArray:
        return np.equal(self.result.records.outcome, FINISHED)

    @cached_property
    def latencies(self) -> dict[str, Array]:
        """Of every request, in seconds: infinite where it never finished, NaN where it has none (TPOT of one token)."""
        records, (first, whole) = self.result.records, self.result.anchor
        begun, finish = (np.asarray(column, dtype=np.float64) for column in (records.first, records.finish))
        rest = whole if records.paces is None else whole * records.paces
        ttft, decode = (begun - self.arrival) * first, (finish - begun) * rest
        steps = np.asarray(records.output, dtype=np.float64) - 1
        tpot = np.where(steps > 0, decode / np.maximum(steps, 1), np.nan)
        found = {"ttft": ttft, "tpot": tpot, "e2el": ttft + decode}
        if records.before is not None:
            found["answer_ttft"] = ttft + (np.asarray(records.answered, dtype=np.float64) - begun) * rest
        return {name: np.where(self.finished, values, inf) for name, values in found.items()}

    @cached_property
    def held(self) -> list[tuple[Slo, BoolArray]]:
        """What is held to which limits: the requests of each class, or all of them."""
        records = self.result.records
        if records.of is None:
            return [(self.result.slo, np.ones(len(self.arrival), dtype=bool))]
        of = np.asarray(records.of)
        return [(one.slo, np.equal(of, place)) for place, one in enumerate(records.classes)]

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return any(slo.limits for slo, _ in self.held)

    @cached_property
    def within(self) -> BoolArray:
        """Which requests finish and keep every limit that is theirs."""
        good = self.finished.copy()
        for slo, mine in self.held:
            for name, limit in slo.limits.items():
                values = self.latencies[name]
                good &= ~mine | np.isnan(values) | (values <= limit)
        return good

    @cached_property
    def anew(self) -> Array:
        """How often each request began anew."""
        found = np.zeros(len(self.arrival))
        for request, times in self.result.records.anew.items():
            found[request] = times
        return found

    @cached_property
    def _steps(self) -> tuple[Array, Array]:
        """Times at which the number of requests in the fleet changes, and the number from each on; those that were
        refused were never in it."""
        arrival, finish = self._leaving
        arrival, finish = np.sort(arrival[~np.isnan(arrival)]), np.sort(finish[~np.isnan(finish)])
        times = np.unique(np.concatenate([arrival, finish]))
        held = np.searchsorted(arrival, times, "right") - np.searchsorted(finish, times, "right")
        return times, held.astype(np.float64)

    def in_fleet(self, start: float, stop: float) -> tuple[float, int]:
        """Requests in the fleet between two times: on average, and at most."""
        times, held = self._steps
        first = int(np.searchsorted(times, start, "right"))
        last = max(int(np.searchsorted(times, stop, "left")), first)
        inside = np.concatenate([held[first - 1 : first] if first else np.zeros(1), held[first:last]])
        edges = np.concatenate([[start], times[first:last], [stop]])
        mean = float(np.dot(np.diff(edges), inside)) / (stop - start) if stop > start else float(inside[-1])
        return mean, int(np.max(inside))

    @cached_property
    def before(self) -> tuple[float, float]:
        """The time before the first failure that counts."""
        first = self.result.outages[0].at
        return (1 - COUNTED) * first, first

    @cached_property
    def level(self) -> float:
        """Requests in the fleet before the first failure, on average."""
        return self.in_fleet(*self.before)[0]

    def _level(self, at: float) -> float:
        """Requests in the fleet before a failure, on average."""
        return self.level if self.recent is None else self.in_fleet(max(at - self.recent, 0.0), at)[0]

    def _over(self, at: float, back: float) -> float:
        """When no more requests are in the fleet than before a failure ``at`` some time, from ``back`` on; infinite
        where arrivals end first."""
        times, held = self._steps
        since = max(int(np.searchsorted(times, back, "right")) - 1, 0)
        low = np.flatnonzero(held[since:] <= self._level(at) + _ROUNDING)
        over = max(float(times[since + low[0]]), back) if len(low) else inf
        return over if over <= float(np.nanmax(self.arrival)) else inf

    @cached_property
    def episodes(self) -> list[Episode]:
        """The failures, those together of which the later begins before the fleet is as before."""
        groups: list[list[Outage]] = []
        for outage in self.result.outages:
            if groups and outage.at <= self._over(groups[-1][0].at, max(one.back for one in groups[-1])):
                groups[-1].append(outage)
            else:
                groups.append([outage])
        found = []
        for group in groups:
            back = max(one.back for one in group)
            over = self._over(group[0].at, back)
            peak = self.in_fleet(group[0].at, min(over, self.result.end))[1]
            found.append(Episode(group[0].at, back, over, peak, self._level(group[0].at), tuple(group)))
        return found

    @property
    def recovered(self) -> bool:
        """Whether the backlog of every failure was gone while requests still came."""
        return all(episode.over < inf for episode in self.episodes)

    @cached_property
    def _leaving(self) -> tuple[Array, Array]:
        """When each request came that was not refused, and when it left."""
        kept = self.result.records.outcome != REJECTED
        return self.arrival[kept], np.asarray(self.result.records.finish, dtype=np.float64)[kept]

    @property
    def filled(self) -> bool:
        """Whether a request was done before the first failure: until then the fleet only fills."""
        return bool(np.any(self._leaving[1] <= self.result.outages[0].at))

    @property
    def typical(self) -> float:
        """Seconds of a request in the fleet, the median."""
        arrival, finish = self._leaving
        return float(np.nanmedian(finish - arrival))

    def stretch(self, name: str, *spans: tuple[float, float]) -> Stretch:
        """Of requests that arrive in some spans of time, each from its start until before its stop."""
        mine = np.zeros(len(self.arrival), dtype=bool)
        for start, stop in spans:
            mine |= (self.arrival >= start) & (self.arrival < stop)
        count = int(np.sum(mine))
        latencies = {
            key: at_percentile_of(values[mine], self.result.slo.percentile) for key, values in self.latencies.items()
        }
        long = sum(stop - start for start, stop in spans)
        return Stretch(
            name=name,
            start=min((start for start, _ in spans), default=inf),
            stop=max((stop for _, stop in spans), default=inf),
            arrived=count,
            latencies=latencies,
            within=float(np.mean(self.within[mine])) if count and self.limited else None,
            anew=int(np.sum(self.anew[mine])),
            most=max((self.in_fleet(*span)[1] for span in spans), default=0),
            replicas=sum(self.replica_seconds(*span) for span in spans) / long if long else 0.0,
        )

    def replica_seconds(self, start: float, stop: float) -> float:
        """Seconds of replicas that take requests between two times, summed over the replicas."""
        there = [(max(life.ready, start), min(life.left, stop)) for life in self.result.lives]
        return sum(max(until - since, 0.0) for since, until in there)

    @cached_property
    def end(self) -> float:
        """When the last request comes."""
        return float(np.nanmax(self.arrival))

    @cached_property
    def stretches(self) -> list[Stretch]:
        """Before the first failure, with replicas missing, until the backlog is gone, and all other time after."""
        episodes, end = self.episodes, np.nextafter(self.end, inf)
        outside = zip([episode.over for episode in episodes], [*(episode.at for episode in episodes[1:]), end])
        return [
            self.stretch("before", self.before),
            self.stretch("replicas missing", *((episode.at, min(episode.back, end)) for episode in episodes)),
            self.stretch(
                "backlog worked off",
                *((min(episode.back, end), min(episode.over, end)) for episode in episodes),
            ),
            self.stretch("after", *((start, stop) for start, stop in outside if start < stop)),
        ]

    def bins(self, most: int) -> list[Stretch]:
        """The run from a restart before the first failure to one after the last: four bins in a restart, longer ones
        where that makes more than ``most``. One begins at the first failure."""
        first, last = self.episodes[0], self.episodes[-1]
        long = max(first.back - first.at, 1e-3)
        stop = min(last.over + long, self.end) if last.over < inf else self.end
        width = max(long / _BINS, (stop - first.at + long) / (most - 1))
        low, high = -min(ceil(long / width), int(first.at / width)), max(ceil((stop - first.at) / width - 1e-9), 1)
        edges = [(first.at + place * width, first.at + (place + 1) * width) for place in range(low, high)]
        return [self.stretch("", edge) for edge in edges]


def at_percentile_of(values: Array, percentile: float) -> float:
    """As :func:`inferplan.serving.class_results.at_percentile`: what never finished is infinitely late. Not a number
    where no request has such a latency.
    """
    values = values[~np.isnan(values)]
    return percentile_with_lost(values, percentile) if len(values) else float("nan")


def simulate_failures(
    deployment: Deployment, traffic: Traffic | Requests, flags: Flags, options: Options
) -> SimulationResult:
    """Simulate until the backlog of the last failure is gone: a load whose number of requests is not given takes twice
    as many until it is, :data:`MOST_REQUESTS` at most.

    Raises ``UsageError`` where the last request comes before the last failure.
    """
    failures, scaling, options = options.fleet.failures, options.fleet.scaling, replace(options, trim=False)
    assert failures is not None and scaling is not None
    last = failures.at[-1].at
    whole = last + _RESTARTS * scaling.cold_start
    if not isinstance(traffic, Traffic) or traffic.requests_count is not None:
        result = simulate(deployment, traffic, flags, options)
        _require_reached(result, last)
        return result
    arrivals = traffic.arrivals
    if isinstance(arrivals, OpenLoop) and arrivals.rate * last > MOST_REQUESTS:
        raise UsageError(
            f"about {arrivals.rate * last:,.0f} requests arrive before the last failure",
            because=f"{MOST_REQUESTS:,} are the most in a run that continues until the backlog is gone",
            hint="an earlier --fail, or a number of --requests",
        )
    count = ceil(arrivals.rate * whole) + 1 if isinstance(arrivals, OpenLoop) else 10 * arrivals.concurrency
    while True:
        count = min(count, MOST_REQUESTS)
        result = simulate(deployment, replace(traffic, requests_count=count), flags, options)
        if count == MOST_REQUESTS:
            _require_reached(result, last)
            return result
        seen = Outages(result)
        if seen.end >= whole and (seen.recovered or not seen.filled):  # of a fleet that never filled no level is known
            return result
        count *= 2


def _require_reached(result: SimulationResult, last: float) -> None:
    end = float(np.nanmax(np.asarray(result.records.arrival, dtype=np.float64)))
    if end < last:
        raise UsageError(
            f"the last request comes at {end:,.4g} s, before the failure at {last:,.4g} s",
            because=f"{len(result.records.prompt):,} requests are sent",
            hint="more --requests, or an earlier --fail",
        )


def anew_late(seen: Outages) -> tuple[int, int]:
    """Requests that began anew, and those of them that miss a limit."""
    again = seen.anew > 0
    return int(np.sum(again)), int(np.sum(again & ~seen.within))


def recovery_error(result: SimulationResult) -> InfeasibleError | None:
    """The error of a fleet that is not as before when the last request comes."""
    seen = Outages(result)
    if seen.recovered:
        return None
    if not seen.filled:
        return InfeasibleError(
            f"not recovered: no request was done before the failure at {result.outages[0].at:,.4g} s",
            because="the fleet then held fewer requests than usual at this load, so no backlog can fall to that level",
            hint=f"a later --fail: a request takes {seen.typical:,.3g} s",
        )
    waiting = seen.in_fleet(seen.end, seen.end)[1]
    return InfeasibleError(
        "not recovered: the backlog of a failure is not gone when the last request arrives",
        because=f"{waiting:,} requests are in the fleet then, {seen.level:,.1f} on average before the failure",
        hint="more --requests where it falls, more --replicas or a lower --rate where it does not",
    )
