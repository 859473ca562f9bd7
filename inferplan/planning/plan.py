"""A plan: the cheapest deployment whose simulated percentiles meet the limits, and what stands behind the choice."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from inferplan.errors import InfeasibleError
from inferplan.estimate.deployment import Deployment
from inferplan.planning.confidence import MIDDLE, SAFE, slowness
from inferplan.planning.finalists import (
    Finalists,
    by_cost,
    cheapest_kept,
    is_measured,
    kept_in_the_long_run,
    options_at,
    simulate_finalists,
    without_unmeasured,
)
from inferplan.planning.forms import outranked
from inferplan.planning.four_bits import in_four_bits
from inferplan.planning.infeasible import infeasible, no_error_known
from inferplan.planning.option import Forgone, PlanOption
from inferplan.planning.question import Chain, Question
from inferplan.planning.search import SearchResult, nearest_miss, search
from inferplan.planning.sizing import Capacity, Simulations, capacity
from inferplan.planning.tiering import Tiered, beside, cheapest
from inferplan.planning.verify import SHOWN, TOO_SHORT, Verified, verify
from inferplan.shown import PRINTERS, Shown
from inferplan.table import frame
from inferplan.terms import ceil
from inferplan.traffic.reasoning import ReasoningLengths

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Plan(Shown):
    """The answer. ``alternatives``: other finalists that meet the limits, cheapest first, the plan left out.

    other: the plan at the other confidence, safe beside the middle or middle beside the safe; ``None`` where none was
    found. measured: where nothing was measured of the plan's kind, the cheapest of which it was. unseen: options that
    might be cheaper and were not simulated.
    """

    question: Question
    best: Verified
    alternatives: list[Verified]
    searched: SearchResult
    other: Verified | None = None
    measured: Verified | None = None
    unseen: int = 0
    failure_free: Verified | None = None
    """What would do were nothing ever lost, where a plan shall survive that."""
    known: dict[Hashable, Verified] = field(default_factory=dict, repr=False)
    """What was simulated."""
    tiered: tuple[Tiered, ...] = ()
    """Where cache tiers were tried: the plan without any, and beside each chain."""

    @property
    def option(self) -> PlanOption:
        """The chosen point with its replicas."""
        return self.best.option

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
        time that is asked for: a run draws too few of a long-tailed one for their mean."""
        demand = self.question.demand
        if demand.users is None:
            return self.rate
        return demand.users / ((verified.response or verified.option.e2el) + demand.think)

    @property
    def waiting(self) -> float | None:
        """Users who wait for an answer at a time, on average; ``None`` for another load."""
        demand = self.question.demand
        if demand.users is None:
            return None
        return demand.users * demand.waiting_share(self.best.response or self.option.e2el)

    @property
    def load(self) -> float:
        """What the fleet is given: requests a second, or users."""
        demand = self.question.demand
        return float(demand.users if demand.users is not None else self.rate)

    @property
    def other_confidence(self) -> float:
        """The confidence of the plan beside this one."""
        return SAFE if self.question.sizing.confidence == MIDDLE else MIDDLE

    @cached_property
    def capacity(self) -> Capacity | None:
        """What the fleet carries, by simulation; ``None`` for an offline job, which runs at full speed."""
        if self.question.demand.offline:
            return None
        return capacity(self._at, self.question)

    def _at(self, factor: float) -> Verified:
        """The fleet under so many times the load, in a run that is long enough for its percentile."""
        return Simulations(most=0, known=self.known).long(self.option, self.question, factor)

    @cached_property
    def holds_at_the_slow_end(self) -> bool | None:
        """Whether the plan keeps the limits under the load itself where devices are as slow as 9 in 10 measurements
        allow, without the headroom that is planned; ``None`` where no error is known, or no run is long enough to tell.
        """
        question, option = self.question, self.option
        if question.demand.offline or not self.supported:
            return None
        slow = slowness(option.deployment, question.demand.prompt.average, question.slo, SAFE, option.forms)
        if slow is None:
            return None
        checked = verify(replace(option, slow=slow), question, precision=SHOWN)
        return None if checked.verdict == TOO_SHORT else checked.meets(question.slo)

    @property
    def binding(self) -> str:
        """What stops the replicas from taking more: the first limit to break in simulation as the load grows."""
        return "slots" if self.capacity is None else self.capacity.broken or "nothing"

    @property
    def supported(self) -> bool:
        """Whether measurements of its kind stand behind the limited latencies."""
        return is_measured(self.option, self.question)

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
        """The option that costs less and misses the limits by least, by the prediction itself."""
        question = self.question
        if question.sizing.confidence != MIDDLE:
            return None
        return nearest_miss(self.searched, question.stream, self.option.cost)

    @cached_property
    def cheaper_verified(self) -> Verified | None:
        """That option with what the simulator says of it: the closed form may call a miss narrow that is not."""
        factor = 1 / self.question.sizing.utilisation
        return None if self.cheaper is None else verify(self.cheaper, self.question, factor, SHOWN)

    def cheapest(self, drafted: bool) -> Verified | None:
        """The cheapest finalist that meets the limits with speculation, or without it."""
        finalists = [self.best, *self.alternatives]
        return next((v for v in finalists if bool(v.option.speculation.length) == drafted), None)

    @property
    def forgone(self) -> Forgone | None:
        """What a less simple form might be worth, of which measured ratios do not tell whether it is."""
        sized = [self.option, *(verified.option for verified in self.alternatives)]
        found = [one.forgone for one in outranked(sized) if one.twin == 0 and one.forgone.advantage > 0]
        found += [] if self.option.forgone is None else [self.option.forgone]
        return max(found, key=lambda one: one.advantage, default=None)

    @cached_property
    def four_bits(self) -> Verified | None:
        """One that is cheaper in 4-bit weights, which were not tried on its devices; ``None`` where none was found."""
        return in_four_bits(self.question, self.option.cost)

    @cached_property
    def bands(self) -> dict[str, tuple[float, float]]:
        """By limited metric, the factors between which 80 % of held-out rows lie; a metric without one is left out."""
        result = self.best.result
        if result is None:
            return {}
        found = {name: result.band(name) for name in self.question.slo.limits}
        return {name: band for name, band in found.items() if band is not None}

    @cached_property
    def sensitivity(self) -> list[dict[str, Any]]:
        """The same replicas under more and less load, simulated; and how many replicas each load would need."""
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


class _Known(dict[Hashable, Verified]):
    """What was simulated; ``told`` hears how many there are whenever one is added."""

    def __init__(self, told: Callable[[int], None] | None) -> None:
        super().__init__()
        self._told = told

    def __setitem__(self, key: Hashable, value: Verified) -> None:
        super().__setitem__(key, value)
        if self._told is not None:
            self._told(len(self))


def plan(question: Question, progress: Callable[[int], None] | None = None) -> Plan:
    """Search, then size the cheapest structures in simulation until none that may be cheaper is left.

    progress: called with the number of simulations that are done.

    Raises ``InfeasibleError`` with the nearest miss when nothing meets the limits.
    """
    searched = without_unmeasured(search(question.space, question.stream, question.prices))
    confidence = question.sizing.confidence
    bare = options_at(searched, question, confidence)
    if not bare:
        unknown = None if confidence == MIDDLE else no_error_known(question, searched)
        raise unknown or infeasible(question, searched)
    known = _Known(progress)
    finalists = {
        chain: simulate_finalists(beside(bare, chain), question, known, others=True) for chain in ((), *question.chains)
    }
    sides = _tiered(finalists, question, known)
    side = cheapest(sides)
    if side is None or side.best is None:
        raise infeasible(question, searched, [failed for one in finalists.values() for failed in one.failed])
    best, found, options = side.best, finalists[side.chain], beside(bare, side.chain)
    measured = None
    if not question.demand.offline and not is_measured(best.option, question):
        those = [option for option in options if is_measured(option, question)]
        measured = cheapest_kept(those, question, known)
    return Plan(
        question=question,
        best=best,
        alternatives=sorted(found.passed, key=by_cost),
        searched=searched,
        other=_at_the_other_confidence(searched, question, known, side.chain),
        measured=measured,
        unseen=found.unseen,
        failure_free=_failure_free(options, question, progress),
        known=known,
        tiered=tuple(sides) if question.chains else (),
    )


def _failure_free(
    options: list[PlanOption], question: Question, progress: Callable[[int], None] | None
) -> Verified | None:
    """The cheapest plan were nothing lost; ``None`` where nobody asks what a plan survives."""
    if question.sizing.survive is None:
        return None
    lucky, known = replace(question, sizing=replace(question.sizing, survive=None)), _Known(progress)
    return cheapest_kept(options, lucky, known)


def _tiered(finalists: dict[Chain, Finalists], question: Question, known: dict[Hashable, Verified]) -> list[Tiered]:
    """The plan beside each chain of tiers, of which the cheapest is confirmed until it can be quoted."""
    sides = {chain: Tiered(chain=chain, best=found.cheapest) for chain, found in finalists.items()}
    quoted = set[Chain]()
    while (side := cheapest([*sides.values()])) is not None and side.chain not in quoted:
        quoted.add(side.chain)
        kept = kept_in_the_long_run(finalists[side.chain], question, known)
        sides[side.chain] = Tiered(chain=side.chain, best=kept)
    return [*sides.values()]


def _at_the_other_confidence(
    searched: SearchResult, question: Question, known: dict[Hashable, Verified], chain: Chain
) -> Verified | None:
    """The safe plan beside one for the middle, or the middle beside a safe one; with the same cache tiers."""
    if question.demand.offline or not question.slo.limits or question.space.base.ideal:
        return None
    other = SAFE if question.sizing.confidence == MIDDLE else MIDDLE
    options = beside(options_at(searched, question, other), chain)
    return cheapest_kept(options, question, known)


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


def plan_budgets(question: Question, progress: Callable[[int], None] | None = None) -> list[BudgetedPlan]:
    """The plan under each budget of the question, in their order.

    Raises ``InfeasibleError``, that of the last, where there is a plan under none of them.
    """
    plans: list[BudgetedPlan] = []
    for one in question.each_budget():
        output = one.demand.output
        assert isinstance(output, ReasoningLengths)
        try:
            plans.append(BudgetedPlan(output=output, found=plan(one, progress)))
        except InfeasibleError as error:
            plans.append(BudgetedPlan(output=output, found=error))
    last = plans[-1].found
    if isinstance(last, InfeasibleError) and all(isinstance(one.found, InfeasibleError) for one in plans):
        raise last
    return plans
