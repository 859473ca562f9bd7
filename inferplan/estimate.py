"""Graph times roofline: what a static batch costs in each phase, and what binds it.

A batch is prefilled together and then decoded together. ``TTFT`` is the prefill. Decode step ``i = 1 .. output - 1``
has ``prompt + i - 1`` tokens behind it; ``TPOT`` is the mean of those steps and total latency is
``TTFT + (output - 1)*TPOT``: the first token comes from the prefill.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from inferplan.deployment import Deployment
from inferplan.engine import EngineFlags
from inferplan.errors import InfeasibleError, InferplanError, UsageError
from inferplan.graph import Stage, build, masks
from inferplan.memory import Footprint
from inferplan.precision import find_format
from inferplan.roofline import Bound, OpCost, price
from inferplan.units import Num, format_bytes
from inferplan.workload import Step, decode, prefill, recompute

_RECOMPUTED_PIECES = 16
"""Pieces over which the mean step without a KV cache is taken."""
_WIDEST = 64
"""The largest tensor parallelism that is offered to a load that does not fit."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StaticLoad:
    """A static batch: ``batch`` sequences per replica of ``prompt`` tokens, each generating ``output``."""

    batch: Num = 1.0
    prompt: Num = 1024.0
    output: Num = 256.0
    kv_cache: bool = True
    all_logits: bool = False
    """The prefill sends every position through the head, not only the last."""

    def __post_init__(self) -> None:
        for name in ("batch", "prompt", "output"):
            if np.any(np.asarray(getattr(self, name)) < 1):
                raise UsageError(f"--{name} must be 1 or more")

    @property
    def context(self) -> Num:
        """Tokens of a sequence at its end."""
        return self.prompt + self.output

    def decode_step(self, past: Num) -> Step:
        return decode(self.batch, past) if self.kv_cache else recompute(self.batch, past)


Band = tuple[float, float]
UNKNOWN_SHARE = 0.02
"""The share of a time that operators without a known error may have before its band is unknown."""


def widened(kernels: Band | None, step: Band | None) -> Band | None:
    """The band of a latency from its kernels' and from what serving adds: independent, so the squares of logs add."""
    if kernels is None or step is None:
        return None
    low = float(np.hypot(np.log(min(kernels[0], 1.0)), np.log(min(step[0], 1.0))))
    high = float(np.hypot(np.log(max(kernels[1], 1.0)), np.log(max(step[1], 1.0))))
    return float(np.exp(-low)), float(np.exp(high))


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """A static batch on a deployment: its phases, latencies, throughput and memory. Scalars or arrays, as the load."""

    deployment: Deployment
    load: StaticLoad

    @cached_property
    def footprint(self) -> Footprint:
        tokens, logits = self._longest_pass
        return Footprint(
            deployment=self.deployment,
            batch=self.load.batch,
            prompt=tokens,
            context=self.load.context,
            cached=self.load.kv_cache,
            logits=logits,
        )

    @property
    def _longest_pass(self) -> tuple[Num, Num]:
        """Tokens of one sequence in its longest pass, and how many of them go through the head."""
        load = self.load
        tokens = load.prompt if load.kv_cache else load.context - 1.0
        return tokens, load.prompt if load.all_logits else 1.0

    @cached_property
    def prefill(self) -> Phase:
        return prefill_phase(self.deployment, self.load)

    @cached_property
    def decode(self) -> Phase:
        """One decode step at the mean context of the generation (at the prompt when there is no decode step)."""
        return decode_phase(self.deployment, self.load, self.load.prompt + np.maximum(self.load.output - 2.0, 0.0) / 2)

    @cached_property
    def ttft(self) -> Num:
        """Seconds to the first token: the prefill, times the anchor if there is one. No queue: the batch is alone."""
        return self.prefill.time * self._anchor("prefill")

    @cached_property
    def tpot(self) -> Num:
        """Mean seconds of decode steps 1 .. output - 1; NaN when output is 1."""
        return self._mean_decode() * self._anchor("decode")

    @cached_property
    def tpot_start(self) -> Num:
        """Seconds of the first decode step."""
        return decode_phase(self.deployment, self.load, self.load.prompt).time * self._anchor("decode")

    @cached_property
    def tpot_end(self) -> Num:
        """Seconds of the last decode step."""
        last = self.load.prompt + np.maximum(self.load.output - 2.0, 0.0)
        return decode_phase(self.deployment, self.load, last).time * self._anchor("decode")

    def _anchor(self, phase: str) -> float:
        anchor = self.deployment.calibration.anchor
        return 1.0 if anchor is None else float(getattr(anchor, phase))

    def band(self, metric: str) -> Band | None:
        """Factors on ``ttft``, ``tpot`` or ``e2el`` between which 80 % of measurements lie; ``None`` when unknown."""
        if metric == "e2el":
            first, rest = self.band("ttft"), self.band("tpot")
            if first is None or rest is None:
                return None
            share = float(np.mean(self.ttft / self.e2el))
            return share * first[0] + (1 - share) * rest[0], share * first[1] + (1 - share) * rest[1]
        phase = self.prefill if metric == "ttft" else self.decode
        return widened(phase.band, self.deployment.calibration.bands.get(metric))

    @cached_property
    def e2el(self) -> Num:
        """Seconds from the request to its last token: ``TTFT + (output - 1)*TPOT``."""
        steps = self.load.output - 1.0
        return self.ttft + np.where(steps > 0, steps * np.nan_to_num(self.tpot), 0.0)

    @property
    def output_rate(self) -> Num:
        """Output tokens a second over all replicas."""
        return self.deployment.parallel.replicas * self.load.batch * self.load.output / self.e2el

    @property
    def total_rate(self) -> Num:
        """Input and output tokens a second over all replicas."""
        return self.output_rate * (self.load.prompt + self.load.output) / self.load.output

    @property
    def request_rate(self) -> Num:
        return self.output_rate / self.load.output

    @property
    def basis(self) -> str:
        """What most of the time rests on: ``roofline``, ``calibrated``, ``transferred`` or ``extrapolated``."""
        shares: dict[str, float] = defaultdict(float)
        for phase, time in ((self.prefill, self.ttft), (self.decode, self.e2el - self.ttft)):
            for basis, share in phase.by_basis().items():
                shares[basis] += share * float(np.sum(time))
        return max(shares, key=lambda name: shares[name])

    def require_fit(self) -> None:
        """Raise ``InfeasibleError`` when the load does not fit, or is longer than the model's context."""
        require_context(self)
        require_memory(self)

    def _mean_decode(self) -> Num:
        """Mean over integer steps by two-point Gauss quadrature on each piece between the kinks of the masks.

        A piece of ``n`` steps about ``c`` is sampled at ``c +- sqrt((n^2 - 1)/12)``: the first three moments of the
        steps are matched, so the mean is exact for a cubic, and for anything linear in the context.
        """
        prompt, steps = np.asarray(self.load.prompt, dtype=float), np.asarray(self.load.output - 1.0, dtype=float)
        shape = np.broadcast(prompt, steps, np.asarray(self.load.batch)).shape
        total: Num = np.zeros(shape)
        for low, high in pairwise(self._edges(prompt, steps)):
            count = high - low
            if not np.any(count > 0):
                continue
            centre = np.broadcast_to(prompt + low + np.maximum(count - 1.0, 0.0) / 2, shape)
            spread = np.sqrt(np.maximum(count * count - 1.0, 0.0) / 12.0)
            pair = np.stack([centre - spread, centre + spread])  # one graph: what has no past is priced once
            times = np.broadcast_to(decode_phase(self.deployment, self.load, pair).time, pair.shape)
            total = total + count * (times[0] + times[1]) / 2
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(steps > 0, total / steps, np.nan)
        return float(mean) if mean.ndim == 0 else mean

    def _edges(self, prompt: npt.NDArray[np.float64], steps: npt.NDArray[np.float64]) -> list[npt.NDArray[np.float64]]:
        """Step numbers at which a mask's reach changes its slope, with the first and the last step around them."""
        kinks: set[float] = set()
        low, high = float(np.min(prompt)), float(np.max(prompt + steps))
        point = StaticLoad(batch=1.0, prompt=low, output=2.0, kv_cache=self.load.kv_cache)
        for kind, size in masks(build(self.deployment, point.decode_step(low))):
            if kind == "chunk":
                kinks |= {k * size for k in range(int(low // size) + 1, int(high // size) + 1)}
            elif size and low < size < high:
                kinks.add(float(size))
        inner = [np.clip(kink - prompt, 0.0, steps) for kink in sorted(kinks)]
        if not self.load.kv_cache:  # a recomputed prefix grows through the ridge points of its operators
            inner += [np.floor(steps * piece / _RECOMPUTED_PIECES) for piece in range(1, _RECOMPUTED_PIECES)]
            inner = list(np.sort(np.stack(np.broadcast_arrays(*inner)), axis=0))
        return [np.zeros_like(steps), *inner, steps]


def estimate(deployment: Deployment, load: StaticLoad) -> Estimate:
    """The estimate of a static batch; raises ``InfeasibleError`` or ``UsageError`` for a load that cannot run."""
    result = Estimate(deployment=deployment, load=load)
    if deployment.model.generation.kind == "diffusion":
        from inferplan.diffusion import diffusion_estimate

        result = diffusion_estimate(deployment, load)
    result.require_fit()
    return result


def require_context(result: Estimate) -> None:
    """Raise ``UsageError`` when the sequences are longer than the model's context."""
    model, longest = result.deployment.model, int(np.max(result.load.context))
    if model.max_context is not None and longest > model.max_context:
        raise UsageError(
            f"{longest} tokens are more than {model.name} can attend to",
            because=f"its context is {model.max_context} tokens; prompt {int(np.max(result.load.prompt))} + output "
            f"{int(np.max(result.load.output))}",
            hint="a shorter --prompt or --output, or a model with a longer context",
        )


def require_memory(result: Estimate) -> None:
    """Raise ``InfeasibleError`` when the fullest device does not hold the load, with what would."""
    footprint, deployment = result.footprint, result.deployment
    if footprint.fits:
        return
    parts = {
        "weights": footprint.weights,
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
    )


def _fit_hint(result: Estimate) -> str:
    """What would make it fit, most direct first; each is tried before it is said."""
    deployment = result.deployment
    best = int(np.min(result.footprint.max_batch()))
    hints = [f"--batch {best}"] if best >= 1 else []
    wider = _wider(result, deployment)
    hints += [f"--tp {wider}"] if wider else []
    precision, fp8 = deployment.precision, find_format("fp8")
    if min(precision.weights.bits, precision.experts.bits) > fp8.bits:
        narrow = replace(deployment, precision=replace(precision, weights=fp8, experts=fp8, exceptions=()))
        if _would_fit(result, narrow):
            hints.append("--weights fp8")
        elif not wider and (tp := _wider(result, narrow)):
            hints.append(f"--weights fp8 --tp {tp}")
    engine = deployment.engine
    fewer = engine.model_copy(update={"defaults": EngineFlags(max_sequences=128).applied(engine.defaults)})
    if engine.name != "none" and _would_fit(result, replace(deployment, engine=fewer)):
        hints.append("--max-num-seqs 128 (a smaller sampler)")
    return ", or ".join(hints) or "a GPU with more memory"


def _would_fit(result: Estimate, deployment: Deployment) -> bool:
    return replace(result.footprint, deployment=deployment).fits


def _wider(result: Estimate, deployment: Deployment) -> int | None:
    """The smallest doubling of its tensor parallelism that holds the load, if any does."""
    tp = deployment.parallel.tp
    while (tp := tp * 2) <= _WIDEST:
        try:
            divided = replace(deployment, parallel=replace(deployment.parallel, tp=tp))
        except InferplanError:
            continue
        if _would_fit(result, divided):
            return tp
    return None
