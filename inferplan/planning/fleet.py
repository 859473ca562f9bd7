"""Kinds of GPU behind one router, some owned and some rented: the cheapest mix within the stocks (docs/fleet.md).

Designs of a replica come from the search of a plan, what one carries from the simulations that size a plan, and the mix
from an integer programme (:mod:`inferplan.planning.machines`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil, floor, inf

import numpy as np

from inferplan.catalog.bills import Bill, Offer, Tariff
from inferplan.errors import InfeasibleError, UsageError
from inferplan.features import require_together
from inferplan.fields import Whole, ask
from inferplan.planning.design import Design, answer_alone, carried_by
from inferplan.planning.finalists import too_long_alone
from inferplan.planning.forms import settled
from inferplan.planning.infeasible import why_none
from inferplan.planning.machines import Bought, Kind, Machine, Need, Stock, machines
from inferplan.planning.option import PlanOption
from inferplan.planning.processes import Jobs, Progress, run_beside
from inferplan.planning.question import Question
from inferplan.planning.search import SearchResult, cheapest_point, search
from inferplan.planning.sizing import CAPACITY_TOLERANCE, MOST_GROWTH, Simulations
from inferplan.planning.verify import QUOTED, SHOWN, calls_for, limited, options_of, routing_of, spans, visits
from inferplan.serving.batch_means import RunPrecision, fewest_values
from inferplan.serving.class_results import at_percentile, metrics_of
from inferplan.serving.fleet import Beside, Fleet
from inferplan.serving.result import SimulationResult, part_of
from inferplan.serving.run_length import as_sure_as, simulate_steady
from inferplan.serving.simulator import simulate
from inferplan.steps import Steps

_MARGIN, _LIVES, _MOST_REQUESTS, _MOST_CALLS = 1.5, 12, 60_000, 6_000
"""The run of a mix counts half of its requests at least, holds so many times those in the system, and has a bound;
calls of sessions, which take longer to simulate, a lower one."""
_TURNS = 3
"""How often the capacity of a design is found anew, until it is the one that it was simulated for."""


@dataclass(frozen=True, kw_only=True)
class FleetAsked(Stock):
    """What a fleet may be made of. designs: sizes of a replica that are tried for each kind of GPU."""

    designs: int = ask(
        "--designs",
        Whole(most=8),
        "Replica sizes simulated for each kind of GPU, highest capacity per GPU first.",
        2,
        shown=True,
    )

    def __post_init__(self) -> None:
        if not self.kinds:
            raise UsageError("a fleet needs GPUs", hint="--own a100-80gb-sxm=16, --rent h200-sxm, or both")
        super().__post_init__()

    @cached_property
    def gpus(self) -> list[str]:
        """Each once."""
        return list(dict.fromkeys(kind.gpu for kind in self.kinds))


@dataclass(frozen=True, kw_only=True, eq=False)
class Way:
    """One way to get replicas of a design: on machines of their own, from one source. rate: requests a second that one
    replica is given.
    """

    kind: Kind
    design: Design
    machine: Machine
    rate: float
    listed: tuple[Offer, ...] = ()
    """The offers of the list that the bill is compared with."""

    def bill(self, replicas: int) -> Bill:
        size, offers = self.design.size, (self.machine.offer,)
        return Tariff(offers=offers, devices=size.devices, together=size.together, listed=self.listed).bill(replicas)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplicaGroup:
    """Replicas of one way in the mix. share: of the requests, in proportion to what they carry. load: requests a second
    of all of them. run: what the simulation of the mix says of their requests.
    """

    way: Way
    replicas: int
    share: float
    load: float
    run: SimulationResult

    @property
    def bill(self) -> Bill:
        return self.way.bill(self.replicas)

    @property
    def devices(self) -> int:
        return self.replicas * self.way.design.size.devices


@dataclass(frozen=True, kw_only=True, eq=False)
class Single:
    """The cheapest that one kind of GPU makes alone, owned and rented; ``None`` where its stock is too small. most:
    requests a second that it carries at most.
    """

    gpu: str
    bought: Bought | None
    devices: int
    most: float

    @property
    def cost(self) -> float:
        return inf if self.bought is None else self.bought.cost


@dataclass(frozen=True, kw_only=True, eq=False)
class FleetPlan:
    """The answer. unusable: kinds of GPU that no replica within the limits runs on, and why."""

    asked: FleetAsked
    question: Question
    ways: tuple[Way, ...]
    bought: Bought
    parts: tuple[ReplicaGroup, ...]
    singles: tuple[Single, ...]
    unusable: dict[str, str]
    run: SimulationResult

    @property
    def cost(self) -> float:
        """The bill of an hour."""
        return self.bought.cost

    @property
    def devices(self) -> int:
        """GPUs that replicas run on."""
        return sum(part.devices for part in self.parts)

    @property
    def given(self) -> float:
        """Requests a second that the replicas are given at most: utilisation times what they carry."""
        return sum(part.way.rate * part.replicas for part in self.parts)

    def taken(self, kind: Kind) -> int:
        """GPUs of a kind that the mix takes, idle ones of rented instances too."""
        return self.bought.taken(self.asked.kinds.index(kind))

    @property
    def best_single(self) -> Single | None:
        """The cheapest of one kind of GPU alone."""
        found = [single for single in self.singles if single.bought is not None]
        return min(found, key=lambda single: (single.cost, single.devices), default=None)

    def at_percentile(self, run: SimulationResult) -> dict[str, float]:
        """Latencies at the percentile of the limits, of the whole mix or of a part."""
        return {name: at_percentile(run, name, self.question.slo.percentile) for name in metrics_of(run)}

    def keeps(self, run: SimulationResult) -> bool:
        """Whether the mix, or a part, keeps the limits."""
        return self.run.steady and _keeps(run, self.question)


def plan_fleet(question: Question, asked: FleetAsked, steps: Steps | None = None, jobs: Jobs = 1) -> FleetPlan:
    """The cheapest mix of the kinds of GPU that carries the demand's rate within the limits.

    steps: one for each replica that is simulated, and the mix. jobs: who simulates the replicas. Raises
    ``MissingFactError`` for a rented kind without a price, ``InfeasibleError`` where the stocks do not carry the load.
    """
    require_together("fleet", question.features | {"unlike"})
    _require_one_chain(question)
    for kind in asked.kinds:
        _require_sold(kind, question)
    steps = steps or Steps()
    searched = {gpu: _searched(gpu, question) for gpu in asked.gpus}
    options = {gpu: _efficient(_largest(one, question))[: asked.designs] for gpu, one in searched.items()}
    steps.more(sum(map(len, options.values())) + 1)
    designs = designs_of([option for gpu in asked.gpus for option in options[gpu]], question, steps, jobs)
    there = {one.gpu for one in designs}
    unusable = {gpu: _why_not(searched[gpu], options[gpu], question) for gpu in asked.gpus if gpu not in there}
    question = _at_the_rate_of_people(question, designs)
    ways = [
        Way(
            kind=kind,
            design=one,
            machine=machine,
            rate=question.sizing.utilisation * one.rate,
            listed=() if kind.owned else question.prices.listed(kind.name),
        )
        for place, kind in enumerate(asked.kinds)
        for one in designs
        if one.gpu == kind.gpu
        for machine in _largest_first(machines(place, asked.offers(kind, question.prices), [one.size]))
    ]
    ways, bought = _confirmed(ways, asked, question, unusable)
    steps.step()
    shares = _shares(ways, bought)
    run = simulate_mix(question, shares)
    return FleetPlan(
        asked=asked,
        question=question,
        ways=tuple(ways),
        bought=bought,
        parts=_parts(shares, run, question),
        singles=tuple(_single(gpu, ways, asked, question) for gpu in asked.gpus),
        unusable=unusable,
        run=run,
    )


def _require_one_chain(question: Question) -> None:
    """Raise ``UsageError`` for cache tiers among which a mix would have to choose, and for those that are paid for."""
    if len(question.chains) > 1:
        raise UsageError("a fleet takes one size of each cache tier", hint="--cache-tier host:100GB:50GB/s")
    if any(tier.price is not None for chain in question.chains for tier in chain):
        raise UsageError(
            "the price of a cache tier is not part of a mix",
            because="a mix is the cheapest by what its GPUs cost",
            hint="the tier without its price, or inferplan plan",
        )


def _at_the_rate_of_people(question: Question, designs: Sequence[Design]) -> Question:
    """The question at the most requests that people send: ``N/(R + Z)`` with the shortest ``R`` of the designs, that
    of a request alone. Another load, and people who begin so many sessions a day, stay as they are."""
    demand = question.demand
    if demand.people is None or not designs:
        return question
    shortest = min(answer_alone(one.deployment, demand) for one in designs)
    demand.people.require_one_each(shortest)
    return replace(question, demand=replace(demand, rate=demand.samples * demand.people.rate(shortest)))


def _require_sold(kind: Kind, question: Question) -> None:
    """Raise ``MissingFactError`` for a rented kind without a price, ``UsageError`` for a limit below an instance."""
    if kind.owned:
        return
    offers = question.prices.require(kind.name, 1).offers
    smallest = min(offer.size for offer in offers)
    if kind.most is not None and kind.most < smallest:
        raise UsageError(
            f"--rent {kind.name}={kind.most} is less than one can rent",
            because=f"the smallest instance has {smallest} GPUs",
            hint=f"--rent {kind.name}={smallest}, or --price {kind.name}=... for GPUs one by one",
        )


def designs_of(options: Sequence[PlanOption], question: Question, steps: Steps, jobs: Jobs = 1) -> list[Design]:
    """The few replicas that are worth having, with what they carry by simulation."""
    before = steps.done
    told = Progress(len(options), lambda done: steps.at(before + done))

    def simulated(place: int) -> Design | None:
        found = _simulated(options[place], question)
        told.of(place)(1)
        return found

    kept = [question, *(one.deployment for one in options)]
    tasks = [partial(simulated, place) for place in range(len(options))]
    return [one for one in run_beside(tasks, jobs, kept, told) if one is not None]


def _why_not(searched: SearchResult, options: Sequence[PlanOption], question: Question) -> str:
    """Why no replica on a kind of GPU is of use."""
    if options:
        return f"no replica of up to {question.space.most} GPUs keeps the limits, in simulation"
    if searched.options:
        return "a long prompt alone takes longer than the limit on TTFT"
    return f"of replicas of up to {question.space.most} GPUs, {why_none(searched)}"


def _searched(gpu: str, question: Question) -> SearchResult:
    """All replicas on a kind of GPU, in closed form."""
    return search(replace(question.space, gpus=(gpu,), disaggregate=False), question.stream.little, question.prices)


def _largest(searched: SearchResult, question: Question) -> list[PlanOption]:
    """For each number of GPUs the replica on them that carries most within the limits, in closed form."""
    little = question.stream.little
    points = (cheapest_point(priced._replace(tariff=None), little) for priced in searched.grids)
    found = [option for option in points if option is not None and not too_long_alone(option, question)]
    best: dict[int, PlanOption] = {}
    for option in settled(found)[0] if question.space.drafting else found:
        devices = option.deployment.parallel.ranks
        known = best.get(devices)
        if known is None or (option.screened, option.rate) > (known.screened, known.rate):
            best[devices] = option
    tiers = next(iter(question.chains), ())
    return [replace(best[devices], tiers=tiers) for devices in sorted(best)]


def _efficient(options: Sequence[PlanOption]) -> list[PlanOption]:
    """Without those that as many of a smaller replica as fit on their GPUs replace; those that carry most a GPU first.

    options: by rising number of GPUs, one of each.
    """
    kept: list[PlanOption] = []
    for option in options:
        devices = option.deployment.parallel.ranks
        smaller = (one.rate * (devices // one.deployment.parallel.ranks) for one in kept)
        if option.rate > max(smaller, default=0.0):
            kept.append(option)
    return sorted(kept, key=lambda option: -option.rate / option.deployment.parallel.ranks)


def _simulated(option: PlanOption, question: Question) -> Design | None:
    """What a replica carries as one of as many as the load takes, fed in turn; ``None`` where it keeps no limit.

    It is simulated with slots for its share, and that share of a stream as regular: which need its capacity, and so the
    one found is put in again until it is the one that comes out.
    """
    load, used = question.demand.rate or 0.0, question.sizing.utilisation
    each = used * option.rate
    for _ in range(_TURNS):
        count = max(floor(load / each), 1)
        there = replace(question, demand=replace(question.demand, rate=each * count))
        simulations = Simulations(most=0)  # only long runs, which it does not count
        found = carried_by(option.sized(count), there, simulations)
        if not found.rate:
            return None
        if abs(used * found.rate / each - 1) <= CAPACITY_TOLERANCE:
            break
        each = used * found.rate
    return found


def _largest_first(found: Sequence[Machine]) -> list[Machine]:
    """As in a plan: of offers that cost the same it takes the larger instance."""
    return sorted(found, key=lambda machine: -machine.offer.size)


def _need(ways: Sequence[Way], asked: FleetAsked, question: Question) -> Need:
    """What carries the demand's rate; replicas of each way have machines of their own."""
    own = [
        way.machine._replace(holds={place: room})
        for place, way in enumerate(ways)
        for room in way.machine.holds.values()
    ]
    return Need(
        machines=own,
        stocks=[kind.stock for kind in asked.kinds],
        devices={place: way.design.size.devices for place, way in enumerate(ways)},
        rates={place: way.rate for place, way in enumerate(ways)},
        load=question.demand.rate or 0.0,
    )


def _confirmed(
    ways: Sequence[Way], asked: FleetAsked, question: Question, unusable: dict[str, str]
) -> tuple[list[Way], Bought]:
    """The cheapest mix whose parts keep the limits under ``1/utilisation`` times the load in a run of the whole.

    What a replica carries is only known to a tolerance, and is the largest load that one run of many kept. Where a part
    misses a limit its design carries as much less as that, and the mix is bought anew. Raises ``InfeasibleError``, also
    where the last of the mixes that are tried misses one.
    """
    turns, used = 0, question.sizing.utilisation
    while True:
        need = _need(ways, asked, question)
        bought = need.cheapest()
        if bought is None:
            raise _too_little(question, asked, need.most_load(), unusable)
        shares = _shares(ways, bought)
        run = simulate_mix(question, shares, 1 / used, SHOWN)
        parts, late = _parts(shares, run, question), not _session_kept(run, question)
        missed = {id(part.way.design): part.way.design for part in parts if late or not _keeps(part.run, question)}
        if not missed:
            return list(ways), bought
        if turns == MOST_GROWTH:
            raise _always_missed(question, [part.way for part in parts if id(part.way.design) in missed])
        less = {key: replace(one, rate=one.rate * (1 - CAPACITY_TOLERANCE)) for key, one in missed.items()}
        there = [(way, less.get(id(way.design), way.design)) for way in ways]
        ways, turns = [replace(way, design=one, rate=used * one.rate) for way, one in there], turns + 1


def _keeps(run: SimulationResult, question: Question) -> bool:
    """Whether a mix, or a part of it, keeps the limits."""
    kept = run.steady and _session_kept(run, question)
    return kept and all(
        at_percentile(part, name, slo.percentile) <= most
        for slo, part in limited(run, question.slo)
        for name, most in slo.limits.items()
    )


def _session_kept(run: SimulationResult, question: Question) -> bool:
    """Whether sessions take no longer than their limit, where a run has any: of a part nobody knows."""
    limit, sessions = question.slo.session, run.sessions
    if limit is None or sessions is None:
        return True
    return sessions.at_percentile(question.slo.percentile, limit) <= limit


def _single(gpu: str, ways: Sequence[Way], asked: FleetAsked, question: Question) -> Single:
    """One kind of GPU alone, from all of its sources."""
    need = _need([way for way in ways if way.kind.gpu == gpu], asked, question)
    bought = need.cheapest()
    devices = 0 if bought is None else sum(need.devices[one] * count for one, count in bought.replicas.items())
    return Single(gpu=gpu, bought=bought, devices=devices, most=need.most_load())


def _shares(ways: Sequence[Way], bought: Bought) -> list[tuple[Way, int, float]]:
    """Each way that the mix takes, its replicas, and their share of the requests: that of what they carry."""
    found = [(way, count) for way, count in zip(ways, bought.replicas.values()) if count]
    given = sum(way.rate * count for way, count in found)
    return [(way, count, way.rate * count / given) for way, count in found]


def simulate_mix(
    question: Question,
    shares: Sequence[tuple[Way, int, float]],
    factor: float = 1.0,
    precision: RunPrecision = QUOTED,
) -> SimulationResult:
    """The mix under so many times the demand, behind one router that sends each replica its turns of the requests, in
    proportion to what it carries; for as many requests as the percentile of the smallest share takes, and as sure as
    the precision says.
    """
    (first, count, _), *others = shares
    demand, slo, rate = question.demand, question.slo, factor * (question.demand.rate or 0.0)
    deployment = first.design.deployment
    deployment = replace(deployment, parallel=replace(deployment.parallel, replicas=count))
    fleet = Fleet(
        routing=routing_of(question),
        weight=first.rate,
        others=tuple(
            Beside(way.design.deployment, way.design.flags, number, way.rate, way.design.option.speculation)
            for way, number, _ in others
        ),
    )
    rarest = [fewest_values(one.slo.percentile) / one.share for one in demand.classes if one.slo.limits]
    values = _MARGIN * max(rarest or [fewest_values(slo.percentile)]) / min(share for _, _, share in shares)
    lasting = max(way.design.option.e2el for way, _, _ in shares)
    filled = max(visits(demand, sum(number for _, number, _ in shares)), spans(demand, rate, lasting))
    fewest = ceil(min(max(precision.fewest, values, _LIVES * rate * lasting, filled), _MOST_REQUESTS))
    precision = replace(precision, fewest=fewest, most=max(precision.most, fewest), percentile=slo.percentile)
    options = replace(options_of(first.design.option, question, fleet), trim=True)
    if demand.sessions is None:
        return simulate_steady(deployment, demand.traffic(rate, fewest), first.design.flags, options, precision)
    longest = max((way.design.option for way, _, _ in shares), key=lambda option: option.e2el)
    calls = calls_for(demand, longest, rate, min(fewest, _MOST_CALLS))
    run = simulate(deployment, calls, first.design.flags, options)
    return as_sure_as(run, replace(precision, fewest=1, most=len(calls)))[0] or run


def _parts(
    shares: Sequence[tuple[Way, int, float]], run: SimulationResult, question: Question
) -> tuple[ReplicaGroup, ...]:
    """The mix, each part with what the run says of its requests."""
    load = question.demand.rate or 0.0
    by = np.zeros(len(run.records.prompt), int) if run.records.served_by is None else np.asarray(run.records.served_by)
    return tuple(
        ReplicaGroup(
            way=way, replicas=count, share=share, load=share * load, run=part_of(run, by == member, question.slo)
        )
        for member, (way, count, share) in enumerate(shares)
    )


def _always_missed(question: Question, missing: Sequence[Way]) -> InfeasibleError:
    less = 1.0 - (1.0 - CAPACITY_TOLERANCE) ** MOST_GROWTH
    return InfeasibleError(
        f"no mix was found whose replicas on {', '.join(sorted({way.kind.gpu for way in missing}))} keep the limits",
        because=f"{MOST_GROWTH + 1} were run; in the last each replica was loaded to {less:.0%} less than it carries "
        "alone",
        hint=f"longer limits, a lower --utilisation than {question.sizing.utilisation:g}, or fewer kinds of GPUs",
    )


def _too_little(question: Question, asked: FleetAsked, most: float, unusable: dict[str, str]) -> InfeasibleError:
    if len(unusable) == len({kind.gpu for kind in asked.kinds}):
        return InfeasibleError(
            f"no replica of {question.space.base.model} runs on {', '.join(unusable)} within the limits",
            because="; ".join(f"{gpu}: {why}" for gpu, why in unusable.items()),
            hint=f"another GPU, a larger --most, longer limits, or the nearest miss: inferplan plan "
            f"{question.space.base.model} --gpu {','.join(unusable)} with the same load and limits",
        )
    limited = [kind for kind in asked.kinds if kind.most is not None]
    counts = {kind.gpu: sum(one.most or 0 for one in limited if one.gpu == kind.gpu) for kind in limited}
    have = ", ".join(f"{count} {gpu}" for gpu, count in counts.items())
    return InfeasibleError(
        f"{have} carry {most:.3g} {question.demand.counted}/s of the {question.demand.rate:g} asked for",
        because=f"each replica is loaded to {question.sizing.utilisation:.0%} of its capacity within the limits",
        hint="more of them, --rent GPU without a limit, or longer limits",
    )
