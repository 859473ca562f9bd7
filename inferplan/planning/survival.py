"""A fleet that loses some of its replicas at a time, simulated: whether it keeps its limits until they are back.

All replicas run in a steady state; then the first of them are cut. Judged are the requests that arrive from then until
the lost ones take requests again, at the percentile of the limits and under the load itself, without the headroom of a
plan. Runs are repeated with other requests until there are enough of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, isfinite
from typing import NamedTuple

import numpy as np

from inferplan.errors import UsageError
from inferplan.planning.agents import session_seconds
from inferplan.planning.option import PlanOption
from inferplan.planning.question import Question
from inferplan.planning.verify import Kept, Survival, calls_for, flags_of, in_run_time, options_of
from inferplan.serving.autoscaling import Schedule
from inferplan.serving.batch_means import fewest_values
from inferplan.serving.failures import Failure, Failures
from inferplan.serving.fleet import Fleet
from inferplan.serving.outages import Outages, anew_late, at_percentile_of
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import MOST_REQUESTS, Requests, Slo, Traffic
from inferplan.units import Array

_FILL, _TAIL = 5.0, 2.0
"""Times of one request for which a fleet runs before the failure, and goes on behind the restart."""
_CYCLES = 2.0
"""Cycles of users who think, or times of a session, of which the first is as even as they begin, before the failure."""
_JUDGED, _FAILURES, _PLENTY = 4_000, 4, 10_000
"""Requests and failures that are looked at, at least; so many requests are enough of one failure."""
_GLANCE, _CLEARLY_MISSED = 600, 1.25
"""After so many requests a fleet is given up whose worst latency is more than so many times its limit."""
_MOST_TRIED = 4
"""Sizes beyond those lost and so many times as many are not tried."""


class _Run(NamedTuple):
    """One failure: by class (or of all) the latencies of the judged requests by name; and who began anew."""

    latencies: list[dict[str, Array]]
    judged: int
    anew: int
    late: int


def survival(option: PlanOption, question: Question) -> Survival:
    """Lose replicas of an option in simulation, as its question asks. Raises what ``simulate`` does."""
    survive = question.sizing.survive
    assert survive is not None
    lost = min(survive.lost(option.deployment), option.replicas)
    restart = survive.restart(option.deployment)
    held = [one.slo for one in question.demand.classes] or [question.slo]
    rarest = max(fewest_values(slo.percentile) for slo in held if slo.limits)
    need, runs = max(_JUDGED, rarest), list[_Run]()
    while True:
        runs.append(_lose(option, question, (lost, restart), len(runs)))
        judged = sum(run.judged for run in runs)
        found = Survival(
            lost=lost,
            restart=restart,
            failures=len(runs),
            judged=judged,
            kept=tuple(_kept(option, question, runs)),
            anew=sum(run.anew for run in runs),
            late=sum(run.late for run in runs),
        )
        if judged >= need and (len(runs) >= _FAILURES or judged >= _PLENTY):
            return found
        if judged >= _GLANCE and found.worst > _CLEARLY_MISSED:
            return found


def _kept(option: PlanOption, question: Question, runs: list[_Run]) -> list[Kept]:
    """Latencies of all runs at the percentile, as slow as the option takes the devices to be."""
    classes = question.demand.classes
    held: list[tuple[str, Slo]] = [(one.name, one.slo) for one in classes] or [("", question.slo)]
    kept = []
    for place, (name, slo) in enumerate(held):
        achieved = {
            metric: at_percentile_of(np.concatenate([run.latencies[place][metric] for run in runs]), slo.percentile)
            for metric in runs[0].latencies[place]
        }
        kept.append(Kept(name, slo, option.slow.of(achieved, slo.percentile)))
    return kept


def _lose(option: PlanOption, question: Question, what: tuple[int, float], seed: int) -> _Run:
    """One run of the whole fleet with one failure; what: replicas that are lost, and seconds until they are back
    (infinite: never, of which so much is simulated as tells)."""
    lost, restart = what
    demand, step = in_run_time(question.demand, option), option.slow.step
    lasting = option.e2el / step  # in the time of the run
    cycle = demand.prefix.turns * (lasting + demand.think) if demand.think else 0.0
    if demand.sessions is not None:
        cycle = session_seconds(demand.sessions, float(f"{lasting:.2g}"))
    start = max(_FILL * lasting, _CYCLES * cycle)
    rate = (demand.requests_per_second or 0.0) * (step if demand.users is None else 1.0)
    load = float(demand.users) if demand.users is not None else rate
    coming = rate or load / (lasting + demand.think)
    down = restart / step if isfinite(restart) else max(_PLENTY / coming, _FILL * lasting, _CYCLES * cycle)
    deployment = option.deployment
    deployment = replace(deployment, parallel=replace(deployment.parallel, replicas=option.replicas))
    fleet = Fleet(
        routing="sticky" if demand.prefix.turns > 1 or demand.of_sessions else "round-robin",
        scaling=Schedule(changes=((0.0, option.replicas),), cold_start=down),
        failures=Failures(at=(Failure(at=start, replicas=lost),)),
    )
    flags, options = flags_of(option, question), options_of(option, question, fleet)
    whole = start + down + _TAIL * lasting
    count = ceil(coming * whole) + 1
    if count > MOST_REQUESTS:
        raise UsageError(
            f"about {count:,} requests come in one restart, more than a run can hold",
            because=f"each request is kept in memory, of {MOST_REQUESTS:,} at most",
            hint="a shorter --restart, or a lower --rate with as many times fewer replicas",
        )
    while True:
        traffic: Traffic | Requests
        if demand.sessions is not None:
            traffic = calls_for(demand, option, load, count, seed)
        else:
            traffic = demand.traffic(load, count, 0.0 if demand.users is None else lasting, seed)
        seen = Outages(simulate(deployment, traffic, flags, options))
        if seen.end >= start + down:
            return _judged(seen, start, start + down)
        count *= 2


def _judged(seen: Outages, start: float, stop: float) -> _Run:
    """The requests that arrive between two times."""
    meanwhile = (seen.arrival >= start) & (seen.arrival < stop)
    latencies = [{name: values[meanwhile & mine] for name, values in seen.latencies.items()} for _, mine in seen.held]
    return _Run(latencies, int(np.sum(meanwhile)), *anew_late(seen))


def smallest_survivor(
    option: PlanOption, question: Question, sized: Callable[[int], PlanOption]
) -> tuple[PlanOption, Survival] | None:
    """The smallest size of an option, from its own on, that survives; ``None`` where none does that is tried.

    sized: the option with at least so many replicas, as many as its bill holds. A size that survives makes larger ones
    survive; sizes are tried in order, as a search that knows nothing would.
    """
    survive = question.sizing.survive
    assert survive is not None
    lost, tried = survive.lost(option.deployment), option
    most = option.replicas + _MOST_TRIED * (lost + 1)
    while tried.replicas <= most:
        if tried.replicas > lost:
            found = survival(tried, question)
            if found.meets:
                return tried, found
        tried = sized(tried.replicas + 1)
    return None
