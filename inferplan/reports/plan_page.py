"""The capacity-planning report: one self-contained HTML page, or Markdown, to send on."""

from __future__ import annotations

import base64
import datetime
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from inferplan import __version__
from inferplan.estimate.memory import Footprint
from inferplan.extras import require
from inferplan.planning.demand import percentile_of
from inferplan.planning.formulas import plan_formulas
from inferplan.planning.grid import axes_for
from inferplan.planning.infeasible import METRIC_NAMES
from inferplan.planning.option import Option
from inferplan.planning.passes import priced_grid
from inferplan.planning.plan import Plan
from inferplan.planning.search import pareto
from inferplan.reports import plots
from inferplan.reports.plan import plan_report
from inferplan.reports.plan_notes import answer, notes
from inferplan.reports.plan_terms import plan_terms
from inferplan.table import Report, render
from inferplan.terms import Term
from inferplan.units import format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_SCREENING = "The closed form of one replica loaded to its limits, which screens; what simulation says is above."


class Drawing(NamedTuple):
    """A picture of the page: what it shows, and its SVG."""

    title: str
    caption: str
    svg: str


def drawings(plan: Plan) -> list[Drawing]:
    """The pictures of the page. Raises ``MissingExtraError`` without matplotlib."""
    option = plan.option
    apart = ", which here does prompts and decodes together: the plan has them apart" if option.pools else ""
    memory = plots.memory_stack({option.deployment.hardware.name: _footprint(option, plan)})
    frontier = Drawing(
        title="Frontier",
        caption="The most output tokens a second and GPU at each speed for a user, by GPU; the ring is the plan.",
        svg="" if option.deployment.model.encodes else plots.svg(_frontier(plan)),
    )
    return [
        *([frontier] if frontier.svg else []),
        Drawing(
            title="Latency against rate",
            caption=f"Closed form: TTFT at the percentile asked for as the rate of one replica grows{apart}.",
            svg=plots.svg(_against_rate(plan)),
        ),
        Drawing(title="Memory", caption="One device of the plan at its capacity.", svg=plots.svg(memory)),
    ]


def _footprint(option: Option, plan: Plan) -> Footprint:
    demand = plan.question.demand
    total = demand.prompt.average + demand.output.average / 2
    return Footprint(
        deployment=option.deployment, batch=option.concurrency, prompt=demand.prompt.average, context=total
    )


def _frontier(plan: Plan) -> Figure:
    question = plan.question
    curves: dict[str, list[tuple[float, float]]] = {}
    for _, grid, tariff in plan.searched.grids:
        alive = grid.possible
        if not alive.any():
            continue
        bare = grid.deployment.calibration.basis == "roofline"
        name = grid.deployment.hardware.name + ("" if tariff else ", no price") + (", roofline" if bare else "")
        rate = grid.rate * question.demand.output.average / grid.devices
        curves.setdefault(name, []).extend(zip((1 / grid.tpot[alive]).tolist(), rate[alive].tolist()))
    drawn = []
    for name, points in curves.items():
        user, device = np.array(points).T
        kept = pareto(user, device)
        drawn.append(plots.Curve(label=name, x=user[kept], y=device[kept]))
    drawn.sort(key=lambda curve: -float(np.max(np.asarray(curve.y))))
    chosen = (plan.option.per_user, plan.option.per_device)
    return plots.frontier(drawn[:6], chosen, question.demand.describe())


def _against_rate(plan: Plan) -> Figure:
    option, question = plan.option, plan.question
    axes = axes_for(option.deployment, [option.budget])
    grid = priced_grid(option.deployment, question.demand, question.slo.percentile, axes, option.speculation)
    alive = grid.possible[:, 0]
    order = np.argsort(grid.rate[alive, 0])
    rate, ttft = grid.rate[alive, 0][order], grid.ttft[alive, 0][order]
    curve = plots.Curve(label=f"one replica, {percentile_of(question.slo)}", x=rate, y=ttft)
    return plots.against_rate([curve], option.deployment.describe(), question.slo.ttft)


def html_document(plan: Plan, command: str) -> str:
    """The report as one HTML page that loads nothing from anywhere. Raises ``MissingExtraError`` without Jinja."""
    require("report", "a page")
    from jinja2 import Environment, StrictUndefined

    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
        resources.files("inferplan.reports").joinpath("page.html.j2").read_text(encoding="utf-8")
    )
    return page.render(
        title=_title(plan),
        question=_question(plan),
        answer=answer(plan),
        tables=plan_report(plan).tables,
        drawings=drawings(plan),
        rests_on=[*notes(plan), *assumptions(plan)],
        formulas=plan_formulas(plan.option.deployment),
        terms=plan_terms(plan),
        screening=_SCREENING,
        command=command,
        version=__version__,
        date=datetime.date.today(),
    )


def assumptions(plan: Plan) -> list[str]:
    """What was taken for granted."""
    question = plan.question
    demand = question.demand
    kinds = {"poisson": "Poisson arrivals", "constant": "evenly spaced arrivals"}
    kind = kinds.get(demand.arrivals, f"{demand.arrivals} arrivals of burstiness {demand.burstiness:g}")
    arrivals = "one request at a time each" if demand.users is not None else kind
    lines = [
        f"lengths: prompt {demand.prompt.kind} {demand.prompt.average:,.0f}, output {demand.output.kind} "
        f"{demand.output.average:,.0f} tokens; {arrivals if not demand.trace else 'arrivals as in the trace'}",
        f"a replica is given at most {question.sizing.utilisation:.0%} of its capacity; {question.sizing.spare} spare",
        "a latency is conditional on the engine's flags and on the traffic above",
        "prices are those of a moment; energy is that of the devices at full TDP, without the building",
    ]
    drafting = question.space.drafting_of(plan.option.speculation)
    if drafting is not None:
        lines.append(f"speculative decoding: {drafting.describe()}" + (f"; {drafting.basis}" if drafting.basis else ""))
    if plan.option.pools:
        lines.append("prompts and decodes on pools of their own; the cache moves over the scale-out link")
    return lines


def _question(plan: Plan) -> str:
    question = plan.question
    limits = ", ".join(
        f"{METRIC_NAMES[n]} {percentile_of(question.slo)} under {format_time(v, 3)}"
        for n, v in question.slo.limits.items()
    )
    return f"The question: {question.demand.describe()}" + (f", with {limits}." if limits else ".")


def markdown_document(plan: Plan, command: str) -> str:
    """The report as Markdown, its pictures inside as data."""
    tables = render(Report(record={}, tables=plan_report(plan).tables), "markdown")
    parts = [f"# {_title(plan)}", _question(plan), f"**{answer(plan)}**", tables.strip()]
    for drawing in drawings(plan):
        data = base64.b64encode(drawing.svg.encode()).decode()
        picture = f"![{drawing.title}](data:image/svg+xml;base64,{data})"
        parts.append(f"{picture}\n\n*{drawing.title}. {drawing.caption}*")
    rests_on = [*notes(plan), *assumptions(plan)]
    parts.append("## What the figures rest on\n\n" + "\n".join(f"- {text}" for text in rests_on))
    parts.append(
        "## Formulas\n\n" + "\n".join(f"- {name}: `{text}`" for name, text in plan_formulas(plan.option.deployment))
    )
    parts.append(f"## In numbers\n\n{_SCREENING}\n\n" + "\n".join(_in_numbers(term) for term in plan_terms(plan)))
    parts.append(f"## Made by\n\n    {command}\n\ninferplan {__version__}, {datetime.date.today()}.")
    return "\n\n".join(parts) + "\n"


def _in_numbers(term: Term) -> str:
    return f"- {term.name}: {term.shown} = `{term.numbers}`, which is `{term.formula}`"


def _title(plan: Plan) -> str:
    return f"Capacity plan: {plan.question.space.base.model}"
