"""Joules of a simulated run, by what they were spent on: prompts, decoding, standing idle (docs/power.md).

A device draws one share of TDP while a step runs and another while none does; what kernels add to that comes from the
mean steps of the run. What a mixed step takes beyond the same step without its prompts is theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from inferplan.catalog.power import power_shares
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.draw import step_joules
from inferplan.estimate.phase import run_step
from inferplan.estimate.roofline import ideal_time, price
from inferplan.estimate.structured import MaskedSteps
from inferplan.features import goes_together
from inferplan.serving.options import Options
from inferplan.serving.records import Meter
from inferplan.serving.result import SimulationResult
from inferplan.serving.techniques.speculation import Speculation
from inferplan.work.step import Segment, Step


@dataclass(frozen=True, kw_only=True)
class RunEnergy:
    """Joules of all devices in a run of ``seconds``. prompts, decodes: of the steps. idle: while no step runs.

    on: of all of them what the devices take for being on, less while no step runs (:class:`PowerShares`). busy: seconds
    in which steps run, of all devices together. highest: mean watts of a device in the step that draws most.
    """

    prompts: float
    decodes: float
    idle: float
    on: float
    busy: float
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


class _Pool(NamedTuple):
    """Engines of a run that are alike. present: replicas whose devices are there for the whole run. decodes: whether
    any of their steps decode."""

    deployment: Deployment
    meters: Sequence[Meter]
    speculation: Speculation
    present: float
    decodes: bool = True


def run_energy(deployment: Deployment, result: SimulationResult, options: Options | None = None) -> RunEnergy | None:
    """Where the joules of a run went, the sum over its pools of engines; ``None`` for a run that makes no steps, and
    where that is not known.

    Steps that hold prompts are priced with the mean of them (:func:`prompt_pieces`), decode steps with the mean batch
    and the mean context; with drafts a step is a verification and the passes of a round. What comes from cache tiers
    and from the host's memory is not computed; moving it takes no joules of a device but those for being on, and so
    does a replica that restarts. Raises ``MissingFactError`` without a TDP.
    """
    options = options or Options()
    start, end = result.window
    if end <= start or not len(result.ttft):
        return None
    found = [_pool_energy(pool, result) for pool in _pools(deployment, result, options)]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    added = ("prompts", "decodes", "idle", "on", "busy", "devices")
    whole = RunEnergy(
        **{name: sum(getattr(one, name) for one in known) for name in added},
        seconds=end - start,
        highest=max(one.highest for one in known),
    )
    if options.structured is None:
        return whole
    return replace(whole, decodes=whole.decodes + _mask_joules(deployment, result, options))


def _pools(deployment: Deployment, result: SimulationResult, options: Options) -> list[_Pool]:
    """The pools of a run: those that compute prompts first, where they are apart."""
    fleet, meters, (ranks, _) = options.fleet, result.meters, result.prompt_pool
    present = max(len(meters) // deployment.parallel.dp, 1)
    if not fleet.disaggregated:
        if fleet.failures is not None:  # a replica that comes back runs on the devices of the one that was lost
            present = max(fleet.engines(deployment) // deployment.parallel.dp, 1)
        return [_Pool(deployment, meters, options.speculation, present)]
    prompts = fleet.prefill_deployment or deployment
    return [
        _Pool(prompts, meters[:ranks], options.speculation.beside(prompts), fleet.prefill, False),
        _Pool(deployment, meters[ranks:], options.speculation.beside(deployment), fleet.decode),
    ]


def _pool_energy(pool: _Pool, result: SimulationResult) -> RunEnergy | None:
    deployment, meters, speculation, present, decoded = pool
    start, end = result.window
    ranks = deployment.parallel.dp
    replicas = max(len(meters) // ranks, 1)
    steps = sum(meter.steps for meter in meters) / replicas / ranks
    prompted = sum(meter.prompt_steps for meter in meters) / len(meters)
    written = sum(meter.decode_tokens for meter in meters) / replicas
    together = deployment.engine.batching.mixed and not deployment.model.encodes and decoded
    decoding = steps if together else steps - prompted
    if not steps or not goes_together("simulate", deployment.features | {"energy"}):
        return None
    prompt, output = (float(np.mean(result.records.prompt)), float(np.mean(result.records.output)))
    batch = written / speculation.tokens / max(decoding, 1)
    decodes = _Decodes(max(batch, 1e-9), prompt + output / 2)
    held = _Step(0.0, 0.0, 0.0)
    alone = held if deployment.model.encodes or not decoded else _round(deployment, speculation, decodes, None)
    extra = held
    if prompted:
        tokens = sum(meter.prompt_tokens for meter in meters) / replicas / prompted
        prompts = prompt_pieces(prompt, prompt * result.hit_rate, tokens)
        held = _round(deployment, speculation, decodes if together else None, prompts)
        extra = held.beyond(alone) if together else held
    busy = min(sum(meter.busy for meter in meters) / len(meters), end - start)
    spent = np.array([decoding * alone.seconds, prompted * extra.seconds])
    in_decodes, in_prompts = busy * spent / max(float(np.sum(spent)), 1e-300)
    shares, tdp = power_shares(deployment.hardware), deployment.hardware.tdp * deployment.parallel.ranks
    on, idle = tdp * shares.running, tdp * shares.standing * (present * (end - start) - replicas * busy)
    return RunEnergy(
        prompts=replicas * (on * float(in_prompts) + prompted * extra.worked),
        decodes=replicas * (on * float(in_decodes) + decoding * alone.worked),
        idle=idle,
        on=idle + on * replicas * busy,
        busy=deployment.parallel.ranks * replicas * busy,
        seconds=end - start,
        devices=round(present * deployment.parallel.ranks),
        highest=max(alone.watts if decoding else 0.0, held.watts),
    )


class _Decodes(NamedTuple):
    """Sequences that decode in a step, and the tokens behind each."""

    batch: float
    past: float


@dataclass(frozen=True)
class _Step:
    """Seconds of a step, joules of what its devices work, and mean watts of one of them."""

    seconds: float
    worked: float
    watts: float

    def beyond(self, other: _Step) -> _Step:
        """What this step takes more."""
        return _Step(max(self.seconds - other.seconds, 0.0), max(self.worked - other.worked, 0.0), self.watts)


def _round(
    deployment: Deployment, speculation: Speculation, decodes: _Decodes | None, prompts: Segment | None
) -> _Step:
    """A step, and the passes of drafts before it: the first of them computes the prompts too."""

    def part(one: Deployment, width: float, prompts: Segment | None) -> tuple[float, float]:
        segments = [] if decodes is None else [Segment(batch=decodes.batch, new=width, past=decodes.past)]
        phase = run_step(one, Step(segments=(*segments, *([] if prompts is None else [prompts]))))
        seconds = float(phase.time)
        return seconds, float(step_joules(phase, power_shares(one.hardware), seconds)[1])

    seconds, worked = part(deployment, float(speculation.width), prompts)
    for number, (draft, width, times) in enumerate(speculation.passes):
        if number and decodes is None:
            break
        own = part(draft, float(width), None if number else prompts)
        seconds, worked = seconds + times * own[0], worked + times * own[1]
    on = deployment.hardware.tdp * power_shares(deployment.hardware).running
    return _Step(seconds, worked, on + worked / seconds / deployment.parallel.ranks)


def _mask_joules(deployment: Deployment, result: SimulationResult, options: Options) -> float:
    """Joules in which devices apply the masks of a run: of each token that is written, those of its step."""
    assert options.structured is not None
    start, end = result.window
    steps = MaskedSteps(deployment=deployment, structured=options.structured)
    op = steps.operator(1.0)
    hardware, calibration, _ = deployment.runs_on(op)
    asked, own = ideal_time(op, op.work(), hardware), price(op, hardware, calibration)
    arithmetic, memory = power_shares(hardware).dynamic(asked.math, asked.memory, own.time)
    tokens = result.output_rate * (end - start)
    masks = options.structured.share * tokens * options.speculation.width / options.speculation.tokens
    return float(deployment.hardware.tdp * (arithmetic + memory)) * masks


def prompt_pieces(prompt: float, cached: float, tokens: float) -> Segment:
    """The prompts of a step that computes ``tokens`` of prompts whose first ``cached`` tokens are known: as many whole
    ones as that makes, or the mean piece of one, behind half of the others.

    Attention is in proportion to ``new*(past + new/2)``, so pieces add up to the whole prompt.
    """
    new = max(prompt - cached, 1.0)
    piece = min(tokens, new)
    return Segment(batch=max(tokens / new, 1.0), new=piece, past=cached + (new - piece) / 2, media=True)
