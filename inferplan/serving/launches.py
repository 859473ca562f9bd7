"""Host seconds of a step whose kernels are launched one by one: how fast it can be at most."""

from __future__ import annotations

import numpy as np

from inferplan.estimate.deployment import Deployment, found_once
from inferplan.estimate.graph import halves_of
from inferplan.models.layers import LayerSpec
from inferplan.models.spec import LayerGroup
from inferplan.units import Num
from inferplan.work.step import Step


@found_once
def eager_floors(deployment: Deployment, replayed: bool = False) -> list[float]:
    """Host seconds of each stage of a step that holds a prompt: layers launched kernel by kernel (docs/serving.md).

    Zeros where steps are priced at the bare roofline, because nothing else is charged for the host there either.
    replayed: of a step of few tokens, whose graphs hold all layers, or all but the mixers with a recurrent state.
    """
    model, constants, pp = deployment.model, deployment.engine.serving, deployment.parallel.pp
    if deployment.calibration.basis == "roofline" or (replayed and constants.graphs_hold_state):
        return [0.0] * pp
    latent = constants.eager_latent if deployment.hardware.vendor in constants.eager_latent_vendors else 1.0
    floors = []
    for layers in model.stages(pp):
        eager = [(layer, _launched(layer, replayed), number) for layer, number in layers]
        count = sum(number * _blocks(parts) * (latent if _latent(layer) else 1.0) for layer, parts, number in eager)
        floors.append(count * launched_layer(deployment))
    if model.encoder is not None and not replayed:
        floors[0] += model.encoder.depth * constants.eager_layer
    return floors


def launched_layer(deployment: Deployment) -> float:
    """Host seconds of a layer that is launched kernel by kernel, with those of its adapters where there are any."""
    constants, lora = deployment.engine.serving, deployment.lora
    adapted = constants.eager_adapted if lora is not None and lora.active else None
    return constants.eager_layer if adapted is None else adapted


def launch_floors(deployment: Deployment, step: Step) -> list[Num]:
    """:func:`eager_floors` of a step that holds a prompt: of few tokens those that graphs leave, twice where kernels
    are launched for each of two half batches."""
    floors = eager_floors(deployment)
    if not any(floors):
        return []
    eager = step.tokens > deployment.engine.serving.graph_tokens
    both = zip(floors, eager_floors(deployment, replayed=True))
    return [np.where(eager, floor, left) * halves_of(deployment, step) for floor, left in both]


def _launched(layer: LayerGroup, replayed: bool) -> list[LayerSpec]:
    """The parts of a layer that the host launches: all, or those with a state, which captured graphs leave out."""
    return [part for part in layer.parts if not replayed or part.cache().state]


def _blocks(parts: list[LayerSpec]) -> float:
    """What parts count of a layer with a mixer and a feed-forward, as those are whose launches were measured: a half
    where it is one of the two alone (Mamba, Nemotron-H; a mixer between captured feed-forwards)."""
    return min(len(parts) / 2, 1.0)


def _latent(layer: LayerGroup) -> bool:
    """Whether a layer has latent attention."""
    return layer.mixer is not None and layer.mixer.kind == "mla"
