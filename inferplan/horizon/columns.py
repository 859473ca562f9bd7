"""What a programme of months decides, number by number: what each costs and how much of it there is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from inferplan.horizon.question import Question
from inferplan.units import HOURS_PER_MONTH, Array

_MONTH = HOURS_PER_MONTH * 3600.0
"""Seconds."""
Places = npt.NDArray[Any]
"""Whole numbers: rows, columns, blocks."""


class Columns:
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
