"""Which checkpoint an engine loads: the id that was typed, and what it must hold where the engine cannot make it."""

from __future__ import annotations

import re
from pathlib import Path

from inferplan.answers.emit.replica import Launch
from inferplan.catalog.assemble import Request
from inferplan.catalog.files import variant
from inferplan.catalog.quality import quantised_checkpoint
from inferplan.devices.engine import Engine
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.formats import native_precision
from inferplan.models.spec import YARN, ModelSpec

_REPOSITORY = re.compile(r"https://huggingface\.co/([\w.-]+/[\w.-]+)")
_STORED = ("weights", "experts", "embedding", "head")
_WRITTEN_BY = {
    "fp8": "compressed-tensors or ModelOpt",
    "fp8-block": "block scales, as DeepSeek-V3 stores them",
    "int8": "compressed-tensors",
    "int4": "AWQ or GPTQ",
    "int4-gptq": "GPTQ",
    "nf4": "bitsandbytes",
    "nvfp4": "ModelOpt or compressed-tensors",
    "mxfp4": "Quark or compressed-tensors",
}
"""What writes checkpoints in a format."""


def repository(name: str, model: ModelSpec, chat: bool = False) -> str:
    """The checkpoint of a model by the name it was typed as: a hub id or a folder as it is, else its file's source; for
    chat, or a name that says so, the release tuned on instructions where the source is a base checkpoint.

    Raises ``UsageError`` where the source names no repository on the Hugging Face hub.
    """
    name = name[: -len(YARN)] if model.yarn and model.yarn.used and name.lower().endswith(YARN) else name
    path = Path(name)
    if path.is_dir() or (name.endswith(".gguf") and path.is_file()):
        return name
    if "/" in name and not path.suffix.startswith((".yaml", ".yml", ".json")):
        return name
    says, tuned = variant(name), model.instruct_checkpoint
    if tuned is not None and tuned.id is not None and (says == "instruct" or (chat and says != "base")):
        return tuned.id
    found = _REPOSITORY.match(model.source)
    if found is None:
        raise UsageError(
            f"no checkpoint of {model.name} is known",
            because=f"its source is {model.source or 'not stated'}",
            hint="--checkpoint ORG/NAME, or a folder",
        )
    return found[1]


def from_catalogue(launch: Launch) -> str | None:
    """The checkpoint, where it comes from the source of a catalogue entry and not from what the user typed."""
    name = launch.request.model
    if launch.named or launch.deployment.engine.name == "llama.cpp":
        return None
    found = repository(name, launch.deployment.model, launch.chat)
    return None if found == name else found


def base_note(launch: Launch) -> str:
    """Which of two checkpoints is started of a model whose file is of a base checkpoint, and how to name the other.

    Empty for another model, and where the user named the checkpoint.
    """
    model, tuned = launch.deployment.model, launch.deployment.model.instruct_checkpoint
    source = _REPOSITORY.match(model.source)
    if launch.named or tuned is None or source is None:
        return ""
    base, started = source[1], repository(launch.request.model, model, launch.chat)
    if started == tuned.id:
        if started == launch.request.model:
            return ""
        if checkpoint_needs(launch):
            return f"for chat, take a checkpoint made of {started}, which is tuned on instructions, not of {base}"
        return f"{started} is {base} tuned on instructions, as chat needs; emit --checkpoint {base} starts that one"
    if _bare(started) != _bare(base):
        return ""
    other = "no release of its shape that is tuned is known here"
    if tuned.id is not None:
        other = f"{tuned.id} is tuned and of its shape"
    return (
        f"{started} is a base checkpoint, not tuned on instructions: most have no chat template, and without one "
        f"/v1/chat/completions fails; {other}: emit --checkpoint {tuned.id or 'ORG/NAME'}"
    )


def _bare(repository: str) -> str:
    """The name of a repository without its owner, as its copies have it."""
    return repository.rsplit("/", 1)[-1].lower().removeprefix("meta-").removesuffix("-hf")


def tensor_changes(request: Request, deployment: Deployment) -> list[str]:
    """Where the tensors modelled differ from those of the released checkpoint: ``"weights in int4"``."""
    precision, model = deployment.precision, deployment.model
    native = native_precision(model)
    experts = any(weight.role == "experts" for weight, _ in model.weights())
    found = []
    for role in _STORED:
        if (role == "experts" and not experts) or (role == "head" and model.tied):
            continue
        fmt, held = getattr(precision, role), getattr(native, role)
        wide = fmt == precision.base and held == native.base
        if fmt.name != held.name and not wide:
            by = _WRITTEN_BY.get(fmt.name)
            found.append(f"{role} in {fmt.name}" + (f" ({by})" if by else ""))
    if precision.exceptions != native.exceptions:
        found.append("the tensors that its format leaves in others")
    narrow = min(precision.weights.bits, precision.experts.bits) < precision.base.bits
    if narrow and (found or precision.activations.name != native.activations.name):
        found.append(f"inputs in {precision.activations.name}")
    if request.prune:
        found.append(f"the pruned shape ({request.prune})")
    return found


def online(launch: Launch, deployment: Deployment | None = None) -> str | None:
    """The engine's ``--quantization`` for what it makes of a wide checkpoint as it loads: fp8 weights and inputs.

    deployment: another model on the same devices, such as that of the drafts. ``None`` where it cannot or need not.
    """
    return _online(deployment or launch.deployment, launch.deployment.engine)


def _online(deployment: Deployment, engine: Engine) -> str | None:
    precision, native = deployment.precision, native_precision(deployment.model)
    fp8 = {precision.weights.name, precision.experts.name, precision.activations.name} == {"fp8"}
    wide = native.weights == native.base == native.experts
    rest = precision.embedding == native.embedding and precision.head == native.head and not precision.exceptions
    return engine.defaults.makes.get("fp8") if fp8 and wide and rest else None


def held(request: Request, deployment: Deployment) -> list[str]:
    """What a checkpoint must hold that neither the released one does nor the engine makes as it loads."""
    found = tensor_changes(request, deployment)
    return [text for text in found if "prun" in text] if _online(deployment, deployment.engine) else found


def require_one_checkpoint(prompts: tuple[Request, Deployment], decodes: tuple[Request, Deployment]) -> None:
    """Raise ``UsageError`` for pools of two checkpoints under an engine that joins those of one alone."""
    engine, (first, then) = decodes[1].engine, (", ".join(held(*one)) for one in (prompts, decodes))
    if engine.apart.one_checkpoint and first != then:
        of = " and ".join(f"one with {each}" if each else "the released one" for each in (first, then))
        raise UsageError(
            f"{engine.describe()} joins no pools of two checkpoints: {of}",
            because=f"servers compare its name: {engine.apart.one_checkpoint}",
            hint="one --quant for both, or --engine sglang",
        )


def checkpoint_needs(launch: Launch) -> str | None:
    """The same in words, with a file of its own where the engine reads no other; ``None`` for nothing."""
    found = held(launch.request, launch.deployment)
    if launch.deployment.engine.name == "llama.cpp" and not launch.request.model.endswith(".gguf"):
        found = ["a GGUF file of the model", *found]
    return ", ".join(found) or None


def checkpoint(launch: Launch) -> str:
    """The checkpoint to load. Raises ``UsageError`` where one must be named that holds what was modelled."""
    lacking = checkpoint_needs(launch)
    engine, precision = launch.deployment.engine, launch.deployment.precision
    if launch.named or lacking is None:
        found = launch.named or repository(launch.request.model, launch.deployment.model, launch.chat)
        if found.endswith(".gguf") and not engine.loads("gguf", launch.deployment.hardware):
            raise UsageError(f"{engine.describe()} reads no GGUF file", hint="emit llama.cpp, or --checkpoint ORG/NAME")
        return found
    because = f"{engine.describe()} does not make it of the released checkpoint as it loads"
    flag = engine.defaults.makes.get("fp8")
    if flag and precision.weights.name == "fp8" and precision.activations.name != "fp8":
        because = f"--quantization {flag} makes the inputs fp8 too, and here they are {precision.activations.name}"
    raise UsageError(
        f"the checkpoint must hold {lacking}",
        because=because,
        hint="--checkpoint FILE.gguf" if engine.name == "llama.cpp" else f"--checkpoint {_that_does(launch)}",
    )


def _that_does(launch: Launch) -> str:
    """The checkpoint on file in the format that was modelled; where none is, or tensors were changed one by one, what
    to name."""
    request = launch.request
    known = (
        None if request.roles or request.prune else quantised_checkpoint(launch.deployment.model, request.quant or "")
    )
    return (known and known.checkpoint) or "ORG/NAME of one that does"


def draft_checkpoint(launch: Launch) -> str:
    """The checkpoint of the model that drafts. Raises ``UsageError`` as :func:`checkpoint` does."""
    drafts, draft = launch.drafts, launch.drafts.speculation.draft
    assert draft is not None
    lacking = (
        [] if online(launch, draft) else tensor_changes(Request(model=drafts.model, gpu=launch.request.gpu), draft)
    )
    if lacking and not drafts.checkpoint:
        raise UsageError(
            f"the checkpoint of the drafts must hold {', '.join(lacking)}",
            because=f"{launch.deployment.engine.describe()} does not make it of {drafts.model} as it loads",
            hint="--draft-checkpoint ORG/NAME of one that does",
        )
    return drafts.checkpoint or repository(drafts.model, draft.model, launch.chat)
