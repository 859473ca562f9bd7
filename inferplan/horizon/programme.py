"""Two stages as a linear and as an integer programme, solved by HiGHS.

First stage, one decision for all scenarios: machines that are held for months. Second stage, by month, scenario and
level of load: on-demand and spot machines, who serves what, and requests that are not served. docs/horizon.md writes it
down (Birge and Louveaux, Introduction to Stochastic Programming, 2nd edition, 2011, chapters 1, 2 and 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from inferplan.errors import InferplanError
from inferplan.horizon.question import Have, Question
from inferplan.units import HOURS_PER_MONTH, Array

if TYPE_CHECKING:
    from scipy.sparse import csr_array

NODES, SECONDS = 20_000, 120.0
"""The solver of an integer programme is stopped after so many nodes of its tree, the same on every machine, or then;
with the best that it has, and says how good that is."""
GAP = 1e-4
"""The share of the cost by which a cheaper answer may exist when the solver stops by itself."""
_INFEASIBLE = 2
"""``scipy.optimize.milp`` and ``linprog``: no point keeps all constraints."""
_MONTH = HOURS_PER_MONTH * 3600.0
"""Seconds."""


Places = npt.NDArray[Any]
"""Whole numbers: rows, columns, blocks."""


class Rows:
    """Rows of a sparse matrix with their bounds, put together piece by piece."""

    def __init__(self) -> None:
        self._parts: list[tuple[Places, Places, Array]] = []
        self._bounds: list[tuple[Array, Array]] = []
        self.count = 0
        self.of: dict[tuple[Any, ...], Places] = {}

    def add(self, name: tuple[Any, ...], size: int, least: float | Array, most: float | Array) -> Places:
        """So many rows with these bounds; their places."""
        places = np.arange(self.count, self.count + size)
        self.count += size
        self.of[name] = places
        self._bounds.append((np.broadcast_to(least, size), np.broadcast_to(most, size)))
        return places

    def put(self, rows: Places, columns: Places, values: float | Array) -> None:
        """Entries of the matrix."""
        rows, columns, values = np.broadcast_arrays(rows, columns, values)
        self._parts.append((rows.ravel(), columns.ravel(), values.ravel()))

    def matrix(self, columns: int) -> tuple[csr_array, Array, Array]:
        """The matrix, and the bounds of its rows."""
        from scipy.sparse import coo_array

        rows, places, values = (np.concatenate(part) for part in zip(*self._parts))
        made = coo_array((values.astype(float), (rows, places)), shape=(self.count, columns)).tocsr()
        least, most = (np.concatenate(part).astype(float) for part in zip(*self._bounds))
        return made, least, most


@dataclass(frozen=True, kw_only=True, eq=False)
class Solved:
    """A solution. cost: what the programme minimises. bound: no solution costs less. price: by how much a row's bound
    moves the cost (of the relaxed programme; empty of an integer one); reduced: the same of each column."""

    programme: Programme
    values: Array
    cost: float
    bound: float
    price: Array
    reduced: Array

    @property
    def begun(self) -> Array:
        """Machines of each term that begins, by place of :attr:`Programme.begins`."""
        return self.values[: len(self.programme.begins)]

    @property
    def given_back(self) -> Array:
        return self.values[len(self.programme.begins) : self.programme.held]

    @property
    def first_stage(self) -> Array:
        return self.values[: self.programme.held]

    @property
    def machines(self) -> Array:
        """Held machines, by pool and month."""
        programme = self.programme
        return self.values[programme.held : programme.flexible].reshape(len(programme.asked.pools), -1)

    def _part(self, begin: int, end: int) -> Array:
        asked = self.programme.asked
        shape = (-1, len(asked.months), len(asked.scenarios), len(asked.levels))
        return self.values[begin:end].reshape(shape)

    @property
    def hired(self) -> Array:
        """Machines by flexible offer, month, scenario and level."""
        return self._part(self.programme.flexible, self.programme.serving)

    @property
    def serving(self) -> Array:
        """Replicas by arc, month, scenario and level."""
        return self._part(self.programme.serving, self.programme.missing)

    @property
    def missed(self) -> Array:
        """Requests a second that are not served, by stream, month, scenario and level."""
        return self._part(self.programme.missing, self.programme.columns)


class Programme:
    """The columns, in order: terms that begin (``begins``: offer and month), machines given back (``returns``: which
    and when), machines held by pool and month, flexible machines, replicas, requests that are not served.
    """

    def __init__(self, asked: Question) -> None:
        self.asked = asked
        months = len(asked.months)
        self.begins = [
            (place, month)
            for place, offer in enumerate(asked.offers)
            if not offer.flexible
            for month in range(offer.first, min(offer.last, months - 1) + 1)
        ]
        self.returns = [
            (place, month)
            for place, one in enumerate(asked.have)
            if one.releases
            for month in range(min(one.until, months))
        ]
        self.flexibles = [place for place, offer in enumerate(asked.offers) if offer.flexible]
        self.blocks = months * len(asked.scenarios) * len(asked.levels)
        self.held = len(self.begins) + len(self.returns)
        self.flexible = self.held + len(asked.pools) * months
        self.serving = self.flexible + len(self.flexibles) * self.blocks
        self.missing = self.serving + len(asked.arcs) * self.blocks
        self.columns = self.missing + len(asked.streams) * self.blocks

    @cached_property
    def _of_block(self) -> tuple[Places, Places, Places]:
        """Month, scenario and level of each block."""
        asked = self.asked
        shape = (len(asked.months), len(asked.scenarios), len(asked.levels))
        month, scenario, level = (part.ravel() for part in np.indices(shape))
        return month, scenario, level

    @cached_property
    def weight(self) -> Array:
        """Hours of a month in each block, times the chance of its scenario, over the hours of a month."""
        _, scenario, level = self._of_block
        found: Array = self.asked.chance[scenario] * self.asked.hours[level]
        return found

    def hourly(self, place: int) -> Array:
        """The price of a machine of a flexible offer for a month, by block."""
        offer = self.asked.offers[place]
        found: Array = offer.cost * offer.ratio * self.asked.price[self._of_block[1]]
        return found

    @cached_property
    def costs(self) -> Array:
        """Of each column."""
        asked, found = self.asked, np.zeros(self.columns)
        for column, (place, begin) in enumerate(self.begins):
            offer = asked.offers[place]
            found[column] = offer.cost * asked.counted(offer, begin)
        for column, (place, begin) in enumerate(self.returns, len(self.begins)):
            one = asked.have[place]
            found[column] = -one.cost * (min(one.until, len(asked.months)) - begin)
        for index, place in enumerate(self.flexibles):
            found[self._columns(self.flexible, index)] = self.weight * self.hourly(place)
        for index, stream in enumerate(asked.streams):
            found[self._columns(self.missing, index)] = self.weight * _MONTH * (stream.penalty or 0.0)
        return found

    @cached_property
    def constant(self) -> float:
        """What machines that are there cost while nobody gives them back."""
        return sum(one.cost * one.machines * min(one.until, len(self.asked.months)) for one in self.asked.have)

    def _columns(self, begin: int, index: int) -> slice:
        return slice(begin + index * self.blocks, begin + (index + 1) * self.blocks)

    @cached_property
    def most(self) -> Array:
        """The upper bound of each column; of terms that begin, rows have it, whose prices say what it costs."""
        asked, found = self.asked, np.full(self.columns, inf)
        month, scenario, _ = self._of_block
        for column, (place, _) in enumerate(self.returns, len(self.begins)):
            found[column] = asked.have[place].machines
        for index, place in enumerate(self.flexibles):
            offer = asked.offers[place]
            stock = offer.most * (asked.spot[scenario] if offer.term == "spot" else 1.0)
            there = (month >= offer.first) & (month <= offer.last)
            found[self._columns(self.flexible, index)] = np.where(there, stock, 0.0)
        limited = dict(asked.limits.unserved)
        for index, stream in enumerate(asked.streams):
            may = stream.penalty is not None or stream.model in limited
            found[self._columns(self.missing, index)] = asked.rates[index].ravel() if may else 0.0
        return found

    @cached_property
    def most_whole(self) -> Array:
        """The upper bounds of whole numbers: quotas rounded down."""
        found = self.most.copy()
        found[: self.missing] = np.floor(found[: self.missing] + 1e-9)
        return found

    @cached_property
    def rows(self) -> Rows:
        rows = Rows()
        self._holding(rows)
        self._serving(rows)
        self._stocks(rows)
        self._bills(rows)
        self._power(rows)
        self._unserved(rows)
        return rows

    @cached_property
    def matrix(self) -> tuple[csr_array, Array, Array]:
        return self.rows.matrix(self.columns)

    def alive(self, place: int, month: int) -> list[int]:
        """Columns of an offer's terms that last in a month."""
        length = self.asked.offers[place].months or 0
        return [
            column
            for column, (one, begin) in self._by_offer.get(place, [])
            if begin <= month < begin + length and one == place
        ]

    @cached_property
    def _by_offer(self) -> dict[int, list[tuple[int, tuple[int, int]]]]:
        found: dict[int, list[tuple[int, tuple[int, int]]]] = {}
        for column, begin in enumerate(self.begins):
            found.setdefault(begin[0], []).append((column, begin))
        return found

    def returned(self, place: int, month: int) -> list[int]:
        """Columns of machines of one stock that are given back by a month."""
        at = len(self.begins)
        return [at + index for index, (one, when) in enumerate(self.returns) if one == place and when <= month]

    def _there(self, month: int) -> Iterator[tuple[int, Any, list[int]]]:
        """What is there at the beginning and still in a month: its place, itself, columns that take from it."""
        for place, one in enumerate(self.asked.have):
            if month < one.until:
                yield place, one, self.returned(place, month)

    def _holding(self, rows: Rows) -> None:
        """Machines held: those of terms that last, and of what is there."""
        asked = self.asked
        for month in range(len(asked.months)):
            there = np.zeros(len(asked.pools))
            for _, one, _ in self._there(month):
                there[one.pool] += one.machines
            at = rows.add(("held", month), len(asked.pools), there, there)
            rows.put(at, self.held + np.arange(len(asked.pools)) * len(asked.months) + month, 1.0)
            for place, offer in enumerate(asked.offers):
                if not offer.flexible and (columns := self.alive(place, month)):
                    rows.put(at[offer.pool], np.array(columns), -1.0)
            for _, one, columns in self._there(month):
                if columns:
                    rows.put(at[one.pool], np.array(columns), 1.0)

    def _serving(self, rows: Rows) -> None:
        """Every stream is served or missed, by machines that are there."""
        asked, blocks = self.asked, np.arange(self.blocks)
        for index in range(len(asked.streams)):
            at = rows.add(("demand", index), self.blocks, asked.rates[index].ravel(), inf)
            rows.put(at, self.missing + index * self.blocks + blocks, 1.0)
        pools = [rows.add(("supply", pool), self.blocks, -inf, 0.0) for pool in range(len(asked.pools))]
        for pool, at in enumerate(pools):
            rows.put(at, self.held + pool * len(asked.months) + self._of_block[0], -1.0)
        for index, arc in enumerate(asked.arcs):
            columns = self.serving + index * self.blocks + blocks
            rows.put(rows.of["demand", arc.stream], columns, arc.rate)
            rows.put(pools[arc.pool], columns, arc.share)
        for index, place in enumerate(self.flexibles):
            rows.put(pools[asked.offers[place].pool], self.flexible + index * self.blocks + blocks, -1.0)

    def _stocks(self, rows: Rows) -> None:
        """As many machines at one time as an offer has, and as a quota of all terms allows."""
        asked, blocks = self.asked, np.arange(self.blocks)
        for place, offer in enumerate(asked.offers):
            if offer.flexible or offer.most == inf:
                continue
            for month in range(len(asked.months)):
                if columns := self.alive(place, month):
                    rows.put(rows.add(("most", place, month), 1, -inf, offer.most), np.array(columns), 1.0)
        for place, one in enumerate(asked.have):
            if columns := self.returned(place, len(asked.months)):
                rows.put(rows.add(("have", place), 1, -inf, one.machines), np.array(columns), 1.0)
        for pool, quota in asked.limits.quotas:
            at = rows.add(("quota", pool), self.blocks, -inf, quota)
            rows.put(at, self.held + pool * len(asked.months) + self._of_block[0], 1.0)
            for index, place in enumerate(self.flexibles):
                if asked.offers[place].pool == pool:
                    rows.put(at, self.flexible + index * self.blocks + blocks, 1.0)

    def _bills(self, rows: Rows) -> None:
        """The bill of a month, and of all of them, in every scenario: terms that last, and hours of flexible machines.
        What a request costs that is not served is no bill."""
        asked, limits = self.asked, self.asked.limits
        if limits.month == limits.whole == inf:
            return
        month_of, scenario_of, level_of = self._of_block
        whole: dict[int, Any] = dict.fromkeys(range(len(asked.scenarios)))
        if limits.whole < inf:
            whole = {one: rows.add(("budget", one), 1, -inf, limits.whole - self.constant) for one in whole}
        for month in range(len(asked.months)):
            columns, costs = self._committed(month)
            there = sum(one.cost * one.machines for _, one, _ in self._there(month))
            for scenario, all_months in whole.items():
                put = [all_months] if limits.whole < inf else []
                if limits.month < inf:
                    put.append(rows.add(("bill", month, scenario), 1, -inf, limits.month - there))
                blocks = np.flatnonzero((month_of == month) & (scenario_of == scenario))
                for at in put:
                    rows.put(at, columns, costs)
                    for index, place in enumerate(self.flexibles):
                        prices = self.hourly(place)[blocks] * asked.hours[level_of[blocks]]
                        rows.put(at, self.flexible + index * self.blocks + blocks, prices)

    def _committed(self, month: int) -> tuple[Array, Array]:
        """The first-stage columns with a share in the bill of a month, and their shares."""
        found = [
            (column, offer.cost)
            for place, offer in enumerate(self.asked.offers)
            if not offer.flexible
            for column in self.alive(place, month)
        ]
        found += [(column, -one.cost) for _, one, columns in self._there(month) for column in columns]
        return np.array([one for one, _ in found], dtype=int), np.array([cost for _, cost in found])

    def committed(self, first_stage: Array, month: int) -> float:
        """The bill of a month but for flexible machines."""
        columns, costs = self._committed(month)
        there = sum(one.cost * one.machines for _, one, _ in self._there(month))
        return float(there + first_stage[columns] @ costs)

    def _power(self, rows: Rows) -> None:
        """The watts of a region's machines that count there."""
        asked, (month_of, _, _) = self.asked, self._of_block
        for region, limit in asked.limits.power:
            pools = {place for place, pool in enumerate(asked.pools) if pool.region == region}
            for month in range(len(asked.months)):
                blocks = np.flatnonzero(month_of == month)
                mine = [found for found in self._there(month) if found[1].pool in pools]
                there = sum(one.power * one.machines for _, one, _ in mine)
                at = rows.add(("power", region, month), len(blocks), -inf, limit - there)
                for place, offer in enumerate(asked.offers):
                    if offer.pool not in pools or not offer.power:
                        continue
                    if offer.flexible:
                        index = self.flexibles.index(place)
                        rows.put(at, self.flexible + index * self.blocks + blocks, offer.power)
                    elif alive := self.alive(place, month):
                        rows.put(at[:, None], np.array(alive)[None, :], offer.power)
                for _, one, columns in mine:
                    if columns:
                        rows.put(at[:, None], np.array(columns)[None, :], -one.power)

    def _unserved(self, rows: Rows) -> None:
        """The expected share of each model's requests that are not served."""
        asked = self.asked
        for model, share in asked.limits.unserved:
            mine = [place for place, stream in enumerate(asked.streams) if stream.model == model]
            come = sum(float(asked.rates[place].ravel() @ self.weight) for place in mine)
            at = rows.add(("unserved", model), 1, -inf, share * come)
            for place in mine:
                rows.put(at, self.missing + place * self.blocks + np.arange(self.blocks), self.weight)

    def relaxed(self, first_stage: Array | None = None) -> Solved | None:
        """The cheapest with parts of machines; ``None`` where nothing keeps the rows. first_stage: as decided.
        Raises ``InferplanError`` where the solver fails.
        """
        from scipy.optimize import linprog
        from scipy.sparse import vstack

        matrix, least, most = self.matrix
        low, high = self._bounds(first_stage)
        same = least == most
        upper, lower = ~same & (most < inf), ~same & (least > -inf)
        solve: Any = linprog  # its stubs know no sparse matrix
        found = solve(
            self.costs,
            A_ub=vstack([matrix[upper], -matrix[lower]]).tocsr(),
            b_ub=np.concatenate([most[upper], -least[lower]]),
            A_eq=matrix[same],
            b_eq=least[same],
            bounds=np.stack([low, high], axis=1),
            method="highs",
        )
        if found.x is None:
            return self._failed(found)
        price = np.zeros(self.rows.count)
        price[same] = found.eqlin.marginals
        price[upper] = found.ineqlin.marginals[: upper.sum()]
        price[lower] = -found.ineqlin.marginals[upper.sum() :]
        reduced = found.lower.marginals + found.upper.marginals
        cost = float(found.fun) + self.constant
        return Solved(programme=self, values=found.x, cost=cost, bound=cost, price=price, reduced=reduced)

    def whole(self, first_stage: Array | None = None) -> Solved | None:
        """The cheapest with whole machines, likewise; by month and scenario where nothing joins these."""
        if not self.held and first_stage is None:
            first_stage = np.zeros(0)
        limits = self.asked.limits
        if first_stage is None or limits.whole < inf or limits.unserved or self.blocks == len(self.asked.levels):
            return self._integer(first_stage)
        machines = np.zeros((len(self.asked.pools), len(self.asked.months)))
        values = np.concatenate([first_stage, np.zeros(self.columns - self.held)])
        bound = float(self.costs[: self.held] @ first_stage) + self.constant
        for month in range(len(self.asked.months)):
            machines[:, month] = self._machines(first_stage, month)
        values[self.held : self.flexible] = machines.ravel()
        blocks = np.arange(self.blocks).reshape(len(self.asked.months), len(self.asked.scenarios), -1)
        for month, scenario in np.ndindex(blocks.shape[:2]):
            part = Programme(self._part(first_stage, month, scenario))
            found = part._integer(None)
            if found is None:
                return None
            columns = part.columns - part.flexible
            rows = np.arange(columns // len(self.asked.levels)) * self.blocks
            places = self.flexible + (rows[:, None] + blocks[month, scenario]).ravel()
            values[places] = found.values[part.flexible :]
            bound += float(self.asked.chance[scenario]) * found.bound
        cost = float(self.costs @ values) + self.constant
        return self._solved(values, cost, bound)

    def _machines(self, first_stage: Array, month: int) -> Array:
        """Machines held in a month, by pool."""
        found = np.zeros(len(self.asked.pools))
        for place, offer in enumerate(self.asked.offers):
            if not offer.flexible:
                found[offer.pool] += first_stage[self.alive(place, month)].sum()
        for _, one, columns in self._there(month):
            found[one.pool] += one.machines - first_stage[columns].sum()
        return np.round(found)

    def _part(self, first_stage: Array, month: int, scenario: int) -> Question:
        """One month of one scenario, in which machines are held as decided."""
        asked = self.asked.of(scenario)
        held, limits = self._machines(first_stage, month), asked.limits
        there = [Have(row=0, pool=pool, machines=int(count), until=1) for pool, count in enumerate(held)]
        power = []
        for region, limit in limits.power:
            mine = [place for place, pool in enumerate(asked.pools) if pool.region == region]
            power.append((region, limit - self._drawn(first_stage, month, mine)))
        return replace(
            asked,
            months=asked.months[month : month + 1],
            rates=asked.rates[:, month : month + 1],
            offers=tuple(
                replace(offer, first=offer.first - month, last=offer.last - month)
                for offer in asked.offers
                if offer.flexible
            ),
            have=tuple(there),
            limits=replace(limits, month=limits.month - self.committed(first_stage, month), power=tuple(power)),
        )

    def _drawn(self, first_stage: Array, month: int, pools: Sequence[int]) -> float:
        """Watts of the machines that are held in some pools."""
        found = 0.0
        for place, offer in enumerate(self.asked.offers):
            if not offer.flexible and offer.pool in pools:
                found += offer.power * first_stage[self.alive(place, month)].sum()
        mine = [found for found in self._there(month) if found[1].pool in pools]
        there = (one.power * (one.machines - first_stage[columns].sum()) for _, one, columns in mine)
        return float(found + sum(there))

    def _integer(self, first_stage: Array | None) -> Solved | None:
        from scipy.optimize import Bounds, LinearConstraint, milp

        low, high = self._bounds(first_stage, self.most_whole)
        found: Any = milp(
            self.costs,
            integrality=np.where(np.arange(self.columns) < self.missing, 1, 0),
            bounds=Bounds(low, high),
            constraints=[LinearConstraint(*self.matrix)],
            options={"mip_rel_gap": GAP, "node_limit": NODES, "time_limit": SECONDS},
        )
        if found.x is None:
            return self._failed(found)
        values = found.x.copy()
        values[: self.missing] = np.round(values[: self.missing])
        values[self.missing :] = np.maximum(values[self.missing :], 0.0)
        cost = float(self.costs @ values) + self.constant
        bound = cost if found.mip_dual_bound is None else float(found.mip_dual_bound) + self.constant
        return self._solved(values, cost, bound)

    def _solved(self, values: Array, cost: float, bound: float) -> Solved:
        """An integer solution, which has no prices."""
        none = np.zeros(0)
        return Solved(programme=self, values=values, cost=cost, bound=min(bound, cost), price=none, reduced=none)

    def _bounds(self, first_stage: Array | None, most: Array | None = None) -> tuple[Array, Array]:
        low, high = np.zeros(self.columns), (self.most if most is None else most).copy()
        if first_stage is not None:
            low[: self.held] = high[: self.held] = first_stage
        return low, high

    @staticmethod
    def _failed(found: Any) -> None:
        if found.status != _INFEASIBLE:
            raise InferplanError("the programme was not solved", because=str(found.message))
