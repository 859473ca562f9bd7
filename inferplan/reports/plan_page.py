"""The capacity-planning report: one self-contained HTML page, or Markdown, to send on."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Sequence
from importlib import resources
from typing import Any

from inferplan import __version__
from inferplan.extras import require
from inferplan.planning.confidence import MIDDLE
from inferplan.planning.demand import METRIC_NAMES, percentile_of
from inferplan.planning.plan import Plan
from inferplan.reports import plots
from inferplan.reports.glossary import glossary
from inferplan.reports.plan import plan_report
from inferplan.reports.plan_figures import load_of_users, opening
from inferplan.reports.plan_formulas import plan_formulas
from inferplan.reports.plan_notes import (
    alternative,
    assumptions,
    error_unknown,
    key_figures,
    notes,
    recommendation,
    risk,
    sentence,
)
from inferplan.reports.plan_pictures import drawings
from inferplan.reports.plan_terms import plan_terms
from inferplan.table import Report, Table, markdown_text, render
from inferplan.terms import Term
from inferplan.units import format_time

_SCREENING = (
    "The closed form of one replica, loaded to its limits. It only screens candidates; the simulated figures are above."
)
_SURVIVES = "the limits are kept, in simulation, while replicas are lost, and whole instances are paid for."
_MORE = "whole instances are paid for and filled, and the limits are kept in simulation."


def html_document(plan: Plan, command: str) -> str:
    """The report as one HTML page that loads nothing from anywhere. Raises ``MissingExtraError`` without Jinja."""
    require("report", "a page")
    from jinja2 import Environment, StrictUndefined

    tables = plan_report(plan).tables
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
        resources.files("inferplan.reports").joinpath("page.html.j2").read_text(encoding="utf-8")
    )
    return page.render(
        **_parts(plan),
        tables=tables,
        glossary=glossary(_words(plan, tables)),
        key_figures=key_figures(plan),
        command=command,
        version=__version__,
        date=datetime.date.today(),
    )


def _parts(plan: Plan) -> dict[str, Any]:
    """What both forms of the page say, in their order."""
    other = alternative(plan)
    return {
        "title": _title(plan),
        "question": _question(plan),
        "recommendation": recommendation(plan),
        "risk": risk(plan),
        "alternative": other,
        "alternative_is": "Safer." if plan.confidence == MIDDLE else "Cheaper.",
        "unknown": sentence(error_unknown(plan)),
        "drawings": drawings(plan),
        "rests_on": [*notes(plan), *assumptions(plan)],
        "formulas": plan_formulas(plan.option.deployment),
        "terms": plan_terms(plan),
        "screening": screening(plan),
    }


def _words(plan: Plan, tables: Sequence[Table]) -> str:
    """Everything a reader meets in the tables and the first lines, in which to look for words to explain."""
    cells = [cell for table in tables for row in [[table.title], table.columns, *table.rows] for cell in row]
    return "\n".join([_question(plan), recommendation(plan), risk(plan), *cells, *notes(plan), *assumptions(plan)])


def _question(plan: Plan) -> str:
    question = plan.question
    limits = ", ".join(
        f"{METRIC_NAMES[n]} {percentile_of(question.slo)} under {format_time(v, 3)}"
        for n, v in question.slo.limits.items()
    )
    load, first = load_of_users(plan), opening(plan)[:1]
    asked = f"The question: {question.demand.describe()}" + (f", with {limits}." if limits else ".")
    return " ".join([asked, *(f"{line}." for line in first), *([f"That is {load}."] if load else [])])


def markdown_document(plan: Plan, command: str) -> str:
    """The report as Markdown, its pictures inside as data."""
    said, tables, text = _parts(plan), plan_report(plan).tables, markdown_text
    parts = [f"# {text(said['title'])}", text(said["question"])]
    parts += [f"**{text(said['unknown'])}**"] if said["unknown"] else []
    parts += [f"**{text(said['recommendation'])}**", f"**Risk.** {text(said['risk'])}"]
    parts += [f"**{said['alternative_is']}** {text(said['alternative'])}"] if said["alternative"] else []
    parts.append(render(Report(record={}, tables=tables), "markdown").strip())
    for drawing in said["drawings"]:
        data = base64.b64encode(drawing.svg.replace("currentColor", plots.INK).encode()).decode()
        title = text(drawing.title)
        parts.append(f"![{title}](data:image/svg+xml;base64,{data})\n\n*{title}. {text(drawing.caption)}*")
    words = [f"- {word}: {meant}" for word, meant in glossary(_words(plan, tables))]
    parts.append("## Words\n\n" + "\n".join(words))
    parts.append("## What the figures rest on\n\n" + "\n".join(f"- {text(line)}" for line in said["rests_on"]))
    parts.append("## Formulas\n\n" + "\n".join(f"- {name}: `{formula}`" for name, formula in said["formulas"]))
    parts.append(f"## In numbers\n\n{said['screening']}\n\n" + "\n".join(_in_numbers(term) for term in said["terms"]))
    parts.append(f"## Made by\n\n    {command}\n\ninferplan {__version__}, {datetime.date.today()}.")
    return "\n\n".join(parts) + "\n"


def screening(plan: Plan) -> str:
    """What the terms are, and why the plan has more replicas than their formula says, where it has."""
    needed = plan.replicas_for(1.0)
    if plan.option.pools is not None or needed is None or plan.option.replicas <= needed:
        return _SCREENING
    more = _SURVIVES if plan.best.survival is not None else _MORE
    return f"{_SCREENING} The load needs {needed} replicas; the plan runs {plan.option.replicas}: {more}"


def _in_numbers(term: Term) -> str:
    return f"- {term.name}: {term.shown} = `{term.numbers}`, which is `{term.formula}`"


def _title(plan: Plan) -> str:
    return f"Capacity plan: {plan.question.space.base.model}"
