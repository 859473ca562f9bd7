"""From a load to an estimate that is known to fit, or to a refusal that says what would."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from inferplan.devices.engine import CADENCE, EngineFlags
from inferplan.errors import InfeasibleError, InferplanError, UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.diffusion import diffusion_estimate
from inferplan.estimate.encode import encode_estimate, encoder_load
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.features import require_together
from inferplan.figures import bars
from inferplan.models.gguf_formats import file_precision, is_file_type
from inferplan.models.spec import require_readable
from inferplan.units import format_bytes
from inferplan.work.formats import find_format, parse_precision

_WIDEST = 64
"""The largest tensor parallelism that is offered to a load that does not fit."""


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
            f"{longest} tokens are more than {model.name} can attend to",
            because=f"its context is {model.max_context} tokens; prompt {int(np.max(result.load.prompt))}"
            + ("" if model.encodes else f" + output {int(np.max(result.load.output))}"),
            hint=f"a shorter --prompt{'' if model.encodes else ' or --output'}, or a model with a longer context",
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
        hint=_fit_hint(result),
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
    return InfeasibleError(
        f"{deployment.describe()} does not fit: not on {' nor on '.join(short)}",
        because="; ".join(because),
        hint=", or ".join(hints) or "a GPU or a host with more memory, or a narrower --quant",
    )


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


def _fit_hint(result: Estimate) -> str:
    """What would make it fit, most direct first; each is tried before it is said."""
    deployment = result.deployment
    best = int(np.min(result.footprint.max_batch()))
    hints = [f"--batch {best}"] if best >= 1 else []
    wider = _wider(result, deployment)
    hints += [wider] if wider else []
    precision, fp8, files = (
        deployment.precision,
        find_format("fp8"),
        deployment.engine.loads("q8_0", deployment.hardware),
    )
    if not files and min(precision.weights.bits, precision.experts.bits) > fp8.bits:
        narrow = replace(deployment, precision=replace(precision, weights=fp8, experts=fp8, exceptions=()))
        if _would_fit(result, narrow):
            hints.append("--weights fp8")
        elif not wider and (over := _wider(result, narrow)):
            hints.append(f"--weights fp8 {over}")
    engine = deployment.engine
    fewer = engine.model_copy(update={"defaults": EngineFlags(max_sequences=128).applied(engine.defaults)})
    if not engine.sized_for_batch and _would_fit(result, replace(deployment, engine=fewer)):
        hints.append("--max-num-seqs 128 (a smaller sampler)")
    hints += [] if any("fp8" in hint for hint in hints) else _narrower(result, deployment)
    return ", or ".join(hints) or "a GPU with more memory"


def _narrower(result: Estimate, deployment: Deployment) -> list[str]:
    """The widest format under 16 bits in which it fits, of those that its engine is seen to load on that device."""
    model, hardware, engine = deployment.model, deployment.hardware, deployment.engine
    if model.native.packed:
        return []
    for name in ("q8_0", "q4_k_m", "w4a16"):
        if not engine.loads(name, hardware):
            continue
        precision = (
            file_precision(model, name) if is_file_type(name) else parse_precision(name, frozenset(hardware.peak))
        )
        if precision.weights.bits < deployment.precision.weights.bits and _would_fit(
            result, replace(deployment, precision=precision)
        ):
            return [f"--quant {name}"]
    return []


def _would_fit(result: Estimate, deployment: Deployment) -> bool:
    return replace(result.footprint, deployment=deployment).fits


def _wider(result: Estimate, deployment: Deployment) -> str:
    """The smallest doubling of its tensor parallelism, or of its stages, that holds the load; empty if none does."""
    name = "pp" if deployment.engine.layers_alone else "tp"
    degree: int = getattr(deployment.parallel, name)
    while (degree := degree * 2) <= _WIDEST:
        own: dict[str, Any] = {name: degree}
        try:
            divided = replace(deployment, parallel=replace(deployment.parallel, **own))
        except InferplanError:
            continue
        if _would_fit(result, divided):
            return f"--{name} {degree}"
    return ""
