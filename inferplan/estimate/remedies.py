"""What would make a load fit that does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from inferplan.devices.engine import EngineFlags
from inferplan.errors import InferplanError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.formats import default_quants, quantised
from inferplan.estimate.memory import Footprint
from inferplan.work.formats import find_format

_WIDEST = 64
"""The largest tensor parallelism that is offered to a load that does not fit."""


def what_would_fit(footprint: Footprint) -> str:
    """What would make it fit, most direct first; each is tried before it is said."""
    deployment = footprint.deployment
    best = int(np.min(footprint.max_batch()))
    hints = [f"--batch {best}"] if best >= 1 else []
    wider = _wider(footprint, deployment)
    hints += [wider] if wider else []
    precision, fp8 = deployment.precision, find_format("fp8")
    if not deployment.engine.files_alone and min(precision.weights.bits, precision.experts.bits) > fp8.bits:
        narrow = replace(deployment, precision=replace(precision, weights=fp8, experts=fp8, exceptions=()))
        if _would_fit(footprint, narrow):
            hints.append("--weights fp8")
        elif not wider and (over := _wider(footprint, narrow)):
            hints.append(f"--weights fp8 {over}")
    engine = deployment.engine
    fewer = engine.model_copy(update={"defaults": EngineFlags(max_sequences=128).applied(engine.defaults)})
    if not engine.sized_for_batch and _would_fit(footprint, replace(deployment, engine=fewer)):
        hints.append("--max-num-seqs 128 (a smaller sampler)")
    hints += [] if any("fp8" in hint for hint in hints) else _narrower(footprint, deployment)
    return ", or ".join(hints) or "a GPU with more memory"


def _narrower(footprint: Footprint, deployment: Deployment) -> list[str]:
    """The widest format under 16 bits in which it fits, of those that its engine is seen to load on that device."""
    model, hardware, own = deployment.model, deployment.hardware, deployment.precision
    tried = dict[str, Callable[[], Deployment]]()
    for name in default_quants(model, hardware, deployment.engine) if not model.native.packed else ():
        if name and (found := quantised(model, name, hardware, model.native.base)).weights.bits < own.weights.bits:
            tried[f"--quant {name}"] = partial(replace, deployment, precision=replace(found, kv=own.kv))
    return [said for said, fits in that_run(tried, partial(_would_fit, footprint)).items() if fits][:1]


def that_run(tried: Mapping[str, Callable[[], Deployment]], holds: Callable[[Deployment], bool]) -> dict[str, bool]:
    """Options with which a deployment can be, and whether it holds a load then."""
    found = dict[str, bool]()
    for said, made in tried.items():
        with suppress(InferplanError):
            found[said] = holds(made())
    return found


def _would_fit(footprint: Footprint, deployment: Deployment) -> bool:
    return replace(footprint, deployment=deployment).fits


def _wider(footprint: Footprint, deployment: Deployment) -> str:
    """The smallest doubling of its tensor parallelism, or of its stages, that holds the load; empty if none does."""
    name = "pp" if deployment.engine.layers_alone else "tp"
    degree: int = getattr(deployment.parallel, name)
    while (degree := degree * 2) <= _WIDEST:
        own: dict[str, Any] = {name: degree}
        try:
            divided = replace(deployment, parallel=replace(deployment.parallel, **own))
        except InferplanError:
            continue
        if _would_fit(footprint, divided):
            return f"--{name} {degree}"
    return ""
