"""The cheapest mix of replicas under stock limits: an integer programme, solved by HiGHS (docs/fleet.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from inferplan.planning.programme import Programme, Row


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
    nothing = [0.0] * len(columns)
    prices = [*nothing, *(column.price for column in columns)]
    devices = [*(float(column.devices) for column in columns), *nothing]
    found = _programme(columns, stocks, load).cheapest(prices, devices)
    return None if found is None else Mix(found.counts[: len(columns)], found.gap)


def most_load(columns: Sequence[Column], stocks: Sequence[float]) -> float:
    """Requests a second that the stocks carry at most; infinite where one of them has no limit."""
    if any(stocks[column.kind] == inf for column in columns):
        return inf
    if not columns:
        return 0.0
    gains = [*(-column.rate for column in columns), *([0.0] * len(columns))]
    found = _programme(columns, stocks, 0.0).minimum(gains)
    return 0.0 if found is None else rate_of(columns, found.counts[: len(columns)])


def _programme(columns: Sequence[Column], stocks: Sequence[float], load: float) -> Programme:
    """The rows, over the replicas of every column and then its lots."""
    size, nothing = len(columns), [0.0] * len(columns)
    rows = [Row([*(column.rate / load for column in columns), *nothing], least=1.0)] if load else []
    for index, column in enumerate(columns):
        held = np.zeros(2 * size)
        held[index], held[size + index] = 1.0, -float(column.room)
        rows.append(Row(held, most=0.0))
    for kind, stock in enumerate(stocks):
        if stock < inf:
            gpus = [float(column.gpus) * (column.kind == kind) for column in columns]
            rows.append(Row([*nothing, *gpus], most=stock))
    most = [_most(column, stocks[column.kind], load) for column in columns]
    lots = [column.lots(count) for column, count in zip(columns, most)]
    return Programme(rows, np.array([*most, *lots], dtype=float))


def _most(column: Column, stock: float, load: float) -> int:
    """Replicas of which one more would never help."""
    held = inf if stock == inf else stock // column.gpus * column.room
    return int(min(held, ceil(load / column.rate) if load else inf))
