"""The cheapest mix of replicas under stock limits: an integer programme, solved by HiGHS (docs/fleet.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, NamedTuple

import numpy as np

from inferplan.errors import InferplanError

_EXACT = 1e-6
"""The share of the load, and of the cost, that the solver may be off by (HiGHS ``primal_feasibility_tolerance``)."""
_SECONDS = 60.0
"""The solver is stopped then; with a dozen columns it takes milliseconds."""
_INFEASIBLE = 2
"""``scipy.optimize.milp``: no point keeps all constraints."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One way to get replicas of one design. They come in lots: a lot has room for ``room`` replicas.

    kind: whose stock it takes from, as an index. rate: requests a second that one replica is given. devices: GPUs that
    one replica runs on. gpus: GPUs of a lot, which the stock holds. price: of a lot for an hour.
    """

    kind: int
    rate: float
    devices: int
    room: int
    gpus: int
    price: float

    def lots(self, replicas: int) -> int:
        """Lots that hold so many replicas."""
        return -(-replicas // self.room)


class Mix(NamedTuple):
    """A solution. counts: replicas of each column. gap: the share of the cost by which a cheaper mix might exist; 0
    where this one is proven to be the cheapest.
    """

    counts: tuple[int, ...]
    gap: float


def cost_of(columns: Sequence[Column], counts: Sequence[int]) -> float:
    """The bill of an hour: whole lots."""
    return sum(column.price * column.lots(count) for column, count in zip(columns, counts))


def rate_of(columns: Sequence[Column], counts: Sequence[int]) -> float:
    """Requests a second that the replicas are given, at most."""
    return sum(column.rate * count for column, count in zip(columns, counts))


def taken(columns: Sequence[Column], counts: Sequence[int], kind: int) -> int:
    """GPUs of whole lots that are taken from one stock."""
    return sum(c.gpus * c.lots(count) for c, count in zip(columns, counts) if c.kind == kind)


def cheapest_mix(columns: Sequence[Column], stocks: Sequence[float], load: float) -> Mix | None:
    """Replicas of each column that carry ``load`` requests a second and cost least; of equals those on fewest GPUs.

    stocks: GPUs of each kind, infinite where there is no limit. ``None`` where the stocks do not carry the load.
    With ``n`` replicas and ``u`` lots of each column, whole numbers, it is

        minimise sum(price*u) with sum(rate*n) >= load, n <= room*u, sum(gpus*u) <= stock of each kind

    and then ``sum(devices*n)`` at that cost.
    """
    if not columns:
        return None
    programme = _Programme(columns, stocks, load)
    prices = np.array([0.0] * len(columns) + [column.price for column in columns])
    first = programme.minimum(prices)
    if first is None:
        return None
    least = float(prices @ first.point)
    devices = np.array([float(column.devices) for column in columns] + [0.0] * len(columns))
    second = programme.minimum(devices, (prices, least + _EXACT * max(least, 1.0)))
    best = first if second is None else second
    counts = tuple(round(value) for value in best.point[: len(columns)])
    return Mix(counts, first.gap)


def most_load(columns: Sequence[Column], stocks: Sequence[float]) -> float:
    """Requests a second that the stocks carry at most; infinite where one of them has no limit."""
    if any(stocks[column.kind] == inf for column in columns):
        return inf
    if not columns:
        return 0.0
    programme = _Programme(columns, stocks, 0.0)
    found = programme.minimum(np.array([-column.rate for column in columns] + [0.0] * len(columns)))
    return 0.0 if found is None else rate_of(columns, [round(value) for value in found.point[: len(columns)]])


class _Point(NamedTuple):
    """Where the minimum is, and how far off it may be."""

    point: np.ndarray[Any, np.dtype[np.float64]]
    gap: float


class _Programme:
    """The constraints, over the replicas of every column and then its lots."""

    def __init__(self, columns: Sequence[Column], stocks: Sequence[float], load: float) -> None:
        size = len(columns)
        rows, low, high = [], [], []
        if load:
            rows.append([column.rate / load for column in columns] + [0.0] * size)
            low.append(1.0)
            high.append(inf)
        for index, column in enumerate(columns):
            row = [0.0] * 2 * size
            row[index], row[size + index] = 1.0, -float(column.room)
            rows.append(row)
            low.append(-inf)
            high.append(0.0)
        for kind, stock in enumerate(stocks):
            if stock < inf:
                rows.append([0.0] * size + [float(column.gpus) * (column.kind == kind) for column in columns])
                low.append(-inf)
                high.append(stock)
        most = [self._most(column, stocks[column.kind], load) for column in columns]
        self.most = np.array([*most, *(column.lots(count) for column, count in zip(columns, most))], dtype=float)
        self.rows, self.low, self.high = np.array(rows), np.array(low), np.array(high)

    @staticmethod
    def _most(column: Column, stock: float, load: float) -> int:
        """Replicas of which one more would never help."""
        held = inf if stock == inf else stock // column.gpus * column.room
        return int(min(held, ceil(load / column.rate) if load else inf))

    def minimum(self, weights: Any, under: tuple[Any, float] | None = None) -> _Point | None:
        """Where ``weights`` times the point is least, and another such product at most as given."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # some 100 ms of every start, needed here alone

        constraints = [LinearConstraint(self.rows, self.low, self.high)]
        constraints += [] if under is None else [LinearConstraint(under[0], -inf, under[1])]
        found = milp(
            weights,
            integrality=np.ones(len(weights), dtype=np.int64),
            bounds=Bounds(0.0, self.most),
            constraints=constraints,
            options={"mip_rel_gap": 0.0, "time_limit": _SECONDS},
        )
        if found.x is None:
            if found.status == _INFEASIBLE:
                return None
            raise InferplanError("the integer programme was not solved", because=str(found.message))
        return _Point(np.round(found.x), float(found.mip_gap or 0.0))
