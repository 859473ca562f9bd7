"""Watts of an accelerator from what a simulated run asks of its arithmetic and its memory.

``P = TDP * min(1, idle + arithmetic*u_arithmetic + memory*u_memory)``: a device that runs any kernel draws ``idle``;
each utilisation is the time that the run's FLOP, or bytes, take at the device's peak, over the time of the run. Linear,
so the mean of a run follows from its means. The shares are fitted to measured kernels (``configs/power.yaml``).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from inferplan.catalog.files import config_root, spec_of
from inferplan.devices.engine import mixes
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import run_step
from inferplan.estimate.roofline import ideal_time
from inferplan.serving.result import SimulationResult
from inferplan.spec import Spec
from inferplan.work.step import Segment, Step


class PowerShares(Spec):
    """Shares of TDP: of a device that runs kernels at all, and what full arithmetic and full memory traffic add."""

    source: str
    idle: float
    arithmetic: float
    memory: float

    def watts(self, tdp: float, use: Utilisation) -> float:
        """Mean watts of a device of ``tdp`` watts."""
        return tdp * min(self.idle + self.arithmetic * use.arithmetic + self.memory * use.memory, 1.0)


class Utilisation(NamedTuple):
    """Shares of a run's time that its FLOP and its bytes take at a device's peak, mean over the devices."""

    arithmetic: float
    memory: float


@cache
def power_shares() -> PowerShares:
    """The shares on file, of all devices alike."""
    path = config_root() / "power.yaml"
    return spec_of(path, PowerShares)


def utilisation(deployment: Deployment, result: SimulationResult) -> Utilisation | None:
    """What a run of one pool without drafts asks of its devices; ``None`` for a run that makes no steps.

    Steps that hold prompts are priced with the mean of them (:func:`prompt_pieces`), decode steps with the mean batch
    and the mean context.
    """
    meters, (start, end) = result.meters, result.window
    ranks, policy = deployment.parallel.dp, deployment.engine.policy
    steps = sum(meter.steps for meter in meters) / max(len(meters) // ranks, 1) / ranks
    prompted = sum(meter.prompt_steps for meter in meters) / len(meters)
    decoding = steps if mixes(policy) else steps - prompted
    if not steps or end <= start or not len(result.ttft):
        return None
    replicas = max(len(meters) // ranks, 1)
    prompt, output = (float(np.mean(result.records.prompt)), float(np.mean(result.records.output)))
    batch = sum(meter.decode_tokens for meter in meters) / replicas / max(decoding, 1)
    decodes = Segment(batch=max(batch, 1e-9), new=1.0, past=prompt + output / 2)
    total = (steps - prompted) * _seconds(deployment, (decodes,))
    if prompted:
        tokens = sum(meter.prompt_tokens for meter in meters) / replicas / prompted
        prompts = prompt_pieces(prompt, prompt * result.hit_rate, tokens)
        total = total + prompted * _seconds(deployment, (decodes, prompts) if mixes(policy) else (prompts,))
    return Utilisation(*(float(value) for value in total / (end - start)))


def prompt_pieces(prompt: float, cached: float, tokens: float) -> Segment:
    """The prompts of a step that computes ``tokens`` of prompts whose first ``cached`` tokens are known: as many whole
    ones as that makes, or the mean piece of one, behind half of the others.

    Attention is in proportion to ``new*(past + new/2)``, so pieces add up to the whole prompt.
    """
    new = max(prompt - cached, 1.0)
    piece = min(tokens, new)
    return Segment(batch=max(tokens / new, 1.0), new=piece, past=cached + (new - piece) / 2, media=True)


def _seconds(
    deployment: Deployment, segments: tuple[Segment, ...]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Seconds that the arithmetic and the memory traffic of a step take at the peak of a device, mean over devices."""
    total = np.zeros(2)
    for cost in run_step(deployment, Step(segments=segments)).costs:
        ideal = ideal_time(cost.op, cost.work, deployment.hardware)
        total += np.array([float(ideal.math), float(ideal.memory)]) * cost.op.count * cost.op.ranks
    return total / deployment.parallel.ranks
