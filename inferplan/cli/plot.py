"""``inferplan plot``."""

from __future__ import annotations

from typing import Any

import click

from inferplan.catalog.assemble import Request
from inferplan.cli.declared import gets, quantity
from inferplan.cli.layers import Layered
from inferplan.cli.numbers import Finite
from inferplan.cli.options import deployment_options, picture
from inferplan.cli.unheard import unheard
from inferplan.estimate.load import BatchAsked
from inferplan.reports import plots
from inferplan.reports.pictures import KINDS, Wanted, draw


@click.command("plot", cls=Layered)
@click.argument("kind", type=click.Choice(KINDS))
@deployment_options
@gets(batch=BatchAsked)
@click.option("--slo", metavar="TIME", help="tradeoff, rate: a line at this latency, such as 40ms.")
@click.option("--rate", type=Finite(), help="timeline: requests per second [--batch users instead].")
@click.option("-o", "file", required=True, metavar="FILE", callback=picture, help="PNG, SVG or PDF, by suffix.")
def plot_command(kind: str, request: Request, batch: BatchAsked, file: str, **values: Any) -> None:
    """Draws a picture into a file, for light and dark backgrounds.

    roofline: the operators of both phases. operators: time by operator. memory: where a device's memory goes
    (--gpu and --quant take comma lists). kv: cache against context (MODEL takes a comma list). tradeoff: time per token
    against throughput over the batch (--gpu and --quant take comma lists). rate: TTFT p95 against the request rate.
    timeline: batch, prompts, queue and cache over a simulation with --rate, or with --batch users.

    Example: inferplan plot roofline llama-3.1-8b --gpu h100-sxm --batch 16 -o roofline.png
    """
    limit = quantity(values["slo"], "seconds", "--slo")
    figure = draw(kind, request, batch.load, Wanted(slo=limit, rate=values["rate"]))
    vain = unheard(plots.drawn(figure))
    plots.save(figure, file)
    click.echo(f"written to {file}", err=True)
    if vain:
        click.echo(f"note: a picture of {kind} is the same without {', '.join(vain)}", err=True)


for _parameter in plot_command.params:
    if _parameter.name == "gpu":  # the cache of a model needs no device
        _parameter.required = False
