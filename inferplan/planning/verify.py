"""An option under the simulator: percentiles of the steady part of a run, instead of screening formulas."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf, sqrt
from typing import NamedTuple

import numpy as np

from inferplan.answers.power import run_energy
from inferplan.catalog.power import standing_watts
from inferplan.errors import InferplanError, NotFiniteError
from inferplan.estimate.deployment import Deployment
from inferplan.planning.agents import every, in_time_of, sessions_of
from inferplan.planning.demand import Demand
from inferplan.planning.option import PlanOption
from inferplan.planning.power import PowerBudget
from inferplan.planning.question import Question
from inferplan.serving.batch_means import RunPrecision, batch_size, fewest_values, percentiles_in_turn, student_95
from inferplan.serving.class_results import METRICS, at_percentile, metrics_of
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.paused_run import PausedRun
from inferplan.serving.result import SimulationResult, class_parts
from inferplan.serving.routing import Routing
from inferplan.serving.run_length import as_sure_as, simulate_steady
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.tiers import CacheTier
from inferplan.serving.verdict import FEWEST_LIFETIMES, flow_of
from inferplan.traffic.requests import OpenLoop, Requests, Slo, Traffic
from inferplan.units import Array

_LIVES, _MOST = 14, 12_000
"""Requests of a run that sizes: so many times those in the system at once, up to a bound."""
_GLANCE_LIVES = 8
"""The same of a first run, which only tells what is clear."""
_GLANCE, _LOOK = 600, 2_000
"""At least so many, and where the first run is not clear, so many: at the 95th percentile and below."""
_MOST_FOR_TAIL = 5.0
"""A percentile further out takes more of both, in proportion to the values that a batch takes, up to the 99th's."""
_REPEATS = 4
"""How often a run that is too short to tell is repeated with more requests."""
_MARGIN, _TWICE = 1.15, 2.0
"""A run that spans too few lifetimes is repeated with so much more than that takes, at most twice as many requests; one
that has too few for its percentile with twice as many."""
TOO_SHORT = "too short to tell"
_CLEARLY_KEPT, _CLEARLY_MISSED = 0.85, 1.25
"""A run is clear where the worst latency is less, or more, than so many times its limit, ..."""
_LONGER = 4
"""A run that is not seen in parts and misses a limit by less than its own error is made anew with so many times as many
requests. Of sessions 2,100 calls leave the 95th percentile of TPOT a standard deviation of 13 %
(docs/accuracy-plans.md, "Examined")."""
_FAR_OVER = 2.0
"""A run that sizes and is too short to tell is not repeated where a latency is so many times its limit: in a longer
one, of which the start from an empty system is less, it is no shorter. Where requests find nothing of those before
them in a cache, a clear miss will do: without a cold cache the first ones are the fastest."""
_PARTS, _LEAST_ERROR = 5, 0.02
"""... or off it by more than its error: by the spread of so many parts of the run, and this share of it at least."""
_FEWEST_LIVES = 6
"""A run of a large fleet is longer than the most, so that it holds so many times one request as the closed form sees
it, which is mostly too long. Where it is not, the run is too short to tell and is repeated."""
_LIVES_OF_POOLS = 7
"""The same of pools apart, which run as a whole. At six times, 7 of 13 first runs of such pairs were too short to tell
and made again, for want of less than a sixth."""
_SPANS = 7.0
"""Times of one conversation in which conversations begin in a run: three quarters are counted, and a verdict takes
five."""
_VISITS = 12
"""Requests of a run for each text that prompts begin with: in the quarter that is not counted 19 of 20 texts come for
the first time (``1 - exp(-3)``). With half as many a plan bought 3 L40S where 2 do (docs/accuracy-plans.md)."""
_MOST_USERS = 3_000
"""Users who think that are simulated together. Those in conversations send :data:`_FEWEST_LIVES` of them each, whatever
the time between; others begin as if they had been at it for long."""
QUOTED = RunPrecision(tolerance=0.03, fewest=4_000, most=24_000)
"""How sure the percentiles that a plan states are."""
SHOWN = RunPrecision(tolerance=0.05, fewest=4_000, most=4_000)
"""What is shown beside it, alternatives and other loads, comes from so many requests where its percentile takes no
more."""
IN_PASSING = RunPrecision(tolerance=0.05, fewest=_LOOK, most=_LOOK)
"""What is said in passing, such as by how much a cheaper option misses a limit, comes from so many."""
_LOAD_WITH_ROOM = 1.3
"""A replica is started with slots for so many times its load: fewer save nothing and are a cliff in a busy hour."""


class Kept(NamedTuple):
    """What one class of traffic has of its limits; or all traffic, where it has no classes."""

    name: str
    slo: Slo
    achieved: dict[str, float]
    """Latencies at the percentile of ``slo``, in seconds."""

    def shares(self, names: Collection[str]) -> dict[str, float]:
        """Each latency of ``names`` that is limited, over its limit."""
        return {name: self.achieved[name] / limit for name, limit in self.slo.all_limits.items() if name in names}


@dataclass(frozen=True, kw_only=True, eq=False)
class Survival:
    """What became of a fleet of which ``lost`` replicas were cut at a moment and back ``restart`` seconds later.

    failures: how often that was simulated. judged: requests that arrived meanwhile. kept: their latencies at the
    percentile, of each class or of all, in seconds. anew: requests that began anew, all failures together; late: those
    of them that miss a limit, of which the judgement knows nothing.
    """

    lost: int
    restart: float
    failures: int
    judged: int
    kept: tuple[Kept, ...]
    anew: int
    late: int

    @property
    def worst(self) -> float:
        """The largest of the limited latencies over its limit."""
        return max((share for one in self.kept for share in one.shares(one.slo.limits).values()), default=0.0)

    @property
    def meets(self) -> bool:
        return self.worst <= 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Verified:
    """An option with what the simulator says of it; ``result`` is absent where the simulator cannot run it.

    achieved: latencies at the SLO's percentile, in seconds, as slow as the option takes the devices to be. slots:
    sequences that one replica is started with. verdict: that of the run; of a run to quote from also "too short to
    tell" where it has too few requests for the percentile. classes: what each class of traffic has, where there are
    some.
    """

    option: PlanOption
    slots: int
    achieved: dict[str, float]
    result: SimulationResult | None = None
    verdict: str = "not simulated"
    classes: tuple[Kept, ...] = ()
    survival: Survival | None = None
    """What became of it when replicas were lost, where that was asked for."""
    options: Options | None = None
    """What the run was asked."""
    growth: float = 1.0
    """How many times as long as was planned the run had to be, so that it was not too short to tell."""
    rest: Rest | None = None
    """The run of which it is a part."""
    lengthened: bool = False
    """Whether :func:`seen_longer` has made a longer run of it."""

    def kept(self, slo: Slo) -> tuple[Kept, ...]:
        """What is held to limits: every class to its own, or all traffic to ``slo``."""
        return self.classes or (Kept("", slo, self.achieved),)

    def shares(self, slo: Slo) -> dict[str, float]:
        """Each limited latency over its limit: of the class that comes closest to it, or exceeds it by most."""
        found: dict[str, float] = {}
        for one in self.kept(slo):
            for name, share in one.shares(slo.all_limits).items():
                found[name] = max(share, found.get(name, 0.0))
        return found

    @property
    def response(self) -> float | None:
        """Mean seconds of a request, as slow as the option takes the devices to be; ``None`` without a run."""
        if self.result is None or not len(self.result.e2el):
            return None
        slow = self.option.slow
        return float(np.mean(self.result.e2el)) * slow.step + slow.late(float(np.mean(self.result.ttft)))

    @property
    def refused(self) -> str:
        """Why requests could never run, with their number; empty when all could."""
        if self.result is None or not self.result.counts["rejected"]:
            return ""
        counts = self.result.counts
        refused = f"{counts['rejected']:,} of {counts['arrived']:,} requests are refused"
        return f"{refused}: {'; '.join(self.result.records.refused)}"

    @property
    def largest_step(self) -> float:
        """Tokens of the largest step of the run that held prompts; infinity without a run."""
        return inf if self.result is None else max(meter.largest_step for meter in self.result.meters)

    @property
    def watts(self) -> float | None:
        """Mean watts of all devices, with what the power budget counts beside them; spare ones are on. ``None`` where
        that is not known: without a run or a TDP.
        """
        option = self.option
        if self.result is None or option.deployment.hardware.power is None:
            return None
        found = run_energy(option.deployment, self.result, self.options)
        if found is None:
            return None
        budgets = (limit for limit in option.limits if isinstance(limit, PowerBudget))
        beside, running = next(budgets, PowerBudget(watts=inf)), replace(option, spare=0).devices
        spare = beside.whole(standing_watts(option.deployment.hardware), option.devices - running)
        return beside.whole(found.watts, running) + spare

    def longer(self, precision: RunPrecision) -> tuple[Verified | None, RunPrecision]:
        """This run of a steady load with what it says of a precision; ``None`` where that takes a longer one, and the
        precision of that, which begins with as many requests as the next run has.
        """
        if self.result is None or self.result.precision is None:
            return None, precision
        ended, count = as_sure_as(self.result, precision)
        known = None if ended is None else replace(self, result=ended)
        return known, replace(precision, fewest=count) if known is None else precision

    def holds(self, requests: int, slo: Slo) -> bool:
        """Whether so many requests were sent, and as many counted as the percentile takes."""
        result = self.result
        return result is not None and result.counts["arrived"] >= requests and _enough(result, slo)

    def violations(self, slo: Slo) -> dict[str, float]:
        """Limits that are not met, with the factor by which they are missed; an overloaded run misses without bound."""
        if self.verdict == "overloaded":
            return dict.fromkeys(slo.all_limits, float("inf"))
        return {name: share for name, share in self.shares(slo).items() if share > 1.0}

    def meets(self, slo: Slo) -> bool:
        """Whether every limit is kept by a run that is neither overloaded nor too short to tell; a request that is
        refused is late.
        """
        return not self.violations(slo) and not self.verdict.startswith(("overloaded", "refused", TOO_SHORT))

    def sound(self, slo: Slo) -> bool:
        """Whether it may be bought: every limit is kept, no queue takes longest, and no request is refused."""
        return self.meets(slo) and self.verdict not in ("saturated", "rejecting")


def slots_for(option: PlanOption, demand: Demand, utilisation: float) -> int:
    """Sequences to admit to one replica: its load with room, and three standard deviations more, in eights.

    By Little's law a replica holds ``rate*e2el`` requests; of users, those who do not think. The room is 1.3, or what
    the utilisation leaves. Where decodes share the token budget with prompts, a step holds a token (with drafts, a
    verification) of each in it: vLLM does not start with fewer tokens of a step than sequences, whatever the stages
    (``config/scheduler.py``).
    """
    if option.slots is not None:
        return option.slots
    engine, parallel = option.deployment.engine, option.deployment.parallel
    each = engine.defaults.tier(option.deployment.hardware).max_sequences
    if engine.batching.mixed:
        each = max(min(each, option.budget, option.budget // option.speculation.width * parallel.pp), 1)
    most = each * parallel.dp
    held = option.concurrency
    if demand.users is not None:
        held = demand.users / option.replicas * demand.waiting_share(option.e2el)
    elif demand.requests_per_second is not None and not demand.offline and not option.pools:
        held = demand.requests_per_second / option.replicas * option.e2el
    wanted = max(held * max(_LOAD_WITH_ROOM, 1 / utilisation), 1.0)
    return min(ceil((wanted + 3 * sqrt(wanted)) / 8) * 8, most)


def slots_of(option: PlanOption, question: Question) -> int:
    """Sequences to admit to one replica of a plan; those that are left when others are lost have their load too."""
    lost = question.sizing.lost(option.deployment)
    option = replace(option, replicas=max(option.replicas - lost, 1)) if lost else option
    return slots_for(option, question.demand, question.sizing.utilisation)


def in_run_time(demand: Demand, option: PlanOption) -> Demand:
    """The demand in the time of a run, in which ``option.slow.step`` seconds are one: users think no longer where
    devices are slower. Its rate is left as it is.
    """
    think = demand.prefix.think
    return replace(demand, prefix=replace(demand.prefix, think=replace(think, mean=think.mean / option.slow.step)))


def traffic_of(
    demand: Demand, option: PlanOption, factor: float = 1.0, fewest: int = _LOOK, whole: bool = False
) -> Traffic | Requests:
    """The traffic of one replica (of all of them where pools are apart, or ``whole``; of :func:`replicas_together`
    where users think), of at least so many requests.

    A fleet is fed in turn, so one of ``n`` replicas sees every n-th request: gaps of a Poisson stream add up by n, and
    are then gamma distributed with n times the shape.
    """
    share = 1 if option.pools or whole else option.replicas
    lasting = option.e2el / option.slow.step  # in the time of the run
    demand = in_run_time(demand, option)
    fewest = max(fewest, visits(demand, option.pools[0] if option.pools else option.replicas if whole else 1))
    if demand.users is not None:
        users = max(ceil(demand.users * factor / share * (1 if whole else replicas_together(option, demand))), 1)
        waiting = ceil(users * demand.waiting_share(lasting))
        count = max(min(_LIVES * waiting, _MOST), fewest, _LIVES_OF_POOLS * waiting)
        if demand.prefix.turns > 1 or not demand.think:
            count = max(count, _FEWEST_LIVES * users)
        count *= demand.prefix.turns  # of conversations, every user's later turns too
        return demand.traffic(users, count, lasting)
    if demand.trace is not None and demand.trace.sessions is not None:
        return _named(in_time_of(every(demand.trace, share, factor), option.slow.step), demand)
    if demand.trace is not None and demand.trace.arrival is not None:
        return _thinned(_named(demand.trace, demand), share, factor)
    rate = (demand.requests_per_second or 0.0) * factor / share
    if demand.sessions is not None:
        return calls_for(demand, option, rate, fewest)
    held = rate * lasting
    lives = _GLANCE_LIVES if fewest < _LOOK else _LIVES
    lives = _LIVES_OF_POOLS if option.pools else lives  # all replicas are simulated: percentiles are of more
    count = max(int(min(lives * held, _MOST)), fewest, round(_FEWEST_LIVES * held))
    return demand.one_of(share).traffic(rate, max(count, spans(demand, rate, lasting)))


def visits(demand: Demand, caches: int) -> int:
    """Requests of a run in which each of so many caches sees the texts that prompts begin with."""
    return min(_VISITS * demand.prefix.distinct * caches, _MOST) if demand.prefix.distinct > 1 else 0


def spans(demand: Demand, rate: float, lasting: float) -> int:
    """Requests of a run that fills over whole conversations, of which a verdict takes some; a request is ``lasting`` so
    many seconds."""
    pauses, turns = (demand.prefix.turns - 1) * demand.prefix.think.mean, demand.prefix.turns
    return ceil(_SPANS * rate * (turns * lasting + pauses)) if turns > 1 else 0


def calls_for(demand: Demand, option: PlanOption, rate: float, fewest: int, seed: int = 0) -> Requests:
    """At least so many calls of the sessions of a demand, ``rate`` a second, in the time of a run."""
    assert demand.sessions is not None
    traffic = demand.sessions if seed == 0 else replace(demand.sessions, seed=demand.sessions.seed + seed)
    return _named(in_time_of(sessions_of(traffic, rate, fewest, option.e2el), option.slow.step), demand)


def _named(requests: Requests, demand: Demand) -> Requests:
    """The requests with the adapters that they name, if any."""
    return requests if demand.adapters is None else requests.naming(demand.adapters, seed=0)


def replicas_together(option: PlanOption, demand: Demand) -> int:
    """Replicas that are simulated together where none have to be: one, or of users who think as many as have
    :data:`_MOST_USERS` of them. A router that feeds replicas in turn evens out what independent users send.
    """
    if not demand.think or option.pools:
        return 1
    return min(max(int(_MOST_USERS * option.replicas / (demand.users or 1)), 1), option.replicas)


def _thinned(trace: Requests, share: int, factor: float) -> Requests:
    """Every ``share``-th request of a trace, as a round-robin balancer sends them, ``factor`` times as fast."""
    assert trace.arrival is not None
    chosen = slice(0, None, share)
    return replace(
        trace,
        prompt=trace.prompt[chosen],
        output=trace.output[chosen],
        arrival=(trace.arrival[chosen] - trace.arrival[0]) / factor,
        hashes=None if trace.hashes is None else trace.hashes[chosen],
        adapters=None if trace.adapters is None else trace.adapters[chosen],
    )


def verify(
    option: PlanOption,
    question: Question,
    factor: float = 1.0,
    precision: RunPrecision | None = None,
    growth: float = 1.0,
) -> Verified:
    """Simulate one replica under its share of ``factor`` times the demand; an offline job needs no latencies and is not
    simulated.

    A short run decides where it is clear, a longer one where it is not, and one that is too short to tell is repeated
    with more requests; precision: a run to quote from. In an open loop it goes on until its percentiles are as sure as
    this, and it holds enough requests for the percentile in any case; of a trace it is the whole fleet's. growth: how
    many times as long a run had to be that was like this one (:attr:`Verified.growth`). Devices that are slower by a
    factor are simulated in their own time: under so much more load, and every second of the run lasts so much longer.
    Raises ``NotFiniteError`` for a price that is none.
    """
    demand, slo = question.demand, question.slo
    if demand.offline:
        slots = slots_of(option, question)
        return Verified(option=option, slots=slots, achieved=_screened(option))
    rarest = max([batch_size(one.slo.percentile) / one.share for one in demand.classes], default=0.0)
    more = min(max(max(batch_size(slo.percentile), rarest) / batch_size(95.0), 1.0), _MOST_FOR_TAIL)
    glance, look = round(_GLANCE * more), round(_LOOK * more)
    if precision is not None:
        return _told((option, question, factor), look, growth, replace(precision, percentile=slo.percentile))
    if growth == 1.0 and _may_pause(option, question):
        return _in_parts((option, question, factor), (glance, look))
    first = _told((option, question, factor), glance, growth)
    return first if _clear(first, slo, look) else _told((option, question, factor), look, max(growth, first.growth))


def _may_pause(option: PlanOption, question: Question) -> bool:
    """Whether a run of an option may be seen in parts: a plain load on one pool, of which one replica is seen; not
    where whole answers are limited, the longest of which are not done when a part ends.
    """
    demand = question.demand
    plain = demand.users is None and demand.trace is None and demand.sessions is None and not demand.classes
    plain = plain and demand.prefix.turns == demand.samples == 1 and demand.output.kind != "reasoning"
    alone = option.pools is None and not together(option, question) and question.slo.e2el is None
    return plain and alone and option.deployment.calibration.anchor is None


@dataclass(frozen=True, eq=False)
class Rest:
    """A run of which a part was seen. It stays in its process: elsewhere there is ``None`` in its place."""

    run: _Run
    paused: PausedRun

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    @cached_property
    def whole(self) -> Verified | None:
        """What all of it says, as sure as what is shown (:data:`SHOWN`); ``None`` where that takes a longer one."""
        ended = as_sure_as(self.paused.to_the_end(), self.paused.precision)[0]
        whole = None if ended is None else replace(self.run.told(ended, short=False), rest=self)
        return None if whole is None or whole.verdict == TOO_SHORT else whole


def _in_parts(asked: tuple[PlanOption, Question, float], fewest: tuple[int, int]) -> Verified:
    """The first requests of the run that is shown (:data:`SHOWN`), and more of them where these do not settle it:
    :attr:`Verified.rest` goes on with it. fewest: requests of a first look, and of a second.
    """
    option, question, factor = asked
    run = _asked(option, question, factor, fewest[1], replace(SHOWN, percentile=question.slo.percentile), False)
    seen_at = (traffic_of(question.demand, option, factor * option.slow.step, least) for least in fewest)
    looks = [one.count for one in seen_at if isinstance(one, Traffic)]
    assert isinstance(run.traffic, Traffic) and run.precision is not None
    try:
        paused = PausedRun(run.served, run.traffic, run.options, run.precision, looks)
        rest = Rest(run, paused)
        while paused.looks:
            last = paused.looks == looks[-1:]
            seen = replace(run.told(paused.go_on(), short=True), rest=rest)
            if seen.verdict != TOO_SHORT:
                settled = last or _clear(seen, question.slo, fewest[1])
            else:
                settled = _missed_anyway(seen, question)
            if settled:
                return seen
        return rest.whole or _told(asked, fewest[1], 1.0)
    except NotFiniteError:
        raise
    except InferplanError as error:
        return run.refused(error)


def _told(
    asked: tuple[PlanOption, Question, float], fewest: int, growth: float, precision: RunPrecision | None = None
) -> Verified:
    """A run of at least so many requests, of more where that is too short to tell: up to twice as many each time, of a
    trace those of the whole fleet.
    """
    option, question, factor = asked
    trace = question.demand.trace is not None
    whole = trace and precision is not None
    planned = traffic_of(question.demand, option, factor, fewest, whole) if growth > 1.0 and not trace else None
    if isinstance(planned, Traffic):
        fewest = ceil(growth * (planned.requests_count or 0))
    checked = replace(_run(option, question, factor, fewest, precision, whole), growth=growth)
    first = 0 if checked.result is None else len(checked.result.records.prompt)
    for _ in range(_REPEATS):
        if checked.verdict != TOO_SHORT or checked.result is None or (trace and (whole or option.pools)):
            break
        if precision is None and _missed_anyway(checked, question):
            break
        flow = flow_of(checked.result)
        spans = FEWEST_LIFETIMES / flow.lifetimes if flow is not None and flow.lifetimes > 0 else inf
        longer = min(_MARGIN * spans, _TWICE) if spans > 1 else _TWICE
        whole, fewest = trace, ceil(longer * len(checked.result.records.prompt))
        checked = _run(option, question, factor, fewest, precision, whole)
        if checked.result is not None and not trace:
            checked = replace(checked, growth=growth * len(checked.result.records.prompt) / first)
    return checked


def _missed_anyway(checked: Verified, question: Question) -> bool:
    """Whether a run that is too short to tell misses a limit by so much that a longer one would too."""
    demand = question.demand
    kept = demand.of_sessions or demand.trace is not None or demand.prefix.turns > 1 or demand.prefix.distinct > 1
    worst = max(checked.shares(question.slo).values(), default=0.0)
    return worst > (_FAR_OVER if kept else _CLEARLY_MISSED)


def _screened(option: PlanOption) -> dict[str, float]:
    """Latencies in closed form, which knows nothing of sessions."""
    return {**{name: getattr(option, name) for name in (*METRICS, "answer_ttft")}, "session": inf}


def surely_kept(checked: Verified, slo: Slo) -> bool:
    """Whether a run, however short, keeps every limit by so much that no longer one would miss it: by more than twice
    its error, and by a clear share of the limit.
    """
    result = checked.result
    if result is None or slo.session is not None or not checked.meets(slo):
        return False
    return all(
        share < _CLEARLY_KEPT and share * (1.0 + 2.0 * _error(getattr(part, name), one.slo.percentile)) < 1.0
        for one, (_, part) in zip(checked.kept(slo), limited(result, slo))
        for name, share in one.shares(slo.limits).items()
    )


def _clear(checked: Verified, slo: Slo, look: float) -> bool:
    """Whether a longer run would say the same: limits are kept or missed by far, or this run is long: half a look."""
    result = checked.result
    if result is None or result.counts["arrived"] >= look / 2 or checked.verdict == "overloaded":
        return True
    kept = True
    for one, (_, part) in zip(checked.kept(slo), limited(result, slo)):
        for name, share in one.shares(slo.limits).items():
            error = _error(getattr(part, name), one.slo.percentile)
            if share > _CLEARLY_MISSED or share * (1.0 - error) > 1.0:
                return True
            kept = kept and (share < _CLEARLY_KEPT or share * (1.0 + error) < 1.0)
    return kept


def beyond_doubt(checked: Verified, slo: Slo) -> Verified:
    """What a run says: all of it, where the part that was seen leaves a doubt."""
    if checked.rest is None or _clear(checked, slo, inf):
        return checked
    return checked.rest.whole or checked


def seen_longer(checked: Verified, question: Question, factor: float) -> Verified:
    """What one run of four times as many requests says of what misses a limit by less than the error of its run; else,
    and where that one is too short to tell, what the run said. Runs that may be seen in parts are as long as they are,
    so are traces, and pools apart take too long.
    """
    option, slo, settled = (
        checked.option,
        question.slo,
        checked.verdict.startswith(("overloaded", "refused", TOO_SHORT)),
    )
    if settled or checked.result is None or checked.meets(slo) or question.demand.trace is not None:
        return checked
    if checked.lengthened or option.pools or _may_pause(option, question):
        return checked
    if not slo.limits.keys() >= checked.violations(slo).keys():  # of the time of a session no error is known
        return checked
    for one, (_, part) in zip(checked.kept(slo), limited(checked.result, slo)):
        for name, share in one.shares(slo.limits).items():
            if share * (1.0 - _error(getattr(part, name), one.slo.percentile)) > 1.0:
                return checked
    longer = _run(option, question, factor, _LONGER * len(checked.result.records.prompt), None, False)
    told = checked if longer.verdict == TOO_SHORT else longer
    return replace(told, growth=checked.growth, lengthened=True)


def limited(result: SimulationResult, slo: Slo) -> list[tuple[Slo, SimulationResult]]:
    """What of a run is held to which limits: its classes, or all of it."""
    return [(one.slo, part) for one, part in class_parts(result)] or [(slo, result)]


def _error(values: Array, percentile: float) -> float:
    """Half the width of the 95 % confidence interval of a percentile over its value, by parts of a short run."""
    if len(values) < _PARTS**2:
        return inf
    parts = percentiles_in_turn(values, _PARTS, percentile)
    spread = student_95(_PARTS) * float(np.std(parts, ddof=1) / np.mean(parts)) / sqrt(_PARTS)
    return max(spread, _LEAST_ERROR)


class _Run(NamedTuple):
    """A run that is to be made. slots: sequences that one replica is started with."""

    option: PlanOption
    question: Question
    served: tuple[Deployment, Flags]
    traffic: Traffic | Requests
    options: Options
    slots: int
    precision: RunPrecision | None

    @property
    def open(self) -> bool:
        """Whether it is as long as its precision says."""
        return self.precision is not None and isinstance(self.traffic, Traffic) and _is_open(self.traffic)

    def refused(self, error: InferplanError) -> Verified:
        """What is said of it where the simulator cannot make it."""
        said = f"refused: {error.what}"
        return Verified(option=self.option, slots=self.slots, achieved=_screened(self.option), verdict=said)

    def told(self, result: SimulationResult, short: bool) -> Verified:
        """What it says when it was made. short: it need not hold the values that the percentile takes."""
        option, slo = self.option, self.question.slo
        achieved, parts = _achieved(result, slo.percentile, option), class_parts(result)
        classes = tuple(Kept(one.name, one.slo, _achieved(p, one.slo.percentile, option)) for one, p in parts)
        trace = self.question.demand.trace is not None
        told = short or trace or result.verdict == "overloaded" or _enough(result, slo)
        verdict = result.verdict if told else TOO_SHORT
        found = Verified(
            option=option, slots=self.slots, achieved=achieved, result=result, verdict=verdict, classes=classes
        )
        return replace(found, options=self.options)


def _is_open(traffic: Traffic) -> bool:
    return isinstance(traffic.arrivals, OpenLoop)


def _asked(
    option: PlanOption, question: Question, factor: float, fewest: int, precision: RunPrecision | None, whole: bool
) -> _Run:
    """One simulation of at least so many requests; ``whole``: of all replicas, else of one where there is one pool."""
    demand, deployment = question.demand, option.deployment
    whole = whole or together(option, question)
    if not option.pools:
        replicas = option.replicas if whole else replicas_together(option, demand)
        deployment = replace(deployment, parallel=replace(deployment.parallel, replicas=replicas))
    slower = 1.0 if demand.users is not None else option.slow.step
    if demand.sessions is not None and precision is not None:
        fewest = min(max(fewest, precision.fewest // 2), _MOST // 2)  # such calls take longer to simulate
    if demand.think and precision is not None:
        # a closed loop is not made longer while it runs; equal think times bring people into step in a long one
        equal = demand.prefix.think.kind == "constant"
        most = min(precision.most, _FEWEST_LIVES * (demand.users or 0)) if equal else precision.most
        fewest = max(fewest, most // demand.prefix.turns)
    traffic = traffic_of(demand, option, factor * slower, fewest, whole)
    flags = flags_of(option, question)
    options = replace(options_of(option, question, _fleet(option, flags, question)), trim=demand.trace is None)
    if precision is not None and isinstance(traffic, Traffic) and _is_open(traffic):
        count = traffic.requests_count or 0
        least = max(precision.fewest, fewest, count if count > precision.most else 0, demand.fewest)
        precision = replace(precision, fewest=least, most=max(precision.most, count, least))
    return _Run(option, question, (deployment, flags), traffic, options, slots_of(option, question), precision)


def _run(
    option: PlanOption, question: Question, factor: float, fewest: int, precision: RunPrecision | None, whole: bool
) -> Verified:
    """The same, made."""
    asked = _asked(option, question, factor, fewest, precision, whole)
    (deployment, flags), traffic, options = asked.served, asked.traffic, asked.options
    try:
        if asked.open:
            assert isinstance(traffic, Traffic)
            result = simulate_steady(deployment, traffic, flags, options, asked.precision)
        else:
            result = simulate(deployment, traffic, flags, options)
            if question.demand.sessions is not None and precision is not None:
                known = as_sure_as(result, replace(precision, fewest=1, most=len(result.records.prompt)))[0]
                result = known or result
    except NotFiniteError:
        raise
    except InferplanError as error:
        return asked.refused(error)
    return asked.told(result, short=precision is None)


def flags_of(option: PlanOption, question: Question) -> Flags:
    """The flags of a run of an option, of one attention rank."""
    sequences = ceil(slots_of(option, question) / option.deployment.parallel.dp)
    return Flags(max_num_seqs=sequences, max_num_batched_tokens=option.budget, queue=question.demand.queue)


def options_of(option: PlanOption, question: Question, fleet: Fleet) -> Options:
    """What a run of an option is asked, in its own time."""
    demand = question.demand
    return Options(
        slo=question.slo,
        fleet=fleet,
        hit_rate=demand.hit_rate,
        tiers=_in_the_time_of_the_run(option),
        speculation=option.speculation,
        lora_bandwidth=demand.lora_bandwidth,
        structured=demand.structured,
    )


def _achieved(result: SimulationResult, percentile: float, option: PlanOption) -> dict[str, float]:
    """Latencies at a percentile, as slow as the option takes the devices to be."""
    achieved = {name: at_percentile(result, name, percentile) for name in metrics_of(result)}
    found, step = option.slow.of(achieved, percentile), option.slow.step
    if result.sessions is not None:
        calls = float(np.mean(result.sessions.calls)) if len(result.sessions.calls) else 0.0
        duration = result.sessions.at_percentile(percentile, (result.slo.session or inf) / step)
        found["session"] = option.slow.of_session(duration, calls, achieved["ttft"], percentile)
    return found


def _enough(result: SimulationResult, slo: Slo) -> bool:
    """Whether a run holds as many values of each limited latency as its percentile takes; where nothing ran, or nothing
    of a class, all are late. Of sessions, which are fewer, it takes as many as one batch of such values has.
    """
    if slo.session is not None and result.sessions is not None:
        whole = int(np.sum(result.sessions.whole))
        if whole and whole < batch_size(slo.percentile):
            return False
    return all(
        len(getattr(part, name)) >= fewest_values(own.percentile)
        for own, part in limited(result, slo)
        if len(part.e2el)
        for name in own.limits
    )


def together(option: PlanOption, question: Question) -> bool:
    """Whether all replicas have to be simulated: the router looks at them, or they share a cache tier."""
    return question.routing is not None or any(tier.shared for tier in option.tiers)


def _in_the_time_of_the_run(option: PlanOption) -> tuple[CacheTier, ...]:
    """The tiers, which are no slower where devices are: every second of the run lasts longer by that factor."""
    step = option.slow.step
    return tuple(replace(tier, bandwidth=tier.bandwidth * step, latency=tier.latency / step) for tier in option.tiers)


def routing_of(question: Question, several: bool = True) -> Routing:
    """Conversations, of which ``several`` replicas are sent some, stay where they began, and so do sessions, unless the
    question says otherwise."""
    stays = (question.demand.prefix.turns > 1 and several) or question.demand.of_sessions
    return question.routing or ("sticky" if stays else "round-robin")


def _fleet(option: PlanOption, flags: Flags, question: Question) -> Fleet:
    """How replicas are fed. The pools of an option, where it has any; prompts run in as many sequences of a rank as the
    engine's default.
    """
    if option.pools is None:
        return Fleet(
            routing=routing_of(question, together(option, question) or replicas_together(option, question.demand) > 1)
        )
    return Fleet(
        prefill=option.pools[0],
        decode=option.pools[1],
        prefill_deployment=None if option.prompts is None else option.prompts.deployment,
        prefill_flags=replace(flags, max_num_batched_tokens=option.prompt_budget, max_num_seqs=None),
    )
