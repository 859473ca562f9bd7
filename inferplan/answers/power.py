"""Joules of a simulated run, by what they were spent on: prompts, decoding, standing idle (docs/power.md).

A device draws its idle share of TDP for as long as the run lasts; what kernels add to that comes from the mean steps of
the run. What a mixed step takes beyond the same step without its prompts is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferplan.catalog.power import power_shares
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.draw import step_joules
from inferplan.estimate.phase import run_step
from inferplan.features import goes_together
from inferplan.serving.result import SimulationResult
from inferplan.work.step import Segment, Step


@dataclass(frozen=True, kw_only=True)
class RunEnergy:
    """Joules of all devices in a run of ``seconds``. prompts, decodes: of the steps. idle: while no step runs.

    on: of all of them what the devices take for being on. highest: mean watts of a device in the step that draws most.
    """

    prompts: float
    decodes: float
    idle: float
    on: float
    seconds: float
    devices: int
    highest: float

    @property
    def joules(self) -> float:
        """Of the whole run."""
        return self.prompts + self.decodes + self.idle

    @property
    def watts(self) -> float:
        """Mean of a device."""
        return self.joules / self.seconds / self.devices


def run_energy(deployment: Deployment, result: SimulationResult) -> RunEnergy | None:
    """Where the joules of a run of one pool without drafts went; ``None`` for a run that makes no steps, and where that
    is not known.

    Steps that hold prompts are priced with the mean of them (:func:`prompt_pieces`), decode steps with the mean batch
    and the mean context. Raises ``MissingFactError`` without a TDP.
    """
    known = goes_together("simulate", deployment.features | {"energy"})
    meters, (start, end) = result.meters, result.window
    ranks = deployment.parallel.dp
    replicas = max(len(meters) // ranks, 1)
    steps = sum(meter.steps for meter in meters) / replicas / ranks
    prompted = sum(meter.prompt_steps for meter in meters) / len(meters)
    together = deployment.engine.batching.mixed and not deployment.model.encodes
    decoding = steps if together else steps - prompted
    if not steps or end <= start or not len(result.ttft) or not known:
        return None
    prompt, output = (float(np.mean(result.records.prompt)), float(np.mean(result.records.output)))
    batch = sum(meter.decode_tokens for meter in meters) / replicas / max(decoding, 1)
    decodes = Segment(batch=max(batch, 1e-9), new=1.0, past=prompt + output / 2)
    held = _Step(0.0, 0.0, 0.0)
    alone = held if deployment.model.encodes else _step(deployment, (decodes,))
    extra = held
    if prompted:
        tokens = sum(meter.prompt_tokens for meter in meters) / replicas / prompted
        prompts = prompt_pieces(prompt, prompt * result.hit_rate, tokens)
        held = _step(deployment, (decodes, prompts) if together else (prompts,))
        extra = held.beyond(alone) if together else held
    busy = min(sum(meter.busy for meter in meters) / len(meters), end - start)
    spent = np.array([decoding * alone.seconds, prompted * extra.seconds])
    in_decodes, in_prompts = busy * spent / max(float(np.sum(spent)), 1e-300)
    on = deployment.hardware.tdp * power_shares().idle * deployment.parallel.ranks
    return RunEnergy(
        prompts=replicas * (on * float(in_prompts) + prompted * extra.worked),
        decodes=replicas * (on * float(in_decodes) + decoding * alone.worked),
        idle=replicas * on * (end - start - busy),
        on=replicas * on * (end - start),
        seconds=end - start,
        devices=replicas * deployment.parallel.ranks,
        highest=max(alone.watts if decoding else 0.0, held.watts),
    )


@dataclass(frozen=True)
class _Step:
    """Seconds of a step, joules of what its devices work, and mean watts of one of them."""

    seconds: float
    worked: float
    watts: float

    def beyond(self, other: _Step) -> _Step:
        """What this step takes more."""
        return _Step(max(self.seconds - other.seconds, 0.0), max(self.worked - other.worked, 0.0), self.watts)


def _step(deployment: Deployment, segments: tuple[Segment, ...]) -> _Step:
    phase = run_step(deployment, Step(segments=segments))
    seconds = float(phase.time)
    on, worked = (float(part) for part in step_joules(phase, power_shares(), seconds))
    return _Step(seconds, worked, (on + worked) / seconds / deployment.parallel.ranks)


def prompt_pieces(prompt: float, cached: float, tokens: float) -> Segment:
    """The prompts of a step that computes ``tokens`` of prompts whose first ``cached`` tokens are known: as many whole
    ones as that makes, or the mean piece of one, behind half of the others.

    Attention is in proportion to ``new*(past + new/2)``, so pieces add up to the whole prompt.
    """
    new = max(prompt - cached, 1.0)
    piece = min(tokens, new)
    return Segment(batch=max(tokens / new, 1.0), new=piece, past=cached + (new - piece) / 2, media=True)
