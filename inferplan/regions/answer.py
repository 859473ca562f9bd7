"""The answer to a day in several regions: each routing, what the loss of each region takes, what limits cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from inferplan.errors import InfeasibleError
from inferplan.regions.programme import GAP, Loss, Routes
from inferplan.regions.question import HOURS, Question, Routing, Sold
from inferplan.steps import Steps
from inferplan.units import Array

_SEEN = 1e-6
"""Less than this, of requests a second, is the solver's rounding."""


_FEW = 1e-3
"""Fewer requests of a day are too."""


class Pool(NamedTuple):
    """Replicas of a site that are given the same rate. load: requests a second of the busiest moment of each hour.
    replicas: at work in each hour. delay: seconds of network of the farthest users; users: all of them, by place.
    """

    rate: float
    load: Array
    replicas: Array
    delay: float
    users: frozenset[int]

    @property
    def busiest(self) -> int:
        """The hour in which replicas have most to do, of equals the one with most requests."""
        shares = np.divide(self.load, self.replicas, out=np.zeros(HOURS), where=self.replicas > 0)
        return int(np.lexsort((self.load, np.round(shares, 6)))[-1])


@dataclass(frozen=True, kw_only=True, eq=False)
class Routed:
    """One routing. flow ``(paths, hours)``: requests a second of the busiest moment of each hour. hired
    ``(kinds, hours)``, held ``(kinds)`` of each site: machines. gap: the share by which a better answer could be
    better."""

    asked: Question
    routing: Routing
    flow: Array
    hired: tuple[Array, ...]
    held: tuple[Array, ...]
    gap: float

    @cached_property
    def requests(self) -> Array:
        """Of each path in each hour, on average."""
        return self.asked.served(self.flow, self.asked.paths)

    def load(self, site: int) -> Array:
        """Requests a second of the busiest moment of each hour."""
        mine = [path for path, arc in enumerate(self.asked.paths) if arc.site == site]
        found: Array = self.flow[mine].sum(axis=0)
        return found

    def pools(self, site: int) -> list[Pool]:
        """Those of a site that serve anybody."""
        found = []
        for rate in self.asked.pools(site):
            mine = [path for path, arc in enumerate(self.asked.paths) if (arc.site, arc.rate) == (site, rate)]
            load = self.flow[mine].sum(axis=0)
            used = [self.asked.paths[path] for path in mine if self.requests[path].sum() > _FEW]
            if used:
                far = max(arc.delay for arc in used)
                found.append(Pool(rate, load, np.ceil(load / rate - _SEEN), far, frozenset(arc.users for arc in used)))
        return found

    def needed(self, site: int) -> Array:
        """Replicas at work in each hour."""
        found = np.zeros(HOURS)
        for pool in self.pools(site):
            found = found + pool.replicas
        return found

    def room(self, site: int) -> Array:
        """Replicas that the machines hold in each hour."""
        return self._paid(site, attrgetter("holds"))

    def _paid(self, site: int, each: Callable[[Sold], float]) -> Array:
        """A figure of the machines of a site, in each hour."""
        found = np.full(HOURS, self._held(site, each))
        for sold, counts in zip(self.asked.sites[site].hired, self.hired[site]):
            found = found + each(sold) * counts
        return found

    def _held(self, site: int, each: Callable[[Sold], float]) -> float:
        """The same of those that are held."""
        return float(sum(each(sold) * count for sold, count in zip(self.asked.sites[site].held, self.held[site])))

    def up(self, site: int) -> Array:
        """Replicas that are up in each hour: those of held machines all day, as many as the busiest hour needs."""
        needed = self.needed(site)
        found: Array = np.maximum(needed, min(self._held(site, attrgetter("holds")), float(needed.max())))
        return found

    def gpus(self, site: int) -> Array:
        """GPUs that are paid for in each hour."""
        return self._paid(site, attrgetter("gpus"))

    def gpus_held(self, site: int) -> float:
        """Of them those that are held."""
        return self._held(site, attrgetter("gpus"))

    def cost(self, site: int) -> float:
        """Of a day."""
        one = self.asked.sites[site]
        hired = sum(sold.price @ counts for sold, counts in zip(one.hired, self.hired[site]))
        return float(self._held(site, attrgetter("day")) + hired)

    def kwh(self, site: int) -> Array:
        """Of each hour."""
        one = self.asked.sites[site]
        mine = [path for path, arc in enumerate(self.asked.paths) if arc.site == site]
        found: Array = one.standing * self.up(site) + one.request * self.requests[mine].sum(axis=0)
        return found

    def grams(self, site: int) -> Array | None:
        """CO2 of each hour."""
        grams = self.asked.sites[site].grams
        return None if grams is None else self.kwh(site) * grams

    @property
    def whole_cost(self) -> float:
        return sum(self.cost(site) for site in range(len(self.asked.sites)))

    @property
    def whole_kwh(self) -> float:
        return float(sum(self.kwh(site).sum() for site in range(len(self.asked.sites))))

    @property
    def whole_grams(self) -> float | None:
        found = [self.grams(site) for site in range(len(self.asked.sites))]
        return None if any(one is None for one in found) else float(sum(one.sum() for one in found if one is not None))

    @property
    def all_gpus(self) -> Array:
        """GPUs that are paid for in each hour, everywhere."""
        found: Array = np.sum([self.gpus(site) for site in range(len(self.asked.sites))], axis=0)
        return found

    @property
    def away(self) -> float:
        """The share of requests that are served in another region than their users'."""
        other = [
            path
            for path, arc in enumerate(self.asked.paths)
            if self.asked.users[arc.users].name != self.asked.sites[arc.site].name
        ]
        return float(self.requests[other].sum() / self.requests.sum())

    @property
    def delay(self) -> float:
        """Mean seconds of network of a request."""
        delays = np.array([arc.delay for arc in self.asked.paths])
        return float(delays @ self.requests.sum(axis=1) / self.requests.sum())

    def share(self, users: int, site: int) -> float:
        """Of the requests of some users those that a site serves."""
        of = self.asked.paths
        mine = [path for path, arc in enumerate(of) if arc.users == users]
        there = [path for path in mine if of[path].site == site]
        return float(self.requests[there].sum() / self.requests[mine].sum())


class Without(NamedTuple):
    """A routing that has lost a site. served: requests of a day that the site served. missed: of all of a day's
    requests those that find no room with the machines as they are; missed_most: the largest share of an hour.
    more: GPUs of each site that are needed beside them; missed_still: what is not served with these either. price: of
    them for a day, held or hired all day; infinite where nobody sells them.
    """

    routing: Routing
    site: int
    served: float
    missed: float
    missed_most: float
    missed_hour: int
    more: tuple[float, ...]
    missed_still: float
    price: float

    @property
    def held(self) -> bool:
        """Whether the others carry all of it as they are."""
        return self.missed <= _SEEN


class Reason(NamedTuple):
    """What a row of the file costs. row: ``stays`` or ``most``. name: of the region. saved: money of a day, or grams,
    that would be saved without it."""

    routing: Routing
    row: str
    name: str
    saved: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    asked: Question
    routed: tuple[Routed, ...]
    lost: tuple[Without, ...]
    reasons: tuple[Reason, ...]


def answer(asked: Question, steps: Steps | None = None) -> Answer:
    """Every routing, without each of the sites too. steps: one for each programme that is solved.

    Raises ``InfeasibleError`` where the requests of some users cannot be served.
    """
    steps = steps or Steps()
    explained = sum(routing != "nearest" for routing in asked.routings)
    left = len(asked.sites) if len(asked.sites) > 1 else 0
    steps.more(len(asked.routings) * (1 + left) + explained)
    routed, reasons, lost = list[Routed](), list[Reason](), list[Without]()
    for routing in asked.routings:
        found = route(asked, routing)
        if found is None:
            raise infeasible(asked)
        routed.append(found)
        steps.step()
        if routing != "nearest":
            reasons += _reasons(asked, found)
            steps.step()
    if len(asked.sites) > 1:
        for found in routed:
            for site in range(len(asked.sites)):
                lost.append(without(found, site))
                steps.step()
    return Answer(asked=asked, routed=tuple(routed), lost=tuple(lost), reasons=tuple(reasons))


def _objectives(programme: Routes, routing: Routing) -> list[Array]:
    """What is least, then what is least of equals."""
    if routing == "nearest":
        return [programme.distance, programme.money]
    if routing == "cost":
        return [programme.money]
    return [programme.energy([one.grams for one in programme.asked.sites if one.grams is not None]), programme.money]


def route(asked: Question, routing: Routing) -> Routed | None:
    """The machines and flows of a routing; ``None`` where none keeps the limits. With the machines decided, requests go
    as near as these, and the grams, allow."""
    flow = np.zeros((len(asked.paths), HOURS))
    hired = tuple(np.zeros((len(site.hired), HOURS)) for site in asked.sites)
    held = tuple(np.zeros(len(site.held)) for site in asked.sites)
    first, bound = 0.0, 0.0
    slack = GAP if asked.together and routing == "carbon" else _SEEN
    for hours in _groups(asked):
        programme = Routes(asked, hours)
        objectives = _objectives(programme, routing)
        found = programme.solve(objectives[0])
        if found is None:
            return None
        first, bound = first + found.cost, bound + found.bound
        if len(objectives) > 1:
            kept = [(objectives[0], found.cost * (1 + slack) + _SEEN)]
            found = programme.solve(objectives[1], kept) or found
        for place, hour in enumerate(hours):
            flow[:, hour] = _near(programme, found.values, place, routing)
        for site, bought in enumerate(programme.bought):
            hired[site][:, hours] = found.values[bought.hired]
            held[site][:] = found.values[bought.held]
    gap = max(first - bound, 0.0) / first if first else 0.0
    return Routed(asked=asked, routing=routing, flow=flow, hired=hired, held=held, gap=gap)


def _near(programme: Routes, values: Array, place: int, routing: Routing) -> Array:
    """The flows of an hour with the machines of a solution: as near as they allow, with no more grams than it has."""
    one, now = Routes(programme.asked, [programme.hours[place]]), values[programme.flow[:, place]]
    keep = []
    if routing == "carbon":
        grams, columns = _objectives(one, routing)[0], np.zeros(one.columns)
        columns[one.machines], columns[one.flow[:, 0]] = programme.of_hour(values, place), now
        for mine, whole in zip(one.bought, programme.bought):
            columns[mine.hourly] = values[whole.hourly[place]]
        keep = [(grams, float(grams @ columns) * (1 + _SEEN) + _SEEN)]
    solved = one.solve(one.distance, keep, (one.machines, programme.of_hour(values, place)))
    found: Array = now if solved is None else solved.values[one.flow[:, 0]]
    return found


def _groups(asked: Question) -> list[list[int]]:
    """Hours that have machines in common."""
    return [list(range(HOURS))] if asked.together else [[hour] for hour in range(HOURS)]


def best(asked: Question, routing: Routing) -> float:
    """The least of what a routing is for: grams, or money, of a day; infinite where nothing keeps the limits."""
    found = 0.0
    for hours in _groups(asked):
        programme = Routes(asked, hours)
        solved = programme.solve(_objectives(programme, routing)[0])
        if solved is None:
            return inf
        found += solved.cost
    return found


def _reasons(asked: Question, found: Routed) -> list[Reason]:
    """Rows without which the routing would be better: data that stay, limits on GPUs that are reached."""
    now, rows = None, list[Reason]()
    tries = [("stays", one.name, asked.opened(place)) for place, one in enumerate(asked.users) if _closed(asked, place)]
    tries += [
        ("most", one.name, asked.unlimited(place))
        for place, one in enumerate(asked.sites)
        if found.gpus(place).max() > one.most - min((sold.gpus for sold in (*one.held, *one.hired)), default=0)
    ]
    for row, name, other in tries:
        now = best(asked, found.routing) if now is None else now
        saved = now - best(other, found.routing)
        rows.append(Reason(found.routing, row, name, saved if saved > GAP * now else 0.0))
    return rows


def _closed(asked: Question, users: int) -> bool:
    return any(arc.users == users and not arc.open and arc.rate > 0 for arc in asked.arcs)


def without(routed: Routed, site: int) -> Without:
    """A routing where a site is lost: its users too are served by the others, as far as they may be."""
    asked = routed.asked.without(site)
    sites = range(len(asked.sites))
    room = np.array([routed.room(place) for place in sites])
    left = [one.most - float(routed.gpus(place).max()) for place, one in enumerate(asked.sites)]
    now = Loss(asked, room, left, more=False)
    more = Loss(asked, room, left, more=True)
    stuck, least = now.solve(now.lost), more.solve(more.lost)
    assert stuck is not None and least is not None  # all may be missed
    kept = [(more.lost, least.cost * (1 + _SEEN) + _SEEN)]
    added = more.solve(more.gpus, kept) or least
    kept.append((more.gpus, float(more.gpus @ added.values) + _SEEN))
    added = more.solve(more.money, kept) or added
    requests = np.array([one.mean for one in asked.users]) * 3600
    missed = stuck.values[now.missed] * _each(asked)
    hourly = missed.sum(axis=0) / np.maximum(requests.sum(axis=0), 1e-300)
    extra = added.values[more.more] + 0.0  # no zero below it
    mine = [path for path, arc in enumerate(routed.asked.paths) if arc.site == site]
    total = float(requests.sum())
    return Without(
        routing=routed.routing,
        site=site,
        served=float(routed.requests[mine].sum()) / total,
        missed=float(missed.sum()) / total,
        missed_most=float(hourly.max()),
        missed_hour=int(hourly.argmax()),
        more=tuple(float(count) * one.devices for count, one in zip(extra, asked.sites)),
        missed_still=least.cost / total,
        price=float(more.money @ added.values),
    )


def _each(asked: Question) -> Array:
    """Requests of an hour over the rate of its busiest moment, by users."""
    found = [np.divide(one.mean, one.most, out=np.zeros(HOURS), where=one.most > 0) for one in asked.users]
    return np.array(found) * 3600


def infeasible(asked: Question) -> InfeasibleError:
    """The error that says whose requests cannot be served, or that there are too few GPUs."""
    for users, one in enumerate(asked.users):
        mine = [arc for arc in asked.arcs if arc.users == users]
        if any(arc.open and arc.rate > 0 for arc in mine):
            continue
        shut = [f"in {asked.sites[arc.site].name}: {arc.because or 'their data may not go there'}" for arc in mine]
        return InfeasibleError(
            f"the requests of {one.name} cannot be served anywhere",
            because="; ".join(shut) or "no region with machines is near them",
            hint="longer limits, stays: of more regions, or machines nearer to them",
        )
    limited: Sequence[str] = [one.name for one in asked.sites if one.most < inf]
    return InfeasibleError(
        "the GPUs of the regions do not carry the load",
        because=f"most: limits those in {', '.join(limited)}",
        hint="a larger most:, more regions, or a lower load",
    )
