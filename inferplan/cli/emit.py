"""``inferplan emit``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from inferplan.catalog.assemble import Request
from inferplan.cli.declared import asks
from inferplan.cli.layers import Layered
from inferplan.cli.options import asks_of_request, deployment_options, without, writable
from inferplan.errors import UsageError
from inferplan.fields import question_of
from inferplan.reports.emit import TARGETS, EmitAsked, launch_text
from inferplan.reports.plan_file import Planned, read_plan
from inferplan.work.adapters import LoraAsked


@click.command("emit", cls=Layered)
@click.argument("target", type=click.Choice(TARGETS))
@deployment_options
@asks_of_request("lora")
@asks_of_request("offload")
@asks(EmitAsked)
@click.option("--extra", metavar="FILE", callback=writable, help="trtllm: the file for settings without a flag.")
def emit_command(target: str, request: Request, **values: Any) -> None:
    """The command line, or the Kubernetes objects, of a deployment as it was modelled. Stdout has nothing else.

    MODEL is a model, or the JSON file of a plan (inferplan plan ... -o plan.json), which then states everything. A
    plan with separate pools for prompts and decodes becomes the commands of both pools and their router.

    Example: inferplan emit vllm llama-3.1-70b --gpu h100-sxm --tp 4 --context 16384 --max-num-seqs 128
    """
    typed = _typed(click.get_current_context())
    planned = _planned(request, typed)
    asked = replace(question_of(EmitAsked, values), extra=values["extra"])
    found = launch_text(target, planned or request, asked, chosen="--engine" in typed)
    click.echo(str(found))
    for note in found.said:
        click.echo(f"note: {note}", err=True)


_OF_DEPLOYMENT = click.command()(deployment_options(asks(LoraAsked)(lambda **_: None)))
_DECIDED = {one.name for one in _OF_DEPLOYMENT.params} - {"model"}
"""Options of a deployment, which the file of a plan decides; those of emit alone are taken beside it."""


def _typed(ctx: click.Context) -> list[str]:
    """The options of a deployment that were given, as they are written; not those at their defaults."""
    return [
        parameter.opts[0]
        for parameter in ctx.command.params
        if parameter.name and parameter.name in _DECIDED
        if ctx.get_parameter_source(parameter.name) is not click.core.ParameterSource.DEFAULT
    ]


without(
    emit_command, "anchor", "calibration", "ideal", "expert_skew", "active_loras"
)  # a launch is memory and flags, and no time
for _parameter in emit_command.params:
    if _parameter.name == "gpu":  # the file of a plan names it
        _parameter.required = False


def _planned(request: Request, typed: list[str]) -> Planned | None:
    """The plan that the model names, if it names one. Raises ``UsageError`` for ``typed`` options that it decides."""
    if Path(request.model).suffix != ".json" or request.gpu:
        if not request.gpu:
            raise UsageError("--gpu is missing", hint="--gpu h100-sxm, or the JSON file of a plan as MODEL")
        return None
    planned = read_plan(request.model)
    if typed:
        raise UsageError(
            f"{request.model} already states {', '.join(typed)}",
            because="a plan holds only for its own deployment",
            hint="plan again with it, or emit from MODEL with --gpu instead of the file",
        )
    return planned
