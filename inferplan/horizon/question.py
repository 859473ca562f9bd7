"""What is asked of some months, as arrays: demand by scenario, machines, what is sold, limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import numpy as np

from inferplan.units import Array

FLEXIBLE = ("on-demand", "spot")
"""Terms of machines that are had for some hours; those of others are held for months."""


class Pool(NamedTuple):
    """Machines of one kind in one region, whatever the terms."""

    region: str
    kind: str

    @property
    def name(self) -> str:
        return f"{self.kind} in {self.region}"


class Stream(NamedTuple):
    """Requests for one model from one region. penalty: of one that is not served; ``None``: all have to be."""

    model: str
    region: str
    penalty: float | None

    @property
    def name(self) -> str:
        return f"{self.model} in {self.region}"


class Arc(NamedTuple):
    """Replicas on machines of a pool that serve a stream, by their places. rate: requests a second that one replica is
    given. share: of a machine that it takes: one over the whole replicas that a machine holds."""

    stream: int
    pool: int
    rate: float
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One way to have machines of a pool. row: its place in the file.

    cost: of a machine for a month (of an hour: over :data:`inferplan.units.HOURS_PER_MONTH`). months: how long it is
    held; ``None`` of on-demand and spot. first, last: months in which it may begin (of on-demand: be used). most: at
    one time. power: watts of a machine where it counts against the limit of its region. ratio: machines that are paid
    for one that is up: spot machines are taken away and start anew. interruptions: of a machine in a second. restart:
    seconds.
    """

    row: int
    pool: int
    term: str
    cost: float
    months: int | None = None
    first: int = 0
    last: int = 10**6
    most: float = inf
    power: float = 0.0
    ratio: float = 1.0
    interruptions: float = 0.0
    restart: float = 0.0

    @property
    def flexible(self) -> bool:
        return self.months is None


@dataclass(frozen=True, kw_only=True)
class Have:
    """Machines that are there at the beginning. until: the first month without them. cost: of one for a month.
    releases: whether they may be given back before."""

    row: int
    pool: int
    machines: int
    until: int
    cost: float = 0.0
    power: float = 0.0
    releases: bool = False


@dataclass(frozen=True, kw_only=True)
class Limits:
    """month: the bill of a month at most, in every scenario; whole: of all months. power: watts of each region. quotas:
    machines of each pool on all terms together. unserved: the expected share of a model's requests, at most."""

    month: float = inf
    whole: float = inf
    power: tuple[tuple[str, float], ...] = ()
    quotas: tuple[tuple[int, float], ...] = ()
    unserved: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """Everything that is asked.

    rates: requests a second by stream, month, scenario and level. hours: the share of a month's hours in each level.
    spot, price: by scenario, the share of the stock of spot that can be had, and the factor on flexible prices. paid: a
    term that outlives the horizon is paid to its end; else only its months within count.
    """

    months: tuple[str, ...]
    scenarios: tuple[str, ...]
    chance: Array
    levels: tuple[str, ...]
    hours: Array
    streams: tuple[Stream, ...]
    rates: Array
    pools: tuple[Pool, ...]
    arcs: tuple[Arc, ...]
    offers: tuple[Offer, ...]
    have: tuple[Have, ...] = ()
    limits: Limits = Limits()
    spot: Array
    price: Array
    paid: bool = True
    currency: str = "USD"

    def of(self, scenario: int) -> Question:
        """The same where one scenario is certain."""
        one = slice(scenario, scenario + 1)
        return replace(
            self,
            scenarios=self.scenarios[one],
            chance=np.ones(1),
            rates=self.rates[:, :, one],
            spot=self.spot[one],
            price=self.price[one],
        )

    @property
    def mean(self) -> Question:
        """The same where the mean of the scenarios is certain."""
        return replace(
            self,
            scenarios=("mean",),
            chance=np.ones(1),
            rates=np.average(self.rates, axis=2, weights=self.chance)[:, :, None],
            spot=np.array([self.spot @ self.chance]),
            price=np.array([self.price @ self.chance]),
        )

    def counted(self, offer: Offer, begin: int) -> int:
        """Months of a term that begins then that are paid for."""
        assert offer.months is not None
        return offer.months if self.paid else min(offer.months, len(self.months) - begin)
