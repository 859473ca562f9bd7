"""The closed form over a whole grid: every decode batch and token budget of one deployment, through one graph.

Formulas and their limits are in docs/planning.md. The grid is laid over what one attention rank decodes at once, not
over the users, so that nothing has to be solved for: rate, waiting and the number of users follow from it.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import Stage, build
from inferplan.estimate.memory import Footprint
from inferplan.estimate.roofline import OpCost, price
from inferplan.planning.demand import Demand, tail, variance
from inferplan.serving.step_times import eager_floor
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.work.ops import Op
from inferplan.work.step import Segment, Step

Array = npt.NDArray[np.float64]
REASONS = ("memory", "slots", "prefill", "ttft", "tpot", "e2el")
"""Why a point of the grid is no plan, in the order in which they are asked."""


class Points(NamedTuple):
    """Steps to price, one a row: decodes and their context, prompts with new and cached tokens."""

    batch: Array
    context: Array
    prompts: Array
    new: Array
    past: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Axes:
    """The grid: sequences that one attention rank decodes at once, and tokens a step may hold."""

    batch: Array
    budget: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadGrid:
    """One deployment under a demand over a grid (batch down, budget across); times in seconds, rates of one replica.

    ttft, tpot, e2el: at the percentile asked for (screening formulas; finalists are simulated). concurrency: requests
    in the system. step_decode, step_mixed: of a step, which yields ``speculation.tokens`` tokens a request.
    """

    deployment: Deployment
    axes: Axes
    step_decode: Array
    step_mixed: Array
    prefill: Array
    rate: Array
    ttft: Array
    tpot: Array
    e2el: Array
    concurrency: Array
    memory_use: Array
    """Tokens' worth of state over the cache, at two standard deviations above the mean."""
    prefill_use: Array
    """Prompt tokens that must be computed over those that the steps have room for."""
    slots: float
    speculation: Speculation = PLAIN

    @cached_property
    def possible(self) -> npt.NDArray[np.bool_]:
        """Points that can run for long, whatever their latency."""
        return (self.memory_use <= 1) & (self.prefill_use < 1) & (self.concurrency <= self.slots)

    @property
    def devices(self) -> int:
        return self.deployment.parallel.ranks


def axes_for(deployment: Deployment, budgets: list[int] | None = None) -> Axes:
    """Every batch to 128, then 2.5 % apart up to the engine's slots; the engine's budget and others about it."""
    tier = deployment.engine.defaults.tier(deployment.hardware)
    most = min(tier.max_sequences, 4096)
    batch = _batches(float(most))
    chosen = budgets or sorted({512, 1024, 1536, 2048, 3072, 4096, 8192, 16384, tier.token_budget})
    return Axes(batch=batch, budget=np.array([float(budget) for budget in chosen]))


@cache
def _batches(most: float) -> Array:
    dense = min(128.0, most)
    count = max(round(np.log(most / dense) / np.log(1.025)), 1)
    return np.unique(np.round(np.concatenate([np.arange(1, dense + 1), np.geomspace(dense, most, count + 1)])))


def load_grid(
    deployment: Deployment, demand: Demand, percentile: float, axes: Axes, speculation: Speculation = PLAIN
) -> LoadGrid:
    """Price the grid: one graph, three kinds of step (decodes alone, those that hold prompts, prompts alone).

    The mean values are those of :mod:`inferplan.serving.steady` at the batch that this grid is laid over.
    """
    rules, serving, dp = deployment.engine.defaults.scheduler, deployment.engine.serving, deployment.parallel.dp
    mixed_policy = deployment.engine.policy in ("vllm", "trtllm")
    ideal = deployment.calibration.basis == "roofline"
    prompt, steps = demand.prompt.average - demand.cached, (demand.output.average - 1.0) / speculation.tokens
    batch = axes.batch[:, None]
    beside = batch * speculation.width if mixed_policy else 0.0
    coming = batch / steps
    room = np.maximum(axes.budget[None, :] - beside, 1.0)
    if not rules.chunked_prefill:
        room = np.maximum(np.floor(room / prompt), 1.0) * prompt
    use = coming * prompt / room
    share = np.minimum(np.maximum(1.0 - np.exp(-coming), use), 1.0)
    each = np.minimum(coming * prompt / share, room)
    decode, own, alone = _step_times(deployment, demand, axes, each, mixed_policy, speculation)
    floor = eager_floor(deployment)
    if floor:
        eager = np.where(each + beside > serving.graph_tokens, floor, 0.0)
        apart = np.where(np.minimum(axes.budget, prompt) > serving.graph_tokens, floor, 0.0)
        own, alone = (own**4 + eager**4) ** 0.25, (alone**4 + apart**4) ** 0.25
    before = decode[:, None] if not mixed_policy else (1.0 - share) * decode[:, None]
    step = before + share * own
    square = (before * decode[:, None] + share * own**2) / (2 * step)
    pieces = np.maximum(np.ceil(prompt / room), 1.0)
    late = 0.0 if ideal or not serving.overlapped else step
    front = 0.0 if ideal else serving.latency + serving.front_request + serving.front_token * demand.prompt.average
    mean = front + square + _queue(share, pieces * own, prompt > room) + 2 * late + pieces * own
    ttft = front + _rest(share * own / step, own, decode[:, None], percentile) + 2 * late + pieces * own
    ttft = np.maximum(ttft + _late(use, pieces * own, percentile), mean)
    prompts, decodes = _anchor(deployment)
    ttft, mean, step, decode, alone = ttft * prompts, mean * prompts, step * decodes, decode * decodes, alone * prompts
    rate = batch / (steps * step)
    concurrency = rate * (mean + steps * step)
    return LoadGrid(
        deployment=deployment,
        axes=axes,
        step_decode=decode,
        step_mixed=own,
        prefill=alone,
        rate=rate * dp,
        ttft=ttft,
        tpot=step / speculation.tokens,
        e2el=ttft + steps * step,
        concurrency=concurrency * dp,
        memory_use=_cache_use(deployment, demand, axes, concurrency, speculation.draft),
        prefill_use=use,
        slots=float(deployment.engine.defaults.tier(deployment.hardware).max_sequences * dp),
        speculation=speculation,
    )


def _anchor(deployment: Deployment) -> tuple[float, float]:
    """Measured over predicted time of prompts and of decodes."""
    anchor = deployment.calibration.anchor
    return (1.0, 1.0) if anchor is None else (anchor.prefill, anchor.decode)


def _queue(share: Array, own: Array, pieced: npt.NDArray[np.bool_]) -> Array:
    """Mean seconds behind prompts that take several steps."""
    busy = np.minimum(share, 0.98)
    return np.where(pieced, busy * busy / (2 * (1 - busy)) * own, 0.0)


def _rest(held: Array, own: Array, decode: Array, percentile: float) -> Array:
    """The rest of the step in progress at a percentile: ``held`` is the share of time in steps that hold prompts."""
    return np.where(held > tail(percentile), own, np.broadcast_to(decode, own.shape)) * (percentile / 100)


def _late(use: Array, own: Array, percentile: float) -> Array:
    """The exponential tail of an M/D/1 queue for the room that steps have: ``S/(2(1 - use))*ln(use/tail)``."""
    busy = np.clip(use, 0.0, 0.999)
    return own / (2 * (1 - busy)) * np.log(np.maximum(busy / tail(percentile), 1.0))


def _step_times(
    deployment: Deployment, demand: Demand, axes: Axes, each: Array, mixed: bool, speculation: Speculation
) -> tuple[Array, Array, Array]:
    """Seconds of decodes alone, by batch; of steps that hold ``each`` prompt tokens; of prompts alone, by budget."""
    rows, columns = each.shape
    prompt = demand.prompt.average - demand.cached
    beside = np.repeat(axes.batch if mixed else np.zeros(rows), columns)
    batch = np.concatenate([axes.batch, beside, np.zeros(columns)])
    tokens = np.concatenate([np.zeros(rows), each.ravel(), np.minimum(axes.budget, prompt)])
    prompts = np.where(tokens > 0, np.maximum(tokens / prompt, 1.0), 0.0)
    new = np.where(tokens > 0, tokens / np.maximum(prompts, 1.0), prompt)
    points = Points(
        batch=batch,
        context=np.full_like(batch, demand.prompt.average + max(demand.output.average - 2.0, 0.0) / 2),
        prompts=prompts,
        new=np.maximum(new, 1.0),
        past=demand.cached + np.maximum(prompt - new, 0.0) / 2,
    )
    seconds = step_seconds(deployment, points, speculation.width)
    decode, own, alone = np.split(seconds, [rows, rows + rows * columns])
    if speculation.draft is not None:
        drafts = np.asarray(speculation.draft_time(axes.batch, points.context[:rows]))
        decode, own = decode + drafts, own + np.repeat(drafts if mixed else np.zeros(rows), columns)
    return decode, own.reshape(rows, columns), alone


def step_seconds(deployment: Deployment, points: Points, width: int = 1) -> Array:
    """Seconds of every step of ``points`` on one attention rank, all ranks alike; operators without work are free.

    width: tokens that a step computes for each request that decodes.
    """
    parallel, constants = deployment.parallel, deployment.calibration.step
    sequences = points.batch + points.prompts
    micro = np.minimum(float(parallel.pp), np.maximum(sequences, 1.0))
    scale = parallel.dp / micro
    decode = Segment(batch=points.batch * scale, new=float(width), past=points.context)
    prefill = Segment(batch=points.prompts * scale, new=points.new, past=points.past)
    rows = (points.batch * width + points.prompts) * scale
    slowest: Array = np.zeros_like(points.batch)
    with np.errstate(divide="ignore", invalid="ignore"):
        for stage in _different(deployment, build(deployment, Step(segments=(decode, prefill), logits=rows))):
            costs = (_seconds(op, deployment) for op in stage.ops)
            total = sum(costs, start=np.zeros_like(points.batch)) + constants.layer * stage.layers
            slowest = np.maximum(slowest, total)
    whole: Array = slowest * (parallel.pp if parallel.pp > 1 else 1.0)
    return whole + constants.host + constants.sequence * sequences * parallel.dp


def _different(deployment: Deployment, stages: list[Stage]) -> list[Stage]:
    """The stages without those that repeat another: all in the middle of a model of one kind of layer do."""
    if len(stages) <= 3 or len(deployment.model.distinct) > 1:
        return stages
    middle = max(stages[1:-1], key=lambda stage: stage.layers)
    return [stages[0], middle, stages[-1]]


def _seconds(op: Op, deployment: Deployment) -> Array:
    cost: OpCost = price(op, deployment.hardware, deployment.calibration)
    busy = cost.work.flop + cost.work.bytes + cost.work.wire
    return np.where(np.asarray(busy) > 0, cost.time * op.count, 0.0)


def _cache_use(
    deployment: Deployment, demand: Demand, axes: Axes, concurrency: Array, draft: Deployment | None = None
) -> Array:
    """State that a rank's requests keep over the room for it, by batch and budget; infinite where weights do not fit.

    A request's age is uniform, so it holds its prompt and half its output on average; two standard deviations of the
    sum are added. Engines that reserve hold prompt and output from the start. A draft model takes its part of both.
    """
    prompt, output = demand.prompt.average, demand.output.average
    reserve = deployment.engine.defaults.scheduler.admission == "reserve"
    each = variance(demand.prompt) + variance(demand.output) / 4 + output**2 / 12
    spread = np.sqrt(each / np.maximum(concurrency, 1))
    whole: Array = np.full_like(concurrency, prompt + output)
    held = whole if reserve else np.minimum(prompt + output / 2 + 2 * spread, whole)
    use = np.zeros_like(concurrency)
    footprint = single(deployment)
    beside = None if draft is None else single(draft).stage
    for column, budget in enumerate(axes.budget):
        sized = _sized(footprint, int(budget))
        for stage in footprint.stages:
            pool, state = sized.pool(stage), stage.state(held[:, column])
            if beside is not None:
                pool, state = pool - beside.weights, state + beside.state(held[:, column])
            state = concurrency[:, column] * state
            use[:, column] = np.maximum(use[:, column], state / pool if pool > 0 else np.inf)
    return use


def single(deployment: Deployment) -> Footprint:
    """The footprint of one short request: what is left of a device after the weights."""
    return Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0)


def _sized(footprint: Footprint, budget: int) -> Footprint:
    """The same when a step holds ``budget`` tokens; its stages, whose weights are known, are shared."""
    deployment = footprint.deployment
    engine = deployment.engine
    tiers = [tier.model_copy(update={"token_budget": budget}) for tier in engine.defaults.tiers]
    defaults = engine.defaults.model_copy(update={"tiers": tiers})
    sized = copy(deployment)
    object.__setattr__(sized, "engine", engine.model_copy(update={"defaults": defaults}))
    other = replace(footprint, deployment=sized)
    vars(other)["stages"] = footprint.stages
    return other
