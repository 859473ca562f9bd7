"""A plan: the cheapest deployment whose simulated percentiles meet the limits, and what stands behind the choice."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from inferplan.errors import InfeasibleError
from inferplan.estimate.deployment import Deployment
from inferplan.planning.amount import amount_of, asks_for, in_words, rounded_down, with_amount
from inferplan.planning.beside import MOST_UNKNOWN, STEPS, Curve, Step
from inferplan.planning.confidence import AS_PREDICTED, MIDDLE, SAFE, USUAL, Slowness
from inferplan.planning.constraints import constraints_of
from inferplan.planning.edges import Edge, edges, loosened
from inferplan.planning.finalists import (
    Bounds,
    Finalists,
    by_cost,
    cheapest_within,
    is_measured,
    kept_in_the_long_run,
    on_transferred,
    options_at,
    run_under_load,
    simulate_finalists,
    slowed_grids,
    without_unmeasured,
)
from inferplan.planning.forms import outranked, settled
from inferplan.planning.infeasible import infeasible, no_error_known, only_too_large, require_within_cost
from inferplan.planning.largest import Carried, Runner, carried_again, most_carried
from inferplan.planning.miss import Miss, miss_of
from inferplan.planning.option import PlanOption
from inferplan.planning.processes import Jobs, Progress, run_beside
from inferplan.planning.question import Chain, Question
from inferplan.planning.search import SearchResult, nearest_miss, search
from inferplan.planning.sizing import CAPACITY_TOLERANCE, Capacity, Simulated, Simulations, capacity
from inferplan.planning.tiering import Tiered, beside, cheapest
from inferplan.planning.verify import IN_PASSING, Verified, verify
from inferplan.shown import PRINTERS, Shown
from inferplan.steps import Steps
from inferplan.table import frame
from inferplan.terms import ceil
from inferplan.traffic.reasoning import ReasoningLengths

if TYPE_CHECKING:
    import pandas as pd


_MOST_LOADS = 8
"""Loads that are planned for to find the most that is carried."""
WORTH = 0.05
"""A plan that costs less by a smaller share is not named beside one whose error is known."""


_BESIDE = (
    ("other", "measured", "curve", "unknown", "apart"),
    ("capacity", "sensitivity", "in_proportion", "edges"),
    ("miss", "native", "cheaper_verified", "measured_between"),
)
"""What is worked out beside a plan, by what is asked together."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Chosen(Shown):
    """What was chosen, and what stands beside it: at other confidences, in other formats, of what is not known."""

    question: Question
    best: Verified
    alternatives: list[Verified]
    searched: SearchResult
    unkept: InfeasibleError | None = None
    unseen: int = 0
    failure_free: Verified | None = None
    """What would do were nothing ever lost, where a plan shall survive that."""
    known: Simulated = field(default_factory=dict, repr=False)
    """What was simulated."""
    outranked: list[PlanOption] = field(default_factory=list, repr=False)
    """Of forms that a simpler one outranked in closed form."""
    tiered: tuple[Tiered, ...] = ()
    """Where cache tiers were tried: the plan without any, and beside each chain."""

    @property
    def option(self) -> PlanOption:
        """The chosen point with its replicas."""
        return self.best.option

    @property
    def supported(self) -> bool:
        """Whether measurements of its kind stand behind the limited latencies."""
        return is_measured(self.option, self.question)

    @property
    def confidence(self) -> float:
        """The chance that each limit is kept, as far as its error is known."""
        return self.question.sizing.confidence

    @property
    def other_confidence(self) -> float:
        """The confidence of the plan beside this one."""
        return USUAL if self.confidence == MIDDLE else MIDDLE

    @property
    def has_confidences(self) -> bool:
        """Whether plans at several confidences are told apart: not for a job, an ideal device or no limit."""
        question = self.question
        return not question.demand.offline and bool(question.slo.limits) and not question.space.base.ideal

    def _options(self, confidence: float) -> list[PlanOption]:
        """The options at a confidence beside the plan's own cache tiers, those whose error is known."""
        found = beside(options_at(self.searched, self.question, confidence), self.option.tiers)
        return [option for option in found if is_measured(option, self.question)]

    def _beside(self, options: list[PlanOption], confidence: float, bounds: Bounds) -> Verified | None:
        """The cheapest of some options at a confidence; in short, what stands beside the plan. Of forms the simpler
        one, as of the plan's own; the others where no simpler one keeps the limits at any cost."""
        simple, less_simple = settled(options)
        found = cheapest_within(simple, self.question.at(confidence), bounds, self.known)
        if found is None and less_simple and bounds.below == inf:
            found = cheapest_within(options, self.question.at(confidence), bounds, self.known)
        again = simple if found is None else settled(options, found.option.cost or 0.0)[0]
        if len(again) > len(simple):  # twins of pools cost more than in closed form
            found = cheapest_within(again, self.question.at(confidence), bounds, self.known)
        return found

    @cached_property
    def other(self) -> Verified | None:
        """The plan at the other confidence, of those whose error is known: what keeps the limits were the prediction
        right, or the usual one beside that; ``None`` where there is none, or the plan is for want of it.
        """
        if not self.has_confidences or self.unkept is not None:
            return None
        if self.confidence == MIDDLE:
            least = self.option.cost if self.supported else None
            return self._beside(self._options(USUAL), USUAL, Bounds(least or 0.0))
        own = replace(self.option, slow=AS_PREDICTED)
        found = self._beside(self._options(MIDDLE), MIDDLE, Bounds(below=self.option.cost or inf))
        return found or Simulations(most=0, known=self.known).long(own, self.question.at(MIDDLE))

    @property
    def as_predicted(self) -> Verified | None:
        """What keeps the limits were the prediction right, which a plan of unknown error is held to: both then rest on
        the prediction alone. ``None`` where nothing is said of confidences."""
        return self.best if self.confidence == MIDDLE else self.other

    @cached_property
    def measured(self) -> Verified | None:
        """Beside a plan whose error is not known, the cheapest whose is, for the prediction itself; beside one whose
        constants were carried from other devices, the cheapest on constants that were measured on its own; ``None``
        where neither is, and where nothing is found.
        """
        if not self.has_confidences:
            return None
        if not self.supported:
            return self._beside(self._options(MIDDLE), MIDDLE, Bounds())
        if not on_transferred(self.option, self.question):
            return None
        options = [one for one in self._options(self.confidence) if not on_transferred(one, self.question)]
        return self._beside(options, self.confidence, Bounds(self.option.cost or 0.0))

    @cached_property
    def unknown(self) -> Verified | None:
        """What costs less than a plan with a known error were both predictions right, and is of unknown error; ``None``
        where nothing does, and beside a plan that is of that kind.
        """
        if self.as_predicted is None or not self.supported or self.confidence == MIDDLE:
            return None
        below = (self.as_predicted.option.cost or 0.0) * (1 - WORTH)
        everything = beside(options_at(self.searched, self.question, MIDDLE), self.option.tiers)
        options = [one for one in settled(everything)[0] if not is_measured(one, self.question)]
        return cheapest_within(options, self.question.at(MIDDLE), Bounds(below=below), self.known, MOST_UNKNOWN)

    @cached_property
    def native(self) -> Verified | None:
        """The cheapest in the checkpoint's own format beside a plan in another; ``None`` where the plan is in its own,
        and where nothing in its own keeps the limits. Beside one pool it is one pool too: what the format costs, not
        what pools apart save.
        """
        if self.option.request.quant is None or self.question.demand.offline:
            return None
        options = beside(options_at(self.searched, self.question, self.confidence), self.option.tiers)
        alike = [one for one in options if one.pools is None or self.option.pools is not None]
        bare = [one for one in alike if not one.narrowness[0]]
        return self._beside(bare, self.confidence, Bounds(self.option.cost or 0.0))

    @property
    def apart_at_least(self) -> PlanOption | None:
        """The cheapest of two pools, for prompts and for decodes, in closed form: a lower bound. ``None`` where
        none keeps the limits."""
        pools = (one for one in self.searched.options if one.pools is not None and one.cost)
        return min(pools, key=lambda one: one.cost or inf, default=None)

    @cached_property
    def apart(self) -> Verified | None:
        """The same in simulation, were the prediction right (their error is not known), where it costs less than one
        pool does then; ``None`` where none of so few that are simulated does."""
        least, below = self.apart_at_least, (self.as_predicted or self.best).option.cost or 0.0
        if least is None or self.option.pools is not None or (least.cost or inf) >= below:
            return None
        if self.unknown is not None and self.unknown.option.pools is not None:
            return self.unknown  # the cheapest of more
        pools = [one for one in self.searched.options if one.pools is not None]
        return cheapest_within(pools, self.question.at(MIDDLE), Bounds(below=below), self.known, MOST_UNKNOWN)

    @cached_property
    def curve(self) -> list[Step]:
        """The least cost at each confidence, of what has a known error; empty where nothing has."""
        if not self.has_confidences or self.unkept is not None:
            return []
        own = Step(self.confidence, self._cheapest_known)
        other = Step(self.other_confidence, None if self.other is None else self.other.option)
        if own.option is None and other.option is None:
            return []
        return Curve(self.searched, self.question, self.known).steps([own, other])

    @property
    def _cheapest_known(self) -> PlanOption | None:
        """The least bill at the plan's confidence, of what has a known error: not the plan's where a miss is dear."""
        if not self.supported:
            return None if self.measured is None else self.measured.option
        kept = [one for one in (self.best, *self.alternatives) if is_measured(one.option, self.question)]
        return Finalists(passed=kept).unbeaten[0].option

    @cached_property
    def in_proportion(self) -> Verified | None:
        """What would do were a limit on TTFT that was made for shorter prompts as much looser as these are longer;
        ``None`` where it was not, where the load is the most, and where nothing keeps the limits."""
        borrowed, slo = self.question.borrowed, self.question.slo
        if borrowed is None or self.question.most:
            return None
        return self._again(replace(self.question, slo=replace(slo, ttft=borrowed.scaled), borrowed=None))

    @cached_property
    def edges(self) -> list[tuple[Edge, PlanOption | None]]:
        """The limits that an idle replica barely keeps, each with what would be bought with twice that limit."""
        found, asked = edges(self.option, self.question), self.question
        again = [None if asked.most else self._again(loosened(asked, edge)) for edge in found]
        return [(edge, None if best is None else best.option) for edge, best in zip(found, again)]

    def _again(self, question: Question) -> Verified | None:
        """What is planned for another question over the same space, at the confidence of this plan."""
        asked = question.at(self.confidence if self.unkept is None else USUAL)
        try:
            return _at_a_confidence(asked, _Search(result=carried_again(self.searched, asked), steps=Steps())).best
        except InfeasibleError:
            return None

    @property
    def expected_cost(self) -> float:
        """The bill of an hour, and what misses cost on average; infinity where that is not known."""
        return inf if self.miss is None else (self.option.cost or 0.0) + self.miss.expected

    @cached_property
    def miss(self) -> Miss | None:
        """The chance that a limit is missed and what that costs; ``None`` where no error is known."""
        if not self.supported or not self.has_confidences:
            return None
        return miss_of(self.option, self.question, run_under_load(self.question, self.known))

    def cheapest(self, drafted: bool) -> Verified | None:
        """The cheapest that meets the limits with speculation, or without it: of the finalists, or beside a plan at a
        confidence by the prediction itself, because the error of drafts is not known."""
        if self.confidence > MIDDLE:
            return self._by_drafts[drafted]
        finalists = [self.best, *self.alternatives]
        return next((v for v in finalists if bool(v.option.speculation.length) == drafted), None)

    @cached_property
    def _by_drafts(self) -> dict[bool, Verified | None]:
        options = beside(options_at(self.searched, self.question, MIDDLE), self.option.tiers)
        sides: dict[bool, list[PlanOption]] = {False: [], True: []}
        for option in options:
            sides[option.speculation.length > 0].append(option)
        return {drafted: self._beside(side, MIDDLE, Bounds()) for drafted, side in sides.items()}

    @property
    def drafts_help(self) -> bool:
        """Whether what decodes with drafts is the better one of :meth:`cheapest`."""
        drafted, plain = self.cheapest(True), self.cheapest(False)
        if drafted is None or plain is None:
            return plain is None and drafted is not None
        return by_cost(drafted) < by_cost(plain) and not outranked([drafted.option, plain.option])


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Plan(Chosen):
    """The answer. ``alternatives``: other finalists that meet the limits, cheapest first, the plan left out.

    question: as it was answered: its confidence is that of the plan. unkept: why there is no plan at the confidence
    that is usual, where this one is for the prediction itself instead. unseen: options that might be cheaper and were
    not simulated. runners: of a plan for the most what other GPUs carry within the same bound.
    """

    runners: tuple[Runner, ...] = ()

    @property
    def deployment(self) -> Deployment:
        """The chosen deployment with all its replicas, spare ones too; what decodes, where prompts are computed by
        another."""
        option = self.option
        own = option.replicas if option.prompts is None or option.pools is None else option.pools[1]
        parallel = replace(option.deployment.parallel, replicas=own + option.spare)
        return replace(option.deployment, parallel=parallel)

    @property
    def rate(self) -> float:
        """Requests a second that are served."""
        demand = self.question.demand
        if demand.requests is not None and self.option.hours is not None:
            return demand.requests / (self.option.hours * 3600)
        if demand.requests_per_second is not None:
            return demand.requests_per_second
        return self.served(self.best)

    def served(self, verified: Verified) -> float:
        """Requests a second that a finalist serves: the load itself, or of users ``N/(R + Z)``, with the mean think
        time that is asked for: a run draws too few of a long-tailed one for their mean. Of an offline job those of its
        own hours."""
        demand = self.question.demand
        if demand.requests is not None and verified.option.hours is not None:
            return demand.requests / (3600 * verified.option.hours)
        if demand.users is None:
            return self.rate
        return demand.users / (_response(verified) + demand.think)

    @property
    def response(self) -> float:
        """Mean seconds of a request from end to end, by simulation where there is one."""
        return _response(self.best)

    @property
    def waiting(self) -> float | None:
        """Users who wait for an answer at a time, on average; ``None`` for another load."""
        demand = self.question.demand
        if demand.users is None:
            return None
        return demand.users * demand.waiting_share(self.response)

    @property
    def load(self) -> float:
        """What the fleet is given: requests a second, or users."""
        demand = self.question.demand
        return float(demand.users if demand.users is not None else self.rate)

    @cached_property
    def capacity(self) -> Capacity | None:
        """What the fleet carries, by simulation; ``None`` for an offline job, which runs at full speed."""
        if self.question.demand.offline:
            return None
        return capacity(self._at, self.question)

    @cached_property
    def carried(self) -> float:
        """Requests a second that the replicas carry within the limits at the share of their capacity that is planned;
        infinity where no load that was tried breaks a limit. A job is all that its replicas carry."""
        found, users = self.capacity, self.question.demand.users
        if found is None:
            return self.rate
        factor = found.factor * self.question.sizing.utilisation
        if found.open or factor <= 1.0:
            return inf if found.open else self.rate
        if users is None:
            return factor * self.rate
        return users * factor / (_response(self._at(factor)) + self.question.demand.think)

    def _at(self, factor: float) -> Verified:
        """The fleet under so many times the load, in a run that is long enough for its percentile."""
        return Simulations(most=0, known=self.known).long(self.option, self.question, factor)

    @property
    def holds_at_the_slow_end(self) -> bool | None:
        """Whether the plan keeps the limits under the load itself where devices are as slow as 9 in 10 measurements
        allow, without the headroom that is planned; ``None`` where no error is known, or no run is long enough to tell.
        """
        return None if self.miss is None else self.miss.held >= SAFE

    @property
    def binding(self) -> str:
        """What stops the replicas from taking more: the first limit to break in simulation as the load grows."""
        return "slots" if self.capacity is None else self.capacity.broken or "nothing"

    def replicas_for(self, factor: float) -> int | None:
        """Replicas, without the spare ones, for so many times the load; both pools together where they are apart."""
        found = self.capacity
        if found is None or not found.factor:
            return None
        load = factor / (found.factor * self.question.sizing.utilisation)
        sizes = self.option.pools or (self.option.replicas,)
        return sum(max(int(ceil(size * load)), 1) for size in sizes)

    @cached_property
    def cheaper(self) -> PlanOption | None:
        """The option that costs less and misses the limits by least in closed form, at the confidence of the plan."""
        question, searched = self.question, self.searched
        if self.confidence == MIDDLE:
            return nearest_miss(searched, question.stream, self.option.cost)
        slowed = list(slowed_grids(searched, question, self.confidence))
        found = nearest_miss(searched._replace(grids=[grid for grid, _ in slowed]), question.stream, self.option.cost)
        slow = next((slow for grid, slow in slowed if found and grid.grid.deployment is found.deployment), AS_PREDICTED)
        return None if found is None else replace(found, slow=slow)

    @cached_property
    def cheaper_verified(self) -> Verified | None:
        """That option with what the simulator says of it: the closed form may call a miss narrow that is not."""
        factor = 1 / self.question.sizing.utilisation
        return None if self.cheaper is None else verify(self.cheaper, self.question, factor, IN_PASSING)

    @cached_property
    def bands(self) -> dict[str, tuple[float, float]]:
        """By limited metric, the factors between which 80 % of held-out rows lie; a metric without one is left out."""
        result = self.best.result
        if result is None:
            return {}
        found = {name: result.band(name) for name in self.question.slo.limits}
        return {name: band for name, band in found.items() if band is not None}

    @cached_property
    def measured_between(self) -> dict[str, tuple[float, float | None]]:
        """By limited latency, seconds at the percentile between which 80 % of measurements lie of a service like this:
        two runs under the load itself, on devices as fast and as slow as the ends of the bands of the means say.
        ``None`` where the slow ones are overloaded.
        """
        result, question = self.best.result, self.question
        if result is None or not self.bands:
            return {}
        known = {name: result.band(name) for name in ("ttft", "tpot")}
        ends = []
        for end in (0, 1):
            step, first = ((band[end] if (band := known[name]) else None) for name in ("tpot", "ttft"))
            late = None if result.tail is None else result.tail.between(question.slo.percentile)
            slow = Slowness(step or 1.0, 1.0 if first is None else first / (step or 1.0), late[end] if late else 0.0)
            option = replace(self.option, slow=slow)
            ends.append(Simulations(most=0, known=self.known).long(option, question).achieved)
        low, high = ends
        quoted = self.best.achieved
        return {
            name: (min(low[name], quoted[name]), max(high[name], quoted[name]) if isfinite(high[name]) else None)
            for name in self.bands
        }

    @cached_property
    def sensitivity(self) -> list[dict[str, Any]]:
        """The same replicas under more and less load, simulated; and how many replicas each load would need. Empty for
        an offline job."""
        if self.question.demand.offline:
            return []
        slo = self.question.slo
        rows = []
        for factor in (0.8, 1.1, 1.25, 1.5):
            checked = self._at(factor)
            rows.append(
                {
                    "load": factor,
                    **{f"{name}_s": checked.achieved[name] for name in slo.limits},
                    "meets": checked.meets(slo),
                    "verdict": checked.verdict,
                    "replicas_needed": self.replicas_for(factor),
                }
            )
        return rows

    def to_frame(self) -> pd.DataFrame:
        """The plan and its alternatives, one row each."""
        return frame(PRINTERS.rows(self))


PARTS = sum(len(names) for names in _BESIDE)
"""Steps of :func:`complete`."""


def complete(found: Plan, jobs: Jobs, steps: Steps | None = None) -> None:
    """Work out what is shown beside a plan, in up to so many processes; it is found when it is asked for. Each part
    knows the simulations of the plan and its own, so that the answer is the same for any number of them. steps: those
    of the plan before, which know of these.
    """
    before = 0 if steps is None else steps.done
    told = None if steps is None else Progress(len(_BESIDE), lambda done: steps.at(before + done))

    def worked_out(place: int) -> dict[str, Any]:
        part, values = replace(found, known=dict(found.known)), dict[str, Any]()
        for name in _BESIDE[place]:
            values[name] = getattr(part, name)
            if told is not None:
                told.of(place)(len(values))
        return values

    kept = [*found.searched.deployments, found.question]
    for values in run_beside([partial(worked_out, place) for place in range(len(_BESIDE))], jobs, kept, told):
        vars(found).update(values)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Search:
    """The designs of a search, what was simulated of them, and the steps of the plan so far."""

    result: SearchResult
    steps: Steps
    known: Simulated = field(default_factory=dict)


def plan(question: Question, steps: Steps | None = None) -> Plan:
    """Search, then size the cheapest structures in simulation until none that may be cheaper is left.

    Where nothing keeps the limits at a confidence that nobody asked for, the plan is for the prediction itself and says
    why (``unkept``). steps: the search, one for each candidate that is decided, and the runs that are quoted.

    Raises ``InfeasibleError`` with the nearest miss when nothing meets the limits, ``UsageError`` for people who would
    have to be in several conversations at a time with answers as long as these.
    """
    question, steps = question.with_owned_counted(), steps or Steps()
    steps.more(1)
    searched = without_unmeasured(search(question.space, question.stream, question.prices))
    steps.step()
    first = _Search(result=searched, steps=steps)
    try:
        return _largest(question, searched, steps) if question.most else _at_a_confidence(question, first)
    except InfeasibleError as error:
        told = error if question.most else _without_bounds(error, question, first)
        told = told if question.most else _with_the_most(told, question, searched, steps)
        raise _with_the_limit(told, question) from None


def _at_a_confidence(question: Question, searched: _Search) -> Plan:
    """The plan of a search, within what may be spent. Raises ``InfeasibleError`` as :func:`plan`: the first that is for
    its cost, else the last."""
    unkept, told, dear = None, None, False
    for confidence in question.confidences:
        found = None
        try:
            found = _with_fewer_misses(_planned(question.at(confidence), searched), searched)
            require_within_cost(question, found.option)
            return replace(found, unkept=unkept)
        except InfeasibleError as error:
            told = error if told is None or not dear else told
            dear, unkept = found is not None, unkept or error
    assert told is not None
    raise told


def _largest(question: Question, searched: SearchResult, steps: Steps) -> Plan:
    """The plan for the most that is carried. Raises ``InfeasibleError`` where no load is small enough."""
    found = most_carried(question, searched)
    if found is None:
        if question.sizing.max_cost is not None and question.sizing.owned is None:
            _at_a_confidence(
                replace(question, most=False), _Search(result=searched, steps=steps)
            )  # raises what the least costs
        raise infeasible(question, searched)
    best = _most(found, question, searched, steps)
    bought = best.option.deployment.hardware.name
    others = (one for one in found.others if one.option.deployment.hardware.name != bought)
    return replace(best, runners=tuple(others))


def _most(found: Carried, question: Question, searched: SearchResult, steps: Steps, below: float = inf) -> Plan:
    """The plan for the most: of the loads that were planned for the largest, so that whoever asks for it gets it.
    Settings that are chosen for a load may carry more than those that were tried, so it is planned for more until
    nothing is. below: a load that is known to be too much. Raises ``InfeasibleError`` where none was planned for.
    """
    amount, beyond, best = min(found.amount, below * (1 - CAPACITY_TOLERANCE)), below, None
    amount = rounded_down(question.demand, amount)
    for left in reversed(range(_MOST_LOADS)):
        there = with_amount(question, amount).at(found.confidence)
        again = _Search(result=carried_again(searched, there), steps=steps.turn(min(left, 1)))
        try:
            planned = _with_fewer_misses(_planned(there, again), again)
            require_within_cost(there, planned.option)
            best = planned
        except InfeasibleError as error:
            refused, beyond = error, amount
        if best is None:
            amount = rounded_down(question.demand, amount * (1 - CAPACITY_TOLERANCE))
            if amount <= 0:  # not even one person
                break
            continue
        own = amount_of(best.question.demand)
        factor = 0.0 if best.capacity is None else best.capacity.factor
        more = min(own * factor * question.sizing.utilisation, beyond * (1 - CAPACITY_TOLERANCE / 2))
        if more <= own * (1 + CAPACITY_TOLERANCE):
            break
        amount = rounded_down(question.demand, more)
    if best is None:
        raise refused
    return best


def _without_bounds(error: InfeasibleError, question: Question, search: _Search) -> InfeasibleError:
    """The error with a plan beyond the GPUs or the watts there are, found as every plan. Where there is none, and only
    a size in closed form was too large for them, why there is none."""
    sizing = question.sizing
    if sizing.owned is None and sizing.power is None:
        return error
    free = replace(question, sizing=replace(sizing, owned=None, power=None))
    again = replace(search, result=carried_again(search.result, free))
    try:
        enough = _at_a_confidence(free, again).option
    except InfeasibleError as told:
        unkept = only_too_large(search.result)
        return InfeasibleError(error.what, because=told.because, hint=told.hint) if unkept else error
    missed = [one for one in constraints_of(question.slo, sizing) if not one.allows(enough)]
    if not missed:
        return error
    because, hint = missed[0].ruled_out(enough, question)
    return InfeasibleError(error.what, because=because, hint=hint)


def _with_the_most(error: InfeasibleError, question: Question, searched: SearchResult, steps: Steps) -> InfeasibleError:
    """The error with what the GPUs there are, or a cost per hour, do carry; as it is where that has no bound, and where
    no load is small enough."""
    demand = question.demand
    if not question.bounded or demand.offline or demand.trace is not None:
        return error
    found, asked = most_carried(question, searched), amount_of(demand)
    try:
        best = None if found is None else _most(found, question, searched, steps)
        if found is not None and best is not None and amount_of(best.question.demand) >= asked:  # runs err by 3 %
            best = _most(found, question, searched, steps, asked)
    except InfeasibleError:
        return error
    if best is None:
        return error
    amount = amount_of(best.question.demand)
    most = f"the most for {question.bound} is {in_words(demand, amount)}, {amount / asked:.0%} of this load"
    sure = "if the prediction is right" if best.confidence == MIDDLE else f"at a confidence of {best.confidence:g}"
    return InfeasibleError(
        error.what, because=f"{most}, {sure}; {error.because}", hint=f"{asks_for(demand, amount)}, or {error.hint}"
    )


def _with_the_limit(error: InfeasibleError, question: Question) -> InfeasibleError:
    """The error with whose limit it was, where that was made for shorter prompts."""
    limit = question.borrowed
    if limit is None:
        return error
    because = f"{limit.describe()}, which in proportion is {limit.option}; {error.because}"
    return InfeasibleError(error.what, because=because, hint=error.hint)


def _with_fewer_misses(found: Plan, searched: _Search) -> Plan:
    """The plan, or where the cost of a miss is stated one at a higher confidence that is expected to cost less.

    Where it is derived none is: what repairs a miss costs no less than what avoids it, and is not always needed.
    """
    question = found.question
    if question.sizing.miss_cost is None or question.sizing.confidence == MIDDLE:
        return found
    for confidence in (one for one in STEPS if one > question.sizing.confidence):
        try:
            safer = _planned(question.at(confidence), searched)
            require_within_cost(question, safer.option)
        except InfeasibleError:
            break
        found = min(found, safer, key=lambda one: one.expected_cost)
    return found


def _planned(question: Question, search: _Search) -> Plan:
    """The plan at the confidence of a question. Raises ``InfeasibleError`` as :func:`plan`."""
    confidence, searched, known, steps = question.sizing.confidence, search.result, search.known, search.steps
    bare = options_at(searched, question, confidence)
    if not bare:
        unknown = None if confidence == MIDDLE else no_error_known(question, searched)
        raise unknown or infeasible(question, searched)
    steps.more(1)
    finalists = {
        chain: simulate_finalists(beside(bare, chain), question, known, steps, others=True)
        for chain in ((), *question.chains)
    }
    sides = _tiered(finalists, question, known)
    steps.step()
    side = cheapest(sides)
    if side is None or side.best is None:
        raise infeasible(question, searched, [failed for one in finalists.values() for failed in one.failed])
    best, found = side.best, finalists[side.chain]
    if question.demand.people is not None:
        question.demand.people.require_one_each(_response(best))
    return Plan(
        question=question,
        best=best,
        alternatives=sorted(found.passed, key=by_cost),
        searched=searched,
        unseen=found.unseen,
        failure_free=_failure_free(beside(bare, side.chain), question, steps),
        known=known,
        outranked=found.outranked,
        tiered=tuple(sides) if question.chains else (),
    )


def _response(verified: Verified) -> float:
    return verified.response or verified.option.e2el


def _failure_free(options: list[PlanOption], question: Question, steps: Steps) -> Verified | None:
    """The cheapest plan were nothing lost; ``None`` where nobody asks what a plan survives."""
    if question.sizing.survive is None:
        return None
    lucky = replace(question, sizing=replace(question.sizing, survive=None))
    return simulate_finalists(options, lucky, {}, steps).cheapest


def _tiered(finalists: dict[Chain, Finalists], question: Question, known: Simulated) -> list[Tiered]:
    """The plan beside each chain of tiers, of which the cheapest is confirmed until it can be quoted."""
    sides = {chain: Tiered(chain=chain, best=found.cheapest) for chain, found in finalists.items()}
    quoted = set[Chain]()
    while (side := cheapest([*sides.values()])) is not None and side.chain not in quoted:
        quoted.add(side.chain)
        kept = kept_in_the_long_run(finalists[side.chain], question, known)
        sides[side.chain] = Tiered(chain=side.chain, best=kept)
    return [*sides.values()]


@dataclass(frozen=True, kw_only=True, eq=False)
class BudgetedPlan:
    """One budget. output: what is written under it. found: its plan, or why there is none."""

    output: ReasoningLengths
    found: Plan | InfeasibleError

    @property
    def cost_per_request(self) -> float | None:
        """The bill of the fleet over the requests that it serves; ``None`` without a plan or a price."""
        if isinstance(self.found, InfeasibleError) or self.found.option.cost is None:
            return None
        hours = 1.0 if self.found.option.hours is None else self.found.option.hours
        return self.found.option.cost / (self.found.rate * hours * 3600)


def plan_budgets(question: Question, steps: Steps | None = None) -> list[BudgetedPlan]:
    """The plan under each budget of the question, in their order. steps: those of each plan.

    Raises ``InfeasibleError``, that of the last, where there is a plan under none of them.
    """
    plans, asked, steps = list[BudgetedPlan](), list(question.each_budget()), steps or Steps()
    for place, one in enumerate(asked, 1):
        output = one.demand.output
        assert isinstance(output, ReasoningLengths)
        try:
            plans.append(BudgetedPlan(output=output, found=plan(one, steps.turn(len(asked) - place))))
        except InfeasibleError as error:
            plans.append(BudgetedPlan(output=output, found=error))
    last = plans[-1].found
    if isinstance(last, InfeasibleError) and all(isinstance(one.found, InfeasibleError) for one in plans):
        raise last
    return plans
