"""The same question under several budgets of thought: what each of them takes and costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inferplan.errors import InfeasibleError
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.traffic.reasoning import ReasoningLengths

SECONDS_PER_HOUR = 3600.0


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
        return self.found.option.cost / (self.found.rate * hours * SECONDS_PER_HOUR)


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
