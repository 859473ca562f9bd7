"""The pictures of ``inferplan plot``: a kind and what it is of, to a matplotlib ``Figure``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, singledispatch
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from inferplan.answers.compare import Comparison
from inferplan.answers.fit import Fitting
from inferplan.answers.recipe import Recipe
from inferplan.answers.sweep import Sweep
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_model
from inferplan.columns import Row
from inferplan.errors import UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.lists import parse_values
from inferplan.planning.demand import Demand
from inferplan.planning.grid import axes_for, load_grid
from inferplan.planning.plan import Plan
from inferplan.reports import plots
from inferplan.reports.plan_pictures import plan_figures_by_name
from inferplan.reports.simulation import timeline_tracks
from inferplan.reports.sweep import AXES, NAMED
from inferplan.reports.validation import scatter
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, Traffic
from inferplan.validation.files import Validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Pictures = dict[str, Callable[["Wanted"], "Figure | None"]]
"""Names to what draws them; that may find nothing to draw."""


class Wanted(NamedTuple):
    """slo: a line at this latency [s]. rate: requests a second of a timeline."""

    slo: float | None = None
    rate: float | None = None


def _single(request: Request, load: StaticLoad) -> Estimate:
    return estimate(assemble(request), load)


def _quants(request: Request) -> list[str | None]:
    return [*parse_values(request.quant or "")] or [None]


def _memory(request: Request, load: StaticLoad, _: Wanted) -> Any:
    stacks = {}
    for gpu in parse_values(request.gpu):
        for quant in _quants(request):
            deployment = assemble(replace(request, gpu=gpu, quant=quant))
            label = f"{gpu}, {quant or 'native'}"
            stacks[label] = Estimate(deployment=deployment, load=load).footprint
    return plots.memory_stack(stacks)


def _tradeoff_curve(label: str, deployment: Deployment, load: StaticLoad) -> plots.Curve:
    """Time per token against throughput, over the batches that fit."""
    most = Estimate(deployment=deployment, load=load).footprint.max_batch()
    batch = np.unique(np.round(np.geomspace(1, max(float(most), 1.0), 24)))
    result = Estimate(deployment=deployment, load=replace(load, batch=batch))
    return plots.Curve(label=label, x=np.asarray(result.output_rate) / deployment.parallel.devices, y=result.tpot)


def _static(load: StaticLoad) -> str:
    return f"static batches, {load.prompt:.0f} tokens in, {load.output:.0f} out"


def _tradeoff(request: Request, load: StaticLoad, wanted: Wanted) -> Any:
    curves = []
    for gpu in parse_values(request.gpu):
        for quant in _quants(request):
            deployment = assemble(replace(request, gpu=gpu, quant=quant))
            curves.append(_tradeoff_curve(f"{gpu}, {quant or 'native'}", deployment, load))
    title = f"{request.model}: {_static(load)}"
    return plots.tradeoff(curves, title, wanted.slo)


def _kv(request: Request, load: StaticLoad, _: Wanted) -> Any:
    return plots.kv_context([load_model(name) for name in parse_values(request.model)])


def _against_rate(request: Request, load: StaticLoad, wanted: Wanted) -> Any:
    demand = Demand(prompt=Lengths(mean=float(load.prompt)), output=Lengths(mean=float(load.output)), rate=1.0)
    curves = []
    for gpu in parse_values(request.gpu):
        for quant in _quants(request):
            deployment = assemble(replace(request, gpu=gpu, quant=quant))
            budget = deployment.engine.defaults.tier(deployment.hardware).token_budget
            found = load_grid(deployment, demand, 95.0, axes_for(deployment, [budget]))
            alive = found.possible[:, 0]
            order = np.argsort(found.rate[alive, 0])
            rate, ttft = found.rate[alive, 0][order], found.ttft[alive, 0][order]
            curves.append(plots.Curve(label=f"{gpu}, {quant or 'native'}, p95", x=rate, y=ttft))
    title = f"{request.model}: {load.prompt:.0f} tokens in, {load.output:.0f} out, one replica, closed form"
    return plots.against_rate(curves, title, wanted.slo)


def _timeline(request: Request, load: StaticLoad, wanted: Wanted) -> Any:
    deployment, rate = assemble(request), wanted.rate
    arrivals = OpenLoop(rate=rate) if rate else ClosedLoop(concurrency=int(load.batch))
    traffic = Traffic(
        arrivals=arrivals,
        prompt=Lengths(mean=float(load.prompt)),
        output=Lengths(mean=float(load.output)),
        requests_count=int(max(200, 4 * float(load.batch))),
    )
    result = simulate(deployment, traffic, None, Options(timeline=True))
    load_text = f"{rate:g} requests/s" if rate else f"{load.batch:.0f} user{'s' if load.batch > 1 else ''}"
    return plots.timeline(timeline_tracks(result.meters[0]), f"{deployment.describe()}: {load_text}")


_DRAW: dict[str, Callable[[Request, StaticLoad, Wanted], Any]] = {
    "roofline": lambda request, load, _: plots.roofline_figure(_single(request, load)),
    "operators": lambda request, load, _: plots.time_by_operator(_single(request, load)),
    "memory": _memory,
    "kv": _kv,
    "tradeoff": _tradeoff,
    "rate": _against_rate,
    "timeline": _timeline,
}
_GENERATED = ("kv", "tradeoff", "rate", "timeline")
KINDS = tuple(_DRAW)


def draw(kind: str, request: Request, load: StaticLoad, wanted: Wanted) -> Figure:
    """The picture of a kind. Comma lists: devices and formats of ``memory``, ``tradeoff`` and ``rate``; models of
    ``kv``.

    Raises ``UsageError`` for a kind that there is not, without a device where one is needed, and for what a model has
    not.
    """
    if kind not in _DRAW:
        raise UsageError(f"no picture named {kind!r}", hint=", ".join(KINDS))
    if not request.gpu and kind != "kv":
        raise UsageError("--gpu is missing", hint="--gpu h100-sxm")
    _require_generation(kind, request)
    figure: Figure = _DRAW[kind](request, load, wanted)
    return figure


def _require_generation(kind: str, request: Request) -> None:
    """Raise ``UsageError`` for a picture of tokens that are generated, or of a cache, where a model has neither."""
    if kind not in _GENERATED:
        return
    for name in parse_values(request.model) if kind == "kv" else [request.model]:
        if load_model(name).encodes:
            raise UsageError(
                f"plot {kind} has nothing to draw of {name}",
                because="it generates nothing and keeps no cache: one pass over a request is all of its work",
                hint="plot roofline, operators or memory; inferplan plan and simulate say what it serves",
            )


@singledispatch
def pictures_of(result: Any) -> Pictures:
    """The pictures of a result by name, the usual one first. Raises ``UsageError`` for what has none."""
    raise UsageError(f"{type(result).__name__} has no picture", hint=f"a result, or one of {', '.join(KINDS)}")


def picture_of(result: Any, kind: str | None, wanted: Wanted) -> Figure:
    """A picture of a result. Raises ``UsageError`` for one that there is not."""
    known = pictures_of(result)
    if kind is not None and kind not in known:
        raise UsageError(f"{type(result).__name__} has no picture named {kind!r}", hint=", ".join(known))
    figure = known[kind or next(iter(known))](wanted)
    if figure is None:
        raise UsageError(f"this {type(result).__name__} has nothing to draw as {kind or next(iter(known))}")
    return figure


@pictures_of.register(Estimate)
def _(result: Estimate) -> Pictures:
    return {
        "roofline": lambda _: plots.roofline_figure(result),
        "operators": lambda _: plots.time_by_operator(result),
        "memory": lambda _: plots.memory_stack({result.deployment.describe(): result.footprint}),
    }


@pictures_of.register(Fitting)
def _(result: Fitting) -> Pictures:
    return {"memory": lambda _: plots.memory_stack({result.deployment.describe(): result.footprint})}


@pictures_of.register(Comparison)
def _(result: Comparison) -> Pictures:
    found = {one.label: one.estimate for one in result.candidates if one.estimate is not None}
    curves = [(label, one.deployment, one.load) for label, one in found.items() if not one.deployment.model.encodes]
    memory: Pictures = {"memory": lambda _: plots.memory_stack({label: one.footprint for label, one in found.items()})}
    if not curves:
        return memory
    return {
        "tradeoff": lambda wanted: plots.tradeoff(
            [_tradeoff_curve(*curve) for curve in curves], _static(result.load), wanted.slo
        ),
        **memory,
    }


@pictures_of.register(Sweep)
def _(result: Sweep) -> Pictures:
    return {"tradeoff": lambda wanted: plots.tradeoff(_curves(result), "throughput and latency", wanted.slo)}


_MOST_CURVES = 12
"""Lines of one picture that can still be told apart."""


def _curves(result: Sweep) -> list[plots.Curve]:
    """A line over the batch for each structure and length. Raises ``UsageError`` for none, and for too many."""
    rows = [row for row in result.rows if row["status"] == "ok" and row.get("tpot_s") is not None]
    held = {axis: {row.get(axis) for row in rows} for axis in AXES if axis != "batch"}
    varied = [axis for axis, values in held.items() if len(values) > 1] or ["gpu"]
    lines: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        lines.setdefault(tuple(row.get(axis) for axis in varied), []).append(row)
    if not 0 < len(lines) <= _MOST_CURVES:
        raise UsageError(f"a picture of {len(lines)} lines", hint=f"1 to {_MOST_CURVES}: fewer values on the axes")
    return [
        plots.Curve(
            label=", ".join(str(value) if axis in NAMED else f"{axis} {value}" for axis, value in zip(varied, key)),
            x=[row["output_tokens_per_s_per_device"] for row in points],
            y=[row["tpot_s"] for row in points],
        )
        for key, points in lines.items()
    ]


@pictures_of.register(Plan)
def _(result: Plan) -> Pictures:
    return {name: partial(_same, figure) for name, figure in plan_figures_by_name(result)}


def _same(figure: Figure, _: Wanted) -> Figure:
    return figure


@pictures_of.register(SimulationResult)
def _(result: SimulationResult) -> Pictures:
    meters = list(result.meters)
    if not meters or not meters[0].timeline:
        raise UsageError("the run kept no timeline", hint="simulate(deployment, traffic, timeline=True)")
    title = str(result.conditions.get("deployment", "a trace"))
    return {"timeline": lambda _: plots.timeline(timeline_tracks(meters[0]), title)}


@pictures_of.register(Recipe)
def _(result: Recipe) -> Pictures:
    return {"waterfall": lambda _: waterfall_of(result)}


def waterfall_of(result: Recipe) -> Figure:
    """The ingredients of a recipe, each with its factor."""
    steps = [(name, outcome.rate) for name, outcome in result.steps()]
    title = f"{result.base.deployment.model.name} on {result.base.deployment.hardware.name}: {result.total:.3g}x"
    return plots.waterfall(steps, title, "output tokens/s per GPU")


@pictures_of.register(Validation)
def _(result: Validation) -> Pictures:
    return {"scatter": lambda _: scatter(result.scored, result.title)}
