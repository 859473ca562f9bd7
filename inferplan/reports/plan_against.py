"""What a plan costs beside an earlier one, whose JSON is on file: ``inferplan plan --against``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from inferplan.errors import ToleranceError, UsageError
from inferplan.planning.plan import Plan
from inferplan.reports.plan_file import checked_part, plan_data
from inferplan.spec import Field, Spec
from inferplan.table import Report


class _Paid(Spec):
    """``plan`` of a plan's JSON, as far as it is what is paid: of an hour, or of a job that takes ``hours``."""

    model_config = {"strict": True, "extra": "ignore"}

    cost: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    currency: str
    hours: float | None


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """An earlier plan. name: of its file. demand: its load in words. job: ``cost`` is of a whole job, not of an
    hour."""

    name: str
    cost: float
    currency: str
    job: bool
    demand: str


def read_earlier(path: str) -> Earlier:
    """What the plan in a file costs. Raises as :func:`inferplan.reports.plan_file.read_plan`, and ``SpecError`` for a
    plan without a price."""
    data = plan_data(path)
    paid = checked_part(path, _Paid, data["plan"], "plan")
    question: Any = data.get("question")
    demand = question.get("demand") if isinstance(question, dict) else None
    return Earlier(
        name=path, cost=paid.cost, currency=paid.currency, job=paid.hours is not None, demand=f"{demand or ''}"
    )


@dataclass(frozen=True, kw_only=True)
class CostChange:
    """Two costs in one currency. ``rise``: ``now / before - 1``."""

    earlier: Earlier
    now: float
    demand: str

    @property
    def rise(self) -> float:
        return self.now / self.earlier.cost - 1

    @property
    def said(self) -> str:
        """Such as ``the cost is 5.98 USD/h, 12.5% more than 5.32 USD/h of base.json``."""
        before, unit = self.earlier, self.earlier.currency + ("" if self.earlier.job else "/h")
        than = f"{abs(self.rise):.1%} {'more' if self.rise > 0 else 'less'} than" if self.rise else "as much as"
        load = f", whose load is {before.demand}" if before.demand and before.demand != self.demand else ""
        return f"the cost is {self.now:,.2f} {unit}, {than} the {before.cost:,.2f} {unit} of {before.name}{load}"

    def require_at_most(self, most: float) -> None:
        """Raise ``ToleranceError`` where the cost rises by more than this share."""
        if self.rise > most:
            raise ToleranceError(
                f"the plan costs {self.rise:.1%} more than that of {self.earlier.name}",
                because=f"{self.said}; at most {most:.1%} more is taken",
                hint=f"a cheaper deployment, or --max-rise {100 * self.rise + 1:.0f}% to take it",
            )


def cost_change(plan: Plan, earlier: Earlier) -> CostChange:
    """The cost of a plan beside that of an earlier one.

    Raises ``UsageError`` for costs that cannot be compared: without a price, in two currencies, of an hour and a job.
    """
    tariff, cost = plan.option.tariff, plan.option.cost
    if cost is None or tariff is None:
        raise UsageError("the plan has no price, so that it cannot be compared", hint="--price gpu=2.49")
    if tariff.currency != earlier.currency:
        raise UsageError(
            f"the plan costs {tariff.currency}, that of {earlier.name} {earlier.currency}",
            hint=f"--currency {earlier.currency}",
        )
    if (plan.option.hours is not None) != earlier.job:
        raise UsageError(
            f"the cost of an hour is not that of a job: {earlier.name} is of {'a job' if earlier.job else 'an hour'}",
            hint="two plans of one kind of load",
        )
    return CostChange(earlier=earlier, now=cost, demand=plan.question.demand.describe())


def with_change(report: Report, change: CostChange) -> Report:
    """The report of a plan with what it costs beside the earlier one, first of its notes."""
    earlier = change.earlier
    said = {"file": earlier.name, "cost": earlier.cost, "currency": earlier.currency, "rise": change.rise}
    return replace(
        report,
        record={**report.record, "against": said},
        notes=[change.said, *report.notes],
        headline=f"{report.headline}\n{change.said}" if report.headline else "",
    )
