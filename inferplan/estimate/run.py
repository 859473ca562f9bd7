"""From a load to an estimate that is known to fit, or to a refusal that says what would."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import numpy as np

from inferplan.devices.engine import CADENCE
from inferplan.errors import InfeasibleError, UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.diffusion import diffusion_estimate
from inferplan.estimate.encode import encode_estimate, encoder_load
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.remedies import what_would_fit
from inferplan.features import require_together
from inferplan.figures import bars
from inferplan.models.spec import longer_than, require_readable
from inferplan.units import format_bytes


def carrying(deployment: Deployment, load: StaticLoad) -> tuple[Deployment, StaticLoad]:
    """Deployment and load with the tokens of what every request carries in its prompt; as they are without any."""
    load = _heard(deployment, load)
    if deployment.media is None:
        return deployment, load
    load = load.carrying(float(deployment.media.tokens))
    return replace(deployment, media=deployment.media.within(load.prompt)), load


def _heard(deployment: Deployment, load: StaticLoad) -> StaticLoad:
    """The load with the one prompt that an encoder of sound reads, where nobody asked for another."""
    encoder = deployment.model.encoder
    if deployment.model.encodes:
        return encoder_load(deployment, load)
    if encoder is None or encoder.frames is None or not load.usual:
        return load
    return replace(load, prompt=float(encoder.frames))


def estimate(deployment: Deployment, load: StaticLoad) -> Estimate:
    """The estimate of a static batch; raises ``InfeasibleError`` or ``UsageError`` for a load that cannot run."""
    require_no_cadence(deployment)
    result = estimate_unchecked(deployment, load)
    require_context(result)
    require_memory(result)
    return result


def require_no_cadence(deployment: Deployment) -> None:
    """Raise ``UsageError`` for flags that change nothing of a static batch."""
    if deployment.cadence.any:
        raise UsageError(
            "a static batch is computed at once, and no cadence of prompts changes that",
            hint="--in-flight of estimate, simulate or plan, or leave the interval out",
        )


def without_cadence(deployment: Deployment) -> Deployment:
    """The same with every step open to prompts, as a static batch finds it."""
    if not deployment.cadence.any:
        return deployment
    defaults = deployment.engine.defaults.model_copy(update=CADENCE)
    return replace(deployment, engine=deployment.engine.model_copy(update={"defaults": defaults}))


def estimate_unchecked(deployment: Deployment, load: StaticLoad) -> Estimate:
    """The estimate of a batch that may not fit. Raises ``UsageError`` for a diffusion model that lacks its steps."""
    require_together("estimate", deployment.features | load.features)
    _require_whole_ranks(deployment, load)
    if deployment.model.generation.kind == "diffusion":
        return diffusion_estimate(deployment, load)
    if deployment.model.encodes:
        return encode_estimate(deployment, load)
    load = _heard(deployment, load)
    require_readable(deployment.model, load.prompt, load.output)
    return Estimate(deployment=deployment, load=load)


def _require_whole_ranks(deployment: Deployment, load: StaticLoad) -> None:
    """Raise ``UsageError`` for samples of requests that attention ranks cannot have an equal number of."""
    dp = deployment.parallel.dp
    if load.samples > 1 and np.any(np.asarray(load.batch) % dp):
        raise UsageError(
            f"--samples with a batch that --dp {dp} does not divide",
            because="the samples of a request share the cache of one rank",
            hint=f"a --batch that is a multiple of {dp}",
        )


def require_context(result: Estimate) -> None:
    """Raise ``UsageError`` when the sequences are longer than the model's context."""
    model, longest = result.deployment.model, int(np.max(result.footprint.context))
    if model.max_context is not None and longest > model.max_context:
        raise UsageError(
            f"{longest:,} tokens are more than {model.name} can attend to",
            because=f"its context is {model.max_context:,} tokens; prompt {int(np.max(result.load.prompt)):,}"
            + ("" if model.encodes else f" + output {int(np.max(result.load.output)):,}"),
            hint=f"a shorter --prompt{'' if model.encodes else ' or --output'}, or {longer_than(model, longest)}",
        )


def require_memory(result: Estimate) -> None:
    """Raise ``InfeasibleError`` when the fullest device does not hold the load, with what would."""
    footprint, deployment = result.footprint, result.deployment
    if footprint.fits:
        return
    if footprint.host is not None:
        raise sides_error(footprint, footprint.host)
    parts = {
        "weights": footprint.weights,
        **({"adapters": footprint.adapters} if footprint.adapters else {}),
        "state": float(np.max(footprint.state)),
        "activations": float(np.max(footprint.activations)),
        "reserve": footprint.reserve,
    }
    total = sum(parts.values())
    raise InfeasibleError(
        f"{deployment.describe()} does not fit",
        because=" + ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())
        + f" = {format_bytes(total)} > {format_bytes(footprint.usable)} usable on each device",
        hint=what_would_fit(footprint),
        picture=bars({"usable": footprint.usable, **parts}, format_bytes),
    )


def sides_error(here: Footprint, there: Footprint, batch: str = "--batch") -> InfeasibleError:
    """Which of a device and its host does not hold its part of a load; ``batch``: the option that says how large it is.

    Raises nothing: the error is the answer.
    """
    deployment = here.deployment
    sides = [(here, here.fits_here), (there, there.fits)]
    short = [side.deployment.hardware.name for side, fits in sides if not fits]
    because = (
        f"{side.deployment.hardware.name}: {format_bytes(float(np.max(side.total)))} {'of' if fits else '>'} "
        f"{format_bytes(side.usable)} usable"
        for side, fits in sides
    )
    best, most = int(np.min(here.max_batch())), most_layers(here)
    hints = [f"{batch} {best}"] if best >= 1 else []
    hints += [] if most is None else [f"--gpu-layers {most}"]
    needed = float(np.ceil(np.max(there.total) / 1e9))
    if here.fits_here and needed * 1e9 <= there.deployment.hardware.memory.most:
        hints.append(f"--host-memory {needed:.0f}GB")
    narrower = "" if deployment.engine.experts_alone else ", or a narrower --quant"  # which says what the device holds
    return InfeasibleError(
        f"{deployment.describe()} does not fit: not on {' nor on '.join(short)}",
        because="; ".join(because),
        hint=", or ".join(hints) or f"a GPU {'' if there.fits else 'and a host '}with more memory{narrower}",
    )


def fewest_experts(footprint: Footprint) -> Deployment | None:
    """The deployment with the experts of the fewest layers on the host with which both sides hold a load, as llama.cpp
    places them; ``None`` where no fewer do. Without any the deployment is the device alone."""
    deployment, offload = footprint.deployment, footprint.deployment.offload
    if offload is None or not offload.experts or offload.layers or deployment.engine.experts_alone:
        return None

    def placed(experts: int) -> Deployment:
        return replace(deployment, offload=replace(offload, experts=experts))

    whole = replace(deployment, offload=None)
    if not offload.head and replace(footprint, deployment=whole).fits:
        return whole
    counts = range(1, offload.experts + 1)
    at = bisect_left(counts, True, key=lambda count: replace(footprint, deployment=placed(count)).fits)
    return placed(counts[at]) if at < len(counts) - 1 else None


def most_layers(footprint: Footprint) -> int | None:
    """The most layers on the device, as llama.cpp counts them, with which both sides hold a load; ``None`` for none.

    With all of them, and no experts on the host, it is the device alone.
    """
    deployment, offload = footprint.deployment, footprint.deployment.offload
    assert offload is not None  # the caller has looked
    if deployment.engine.experts_alone:
        return None
    for here in range(len(deployment.model.sequence) + 1, -1, -1):
        placed = offload.keeping(here)
        kept = None if not (placed.layers or placed.head or placed.experts) else placed
        if replace(footprint, deployment=replace(deployment, offload=kept)).fits:
            return here
    return None
