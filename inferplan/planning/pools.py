"""Prompts and decodes on pools of their own (DistServe, 2401.09670): the cheapest pair of pools of one structure.

A decode replica runs steps of decodes only, at the largest batch whose step keeps the limit on TPOT. A prefill replica
computes one prompt after another on each of its attention ranks: a queue that must keep the limit on TTFT. The fleet is
fed in turn, as the simulator does, so each of p replicas sees every p-th request: its gaps vary 1/p as much as those of
a Poisson stream. By Kingman's law (The single server queue in heavy traffic, 1961) waits are in proportion to the sum
of the squared coefficients of variation of gaps and of service, so they are 1/p plus that of the prompts times those of
an M/D/1 queue. The slow end of TTFT is a long prompt or a long wait. The cache moves from one pool to the other over
the scale-out link, and that time is part of TTFT.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import NamedTuple

import numpy as np

from inferplan.errors import MissingFactError
from inferplan.planning.demand import Demand, tail
from inferplan.planning.grid import LoadGrid
from inferplan.planning.option import Option, PricedGrid, Sizing
from inferplan.serving.cache_transfer import Transfer
from inferplan.serving.techniques.queueing import mean_wait, tail_wait
from inferplan.traffic.requests import Slo
from inferplan.units import Array

_IDLE_LOAD = 0.05
"""Prefill replicas loaded less than this hardly ever let a prompt wait: more of them are not tried."""
_MAX_PREFILL_REPLICAS = 10_000
CAPACITY_ERROR = 1.25
"""By how much the closed form may be too careful about the capacity of a replica, beside the error of its latencies.

A choice, not a measurement: with it, plans find what brute force finds (python -m tests.benchmarks.compare_plans).
"""
_MAX_BUSY = 1 - 1e-9
"""A queue that is busier has no steady state."""


class DecodePool(NamedTuple):
    """Replicas that only decode. batch: requests that one attention rank decodes at once. concurrency: of a replica.

    needed: replicas before they are rounded up.
    """

    replicas: int
    batch: int
    concurrency: float
    tpot: float
    needed: float = 1.0


class TtftLimit(NamedTuple):
    """A limit on TTFT in seconds, and the share of the requests that may exceed it."""

    seconds: float
    share: float


class PrefillPool(NamedTuple):
    """Replicas that only compute prompts. ttft: seconds at the percentile, the move of the cache included.

    busy: replicas that the prompts keep busy, each at its utilisation.
    """

    replicas: int
    budget: int
    ttft: float
    busy: float = 1.0


def cheapest_pools(priced: PricedGrid, demand: Demand, slo: Slo, sizing: Sizing) -> Option | None:
    """The cheapest pair of pools that meets the limits; ``None`` when there is none, or no price, link or rate."""
    grid, tariff, rate = priced.grid, priced.tariff, demand.requests_per_second
    if rate is None or tariff is None:
        return None
    before = _seconds_beside_prefill(grid, demand)
    decode = decode_pool(grid, demand, slo, sizing)
    if before is None or decode is None:
        return None
    prefill = prefill_pool(grid, demand, _limit_on_ttft(slo, demand, decode.tpot), before, sizing)
    if prefill is None:
        return None
    total = prefill.replicas + decode.replicas
    found = Option(
        request=priced.request,
        deployment=grid.deployment,
        budget=prefill.budget,
        batch=decode.batch,
        concurrency=decode.concurrency,
        ttft=prefill.ttft,
        tpot=decode.tpot,
        e2el=prefill.ttft + (demand.output.average - 1.0) * decode.tpot,
        rate=rate / sizing.utilisation / total,
        output=demand.output.average,
        replicas=total,
        spare=sizing.spare,
        tariff=tariff,
        cost=0.0,
        pools=(prefill.replicas, decode.replicas),
        speculation=grid.speculation,
    ).sized(total, (prefill.replicas, decode.replicas))
    return replace(found, bound=_least_cost(found, prefill, decode))


def _least_cost(option: Option, prefill: PrefillPool, decode: DecodePool) -> float:
    """What the pools would cost if the closed form is as much too careful as it can be, and prompts never waited."""
    fewest = [max(ceil(size / CAPACITY_ERROR), 1) for size in (prefill.busy, decode.needed)]
    return option.sized(sum(fewest), (fewest[0], fewest[1])).cost or 0.0


def decode_pool(grid: LoadGrid, demand: Demand, slo: Slo, sizing: Sizing) -> DecodePool | None:
    """The largest batch that cache, slots and TPOT allow, and the replicas that then carry the demand's rate.

    A request takes ``n = (output - 1)/(tokens a step)`` steps, so a rank of batch ``B`` finishes ``B/(n*t_decode(B))``
    requests a second.
    """
    dp, batch = grid.deployment.parallel.dp, grid.axes.batch
    tpot = grid.step_decode / grid.speculation.tokens
    allowed = (_decode_cache_use(grid) <= 1) & (batch * dp <= grid.slots)
    if "tpot" in slo.limits:
        allowed &= tpot <= slo.limits["tpot"]
    if not allowed.any():
        return None
    largest = int(np.flatnonzero(allowed)[-1])
    steps = (demand.output.average - 1.0) / grid.speculation.tokens
    capacity = batch * dp / (steps * grid.step_decode)
    replicas = np.asarray(sizing.replicas(demand.requests_per_second or 0.0, capacity))
    return DecodePool(
        replicas=int(replicas[largest]),
        batch=int(batch[largest]),
        concurrency=float(batch[largest] * dp),
        tpot=float(tpot[largest]),
        needed=float((demand.requests_per_second or 0.0) / (sizing.utilisation * capacity[largest])),
    )


def prefill_pool(grid: LoadGrid, demand: Demand, limit: TtftLimit, before: float, sizing: Sizing) -> PrefillPool | None:
    """The fewest replicas, over the token budgets of the grid, whose TTFT keeps a limit; ``None`` when none does.

    The queue is that of the first stage, which a prompt keeps busy until the next may follow; its own time is that
    through all stages. before: seconds of TTFT that are not spent in this pool.
    """
    rate, budget = demand.requests_per_second or 0.0, grid.axes.budget
    alone, service = grid.prompt_alone
    load = rate * service / grid.deployment.parallel.dp  # of one replica, were it alone
    fewest = np.maximum(np.ceil(load / sizing.utilisation - 1e-9), 1.0)
    most = np.clip(np.floor(load / _IDLE_LOAD) + 1, fewest, _MAX_PREFILL_REPLICAS)
    replicas = np.arange(fewest.min(), most.max() + 1)[:, None]
    busy = np.minimum(load / replicas, _MAX_BUSY)  # (replicas, budgets)
    variability = 1 / replicas + demand.prompt.variance / demand.prompt.average**2
    mean, tail_of_wait = (
        wait * variability for wait in (mean_wait(service, busy), tail_wait(service, busy, limit.share))
    )
    longest = demand.prompt.quantile(1 - limit.share) / demand.prompt.average
    ttft: Array = before + np.maximum(alone * longest + mean, alone + np.maximum(tail_of_wait, mean))
    good = (ttft <= limit.seconds) & (replicas >= fewest) & (replicas <= most) & (busy < _MAX_BUSY)
    if not good.any():
        return None
    first = int(np.flatnonzero(good.any(axis=1))[0])
    column = int(np.flatnonzero(good[first])[0])
    busy_replicas = float(load[column] / sizing.utilisation)
    return PrefillPool(int(replicas[first, 0]), int(budget[column]), float(ttft[first, column]), busy_replicas)


def _limit_on_ttft(slo: Slo, demand: Demand, tpot: float) -> TtftLimit:
    """What the limits on TTFT and on end-to-end latency leave to TTFT, when a token takes ``tpot`` seconds."""
    left = slo.limits.get("e2el", np.inf) - (demand.output.average - 1.0) * tpot
    return TtftLimit(seconds=float(min(slo.limits.get("ttft", np.inf), left)), share=tail(slo.percentile))


def _seconds_beside_prefill(grid: LoadGrid, demand: Demand) -> float | None:
    """Seconds of TTFT in front of the engine and between the pools; ``None`` where no link joins the pools."""
    deployment = grid.deployment
    try:
        moved = Transfer.between(deployment, deployment).seconds(demand.prompt.average)
    except MissingFactError:
        return None
    if deployment.calibration.basis == "roofline":
        return float(moved)
    serving = deployment.engine.serving
    return float(moved) + serving.latency + serving.front_request + serving.front_token * demand.prompt.average


def _decode_cache_use(grid: LoadGrid) -> Array:
    """Cache in use over the cache of a rank that only decodes, by batch: the grid's share of one request, times the
    batch, so without those that wait for their prompts.
    """
    of_one = grid.memory_use[:, 0] / np.maximum(grid.concurrency[:, 0] / grid.deployment.parallel.dp, 1e-9)
    return np.asarray(of_one * grid.axes.batch)
