"""What one replica is started with, and what every engine's flags have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Literal, NamedTuple

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import InfeasibleError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.formats import names_cache
from inferplan.estimate.memory import Footprint
from inferplan.estimate.remedies import what_would_fit
from inferplan.estimate.run import sides_error
from inferplan.models.spec import Yarn, longer_than
from inferplan.serving.flags import Flags, rules_of, with_flags
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.serving.waiting import QueueOrder
from inferplan.units import format_bytes

Role = Literal["prefill", "decode"]
"""What a server of a pool does, where prompts and decodes are apart."""
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""The names that vLLM, SGLang and TensorRT-LLM give the formats of activations."""


class Drafts(NamedTuple):
    """How drafts are made, the name of the model that makes them as it was typed, and a checkpoint instead of it."""

    speculation: Speculation = PLAIN
    model: str = ""
    checkpoint: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Launch:
    """What one replica is started with.

    request: what was asked for. context: tokens of the longest request; ``None`` leaves it to the model's config.
    named: the checkpoint that the user named instead of the model's own. holds: it is in the formats modelled, so that
    nothing is made of it as it loads. extra: a file for what has no flag
    (TensorRT-LLM). role: what it does in a pool; ``None`` for both. node: devices of a node as the user states it.
    queue: which of the waiting requests is admitted next. chat: requests are messages.
    """

    request: Request
    deployment: Deployment
    context: int | None
    named: str | None = None
    holds: bool = False
    extra: str | None = None
    drafts: Drafts = Drafts()
    role: Role | None = None
    node: int | None = None
    queue: QueueOrder = "fcfs"
    chat: bool = False

    @property
    def devices_of_a_node(self) -> int | None:
        """As the user states it, else as on file; ``None`` where neither says."""
        return self.node or self.deployment.hardware.node

    @property
    def token_budget(self) -> int:
        """Tokens of a step of one attention rank."""
        return self.deployment.engine.defaults.tier(self.deployment.hardware).token_budget

    @property
    def sequences(self) -> int:
        """Sequences of one attention rank: those asked for, else the default of the engine's version."""
        return self.deployment.engine.defaults.tier(self.deployment.hardware).max_sequences

    @property
    def fraction(self) -> float:
        """The share of a device that the engine may use."""
        return _smallest(self.deployment).memory_fraction

    @property
    def yarn(self) -> Yarn | None:
        """How the positions of the model are scaled by flags, where its config does not say it."""
        found = self.deployment.model.yarn
        return found if found is not None and found.used else None

    @property
    def checkpoint_bytes(self) -> float:
        """Bytes of the weights over all devices that share one copy."""
        parallel, footprint = self.deployment.parallel, _smallest(self.deployment)
        there = footprint.streamed if footprint.host is None else footprint.host.weights
        return float(footprint.weights) * parallel.tp * parallel.pp + there


def queue_note(order: QueueOrder, engine: str) -> str:
    """What has to be done beside an engine's command so that it admits classes of traffic in an order; empty for first
    come, first served."""
    if order == "priority" and engine == "vllm":
        return "vLLM is started with --scheduling-policy priority; send each request with the priority of its class"
    if order != "fcfs":
        return f"--queue {order} is not an option of {engine} here; the client must order its requests"
    return ""


def head_of(launch: Launch) -> str | None:
    """The name of the module or head that drafts from hidden states; ``None`` for other drafts."""
    draft, prefix = launch.drafts.speculation.draft, f"{launch.deployment.model.name} "
    if draft is None or not draft.model.name.startswith(prefix):
        return None
    return draft.model.name.removeprefix(prefix)


def launch(
    request: Request,
    context: int | None = None,
    checkpoint: str | None = None,
    drafts: Drafts | None = None,
    role: Role | None = None,
) -> Launch:
    """A launch with the engine's own defaults where nothing is asked for; the context is the longest that fits.

    A model that states no longest context is left to its own config, unless a ``context`` is given.
    Raises ``InfeasibleError`` when not even one request of ``context`` tokens fits.
    """
    deployment, drafts = assemble(request), drafts or Drafts()
    longest = _longest(deployment, drafts.speculation)
    limit = deployment.model.max_context
    if limit and (context or 1) > limit:
        raise InfeasibleError(
            f"{deployment.model.name} has no context of {context:,} tokens",
            because=f"its longest is {limit:,}",
            hint=f"--context {limit}, or {longer_than(deployment.model, context or 1)}",
        )
    if longest < (context or 1):
        raise _not_held(deployment, context, longest, drafts)
    known = int(longest) if limit else None
    return Launch(
        request=request,
        deployment=deployment,
        context=context or known,
        named=checkpoint,
        drafts=drafts,
        role=role,
    )


def _not_held(deployment: Deployment, context: int | None, longest: float, drafts: Drafts) -> InfeasibleError:
    """That a request of ``context`` tokens is not held, where ``longest`` are, with what would hold it."""
    asked = Footprint(deployment=deployment, batch=1.0, prompt=context or 1, context=context or 1)
    shorter = f"--context {longest:.0f}, or " if longest >= 1 else ""
    if asked.host is not None and not asked.fits:
        sides = sides_error(asked, asked.host)
        return InfeasibleError(sides.what, sides.because, shorter + sides.hint)
    said = f"one request of {context:,} tokens" if context else "a request"
    other = "a shorter --context, more GPUs or a narrower --quant"
    return InfeasibleError(
        f"{deployment.describe()} does not hold {said}",
        because=f"the cache pool is {format_bytes(_smallest(deployment).kv_pool)}, which holds {longest:,} tokens",
        hint=shorter + what_would_fit(asked) if drafts.speculation.draft is None else other,
    )


def in_role(launch: Launch, role: Role) -> Launch:
    """The same replica as a server of a pool."""
    return replace(launch, role=role)


def _smallest(deployment: Deployment) -> Footprint:
    return Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0)


def _longest(deployment: Deployment, speculation: Speculation) -> float:
    """Tokens of the longest request that fits, beside a draft model if there is one."""
    footprint = _smallest(deployment)
    longest = footprint.max_context()
    if deployment.engine.logs_cache and 1 <= longest < inf:
        longest = footprint.longest_start(int(longest))
    if speculation.draft is None:
        return longest
    flags = Flags()
    rules = rules_of(with_flags(deployment, flags), flags, 1.0, 1.0, speculation.draft)
    limits = [longest, int(rules.capacity), speculation.draft.model.max_context or longest]
    return min(limits)


def refuse_degrees(launch: Launch, **degrees: str) -> None:
    """Raise ``UsageError`` for a degree of parallelism the engine's command line cannot express."""
    for name, hint in degrees.items():
        if getattr(launch.deployment.parallel, name) > 1:
            engine = launch.deployment.engine.name
            raise UsageError(f"--{name} cannot be written as flags of {engine}", hint=hint)


def kv_dtype(launch: Launch, unnamed: str | None = "auto") -> str:
    """The name that its engine gives the format of the cache; ``unnamed`` for that of the activations, where it is not
    ``None``."""
    deployment, engine, kv = launch.deployment, launch.deployment.engine, launch.deployment.precision.kv.name
    if unnamed is not None and not names_cache(deployment.model, deployment.precision):
        return unnamed
    engine.require_cache(kv, deployment.hardware)
    assert engine.caches is not None  # no engine is not started
    return engine.caches.formats[kv].flag


def dtype(launch: Launch) -> str | None:
    """The engine's name of the activations' format where its default, that of the checkpoint, would be another.

    vLLM and SGLang run fp32 checkpoints in fp16 unless they are told otherwise (``--dtype`` auto). Raises
    ``UsageError`` for narrower weights beside fp32: their quantisation takes none (``get_supported_act_dtypes``).
    """
    precision, engine = launch.deployment.precision, launch.deployment.engine
    base = precision.base.name
    if base == "fp32" and precision.weights.name != "fp32":
        raise UsageError(
            f"{engine.describe()} runs weights in {precision.weights.name} with fp16 or bf16, not fp32",
            because=f"the released checkpoint of {launch.deployment.model.name} is in fp32, and so are its other "
            "tensors",
            hint="--quant fp16, or --quant fp16 --weights fp8 --activations fp8 with a --checkpoint that holds it",
        )
    return None if base == launch.deployment.model.native.base != "fp32" else DTYPES.get(base, base)
