"""``inferplan emit``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from inferplan.answers.emit import ENGINES, command_line, launch, manifest, quantised_checkpoint, trtllm_config
from inferplan.catalog.assemble import Request, assemble
from inferplan.cli.options import Count, deployment_options, write_text
from inferplan.devices.engine import EngineFlags
from inferplan.errors import InputFileError, SpecError, UsageError
from inferplan.planning.space import Drafting
from inferplan.serving.techniques.speculation import PLAIN
from inferplan.work.parallel import Parallelism

TARGETS = (*ENGINES, "k8s")


@click.command("emit")
@click.argument("target", type=click.Choice(TARGETS))
@deployment_options
@click.option("--context", type=Count(), help="Tokens of the longest request [the longest that fits].")
@click.option("--checkpoint", help="Repository or path of the weights [the model's source].")
@click.option("--extra", metavar="FILE", help="trtllm: where to write what has no flag.")
@click.option("--image", help="k8s: the container image [that of the engine version on file].")
def emit_command(target: str, request: Request, **values: Any) -> None:
    """The command line, or the Kubernetes manifest, of a deployment: one line, nothing else on stdout.

    MODEL is a model, or the JSON file of a plan (inferplan plan ... -o plan.json), which then says everything.

    Example: inferplan emit vllm llama-3.1-70b --gpu h100-sxm --tp 4 --context 16384 --max-num-seqs 128
    """
    ctx = click.get_current_context()
    chosen = ctx.get_parameter_source("engine") is not click.core.ParameterSource.DEFAULT
    slots, drafting = None, None
    if Path(request.model).suffix == ".json" and not request.gpu:
        planned = request.model
        request, context, slots, drafting = _from_plan(request.model)
        values["context"] = values["context"] or context
        if target != "k8s" and request.engine.partition("@")[0] != target:
            raise UsageError(
                f"{planned} plans for {request.engine}, not for {target}",
                hint=f"inferplan emit k8s, or a plan for it: inferplan plan ... --engine {target}",
            )
    elif not request.gpu:
        raise UsageError("--gpu is missing", hint="--gpu h100-sxm, or the JSON file of a plan as MODEL")
    request = _for_target(request, target, chosen)
    deployment = assemble(request)
    image = values.pop("image")
    started = launch(
        deployment,
        context=values["context"],
        slots=slots,
        checkpoint=values["checkpoint"],
        speculation=drafting.on(request, deployment) if drafting else PLAIN,
    )
    started = replace(started, extra=values["extra"])
    if target == "k8s":
        import yaml

        click.echo(yaml.safe_dump_all(manifest(started, image), sort_keys=False).rstrip())
    else:
        click.echo(command_line(started))
        if deployment.parallel.replicas > 1:
            click.echo(f"note: one of {deployment.parallel.replicas} replicas", err=True)
    if deployment.engine.name == "trtllm" and started.extra and trtllm_config(started):
        write_text(started.extra, json.dumps(trtllm_config(started)) + "\n")
    needed = quantised_checkpoint(started)
    if needed and not values["checkpoint"]:
        click.echo(f"note: the weights were modelled in {needed}; name such a checkpoint with --checkpoint", err=True)


for _parameter in emit_command.params:
    if _parameter.name == "gpu":  # the file of a plan names it
        _parameter.required = False


def _for_target(request: Request, target: str, chosen: bool) -> Request:
    """The request under the engine that the target names. Raises ``UsageError`` when ``--engine`` names another."""
    if target == "k8s" or request.engine.partition("@")[0] == target:
        return request
    if chosen:
        raise UsageError(f"emit {target} of a deployment under {request.engine}", hint=f"--engine {target}, or k8s")
    return replace(request, engine=target)


def _from_plan(path: str) -> tuple[Request, int, int, Drafting | None]:
    """The request, the longest context, the sequences and the drafts that a plan's JSON holds."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputFileError(f"cannot read {path}", because=error.strerror or str(error)) from None
    except ValueError as error:
        raise SpecError(f"{path} is not JSON", because=str(error)) from None
    try:
        plan = data["plan"]["deployment"]
        apart = plan["pools"]
        request = Request(
            model=plan["model"],
            gpu=plan["gpu"],
            quant=plan["quant"],
            engine=plan["engine"].replace(" ", "@"),
            parallel=Parallelism(**plan["parallel"]),
            flags=EngineFlags(token_budget=plan["token_budget"]),
        )
        context, slots = plan["context_tokens"], plan["concurrency"]
        drafting = Drafting(**plan["speculation"]) if plan.get("speculation") else None
        command = str(data.get("command", ""))
    except (KeyError, TypeError, AttributeError):
        raise SpecError(f"{path} is not the JSON of a plan", hint="inferplan plan ... -o plan.json") from None
    if apart:
        raise UsageError(
            f"{path} has pools of their own for prompts and decodes, which no single command starts",
            because="the engine's cache connector between them depends on the network of the site",
            hint=f"{command if command.startswith('inferplan plan ') else 'inferplan plan ...'} --aggregated",
        )
    return request, context, slots, drafting
