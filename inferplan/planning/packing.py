"""Replicas of several models on machines that are bought whole: bin packing as an integer programme (HiGHS).

A machine is a rented instance, or GPUs one by one. Replicas of different models share an instance, each on GPUs of its
own. docs/several-models.md has the programme.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from inferplan.catalog.bills import Offer, Tariff
from inferplan.planning.programme import Programme, Row


class Size(NamedTuple):
    """Replicas that are alike to who packs them. devices: GPUs of one. together: those of a tensor-parallel group."""

    devices: int
    together: int


class Pattern(NamedTuple):
    """A machine, or the machines of one large replica, and how many replicas of each size it holds. units: machines."""

    offer: Offer
    units: int
    holds: tuple[int, ...]

    @property
    def price(self) -> float:
        return self.units * self.offer.per_hour

    @property
    def gpus(self) -> int:
        return self.units * self.offer.size


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Machines of one kind of GPU. used: how many of each pattern. gap: the share of the cost by which a cheaper one
    might exist; 0 where this one is proven.
    """

    sizes: tuple[Size, ...]
    used: tuple[tuple[Pattern, int], ...]
    gap: float

    @property
    def cost(self) -> float:
        """The bill of an hour, idle GPUs included."""
        return sum(pattern.price * count for pattern, count in self.used)

    @property
    def gpus(self) -> int:
        """GPUs that are paid for."""
        return sum(pattern.gpus * count for pattern, count in self.used)


def patterns(sizes: Sequence[Size], offers: Sequence[Offer]) -> list[Pattern]:
    """Every way to fill a machine to which no further replica can be added.

    The offers that hold one whole compete for it, as in a plan (:attr:`inferplan.catalog.bills.Tariff.holding`).
    One that is larger than any instance has instances of its own; so has one of GPUs that are sold one by one.
    """
    found: list[Pattern] = []
    for place, size in enumerate(sizes):
        for offer in Tariff(offers=tuple(offers), devices=size.devices, together=size.together).holding:
            if offer.gpus is None or offer.gpus < size.devices:
                units = int(offer.units(1, size.devices, size.together))
                found.append(Pattern(offer, units, tuple(int(other == place) for other in range(len(sizes)))))
    for offer in offers:
        if offer.gpus is not None:
            found += [Pattern(offer, 1, holds) for holds in _fillings([s.devices for s in sizes], offer.gpus)]
    return found


def _fillings(devices: Sequence[int], room: int) -> Iterator[tuple[int, ...]]:
    """Numbers of each size that fit into ``room`` GPUs together, and with which no more of any size does."""

    def further(place: int, left: int) -> Iterator[tuple[int, ...]]:
        if place == len(devices):
            if left < min(devices):
                yield ()
            return
        for count in range(left // devices[place], -1, -1):
            for rest in further(place + 1, left - count * devices[place]):
                yield (count, *rest)

    if room >= min(devices):
        yield from further(0, room)


def pack(
    demand: Mapping[Size, int], offers: Sequence[Offer], stock: float = inf, owned: tuple[int, float] = (0, 0.0)
) -> Packing | None:
    """The cheapest machines that hold so many replicas of each size; of equals those of fewest GPUs.

    stock: GPUs that may be rented. owned: GPUs that are there, counted one by one, and what an hour of one costs more
    than of one that is idle. With ``x`` machines of each pattern, whole numbers, it is

        minimise sum(price*x) with sum(holds*x) >= demand of each size, sum(gpus*x) <= stock

    ``None`` where the stock is too small. Raises ``InferplanError`` where the solver fails.
    """
    sizes = tuple(size for size, count in demand.items() if count)
    if not sizes:
        return Packing(sizes=(), used=(), gap=0.0)
    columns = patterns(sizes, offers) if offers else []
    rented = len(columns)
    if owned[0]:
        offer = Offer(gpu="", gpus=None, per_hour=owned[1], currency="", term="owned", source="--own")
        columns += patterns(sizes, [offer])
    if not columns:
        return None
    gpus, own = [float(column.gpus) for column in columns], [place >= rented for place in range(len(columns))]
    rows = [
        Row([float(c.holds[place]) for c in columns], least=float(demand[size])) for place, size in enumerate(sizes)
    ]
    for most, mine in ((stock, False), (float(owned[0]), True)):
        if most < inf:
            rows.append(Row([count * (place == mine) for count, place in zip(gpus, own)], most=most))
    found = Programme(rows).cheapest([column.price for column in columns], gpus)
    if found is None:
        return None
    used = tuple((column, count) for column, count in zip(columns, found.counts) if count)
    return Packing(sizes=sizes, used=used, gap=found.gap)
