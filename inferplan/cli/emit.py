"""``inferplan emit``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from inferplan.answers.emit import (
    ENGINES,
    Drafts,
    Launch,
    Pools,
    Site,
    from_catalogue,
    launch,
    manifest,
    node_note,
    node_script,
    notes,
    script,
    trtllm_config,
)
from inferplan.catalog.assemble import Request
from inferplan.cli.options import Count, deployment_options, without_anchor, write_text
from inferplan.errors import UsageError
from inferplan.reports.plan_file import Planned, read_plan

TARGETS = (*ENGINES, "k8s")


@click.command("emit")
@click.argument("target", type=click.Choice(TARGETS))
@deployment_options
@click.option("--context", type=Count(), help="Tokens of the longest request [the longest that fits].")
@click.option("--checkpoint", help="Repository or path of the weights [MODEL, or the source of its file].")
@click.option(
    "--quantised", is_flag=True, help="The checkpoints named hold the formats modelled: nothing is made of them."
)
@click.option("--draft-checkpoint", help="The same of the model that drafts, in a plan with drafts.")
@click.option("--extra", metavar="FILE", help="trtllm: where to write what has no flag.")
@click.option("--gpus-per-node", type=Count(), help="GPUs that one node holds [as on file, where it is].")
@click.option("--image", help="k8s: the container image [that of the engine version on file].")
@click.option("--cache-claim", metavar="NAME", help="k8s: a PersistentVolumeClaim for checkpoints [a copy a pod].")
def emit_command(target: str, request: Request, **values: Any) -> None:
    """The command line, or the Kubernetes objects, of a deployment: what was modelled, and nothing else on stdout.

    MODEL is a model, or the JSON file of a plan (inferplan plan ... -o plan.json), which then says everything. A plan
    with pools of its own for prompts and decodes becomes the commands of both and of their router.

    Example: inferplan emit vllm llama-3.1-70b --gpu h100-sxm --tp 4 --context 16384 --max-num-seqs 128
    """
    typed = _typed(click.get_current_context())
    chosen = "--engine" in typed
    planned = _planned(target, request, typed)
    request = _for_target(planned.request if planned else request, target, chosen)
    drafts = planned.drafts(request) if planned else Drafts()
    if values["draft_checkpoint"] and not drafts.speculation.length:
        raise UsageError(
            "--draft-checkpoint names what drafts, and nothing does",
            because=f"{request.model} is started without drafts",
            hint="leave it out, or emit the file of a plan with drafts: inferplan plan ... --draft MODEL -o plan.json",
        )
    started = launch(
        request,
        context=values["context"] or (planned.context if planned else None),
        checkpoint=values["checkpoint"],
        drafts=drafts._replace(checkpoint=values["draft_checkpoint"]),
    )
    if values["quantised"] and not (values["checkpoint"] or values["draft_checkpoint"]):
        raise UsageError("--quantised says what a checkpoint holds, and none is named", hint="--checkpoint ORG/NAME")
    started = replace(started, extra=values["extra"], holds=values["quantised"], node=values["gpus_per_node"])
    pools = planned.pools if planned else None
    if planned and pools and planned.prefill:
        own = planned.drafts(planned.prefill)._replace(checkpoint=values["draft_checkpoint"])
        prompts = launch(planned.prefill, context=started.context, checkpoint=values["checkpoint"], drafts=own)
        pools = pools._replace(prompts=replace(prompts, holds=started.holds, node=started.node))
    if target == "k8s":
        click.echo(_objects(started, pools, Site(values["image"], values["cache_claim"])))
        return
    text = script(started, pools) if pools else node_script(started)
    if not pools and started.extra and started.deployment.engine.name == "trtllm" and trtllm_config(started):
        write_text(started.extra, json.dumps(trtllm_config(started)) + "\n")
    click.echo(text)
    for note in _notes(started, pools):
        click.echo(f"note: {note}", err=True)


_DECIDED = {one.name for one in click.command()(deployment_options(lambda **_: None)).params} - {"model"}
"""Options of a deployment, which the file of a plan decides; those of emit alone are taken beside it."""


def _typed(ctx: click.Context) -> list[str]:
    """The options of a deployment that were given, as they are written; not those at their defaults."""
    return [
        parameter.opts[0]
        for parameter in ctx.command.params
        if parameter.name and parameter.name in _DECIDED
        if ctx.get_parameter_source(parameter.name) is not click.core.ParameterSource.DEFAULT
    ]


without_anchor(emit_command)
for _parameter in emit_command.params:
    if _parameter.name == "gpu":  # the file of a plan names it
        _parameter.required = False


def _planned(target: str, request: Request, typed: list[str]) -> Planned | None:
    """The plan that the model names, if it names one.

    Raises ``UsageError`` for another engine than the target, and for ``typed`` options that the plan has decided.
    """
    if Path(request.model).suffix != ".json" or request.gpu:
        if not request.gpu:
            raise UsageError("--gpu is missing", hint="--gpu h100-sxm, or the JSON file of a plan as MODEL")
        return None
    planned = read_plan(request.model)
    if typed:
        raise UsageError(
            f"{request.model} says what {', '.join(typed)} would say",
            because="a plan holds for the deployment that it was made for",
            hint="plan again with it, or emit from MODEL with --gpu instead of the file",
        )
    if target != "k8s" and planned.request.engine.partition("@")[0] != target:
        raise UsageError(
            f"{request.model} plans for {planned.request.engine}, not for {target}",
            hint=f"inferplan emit k8s, or a plan for it: inferplan plan ... --engine {target}",
        )
    return planned


def _for_target(request: Request, target: str, chosen: bool) -> Request:
    """The request under the engine that the target names. Raises ``UsageError`` when ``--engine`` names another."""
    if target == "k8s" or request.engine.partition("@")[0] == target:
        return request
    if chosen:
        raise UsageError(f"emit {target} of a deployment under {request.engine}", hint=f"--engine {target}, or k8s")
    return replace(request, engine=target)


def _objects(started: Launch, pools: Pools | None, site: Site) -> str:
    """The objects as YAML, after the notes as comments."""
    import yaml

    plain = json.loads(
        json.dumps(manifest(started, pools, site))
    )  # no object twice: YAML would name it and refer to it
    text = yaml.safe_dump_all(plain, sort_keys=False).rstrip()
    others = notes(pools.prompts) if pools and pools.prompts else []
    comments = [f"# {note}\n" for note in dict.fromkeys((*_notes(started, pools), *notes(started), *others))]
    return "".join(comments) + text


def _notes(started: Launch, pools: Pools | None) -> list[str]:
    """What is not in the words of a command."""
    source, replicas = from_catalogue(started), started.deployment.parallel.replicas
    lines = [f"flags of {started.deployment.engine.describe()}"]
    if source:
        lines.append(
            f"{source} is the checkpoint that the file of {started.deployment.model.name} was read from; another "
            "of its shape, such as one tuned on instructions: --checkpoint ORG/NAME"
        )
    if replicas > 1 and not pools:
        lines.append(f"one of {replicas} replicas")
    launches = [started] if pools is None or pools.prompts is None else [pools.prompts, started]
    return [*lines, *filter(None, dict.fromkeys(node_note(one) for one in launches))]
