"""Each kind of result: the line that ``repr`` is, and the report that a notebook shows as HTML."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from html import escape
from itertools import islice
from typing import Any

import numpy as np

from inferplan.answers.compare import Comparison
from inferplan.answers.cost import BatchCost, Cost, Energy
from inferplan.answers.explain import Explanation
from inferplan.answers.fit import Fits, Fitting
from inferplan.answers.fit_models import ModelsThatFit
from inferplan.answers.fit_owned import OwnedFits
from inferplan.answers.recipe import Recipe
from inferplan.answers.sweep import Sweep
from inferplan.errors import printable
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.figures import record
from inferplan.planning.plan import Plan
from inferplan.reports.compare import comparison_report
from inferplan.reports.cost import batch_cost_report, cost_energy_record, cost_energy_table, cost_record, cost_table
from inferplan.reports.emit import Emitted
from inferplan.reports.estimate import deployment_record
from inferplan.reports.explain import explanation_report
from inferplan.reports.fit import memory_report, options_report
from inferplan.reports.fit_models import models_report
from inferplan.reports.fit_owned import owned_report
from inferplan.reports.plan import plan_report
from inferplan.reports.plan_figures import candidates
from inferplan.reports.recipe import recipe_report
from inferplan.reports.simulation import simulation_report
from inferplan.reports.sweep import sweep_report
from inferplan.reports.techniques import served_report
from inferplan.reports.validation import files_report
from inferplan.serving.result import SimulationResult
from inferplan.table import Report, Table, flatten
from inferplan.units import format_time
from inferplan.validation.files import Validation
from inferplan.validation.score import score

MOST_ROWS = 100
"""Rows of a table that a notebook shows; the rest is in ``to_frame``."""


@singledispatch
def report_of(result: Any) -> Report:
    """What the command prints of a result. Raises ``TypeError`` for what is none."""
    raise TypeError(f"{type(result).__name__} is no result")


@singledispatch
def line_of(result: Any) -> str:
    """What a result is, and its main figures."""
    raise TypeError(f"{type(result).__name__} is no result")


report_of.register(Estimate, served_report)
report_of.register(Comparison, comparison_report)
report_of.register(Sweep, sweep_report)
report_of.register(Recipe, recipe_report)
report_of.register(Plan, plan_report)
report_of.register(SimulationResult, simulation_report)
report_of.register(Fits, options_report)
report_of.register(Fitting, memory_report)
report_of.register(OwnedFits, owned_report)
report_of.register(ModelsThatFit, models_report)
report_of.register(BatchCost, batch_cost_report)
report_of.register(Explanation, explanation_report)
report_of.register(Validation, files_report)


@report_of.register
def _(found: Deployment) -> Report:
    record = deployment_record(found)
    facts = [[name.replace("_", " "), str(value)] for name, value in flatten(record).items() if value is not None]
    return Report(record=record, tables=[Table(title=found.describe(), columns=["", ""], rows=facts)])


@report_of.register
def _(found: Cost) -> Report:
    return Report(record=cost_record(found), tables=[cost_table(found)])


@report_of.register
def _(found: Energy) -> Report:
    return Report(record=cost_energy_record(found), tables=[cost_energy_table(found)])


@report_of.register
def _(found: Emitted) -> Report:
    record = {"target": found.target, "text": found.text, "notes": list(found.notes)}
    return Report(record=record, notes=[f"note: {note}" for note in found.said])


@line_of.register
def _(found: Deployment) -> str:
    return found.describe()


@line_of.register
def _(found: Estimate) -> str:
    load, what = found.load, found.deployment.describe()
    if any(np.ndim(value) for value in (load.batch, load.prompt, load.output)):
        return f"{what}, a grid of batches"
    if found.deployment.model.encodes:
        return f"{what}, batch {load.batch:.0f}: {format_time(float(found.e2el))}"
    tpot = f", TPOT {format_time(float(found.tpot))}" if float(load.output) > 1 else ""
    rate = f"{float(found.output_rate):,.0f} output tokens/s"
    return f"{what}, {load.describe()}: TTFT alone {format_time(float(found.ttft))}{tpot}, {rate}"


@line_of.register
def _(found: Comparison) -> str:
    return f"{len(found.candidates)} candidates: {', '.join(one.label for one in found.candidates)}"


@line_of.register
def _(found: Sweep) -> str:
    count = len(found.columns)
    return without_figures(found) or f"{count:,} point{'s' if count != 1 else ''}"


def without_figures(found: Sweep) -> str:
    """How many points of a sweep do not run, and why; empty where all do."""
    refused = found.refused
    if not refused:
        return ""
    reasons = "; ".join(f"{status} ({count:,})" for status, count in refused.most_common(3))
    more = f"; {len(refused) - 3} other reasons" if len(refused) > 3 else ""
    return f"{refused.total():,} of {len(found.columns):,} points do not run: {reasons}{more}"


@line_of.register
def _(found: Recipe) -> str:
    names = ", ".join(name for name, _ in found.steps()[1:])
    return f"{found.base.deployment.describe()}: x {found.total:.3g} with {names}"


@line_of.register
def _(found: Plan) -> str:
    return plan_report(found).headline.partition(". ")[0]


@line_of.register
def _(found: SimulationResult) -> str:
    record = found.to_dict()
    times = ", ".join(
        f"{name} p95 {format_time(record[key]['p95'])}"
        for key, name in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"))
        if record[key]["p95"] is not None
    )
    return f"{found.conditions.get('deployment', 'a trace')}: {found.verdict}, {times or 'no latencies'}"


@line_of.register
def _(found: Fitting) -> str:
    return f"{found.deployment.describe()} holds {found.requests:,} x {found.context:,} tokens"


@line_of.register
def _(found: Fits) -> str:
    load = f"{found.asked.held:,} x {found.context:,} tokens"
    return f"{found.model.name}: {len(found.fitting)} of {len(found.options)} GPUs and formats hold {load}"


@line_of.register
def _(found: OwnedFits) -> str:
    load = f"{found.asked.held:,} x {found.context:,} tokens"
    return f"{found.model.name}: {len(found.fitting)} of {len(found.options)} ways on {found.have} hold {load}"


@line_of.register
def _(found: ModelsThatFit) -> str:
    return f"{len(found.fitting)} of {len(found.models)} models on file fit {found.have}"


@line_of.register
def _(found: Cost) -> str:
    tokens = f", {found.per_million_output:,.4f} per million output tokens" if found.rates.output else ""
    return f"{found.per_hour:,.2f} {found.bill.offer.currency} per hour{tokens}"


@line_of.register
def _(found: Energy) -> str:
    return f"{found.watts / 1e3:,.2f} kW, {found.per_token:,.3f} J per token"


@line_of.register
def _(found: BatchCost) -> str:
    return f"{line_of(found.result.deployment)}, batch {found.result.load.batch:,.0f}: {line_of(found.cost)}"


@line_of.register
def _(found: Explanation) -> str:
    return f"{found.name} = {found.shown} = {found.formula}"


@line_of.register
def _(found: Validation) -> str:
    if found.logs:
        return f"{found.title}: {sum(len(log.lines) for log in found.logs)} quantities"
    scores = {metric: score(found.scored, metric) for metric in ("ttft", "tpot")}
    errors = ", ".join(f"{metric.upper()} {one.mape:.1%}" for metric, one in scores.items() if one is not None)
    answered = sum(one.prediction is not None for one in found.scored)
    return f"{found.title}: {answered} of {len(found.scored)} rows, mean error {errors or 'unknown'}"


@line_of.register
def _(found: Emitted) -> str:
    return f"{found.target} for {found.described}: {len(found.text.splitlines())} lines; str() is the text"


def short(result: Any) -> str:
    """``repr`` of a result."""
    return printable(f"<{type(result).__name__}: {' '.join(line_of(result).split())}>")


def record_of(result: Any) -> dict[str, Any]:
    """The record that the command prints of a result as JSON."""
    return report_of(result).record


@singledispatch
def rows_of(result: Any) -> list[dict[str, Any]]:
    """The rows that the command prints of a result as CSV. Raises ``TypeError`` for what is none."""
    return report_of(result).flat_rows()


@rows_of.register
def _(found: Plan) -> list[dict[str, Any]]:
    return [record(row) for row in candidates(found)]


def html_of(result: Any) -> str:
    """The report of a result as HTML that takes its colours from the page around it; every text is escaped."""
    above = without_figures(result) if isinstance(result, Sweep) else ""
    notice = f'<p style="font-weight:bold">{_text(above)}</p>' if above else ""
    code = f'<pre style="overflow-x:auto">{_text(result.text)}</pre>' if isinstance(result, Emitted) else ""
    return f'<div class="inferplan">{notice}{code}{"".join(_pieces(report_of(result)))}</div>'


def _pieces(report: Report) -> Iterator[str]:
    for table in report.tables:
        yield from _table(table)
    if report.notes:
        lines = "<br>".join(_text(note) for note in report.notes)
        yield f'<p style="font-size:smaller">{lines}</p>'


_LEFT, _RIGHT = (f'style="text-align:{side}"' for side in ("left", "right"))


def _table(table: Table) -> Iterator[str]:
    sides = [_RIGHT if column in table.right else _LEFT for column in table.columns]
    yield '<table cellpadding="4" style="border-collapse:collapse">'
    yield f'<caption style="text-align:left;font-weight:bold;caption-side:top">{_text(table.title)}</caption>'
    if any(table.columns):
        yield f"<thead><tr>{_cells('th', table.columns, sides)}</tr></thead>"
    yield "<tbody>"
    for row in islice(table.rows, MOST_ROWS):
        yield f"<tr>{_cells('td', row, sides)}</tr>"
    yield "</tbody></table>"
    if len(table.rows) > MOST_ROWS:
        yield f"<p>{len(table.rows) - MOST_ROWS:,} more rows: to_frame() has all of them</p>"


def _cells(tag: str, texts: Any, sides: list[str]) -> str:
    return "".join(f"<{tag} {side}>{_text(text)}</{tag}>" for text, side in zip(texts, sides))


def _text(text: str) -> str:
    """Escaped, without control characters and empty lines."""
    return escape(printable(text)).replace("\n\n", "\n")
