"""Two stages as a linear and as an integer programme, solved by HiGHS.

First stage, one decision for all scenarios: machines that are held for months. Second stage, by month, scenario and
level of load: on-demand and spot machines, who serves what, and requests that are not served. docs/horizon.md writes it
down (Birge and Louveaux, Introduction to Stochastic Programming, 2nd edition, 2011, chapters 1, 2 and 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from inferplan.errors import InferplanError
from inferplan.horizon.constraints import Constraints
from inferplan.horizon.question import Have, Question
from inferplan.units import Array

NODES, SECONDS = 20_000, 120.0
"""The solver of an integer programme is stopped after so many nodes of its tree, the same on every machine, or then;
with the best that it has, and says how good that is."""
GAP = 1e-4
"""The share of the cost by which a cheaper answer may exist when the solver stops by itself."""
_INFEASIBLE = 2
"""``scipy.optimize.milp`` and ``linprog``: no point keeps all constraints."""


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


class Programme(Constraints):
    """A question, solved."""

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
