"""An integer programme: whole numbers that keep rows of limits and cost least, solved by HiGHS.

Machines that are bought for replicas (:mod:`inferplan.planning.machines`) are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from inferplan.errors import InferplanError
from inferplan.units import Array

_EXACT = 1e-6
"""The share of a row, and of the cost, that the solver may be off by (HiGHS ``primal_feasibility_tolerance``)."""
_ROUNDING = 1e-9
"""A smaller gap is that of the last digits."""
_SECONDS = 60.0
"""The solver is stopped then; with a dozen columns it takes milliseconds."""
_INFEASIBLE = 2
"""``scipy.optimize.milp``: no point keeps all constraints."""


class Limit(NamedTuple):
    """A limit: the sum of ``weights`` times the numbers is within these bounds."""

    weights: Sequence[float] | Array
    least: float = -inf
    most: float = inf


class Solution(NamedTuple):
    """A solution. gap: the share of its cost by which a cheaper one might exist; 0 where it is proven."""

    counts: tuple[int, ...]
    gap: float


class Programme(NamedTuple):
    """rows: what is kept. most: of each number; infinity where a row bounds it."""

    rows: Sequence[Limit]
    most: Sequence[float] | Array | float = inf

    def minimum(self, costs: Sequence[float] | Array) -> Solution | None:
        """Where ``costs`` times the numbers is least; ``None`` where no numbers keep the rows. Raises
        ``InferplanError`` where the solver fails.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp  # some 100 ms of every start, needed here alone

        weights, least, most = (np.array(part, dtype=float) for part in zip(*self.rows, strict=True))
        found = milp(
            np.asarray(costs),
            integrality=np.ones(len(costs), dtype=np.int64),
            bounds=Bounds(0.0, self.most),
            constraints=[LinearConstraint(weights, least, most)],
            options={"mip_rel_gap": 0.0, "time_limit": _SECONDS},
        )
        if found.x is None:
            if found.status == _INFEASIBLE:
                return None
            raise InferplanError("the integer programme was not solved", because=str(found.message))
        gap = float(found.mip_gap or 0.0)
        return Solution(tuple(round(value) for value in found.x), gap if gap > _ROUNDING else 0.0)

    def cheapest(self, costs: Sequence[float] | Array, *then: Sequence[float] | Array) -> Solution | None:
        """The same; of equals that with the least of the first of ``then``, of equals of these that of the next, as far
        as the solver gets in its time."""
        found, rows = self.minimum(costs), [*self.rows]
        if found is None:
            return None
        counts = found.counts
        for before, after in zip((costs, *then), then):
            least = float(np.dot(before, counts))
            rows.append(Limit(before, most=least + _EXACT * max(least, 1.0)))
            better = self._replace(rows=rows).minimum(after)
            if better is None:
                break
            counts = better.counts
        return Solution(counts, found.gap)
