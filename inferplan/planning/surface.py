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

from inferplan.deployment import Deployment
from inferplan.graph import Stage, build
from inferplan.memory import Footprint
from inferplan.ops import Op
from inferplan.planning.demand import Demand, tail, variance
from inferplan.roofline import OpCost, price
from inferplan.serving.prices import eager_floor
from inferplan.workload import Segment, Step

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
class Surface:
    """One deployment under a demand over a grid (batch down, budget across); times in seconds, rates of one replica.

    ttft, tpot, e2el: at the percentile asked for (screening formulas; finalists are simulated). concurrency: requests
    in the system.
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


def surface(deployment: Deployment, demand: Demand, percentile: float, axes: Axes) -> Surface:
    """Price the grid: one graph, three kinds of step (decodes alone, decodes beside a prompt, a prompt alone)."""
    prompt, output = demand.prompt.average - demand.cached, demand.output.average
    batch, budget = axes.batch[:, None], axes.budget[None, :]
    shape = np.broadcast_shapes(batch.shape, budget.shape)
    decode_steps = output - 1.0
    room = np.maximum(budget - batch, 1.0)
    need = batch * prompt / decode_steps
    chunked = deployment.engine.defaults.scheduler.chunked_prefill
    alone = np.minimum(room, prompt) if chunked else np.where(room >= prompt, prompt, np.nan)
    first = deployment.engine.policy == "sglang"
    chunk = np.broadcast_to(np.where(chunked, np.clip(need, alone, room), np.maximum(alone, need)), shape)
    context = demand.prompt.average + output / 2
    times = _step_times(deployment, demand, axes, chunk, (prompt, context))
    decode, mixed, prefill = times
    floor = eager_floor(deployment)
    if floor:
        mixed, prefill = (mixed**4 + floor**4) ** 0.25, (prefill**4 + floor**4) ** 0.25
    chunks = np.ceil(prompt / np.minimum(axes.budget, prompt))
    whole_prefill = (prefill * chunks)[None, :]
    if first:  # prompts run alone, before the decodes go on
        share = np.broadcast_to(batch / decode_steps, shape)
        step = decode[:, None] + share * whole_prefill
        own, use = np.broadcast_to(whole_prefill, shape), share * whole_prefill / step
        interval = np.broadcast_to(decode[:, None], shape)
    else:
        share = np.minimum(need / chunk, 1.0)
        step = (1 - share) * decode[:, None] + share * mixed
        own, use = np.ceil(prompt / np.minimum(room, prompt)) * mixed, need / room
        interval = step
    use = np.where(np.isnan(chunk) | (room < 1), np.inf, use)
    per_rank = batch / (decode_steps * step)
    wait = _wait(own, np.clip(use, 0.0, 0.999), interval, percentile)
    ideal = deployment.calibration.basis == "roofline"
    serving = deployment.engine.serving
    fixed = 0.0 if ideal else serving.latency + serving.front_request + serving.front_token * demand.prompt.average
    late = 0.0 if ideal or not serving.overlapped else interval
    mean = fixed + late + own + _wait(own, np.clip(use, 0.0, 0.999), interval, None)
    ttft = fixed + late + own + wait
    concurrency = per_rank * (mean + decode_steps * step)
    dp = deployment.parallel.dp
    cache = _cache_use(deployment, demand, axes, concurrency)
    tier = deployment.engine.defaults.tier(deployment.hardware)
    return Surface(
        deployment=deployment,
        axes=axes,
        step_decode=decode,
        step_mixed=mixed,
        prefill=prefill,
        rate=per_rank * dp,
        ttft=ttft,
        tpot=step,
        e2el=ttft + decode_steps * step,
        concurrency=concurrency * dp,
        memory_use=cache,
        prefill_use=use,
        slots=float(tier.max_sequences * dp),
    )


def _wait(own: Array, use: Array, interval: Array, percentile: float | None) -> Array:
    """Seconds until the prompt's first step: the rest of the running step, and prompts before it.

    The mean of an M/D/1 queue, ``use*S/(2(1 - use))``, with an exponential tail beyond it; half a step, or its
    percentile.
    """
    mean = use * own / (2 * (1 - use))
    if percentile is None:
        return mean + interval / 2
    late = own / (2 * (1 - use)) * np.log(np.maximum(use / tail(percentile), 1.0))
    return np.maximum(late, mean) + interval * (percentile / 100)


def _step_times(
    deployment: Deployment, demand: Demand, axes: Axes, chunk: Array, lengths: tuple[float, float]
) -> tuple[Array, Array, Array]:
    """Seconds of the three kinds of step: by batch; by batch and budget; by budget."""
    prompt, context = lengths
    rows, columns = chunk.shape
    batch = np.concatenate([axes.batch, np.repeat(axes.batch, columns), np.zeros(columns)])
    tokens = np.concatenate([np.zeros(rows), chunk.ravel(), np.minimum(axes.budget, prompt)])
    tokens = np.nan_to_num(tokens)
    new = np.maximum(np.minimum(tokens, prompt), 1.0)
    points = Points(
        batch=batch,
        context=np.full_like(batch, context),
        prompts=tokens / new,
        new=new,
        past=demand.cached + (prompt - new) / 2,
    )
    seconds = step_seconds(deployment, points)
    decode, mixed, alone = np.split(seconds, [rows, rows + rows * columns])
    return decode, mixed.reshape(rows, columns), alone


def step_seconds(deployment: Deployment, points: Points) -> Array:
    """Seconds of every step of ``points`` on one attention rank, all ranks alike; operators without work are free."""
    parallel, constants = deployment.parallel, deployment.calibration.step
    sequences = points.batch + points.prompts
    micro = np.minimum(float(parallel.pp), np.maximum(sequences, 1.0))
    scale = parallel.dp / micro
    decode = Segment(batch=points.batch * scale, new=1.0, past=points.context)
    prefill = Segment(batch=points.prompts * scale, new=points.new, past=points.past)
    slowest: Array = np.zeros_like(points.batch)
    with np.errstate(divide="ignore", invalid="ignore"):
        for stage in _different(deployment, build(deployment, Step(segments=(decode, prefill)))):
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


def _cache_use(deployment: Deployment, demand: Demand, axes: Axes, concurrency: Array) -> Array:
    """State that a rank's requests keep over the room for it, by batch and budget; infinite where weights do not fit.

    A request's age is uniform, so it holds its prompt and half its output on average; two standard deviations of the
    sum are added. Engines that reserve hold prompt and output from the start.
    """
    prompt, output = demand.prompt.average, demand.output.average
    reserve = deployment.engine.defaults.scheduler.admission == "reserve"
    each = variance(demand.prompt) + variance(demand.output) / 4 + output**2 / 12
    spread = np.sqrt(each / np.maximum(concurrency, 1))
    held = prompt + output if reserve else np.minimum(prompt + output / 2 + 2 * spread, prompt + output)
    use = np.zeros_like(concurrency)
    footprint = single(deployment)
    for column, budget in enumerate(axes.budget):
        sized = _sized(footprint, int(budget))
        for stage in footprint.stages:
            pool = sized.pool(stage)
            tokens = held if reserve else held[:, column]
            state = concurrency[:, column] * stage.state(np.asarray(tokens))
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
