"""The pictures of a plan's page, each of figures that stand in its tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from inferplan.estimate.memory import Footprint
from inferplan.planning.demand import METRIC_NAMES, percentile_of
from inferplan.planning.option import PlanOption
from inferplan.planning.plan import Plan
from inferplan.planning.search import pareto
from inferplan.planning.verify import Verified
from inferplan.reports import plots
from inferplan.reports.plan import BOTTLENECKS
from inferplan.reports.plan_figures import alike_steps, devices, quants, replicas_given, shape
from inferplan.units import HOURS_PER_MONTH, format_bytes, format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOADS = np.linspace(0.5, 1.5, 201)
"""Of the load asked for: where the picture of replicas is drawn."""


_SAFETY = (
    "The least monthly bill that keeps each limit with this chance, among options with a known error. The dark bar is "
    "at the confidence of the plan. 0.5 is the prediction itself."
)


class Drawing(NamedTuple):
    """A picture of the page: what it shows, what to see in it, and its SVG."""

    title: str
    caption: str
    svg: str


def drawings(plan: Plan) -> list[Drawing]:
    """The pictures of the page. Raises ``MissingExtraError`` without matplotlib."""
    return [Drawing(title, caption, _inked(plots.svg(figure))) for title, caption, figure in _figures(plan)]


def plan_figures_by_name(plan: Plan) -> Iterator[tuple[str, Figure]]:
    """The same as figures, by a name in small letters."""
    return ((title.lower(), figure) for title, _, figure in _figures(plan))


def _inked(svg: str) -> str:
    """Text and axes in the colour of the page's own text, light or dark, instead of a grey between them."""
    return re.sub(re.escape(plots.INK), "currentColor", svg, flags=re.IGNORECASE)


def _figures(plan: Plan) -> Iterator[tuple[str, str, Figure]]:
    option = plan.option
    if (figure := _costs(plan)) is not None:
        monthly = "The bill per month, as in the tables; every bar keeps the limits in simulation."
        yield "Cost", monthly if option.hours is None else "The bill of the whole job, by formulas.", figure
    if (figure := _safety(plan)) is not None:
        yield "Cost of safety", _SAFETY, figure
    if not plan.question.demand.offline:
        yield from _under_load(plan)
    footprint = _footprint(option, plan)
    yield "Memory", _memory_words(plan, footprint), plots.memory_stack({option.deployment.hardware.name: footprint})
    if not option.deployment.model.encodes:
        yield (
            "Frontier",
            "The most output tokens/s per GPU at each speed per user, by GPU in its best format, in closed form. "
            "The ring is the plan, which buys no more than the load needs.",
            _frontier(plan),
        )


def _costs(plan: Plan) -> Figure | None:
    """The plan, the one at the other confidence and the alternatives; nothing without two prices in one currency."""
    named: list[tuple[str, Verified]] = [("the plan", plan.best)]
    named += [(f"at confidence {plan.other_confidence:g}", plan.other)] if plan.other is not None else []
    named += [("in its own format", plan.native)] if plan.native is not None else []
    named += [("error not known", plan.unknown)] if plan.unknown is not None else []
    named += [("alternative", found) for found in plan.alternatives]
    hours = 1.0 if plan.option.hours is not None else HOURS_PER_MONTH
    bars = [
        (
            f"{why}: {devices(found.option)} in {quants(found.option)}{_told_apart(found.option, plan)}",
            found.option.cost * hours,
        )
        for why, found in named
        if found.option.cost is not None
    ]
    if len(bars) < 2 or plan.option.tariff is None:
        return None
    unit = plan.option.tariff.currency + (" in total" if plan.option.hours is not None else " per month")
    return plots.bars(bars, unit)


def _told_apart(option: PlanOption, plan: Plan) -> str:
    """The division where another bar has the same devices and format."""
    own = option is not plan.option and (devices(option), quants(option)) == (devices(plan.option), quants(plan.option))
    return f", {shape(option)}" if own else ""


def _safety(plan: Plan) -> Figure | None:
    """The least cost at each confidence; nothing where fewer than two have one."""
    kept = [alike for alike in alike_steps(plan) if alike[0].option is not None]
    if sum(map(len, kept)) < 2 or plan.option.tariff is None:
        return None
    bars = [
        (f"up to {alike[-1].confidence:g}: {devices(option)}", alike[0].cost * HOURS_PER_MONTH)
        for alike in kept
        if (option := alike[0].option) is not None
    ]
    first = next((at for at, alike in enumerate(kept) if plan.confidence in [one.confidence for one in alike]), 0)
    return plots.bars(bars, f"{plan.option.tariff.currency} per month, by confidence", first)


def _under_load(plan: Plan) -> Iterator[tuple[str, str, Figure]]:
    """What other loads would need and how the latencies go with the load: the table's own figures, and between."""
    unit = "users" if plan.question.demand.users is not None else "requests per second"
    needed = [plan.replicas_for(float(factor)) for factor in _LOADS]
    counts = [float(count) for count in needed if count is not None]
    if plan.capacity is not None and len(counts) == len(needed):
        loads = _LOADS * plan.load
        marked = [(row["load"] * plan.load, float(row["replicas_needed"])) for row in plan.sensitivity]
        own = sum(plan.option.pools or (plan.option.replicas,))
        yield (
            "Replicas against load",
            f"{replicas_given(plan).capitalize()}, so that they are at most "
            f"{plan.question.sizing.utilisation:.0%} busy; the line across is the plan, the dots are in the table.",
            plots.steps((loads, counts), marked, float(own), (unit, "replicas")),
        )
    runs = sorted([(1.0, plan.best.achieved, plan.best.verdict)] + [_run(plan, row) for row in plan.sensitivity])
    kept = [(load, achieved) for load, achieved, verdict in runs if verdict != "overloaded"]
    left = len(runs) - len(kept)
    for name, limit in plan.question.slo.limits.items():
        values = [achieved[name] for _, achieved in kept]
        yield (
            f"{METRIC_NAMES[name]} against load",
            f"{METRIC_NAMES[name]} {percentile_of(plan.question.slo)} of the plan's {shape(plan.option)}, simulated at "
            f"the loads of the table; the dashed line is the limit of {format_time(limit, 3)}."
            + (f" At {left} of them it is overloaded." if left else ""),
            plots.against_load(
                plots.Curve(label="simulated", x=[load * plan.load for load, _ in kept], y=values),
                limit,
                (unit, METRIC_NAMES[name]),
            ),
        )


def _run(plan: Plan, row: dict[str, float]) -> tuple[float, dict[str, float], str]:
    return row["load"], {name: row[f"{name}_s"] for name in plan.question.slo.limits}, str(row["verdict"])


def _memory_words(plan: Plan, footprint: Footprint) -> str:
    used = float(np.max(footprint.total))
    free = footprint.usable - used
    why = BOTTLENECKS[plan.binding]
    return (
        f"One device of the plan at its capacity: {format_bytes(used)} of {format_bytes(footprint.usable)} are used. "
        + (
            f"The other {format_bytes(free)} stay free: the first limit reached is {why}."
            if free > 0.05 * footprint.usable
            else ""
        )
    ).strip()


def _footprint(option: PlanOption, plan: Plan) -> Footprint:
    demand = plan.question.demand
    total = demand.prompt.average + demand.output.average / 2
    return Footprint(
        deployment=option.deployment, batch=option.concurrency, prompt=demand.prompt.average, context=total
    )


def _frontier(plan: Plan) -> Figure:
    chosen = (plan.option.per_user, plan.option.per_device)
    return plots.frontier_figure(frontier_curves(plan), chosen, plan.question.demand.describe())


def frontier_curves(plan: Plan) -> list[plots.Curve]:
    """The most output tokens/s of one device at each output rate of one user [tokens/s], by GPU in its best format, in
    closed form: the six that reach most."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for _, grid, tariff in plan.searched.grids:
        alive = grid.possible
        if not alive.any():
            continue
        bare = grid.deployment.calibration.basis == "roofline"
        name = grid.deployment.hardware.name + ("" if tariff else ", no price") + (", roofline" if bare else "")
        rate = grid.rate * plan.question.demand.output.average / grid.devices
        curves.setdefault(name, []).extend(zip((1 / grid.tpot[alive]).tolist(), rate[alive].tolist()))
    drawn = []
    for name, points in curves.items():
        user, device = np.array(points).T
        kept = pareto(user, device)
        drawn.append(plots.Curve(label=name, x=user[kept], y=device[kept]))
    drawn.sort(key=lambda curve: -float(np.max(np.asarray(curve.y))))
    return drawn[:6]
