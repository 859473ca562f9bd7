"""``inferplan plot``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import numpy as np

from inferplan.answers.sweep import parse_values
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_model
from inferplan.cli.options import deployment_options, load_options, picture
from inferplan.errors import UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.reports import plots


def _single(request: Request, load: StaticLoad) -> Estimate:
    return estimate(assemble(request), load)


def _quants(request: Request) -> list[str | None]:
    return [*parse_values(request.quant or "")] or [None]


def _memory(request: Request, load: StaticLoad) -> Any:
    stacks = {}
    for gpu in parse_values(request.gpu):
        for quant in _quants(request):
            deployment = assemble(replace(request, gpu=gpu, quant=quant))
            label = f"{gpu}, {quant or 'native'}"
            stacks[label] = Estimate(deployment=deployment, load=load).footprint
    return plots.memory_stack(stacks)


def _tradeoff(request: Request, load: StaticLoad, slo: float | None) -> Any:
    curves = []
    for gpu in parse_values(request.gpu):
        for quant in _quants(request):
            deployment = assemble(replace(request, gpu=gpu, quant=quant))
            most = Estimate(deployment=deployment, load=load).footprint.max_batch()
            batch = np.unique(np.round(np.geomspace(1, max(float(most), 1.0), 24)))
            result = Estimate(deployment=deployment, load=replace(load, batch=batch))
            rate = np.asarray(result.output_rate) / deployment.parallel.devices
            curves.append(plots.Curve(label=f"{gpu}, {quant or 'native'}", x=rate, y=result.tpot))
    title = f"{request.model}: static batches, {load.prompt:.0f} tokens in, {load.output:.0f} out"
    return plots.tradeoff(curves, title, slo)


def _kv(request: Request, _: StaticLoad) -> Any:
    return plots.kv_context([load_model(name) for name in parse_values(request.model)])


_DRAW: dict[str, Callable[[Request, StaticLoad], Any]] = {
    "roofline": lambda request, load: plots.roofline(_single(request, load)),
    "operators": lambda request, load: plots.time_by_operator(_single(request, load)),
    "memory": _memory,
    "kv": _kv,
}
_GENERATED = ("kv", "tradeoff", "rate", "timeline")
KINDS = (*_DRAW, "tradeoff", "rate", "timeline")


def _against_rate(request: Request, load: StaticLoad, slo: float | None) -> Any:
    from inferplan.planning.demand import Demand
    from inferplan.planning.grid import axes_for
    from inferplan.planning.passes import priced_grid
    from inferplan.traffic.requests import Lengths

    demand = Demand(prompt=Lengths(mean=float(load.prompt)), output=Lengths(mean=float(load.output)), rate=1.0)
    curves = []
    for gpu in parse_values(request.gpu):
        for quant in _quants(request):
            deployment = assemble(replace(request, gpu=gpu, quant=quant))
            budget = deployment.engine.defaults.tier(deployment.hardware).token_budget
            found = priced_grid(deployment, demand, 95.0, axes_for(deployment, [budget]))
            alive = found.possible[:, 0]
            order = np.argsort(found.rate[alive, 0])
            rate, ttft = found.rate[alive, 0][order], found.ttft[alive, 0][order]
            curves.append(plots.Curve(label=f"{gpu}, {quant or 'native'}, p95", x=rate, y=ttft))
    title = f"{request.model}: {load.prompt:.0f} tokens in, {load.output:.0f} out, one replica, closed form"
    return plots.against_rate(curves, title, slo)


def _timeline(request: Request, load: StaticLoad, rate: float | None) -> Any:
    from inferplan.serving.simulator import Options, simulate
    from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, Traffic

    deployment = assemble(request)
    arrivals = OpenLoop(rate=rate) if rate else ClosedLoop(concurrency=int(load.batch))
    traffic = Traffic(
        arrivals=arrivals,
        prompt=Lengths(mean=float(load.prompt)),
        output=Lengths(mean=float(load.output)),
        requests_count=int(max(200, 4 * float(load.batch))),
    )
    result = simulate(deployment, traffic, None, Options(timeline=True))
    rows = np.array(list(result.meters[0].timeline or []))
    start = rows[:, 0]
    tracks = {
        "decodes": (start, rows[:, 3]),
        "prompt tokens\na step": (start, rows[:, 4]),
        "waiting": (start, rows[:, 5]),
        "cache in use": (start, rows[:, 6]),
    }
    load_text = f"{rate:g} requests/s" if rate else f"{load.batch:.0f} user{'s' if load.batch > 1 else ''}"
    return plots.timeline(tracks, f"{deployment.describe()}: {load_text}")


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


@click.command("plot")
@click.argument("kind", type=click.Choice(KINDS))
@deployment_options
@load_options
@click.option("--slo", metavar="TIME", help="tradeoff, rate: a line at this latency, such as 40ms.")
@click.option("--rate", type=float, help="timeline: requests a second [--batch users instead].")
@click.option("-o", "file", required=True, metavar="FILE", callback=picture, help="PNG, SVG or PDF, by suffix.")
def plot_command(kind: str, request: Request, load: StaticLoad, file: str, **values: Any) -> None:
    """Draws a picture into a file; it can be read on a light and on a dark background.

    roofline: the operators of both phases. operators: time by operator. memory: where a device's memory goes
    (--gpu and --quant take comma lists). kv: cache against context (MODEL takes a comma list). tradeoff: time per token
    against throughput over the batch (--gpu and --quant take comma lists). rate: TTFT p95 against the request rate.
    timeline: batch, prompts, queue and cache over a simulation of --rate, or of --batch users.

    Example: inferplan plot roofline llama-3.1-8b --gpu h100-sxm --batch 16 -o roofline.png
    """
    if not request.gpu and kind != "kv":
        raise UsageError("--gpu is missing", hint="--gpu h100-sxm")
    _require_generation(kind, request)
    limit = parse_time(values["slo"], "--slo")
    special = {
        "tradeoff": lambda: _tradeoff(request, load, limit),
        "rate": lambda: _against_rate(request, load, limit),
        "timeline": lambda: _timeline(request, load, values["rate"]),
    }
    plots.save(special[kind]() if kind in special else _DRAW[kind](request, load), file)
    click.echo(f"written to {file}", err=True)


for _parameter in plot_command.params:
    if _parameter.name == "gpu":  # the cache of a model needs no device
        _parameter.required = False


def parse_time(text: str | None, option: str) -> float | None:
    """Seconds of a text such as ``40ms``. Raises ``UsageError`` that names the option."""
    from inferplan.units import parse_quantity

    try:
        return None if text is None else parse_quantity(text, "seconds")
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
