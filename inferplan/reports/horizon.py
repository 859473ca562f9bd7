"""An :class:`inferplan.horizon.answer.Answer` as JSON, as tables and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.catalog.files import at_line
from inferplan.figures import Figure, record, side_by_side, text
from inferplan.horizon.answer import Action, Answer, Binding, Reason
from inferplan.reports.plots import steps_of_months
from inferplan.table import Report, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from inferplan.horizon.check import Checked

_VERBS = {"owned": "buy", "reserved": "reserve"}


def horizon_report(answer: Answer, path: Path, checked: Checked | None = None) -> Report:
    """What to do in which month, against the alternatives, and the row of the file that decides it."""
    actions = [_action(answer, path, one) for one in answer.actions]
    months = [_month(answer, place) for place in range(len(answer.asked.months))]
    demand = [_demand(answer, place) for place in range(len(answer.asked.streams))]
    offers = [_reason(answer, path, one) for one in answer.reasons]
    limits = [_binding(path, one) for one in answer.bindings]
    alternatives = [[*row] for row in _alternatives(answer)]
    parts = {"actions": actions, "months": months, "demand": demand, "offers": offers, "limits": limits}
    whole: dict[str, Any] = {
        "currency": answer.asked.currency,
        "expected_cost": answer.cost,
        "expected_bill": answer.cost - answer.penalties - answer.beyond,
        "expected_penalty": answer.penalties,
        "paid_after_the_end": answer.beyond,
        "whole_machines": answer.whole,
        "gap": answer.gap,
        "rounded_up": None if answer.whole else answer.rounded_up,
        "all_on_demand": answer.on_demand,
        "all_reserved": answer.reserved,
        "mean_demand_answer": answer.mean,
        "known_scenario": answer.certain,
        "value_of_the_stochastic_solution": answer.stochastic_value,
        "expected_value_of_perfect_information": answer.information_value,
        **{name: [record(row) for row in rows] for name, rows in parts.items()},
        "check": None if checked is None else [record(row) for row in _checks(checked)],
    }
    tables = [
        side_by_side(_title(answer), alternatives),
        side_by_side("What to do", actions) if actions else Table(title="Nothing is held", columns=[], rows=[]),
        side_by_side("Months", months),
        side_by_side("Requests", demand),
        side_by_side("Why: offers of the file", offers),
        *([side_by_side("Limits that are reached", limits)] if limits else []),
        *([side_by_side(f"Check: {checked.weeks} weeks, hour by hour", _checks(checked))] if checked else []),
    ]
    return Report(record=whole, tables=tables, notes=_notes(answer), rows=whole["actions"], of=answer)


def _title(answer: Answer) -> str:
    asked, months, scenarios = answer.asked, len(answer.asked.months), len(answer.asked.scenarios)
    return (
        f"{months} month{'s' if months > 1 else ''} from {asked.months[0]}, {scenarios} "
        f"scenario{'s' if scenarios > 1 else ''}: {answer.cost:,.0f} {asked.currency} expected"
    )


def _alternatives(answer: Answer) -> list[list[Figure]]:
    said = [
        ("this answer", answer.cost),
        ("all on demand", answer.on_demand),
        ("all reserved", answer.reserved),
        ("the answer to the mean demand", answer.mean),
        ("with the scenario known beforehand", answer.certain),
    ]
    return [
        [
            text("", name, left=True),
            Figure("", cost, answer.asked.currency, ",.0f"),
            text("against this", "" if cost is None or cost == answer.cost else f"{cost / answer.cost - 1:+.1%}")
            if answer.cost
            else text("against this", ""),
        ]
        for name, cost in said
    ]


def _count(machines: float) -> str:
    """Machines, whole or not."""
    return f"{machines:,.0f}" if abs(machines - round(machines)) < 1e-6 else f"{machines:,.2f}"


def _action(answer: Answer, path: Path, one: Action) -> list[Figure]:
    asked, pool = answer.asked, answer.asked.pools[one.pool]
    offer = None if one.offer is None else asked.offers[one.offer]
    months = None if offer is None else offer.months
    until = None if one.until is None else asked.months[one.until]
    verb = "release" if one.goes else _VERBS[one.term]
    return [
        Figure("month", asked.months[one.month], "month", left=True),
        Figure("action", verb, "", left=True),
        Figure("machines", one.machines, "machines", _count),
        Figure("kind", pool.kind, "kind", left=True),
        Figure("region", pool.region, "region", left=True),
        Figure("term", one.term, "term", left=True),
        Figure("months", months, "months"),
        Figure("until", until, "until", absent="" if one.goes else "after the end"),
        text(
            "said in", "" if offer is None or one.goes else at_line(path, "offers", offer.row).rpartition("/")[2], True
        ),
    ]


def _month(answer: Answer, place: int) -> list[Figure]:
    asked, bills = answer.asked, answer.bills[place]
    held = float(answer.solved.machines[:, place].sum())
    hired = answer.hired[:, place].sum(axis=0)
    most = float(answer.most_hired[:, place].sum(axis=0).max(initial=0.0))
    come = np.array([(rate[place] * asked.hours).sum(axis=1) for rate in asked.rates])
    lost = np.array([(missed[place] * asked.hours).sum(axis=1) for missed in answer.solved.missed])
    total = float(come.sum(axis=0) @ asked.chance)
    missed = max(float(lost.sum(axis=0) @ asked.chance), 0.0) / total if total else 0.0
    return [
        Figure("month", asked.months[place], "month", left=True),
        Figure("machines_held", held, "held", _count),
        Figure("machines_hired_mean", float(hired @ asked.chance), "hired, mean", ",.2f"),
        Figure("machines_hired_most", most, "most", _count),
        Figure("bill_expected", float(bills @ asked.chance), "bill", ",.0f"),
        Figure("bill_least", float(bills.min()), "least", ",.0f"),
        Figure("bill_most", float(bills.max()), "most", ",.0f"),
        Figure("unserved_share", missed, "unserved", ".2%"),
    ]


def _demand(answer: Answer, place: int) -> list[Figure]:
    asked, stream = answer.asked, answer.asked.streams[place]
    first, last = (asked.rates[place][month].max(axis=1) for month in (0, -1))
    served = {asked.pools[pool].name: share for pool, share in answer.served_by(place).items()}
    return [
        Figure("model", stream.model, "model", left=True),
        Figure("region", stream.region, "from", left=True),
        Figure("requests_per_s_first", float(first @ asked.chance), "requests/s, first", ",.4g"),
        Figure("requests_per_s_last", float(last @ asked.chance), "last", ",.4g"),
        Figure("requests_per_s_last_least", float(last.min()), "least", ",.4g"),
        Figure("requests_per_s_last_most", float(last.max()), "most", ",.4g"),
        Figure("unserved_share", answer.expected_missed(place), "unserved", ".2%"),
        Figure("chance_unserved", answer.chance_missed(place), "chance of any", ".0%"),
        Figure("cost_of_one_more_request", answer.marginal(place), "1,000 more cost", lambda one: f"{1000 * one:,.4g}"),
        Figure("penalty", stream.penalty, "1,000 lost cost", lambda one: f"{1000 * one:,.4g}", absent="not allowed"),
        Figure("served_by", served, "served by", text=", ".join(f"{n} {s:.0%}" for n, s in served.items()), left=True),
    ]


def _reason(answer: Answer, path: Path, one: Reason) -> list[Figure]:
    pool, offer = answer.asked.pools[one.offer.pool], one.offer
    mean = " on average" if offer.flexible else ""
    taken = f"{one.machines:,.2f}{mean}" if offer.flexible else _count(one.machines)
    if one.worth > 1 + 1e-6:
        why = f"at its limit: one more saves {one.worth - 1:.0%} of its price"
    elif one.machines > 1e-6:
        why = "taken"
    elif one.worth > 1 - 1e-6:
        why = "as good as the chosen ones"
    else:
        why = f"too expensive: chosen at {one.worth:.0%} of its price" if one.worth > 0 else "no use"
    return [
        text("said in", at_line(path, "offers", offer.row).rpartition("/")[2], left=True),
        Figure("row", offer.row),
        Figure("kind", pool.kind, "kind", left=True),
        Figure("region", pool.region, "region", left=True),
        Figure("term", offer.term, "term", left=True),
        Figure("months", offer.months, "months"),
        Figure("cost_per_month", offer.cost * offer.ratio, f"{answer.asked.currency} per month", ",.0f"),
        Figure("machines", one.machines, "machines", text=taken),
        Figure("worth", one.worth, "why", text=why, left=True),
    ]


def _binding(path: Path, one: Binding) -> list[Figure]:
    name = one.name if one.name != "unserved" else "models"
    field = (name,) if one.row is None else (name, one.row)
    unit = {"power": "watt", "budget": "unit of money", "unserved": "request"}.get(one.name, "machine")
    return [
        text("said in", at_line(path, *field).rpartition("/")[2], left=True),
        Figure("limit", one.name, "limit", left=True),
        Figure("row", one.row, "", left=True),
        Figure("months", one.months, "months"),
        Figure("saved_by_one_more", one.saved, "one more saves", ",.4g"),
        Figure("unit", unit, "of one more", left=True),
    ]


def _checks(checked: Checked) -> list[list[Figure]]:
    return [
        [
            Figure("month", one.month, "month", left=True),
            Figure("scenario", one.scenario, "scenario", left=True),
            Figure("chance", one.chance, "chance", ".0%"),
            Figure("bill_planned", one.planned, "bill, planned", ",.0f"),
            Figure("bill_simulated", one.bill, "simulated", ",.0f"),
            Figure("unserved_planned", one.missed_planned, "unserved, planned", ".3%"),
            Figure("unserved_simulated", one.missed, "simulated", ".3%"),
            Figure("interruptions", one.interruptions, "interruptions", ",.4g"),
        ]
        for one in checked.rows
    ]


def _notes(answer: Answer) -> list[str]:
    asked, lines = answer.asked, list[str]()
    if not asked.paid:
        lines.append(
            "beyond: prorated: a term counts with its months up to the last one, as if the load went on after it"
        )
    elif answer.beyond:
        lines.append(f"{answer.beyond:,.0f} {asked.currency} of it are paid after the last month (beyond: paid)")
    if answer.stochastic_value is not None:
        lines.append(f"value of the stochastic solution: {answer.stochastic_value:,.0f} {asked.currency}")
    elif len(asked.scenarios) > 1:
        lines.append("the answer to the mean demand does not keep the limits in every scenario")
    if answer.information_value is not None:
        lines.append(f"expected value of perfect information: {answer.information_value:,.0f} {asked.currency}")
    if not answer.whole:
        lines.append(
            "too large a problem for whole numbers everywhere: held machines are whole, replicas and hired machines "
            "may be fractions"
        )
        if answer.rounded_up is not None and answer.cost:
            more = answer.rounded_up / answer.cost
            lines.append(f"rounding each of these up at all times costs {more:.2%} more at most, if stocks have them")
    if answer.gap > 1e-6:
        lines.append(f"a cheaper answer saves {answer.gap:.2%} at most")
    if any(offer.term == "spot" for offer in asked.offers):
        lines.append(
            "spot machines are also paid for while they restart: exp(interruptions x restart) machines per machine "
            "needed"
        )
    return lines


def horizon_picture(answer: Answer) -> Picture:
    """Machines held and hired by month, and the bill with its range."""
    asked = answer.asked
    held = answer.solved.machines
    stacks = {f"{pool.name}, held": held[place] for place, pool in enumerate(asked.pools) if held[place].any()}
    for index, place in enumerate(answer.solved.programme.flexibles):
        offer = asked.offers[place]
        mean = answer.hired[index] @ asked.chance
        if mean.any():
            name = f"{asked.pools[offer.pool].name}, {offer.term}"
            stacks[name] = stacks.get(name, np.zeros(len(asked.months))) + mean
    bills = answer.bills
    return steps_of_months(
        asked.months, stacks, (bills.min(axis=1), bills @ asked.chance, bills.max(axis=1)), asked.currency
    )
