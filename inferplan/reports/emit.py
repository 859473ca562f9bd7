"""What starts a deployment, as ``inferplan emit`` prints it: commands, or Kubernetes objects."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inferplan.answers.emit import (
    ENGINES,
    Drafts,
    Launch,
    Pools,
    Site,
    base_note,
    checkpoint_needs,
    from_catalogue,
    launch,
    manifest,
    node_note,
    node_script,
    notes,
    online,
    queue_note,
    script,
    trtllm_config,
)
from inferplan.catalog.assemble import Request
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.fields import Switch, Text, Whole, ask
from inferplan.files import save
from inferplan.serving.waiting import QueueOrder
from inferplan.shown import Shown

if TYPE_CHECKING:
    from inferplan.reports.plan_file import Planned

TARGETS = (*ENGINES, "k8s")


@dataclass(frozen=True, kw_only=True)
class EmitAsked:
    """What is not of the deployment: as the options of ``inferplan emit``."""

    context: int | None = ask("--context", Whole(), "Tokens of the longest request [the most that fit].", None)
    checkpoint: str | None = ask(
        "--checkpoint", Text(), "Repository or path of the weights [MODEL, or the source of its file].", None
    )
    quantised: bool = ask(
        "--quantised", Switch(), "The named checkpoints hold the modelled formats: the engine converts nothing.", False
    )
    draft_checkpoint: str | None = ask(
        "--draft-checkpoint", Text(), "The same for the draft model, in a plan with drafts.", None
    )
    gpus_per_node: int | None = ask("--gpus-per-node", Whole(), "GPUs per node [as on file].", None)
    image: str | None = ask(
        "--image", Text(), "k8s: the container image [the image of the engine version on file].", None
    )
    cache_claim: str | None = ask(
        "--cache-claim",
        Text(),
        "k8s: a PersistentVolumeClaim for checkpoints [one copy per pod].",
        None,
        metavar="NAME",
    )
    extra: str | None = None
    """A file for what has no flag of TensorRT-LLM."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Emitted(Shown):
    """What starts a deployment: ``str`` is the text, to run or to apply; ``notes`` is what no word of it says."""

    target: str
    text: str
    notes: tuple[str, ...]
    described: str
    """The deployment in words."""

    def __str__(self) -> str:
        return self.text

    @property
    def said(self) -> tuple[str, ...]:
        """The notes that do not stand in the text as comments."""
        return () if self.target == "k8s" else self.notes


def launch_text(target: str, source: Planned | Request, asked: EmitAsked, chosen: bool = True) -> Emitted:
    """The text that starts a plan or a deployment under the target; with ``extra`` its file is written too.

    chosen: somebody named the engine of the request. Raises ``UsageError`` for a target that there is not, for another
    engine than the target, and for what belongs to drafts or checkpoints without any.
    """
    from inferplan.reports.plan_file import Planned

    if target not in TARGETS:
        raise UsageError(f"emit does not support {target!r}", hint=", ".join(TARGETS))
    _require_used(target, asked)
    if isinstance(source, Planned):
        request, planned = _of_plan(source, target), source
    else:
        request, planned = _for_target(source, target, chosen), None
    started = _started(request, planned, asked)
    pools = planned.pools if planned else None
    if planned and pools and planned.prefill:
        own = planned.drafts(planned.prefill)._replace(checkpoint=asked.draft_checkpoint)
        prompts = launch(planned.prefill, context=started.context, checkpoint=asked.checkpoint, drafts=own)
        prompts = replace(prompts, holds=started.holds, node=started.node, queue=started.queue, chat=started.chat)
        pools = pools._replace(prompts=prompts)
    said, described = _notes(started, pools), started.deployment.describe()
    if target == "k8s":
        site = Site(asked.image, asked.cache_claim)
        others = notes(pools.prompts) if pools and pools.prompts else []
        said = list(dict.fromkeys((*said, *notes(started), *others)))
        text = "".join(f"# {note}\n" for note in said) + _objects(started, pools, site)
        return Emitted(target=target, text=text, notes=tuple(said), described=described)
    if not pools and started.extra and started.deployment.engine.name == "trtllm":
        if trtllm_config(started):
            save(started.extra, json.dumps(trtllm_config(started)) + "\n")
        else:
            said.append(f"{started.extra} is not written: every setting has a flag here")
    text = script(started, pools) if pools else node_script(started)
    return Emitted(target=target, text=text, notes=tuple(said), described=described)


_OF_KUBERNETES = {"image": "the image of a container", "cache_claim": "a volume of a pod"}


def _require_used(target: str, asked: EmitAsked) -> None:
    """Raise ``UsageError`` for what the target has no place for."""
    for name, what in _OF_KUBERNETES.items():
        if target != "k8s" and getattr(asked, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} applies only to emit k8s", because=f"it names {what}", hint="leave it out")
    if target != "trtllm" and asked.extra is not None:
        because = "Kubernetes has a ConfigMap for it" if target == "k8s" else "every setting has a flag there"
        raise UsageError("--extra applies only to emit trtllm", because=because, hint="leave it out")


def _started(request: Request, planned: Planned | None, asked: EmitAsked) -> Launch:
    """One replica. Raises ``UsageError`` for what belongs to drafts or checkpoints without any."""
    drafts = planned.drafts(request) if planned else Drafts()
    if asked.draft_checkpoint and not drafts.speculation.length:
        raise UsageError(
            "--draft-checkpoint names a draft model, and there are no drafts",
            because=f"{request.model} is started without drafts",
            hint="leave it out, or emit the file of a plan with drafts: inferplan plan ... --draft MODEL -o plan.json",
        )
    started = launch(
        request,
        context=asked.context or (planned.context if planned else None),
        checkpoint=asked.checkpoint,
        drafts=drafts._replace(checkpoint=asked.draft_checkpoint),
    )
    if asked.gpus_per_node is not None and planned is None and started.deployment.parallel.ranks == 1:
        raise UsageError(
            "--gpus-per-node divides a replica among nodes, and here a replica is one GPU",
            hint="leave it out",
        )
    if asked.quantised and not (asked.checkpoint or asked.draft_checkpoint):
        raise UsageError("--quantised describes a checkpoint, and no checkpoint is named", hint="--checkpoint ORG/NAME")
    queue: QueueOrder = planned.queue if planned else "fcfs"
    chat = planned is not None and planned.chat
    return replace(started, extra=asked.extra, holds=asked.quantised, node=asked.gpus_per_node, queue=queue, chat=chat)


def _of_plan(planned: Planned, target: str) -> Request:
    """What a plan starts. Raises ``UsageError`` for another engine than the target."""
    if target != "k8s" and planned.request.engine.partition("@")[0] != target:
        raise UsageError(
            f"{planned.name} plans for {planned.request.engine}, not for {target}",
            hint=f"inferplan emit k8s, or a plan for it: inferplan plan ... --engine {target}",
        )
    return planned.request


def _for_target(request: Request, target: str, chosen: bool) -> Request:
    """The request under the engine that the target names. Raises ``UsageError`` when somebody chose another."""
    if target == "k8s" or request.engine.partition("@")[0] == target:
        return request
    if chosen:
        raise UsageError(f"emit {target} of a deployment under {request.engine}", hint=f"--engine {target}, or k8s")
    return replace(request, engine=target)


_NUMBER = re.compile(r"[-+]?(0o[0-7_]+|0x[0-9a-fA-F_]+|(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?)$")
"""A plain scalar that YAML 1.2 reads as a number (its core schema; the underscores are of Go's reader, kubectl's)."""


def _objects(started: Launch, pools: Pools | None, site: Site) -> str:
    """The objects as YAML, in which a text that some reader would take as a number is quoted: PyYAML knows 1.1 alone,
    in which ``1e30`` is a text."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Knows the numbers of YAML 1.2 too."""

    Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))
    plain = json.loads(
        json.dumps(manifest(started, pools, site))
    )  # no object twice: YAML would name it and refer to it
    return yaml.dump_all(plain, Dumper=Dumper, sort_keys=False).rstrip()


def cap_note(deployment: Deployment) -> str:
    """How the cap on the watts of its GPUs is set, which no flag of an engine does; empty without one."""
    cap = deployment.cap
    return "" if cap is None else f"first, on every {deployment.hardware.name}: nvidia-smi -pl {cap.watts:g}"


def _notes(started: Launch, pools: Pools | None) -> list[str]:
    """What is not in the words of a command."""
    source, replicas = from_catalogue(started), started.deployment.parallel.replicas
    lines = [f"flags of {started.deployment.engine.describe()}"]
    if said := base_note(started):
        lines.append(said)
    elif source:
        lines.append(
            f"{source} is the checkpoint behind the file of {started.deployment.model.name}; another of its shape: "
            "--checkpoint ORG/NAME"
        )
    if replicas > 1 and not pools:
        lines.append(f"one of {replicas} replicas")
    if started.named and (needs := checkpoint_needs(started)):
        lines.append(f"{started.named} must hold {needs}")
    drafted = started.drafts.speculation.draft
    if started.holds and not (online(started) or (drafted is not None and online(started, drafted))):
        lines.append("--quantised changes nothing: the checkpoint is not converted without it, either")
    launches = [started] if pools is None or pools.prompts is None else [pools.prompts, started]
    lines += filter(None, [queue_note(started.queue, started.deployment.engine.name), cap_note(started.deployment)])
    return [*lines, *filter(None, dict.fromkeys(node_note(one) for one in launches))]
