"""What one replica is started with, and what every engine's flags have in common."""

from __future__ import annotations

import re
from dataclasses import dataclass

from inferplan.errors import InfeasibleError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.memory import Footprint
from inferplan.serving.flags import Flags, rules_of, with_flags
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.units import format_bytes

_REPOSITORY = re.compile(r"https://huggingface\.co/([\w.-]+/[\w.-]+)")


@dataclass(frozen=True, kw_only=True, eq=False)
class Launch:
    """What one replica is started with: ``slots`` sequences at once over all its ranks, each up to ``context`` tokens.

    checkpoint: the repository or path that holds the weights in the formats of the deployment. speculation: its drafts.
    """

    deployment: Deployment
    context: int
    slots: int
    token_budget: int
    checkpoint: str
    extra: str | None = None
    """A file for what has no flag (TensorRT-LLM's ``--config``)."""
    speculation: Speculation = PLAIN

    @property
    def footprint(self) -> Footprint:
        """The memory of one request of ``context`` tokens."""
        return Footprint(deployment=self.deployment, batch=1.0, prompt=float(self.context), context=float(self.context))

    @property
    def fraction(self) -> float:
        """The share of a device that the engine may use."""
        return self.footprint.memory_fraction


def launch(
    deployment: Deployment,
    context: int | None = None,
    slots: int | None = None,
    token_budget: int | None = None,
    checkpoint: str | None = None,
    speculation: Speculation = PLAIN,
) -> Launch:
    """A launch with the engine's own defaults where nothing is given; the context is the longest that fits.

    Raises ``InfeasibleError`` when not even one request of ``context`` tokens fits.
    """
    tier = deployment.engine.defaults.tier(deployment.hardware)
    longest = _longest(deployment, speculation)
    wanted = context or longest
    if longest < max(wanted, 1):
        pool = Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0).kv_pool
        raise InfeasibleError(
            f"{deployment.describe()} does not hold one request of {max(wanted, 1):,} tokens",
            because=f"the cache pool is {format_bytes(pool)}, room for {longest:,} tokens",
            hint="a shorter --context, a larger --tp or a narrower --quant",
        )
    return Launch(
        deployment=deployment,
        context=wanted,
        slots=slots or tier.max_sequences * deployment.parallel.dp,
        token_budget=token_budget or tier.token_budget,
        checkpoint=checkpoint or repository(deployment),
        speculation=speculation,
    )


def repository(deployment: Deployment) -> str:
    """The model's repository on the Hugging Face hub where its source names one, else the model's own name."""
    found = _REPOSITORY.match(deployment.model.source)
    return found[1] if found else deployment.model.name


def _longest(deployment: Deployment, speculation: Speculation) -> int:
    """Tokens of the longest request that fits, beside a draft model if there is one."""
    longest = Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0).max_context()
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


def slots_per_rank(launch: Launch) -> int:
    """Sequences of one attention rank, which is what engines with attention data parallelism count."""
    return -(-launch.slots // launch.deployment.parallel.dp)


def kv_dtype(launch: Launch, names: dict[str, str]) -> str:
    """The name that an engine gives the format of the cache, ``"auto"`` for that of the activations.

    names: the engine's name of each format it has. Raises ``UsageError`` for a format that is not among them.
    """
    kv = launch.deployment.precision.kv
    if kv == launch.deployment.precision.base:
        return "auto"
    if kv.name not in names:
        raise UsageError(
            f"{launch.deployment.engine.name} has no KV cache in {kv.name} that is modelled here",
            hint=f"--kv {' or '.join(names)}, or leave it at {launch.deployment.precision.base.name}",
        )
    return names[kv.name]


def online_format(launch: Launch) -> str | None:
    """The format that an engine makes from a wide checkpoint as it loads; others need a checkpoint already in them."""
    precision = launch.deployment.precision
    native = launch.deployment.model.native.weights
    if precision.weights.name in ("fp8",) and native is None:
        return "fp8"
    return None


def quantised_checkpoint(launch: Launch) -> str | None:
    """What the checkpoint must already hold, where the engine cannot make it on loading."""
    precision, native = launch.deployment.precision, launch.deployment.model.native
    held = {fmt for fmt in (native.weights, native.experts) if fmt} | {native.base}
    online = {"fp8"} if launch.deployment.engine.name in ("vllm", "sglang") else set()
    needed = {precision.weights.name, precision.experts.name} - held - online
    return ", ".join(sorted(needed)) or None
