"""A plan in plain sentences, for people who decide: what to do, what it costs a month, what may go wrong."""

from __future__ import annotations

from typing import NamedTuple

from inferplan.answers.cost import HOURS_PER_MONTH
from inferplan.planning.confidence import MIDDLE
from inferplan.planning.demand import users_in_words
from inferplan.planning.option import Option
from inferplan.planning.plan import Plan
from inferplan.reports.plan_figures import devices, money, other_format, quants, shape
from inferplan.units import format_time

_HELD = {
    "ttft": "the first word of an answer within {}",
    "tpot": "then one token every {} or faster",
    "e2el": "the whole answer within {}",
    "answer_ttft": "the first word after the thought within {}",
}


class KeyFigure(NamedTuple):
    """A figure of the first screen: what it is, its value, what to hold it against."""

    name: str
    value: str
    beside: str = ""


def monthly(option: Option) -> str:
    """``"83,169 USD a month"``; the whole bill of a job that ends; empty without a price."""
    if option.cost is None or option.tariff is None:
        return ""
    if option.hours is not None:
        return f"{option.cost:,.0f} {option.tariff.currency} in all"
    return f"{option.cost * HOURS_PER_MONTH:,.0f} {option.tariff.currency} a month"


def recommendation(plan: Plan) -> str:
    """What to rent or buy, and what it does."""
    option = plan.option
    cost = monthly(option) or "no price is on file"
    bought = " and ".join(f"{bill.units:,} x {bill.offer.what} from {bill.offer.source}" for bill in option.purchases)
    text = f"Run {devices(option)}: {cost}" + (f" ({bought})." if bought else ".")
    if option.hours is not None:
        return f"{text} The job is done in {option.hours:,.1f} hours."
    return f"{text} {_served(plan)}"


def _served(plan: Plan) -> str:
    slo, demand = plan.question.slo, plan.question.demand
    load = f"{plan.rate:,.4g} requests a second"
    load = f"At {load}" if demand.users is None else f"With {users_in_words(demand)} ({load})"
    held = ", ".join(_HELD[name].format(format_time(plan.best.achieved[name], 3)) for name in slo.limits)
    return f"{load}, {slo.percentile:g} of 100 requests get {held}."


def risk(plan: Plan) -> str:
    """What may be wrong with it, and by how much; and that answers in another format than the checkpoint's differ."""
    chosen = quants(plan.option)
    if chosen == "native":
        return _risk_of_times(plan)
    return f"{_risk_of_times(plan)} The model runs in {chosen}: check that its answers are good enough."


def _risk_of_times(plan: Plan) -> str:
    if plan.option.deployment.calibration.basis == "roofline":
        return (
            "Nothing was measured on this GPU or one like it. Real times are longer than these: measure before buying."
        )
    if not plan.supported:
        return "How far off these times are is not known: nobody has measured a service of this kind. Measure first."
    bands = " and ".join(
        f"{_NAMES[name]} between {low:.2f} and {high:.2f} times the predicted mean"
        for name, (low, high) in plan.bands.items()
    )
    what = "the time of a job" if plan.question.demand.offline else "what is limited here"
    known = f"In 8 of 10 comparable measurements {bands}." if bands else f"No error band is known of {what}."
    text = f"These are predictions. {known}"
    holds = plan.holds_at_the_slow_end
    if plan.question.sizing.confidence == MIDDLE and holds is not None:
        kept = "would still be kept, with nothing to spare" if holds else "would be missed"
        text += f" Were this service as slow as the slowest tenth of them, the limits {kept}."
    return text


_NAMES = {
    "ttft": "the mean time to the first token was",
    "tpot": "the mean time for each further token was",
    "e2el": "the mean time of the whole answer was",
    "answer_ttft": "the mean time to the first word after the thought was",
}


def alternative(plan: Plan) -> str:
    """The plan at the other confidence in one sentence; empty where there is none to speak of."""
    if plan.question.demand.offline or not plan.question.slo.limits or plan.question.space.base.ideal:
        return ""
    other, middle = plan.other, plan.question.sizing.confidence == MIDDLE
    if other is None:
        known = (
            "how far off the times are is not known" if not plan.supported else "no deployment keeps the limits then"
        )
        return f"A safer plan cannot be named: {known}." if middle else ""
    same = _bought(other.option) == _bought(plan.option)
    cost = monthly(other.option) or "no price"
    what = "the same purchase" if same else _named(other.option, plan.option) + f", {cost}"
    if not middle:
        return f"Without that safety, if the prediction is right: {what}."
    free = f"{1 - plan.question.sizing.utilisation:.0%} of the capacity left free"
    return f"To be safe in 9 of 10 cases, with {free}: {what}."


def _named(option: Option, beside: Option) -> str:
    return f"{shape(option)} on {devices(option)}{other_format(option, beside)}"


def _bought(option: Option) -> tuple[str, str, str, float | None]:
    return devices(option), shape(option), quants(option), option.cost


def key_figures(plan: Plan) -> list[KeyFigure]:
    """The first screen in figures."""
    option, slo = plan.option, plan.question.slo
    found = [KeyFigure("cost", monthly(option) or "no price", money(option)), KeyFigure("GPUs", devices(option))]
    if option.hours is not None and plan.question.demand.deadline is not None:
        within = f"limit {plan.question.demand.deadline / 3600:,.4g} h"
        found.append(KeyFigure("time of the job", f"{option.hours:,.1f} h", within))
    for name, limit in slo.limits.items():
        value = format_time(plan.best.achieved[name], 3)
        found.append(KeyFigure(f"{_SHORT[name]}, p{slo.percentile:g}", value, f"limit {format_time(limit, 3)}"))
    if plan.capacity is not None and plan.capacity.factor:
        carries = f"carries {'at least ' if plan.capacity.open else ''}{plan.capacity.factor:.2f} x this"
        found.append(KeyFigure("load", f"{1 / plan.capacity.factor:.0%} of capacity", carries))
    return found


_SHORT = {
    "ttft": "first token",
    "tpot": "each further token",
    "e2el": "whole answer",
    "answer_ttft": "first token of the answer",
}
