"""The price of one step: the operators of every pipeline stage and the wall time that they add up to."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import Stage, build
from inferplan.estimate.load import UNKNOWN_SHARE, Band, StaticLoad
from inferplan.estimate.roofline import Bound, OpCost, price
from inferplan.units import Num
from inferplan.work.step import Step, prefill


@dataclass(frozen=True, kw_only=True, eq=False)
class Phase:
    """The price of one step: every operator of every pipeline stage, and their sums.

    microbatches: how many a step is cut into; ``rounds`` of the slowest stage pass before the step is done.
    """

    deployment: Deployment
    stages: tuple[tuple[OpCost, ...], ...]
    layers: tuple[int, ...]
    sequences: Num
    microbatches: Num
    rounds: Num

    @cached_property
    def stage_times(self) -> list[Num]:
        """Seconds of each stage for one microbatch."""
        layer = self.deployment.calibration.step.layer
        return [
            sum((cost.total for cost in costs), start=0.0) + layer * layers
            for costs, layers in zip(self.stages, self.layers)
        ]

    @cached_property
    def host(self) -> Num:
        """Seconds of scheduling and bookkeeping outside the kernels."""
        step = self.deployment.calibration.step
        return step.host + step.sequence * self.sequences

    @cached_property
    def time(self) -> Num:
        """Wall seconds of the step."""
        slowest = self.stage_times[0]
        for other in self.stage_times[1:]:
            slowest = np.maximum(slowest, other)
        return slowest * self.rounds + self.host

    @property
    def costs(self) -> list[OpCost]:
        return [cost for stage in self.stages for cost in stage]

    def _sum(self, quantity: str) -> Num:
        return sum(
            (getattr(c.work, quantity) * c.op.count * c.op.ranks * self.microbatches for c in self.costs), start=0.0
        )

    @cached_property
    def flop(self) -> Num:
        """FLOP over all ranks of the replica, of real sequences: places that attention ranks leave empty do no work."""
        return self._sum("flop") * self.occupied

    @property
    def occupied(self) -> Num:
        """The share of the places of all attention ranks that hold a sequence; time is that of the fullest rank."""
        dp = self.deployment.parallel.dp
        if dp == 1:
            return 1.0
        each = self.sequences / self.microbatches / dp
        return each / np.ceil(each)

    @cached_property
    def bytes(self) -> Num:
        """Bytes of device memory traffic over all ranks of the replica."""
        return self._sum("bytes")

    @cached_property
    def wire(self) -> Num:
        """Bytes sent over links by all ranks of the replica."""
        return self._sum("wire")

    @cached_property
    def resident(self) -> Num:
        """Bytes of weights and state read, over all ranks of the replica."""
        return sum((c.op.resident() * c.op.count * c.op.ranks * self.microbatches for c in self.costs), start=0.0)

    @property
    def intensity(self) -> Num:
        """FLOP per byte."""
        return self.flop / self.bytes

    def by_operator(self) -> dict[str, Num]:
        """Seconds by operator name, of the stage that is slowest, times the rounds; the host's share last."""
        totals: dict[str, Num] = defaultdict(float)
        slowest = int(np.argmax([float(np.max(time)) for time in self.stage_times]))
        for cost in self.stages[slowest]:
            totals[cost.op.name] = totals[cost.op.name] + cost.total * self.rounds
        rest = self.host + self.deployment.calibration.step.layer * self.layers[slowest] * self.rounds
        if np.any(rest):
            totals["host"] = rest
        return dict(totals)

    def by(self, prefix: str) -> Num:
        """Seconds of the operators whose dotted name begins with ``prefix``."""
        return sum((t for n, t in self.by_operator().items() if n == prefix or n.startswith(f"{prefix}.")), start=0.0)

    def by_bound(self) -> dict[Bound, float]:
        """Seconds by what binds the operator (of a grid: summed over it)."""
        totals: dict[Bound, float] = defaultdict(float)
        for cost in self.costs:
            totals[cost.bound] += float(np.sum(cost.total))
        return dict(totals)

    @property
    def bound(self) -> Bound:
        """The resource that binds most of the time."""
        totals = self.by_bound()
        return max(totals, key=lambda name: totals[name])

    def by_basis(self) -> dict[str, float]:
        """The share of kernel time by what its constants rest on."""
        totals: dict[str, float] = defaultdict(float)
        for cost in self.costs:
            totals[cost.basis] += float(np.sum(cost.total))
        whole = sum(totals.values()) or 1.0
        return {basis: time / whole for basis, time in totals.items()}

    @cached_property
    def band(self) -> Band | None:
        """Factors on its time between which 80 % of measurements of its kernels lie; ``None`` when not known.

        The bands of the operators weighted by their time, as if all were off together. Unknown when operators without a
        held-out error take more than :data:`UNKNOWN_SHARE` of it.
        """
        whole = known = low = high = 0.0
        for cost in self.costs:
            time = float(np.sum(cost.total))
            whole += time
            if cost.band is not None:
                known += time
                low += time * cost.band[0]
                high += time * cost.band[1]
        if whole == 0.0 or known < (1.0 - UNKNOWN_SHARE) * whole:
            return None
        return low / known, high / known

    @property
    def mfu(self) -> Num:
        """Model FLOP utilisation: ``flop/(time*peak*ranks)``."""
        deployment = self.deployment
        peak = deployment.hardware.peak_of(deployment.math)
        return self.flop / (self.time * peak * deployment.parallel.ranks)

    @property
    def mbu(self) -> Num:
        """Model bandwidth utilisation: ``(weights + state read)/(time*bandwidth*ranks)``."""
        deployment = self.deployment
        return self.resident / (self.time * deployment.hardware.memory.bandwidth * deployment.parallel.ranks)


def run_step(deployment: Deployment, step: Step) -> Phase:
    """Price one step that is not cut into microbatches: its pipeline stages run one after the other."""
    return _phase(deployment, build(deployment, step), step.sequences, 1.0, float(deployment.parallel.pp))


def _phase(deployment: Deployment, stages: list[Stage], sequences: Num, microbatches: Num, rounds: Num) -> Phase:
    return Phase(
        deployment=deployment,
        stages=tuple(
            tuple(price(op, deployment.hardware, deployment.calibration) for op in stage.ops) for stage in stages
        ),
        layers=tuple(stage.layers for stage in stages),
        sequences=sequences,
        microbatches=microbatches,
        rounds=rounds,
    )


def _microbatches(deployment: Deployment, batch: Num) -> Num:
    """Microbatches of a pipeline: ``min(pp, batch)``, of the sequences that one attention rank has of the batch."""
    parallel = deployment.parallel
    if parallel.pp == 1:
        return 1.0
    return np.minimum(float(parallel.pp), batch if parallel.dp == 1 else np.ceil(batch / parallel.dp))


def prefill_phase(deployment: Deployment, load: StaticLoad) -> Phase:
    """The whole batch's prompts. With pipelining: ``(m + pp - 1)`` times the slowest stage, ``m = min(pp, batch)``."""
    pp, m = deployment.parallel.pp, _microbatches(deployment, load.batch)
    step = prefill(load.batch / m, load.prompt)
    if load.all_logits:
        step = Step(segments=step.segments, logits=step.tokens)
    return _phase(deployment, build(deployment, step), load.batch, m, m + pp - 1)


def decode_phase(deployment: Deployment, load: StaticLoad, past: Num) -> Phase:
    """One decode step of the whole batch. With pipelining: ``max(m, pp)`` times the slowest stage."""
    pp, m = deployment.parallel.pp, _microbatches(deployment, load.batch)
    micro = StaticLoad(batch=load.batch / m, prompt=load.prompt, output=load.output, kv_cache=load.kv_cache)
    stages = build(deployment, micro.decode_step(past))
    return _phase(deployment, stages, load.batch, m, np.maximum(m, float(pp)) if pp > 1 else 1.0)
