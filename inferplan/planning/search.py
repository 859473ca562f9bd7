"""The search: every point of every candidate's grid against the limits, and the cheapest that stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inferplan.catalog.assemble import Request
from inferplan.catalog.price_lists import PriceBook, PriceTag
from inferplan.errors import InferplanError
from inferplan.estimate.deployment import Deployment
from inferplan.planning.demand import Demand
from inferplan.planning.grid import Axes, LoadGrid, axes_for, load_grid, single
from inferplan.planning.space import Rejections, Space, candidates, speculations
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.traffic.requests import Slo

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """How replicas are counted. utilisation: the share of its capacity that a replica is given. spare: more of them."""

    utilisation: float = 0.8
    spare: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Option:
    """One point of one grid with its replicas: a plan before it is simulated.

    rate: requests a second of one replica at this point, which is its capacity under the limits. replicas: without the
    spare ones. cost: the bill of an hour, or of the whole job where it is offline; ``None`` without a price.
    """

    request: Request
    deployment: Deployment
    budget: int
    batch: int
    concurrency: float
    ttft: float
    tpot: float
    e2el: float
    rate: float
    output: float
    replicas: int
    spare: int
    tag: PriceTag | None
    cost: float | None
    hours: float | None = None
    """Hours of an offline job."""
    pools: tuple[int, int] | None = None
    """Replicas that compute prompts and replicas that decode, where they are apart."""
    speculation: Speculation = PLAIN

    @property
    def devices(self) -> int:
        return self.deployment.parallel.ranks * (self.replicas + self.spare)

    @property
    def per_device(self) -> float:
        """Output tokens a second and device at capacity."""
        whole = self.rate * self.output
        return (
            whole
            * (self.replicas if self.pools else 1)
            / (self.deployment.parallel.ranks * (self.replicas if self.pools else 1))
        )

    @property
    def per_user(self) -> float:
        """Output tokens a second and user."""
        return 1.0 / self.tpot

    def violations(self, slo: Slo) -> dict[str, float]:
        """Each limit that is not met, with the factor by which it would have to be relaxed."""
        return {name: getattr(self, name) / limit for name, limit in slo.limits.items() if getattr(self, name) > limit}


class Entry(NamedTuple):
    """A grid, how it is asked for, and its price."""

    request: Request
    grid: LoadGrid
    tag: PriceTag | None


class Found(NamedTuple):
    """What a search gives: the cheapest option of each candidate that meets the limits, cheapest first; the frontier;
    every grid that was evaluated; and the counts."""

    options: list[Option]
    frontier: list[Option]
    grids: list[Entry]
    rejections: Rejections
    evaluated: int
    structures: int


def costs(demand: Demand, sizing: Sizing, found: LoadGrid, price: float) -> tuple[Array, Array, Array]:
    """Replicas, bill and hours of every point of a grid (hours are those of an offline job, else one)."""
    ranks = found.devices
    if demand.users is not None:
        replicas = np.ceil(demand.users / (found.concurrency * sizing.utilisation) - 1e-9)
    else:
        rate = demand.requests_per_second or 0.0
        replicas = np.ceil(rate / (found.rate * sizing.utilisation) - 1e-9)
    replicas = np.maximum(replicas, 1.0)
    hours = np.ones_like(replicas)
    if demand.requests is not None:
        hours = demand.requests / (found.rate * replicas) / 3600
    return replicas, (replicas + sizing.spare) * ranks * price * hours, hours


def meets(found: LoadGrid, slo: Slo) -> dict[str, Mask]:
    """For each limit, which points keep it."""
    return {name: np.asarray(getattr(found, name) <= limit) for name, limit in slo.limits.items()}


def search(space: Space, demand: Demand, slo: Slo, sizing: Sizing, prices: PriceBook) -> Found:
    """Evaluate the whole space. Memory first, then the limits one after another; each rules out what it rules out."""
    gathered = _Gathered(demand=demand, slo=slo, sizing=sizing)
    for request, deployment in candidates(space, gathered.rejections):
        axes = axes_for(deployment, list(space.budgets) if space.budgets else None)
        tag = prices.find(deployment.hardware.name)
        if not _weights_fit(deployment):
            gathered.rejections.add("weights", axes.batch.size * axes.budget.size, deployment.describe())
            gathered.evaluated += axes.batch.size * axes.budget.size
            continue
        for speculation in speculations(space, request, deployment, gathered.rejections):
            try:
                found = load_grid(deployment, demand, slo.percentile, axes, speculation)
            except InferplanError as error:
                gathered.rejections.add("impossible", axes.batch.size * axes.budget.size, error.what)
                continue
            gathered.take(request, found, tag)
            if space.disaggregate and not demand.offline and demand.users is None:
                gathered.take_apart(request, found, tag)
    return gathered.result()


def _weights_fit(deployment: Deployment) -> bool:
    footprint = single(deployment)
    return all(stage.weights < footprint.usable for stage in footprint.stages)


@dataclass(kw_only=True, eq=False)
class _Gathered:
    """What the search has seen so far."""

    demand: Demand
    slo: Slo
    sizing: Sizing
    options: list[Option] = field(default_factory=list)
    points: list[tuple[float, float, Callable[[], Option]]] = field(default_factory=list)
    """Of each grid the frontier: tokens a second and user, and device, and how to make the option."""
    grids: list[Entry] = field(default_factory=list)
    rejections: Rejections = field(default_factory=Rejections)
    evaluated: int = 0
    structures: int = 0

    def take(self, request: Request, found: LoadGrid, tag: PriceTag | None) -> None:
        """One grid: count what is ruled out, keep its best option, its frontier and its nearest miss."""
        self.structures += 1
        self.evaluated += found.rate.size
        self.grids.append(Entry(request, found, tag))
        kept = self._count(found)
        _, bill, _ = costs(self.demand, self.sizing, found, tag.per_hour if tag else 1.0)
        entry = self.grids[-1]
        if kept.any():
            order = np.lexsort((found.tpot[kept], found.e2el[kept], bill[kept]))
            at = np.argwhere(kept)[order[0]]
            self.options.append(option_at(entry, self.demand, self.sizing, (int(at[0]), int(at[1]))))
        alive = found.possible
        if not alive.any():
            return
        self._frontier(entry, alive)

    def _count(self, found: LoadGrid) -> Mask:
        """The points that meet everything; each other point is counted once, under the first reason that applies."""
        alive = np.ones(found.rate.shape, dtype=bool)
        tests: list[tuple[str, Mask]] = [
            ("memory", np.asarray(found.memory_use <= 1)),
            ("slots", np.asarray(found.concurrency <= found.slots)),
            ("prefill", np.asarray(found.prefill_use < 1)),
            *meets(found, self.slo).items(),
        ]
        label = found.deployment.describe()
        for reason, kept in tests:
            self.rejections.add(reason, int((alive & ~kept).sum()), label)
            alive &= kept
        return alive

    def _frontier(self, entry: Entry, alive: Mask) -> None:
        found = entry.grid
        where = np.argwhere(alive)
        user, device = 1 / found.tpot[alive], found.rate[alive] * self.demand.output.average / found.devices
        for index in pareto(user, device):
            at = (int(where[index][0]), int(where[index][1]))
            make = partial(option_at, entry, self.demand, self.sizing, at)
            self.points.append((float(user[index]), float(device[index]), make))

    def take_apart(self, request: Request, found: LoadGrid, tag: PriceTag | None) -> None:
        """Prompts on replicas of their own: the two pools are sized apart, each for the demand (docs/planning.md)."""
        option = apart(self.demand, self.slo, self.sizing, found, tag)
        if option is None:
            self.rejections.add("disaggregated", 1, found.deployment.describe())
            return
        self.options.append(replace(option, request=request))

    def result(self) -> Found:
        priced = [option for option in self.options if option.cost is not None]
        priced.sort(key=lambda option: (option.cost, option.devices, option.pools is not None, option.e2el))
        user, device = (np.array([entry[axis] for entry in self.points]) for axis in (0, 1))
        frontier = [self.points[index][2]() for index in pareto(user, device)]
        return Found(
            options=priced,
            frontier=frontier,
            grids=self.grids,
            rejections=self.rejections,
            evaluated=self.evaluated,
            structures=self.structures,
        )


def option_at(entry: Entry, demand: Demand, sizing: Sizing, at: tuple[int, int]) -> Option:
    """The option at one point of a grid."""
    found, tag = entry.grid, entry.tag
    replicas, bill, hours = costs(demand, sizing, found, tag.per_hour if tag else 1.0)
    return Option(
        request=entry.request,
        deployment=found.deployment,
        budget=int(found.axes.budget[at[1]]),
        batch=int(found.axes.batch[at[0]]),
        concurrency=float(found.concurrency[at]),
        ttft=float(found.ttft[at]),
        tpot=float(found.tpot[at]),
        e2el=float(found.e2el[at]),
        rate=float(found.rate[at]),
        output=demand.output.average,
        replicas=int(replicas[at]),
        spare=sizing.spare,
        tag=tag,
        cost=None if tag is None else float(bill[at]),
        hours=float(hours[at]) if demand.offline else None,
        speculation=found.speculation,
    )


def nearest_miss(found: Found, demand: Demand, slo: Slo, sizing: Sizing, below: float | None = None) -> Option | None:
    """The point that comes closest to the limits without meeting them, of all or of those that cost less."""
    best: tuple[float, Entry, tuple[int, int]] | None = None
    for entry in found.grids:
        grid = entry.grid
        if entry.tag is None:
            continue
        worst = np.ones_like(grid.rate)
        for name, limit in slo.limits.items():
            worst = np.maximum(worst, getattr(grid, name) / limit)
        open_ = grid.possible & (worst > 1.0)
        if below is not None:
            open_ &= costs(demand, sizing, grid, entry.tag.per_hour)[1] < below * (1 - 1e-9)
        score = np.where(open_, worst, np.inf)
        where = np.unravel_index(int(np.argmin(score)), score.shape)
        at = (int(where[0]), int(where[1]))
        if np.isfinite(score[at]) and (best is None or score[at] < best[0]):
            best = (float(score[at]), entry, at)
    return None if best is None else option_at(best[1], demand, sizing, best[2])


def pareto(first: Array, second: Array) -> list[int]:
    """Indices of the points that no other beats in both, by falling ``first``; of equals the first is kept."""
    order = np.lexsort((-second, -first))
    best = np.maximum.accumulate(second[order])
    kept = np.concatenate([[True], best[1:] > best[:-1]]) if len(order) else np.zeros(0, dtype=bool)
    return [int(index) for index in order[kept]]


def apart(demand: Demand, slo: Slo, sizing: Sizing, found: LoadGrid, tag: PriceTag | None) -> Option | None:
    """The cheapest pair of pools of one structure that meets the limits; ``None`` when there is none.

    A decode replica runs steps of its own only, at the largest batch whose step meets the limit on TPOT; a prefill
    replica computes one prompt after another, an M/D/1 queue that must meet the limit on TTFT; the cache moves in
    between over the scale-out link, and its time is part of TTFT.
    """
    from inferplan.serving.cluster import find_link, transfer_time

    rate = demand.requests_per_second
    if rate is None or tag is None:
        return None
    deployment = found.deployment
    try:
        link = find_link(deployment, None)
    except InferplanError:
        return None
    prompt, output = demand.prompt.average - demand.cached, demand.output.average
    moved = transfer_time(deployment, link, demand.prompt.average)
    steps = (output - 1.0) / found.speculation.tokens
    each = found.step_decode / found.speculation.tokens
    dp = deployment.parallel.dp
    batch = found.axes.batch
    capacity = batch / (steps * found.step_decode) * dp
    concurrency = batch * dp
    cache = _decode_cache(found, demand)
    good = (cache <= 1) & (concurrency <= found.slots)
    if "tpot" in slo.limits:
        good &= each <= slo.limits["tpot"]
    if not good.any():
        return None
    i = int(np.flatnonzero(good)[-1])
    decoders = max(int(np.ceil(rate / (capacity[i] * sizing.utilisation) - 1e-9)), 1)
    best: Option | None = None
    for j, budget in enumerate(found.axes.budget):
        service = float(np.ceil(prompt / min(budget, prompt)) * found.prefill[j])
        for workers in range(1, 10000):
            load = rate * service / (workers * dp)
            if load > sizing.utilisation:
                continue
            tail = max(1 - slo.percentile / 100, 1e-6)
            wait = service / (2 * (1 - load)) * max(np.log(max(load / tail, 1.0)), load)
            ttft = _fixed(deployment, demand) + service + wait + moved
            tpot = float(each[i])
            e2el = ttft + (output - 1.0) * tpot
            values = {"ttft": ttft, "tpot": tpot, "e2el": e2el}
            if all(values[name] <= limit for name, limit in slo.limits.items()):
                total = workers + decoders
                cost = (total + sizing.spare) * found.devices * tag.per_hour
                if best is None or best.cost is None or cost < best.cost:
                    best = Option(
                        request=Request(model="", gpu=""),
                        deployment=deployment,
                        budget=int(budget),
                        batch=int(batch[i]),
                        concurrency=float(concurrency[i]),
                        ttft=ttft,
                        tpot=tpot,
                        e2el=e2el,
                        rate=rate / sizing.utilisation / total,
                        output=output,
                        replicas=total,
                        spare=sizing.spare,
                        tag=tag,
                        cost=cost,
                        pools=(workers, decoders),
                        speculation=found.speculation,
                    )
                break
            if load < 0.05:
                break
    return best


def _fixed(deployment: Deployment, demand: Demand) -> float:
    if deployment.calibration.basis == "roofline":
        return 0.0
    serving = deployment.engine.serving
    return serving.latency + serving.front_request + serving.front_token * demand.prompt.average


def _decode_cache(found: LoadGrid, demand: Demand) -> Array:
    """Cache use of a rank that only decodes, by batch: the grid's, without what waits for its prompt."""
    column = found.memory_use[:, 0] / np.maximum(found.concurrency[:, 0] / found.deployment.parallel.dp, 1e-9)
    return np.asarray(column * found.axes.batch)


def point(
    deployment: Deployment,
    demand: Demand,
    percentile: float,
    batch: int,
    budget: int,
    speculation: Speculation = PLAIN,
) -> LoadGrid:
    """The grid of a single point."""
    axes = Axes(batch=np.array([float(batch)]), budget=np.array([float(budget)]))
    return load_grid(deployment, demand, percentile, axes, speculation)


def ranked(options: list[Option]) -> Iterator[Option]:
    """Options by rising cost, one for each structure and way of serving."""
    seen = set()
    for option in options:
        drafts = bool(option.speculation.length)
        key = (option.deployment.describe(), option.deployment.engine.name, option.pools is not None, drafts)
        if key not in seen:
            seen.add(key)
            yield option
