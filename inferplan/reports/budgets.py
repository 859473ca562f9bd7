"""Plans under several budgets of thought, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferplan.answers.emit import base_note
from inferplan.errors import InfeasibleError
from inferplan.planning.demand import METRIC_NAMES, limits_in_words, percentile_of
from inferplan.planning.plan import BudgetedPlan
from inferplan.planning.question import Question
from inferplan.reports.plan_figures import devices, launch_line, launch_of, money, shape
from inferplan.reports.plan_notes import basis_line
from inferplan.reports.plan_record import candidate_record
from inferplan.table import Report, Table
from inferplan.units import format_time

_REQUESTS = 1000
"""Requests whose cost is shown together."""
_ANSWER = "answer_ttft"


def budgets_report(question: Question, plans: Sequence[BudgetedPlan]) -> Report:
    """One row a budget: how many thoughts it cuts, what is written, what that takes and costs."""
    names = list(dict.fromkeys((*question.slo.limits, _ANSWER)))
    columns = ["budget", "cut", "tokens before the answer", "devices", "replicas", "cost", "per 1,000 requests"]
    columns += [METRIC_NAMES[name] for name in names]
    asked = limits_in_words(question.slo, ())
    load = f"{question.space.base.model}: {question.demand.loaded()}"
    title = f"{load}, answers of {plans[0].output.answer.average:,.0f} tokens after a thought; {asked}"
    notes = [f"{_named(one)}: {one.found.what}" for one in plans if isinstance(one.found, InfeasibleError)]
    notes += [
        f"latencies are the simulated {percentile_of(question.slo)} at this load; cut: thoughts longer than the budget",
        "the effect of shorter thoughts on the quality of answers is not modelled: measure it (docs/reasoning.md)",
    ]
    found = {_named(one): one.found for one in plans if not isinstance(one.found, InfeasibleError)}
    lines = {budget: basis_line(plan) for budget, plan in found.items()}
    same = len(set(lines.values())) == 1
    notes += dict.fromkeys(line if same else f"budget {budget}: {line}" for budget, line in lines.items())
    rows = [_row(one, names) for one in plans]
    table = Table(title=title, columns=columns, rows=rows, right=frozenset(columns) - {"devices", "replicas"})
    return Report(record={"budgets": [_record(one) for one in plans]}, tables=[table], notes=notes)


def _named(one: BudgetedPlan) -> str:
    """The budget in words."""
    return "none" if one.output.budget is None else f"{one.output.budget:,}"


def _row(one: BudgetedPlan, names: Sequence[str]) -> list[str]:
    head = [_named(one), f"{one.output.cut_share:.1%}", f"{one.output.before[0]:,.0f}"]
    if isinstance(one.found, InfeasibleError):
        return [*head, "no plan", *["-"] * (3 + len(names))]
    option, each = one.found.option, one.cost_per_request
    currency = "" if option.tariff is None else f" {option.tariff.currency}"
    cost = "-" if each is None else f"{each * _REQUESTS:,.3g}{currency}"
    times = [format_time(one.found.best.achieved[name], 3) for name in names]
    return [*head, devices(option), shape(option), money(option), cost, *times]


def _record(one: BudgetedPlan) -> dict[str, Any]:
    """The JSON of one budget: what it does to thoughts, its plan, or why there is none."""
    found = one.found
    plan = infeasible = None
    if isinstance(found, InfeasibleError):
        infeasible = {"what": found.what, "because": found.because}
    else:
        note = base_note(launch_of(found)) or None
        plan = {**candidate_record(found, found.best), "launch": launch_line(found), "launch_note": note}
    return {
        **one.output.describe(),
        "output_tokens_mean": one.output.average,
        "cost_per_request": one.cost_per_request,
        "plan": plan,
        "infeasible": infeasible,
    }
