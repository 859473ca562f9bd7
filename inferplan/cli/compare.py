"""``inferplan compare``."""

from __future__ import annotations

import itertools
from dataclasses import replace

import click

from inferplan.answers.compare import compare
from inferplan.catalog.assemble import Request, assemble_with_request, bridges, require_precision
from inferplan.cli.candidates import changed, labels_of, split_names
from inferplan.cli.declared import gets
from inferplan.cli.layers import Layered
from inferplan.cli.options import (
    asks_of_request,
    deployment_options,
    report_options,
    usual_engines,
    without,
)
from inferplan.errors import InferplanError, UnknownNameError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import BatchAsked
from inferplan.reports.compare import comparison_report
from inferplan.table import Report


@click.command("compare", cls=Layered)
@deployment_options
@click.option(
    "--vs", "others", multiple=True, metavar="KEY=VALUE,...", help="Another candidate, as the options it changes."
)
@gets(batch=BatchAsked)
@asks_of_request("media")
@asks_of_request("lora")
@report_options
def compare_command(request: Request, others: tuple[str, ...], batch: BatchAsked) -> Report:
    """Models, GPUs, formats or parallelism side by side: ratios to the first, and the resource behind each ratio.

    MODEL, --gpu, --quant and --kv take comma lists. Every combination is a candidate; the first is the baseline. --vs
    adds a candidate that changes several things at once: --vs "gpu=h200-sxm,quant=fp8,tp=2".

    Example: inferplan compare llama-3.1-8b --gpu a100-80gb-sxm,h100-sxm,h200-sxm --batch 16
    """
    requests = _requests(request, others)
    changes = ("",) * (len(requests) - len(others)) + others
    alike = [one for one, change in zip(requests, changes) if "engine=" not in change]
    usual_engines(request.engine, *zip(*((one.model, one.gpu, one.quant) for one in alike), strict=True))
    labels = labels_of(requests)
    for one in requests:
        require_precision(one.quant)
    deployments: list[Deployment | InferplanError] = []
    for one in requests:
        try:
            deployments.append(assemble_with_request(one))
        except UnknownNameError:  # a misspelt name is an error here, not a candidate without figures
            raise
        except InferplanError as error:
            deployments.append(error)
    return comparison_report(compare(deployments, labels, batch.load))


without(compare_command, "block_size")  # no figure here is rounded to pages


def _requests(request: Request, others: tuple[str, ...]) -> list[Request]:
    quants: list[str | None] = [*split_names(request.quant)] or [None]
    caches = [changed(request, f"kv={kv}").roles for kv in split_names(dict(request.roles).get("kv"))] or [
        request.roles
    ]
    grid = itertools.product(split_names(request.model), split_names(request.gpu), quants, caches)
    bridged = bridges(request, split_names(request.gpu))
    requests = [
        replace(request, model=model, gpu=gpu, quant=quant, roles=roles, nvlink_bridge=bridged[gpu])
        for model, gpu, quant, roles in grid
    ]
    return requests + [changed(replace(requests[0], nvlink_bridge=request.nvlink_bridge), text) for text in others]
