"""Who serves whom in which hour as an integer programme, solved by HiGHS (docs/regions.md writes it down)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from inferplan.errors import InferplanError
from inferplan.horizon.constraints import Rows
from inferplan.horizon.programme import NODES, SECONDS
from inferplan.regions.question import HOURS, Question
from inferplan.units import Array

GAP = 1e-3
"""The share by which a better answer may exist where hours have machines in common: capacities are known to 3 %."""
Places = npt.NDArray[np.int64]
_EXACT = 1e-7
"""A number of replicas that is this much above a whole one is rounded down: the solver keeps rows to about that."""
_INFEASIBLE = 2
"""``scipy.optimize.milp``: no point keeps all constraints."""


class Solved(NamedTuple):
    """A solution. bound: no solution has less."""

    values: Array
    cost: float
    bound: float


class Programme:
    """Columns and rows of some hours of a question.

    flow ``(paths, hours)``: requests a second of the busiest moment. working ``(pools, hours)`` of each site: replicas
    at work. missed ``(users, hours)``: requests a second that
    nobody serves; no columns unless ``spare``.
    """

    def __init__(self, asked: Question, hours: Sequence[int], spare: bool = False) -> None:
        self.asked, self.hours, self.rows, self.columns = asked, list(hours), Rows(), 0
        self._most: list[Array] = []
        self._whole: list[npt.NDArray[np.bool_]] = []
        self.loads = np.array([one.most[self.hours] for one in asked.users])
        self.paths = asked.paths
        self.flow = self.new(len(self.paths), len(self.hours))
        self.missed = self.new(len(asked.users), len(self.hours)) if spare else np.zeros((0, 0), dtype=np.int64)
        self.working = [self._pools(site) for site in range(len(asked.sites))]
        self._served()

    def new(self, *shape: int, most: float | Array = inf, whole: bool = False) -> Places:
        """Columns; their places."""
        size = int(np.prod(shape))
        places = np.arange(self.columns, self.columns + size).reshape(shape)
        self.columns += size
        self._most.append(np.broadcast_to(np.asarray(most, dtype=float), shape).ravel())
        self._whole.append(np.full(size, whole))
        return places

    def limit(self, parts: Sequence[tuple[Places, float | Array]], least: float | Array, most: float | Array) -> None:
        """A row for each hour: the sum of columns ``(hours)``, or one column, times their weights is within bounds."""
        rows = self.rows.add(("", self.rows.count), len(self.hours), least, most)
        for columns, weights in parts:
            self.rows.put(rows, columns, weights)

    def of(self, users: int) -> list[int]:
        """The paths of some users."""
        return [place for place, arc in enumerate(self.paths) if arc.users == users]

    def _served(self) -> None:
        """All requests are served."""
        for users, load in enumerate(self.loads):
            parts: list[tuple[Places, float | Array]] = [(self.flow[path], 1.0) for path in self.of(users)]
            if self.missed.size:
                parts.append((self.missed[users], 1.0))
            if parts:
                self.limit(parts, load, load)
            elif load.any():  # a row without columns, which nothing keeps
                self.limit([(self.new(len(self.hours), most=0.0), 1.0)], load, load)

    def _pools(self, site: int) -> Places:
        """Replicas at work in each pool."""
        rates = self.asked.pools(site)
        working = self.new(len(rates), len(self.hours), whole=True)
        for rate, replicas in zip(rates, working):
            flows = [self.flow[path] for path, arc in enumerate(self.paths) if (arc.site, arc.rate) == (site, rate)]
            self.limit([*((flow, 1 / rate) for flow in flows), (replicas, -1.0)], -inf, 0.0)
        return working

    def solve(
        self, costs: Array, keep: Sequence[tuple[Array, float]] = (), fixed: tuple[Places, Array] | None = None
    ) -> Solved | None:
        """The least of ``costs``; ``None`` where nothing keeps the rows.

        keep: objectives, and what each may be at most. fixed: columns, and their values. Raises ``InferplanError``
        where the solver fails.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        whole, most = np.concatenate(self._whole), np.concatenate(self._most)
        low = np.zeros(self.columns)
        if fixed is not None:
            low[fixed[0]] = most[fixed[0]] = fixed[1]
        rows = [LinearConstraint(*self.rows.matrix(self.columns))]
        for objective, bound in keep:
            scale = max(bound, float(np.abs(objective).max()), 1e-9)  # near 1, whatever the unit
            rows.append(LinearConstraint(objective[None, :] / scale, -inf, bound / scale))
        found: Any = milp(
            costs,
            integrality=whole.astype(np.int64),
            bounds=Bounds(low, most),
            constraints=rows,
            options={"mip_rel_gap": GAP if self.asked.together else 0.0, "node_limit": NODES, "time_limit": SECONDS},
        )
        if found.x is None:
            if found.status != _INFEASIBLE:
                raise InferplanError("the programme was not solved", because=str(found.message))
            return None
        values = np.where(whole, np.round(found.x), np.maximum(found.x, 0.0))
        cost = float(costs @ values)
        bound = cost if found.mip_dual_bound is None else min(float(found.mip_dual_bound), cost)
        return Solved(values, cost, bound)


@dataclass(frozen=True, kw_only=True, eq=False)
class Bought:
    """Columns of machines of a site: hired ``(kinds, hours)``, held ``(kinds)``; replicas that are up: for single hours
    and all day."""

    hired: Places
    held: Places
    hourly: Places
    always: Places


class Routes(Programme):
    """With machines that are hired and held for it."""

    def __init__(self, asked: Question, hours: Sequence[int]) -> None:
        super().__init__(asked, hours)
        self.bought = [self._machines(site) for site in range(len(asked.sites))]
        self._whole_replicas()

    def _whole_replicas(self) -> None:
        """Sites that alone can serve some users have, together, whole replicas for their load: rows that change no
        answer, and leave the solver a tenth of its work."""
        reach = [frozenset(arc.site for arc in self.paths if arc.users == one) for one in range(len(self.asked.users))]
        sets = {frozenset[int]().union(*some) for size in (1, 2, len(reach)) for some in combinations(reach, size)}
        for sites in sets - {frozenset()}:
            mine = [place for place, one in enumerate(reach) if one and one <= sites]
            rate = max(max(self.asked.pools(site)) for site in sites)
            least = np.ceil(self.loads[mine].sum(axis=0) / rate - _EXACT)
            up = [part for site in sites for part in (self.bought[site].hourly, self.bought[site].always)]
            self.limit([(part, 1.0) for part in up], least, inf)

    def _machines(self, site: int) -> Bought:
        one, count = self.asked.sites[site], len(self.hours)
        found = Bought(
            hired=self.new(len(one.hired), count, whole=True),
            held=self.new(len(one.held), whole=True),
            hourly=self.new(count, whole=True),
            always=self.new(1, whole=True),
        )
        up: list[tuple[Places, float | Array]] = [(found.hourly, -1.0), (found.always, -1.0)]
        self.limit([*((pool, 1.0) for pool in self.working[site]), *up], -inf, 0.0)
        hired = [(columns, -float(sold.holds)) for columns, sold in zip(found.hired, one.hired)]
        held = [(column, -float(sold.holds)) for column, sold in zip(found.held[:, None], one.held)]
        self.limit([(found.hourly, 1.0), *hired], -inf, 0.0)
        self.limit([(found.always, 1.0), *held], -inf, 0.0)
        if one.most < inf and (hired or held):
            taken = [(columns, float(sold.gpus)) for columns, sold in zip(found.hired, one.hired)]
            taken += [(column, float(sold.gpus)) for column, sold in zip(found.held[:, None], one.held)]
            self.limit(taken, -inf, one.most)
        return found

    @property
    def machines(self) -> Places:
        """Columns of what is paid for, and of the replicas on it that are up all day."""
        parts = [part.ravel() for one in self.bought for part in (one.hired, one.held, one.always)]
        return np.concatenate(parts)

    def of_hour(self, values: Array, place: int) -> Array:
        """The values of :attr:`machines` in one of the hours, as a programme of that hour has them."""
        parts = [
            part.ravel()
            for one in self.bought
            for part in (values[one.hired[:, place]], values[one.held], values[one.always])
        ]
        return np.concatenate(parts)

    @property
    def money(self) -> Array:
        """Of the hours, by column."""
        found = np.zeros(self.columns)
        for one, bought in zip(self.asked.sites, self.bought):
            for columns, sold in zip(bought.hired, one.hired):
                found[columns] = sold.price[self.hours]
            for column, sold in zip(bought.held, one.held):
                found[column] = sold.price[self.hours].sum()
        return found

    def energy(self, weights: Sequence[Array]) -> Array:
        """kWh by column, times a weight of each hour and site."""
        found = np.zeros(self.columns)
        for one, bought, weight in zip(self.asked.sites, self.bought, weights):
            found[bought.hourly] = one.standing * weight[self.hours]
            found[bought.always] = one.standing * weight[self.hours].sum()
        each = self._each()
        for path, arc in enumerate(self.paths):
            found[self.flow[path]] = self.asked.sites[arc.site].request * weights[arc.site][self.hours] * each[path]
        return found

    @property
    def distance(self) -> Array:
        """Seconds of network of all requests, by column."""
        found, each = np.zeros(self.columns), self._each()
        for path, arc in enumerate(self.paths):
            found[self.flow[path]] = arc.delay * each[path]
        return found

    def _each(self) -> Array:
        """Requests of an hour over the rate of its busiest moment, by path."""
        ones = np.ones((len(self.paths), HOURS))
        return self.asked.served(ones, self.paths)[:, self.hours]


class Loss(Programme):
    """With the machines that are there, and more of them, paid for all day. room: replicas of each site in each hour
    ``(sites, hours)``. left: GPUs of each site that more machines may take."""

    def __init__(self, asked: Question, room: Array, left: Sequence[float], more: bool) -> None:
        super().__init__(asked, range(HOURS), spare=True)
        most = inf if more else 0.0
        self.more = self.new(len(asked.sites), most=most, whole=True)
        self.kinds = [(*one.held, *one.hired) for one in asked.sites]
        self.added = [self.new(len(kinds), 1, most=most, whole=True) for kinds in self.kinds]
        for site, (kinds, added) in enumerate(zip(self.kinds, self.added)):
            holds = [(column, -float(sold.holds)) for column, sold in zip(added, kinds)]
            self.limit([(self.more[site : site + 1], 1.0), *holds], -inf, 0.0)
            if left[site] < inf and kinds:
                self.limit([(column, float(sold.gpus)) for column, sold in zip(added, kinds)], -inf, left[site])
        for site, working in enumerate(self.working):
            if len(working):
                self.limit([*((pool, 1.0) for pool in working), (self.more[site : site + 1], -1.0)], -inf, room[site])

    @property
    def lost(self) -> Array:
        """Requests that are not served, by column."""
        found = np.zeros(self.columns)
        for place, one in enumerate(self.asked.users):
            found[self.missed[place]] = np.divide(one.mean, one.most, out=np.zeros(HOURS), where=one.most > 0) * 3600
        return found

    @property
    def gpus(self) -> Array:
        """GPUs that are added, by column."""
        found = np.zeros(self.columns)
        found[self.more] = [site.devices for site in self.asked.sites]
        return found

    @property
    def money(self) -> Array:
        """Of a day of the machines that are added, by column."""
        found = np.zeros(self.columns)
        for kinds, added in zip(self.kinds, self.added):
            found[added[:, 0]] = [sold.day for sold in kinds]
        return found
