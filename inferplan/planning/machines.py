"""Machines for replicas: what may be had of each kind of GPU, and the cheapest of it that carries a load.

A machine is a rented instance, or GPUs one by one. A load that replicas of some designs carry together, as of a mix of
kinds of GPU (docs/fleet.md), is an integer programme, :class:`Need`; numbers of replicas of several models are another
(:mod:`inferplan.planning.domains`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf
from operator import add
from typing import Any, NamedTuple

import numpy as np

from inferplan.catalog.bills import Offer, Tariff, cheapest_of_each_size
from inferplan.catalog.files import device_name, load_hardware, mig_table
from inferplan.catalog.price_lists import PriceBook
from inferplan.devices.mig import cuts, largest
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.fields import Text, ask
from inferplan.money import Money, read_cost
from inferplan.planning.programme import Limit, Programme
from inferplan.units import parse_whole

OWNED = "--own"
"""The source of offers of what is there."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """GPUs of one kind from one source. most: how many there are; ``None``: as many as are wanted."""

    gpu: str
    owned: bool
    most: int | None = None

    @property
    def name(self) -> str:
        """The device's own name, where ``gpu`` is a file."""
        return load_hardware(self.gpu).name

    @property
    def source(self) -> str:
        return "owned" if self.owned else "rented"

    @property
    def option(self) -> str:
        """How it is asked for."""
        return "--own" if self.owned else "--rent"

    @property
    def stock(self) -> float:
        return inf if self.most is None else float(self.most)


_MOST_GPUS = 1_000_000
"""GPUs of one stock."""


def _stock(text: str, owned: bool) -> Kind:
    """``"a100-80gb-sxm=16"``, or ``"h200-sxm"``, of which there are as many as are wanted.

    Raises ``UsageError`` for what is no number of GPUs, ``UnknownNameError`` for no GPU.
    """
    name, given, number = text.rpartition("=")
    option = "--own" if owned else "--rent"
    if not given and owned:
        raise UsageError(
            f"--own {text} does not say how many", because="GPUs that are owned are counted", hint=f"--own {text}=16"
        )
    count = None
    if given:
        try:
            count = parse_whole(number)
        except ValueError:
            count = 0
        if not 0 < count <= _MOST_GPUS:
            raise UsageError(
                f"{option} {text}: {number!r} is not a number of GPUs",
                hint=f"{option} {name}=16, a count up to {_MOST_GPUS:,}",
            )
    return Kind(gpu=device_name(name if given else text), owned=owned, most=count)


@dataclass(frozen=True, kw_only=True)
class Stocks:
    """GPUs as they are asked for: those that are owned, and those that may be rented beside them."""

    own: tuple[Kind, ...] = ask(
        "--own",
        Text(lambda text: _stock(text, True)),
        "GPUs that you have; repeat for other kinds.",
        (),
        metavar="GPU=N",
        several=True,
    )
    rent: tuple[Kind, ...] = ask(
        "--rent",
        Text(lambda text: _stock(text, False)),
        "GPUs that may be rented, up to a number; repeat for other kinds.",
        (),
        metavar="GPU[=N]",
        several=True,
    )
    own_cost: Money | float = ask(
        "--own-price",
        Text(partial(read_cost, "--own-price")),
        "Extra cost per hour of an owned GPU at work, such as power [0].",
        0.0,
        metavar="PRICE",
    )

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """All of them."""
        return (*self.own, *self.rent)

    def own_price(self, prices: PriceBook) -> float:
        """What an hour of an owned GPU costs more. Raises ``UsageError`` for another currency."""
        return prices.per_hour("--own-price", self.own_cost) or 0.0


@dataclass(frozen=True, kw_only=True)
class Stock:
    """What may be had. own_price: what an hour of an owned GPU costs more than one that is switched off."""

    kinds: tuple[Kind, ...] = ()
    own_price: float = 0.0

    def __post_init__(self) -> None:
        sources = [(kind.gpu, kind.owned) for kind in self.kinds]
        for kind in self.kinds:
            if sources.count((kind.gpu, kind.owned)) > 1:
                raise UsageError(f"{kind.option} {kind.name} is given twice", hint="one stock of each kind of GPU")
        if self.own_price and not any(kind.owned for kind in self.kinds):
            raise UsageError(
                "--own-price needs owned GPUs, and there are none", hint="--own a100-80gb-sxm=16, or leave it out"
            )

    def offers(self, kind: Kind, prices: PriceBook) -> tuple[Offer, ...]:
        """How GPUs of a kind are had. Raises ``MissingFactError`` for a rented kind without a price."""
        if not kind.owned:
            return prices.require(kind.name, 1).offers
        one_by_one = Offer(
            gpu=kind.name,
            gpus=None,
            per_hour=self.own_price,
            currency=prices.currency,
            term="owned",
            source=OWNED,
        )
        return (one_by_one,)


class Size(NamedTuple):
    """Replicas that are alike to who packs them. devices: GPUs of one. together: those of a tensor-parallel group."""

    gpu: str
    devices: int
    together: int


def size_of(deployment: Deployment) -> Size:
    """Of one of its replicas."""
    parallel = deployment.parallel
    return Size(deployment.hardware.name, parallel.ranks, parallel.tp)


class Machine(NamedTuple):
    """A machine, or the machines of one large replica. kind: whose stock it is of, by place. units: machines. holds:
    how many replicas of each design it has room for.
    """

    kind: int
    offer: Offer
    units: int
    holds: Mapping[Any, int]

    @property
    def price(self) -> float:
        return self.units * self.offer.per_hour

    @property
    def gpus(self) -> int:
        return self.units * self.offer.size


def machines(kind: int, offers: Sequence[Offer], sizes: Sequence[Size]) -> list[Machine]:
    """Every way to fill a machine to which no further replica can be added.

    The offers that hold one whole compete for it, as in a plan (:attr:`inferplan.catalog.bills.Tariff.holding`).
    One that is larger than any instance has instances of its own; so has one of GPUs that are sold one by one.
    """
    found: list[Machine] = []
    for size in sizes:
        for offer in Tariff(offers=tuple(offers), devices=size.devices, together=size.together).holding:
            if offer.gpus is None or offer.gpus < size.devices:
                found.append(Machine(kind, offer, int(offer.units(1, size.devices, size.together)), {size: 1}))
    for offer in cheapest_of_each_size(offers):
        if offer.gpus is not None:
            filled = _fillings([size.devices for size in sizes], offer.gpus)
            found += [Machine(kind, offer, 1, {s: n for s, n in zip(sizes, counts) if n}) for counts in filled]
    return found


def mixed_machines(kind: int, offers: Sequence[Offer], whole: str, sizes: Sequence[Size]) -> list[Machine]:
    """Machines of a kind of GPU some of which are cut into instances of several MIG profiles, or stay whole beside
    others that are cut, filled so that no replica can be added. sizes: of replicas on instances and on whole GPUs.

    Each is counted as the instances and GPUs that it then has, as those of one profile are.
    """
    profiles, parts = mig_table().gpus[whole].profiles, [one for one in sizes if one.gpu != whole]
    cut = cuts([profiles[one.gpu.rpartition(":")[2]] for one in parts])
    of_cut = [[(0,) * len(parts)]]
    uncut = [one for one in sizes if one.gpu == whole]
    found: list[Machine] = []
    for offer in cheapest_of_each_size(offers):
        while len(of_cut) <= offer.size:
            of_cut.append(largest({tuple(map(add, one, more)) for one in of_cut[-1] for more in cut}))
        filled = {
            (*beside, *counts)
            for room in range(offer.size + 1)
            for beside in _beside([one.devices for one in uncut], room)
            for counts in of_cut[offer.size - room]
        }
        for counts in largest(filled):
            holds = {size: count for size, count in zip((*uncut, *parts), counts) if count}
            if len({size.gpu for size in holds}) > 1:
                found.append(Machine(kind, _cut(offer, whole, holds), 1, holds))
    return found


def _beside(devices: Sequence[int], room: int) -> Iterator[tuple[int, ...]]:
    """The fillings of so many whole GPUs; of none, nothing."""
    if not room:
        yield (0,) * len(devices)
    elif devices:
        yield from _fillings(devices, room)


def _cut(offer: Offer, whole: str, holds: Mapping[Size, int]) -> Offer:
    """An offer of whole GPUs as what they hold, some of them cut."""
    said = " + ".join(f"{count} x {size.gpu}" for size, count in holds.items())
    return replace(
        offer,
        gpu=f"part of {whole}",
        gpus=sum(size.devices * count for size, count in holds.items()),
        instance=offer.instance or f"a whole {whole}",
        note=f"{offer.note}; cut into {said}" if offer.note else f"cut into {said}",
    )


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


class Bought(NamedTuple):
    """A solution. replicas: of each design or model. used: how many of each machine. gap: the share of the cost by
    which a cheaper one might exist; 0 where this one is proven to be the cheapest.
    """

    replicas: Mapping[Any, int]
    used: tuple[tuple[Machine, int], ...]
    gap: float

    @property
    def cost(self) -> float:
        """The bill of an hour, idle GPUs included."""
        return sum(machine.price * count for machine, count in self.used)

    @property
    def gpus(self) -> int:
        """GPUs that are paid for."""
        return sum(machine.gpus * count for machine, count in self.used)

    def taken(self, kind: int) -> int:
        """GPUs that are taken from one stock."""
        return sum(machine.gpus * count for machine, count in self.used if machine.kind == kind)


@dataclass(frozen=True, kw_only=True)
class Need:
    """A load that machines have to carry. stocks: GPUs of each kind, infinite where there is no limit. devices: GPUs of
    a replica of each design. rates, load: requests a second that a replica of each is given, and that all of them have
    to be.

    With ``n`` replicas of each design and ``u`` of each machine, whole numbers, it is

        minimise sum(price*u) with sum(rate*n) >= load, n <= sum(holds*u), sum(gpus*u) <= stock of each

    then ``sum(devices*n)`` at that cost, and then ``sum(gpus*u)``.
    """

    machines: Sequence[Machine]
    stocks: Sequence[float]
    devices: Mapping[Any, int]
    rates: Mapping[Any, float]
    load: float

    def cheapest(self) -> Bought | None:
        """The machines; ``None`` where the stocks do not hold what is needed. Raises ``InferplanError`` where the
        solver fails.
        """
        if not self.machines:
            return None if self.load else Bought({}, (), 0.0)
        prices, gpus = ([getattr(one, name) for one in self.machines] for name in ("price", "gpus"))
        working = self._over(list(self.devices.values()), [])
        found = self._programme().cheapest(self._over([], prices), working, self._over([], gpus))
        if found is None:
            return None
        counts = found.counts[: len(self.devices)], found.counts[len(self.devices) :]
        used = tuple((machine, count) for machine, count in zip(self.machines, counts[1]) if count)
        return Bought(dict(zip(self.devices, counts[0])), used, found.gap)

    def most_load(self) -> float:
        """Requests a second that the stocks carry at most; infinite where one of them has no limit."""
        if any(self.stocks[machine.kind] == inf for machine in self.machines):
            return inf
        if not self.machines:
            return 0.0
        rates = [self.rates[design] for design in self.devices]
        found = replace(self, load=0.0)._programme().minimum(self._over([-rate for rate in rates], []))
        return 0.0 if found is None else sum(rate * count for rate, count in zip(rates, found.counts))

    def _over(self, replicas: Sequence[float], bought: Sequence[float]) -> list[float]:
        """Weights of the numbers: of replicas of each design, then of each machine; nothing for those left out."""
        return [*(replicas or [0.0] * len(self.devices)), *(bought or [0.0] * len(self.machines))]

    def _programme(self) -> Programme:
        rows = []
        if self.load:
            shares = [self.rates.get(design, 0.0) / self.load for design in self.devices]
            rows.append(Limit(self._over(shares, []), least=1.0))
        for place, design in enumerate(self.devices):
            room = [-float(machine.holds.get(design, 0)) for machine in self.machines]
            rows.append(Limit(self._over([float(place == one) for one in range(len(self.devices))], room), most=0.0))
        for kind, stock in enumerate(self.stocks):
            gpus = [float(machine.gpus) * (machine.kind == kind) for machine in self.machines]
            if stock < inf and any(gpus):
                rows.append(Limit(self._over([], gpus), most=stock))
        most = {design: ceil(self.load / self.rates[design]) if self.load else inf for design in self.devices}
        lots = [max(np.ceil(most[one] / room) for one, room in machine.holds.items()) for machine in self.machines]
        return Programme(rows, np.array([*most.values(), *lots], dtype=float))
