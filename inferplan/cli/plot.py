"""``inferplan plot``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import numpy as np

from inferplan import plots
from inferplan.assemble import Request, assemble
from inferplan.catalog import load_model
from inferplan.cli.options import deployment_options, load_options
from inferplan.errors import UsageError
from inferplan.estimate import Estimate, StaticLoad, estimate
from inferplan.sweep import parse_values


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
KINDS = (*_DRAW, "tradeoff")


@click.command("plot")
@click.argument("kind", type=click.Choice(KINDS))
@deployment_options
@load_options
@click.option("--slo", metavar="TIME", help="tradeoff: a line at this time per output token, such as 40ms.")
@click.option("-o", "file", required=True, metavar="FILE", help="PNG, SVG or PDF, by suffix.")
def plot_command(kind: str, request: Request, load: StaticLoad, slo: str | None, file: str) -> None:
    """A picture into a file, readable on white and on dark.

    roofline: operators of both phases under the roof. operators: time by operator. memory: where a device's memory goes
    (--gpu and --quant take comma lists). kv: cache against context (MODEL takes a comma list). tradeoff: time per token
    against throughput over the batch (--gpu and --quant take comma lists).

    Example: inferplan plot roofline llama-3.1-8b --gpu h100-sxm --batch 16 -o roofline.png
    """
    if not request.gpu and kind != "kv":
        raise UsageError("--gpu is missing", hint="--gpu h100-sxm")
    limit = parse_time(slo, "--slo")
    plots.save(_tradeoff(request, load, limit) if kind == "tradeoff" else _DRAW[kind](request, load), file)
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
