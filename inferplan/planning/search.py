"""The search: every point of every candidate's grid against the limits, and the cheapest that meets them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import groupby
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inferplan.catalog.assemble import Request
from inferplan.catalog.files import load_model
from inferplan.catalog.price_lists import PriceBook
from inferplan.errors import InferplanError, MissingFactError, NotFiniteError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.memory import share_stages
from inferplan.estimate.shared import Shared
from inferplan.features import goes_together, require_together
from inferplan.models.spec import ModelSpec, require_readable, require_tokens
from inferplan.planning.constraints import Constraint, constraints_of
from inferplan.planning.demand import Demand, require_decodes
from inferplan.planning.grid import Axes, LoadGrid, axes_for, load_grid, load_grids, longest_whole, stages_of
from inferplan.planning.option import PlanOption, PricedGrid, Stream, bill, option_at
from inferplan.planning.pools import CAPACITY_ERROR, Halves, cheapest_pools
from inferplan.planning.space import Rejections, Space, candidates, speculations
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.traffic.requests import Slo
from inferplan.units import Array, BoolArray
from inferplan.work.parallel import Parallelism


class SearchResult(NamedTuple):
    """What a search finds.

    options: the cheapest option of each candidate that meets the limits, cheapest first. frontier: the options that no
    other beats in both speed for a user and throughput of a device, limits or not. grids: every grid that was priced.
    rejections: how many points each reason ruled out. evaluated: points; structures: grids;
    structures_apart: those looked at as pools of their own for prompts and decodes.
    too_large: of what no size of which is allowed what takes least.
    """

    options: list[PlanOption]
    frontier: list[PlanOption]
    grids: list[PricedGrid]
    rejections: Rejections
    evaluated: int
    structures: int
    structures_apart: int
    too_large: PlanOption | None = None

    @property
    def deployments(self) -> list[Deployment]:
        """Those that were priced: options are of them."""
        return [priced.grid.deployment for priced in self.grids]


_WHATEVER_THE_LOAD = ("impossible", "host", "weights")
"""Reasons that rule a candidate out before it is priced."""
_ALIKE = 1e-9
"""Figures that differ by no more than this share of them differ by rounding."""
_LATENCY_ERROR = {"ttft": 2.0, "tpot": 1.15, "e2el": 1.3, "answer_ttft": 1.3}
"""By how much the closed form may be too careful about each latency; what it rules out by more is not simulated.

Of 131 points at the 95th percentile (python -m tests.benchmarks.compare_screening, 2026-11-22) 95 % were too careful by
less than 1.43 in TTFT (the worst by 1.63), 1.06 in TPOT (one by 1.52) and none in end-to-end latency.
"""


def loosen_limits(slo: Slo) -> Slo:
    """The limits that the closed form may be over while the simulator still keeps ``slo``."""
    return replace(slo, **{name: limit * _LATENCY_ERROR[name] for name, limit in slo.limits.items()})


def keeping(grid: LoadGrid, constraints: Iterable[Constraint]) -> BoolArray:
    """Which points of a grid keep every constraint in closed form."""
    kept = np.ones(grid.rate.shape, dtype=bool)
    for one in constraints:
        if (points := one.points(grid)) is not None:
            kept &= points
    return kept


def search(space: Space, stream: Stream, prices: PriceBook) -> SearchResult:
    """Evaluate the whole space. Memory first, then the limits one after another; each rules out what it rules out.

    Raises ``NotFiniteError`` where the price of a step is no number: that is a fault of the model, and no candidate is
    refused for it.
    """
    model, (demand, slo, _) = load_model(space.base.model), stream
    require_tokens(model, "serving under load")
    _require_one_pass(model, space, demand)
    state, tariff, shared = _Search(stream=stream), cache(prices.tariff), Shared()
    found = candidates(space, state.rejections)
    for _, alike in groupby(found, key=_family):
        members = [one for one in alike if state.is_known(one[1])]
        for _, deployment in members:
            share_stages(deployment, shared)
        fitting = [deployment for _, deployment in members if _weights_fit(deployment)]
        grids = _plain_grids(space, (demand, slo), fitting, shared)
        for request, deployment in members:
            axes = _axes(space, deployment, demand, slo)
            if not any(deployment is one for one in fitting):
                state.rejections.add("weights", axes.batch.size * axes.budget.size, deployment.describe())
                state.evaluated += axes.batch.size * axes.budget.size
                continue
            sold = tariff(deployment.hardware.name, deployment.parallel.ranks, deployment.parallel.tp)
            for speculation in speculations(space, request, deployment, state.rejections):
                try:
                    require_together("plan", deployment.features | demand.features)
                    grid = grids.get(id(deployment)) if speculation is PLAIN else None
                    grid = grid or load_grid(deployment, demand, slo.percentile, axes, speculation)
                except NotFiniteError:
                    raise
                except InferplanError as error:
                    said = f"{error.what}: {error.hint}" if isinstance(error, MissingFactError) else error.what
                    state.rejections.add("impossible", axes.batch.size * axes.budget.size, said)
                    continue
                priced = PricedGrid(request, grid, sold)
                decodes, prompts = space.tries(deployment), space.tries(deployment, prompts=True)
                if decodes:
                    state.add(priced)
                if space.disaggregate and _may_be_apart(deployment, demand):
                    state.add_pools(priced, prompts, decodes)
    return state.result()


def searched_again(searched: SearchResult, stream: Stream) -> SearchResult:
    """The options of the same grids under another load, without separate pools."""
    state = _Search(stream=stream, evaluated=searched.evaluated - sum(one.grid.rate.size for one in searched.grids))
    for reason in _WHATEVER_THE_LOAD:
        if count := searched.rejections.counts[reason]:
            state.rejections.add(reason, count, searched.rejections.examples.get(reason, ""))
    for priced in searched.grids:
        state.add(priced)
    return state.result()


def _family(candidate: tuple[Request, Deployment]) -> tuple[int, float | None]:
    """What candidates of a device under one cap, an engine and a format have in common."""
    request, deployment = candidate
    return id(deployment.precision), request.power_cap


def _require_one_pass(model: ModelSpec, space: Space, demand: Demand) -> None:
    """Raise ``UsageError`` for features that a model does not go with, and for other inputs than its encoder reads."""
    require_together("plan", space.features | demand.features | model.features)
    require_readable(model, demand.prompt.average, demand.output.average)
    require_decodes(demand, model.encodes, "a plan")


def _may_be_apart(deployment: Deployment, demand: Demand) -> bool:
    """Whether pools for prompts and for decodes are planned for a deployment under a demand."""
    model = deployment.model
    plain = model.encoder is None and not model.encodes and deployment.lora is None and not reads_host(deployment)
    return plain and not demand.offline and demand.users is None and not demand.of_sessions


def reads_host(deployment: Deployment) -> bool:
    """Whether a part of its weights lies in the memory of its host."""
    return deployment.offload is not None or deployment.streamed is not None


def _axes(space: Space, deployment: Deployment, demand: Demand, slo: Slo) -> Axes:
    budgets = list(space.budgets) if space.budgets else None
    return axes_for(deployment, budgets, longest_whole(deployment, demand, slo.percentile))


def _plain_grids(
    space: Space, asked: tuple[Demand, Slo], deployments: list[Deployment], shared: Shared
) -> dict[int, LoadGrid]:
    """Grids without drafts by the ``id`` of the deployment: those that differ in their number of stages alone at once.

    Those of a group of which one has no price are left out, and those with features that do not go together.
    """
    demand, slo = asked
    groups: dict[tuple[Parallelism, bool, int, int], list[Deployment]] = defaultdict(list)
    for deployment in deployments:
        if not goes_together("plan", deployment.features | demand.features):
            continue
        cut = deployment.two_batches is not None
        slots = 0 if deployment.lora is None else deployment.lora.slots
        alone = id(deployment) if reads_host(deployment) else 0  # its stages differ by what they leave there
        groups[replace(deployment.parallel, pp=1), cut, slots, alone].append(deployment)
    found: dict[int, LoadGrid] = {}
    for group in groups.values():
        try:
            grids = load_grids(group, demand, slo.percentile, _axes(space, group[0], demand, slo), shared=shared)
        except NotFiniteError:
            raise
        except InferplanError:
            continue
        found.update(zip(map(id, group), grids))
    return found


def _weights_fit(deployment: Deployment) -> bool:
    """Whether they leave room on every device, and on the host where a part of them lies there."""
    return all(stage.weights + stage.adapters < side.usable for side, stage in stages_of(deployment))


class _Frontier(NamedTuple):
    """The points of one grid that no other of that grid beats; where they lie in it, as places in the flat grid."""

    priced: PricedGrid
    per_user: Array
    per_device: Array
    places: npt.NDArray[np.intp]


@dataclass(kw_only=True, eq=False)
class _Search:
    """What the search has seen so far."""

    stream: Stream
    options: list[PlanOption] = field(default_factory=list)
    frontiers: list[_Frontier] = field(default_factory=list)
    grids: list[PricedGrid] = field(default_factory=list)
    rejections: Rejections = field(default_factory=Rejections)
    evaluated: int = 0
    structures: int = 0
    structures_apart: int = 0
    nearest: PlanOption | None = None
    """Of what no size of which is allowed what takes least."""

    @cached_property
    def constraints(self) -> list[Constraint]:
        """What points and sizes are held to; of classes what rules their mix out."""
        return constraints_of(self.stream.ruling.slo, self.stream.sizing)

    def is_known(self, deployment: Deployment) -> bool:
        """Whether every constraint can be asked of a candidate; if not it is counted."""
        unknown = next((text for one in self.constraints if (text := one.unknown(deployment))), "")
        self.rejections.add("impossible", int(bool(unknown)), unknown)
        return not unknown

    @cached_property
    def halves(self) -> Halves:
        """The structures as halves of pools apart."""
        return Halves(self.stream)

    def add(self, priced: PricedGrid) -> None:
        """One grid: count what is ruled out, keep its cheapest option and its frontier."""
        grid = priced.grid
        self.structures += 1
        self.evaluated += grid.rate.size
        self.grids.append(priced)
        left = self._count(grid)
        option = cheapest_point(priced, self.stream)
        if option is not None:
            self._keep(option, max(left, 1))
        self._add_frontier(priced)

    def add_pools(self, priced: PricedGrid, prompts: bool, decodes: bool) -> None:
        """The same structure with prompts and decodes on pools of their own, and as one of two pools: of those that it
        is a candidate for. A cache moves between them: on GPUs that are sold with the links between their hosts."""
        priced = priced._replace(tariff=None if priced.tariff is None else priced.tariff.joined)
        self.structures_apart += 1
        self.halves.add(priced, prompts, decodes)
        if not (prompts and decodes):
            return
        option = cheapest_pools(priced, self.stream)
        if option is None:
            self.rejections.add("disaggregated", 1, priced.grid.deployment.describe())
        else:
            self._keep(option, 1)

    def _keep(self, option: PlanOption, points: int) -> None:
        """Keep an option that stands for so many points, or count them where not even its least size is allowed."""
        broken = next((one for one in self.constraints if option.bound == inf and not one.allows(option)), None)
        if broken is None:
            self.options.append(option)
            return
        self.rejections.add(broken.reason, points, option.deployment.describe())
        if option.cost is None:  # more of what has no price would not help
            return
        if self.nearest is None or broken.taken(option) < broken.taken(self.nearest):
            self.nearest = option

    def _count(self, grid: LoadGrid) -> int:
        """Count each point that misses something once, under the first reason that applies; how many are left."""
        alive = np.ones(grid.rate.shape, dtype=bool)
        label, left = grid.deployment.describe(), alive.size
        for constraint in self.constraints:
            if (kept := constraint.points(grid)) is not None:
                alive &= kept
                before, left = left, int(np.count_nonzero(alive))
                self.rejections.add(constraint.reason, before - left, label)
        return left

    def _add_frontier(self, priced: PricedGrid) -> None:
        """Of each batch the fastest step: its rate is the batch over that step, so no other beats it in either."""
        grid = priced.grid
        tpot = np.where(grid.possible, grid.tpot, np.inf)
        fastest = np.argmin(tpot, axis=1) + np.arange(len(tpot)) * tpot.shape[1]
        places = fastest[np.isfinite(tpot.flat[fastest])]
        user, device = (
            1 / grid.tpot.flat[places],
            grid.rate.flat[places] * self.stream.demand.output.average / grid.devices,
        )
        kept = pareto(user, device)
        self.frontiers.append(_Frontier(priced, user[kept], device[kept], places[kept]))

    def _frontier(self) -> Iterator[PlanOption]:
        """The options that no other of any grid beats."""
        if not self.frontiers:
            return
        user = np.concatenate([frontier.per_user for frontier in self.frontiers])
        device = np.concatenate([frontier.per_device for frontier in self.frontiers])
        starts = np.cumsum([0, *(len(frontier.places) for frontier in self.frontiers)])
        for index in pareto(user, device):
            owner = int(np.searchsorted(starts, index, side="right")) - 1
            priced, place = self.frontiers[owner].priced, self.frontiers[owner].places[index - starts[owner]]
            row, column = np.unravel_index(place, priced.grid.rate.shape)
            yield option_at(priced, self.stream.demand, self.stream.sizing, (int(row), int(column)))

    def result(self) -> SearchResult:
        """The options that have a price, by rising cost, pairs of two structures behind the cheapest; and the frontier
        over all grids."""
        billed = [option for option in self.options if option.cost is not None]
        pairs = self.halves.pairs(min((option.cost or inf for option in billed if option.screened), default=inf))
        billed.sort(key=option_order)
        billed[1:1] = pairs  # when one is sized, others only have to be tried at what costs less
        return SearchResult(
            options=billed,
            frontier=list(self._frontier()),
            grids=self.grids,
            rejections=self.rejections,
            evaluated=self.evaluated,
            structures=self.structures,
            structures_apart=self.structures_apart,
            too_large=self.nearest,
        )


def cheapest_point(priced: PricedGrid, stream: Stream) -> PlanOption | None:
    """The cheapest point of a grid that meets the limits in closed form, or nearly; ``None`` without one.

    Of points that cost the same, the one that carries most.
    """
    grid, (demand, slo, sizing) = priced.grid, stream
    ruled = stream.ruling.slo
    loose = ruled if demand.offline else loosen_limits(ruled)  # no run of a job would find out what was loosened
    kept, maybe = (keeping(grid, constraints_of(limits, sizing)) for limits in (slo, loose))
    if not maybe.any():
        return None
    billed = bill(demand, sizing, priced)
    if demand.offline:  # a request of a job may take longer than the deadline
        kept, maybe = kept & np.isfinite(billed.replicas), maybe & np.isfinite(billed.replicas)
        if not maybe.any():
            return None
    tied = np.flatnonzero(kept if kept.any() else maybe)
    for values in (billed.cost, -grid.rate, grid.e2el):
        least = values.flat[tied].min()
        tied = tied[values.flat[tied] <= least + _ALIKE * abs(least)]
    row, column = divmod(int(tied[0]), grid.rate.shape[1])
    option = option_at(priced, demand, sizing, (row, column))
    fewest = float(np.min(billed.replicas[maybe]))
    if option.cost is None or demand.offline:
        return option if option.allowed else replace(option, bound=inf)
    bound = option.sized(max(int(np.ceil(fewest / CAPACITY_ERROR)), 1)).cost or 0.0
    if bound < inf and demand.users is not None and not loose.limits.keys() & {"ttft", "e2el", "answer_ttft"}:
        bound = 0.0  # users may queue for a slot as long as they like
    return replace(option, bound=bound, screened=bool(kept.any()))


def option_order(option: PlanOption) -> tuple[bool, float, bool, int, tuple[bool, float, bool], int, float]:
    """Order of options: those that meet the limits in closed form; cost; what is simpler to run (no pools, no stages);
    the checkpoint's own format before narrower ones; devices; speed.
    """
    simpler = option.pools is not None, option.deployment.parallel.pp, option.narrowness, option.devices
    cost, latency = (float(f"{value:.9g}") for value in (option.cost or 0.0, option.e2el))  # not the last bits
    return not option.screened, cost, *simpler, latency


def nearest_miss(searched: SearchResult, stream: Stream, below: float | None = None) -> PlanOption | None:
    """The point that comes closest to the limits without meeting them, of all or of those that cost less."""
    best: tuple[float, PricedGrid, tuple[int, int]] | None = None
    demand, slo, sizing = stream
    for priced in searched.grids:
        grid = priced.grid
        if priced.tariff is None:
            continue
        worst = np.ones_like(grid.rate)
        for name, limit in slo.limits.items():
            worst = np.maximum(worst, getattr(grid, name) / limit)
        misses = grid.possible & (worst > 1.0)
        if demand.offline or below is not None:
            billed = bill(demand, sizing, priced)
            misses &= np.isfinite(billed.replicas)
            misses &= billed.cost < (np.inf if below is None else below * (1 - 1e-9))
        score = np.where(misses, worst, np.inf)
        where = np.unravel_index(int(np.argmin(score)), score.shape)
        at = (int(where[0]), int(where[1]))
        if np.isfinite(score[at]) and (best is None or score[at] < best[0]):
            best = (float(score[at]), priced, at)
    return None if best is None else option_at(best[1], demand, sizing, best[2])


def pareto(first: Array, second: Array) -> list[int]:
    """Indices of the points that no other beats in both, by falling ``first``; of equals the first is kept."""
    if not len(first):
        return []
    order = np.argsort(-first, kind="stable")
    best = np.maximum.accumulate(second[order])
    order = order[np.append(True, best[1:] > best[:-1])]
    last = np.append(first[order][:-1] != first[order][1:], True)  # of those with the same first the best second
    return [int(index) for index in order[last]]


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


def cheapest_of_each_structure(options: list[PlanOption]) -> Iterator[PlanOption]:
    """The first option of each structure and way of serving, in the order in which they are given."""
    seen = set()
    for option in options:
        drafts = bool(option.speculation.length)
        prompts = "" if option.prompts is None else option.prompts.deployment.describe()
        apart = option.pools is not None, prompts
        slots = None if option.deployment.lora is None else option.deployment.lora.slots
        key = (option.deployment.describe(), option.deployment.engine.name, apart, drafts, slots)
        if key not in seen:
            seen.add(key)
            yield option
