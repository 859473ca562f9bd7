"""Several models on one stock of machines, alone or one after another: replicas of each, and what is bought.

Replicas are sized by simulation (:mod:`inferplan.serving.tandem`), machines by an integer programme
(:mod:`inferplan.planning.domains`); docs/several-models.md has both.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, floor, inf

import numpy as np

from inferplan import fields
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import mig_table
from inferplan.catalog.price_lists import PriceBook
from inferplan.catalog.services import ServiceEntry, SwapSpec
from inferplan.errors import InfeasibleError, InferplanError, MissingFactError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.planning.demand import METRIC_NAMES
from inferplan.planning.design import mean_request
from inferplan.planning.domains import Placed, Placing, Wanted
from inferplan.planning.machines import Kind, Size, Stock, machines, mixed_machines, size_of
from inferplan.planning.sizing import NEARLY_ALONE, least, search_smallest, waited_for
from inferplan.serving.batch_means import fewest_values, half_width
from inferplan.serving.class_results import at_percentile, percentile_with_lost
from inferplan.serving.cold_start import weights_of
from inferplan.serving.result import SimulationResult
from inferplan.serving.run_length import COUNTED
from inferplan.serving.simulator import MOST_ENGINES
from inferplan.serving.tandem import Answers, Asked, TandemRun, answers, ask_together, simulate_stage, simulate_tandem
from inferplan.serving.time_shared import Swap, require_shareable
from inferplan.serving.verdict import flow_of
from inferplan.steps import Steps
from inferplan.traffic.requests import Lengths, Slo
from inferplan.traffic.stages import (
    ModelStage,
    draws,
    host_of,
    rate_of_stage,
    reach,
    require_tree,
    root_of,
    scale_rates,
)
from inferplan.units import Array

FEWEST, MOST = 4000, 60_000
"""Requests of a stream in one run."""
_MARGIN, _LIVES = 1.5, 24.0
"""Values that a percentile takes, times; times of one request, alone, that a run holds."""
_LONGER = 4
"""Times as many requests where a run does not tell on which side of a limit a latency is, and in the quoted run."""
_GROWTHS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0)
"""Times the load of the sizing, under which is looked for what breaks first."""
_MOST_FLEETS = 400
"""Fleets that are tried for the limits of whole answers before the search is given up."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Member:
    """One model: what is asked of it, and one replica of it. prompt: of what comes to it, its own or that of the model
    before it. replicas: ``None`` where their number is to be found. swap: how those that share its GPUs take turns.
    alternatives: the same on replicas of other kinds, of which one may be taken.
    """

    stage: ModelStage
    prompt: Lengths
    request: Request
    deployment: Deployment
    replicas: int | None = None
    swap: SwapSpec | None = None
    alternatives: tuple[Member, ...] = ()

    @property
    def gpu(self) -> str:
        return self.deployment.hardware.name

    @property
    def size(self) -> Size:
        return size_of(self.deployment)

    def served(self, replicas: int) -> Deployment:
        """So many replicas of it."""
        parallel = replace(self.deployment.parallel, replicas=replicas)
        return replace(self.deployment, parallel=parallel)

    @cached_property
    def alone(self) -> float:
        """Seconds of one mean request with nobody beside it."""
        run = mean_request(self.deployment, self.prompt, self.stage.output, self.stage.lora_bandwidth)
        if not len(run.e2el):
            raise InfeasibleError(
                f"{self.stage.name}: a mean request never runs on {self.deployment.describe()}",
                because="; ".join(run.records.refused),
                hint="a shorter prompt, another gpu or tp",
            )
        return float(run.e2el[0])


def members_of(entries: Sequence[ServiceEntry]) -> tuple[Member, ...]:
    """The models of a file, assembled."""
    found: list[Member] = []
    for entry in entries:
        prompt = entry.stage.prompt
        if prompt is None:
            assert entry.stage.after is not None
            prompt = found[entry.stage.after].prompt
        first = Member(
            stage=entry.stage,
            prompt=prompt,
            request=entry.request,
            deployment=assemble(entry.request),
            replicas=entry.replicas,
            swap=entry.swap,
        )
        others = (_alternative(first, number, other) for number, other in enumerate(entry.alternatives, 1))
        found.append(replace(first, alternatives=tuple(others)))
    return tuple(found)


def _alternative(first: Member, number: int, request: Request) -> Member:
    """Replicas of another kind. Raises the error of one that cannot be, with its name."""
    try:
        return replace(first, request=request, deployment=assemble(request))
    except InferplanError as error:
        what = f"alternative {number} of {first.stage.name}: {error.what}"
        raise type(error)(what, because=error.because, hint="another gpu, quant or tp in the file") from None


@dataclass(frozen=True, kw_only=True, eq=False)
class SeveralAsked(Stock):
    """What is asked. utilisation: replicas are sized for the load over it. A GPU of none of the ``kinds`` is rented
    without a limit.
    """

    members: tuple[Member, ...]
    prices: PriceBook
    utilisation: float = fields.ask(
        "--utilisation",
        fields.SHARE,
        "Load per replica where replicas are counted, as a share of its capacity.",
        0.8,
        shown=True,
    )
    seed: int = fields.ask(
        "--seed", fields.Whole(0, 2**31 - 1), "Seed of lengths, arrivals, and of answers passed on. [0]", 0
    )
    domains: int = fields.ask(
        "--domains",
        fields.Whole(1, 16),
        "Racks or zones that machines are spread over: the limits hold while any one of them is lost. [1: none is]",
        1,
    )
    surge: int = fields.ask(
        "--surge",
        fields.Whole(0, 64),
        "Replicas of a new version that find room beside all others, one model after another. [0]",
        0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_tree(self.stages)
        for place in range(len(self.members)):
            if len(together := self.together(place)) > 1:
                resident = self.members[together[0]].swap is None
                require_shareable([self.members[one].deployment for one in together], resident)
        given = [member.stage.name for member in self.members if member.replicas is not None]
        if self.domains > 1 and given:
            raise UsageError(
                f"--domains: nothing says how many replicas {given[0]} needs while a domain is lost",
                because="the file states its replicas, which are not sized",
                hint=f"limits of {given[0]} or of the whole answer instead of replicas",
            )
        used = {one.gpu for member in self.members for one in (member, *member.alternatives)}
        for kind in self.kinds:
            if kind.name not in used:
                raise UsageError(f"{kind.option} {kind.name}: no model runs on this GPU", hint=", ".join(sorted(used)))

    @property
    def stages(self) -> tuple[ModelStage, ...]:
        return tuple(member.stage for member in self.members)

    def of(self, members: Sequence[Member]) -> SeveralAsked:
        """The same of some models, and of the stocks of GPUs that they run on."""
        used = {one.gpu for member in members for one in (member, *member.alternatives)}
        kinds = tuple(kind for kind in self.kinds if kind.name in used)
        own_price = self.own_price if any(kind.owned for kind in kinds) else 0.0
        return replace(self, members=tuple(members), kinds=kinds, own_price=own_price)

    def together(self, place: int) -> list[int]:
        """The models on the GPUs of one, itself too; the first of them has their number of replicas."""
        host = host_of(self.stages, place)
        return [one for one in range(len(self.members)) if host_of(self.stages, one) == host]

    def swap(self, place: int) -> Swap | None:
        """How the models on the GPUs of one take turns; ``None`` where all are resident, or it is alone.

        vLLM's sleep mode, level 1, copies the weights to host memory and back (``vllm/device_allocator/cumem.py``);
        level 2 drops them, and reads them from storage.
        """
        together = self.together(place)
        asked = self.members[together[0]].swap
        if asked is None:
            return None
        whole = [weights_of(self.members[one].deployment) for one in together]
        shares = [self.members[one].size.devices if asked.level == 1 else 1 for one in together]
        seconds = tuple(weights / share / asked.bandwidth for weights, share in zip(whole, shares))
        sleep = seconds if asked.level == 1 else (0.0,) * len(seconds)
        return Swap(keep_alive=asked.keep_alive, sleep=sleep, wake=seconds, overhead=asked.overhead)

    def spread(self, counts: Sequence[int]) -> tuple[int, ...]:
        """The numbers of replicas with those of models that share GPUs: as many as of the first of them."""
        return tuple(counts[host_of(self.stages, place)] for place in range(len(counts)))

    def require_sizable(self) -> None:
        """Raise ``UsageError`` for a model whose replicas nothing decides."""
        for place, member in enumerate(self.members):
            root = self.stages[root_of(self.stages, place)]
            given = self.members[host_of(self.stages, place)].replicas is not None
            if not given and not member.stage.limits.limits and not root.answer.limits:
                raise UsageError(
                    f"the number of replicas of {member.stage.name} cannot be found",
                    because="it has neither limits nor replicas, and its stream has no limits of the whole answer",
                    hint="ttft: 1 s and tpot: 50 ms of the model, answer: {e2e: 20 s} of the stream, or replicas: 2",
                )


@dataclass(frozen=True, kw_only=True, eq=False)
class Alone:
    """The last model of a cascade without those before it. replicas: ``None`` where no number keeps the limits, and why
    in ``missing``. cost: of its machines. before: of the machines of the models before it, by themselves.
    """

    member: Member
    replicas: int | None
    cost: float
    cascade: float
    before: float
    missing: str = ""

    @property
    def break_even(self) -> float | None:
        """The largest share that may go on before the cascade costs more than the last model alone: with ``a`` the
        models before it and ``b`` the last one under all requests, ``a + p b < b`` while ``p < 1 - a/b``; 0 where the
        models before it cost as much by themselves.
        """
        return None if self.replicas is None or not self.cost else max(1 - self.before / self.cost, 0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tried:
    """A kind of replica for one model. replicas: that it takes; 0 where none do, and why in ``missing``. lost: that it
    takes while a domain is lost.
    """

    place: int
    member: Member
    replicas: int = 0
    lost: int = 0
    taken: bool = False
    missing: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class SeveralPlan:
    """The answer. asked: with the kind of replica that was taken of each model. replicas: of each model. fewest: those
    that the load over the utilisation needs, and lost: those that the load itself needs, as while a domain is lost.
    bought: the machines. run: of the whole at the load. tried: kinds of replica of models that have alternatives.
    """

    asked: SeveralAsked
    replicas: tuple[int, ...]
    fewest: tuple[int, ...]
    lost: tuple[int, ...]
    bought: Placed
    run: TandemRun
    alone: tuple[Alone, ...]
    binding: tuple[str, ...]
    """What stops the replicas of each model from taking more: the first to break as all loads grow."""
    tried: tuple[Tried, ...] = ()

    @property
    def cost(self) -> float:
        """The bill of an hour."""
        return self.bought.cost

    @property
    def devices(self) -> int:
        """GPUs that replicas run on."""
        return devices_of(self.asked, self.replicas)

    @property
    def gpus(self) -> int:
        """GPUs that are paid for."""
        return self.bought.gpus

    @property
    def keeps(self) -> bool:
        """Whether every limit is kept at the load."""
        own = (keeps_own(one.run, stage) for one, stage in zip(self.run.asked, self.run.stages))
        return not self.too_short and all(own) and all(one.keeps for one in self.run.answers.values())

    @property
    def too_short(self) -> bool:
        """Whether some run ends before anybody can tell if a queue grows."""
        return any(one.run is not None and one.run.verdict == "too short to tell" for one in self.run.asked)


def devices_of(asked: SeveralAsked, counts: Sequence[int]) -> int:
    """GPUs that so many replicas run on."""
    own = ((member, count) for member, count in zip(asked.members, counts) if member.stage.shares is None)
    return sum(member.size.devices * count for member, count in own)


def keeps_own(run: SimulationResult | None, stage: ModelStage) -> bool:
    """Whether a model keeps its own limits, and its queue does not grow."""
    if run is None:
        return True
    within = all(
        at_percentile(run, name, stage.limits.percentile) <= most for name, most in stage.limits.limits.items()
    )
    return run.verdict not in ("overloaded", "rejecting") and within


def in_doubt(values: Mapping[str, Array], slo: Slo) -> bool:
    """Whether a latency is within twice the error of its percentile of its limit, and none is over its own for certain.

    values: seconds of each latency, in order of time, infinite for a request that is refused. Twice, as a plan takes it
    (:mod:`inferplan.planning.sizing`): near capacity errors are larger than they look.
    """
    near = False
    for name, most in slo.limits.items():
        off = percentile_with_lost(values[name], slo.percentile) - most
        error = half_width(values[name], slo.percentile) if np.all(np.isfinite(values[name])) else None
        if off > 2 * (error or 0.0):
            return False
        near |= abs(off) <= 2 * (error or 0.0)
    return near


def stream_requests(members: Sequence[Member], factor: float = 1.0, times: int = 1) -> list[int]:
    """Requests of the stream of each model: as many as its percentiles take, that of the whole answer and those of the
    models that the fewest come to; and as many as come in 24 times of one request, so that a trend can be seen.

    times: so many times as many, as far as :data:`MOST` allows, but of models that share GPUs: to simulate these
    together takes longer by far.
    """
    stages = [member.stage for member in members]
    shares, needed = reach(stages), dict[int, float]()
    for place, member in enumerate(members):
        root = root_of(stages, place)
        wanted = [float(FEWEST), needed.get(root, 0.0)]
        for slo, share in ((member.stage.limits, shares[place]), (member.stage.answer, 1.0)):
            if slo.limits and share:
                wanted.append(_MARGIN * fewest_values(slo.percentile) / share / COUNTED)
        path = sum(members[one].alone for one in range(len(stages)) if root_of(stages, one) == root and shares[one])
        wanted.append(_LIVES * (stages[root].rate or 0.0) * factor * path)
        needed[root] = max(wanted)
    pairs = [(place, stage.shares) for place, stage in enumerate(stages) if stage.shares is not None]
    shared = {one for pair in pairs for one in pair}
    needed = {root: count if root in shared else times * count for root, count in needed.items()}
    for place, stage in enumerate(stages):  # models that share GPUs are there for as long as each other
        if stage.shares is not None:
            pair = stage.shares, place
            span = max(needed[one] / (stages[one].rate or 1.0) for one in pair)
            span = min(span, MOST / max(stages[one].rate or 1.0 for one in pair))
            needed |= {one: span * (stages[one].rate or 1.0) for one in pair}
    return [ceil(min(needed[root_of(stages, place)], MOST)) for place in range(len(stages))]


class _Runs:
    """Simulations of a load that are made once: of a model behind so many replicas of those before it."""

    def __init__(self, asked: SeveralAsked, factor: float, times: int = 1) -> None:
        self.asked, self.members, self.factor = asked, asked.members, factor
        self.stages = scale_rates([member.stage for member in asked.members], factor)
        self.requests = stream_requests(asked.members, factor, times)
        self.drawn = draws(self.stages, self.requests, asked.seed)
        self.known: dict[tuple[int, tuple[int, ...]], Asked] = {}

    @cached_property
    def longer(self) -> _Runs | None:
        """Runs of more requests; ``None`` where these are they."""
        more = stream_requests(self.members, self.factor, _LONGER)
        return _Runs(self.asked, self.factor, _LONGER) if more != self.requests else None

    def path(self, place: int) -> list[int]:
        """The models that a request of this one has been at, and itself."""
        after = self.stages[place].after
        return [*([] if after is None else self.path(after)), place]

    def at(self, place: int, counts: Sequence[int]) -> Asked:
        """One model with so many replicas of each."""
        key = place, tuple(counts[host_of(self.stages, one)] for one in self.path(place))
        if key in self.known:
            return self.known[key]
        together = self.asked.together(place)
        if len(together) > 1:
            count = max(counts[together[0]], 1)
            own = [(self.members[one].served(count), self.drawn[one], self.stages[one].limits) for one in together]
            for one, found in zip(together, ask_together(own, self.asked.swap(place))):
                self.known[one, (counts[together[0]],)] = found
        else:
            after = self.stages[place].after
            before = None if after is None else self.at(after, counts)
            served = self.members[place].served(max(counts[place], 1))
            self.known[key] = simulate_stage(served, self.drawn[place], self.stages[place].limits, before)
        return self.known[key]

    def keeps(self, place: int, counts: Sequence[int]) -> bool:
        """Whether one model keeps its own limits: by a longer run where this one does not tell."""
        run, limits = self.at(place, counts).run, self.stages[place].limits
        unsure = run is not None and run.steady and in_doubt({n: getattr(run, n) for n in limits.limits}, limits)
        if unsure and self.longer is not None:
            return self.longer.keeps(place, counts)
        return keeps_own(run, self.stages[place])

    def keeps_whole(self, root: int, counts: Sequence[int]) -> bool:
        """Whether a stream keeps the limits of its whole answers, likewise."""
        found = self.answers(root, counts)
        unsure = found.steady and in_doubt({n: getattr(found, n) for n in found.slo.limits}, found.slo)
        if unsure and self.longer is not None:
            return self.longer.keeps_whole(root, counts)
        return found.keeps

    def answers(self, root: int, counts: Sequence[int]) -> Answers:
        """What users of a stream see."""
        asked = [self.at(place, counts) for place in range(len(self.stages))]
        return answers(self.stages, self.drawn, asked, root)


def plan_several(asked: SeveralAsked, steps: Steps | None = None) -> SeveralPlan:
    """The cheapest machines on which every model keeps its limits, and every stream those of its whole answers.

    steps: one for each model that is sized, more for the choice. Raises ``InfeasibleError`` where no number of replicas
    does, or the stocks do not hold them; ``MissingFactError`` for a GPU without a price; ``UsageError`` for a model
    whose replicas nothing decides.
    """
    asked.require_sizable()
    steps = steps or Steps()
    steps.more(_steps_of(asked))
    tried = [one for place in range(len(asked.members)) for one in _tried(asked, place, steps)]
    sized = _sized_without(asked, {one.place for one in tried}, steps)
    asked, tried, gap = _taken(asked, tried, sized)
    own = {one.place: one for one in tried if one.taken}
    fewest = tuple(own[place].replicas if place in own else count for place, count in enumerate(sized[0]))
    lost = tuple(own[place].lost if place in own else count for place, count in enumerate(sized[1]))
    bought = _bought(asked, fewest, lost)
    bought = bought._replace(gap=max(bought.gap, gap))
    counts = asked.spread([bought.replicas(place) for place in range(len(fewest))])
    run = _run(asked, counts)
    steps.step()
    alone = list[Alone | None]()
    for place in range(len(counts)):
        alone.append(_alone(asked, place, counts))
        steps.step()
    return SeveralPlan(
        asked=asked,
        replicas=counts,
        fewest=fewest,
        lost=lost,
        bought=bought,
        run=run,
        alone=tuple(found for found in alone if found),
        binding=_binding(asked, counts),
        tried=tuple(tried),
    )


def _steps_of(asked: SeveralAsked) -> int:
    """How often a model is sized; the run of all of them, and each beside what it would cost alone."""
    kinds = sum(1 + len(member.alternatives) for member in asked.members)
    return kinds * (2 if asked.domains > 1 else 1) + 1 + len(asked.members)


def _both(asked: SeveralAsked, steps: Steps) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Replicas of each model, and those that are needed while a domain is lost."""
    fewest = _sized(asked, steps)
    return fewest, _sized(replace(asked, utilisation=1.0), steps) if asked.domains > 1 else (0,) * len(fewest)


def _tried(asked: SeveralAsked, place: int, steps: Steps) -> list[Tried]:
    """Every kind of replica of a model that has alternatives, sized: it is by itself. Raises ``InfeasibleError`` where
    none of them keeps its limits.
    """
    member, found, first = asked.members[place], list[Tried](), None
    for one in (member, *member.alternatives) if member.alternatives else ():
        try:
            (fewest,), (lost,) = _both(replace(asked.of((one,)), kinds=(), own_price=0.0), steps)
            found.append(Tried(place=place, member=one, replicas=fewest, lost=lost))
        except InfeasibleError as error:
            first = first or error
            found.append(Tried(place=place, member=one, missing=error.because or error.what))
    if first is not None and not any(one.replicas for one in found):
        raise first
    return found


def _sized_without(asked: SeveralAsked, own: set[int], steps: Steps) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same of all models but some that are by themselves, which have none."""
    rest = [place for place in range(len(asked.members)) if place not in own]
    if not rest:
        return (0,) * len(asked.members), (0,) * len(asked.members)
    at = {place: index for index, place in enumerate(rest)}
    moved = [_moved(asked.members[place], at) for place in rest]
    found = _both(asked.of(moved), steps)
    fewest, lost = (
        tuple(counts[at[place]] if place in at else 0 for place in range(len(asked.members))) for counts in found
    )
    return fewest, lost


def _moved(member: Member, at: Mapping[int, int]) -> Member:
    """A model where others have moved to other places."""
    stage = member.stage
    after, shares = (None if one is None else at[one] for one in (stage.after, stage.shares))
    return replace(member, stage=replace(stage, after=after, shares=shares))


def _taken(
    asked: SeveralAsked, tried: Sequence[Tried], sized: tuple[Sequence[int], Sequence[int]]
) -> tuple[SeveralAsked, list[Tried], float]:
    """The question with the kind of replica of each model that makes the whole cheapest, the kinds, and the gap of the
    choice. Raises ``InfeasibleError`` where no choice has room in the stocks.
    """
    able = [one for one in tried if one.replicas]
    if not able:
        return asked, list(tried), 0.0
    # all kinds as models of their own, of which one of each group is taken
    members = (*asked.members, *(one.member for one in able))
    places = {id(one): len(asked.members) + index for index, one in enumerate(able)}
    counts = [*sized[0], *(one.replicas for one in able)], [*sized[1], *(one.lost for one in able)]
    groups = [[places[id(one)] for one in able if one.place == place] for place in {one.place for one in able}]
    found = replace(
        _placing(asked, *counts, members=members), domains=asked.domains, surge=asked.surge, one_of=groups
    ).cheapest()
    if found is None:
        kinds = (
            " or ".join(_in_words(one.member, one.replicas) for one in able if one.place == place)
            for place in {one.place for one in able}
        )
        raise _too_little(asked, ", ".join(filter(None, [_needed(asked, sized[0]), *kinds])), _needed(asked, sized[1]))
    chosen = {one.place: one.member for one in able if found.replicas(places[id(one)])}
    kept = tuple(replace(chosen.get(place, member), alternatives=()) for place, member in enumerate(asked.members))
    taken = [replace(one, taken=chosen.get(one.place) is one.member) for one in tried]
    return asked.of(kept), taken, found.gap


def _run(asked: SeveralAsked, counts: Sequence[int]) -> TandemRun:
    """Every model at the load itself."""
    served = [member.served(max(count, 1)) for member, count in zip(asked.members, counts)]
    swaps = {place: swap for place in range(len(counts)) if (swap := asked.swap(place)) is not None}
    requests = stream_requests(asked.members, times=_LONGER)
    return simulate_tandem(asked.stages, served, requests, asked.seed, swaps)


def _sized(asked: SeveralAsked, steps: Steps) -> tuple[int, ...]:
    """Replicas of each model: first the fewest with which it keeps its own limits behind the fewest of those before
    it, then more of whichever costs least until whole answers keep theirs too.
    """
    runs = _Runs(asked, 1 / asked.utilisation)
    counts: list[int] = [0] * len(asked.members)
    for place, member in enumerate(asked.members):
        if member.stage.shares is not None:
            counts[place] = counts[member.stage.shares]
        elif member.replicas is not None:
            counts[place] = member.replicas
        elif rate_of_stage(asked.stages, place):
            counts[place] = _fewest(runs, place, counts)
        steps.step()
    roots = [place for place, stage in enumerate(asked.stages) if stage.answer.limits]
    free = [
        place
        for place, member in enumerate(asked.members)
        if member.replicas is None and member.stage.shares is None and counts[place]
    ]
    if not roots or not free:
        return tuple(counts)
    return _whole(asked, runs, counts, (roots, free))


def _binding(asked: SeveralAsked, counts: Sequence[int]) -> tuple[str, ...]:
    """What breaks first for each model as the load of all grows: a limit of its own, what requests wait for where its
    queue grows, the limit of the whole answer (``"answer"``) that it is a part of, or a model on the same GPUs
    (``"beside"``); ``"nothing"`` where none does."""
    found: dict[int, str] = {}
    for growth in _GROWTHS:
        runs = _Runs(asked, growth / asked.utilisation)
        open_ = [one for one in range(len(counts)) if not found.keys() & set(asked.together(one))]
        found |= {place: broken for place in open_ if (broken := _broken(runs, place, counts))}
        if not open_:
            break
    beside = {one for place in found for one in asked.together(place)}
    return tuple(found.get(place, "beside" if place in beside else "nothing") for place in range(len(counts)))


def _broken(runs: _Runs, place: int, counts: Sequence[int]) -> str:
    """What a model breaks with so many replicas; empty where it breaks nothing."""
    run, stage = runs.at(place, counts).run, runs.stages[place]
    if run is not None and not keeps_own(run, stage):
        if run.verdict in ("overloaded", "rejecting"):
            return waited_for(run)
        limits = stage.limits
        return max(limits.limits, key=lambda name: at_percentile(run, name, limits.percentile) / limits.limits[name])
    root = root_of(runs.stages, place)
    return "" if not runs.stages[root].answer.limits or runs.answers(root, counts).keeps else "answer"


def _most(runs: _Runs, place: int) -> int:
    """Replicas beyond which more help no request."""
    member = runs.members[place]
    busy = sum(rate_of_stage(runs.stages, one) * runs.members[one].alone for one in runs.asked.together(place))
    return min(ceil(busy / NEARLY_ALONE) + 1, MOST_ENGINES // member.deployment.parallel.dp)


def _fewest(runs: _Runs, place: int, counts: Sequence[int]) -> int:
    """The fewest replicas of one model with which it keeps its own limits; more of them are taken to do so too."""

    def kept(replicas: int) -> bool:
        tried = [replicas if one == place else count for one, count in enumerate(counts)]
        return all(runs.keeps(one, tried) for one in runs.asked.together(place))

    below, tried, most = 0, 1, _most(runs, place)
    while not kept(tried):
        if tried >= most:
            raise _never(runs, place, tried)
        below, tried = tried, min(_more(runs, place, counts, tried), most)
    return search_smallest(kept, below, tried)


def _more(runs: _Runs, place: int, counts: Sequence[int], tried: int) -> int:
    """Replicas to try after too few: as many as carry what arrives, where fewer leave than come, or an eighth more."""
    now, needed = [tried if one == place else count for one, count in enumerate(counts)], tried
    for one in runs.asked.together(place):
        run = runs.at(one, now).run
        flow = None if run is None or run.steady else flow_of(run)
        if flow is not None and flow.leaving:
            needed = max(needed, floor(tried * flow.arriving / flow.leaving))
    return max(needed, tried + 1 + tried // 8)


def _never(runs: _Runs, place: int, tried: int) -> InfeasibleError:
    missed = (one for one in runs.asked.together(place))
    at = [tried] * len(runs.members)
    place = next((one for one in missed if not runs.keeps(one, at)), place)
    member, run = runs.members[place], runs.at(place, at).run
    slo = member.stage.limits
    assert run is not None
    if run.records.refused:
        because = "; ".join(run.records.refused)
    else:
        found = (
            f"{METRIC_NAMES[name]} {at_percentile(run, name, slo.percentile):.3g} s (limit {m:g} s)"
            for name, m in slo.limits.items()
        )
        because = f"with {tried:,} of them p{slo.percentile:g} of " + ", ".join(found)
    return InfeasibleError(
        f"{member.stage.name}: no number of replicas of {member.deployment.describe()} keeps its limits",
        because=because,
        hint="longer limits, another gpu, or a larger tp in the file",
    )


def _whole(
    asked: SeveralAsked, runs: _Runs, fewest: Sequence[int], which: tuple[Sequence[int], Sequence[int]]
) -> tuple[int, ...]:
    """The cheapest numbers of replicas, none below the fewest, with which all limits are kept: fleets by rising cost.

    which: the streams with limits of the whole, and the models whose replicas are free.
    """
    roots, free = which
    plenty = [_most(runs, place) if place in free else count for place, count in enumerate(fewest)]
    for root in roots:
        if not runs.keeps_whole(root, plenty):
            raise _never_whole(runs, root, plenty)
    floors = asked.spread(
        [_floor(runs, roots, place, (count, plenty)) if place in free else count for place, count in enumerate(fewest)]
    )
    waiting, seen, held = [(0.0, 0, floors)], {floors}, _placing(asked, floors).cheapest() is not None
    for _ in range(_MOST_FLEETS):
        if not waiting:
            break
        _, _, counts = heapq.heappop(waiting)
        own = all(runs.keeps(place, counts) for place in range(len(counts)))
        if own and all(runs.keeps_whole(root, counts) for root in roots):
            return counts
        for place in free:
            more = asked.spread([count + (one == place) for one, count in enumerate(counts)])
            if more in seen or more[place] > plenty[place]:
                continue
            seen.add(more)
            bought = _placing(asked, more).cheapest()
            held = held and bought is not None
            if bought is not None:
                heapq.heappush(waiting, (bought.cost, devices_of(asked, more), more))
    if not waiting and not held:
        raise InfeasibleError(
            "the stock does not hold a fleet that keeps the limits of whole answers",
            because=f"it takes {_needed(asked, floors)} at the least",
            hint="more of --own, --rent GPU, or longer limits of the answer",
        )
    raise InfeasibleError(
        "no fleet was found that keeps the limits of whole answers",
        because=f"none of the {len(seen):,} that cost least does",
        hint="longer limits of the answer, limits of each model, or replicas: of each",
    )


def _floor(runs: _Runs, roots: Sequence[int], place: int, bounds: tuple[int, Sequence[int]]) -> int:
    """The fewest replicas of one model with which whole answers keep their limits while all others have plenty; bounds:
    at least so many, and plenty of each.
    """
    fewest, plenty = bounds

    def kept(few: int) -> bool:
        tried = [few if one == place else count for one, count in enumerate(plenty)]
        return few >= fewest and all(runs.keeps_whole(root, tried) for root in roots)

    return least(kept, fewest, plenty[place]) or plenty[place]


def _never_whole(runs: _Runs, root: int, plenty: Sequence[int]) -> InfeasibleError:
    found, slo = runs.answers(root, plenty), runs.stages[root].answer
    times = ", ".join(
        f"{METRIC_NAMES[name]} {found.at(name, slo.percentile):.3g} s (limit {m:g} s)" for name, m in slo.limits.items()
    )
    return InfeasibleError(
        f"{runs.stages[root].name}: no number of replicas keeps the limits of its whole answers",
        because=f"with replicas for nearly every request p{slo.percentile:g} of {times}",
        hint="longer limits of the answer, or a faster gpu or larger tp for the models on its way",
    )


def _placing(
    asked: SeveralAsked, counts: Sequence[int], lost: Sequence[int] = (), members: Sequence[Member] = ()
) -> Placing:
    """Machines for so many replicas of each model, by its place; lost: so many while a domain is lost. members: what is
    placed, where that is not the models.
    """
    wanted, kinds = dict[int, Wanted](), [*asked.kinds]
    for place, (member, count) in enumerate(zip(members or asked.members, counts)):
        if count and member.stage.shares is None:
            wanted[place] = Wanted(member.size, count, lost[place] if lost else 0)
            if all(kind.name != member.gpu for kind in kinds):
                kinds.append(Kind(gpu=member.request.gpu, owned=False))
    sizes = {
        kind.name: list(dict.fromkeys(w.size for w in wanted.values() if w.size.gpu == kind.name)) for kind in kinds
    }
    found = [
        machine
        for place, kind in enumerate(kinds)
        if sizes[kind.name]
        for machine in machines(place, asked.offers(kind, asked.prices), sizes[kind.name])
    ]
    for whole, together in _on_cut_gpus(asked, [one for each in sizes.values() for one in each]).items():
        with suppress(MissingFactError):  # instances have a price of their own, and the GPU has none
            offers = asked.offers(Kind(gpu=whole, owned=False), asked.prices)
            found += mixed_machines(len(kinds), offers, whole, together)
    return Placing(machines=found, stocks=[*(kind.stock for kind in kinds), inf], wanted=wanted)


def _on_cut_gpus(asked: SeveralAsked, sizes: Sequence[Size]) -> dict[str, list[Size]]:
    """By GPU the sizes of replicas that have room on one which is cut into instances, where there are several; not of
    kinds with a stock, which is counted in instances or in whole GPUs."""
    table, stated, found = mig_table().gpus, {kind.name for kind in asked.kinds}, dict[str, list[Size]]()
    for size in sizes:
        device, colon, profile = size.gpu.rpartition(":")
        whole = device if colon else size.gpu
        known = whole in table and (not colon or bool(table[whole].profiles[profile].starts))
        if known and not stated & {whole, size.gpu}:
            found.setdefault(whole, []).append(size)
    return {whole: each for whole, each in found.items() if len({one.gpu for one in each}) > 1}


def _bought(asked: SeveralAsked, counts: Sequence[int], lost: Sequence[int]) -> Placed:
    """The cheapest machines, with what may be lost and room for a rollout. Raises ``InfeasibleError`` where a stock is
    too small.
    """
    found = replace(_placing(asked, counts, lost), domains=asked.domains, surge=asked.surge).cheapest()
    if found is None:
        raise _too_little(asked, _needed(asked, counts), _needed(asked, lost))
    return found


def _too_little(asked: SeveralAsked, needed: str, lost: str) -> InfeasibleError:
    because = f"needed: {needed}"
    if asked.domains > 1:
        because += f"; while any of {asked.domains} domains is lost" + (
            f": {lost}" if lost else " enough has to be left"
        )
    because += f"; {asked.surge} more of any model must fit" if asked.surge else ""
    return InfeasibleError("the stock does not hold the replicas", because=because, hint="more of --own, or --rent GPU")


def _needed(asked: SeveralAsked, counts: Sequence[int]) -> str:
    """Replicas of each model in words."""
    return ", ".join(
        _in_words(member, count)
        for member, count in zip(asked.members, counts)
        if count and member.stage.shares is None
    )


def _in_words(member: Member, replicas: int) -> str:
    return f"{replicas} x {member.stage.name} ({member.size.devices} x {member.gpu})"


def _alone(asked: SeveralAsked, place: int, counts: Sequence[int]) -> Alone | None:
    """The comparison of a chain of models that ends here with its last one alone; ``None`` for what is no such chain,
    and where replicas are given, stocks have limits or machines are spread, so that the bill of one says nothing.
    """
    stages, member = asked.stages, asked.members[place]
    chain = [place]
    while (after := stages[chain[0]].after) is not None:
        chain.insert(0, after)
    own = [one for one in range(len(stages)) if root_of(stages, one) == chain[0]]
    given = any(asked.members[one].replicas is not None for one in chain)
    shared = any(len(asked.together(one)) > 1 for one in chain)
    spread = asked.domains > 1 or asked.surge
    if len(chain) == 1 or own != chain or given or shared or asked.kinds or spread:
        return None
    first = stages[chain[0]]
    stage = replace(member.stage, after=None, share=1.0, rate=first.rate, prompt=member.prompt, answer=first.answer)
    by_itself = replace(asked, members=(replace(member, stage=stage),))

    def cost(places: Mapping[int, int]) -> float:
        part = [places.get(one, 0) for one in range(len(stages))]
        return _bought(asked, part, ()).cost

    before, cascade = cost({one: counts[one] for one in chain[:-1]}), cost({one: counts[one] for one in chain})
    try:
        (replicas,) = _sized(by_itself, Steps())
    except InfeasibleError as error:
        return Alone(member=member, replicas=None, cost=inf, cascade=cascade, before=before, missing=error.because)
    return Alone(member=member, replicas=replicas, cost=cost({place: replicas}), cascade=cascade, before=before)
