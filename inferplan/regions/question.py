"""What is asked of a day in several regions, as arrays over the 24 hours of UTC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Literal, NamedTuple

import numpy as np

from inferplan.units import Array

HOURS = 24
Routing = Literal["nearest", "cost", "carbon"]
ROUTINGS: tuple[Routing, ...] = ("nearest", "cost", "carbon")


class Users(NamedTuple):
    """Users of one region. most, mean: requests a second by hour, of the busiest moment and on average."""

    name: str
    most: Array
    mean: Array


class Sold(NamedTuple):
    """A machine as it is sold. price: of it by hour. holds: replicas. gpus: what it takes of a stock. said: its line on
    a list, with its date; empty for a price of the user's own."""

    price: Array
    holds: int
    gpus: int
    said: str = ""

    @property
    def day(self) -> float:
        """The price of all hours."""
        return float(self.price.sum())


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """Machines of one region. devices: GPUs of a replica. hired: machines for single hours; held: those that are paid
    for all day. most: GPUs at one time. standing: kWh of a replica that is up for an hour, whatever it does; request:
    kWh that a request adds. grams: CO2 of a kWh by hour; ``None`` where nobody says.
    """

    name: str
    devices: int
    hired: tuple[Sold, ...] = ()
    held: tuple[Sold, ...] = ()
    most: float = inf
    standing: float = 0.0
    request: float = 0.0
    grams: Array | None = None


class Arc(NamedTuple):
    """Users served at a site, by their places. delay: seconds that the network adds to the first token. rate: requests
    a second that a replica is given where users at that delay are served: 0 where their limits cannot be kept. open:
    ``False`` where their data may not go there. because: why the rate is 0.
    """

    users: int
    site: int
    delay: float
    rate: float
    open: bool = True
    because: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """Everything that is asked."""

    users: tuple[Users, ...]
    sites: tuple[Site, ...]
    arcs: tuple[Arc, ...]
    currency: str = "USD"

    @cached_property
    def paths(self) -> tuple[Arc, ...]:
        """The ways that may be used: to each of the pools of a site that suits the users, with the rate of the pool."""
        usable = [arc for arc in self.arcs if arc.open and arc.rate > 0]
        return tuple(arc._replace(rate=rate) for arc in usable for rate in self.pools(arc.site) if rate <= arc.rate)

    def pools(self, site: int) -> list[float]:
        """Requests a second that a replica is given in each pool of a site, from the largest down: replicas that serve
        users from farther away, whose limits leave less time, are given less."""
        return sorted({arc.rate for arc in self.arcs if arc.open and arc.rate > 0 and arc.site == site}, reverse=True)

    @property
    def routings(self) -> tuple[Routing, ...]:
        """Those that can be asked for: carbon needs grams everywhere."""
        known = all(site.grams is not None for site in self.sites)
        return tuple(one for one in ROUTINGS if one != "carbon" or known)

    @property
    def together(self) -> bool:
        """Whether hours have machines in common."""
        return any(site.held for site in self.sites)

    def without(self, site: int) -> Question:
        """The same where a site is lost. Its place stays, without a way to it."""
        return replace(self, arcs=tuple(arc for arc in self.arcs if arc.site != site))

    def opened(self, users: int) -> Question:
        """The same where the data of some users may go anywhere."""
        return replace(self, arcs=tuple(arc._replace(open=True) if arc.users == users else arc for arc in self.arcs))

    def unlimited(self, site: int) -> Question:
        """The same without the limit on the GPUs of a site."""
        sites = tuple(replace(one, most=inf) if place == site else one for place, one in enumerate(self.sites))
        return replace(self, sites=sites)

    def served(self, most: Array, paths: Sequence[Arc]) -> Array:
        """Requests of each path in each hour on average, where the rates of the busiest moment are ``most``
        ``(paths, hours)``."""
        users = [self.users[arc.users] for arc in paths]
        shares = np.array([np.divide(one.mean, one.most, out=np.zeros(HOURS), where=one.most > 0) for one in users])
        found: Array = most * shares.reshape(most.shape) * 3600.0
        return found
