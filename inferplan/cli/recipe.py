"""``inferplan recipe``."""

from __future__ import annotations

from typing import Any

import click

from inferplan.answers.recipe import UsersAtATime, recipe
from inferplan.catalog.assemble import Request
from inferplan.cli.layers import Layered
from inferplan.cli.numbers import Count
from inferplan.cli.options import deployment_options, picture, report_options, without
from inferplan.errors import UsageError
from inferplan.lists import parse_values
from inferplan.reports.recipe import recipe_report
from inferplan.table import Report
from inferplan.traffic.people import IN_FLIGHT
from inferplan.traffic.requests import parse_lengths


@click.command("recipe", cls=Layered)
@deployment_options
@click.option("--baseline", default="static,bf16", show_default=True, help="The baseline: batching and format.")
@click.option("--with", "wanted", required=True, metavar="LIST", help="Ingredients, in order.")
@click.option(
    *(*IN_FLIGHT, "users"),
    type=Count(),
    default=64,
    show_default=True,
    help="Requests in flight at all times. Also --users or --concurrency.",
)
@click.option("--prompt", type=Count(), default=1024, show_default=True, help="Prompt tokens.")
@click.option("--output", default="256", metavar="LENGTHS", help="Output: 256, lognormal:256:0.6 [256].")
@click.option("--reserve", type=Count(), help="Tokens reserved per request without paging [2048, or the request].")
@click.option("--plot", "drawn", metavar="FILE", callback=picture, help="Also draw the waterfall: PNG, SVG, PDF.")
@report_options
def recipe_command(request: Request, prompt: int, output: str, reserve: int | None, **values: Any) -> Report:
    """Take a claimed speed-up apart: a baseline, then one ingredient at a time, each with its factor.

    Ingredients: continuous-batching, paged-kv, kv-cache, fused-attention, gqa, mla, cla, prefix-cache:hit=0.5,
    tensor-parallel:tp=4, speculative:draft=NAME:length=4:acceptance=0.7, or a format such as fp8. Order matters: next
    to each factor stand its mean over all orders (Shapley) and its range.

    Example: inferplan recipe llama-3.1-8b --gpu h100-sxm --with continuous-batching,paged-kv,fp8,gqa
    """
    lengths = parse_lengths(output)
    whole = int(prompt + lengths.average * (1 if lengths.kind == "fixed" else 2))
    load = UsersAtATime(
        users=values["users"], prompt=float(prompt), output=lengths, reserved=reserve or max(2048, whole)
    )
    if request.quant:
        raise UsageError("--quant belongs to the baseline", hint="--baseline static,bf16")
    result = recipe(request, values["baseline"], parse_values(values["wanted"]), load)
    if values["drawn"]:
        from inferplan.reports import plots
        from inferplan.reports.pictures import waterfall_of

        plots.save(waterfall_of(result), values["drawn"])
    return recipe_report(result)


without(recipe_command, "anchor")  # its ingredients are other systems than the one that was measured
without(recipe_command, "block_size")  # its requests hold what they wrote, not whole pages
