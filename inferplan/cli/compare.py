"""``inferplan compare``."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import click

from inferplan.answers.compare import compare
from inferplan.catalog.assemble import ROLES, Request, assemble, require_precision
from inferplan.cli.declared import gets
from inferplan.cli.layers import Layered
from inferplan.cli.numbers import Count
from inferplan.cli.options import (
    asks_of_request,
    deployment_options,
    report_options,
    usual_engines,
    without,
)
from inferplan.errors import InferplanError, UnknownNameError, UsageError
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

    MODEL, --gpu and --quant take comma lists. Every combination is a candidate; the first is the baseline. --vs adds
    a candidate that changes several things at once: --vs "gpu=h200-sxm,quant=fp8,tp=2".

    Example: inferplan compare llama-3.1-8b --gpu a100-80gb-sxm,h100-sxm,h200-sxm --batch 16
    """
    requests = _requests(request, others)
    changes = ("",) * (len(requests) - len(others)) + others
    alike = [one for one, change in zip(requests, changes) if "engine=" not in change]
    usual_engines(request.engine, [one.model for one in alike], [one.gpu for one in alike])
    labels = _labels(requests)
    for one in requests:
        require_precision(one.quant)
    deployments: list[Deployment | InferplanError] = []
    for one in requests:
        try:
            deployments.append(assemble(one))
        except UnknownNameError:  # a misspelt name is an error here, not a candidate without figures
            raise
        except InferplanError as error:
            deployments.append(error)
    return comparison_report(compare(deployments, labels, batch.load))


without(compare_command, "block_size")  # no figure here is rounded to pages


def _split(text: str | None) -> list[str]:
    """The names between commas. Raises ``UsageError`` for a text of commas alone, which would be no candidate."""
    found = [part.strip() for part in (text or "").split(",") if part.strip()]
    if text and not found:
        raise UsageError(f"{text!r} names nothing", hint="names with commas between them: h100-sxm,h200-sxm")
    return found


def _requests(request: Request, others: tuple[str, ...]) -> list[Request]:
    quants: list[str | None] = [*_split(request.quant)] or [None]
    grid = itertools.product(_split(request.model), _split(request.gpu), quants)
    requests = [replace(request, model=model, gpu=gpu, quant=quant) for model, gpu, quant in grid]
    return requests + [_change(requests[0], text) for text in others]


def _change(request: Request, text: str) -> Request:
    degrees = {"tp", "pp", "ep", "dp", "cp", "replicas", "redundant"}
    names = {"model", "gpu", "quant", "engine"}
    for part in _split(text):
        key, _, value = part.partition("=")
        if key in degrees:
            degree: dict[str, Any] = {key: _degree(part, value)}
            request = replace(request, parallel=replace(request.parallel, **degree))
        elif key in ROLES and value:
            kept = tuple(one for one in request.roles if one[0] != key)
            request = replace(request, roles=(*kept, (key, value)))
        elif key in names and value:
            changed: dict[str, Any] = {key: value}
            request = replace(request, **changed)
        else:
            known = ", ".join(sorted({*names, *degrees, *ROLES}))
            raise UsageError(
                f"--vs {part!r} changes nothing known",
                hint=f"--vs gpu=a100, or --gpu h100,a100 for several GPUs; KEY=VALUE with one of {known}",
            )
    return request


def _degree(part: str, value: str) -> int:
    try:
        return Count(0 if part.startswith("redundant") else 1)(value)
    except click.BadParameter as error:
        raise UsageError(f"--vs {part!r}: {error.message}") from None


def _labels(requests: list[Request]) -> list[str]:
    """What tells the candidates apart, and no more."""
    columns = [
        [one.model for one in requests],
        [one.gpu for one in requests],
        [one.quant or "native" for one in requests],
        [" ".join(map("=".join, one.roles)) for one in requests],
        [one.parallel.describe() for one in requests],
        [one.engine for one in requests],
    ]
    told = [column for column in columns if len(set(column)) > 1] or columns[:2]
    return [" ".join(filter(None, parts)) or "as given" for parts in zip(*told)]
