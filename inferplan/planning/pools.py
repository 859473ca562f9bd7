"""Prompts and decodes on pools of their own (DistServe, 2401.09670): the cheapest pairs of pools.

A decode replica runs steps of decodes only, at the largest batch whose step keeps the limit on TPOT. A prefill replica
computes one prompt after another on each of its attention ranks: a queue that must keep the limit on TTFT. The fleet is
fed in turn, as the simulator does, so each of p replicas sees every p-th request: its gaps vary 1/p as much as those of
a Poisson stream. By Kingman's law (The single server queue in heavy traffic, 1961) waits are in proportion to the sum
of the squared coefficients of variation of gaps and of service, so they are 1/p plus that of the prompts times those of
an M/D/1 queue. The slow end of TTFT is a long prompt or a long wait. The cache moves from one pool to the other over
the scale-out link, and that time is part of TTFT.

The two pools of a pair may be of two structures. Of each, those are paired that no other beats in both: what carrying
the demand costs before replicas are rounded up, and what one replica costs, which is the grain of that.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import replace
from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inferplan.answers.emit import checkpoint
from inferplan.catalog.bills import STATED, Tariff
from inferplan.errors import MissingFactError, UsageError
from inferplan.estimate.memory import single
from inferplan.planning.demand import Demand, tail
from inferplan.planning.grid import LoadGrid, longest_whole
from inferplan.planning.option import PlanOption, PricedGrid, PromptPool, Sizing, Stream
from inferplan.serving.cache_transfer import Transfer, sending_of, steps_to_answer
from inferplan.serving.latency import front_end
from inferplan.serving.techniques.queueing import mean_wait, tail_wait
from inferplan.traffic.reasoning import before_answer
from inferplan.traffic.requests import Slo
from inferplan.units import Array, BoolArray, Num

_IDLE_LOAD = 0.05
"""Prefill replicas loaded less than this hardly ever let a prompt wait: more of them are not tried."""
_MAX_PREFILL_REPLICAS = 10_000
_MOST_PAIRS = 6
"""Pairs of two structures that are looked at further: each takes several simulations of the whole fleet."""
CAPACITY_ERROR = 1.25
"""By how much the closed form may be too careful about the capacity of a replica, beside the error of its latencies.

A choice, not a measurement: with it, plans find what brute force finds (python -m tests.benchmarks.compare_plans).
"""
_ROOM = 2.0
"""Replicas that decode are started with slots for up to about so many times the batch that they are planned for."""
_MAX_BUSY = 1 - 1e-9
"""A queue that is busier has no steady state."""


class DecodePool(NamedTuple):
    """Replicas that only decode. batch: requests that one attention rank decodes at once. concurrency: of a replica.

    budget: tokens of a step, the fewest of the grid that hold such a batch. step: seconds of one. tpot: seconds, at the
    percentile. needed: replicas before they are rounded up.
    """

    replicas: int
    batch: int
    budget: int
    concurrency: float
    step: float
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


def cheapest_pools(priced: PricedGrid, stream: Stream) -> PlanOption | None:
    """The cheapest pools of one structure that meet the limits; ``None`` when there are none, or no price, link or
    rate.
    """
    return cheapest_pair(priced, priced, stream)


def cheapest_pair(prompts: PricedGrid, decodes: PricedGrid, stream: Stream) -> PlanOption | None:
    """The cheapest pools of two structures that meet the limits; ``None`` when there are none, or no price, no rate, or
    no way for a cache between them.

    Of classes of traffic the mix is held to the limits where that finds any, and nothing is ruled out by it.
    """
    found = _pair(prompts, decodes, stream)
    if not stream.demand.classes:
        return found
    loose = _pair(prompts, decodes, stream.ruling)
    if found is None or loose is None:
        return loose
    fewest = min(found.least[0], loose.least[0]), min(found.least[1], loose.least[1])
    return replace(found, least=fewest, bound=min(found.bound, loose.bound))


def _pair(prompts: PricedGrid, decodes: PricedGrid, stream: Stream) -> PlanOption | None:
    """Those of limits that the closed form keeps."""
    demand, slo, sizing = stream
    grid, rate, same = decodes.grid, demand.requests_per_second, prompts is decodes
    if rate is None or decodes.tariff is None or prompts.tariff is None:
        return None
    decode = decode_pool(grid, stream)
    before = None if decode is None else _seconds_beside_prefill(prompts.grid, grid, demand)
    if before is None or decode is None:
        return None
    before = before + steps_to_answer(grid.deployment) * decode.step
    prefill = prefill_pool(prompts.grid, demand, _limit_on_ttft(slo, demand, decode.tpot), before, sizing)
    if prefill is None:
        return None
    first = prompts.grid.deployment
    total = prefill.replicas + decode.replicas
    found = PlanOption(
        request=decodes.request,
        deployment=grid.deployment,
        budget=decode.budget,
        prompt_budget=prefill.budget,
        batch=decode.batch,
        concurrency=decode.concurrency,
        ttft=prefill.ttft,
        tpot=decode.tpot,
        e2el=prefill.ttft + (demand.output.average - 1.0) * decode.tpot,
        answer_ttft=prefill.ttft + before_answer(demand.output, slo.percentile / 100) * decode.tpot,
        rate=rate / sizing.utilisation / total,
        output=demand.output.average,
        replicas=total,
        spare=sizing.spare,
        tariff=decodes.tariff,
        cost=0.0,
        pools=(prefill.replicas, decode.replicas),
        prompts=None if same else PromptPool(prompts.request, first, prompts.tariff),
        speculation=grid.speculation,
        limits=sizing.limits,
    )
    # if the closed form is as much too careful as it can be, and prompts never waited
    fewest = max(ceil(prefill.busy / CAPACITY_ERROR), 1), max(ceil(decode.needed / CAPACITY_ERROR), 1)
    billed = (_billed(one, fewest) for one in _of_one_seller(found))
    return min(billed, key=lambda one: one.cost or 0.0, default=None)


def _billed(found: PlanOption, fewest: tuple[int, int]) -> PlanOption:
    """Pools apart with their bill, and the least that they may cost, with the ``fewest`` replicas of each."""
    bound = found.sized(sum(fewest), fewest).cost or 0.0
    return replace(found.sized(found.replicas, found.pools), least=fewest, bound=bound)


def _of_one_seller(found: PlanOption) -> list[PlanOption]:
    """Pools apart as each list that sells both kinds sells them: caches move between them, so they stand together."""
    first, then = found.prompts, found.tariff
    if first is None or then is None:
        return [found]
    return [
        replace(found, tariff=decodes, prompts=first._replace(tariff=prompts))
        for prompts, decodes in together_at(first.tariff, then)
    ]


def together_at(prompts: Tariff, decodes: Tariff) -> list[tuple[Tariff, Tariff]]:
    """How each list that sells both sells them; both as they are where the user states the price of one."""
    if STATED in prompts.sellers | decodes.sellers:
        return [(prompts, decodes)]
    return [(prompts.of(seller), decodes.of(seller)) for seller in sorted(prompts.sellers & decodes.sellers)]


class Half(NamedTuple):
    """A structure as one of two pools. carrying: the bill of an hour of the replicas that the demand keeps busy, before
    they are rounded up. grain: that of one replica.
    """

    priced: PricedGrid
    carrying: float
    grain: float


class Halves:
    """The structures of a search as halves of pools apart, and the pairs of two of them."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.prompts: dict[Hashable, list[Half]] = defaultdict(list)
        self.decodes: dict[Hashable, list[Half]] = defaultdict(list)
        self._held: dict[Hashable, list[str]] = {}

    def add(self, priced: PricedGrid, prompts: bool = True, decodes: bool = True) -> None:
        """Another structure: what it costs to carry the demand with it as the pools that it is a candidate for. A pair
        makes as many drafts in both: the cache of a draft moves with that of its model. It starts one checkpoint where
        the engine joins no others.

        The limit on TTFT is taken for tokens that cost no time, which no pair beats. What stages do to the slow end of
        TTFT the closed form does not see, so that they would win too often: none are where prompts are computed.
        """
        stream = self.stream.ruling
        demand, slo, sizing = stream
        grid, tariff = priced.grid, priced.tariff
        if tariff is None or demand.requests_per_second is None:
            return
        prompts = prompts and grid.deployment.parallel.pp == 1
        engine, precision = grid.deployment.engine, grid.deployment.precision
        key = engine.name, precision.kv.name, grid.speculation.length, *self._must_hold(priced)
        grain = float(tariff.cost(1))
        each = grain / tariff.filled(1)
        decode = decode_pool(grid, stream) if decodes else None
        if decode is not None:
            self.decodes[key].append(Half(priced, decode.needed * each, grain))
        before = _seconds_beside_prefill(grid, grid, demand) if prompts else None
        if before is not None:
            prefill = prefill_pool(grid, demand, _limit_on_ttft(slo, demand, 0.0), before, sizing)
            if prefill is not None:
                self.prompts[key].append(Half(priced, prefill.busy * each, grain))

    def _must_hold(self, priced: PricedGrid) -> list[str]:
        """What tells the checkpoint of a structure from others where its engine joins those of one alone: of a model
        its formats do."""
        deployment = priced.grid.deployment
        if not deployment.engine.apart.one_checkpoint:
            return []
        key = deployment.precision, deployment.engine.name, deployment.engine.defaults.version
        if key not in self._held:
            self._held[key] = checkpoint.held(priced.request, deployment)
        return self._held[key]

    def pairs(self, below: float) -> list[PlanOption]:
        """The cheapest pairs of two structures that may cost less than ``below``, cheapest first."""
        found = []
        for key, decodes in self.decodes.items():
            for first, second in itertools.product(pareto_front(self.prompts[key]), pareto_front(decodes)):
                if first.priced is second.priced or first.grain + second.grain >= below:  # one replica of each
                    continue
                option = cheapest_pair(first.priced, second.priced, self.stream)
                if option is not None and option.bound < below:
                    found.append(option)
        return sorted(found, key=lambda option: (option.cost or 0.0, option.devices, option.ttft))[:_MOST_PAIRS]


def pareto_front(halves: list[Half]) -> list[Half]:
    """Those that no other on devices of their kind beats in both what carrying the demand costs and what a replica
    costs."""
    kept: dict[str, list[Half]] = defaultdict(list)
    for half in sorted(halves, key=lambda half: (half.grain, half.carrying)):
        of_kind = kept[half.priced.grid.deployment.hardware.name]
        if not of_kind or half.carrying < of_kind[-1].carrying:
            of_kind.append(half)
    return list(itertools.chain(*kept.values()))


def decode_pool(grid: LoadGrid, stream: Stream) -> DecodePool | None:
    """The largest batch that cache, slots and TPOT allow, and the replicas that then carry the demand's rate.

    A request takes ``n = (output - 1)/(tokens a step)`` steps, so a rank of batch ``B`` finishes ``B/(n*t_decode(B))``
    requests a second.
    """
    dp, batch, (demand, slo, sizing) = grid.deployment.parallel.dp, grid.axes.batch, stream
    tpot = grid.step_decode / grid.speculation.tokens * grid.speculation.pace(slo.percentile)
    column = _decode_budget(grid)
    room = column < len(grid.axes.budget)
    allowed = room & (_decode_cache_use(grid, np.where(room, column, 0)) <= 1) & (batch * dp <= grid.slots)
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
        budget=int(grid.axes.budget[column[largest]]),
        concurrency=float(batch[largest] * dp),
        step=float(grid.step_decode[largest]),
        tpot=float(tpot[largest]),
        needed=float((demand.requests_per_second or 0.0) / (sizing.utilisation * capacity[largest])),
    )


def prefill_pool(grid: LoadGrid, demand: Demand, limit: TtftLimit, before: Num, sizing: Sizing) -> PrefillPool | None:
    """The fewest replicas, over the token budgets of the grid, whose TTFT keeps a limit; ``None`` when none does.

    The queue is that of the first stage, which a prompt keeps busy until the next may follow; its own time is that
    through all stages. before: seconds of TTFT that are not spent in this pool, one
    figure or one for each budget.
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
    good = (
        _holds(grid, demand.prompt.quantile(1 - limit.share))
        & (budget >= longest_whole(grid.deployment, demand, 100 * (1 - limit.share)))
        & (ttft <= limit.seconds)
        & (replicas >= fewest)
        & (replicas <= most)
        & (busy < _MAX_BUSY)
    )
    if not good.any():
        return None
    first = int(np.flatnonzero(good.any(axis=1))[0])
    column = int(np.flatnonzero(good[first])[0])
    busy_replicas = float(load[column] / sizing.utilisation)
    return PrefillPool(int(replicas[first, 0]), int(budget[column]), float(ttft[first, column]), busy_replicas)


def _holds(grid: LoadGrid, tokens: float) -> BoolArray:
    """Whether the cache of a rank holds a prompt of so many tokens, by token budget."""
    deployment, budget = grid.deployment, grid.axes.budget
    footprint = replace(single(deployment), budget=budget)
    enough = np.ones(budget.shape, dtype=bool)
    for stage in dict.fromkeys(single(deployment).stages):
        enough &= footprint.pools(stage) >= stage.held(tokens) + stage.in_flight(tokens, budget)
    return enough


def _limit_on_ttft(slo: Slo, demand: Demand, tpot: float) -> TtftLimit:
    """What the limits on TTFT, on the first token of an answer and on end-to-end latency leave to TTFT, when a token
    takes ``tpot`` seconds.
    """
    thinking = before_answer(demand.output, slo.percentile / 100) * tpot
    left = min(
        slo.limits.get("ttft", np.inf),
        slo.limits.get("e2el", np.inf) - (demand.output.average - 1.0) * tpot,
        slo.limits.get("answer_ttft", np.inf) - thinking,
    )
    return TtftLimit(seconds=float(left), share=tail(slo.percentile))


def _seconds_beside_prefill(prompts: LoadGrid, decodes: LoadGrid, demand: Demand) -> Num | None:
    """Seconds of TTFT in front of the engine and between the pools, by the token budget of a step that computes
    prompts; ``None`` where no link joins the pools, or one cannot read the other's cache.

    Of a cache that leaves in pieces or layers, the last of them is left when the prompt is done.
    """
    deployment, prompt = prompts.deployment, demand.prompt.average
    try:
        drafts = prompts.speculation.draft, decodes.speculation.draft
        transfer = Transfer.between(deployment, decodes.deployment, drafts=drafts)
    except (MissingFactError, UsageError):
        return None
    sending = sending_of(deployment)
    last: Num = 1.0
    if sending != "after":
        last = np.minimum(prompts.axes.budget / prompt, 1.0)
    if sending == "layers":
        last = last / len(deployment.model.sequence)
    moved = transfer.last(transfer.seconds(prompt), last)
    return moved + (1 + deployment.engine.apart.asked_twice) * front_end(deployment, prompt).seconds


def _decode_budget(grid: LoadGrid) -> npt.NDArray[np.intp]:
    """The place of the fewest tokens of a step, among the rising budgets of the grid, that hold a decode of each batch
    with room; of the last where it holds one without, beyond it where not. Engines whose decodes are steps of their
    own hold any with the first.
    """
    budget, rows = grid.axes.budget, grid.axes.batch / grid.deployment.parallel.pp * grid.speculation.width
    if not grid.deployment.engine.batching.mixed:
        rows = np.zeros_like(rows)
    return np.searchsorted(budget, np.where(rows <= budget[-1], np.minimum(_ROOM * rows, budget[-1]), rows))


def _decode_cache_use(grid: LoadGrid, column: npt.NDArray[np.intp]) -> Array:
    """Cache in use over the cache of a rank that only decodes, by batch with the budget of ``column``: the grid's share
    of one request, times the batch, so without those that wait for their prompts.
    """
    row, ranks = np.arange(len(column)), grid.deployment.parallel.dp
    of_one = grid.memory_use[row, column] / np.maximum(grid.concurrency[row, column] / ranks, 1e-9)
    return np.asarray(of_one * grid.axes.batch)
