"""How much load there is, in the unit that it was asked in: people, requests in flight, sessions or requests/s."""

from __future__ import annotations

from dataclasses import replace
from math import floor, inf, log10

from inferplan.planning.demand import Demand
from inferplan.planning.option import PlanOption
from inferplan.planning.question import Question
from inferplan.traffic.requests import OpenLoop

_MOST_REPLICAS = 1 << 20
_DIGITS = 3
"""Of a rate that is worked out."""


def amount_of(demand: Demand) -> float:
    """People, requests in flight, sessions or prompts per second: what was asked for."""
    if demand.people is not None:
        return float(demand.people.count)
    if demand.users is not None:
        return float(demand.users)
    if demand.sessions is not None:
        return _loop(demand).rate
    return (demand.rate or 0.0) / demand.samples


def with_amount(question: Question, amount: float) -> Question:
    """The same question about so much; people and requests in flight are whole numbers, and at least one."""
    demand, times = question.demand, amount / amount_of(question.demand)
    if is_whole(demand):
        times = max(floor(amount), 1) / amount_of(demand)
    changed: dict[str, object] = {}
    if demand.users is not None:
        changed["users"] = round(demand.users * times)
    else:
        changed["rate"] = (demand.rate or 0.0) * times
    if demand.people is not None:
        changed["people"] = replace(demand.people, count=round(demand.people.count * times))
    if demand.sessions is not None:
        loop = _loop(demand)
        changed["sessions"] = replace(demand.sessions, arrivals=replace(loop, rate=loop.rate * times))
    return replace(question, demand=replace(demand, **changed))  # type: ignore[arg-type]  # fields by their names


def rounded_down(demand: Demand, amount: float) -> float:
    """A whole number of people or requests in flight; of a rate three digits."""
    if is_whole(demand):
        return float(floor(amount))
    place = 10.0 ** (floor(log10(amount)) - _DIGITS + 1)
    return float(f"{floor(amount / place + 1e-9) * place:.{_DIGITS}g}")  # as it is typed


def unit_of(demand: Demand) -> str:
    """``"people"``, ``"requests in flight"``, ``"sessions/s"`` or ``"requests/s"``."""
    if demand.people is not None:
        return "people"
    if demand.users is not None:
        return "users" if demand.think else "requests in flight"
    if demand.sessions is not None:
        return "sessions/s"
    return "requests/s" if demand.samples == 1 else "prompts/s"


def in_words(demand: Demand, amount: float) -> str:
    """``"330 people"``, ``"4.25 requests/s"``."""
    if is_whole(demand):
        return "1 person" if amount == 1 and demand.people is not None else f"{amount:,.0f} {unit_of(demand)}"
    return f"{amount:,.3g} {unit_of(demand)}"


def lengths_in_words(demand: Demand) -> str:
    """A load of any size: ``"any number of people, 1,155 tokens in, 211 out"``."""
    return demand.describe().replace(demand.loaded(), f"any number of {unit_of(demand)}", 1)


def option_of(demand: Demand) -> str:
    """The option that asks for it: ``"--people"``."""
    if demand.people is not None:
        return "--people"
    if demand.users is not None:
        return "--in-flight"
    return "--session-rate" if demand.sessions is not None else "--rate"


def asks_for(demand: Demand, amount: float) -> str:
    """The option with so much: ``"--people 330"``."""
    return f"{option_of(demand)} {amount if is_whole(demand) else float(f'{amount:.{_DIGITS}g}'):.9g}"


def is_whole(demand: Demand) -> bool:
    """Whether it is counted: people, or requests in flight."""
    return demand.people is not None or demand.users is not None


def carried_in_closed_form(option: PlanOption, count: int, question: Question) -> float:
    """What so many replicas are given at the point of an option, in the unit of the question."""
    demand = question.demand
    each = amount_of(demand) / (demand.users if demand.users is not None else demand.rate or 1.0)
    load = option.rate if demand.users is None else option.concurrency + option.rate * demand.think
    return count * load * question.sizing.utilisation * each


def most_replicas(option: PlanOption, question: Question) -> int:
    """The most replicas within what there is and what may be spent; 0 for none."""
    most_cost = question.sizing.max_cost

    def within(count: int) -> bool:
        cost = option.sized(count).cost
        return cost is not None and cost < inf and (most_cost is None or cost <= most_cost * (1 + 1e-9))

    high = 1
    while within(high) and high < _MOST_REPLICAS:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def _loop(demand: Demand) -> OpenLoop:
    assert demand.sessions is not None
    loop = demand.sessions.arrivals
    assert isinstance(loop, OpenLoop)
    return loop
