"""What machines of months have to keep, row by row: demand, stocks, bills, watts (docs/horizon.md)."""

from __future__ import annotations

from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.horizon.columns import Columns, Places
from inferplan.units import Array

if TYPE_CHECKING:
    from scipy.sparse import csr_array


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


class Constraints(Columns):
    """The rows, by what they are of: :attr:`Rows.of` has their places."""

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
