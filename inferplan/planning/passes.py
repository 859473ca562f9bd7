"""The closed form over the batches of a model that generates nothing: every request is one pass (docs/encoders.md).

A step takes what waits, up to the engine's budget of tokens and its slots: ``b`` prompts take ``T(b)``, so a replica
that gets ``b/T(b)`` requests a second has ``b`` of them in a step. A request waits for the rest of the step that runs,
and for others where the budget is nearly full; then its own step passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferplan.estimate.deployment import Deployment
from inferplan.planning.demand import Demand, tail
from inferplan.planning.grid import Axes, LoadGrid, load_grids, longest_whole, single
from inferplan.serving.latency import Company, PromptPath, front_end
from inferplan.serving.rounds import Prompts, Round, price_rounds
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.units import Array


def priced_grids(
    deployments: Sequence[Deployment], demand: Demand, percentile: float, axes: Axes, speculation: Speculation = PLAIN
) -> list[LoadGrid]:
    """The grids of deployments that differ in their number of stages alone, whether their model generates or not."""
    if deployments[0].model.encodes:
        return pass_grids(deployments, demand, percentile, axes)
    return load_grids(deployments, demand, percentile, axes, speculation)


def priced_grid(
    deployment: Deployment, demand: Demand, percentile: float, axes: Axes, speculation: Speculation = PLAIN
) -> LoadGrid:
    """That of one."""
    return priced_grids([deployment], demand, percentile, axes, speculation)[0]


def pass_grids(deployments: Sequence[Deployment], demand: Demand, percentile: float, axes: Axes) -> list[LoadGrid]:
    """The grid of :func:`inferplan.planning.grid.load_grids` where prompts are all there is: batch of a step, budget.

    Raises ``NotFiniteError``, which names the operator, for a price that is no number.
    """
    batch, prompt = axes.batch[:, None], demand.prompt.average
    rounds = [Round(prompts=Prompts(batch, prompt, np.zeros_like(batch)))] * len(deployments)
    return [
        _grid(
            deployment,
            (np.asarray(time.interval) + 0 * batch, np.asarray(time.passage) + 0 * batch),
            demand,
            percentile,
            axes,
        )
        for deployment, time in zip(deployments, price_rounds(deployments, rounds))
    ]


def _grid(deployment: Deployment, step: tuple[Array, Array], demand: Demand, percentile: float, axes: Axes) -> LoadGrid:
    """Latencies and rates. step: seconds between two steps and those of one, by batch."""
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
