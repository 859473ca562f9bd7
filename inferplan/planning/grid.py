"""The closed form over a whole grid: every decode batch and token budget of one deployment, through one graph.

Formulas and their limits are in docs/planning.md. Its first axis is the decode batch of one attention rank, not
over the users, so that nothing has to be solved for: rate, waiting and the number of users follow from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from inferplan.estimate.anchoring import correction
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.memory import Footprint, single
from inferplan.estimate.shared import Shared
from inferplan.estimate.sharing import Sharing
from inferplan.estimate.stage_memory import StageMemory
from inferplan.planning.adapters import loads_of, slot_wait, with_adapter_counts, with_loads
from inferplan.planning.demand import Demand, tail
from inferplan.planning.masks import masks_of, with_masks
from inferplan.serving.latency import Company, PromptPath, front_end, open_company, prompt_path
from inferplan.serving.rounds import (
    Decodes,
    HeldPrompts,
    LoadedRounds,
    PromptLoad,
    Round,
    departures,
    in_system,
    loaded_together,
    price_rounds,
)
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.traffic.reasoning import before_answer
from inferplan.units import Array, BoolArray, Num


@dataclass(frozen=True, kw_only=True, eq=False)
class Axes:
    """The grid: sequences that one attention rank decodes at once, and tokens a step may hold."""

    batch: Array
    budget: Array


@dataclass(frozen=True, eq=False)
class PromptsAlone:
    """Prompts with nothing beside them on deployments that differ in their number of stages alone; priced when asked.

    prompt: tokens to compute, by ``budget`` of a step, behind ``cached`` that are known. output: tokens generated
    behind them, which an anchor asks for.
    """

    deployments: Sequence[Deployment]
    budget: Array
    prompt: float
    cached: float
    output: float = 1.0
    shared: Shared = field(default_factory=Shared)

    @cached_property
    def times(self) -> dict[int, tuple[Array, Array]]:
        """See :attr:`LoadGrid.prompt_alone`; by the ``id`` of the deployment."""
        piece, one = np.minimum(self.budget, self.prompt), np.ones_like(self.budget)
        pieces = np.ceil(self.prompt / piece)
        asked = "prompts alone", self.budget.tobytes(), self.prompt, self.cached
        past = self.cached + np.maximum(self.prompt - piece, 0.0) / 2
        alone = self.shared.of((), asked, lambda: Round(prompts=HeldPrompts(one, piece, past)))
        found = {}
        times = price_rounds(self.deployments, [alone] * len(self.deployments), self.shared)
        for deployment, time in zip(self.deployments, times):
            through = time.passage + (pieces - 1.0) * time.interval
            factor = correction(deployment, 1.0, self.prompt + self.cached, self.output).ttft
            found[id(deployment)] = through * factor * one, pieces * time.interval * factor * one
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadGrid:
    """One deployment under a demand over a grid (batch down, budget across); times in seconds, rates of one replica.

    ttft, tpot, e2el, answer_ttft: at the percentile asked for (screening formulas; finalists are simulated), the last
    for a thought that is as long as the percentile too. concurrency: requests in the system. step_decode, step_mixed:
    of a step, which yields ``speculation.tokens`` tokens a request.
    """

    deployment: Deployment
    axes: Axes
    step_decode: Array
    step_mixed: Array
    share: Array
    """Rounds that hold prompts, of all."""
    demand: Demand
    rate: Array
    ttft: Array
    ttft_mean: Array
    tpot: Array
    e2el: Array
    answer_ttft: Array
    concurrency: Array
    memory_use: Array
    """Tokens' worth of state over the cache, at two standard deviations above the mean."""
    prefill_use: Array
    """Prompt tokens to compute over those that the steps have room for; infinite where a whole prompt has none."""
    slots: float
    speculation: Speculation = PLAIN
    prompts: PromptsAlone | None = None
    """Those of the deployments that it was priced with; ``None`` for its own alone."""

    @cached_property
    def possible(self) -> BoolArray:
        """Points that can run for long, whatever their latency."""
        return (self.memory_use <= 1) & (self.prefill_use < 1) & (self.concurrency <= self.slots)

    @cached_property
    def prompt_alone(self) -> tuple[Array, Array]:
        """Seconds of a whole prompt by budget, nothing beside it, and those between two that follow each other.

        In pieces of the budget, which in a pipeline follow each other through the stages. The first is its TTFT on a
        replica that only computes prompts; the second how long it keeps the next one waiting.
        """
        if self.prompts is not None:
            return self.prompts.times[id(self.deployment)]
        demand = self.demand
        return prompt_alone(self.deployment, self.axes.budget, demand.prompt.average - demand.cached, demand.cached)

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.deployment.parallel.ranks


def prompt_alone(deployment: Deployment, budget: Array, prompt: float, cached: float) -> tuple[Array, Array]:
    """See :attr:`LoadGrid.prompt_alone`: ``prompt`` tokens to compute, by budget, behind ``cached`` that are known."""
    return PromptsAlone([deployment], budget, prompt, cached).times[id(deployment)]


def axes_for(deployment: Deployment, budgets: list[int] | None = None, longest: float = 0.0) -> Axes:
    """Every batch to 128, then 2.5 % apart up to the engine's slots; the engine's budget and others about it.

    longest: tokens of a prompt that is never cut; one more budget holds it whole, with room for decodes.
    """
    tier = deployment.engine.defaults.tier(deployment.hardware)
    most = min(tier.max_sequences, 4096)
    batch = _batches(float(most))
    usual = {512, 1024, 1536, 2048, 3072, 4096, 8192, 16384, tier.token_budget}
    chosen = budgets or sorted(usual | ({(int(longest) // 1024 + 1) * 1024} if longest else set()))
    return Axes(batch=batch, budget=np.array([float(budget) for budget in chosen]))


@cache
def _batches(most: float) -> Array:
    dense = min(128.0, most)
    count = max(round(np.log(most / dense) / np.log(1.025)), 1)
    rising: Array = np.round(np.concatenate([np.arange(1, dense + 1), np.geomspace(dense, most, count + 1)]))
    apart: BoolArray = np.append(True, rising[1:] > rising[:-1])  # numpy's own unique imports a fifth of numpy
    return np.asarray(rising[apart])


def longest_whole(deployment: Deployment, demand: Demand, percentile: float) -> float:
    """Tokens of a prompt that a step must have room for, or it waits until nothing decodes and is refused where the
    budget alone is less: those at the percentile, 0 where the engine cuts prompts.
    """
    if deployment.engine.defaults.scheduler.chunked_prefill:
        return 0.0
    return demand.prompt.quantile(percentile / 100)


def load_grid(
    deployment: Deployment, demand: Demand, percentile: float, axes: Axes, speculation: Speculation = PLAIN
) -> LoadGrid:
    """Price the grid: rounds of decodes alone, and rounds that hold prompts; or whole passes, of a model that generates
    nothing.

    The mean values are those of :mod:`inferplan.serving.steady` at each decode batch. Raises
    ``NotFiniteError``, which names the operator, for a price that is no number.
    """
    return load_grids([deployment], demand, percentile, axes, speculation)[0]


def load_grids(
    deployments: Sequence[Deployment],
    demand: Demand,
    percentile: float,
    axes: Axes,
    speculation: Speculation = PLAIN,
    shared: Shared | None = None,
) -> list[LoadGrid]:
    """:func:`load_grid` of deployments that differ in their number of stages alone; they are priced as one. shared:
    what others that were priced before have in common with them."""
    if deployments[0].model.encodes:
        return _pass_grids(deployments, demand, percentile, axes)
    shared, batch, steps = shared or Shared(), axes.batch[:, None], (demand.output.average - 1.0) / speculation.tokens
    masked = masks_of(deployments, demand.structured, speculation)
    alone, load, budget = shared.of(
        (demand, speculation, axes.batch), axes.budget.tobytes(), lambda: _steady(demand, axes, speculation)
    )
    every = loaded_together(with_adapter_counts(deployments, demand), alone, load, budget, shared)
    new, cached = demand.prompt.average - demand.cached, float(demand.cached)
    prompts = PromptsAlone(deployments, axes.budget, new, cached, demand.output.average, shared)
    return [
        _grid(
            (deployment, with_masks(loaded, masks, batch, batch / steps, speculation.width), prompts),
            demand,
            percentile,
            axes,
            speculation,
        )
        for deployment, rounds, masks in zip(deployments, every, masked)
        for loaded in (with_loads(rounds, loads_of(deployment, demand), batch / steps * deployment.coupled_ranks),)
    ]


def _steady(demand: Demand, axes: Axes, speculation: Speculation) -> tuple[Round, PromptLoad, Array]:
    """By batch and budget: a round that only decodes, the prompts that come in each, and tokens of a batch."""
    batch, prompt = axes.batch[:, None], demand.prompt.average
    decodes = Decodes(batch, prompt + max(demand.output.average - 2.0, 0.0) / 2, prompt)
    steps = (demand.output.average - 1.0) / speculation.tokens
    load = PromptLoad(batch / steps, prompt - demand.cached, float(demand.cached))
    return Round(decodes=decodes, speculation=speculation), load, axes.budget[None, :]


class _FirstTokens(NamedTuple):
    """Seconds until the first token of the mean request and of the one at the percentile, and of the mean round."""

    mean: Array
    slow: Array
    round: Array


def _first_tokens(
    priced: tuple[Deployment, LoadedRounds], demand: Demand, percentile: float, batch: Array
) -> _FirstTokens:
    """By batch and budget; those of one replica where requests know nothing of each other."""
    deployment, rounds = priced
    prompt, beyond = demand.prompt.average, tail(percentile)
    path = prompt_path(deployment, rounds, prompt)
    openings = rounds.openings(deployment)  # a late arrival finds a long one, where enough of the time lies in those
    running = np.where(openings.in_long > beyond, openings.long, openings.short) * (percentile / 100)
    running = running / deployment.parallel.pp
    load = loads_of(deployment, demand).beyond_mean(beyond)
    mean = np.asarray(path.mean(open_company(batch, deployment.coupled_ranks)).total)
    slow = np.maximum(path.slow(running, beyond).total + load, mean)
    return _FirstTokens(mean, slow, np.asarray(path.round))


def _grid(
    priced: tuple[Deployment, LoadedRounds, PromptsAlone],
    demand: Demand,
    percentile: float,
    axes: Axes,
    speculation: Speculation,
) -> LoadGrid:
    """The latencies and rates that follow from the rounds."""
    deployment, rounds, prompts = priced
    dp, batch, steps = deployment.parallel.dp, axes.batch[:, None], (demand.output.average - 1.0) / speculation.tokens
    mean, ttft, step = _first_tokens((deployment, rounds), demand, percentile, batch)
    decode, own = np.broadcast_to(rounds.decode.total, batch.shape), np.broadcast_to(rounds.own.total, ttft.shape)
    if deployment.calibration.anchor is not None:
        users = np.asarray(in_system(departures(batch, steps, step), mean, steps, step)) * dp
        measured = correction(deployment, users, demand.prompt.average, demand.output.average)
        ttft, mean = ttft * measured.ttft, mean * measured.ttft
        step, decode, own = step * measured.tpot, decode * measured.tpot, own * measured.tpot
    rate = np.asarray(departures(batch, steps, step))
    concurrency = np.asarray(in_system(rate, mean, steps, step))
    wait = slot_wait(deployment.lora, demand, rate, concurrency)
    ttft, mean = ttft + wait, mean + wait
    slow = speculation.pace(percentile)
    tpot = step / speculation.tokens * slow
    return LoadGrid(
        deployment=deployment,
        axes=axes,
        step_decode=decode[:, 0],
        step_mixed=own,
        share=np.broadcast_to(rounds.held.share, ttft.shape),
        demand=demand,
        rate=rate * dp,
        ttft=ttft,
        ttft_mean=mean,
        tpot=tpot,
        e2el=ttft + steps * step * slow,
        answer_ttft=ttft + before_answer(demand.output, percentile / 100) * tpot,
        concurrency=(concurrency + rate * wait) * dp,
        memory_use=_cache_use(deployment, demand, axes, concurrency, speculation.draft),
        prefill_use=_prefill_use(deployment, rounds, axes, longest_whole(deployment, demand, percentile), speculation),
        slots=float(deployment.engine.defaults.tier(deployment.hardware).max_sequences * dp),
        prompts=prompts,
        speculation=speculation,
    )


def _pass_grids(deployments: Sequence[Deployment], demand: Demand, percentile: float, axes: Axes) -> list[LoadGrid]:
    """The grids of a model that generates nothing: every request is one pass (docs/encoders.md).

    A step takes what waits, up to the engine's budget of tokens and its slots: ``b`` prompts take ``T(b)``, so a
    replica that gets ``b/T(b)`` requests a second has ``b`` of them in a step. A request waits for the rest of the step
    that runs, and for others where the budget is nearly full; then its own step passes.
    """
    batch, prompt = axes.batch[:, None], demand.prompt.average
    rounds = [Round(prompts=HeldPrompts(batch, prompt, np.zeros_like(batch)))] * len(deployments)
    return [
        _pass_grid(
            deployment,
            (np.asarray(time.interval) + 0 * batch, np.asarray(time.passage) + 0 * batch),
            demand,
            percentile,
            axes,
        )
        for deployment, time in zip(deployments, price_rounds(deployments, rounds))
    ]


def _pass_grid(
    deployment: Deployment, step: tuple[Array, Array], demand: Demand, percentile: float, axes: Axes
) -> LoadGrid:
    """Latencies and rates of such a model. step: seconds between two steps and those of one, by batch."""
    dp, prompt, shape = deployment.parallel.dp, demand.prompt.average, (axes.batch.size, axes.budget.size)
    batch, beyond = axes.batch[:, None], tail(percentile)
    interval, passage = (np.broadcast_to(seconds, shape) for seconds in step)
    filled = batch * prompt / np.broadcast_to(axes.budget, shape)
    path = PromptPath(
        deployment=deployment,
        front_end=front_end(deployment, prompt).seconds,
        round=interval,
        residual=interval / 2,
        line=interval,
        own=passage,
        queued=True,
        busy=filled,
        filled=filled,
    )
    mean = np.asarray(path.mean(Company()).total)  # a step takes what waits, so that one is always in progress
    latency = np.maximum(path.slow(interval * (percentile / 100), beyond).total, mean)
    rate = batch / interval
    whole = np.broadcast_to(axes.budget, shape) < longest_whole(deployment, demand, percentile)
    footprint = single(deployment)
    fits = all(footprint.pool(stage) > 0 for stage in dict.fromkeys(footprint.stages))
    return LoadGrid(
        deployment=deployment,
        axes=axes,
        step_decode=interval[:, 0],
        step_mixed=interval,
        share=np.ones(shape),
        demand=demand,
        rate=rate * dp,
        ttft=latency,
        ttft_mean=mean,
        tpot=interval,
        e2el=latency,
        answer_ttft=latency,
        concurrency=rate * mean * dp,
        memory_use=np.full(shape, 0.0 if fits else np.inf),
        prefill_use=np.where(whole, np.inf, filled),
        slots=np.inf,
    )


def _prefill_use(
    deployment: Deployment, rounds: LoadedRounds, axes: Axes, whole: float, speculation: Speculation
) -> Array:
    """Prompt tokens over the room for them; infinite where a prompt of ``whole`` tokens, which is never cut, has
    none."""
    decodes = axes.batch[:, None] / deployment.parallel.pp * speculation.width
    room = axes.budget - (decodes if deployment.engine.batching.mixed else 0.0)
    return np.where(room < whole, np.inf, rounds.held.filled)


def _cache_use(
    deployment: Deployment, demand: Demand, axes: Axes, concurrency: Array, draft: Deployment | None = None
) -> Array:
    """State that a rank's requests keep over the room for it, by batch and budget; infinite where weights do not fit.

    A request's age is uniform, so it holds its prompt and half its output on average; two standard deviations of the
    sum are added. Engines that reserve hold prompt and output from the start. A draft model takes its part of both.
    Samples of a prompt share its pages, as in an estimate of as many (:class:`inferplan.estimate.sharing.Sharing`).
    """
    prompt, output = demand.prompt.average, demand.output.average
    reserve = deployment.engine.defaults.scheduler.admission == "reserve"
    each = demand.prompt.variance + demand.output.variance / 4 + output**2 / 12
    spread = np.sqrt(each / np.maximum(concurrency, 1))
    whole: Array = np.full_like(concurrency, prompt + output)
    held = whole if reserve else np.minimum(prompt + output / 2 + 2 * spread, whole)
    use = np.zeros_like(concurrency)
    beside = None if draft is None else single(draft).stage
    for side, stage in stages_of(deployment):
        footprint = replace(side, budget=axes.budget)
        pool, state = footprint.pools(stage) - stage.in_flight(held, axes.budget), _held(stage, held, demand)
        if beside is not None:
            pool, state = pool - beside.weights, state + beside.held(held)
        use = np.maximum(use, np.where(pool > 0, concurrency * state / np.where(pool > 0, pool, 1.0), np.inf))
    return use


def _held(stage: StageMemory, tokens: Array, demand: Demand) -> Num:
    """Bytes that a request of so many tokens keeps; of several samples of a prompt its share, where they share pages.

    A state of constant size lies in no page, and without a prefix cache samples are requests apart.
    """
    shares = stage.deployment.engine.defaults.scheduler.prefix_caching and not stage.recurrent
    if demand.samples == 1 or not shares:
        return stage.held(tokens)
    return stage.held(tokens, sharing=Sharing(samples=demand.samples, prompt=demand.prompt.average)) / demand.samples


def stages_of(deployment: Deployment) -> list[tuple[Footprint, StageMemory]]:
    """The stages with the footprint of their side: the device, and its host where that keeps a part of the model."""
    here = single(deployment)
    sides = [here] if here.host is None else [here, here.host]
    return [(side, stage) for side in sides for stage in dict.fromkeys(side.stages)]
