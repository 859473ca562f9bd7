"""The capacity-planning report: one self-contained HTML page, or Markdown, to send on."""

from __future__ import annotations

import base64
import datetime
import html
from collections.abc import Callable

import numpy as np

from inferplan import __version__
from inferplan.estimate.memory import Footprint
from inferplan.planning.demand import percentile_of
from inferplan.planning.grid import axes_for, load_grid
from inferplan.planning.infeasible import METRIC_NAMES
from inferplan.planning.option import Option
from inferplan.planning.plan import Plan
from inferplan.reports import plots
from inferplan.reports.plan import money, notes, plan_report
from inferplan.table import Report, Table, render
from inferplan.units import format_time

FORMULAS = [
    ("Step time", "t = overhead + ((flop/(math peak))^p + (bytes/(memory bandwidth))^p)^(1/p), summed over operators"),
    ("Share of steps with a prompt", "s = min(1, B I / ((O - 1) M)), M prompt tokens a step"),
    ("Time per output token", "TPOT = (1 - s) t_decode(B) + s t_mixed(B, M)"),
    ("Rate of a replica", "X = B / ((O - 1) TPOT)"),
    ("Requests in the system", "C = X (TTFT + (O - 1) TPOT)"),
    ("Replicas", "n = ceil(rate / (utilisation X)) + spare"),
    ("Cost of an output token", "bill / (input tokens / 4 + output tokens); an input token is a quarter of it"),
]
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; margin: .6rem 0 1.2rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; background: var(--soft); } .right { text-align: right; }
.answer { font-size: 1.15rem; padding: .9rem 1.1rem; background: var(--soft); border-left: 4px solid #0072B2; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { padding: .7rem; background: var(--soft); overflow-x: auto; white-space: pre-wrap; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; } figcaption { font-size: .85rem; opacity: .75; }
@media print { body { max-width: none; } h2 { break-after: avoid; } figure, table { break-inside: avoid; } }
"""


def answer(plan: Plan) -> str:
    """The plan in one sentence."""
    option, slo = plan.option, plan.question.slo
    times = {name: format_time(value, 3) for name, value in plan.best.achieved.items()}
    held = ", ".join(
        f"{METRIC_NAMES[name]} {percentile_of(slo)} of {times[name]} (limit {format_time(limit, 3)})"
        for name, limit in slo.limits.items()
    )
    bought = f"{option.devices} x {option.deployment.hardware.name} at {money(option)}"
    text = f"{bought}" + (f" for {held}." if held else f", done in {option.hours or 0:,.1f} hours.")
    if plan.holds_at_the_far_end is False:
        text += " Where real latencies are at the slow end of the error band, a limit is missed: measure before buying."
    return text


def drawings(plan: Plan) -> list[tuple[str, str, Callable[[], object]]]:
    """Title, caption and how to draw it, for each picture of the report."""
    option = plan.option
    return [
        (
            "Frontier",
            "For each GPU, the most output tokens a second and GPU at each speed for a user; the ring is the plan.",
            lambda: _frontier(plan),
        ),
        (
            "Latency against rate",
            "Closed form: TTFT at the percentile asked for as the rate of one replica grows"
            + (", which here does prompts and decodes together: the plan has them apart." if option.pools else "."),
            lambda: _against_rate(plan),
        ),
        (
            "Memory",
            "One device of the plan at its capacity.",
            lambda: plots.memory_stack({option.deployment.hardware.name: _footprint(option, plan)}),
        ),
    ]


def _footprint(option: Option, plan: Plan) -> Footprint:
    demand = plan.question.demand
    total = demand.prompt.average + demand.output.average / 2
    return Footprint(
        deployment=option.deployment, batch=option.concurrency, prompt=demand.prompt.average, context=total
    )


def _frontier(plan: Plan) -> object:
    question = plan.question
    curves: dict[str, list[tuple[float, float]]] = {}
    for entry in plan.searched.grids:
        found = entry.grid
        alive = found.possible
        if not alive.any():
            continue
        bare = found.deployment.calibration.basis == "roofline"
        name = found.deployment.hardware.name + ("" if entry.tag else ", no price") + (", roofline" if bare else "")
        rate = found.rate * question.demand.output.average / found.devices
        curves.setdefault(name, []).extend(zip((1 / found.tpot[alive]).tolist(), rate[alive].tolist()))
    drawn = []
    for name, points in curves.items():
        from inferplan.planning.search import pareto

        user, device = np.array(points).T
        kept = pareto(user, device)
        drawn.append(plots.Curve(label=name, x=user[kept], y=device[kept]))
    drawn.sort(key=lambda curve: -float(np.max(np.asarray(curve.y))))
    chosen = (plan.option.per_user, plan.option.per_device)
    return plots.frontier(drawn[:6], chosen, question.demand.describe())


def _against_rate(plan: Plan) -> object:
    option, question = plan.option, plan.question
    axes = axes_for(option.deployment, [option.budget])
    found = load_grid(option.deployment, question.demand, question.slo.percentile, axes, option.speculation)
    alive = found.possible[:, 0]
    order = np.argsort(found.rate[alive, 0])
    rate, ttft = found.rate[alive, 0][order], found.ttft[alive, 0][order]
    curve = plots.Curve(label=f"one replica, {percentile_of(question.slo)}", x=rate, y=ttft)
    return plots.against_rate([curve], option.deployment.describe(), question.slo.ttft)


def html_document(plan: Plan, command: str) -> str:
    """The report as one HTML page that loads nothing from anywhere."""
    report = plan_report(plan)
    esc = html.escape
    figures = "".join(
        f"<figure>{_figure(draw)}<figcaption><b>{esc(title)}.</b> {esc(caption)}</figcaption></figure>"
        for title, caption, draw in drawings(plan)
    )
    tables = "".join(_html_table(table) for table in report.tables)
    rest = "".join(f"<li>{esc(note)}</li>" for note in notes(plan))
    formulas = "".join(f"<tr><td>{esc(name)}</td><td><code>{esc(text)}</code></td></tr>" for name, text in FORMULAS)
    title = f"Capacity plan: {plan.question.space.base.model}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{esc(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{esc(title)}</h1><p>{esc(_question(plan))}</p>"
        f'<p class="answer" id="answer">{esc(answer(plan))}</p>'
        f"<h2>The plan and what it costs</h2>{tables}"
        f"<h2>Pictures</h2>{figures}"
        f"<h2>What the figures rest on</h2><ul>{rest}{_assumptions(plan)}</ul>"
        f"<h2>Formulas</h2><table>{formulas}</table>"
        f"<h2>Made by</h2><pre>{esc(command)}</pre>"
        f"<p>inferplan {__version__}, {datetime.date.today()}.</p></body></html>\n"
    )


def _assumptions(plan: Plan) -> str:
    return "".join(f"<li>{html.escape(text)}</li>" for text in assumptions(plan))


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
    if plan.option.speculation.length and question.space.drafting:
        lines.append(f"speculative decoding: {question.space.drafting.describe()}, the same at every position")
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


def _figure(draw: Callable[[], object]) -> str:
    return plots.svg(draw())  # type: ignore[arg-type]


def _html_table(table: Table) -> str:
    def cell(tag: str, text: str, column: str) -> str:
        style = ' class="right"' if column in table.right else ""
        return f"<{tag}{style}>{html.escape(text)}</{tag}>"

    head = "".join(cell("th", column, column) for column in table.columns)
    body = "".join(
        "<tr>" + "".join(cell("td", text, column) for text, column in zip(row, table.columns)) + "</tr>"
        for row in table.rows
    )
    caption = f"<caption>{html.escape(table.title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def markdown_document(plan: Plan, command: str) -> str:
    """The report as Markdown, its pictures inside as data."""
    report = plan_report(plan)
    body = render(Report(record={}, tables=report.tables), "markdown")
    parts = [f"# Capacity plan: {plan.question.space.base.model}", _question(plan), f"**{answer(plan)}**", body.strip()]
    for title, caption, draw in drawings(plan):
        data = base64.b64encode(_figure(draw).encode()).decode()
        parts.append(f"![{title}](data:image/svg+xml;base64,{data})\n\n*{title}. {caption}*")
    parts.append(
        "## What the figures rest on\n\n" + "\n".join(f"- {text}" for text in [*notes(plan), *assumptions(plan)])
    )
    parts.append("## Formulas\n\n" + "\n".join(f"- {name}: `{text}`" for name, text in FORMULAS))
    parts.append(f"## Made by\n\n    {command}\n\ninferplan {__version__}, {datetime.date.today()}.")
    return "\n\n".join(parts) + "\n"
