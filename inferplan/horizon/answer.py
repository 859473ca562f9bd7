"""What to hold in which month, what it costs in which scenario, and what decides it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from inferplan.errors import InfeasibleError
from inferplan.horizon.programme import Programme, Solved
from inferplan.horizon.question import Limits, Offer, Question
from inferplan.planning.processes import Jobs, run_beside
from inferplan.units import HOURS_PER_MONTH, Array

MOST_WHOLE = 2500
"""Whole numbers of one programme: of more, only the machines that are held are whole, and the others are relaxed."""
_SEEN = 1e-6
"""Less than this of a machine, or of a request, is rounding of the solver."""
_MONTH = HOURS_PER_MONTH * 3600.0
"""Seconds."""


class Action(NamedTuple):
    """Machines whose term begins, or that go. offer: its place; ``None`` of those that were there. until: the first
    month without them; ``None`` after the horizon."""

    month: int
    pool: int
    term: str
    machines: float
    offer: int | None
    until: int | None
    goes: bool = False


class Reason(NamedTuple):
    """Why a row of the file is taken or not. row: of ``offers``. machines: begun, or the mean that is used (flexible).
    months: in which. worth: of what one more machine costs, the share that it saves, in its best month (1: just taken).
    """

    offer: Offer
    machines: float
    months: int
    worth: float


class Binding(NamedTuple):
    """A limit that is reached. name: of the part of the file. row: in it. months: in which. saved: by one unit more,
    all through."""

    name: str
    row: str | int | None
    months: int
    saved: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """solved: the answer; relaxed: the programme with parts of machines, whose prices explain it. whole: whether all
    machines are whole numbers, or only those that are held. on_demand, reserved, mean, certain: costs of the
    alternatives; ``None`` where they do not keep the limits. certain: of knowing the scenario beforehand.
    """

    asked: Question
    solved: Solved
    relaxed: Solved
    whole: bool
    on_demand: float | None
    reserved: float | None
    mean: float | None
    certain: float | None

    @property
    def cost(self) -> float:
        """The expected cost: bills, and what requests cost that are not served."""
        return self.solved.cost

    @property
    def gap(self) -> float:
        """The share of the cost by which a cheaper answer might exist."""
        return max(0.0, 1 - self.solved.bound / self.cost) if self.cost > 0 else 0.0

    @property
    def stochastic_value(self) -> float | None:
        """Value of the stochastic solution: what the answer to the mean demand costs more."""
        return None if self.mean is None else max(self.mean - self.cost, 0.0)

    @property
    def information_value(self) -> float | None:
        """Expected value of perfect information."""
        return None if self.certain is None else max(self.cost - self.certain, 0.0)

    @property
    def bills(self) -> Array:
        """The bill by month and scenario, without what requests cost that are not served."""
        programme, asked = self.solved.programme, self.asked
        shape = (len(asked.months), len(asked.scenarios), len(asked.levels))
        found = np.zeros(shape[:2])
        for month in range(shape[0]):
            found[month] = programme.committed(self.solved.first_stage, month)
        for index, place in enumerate(programme.flexibles):
            hourly = programme.hourly(place).reshape(shape)
            found += (self.solved.hired[index] * hourly * asked.hours).sum(axis=2)
        return found

    @property
    def beyond(self) -> float:
        """What terms cost after the last month, where they are paid to their end."""
        months = len(self.asked.months)
        found = 0.0
        for (place, begin), count in zip(self.solved.programme.begins, self.solved.begun):
            offer = self.asked.offers[place]
            left = self.asked.counted(offer, begin) - (months - begin)
            found += count * offer.cost * max(left, 0)
        return found

    @property
    def penalties(self) -> float:
        """The expected cost of requests that are not served."""
        return self.cost - self.beyond - float(self.bills.sum(axis=0) @ self.asked.chance)

    @property
    def actions(self) -> tuple[Action, ...]:
        """In the order of months."""
        programme, asked, months = self.solved.programme, self.asked, len(self.asked.months)
        found = list[Action]()
        for (place, begin), count in zip(programme.begins, self.solved.begun):
            if count > _SEEN:
                offer = asked.offers[place]
                end = begin + (offer.months or 0)
                found.append(Action(begin, offer.pool, offer.term, count, place, end if end < months else None))
                if end < months:
                    found.append(Action(end, offer.pool, offer.term, count, place, None, goes=True))
        gone = dict[int, float]()
        for (place, month), count in zip(programme.returns, self.solved.given_back):
            if count > _SEEN:
                gone[place] = gone.get(place, 0.0) + count
                found.append(Action(month, asked.have[place].pool, "there", count, None, None, goes=True))
        for place, one in enumerate(asked.have):
            left = one.machines - gone.get(place, 0.0)
            if one.until < months and left > _SEEN:
                found.append(Action(one.until, one.pool, "there", left, None, None, goes=True))
        return tuple(sorted(found, key=lambda one: (one.month, one.goes, one.pool, one.term, one.offer or 0)))

    @property
    def rounded_up(self) -> float | None:
        """What it costs more, at most, that every replica and every hired machine is whole: each is rounded up, and
        what is missing is hired at the lowest price of its pool; ``None`` where a pool has none on hire. Stocks are
        taken to have as many."""
        programme, asked = self.solved.programme, self.asked
        more = 0.0
        for pool in range(len(asked.pools)):
            used = np.zeros(self.solved.hired.shape[1:])
            for index, arc in enumerate(asked.arcs):
                if arc.pool == pool:
                    used += np.ceil(self.solved.serving[index] - _SEEN) * arc.share
            there = self.solved.machines[pool][:, None, None]
            hired = [index for index, place in enumerate(programme.flexibles) if asked.offers[place].pool == pool]
            now = self.solved.hired[hired].sum(axis=0)
            missing = np.maximum(np.ceil(np.maximum(used - there, 0.0) - _SEEN) - now, 0.0)
            if not missing.any():
                continue
            prices = [programme.hourly(programme.flexibles[index]).reshape(used.shape) for index in hired]
            if not prices:
                return None
            more += float((missing * np.min(prices, axis=0) * programme.weight.reshape(used.shape)).sum())
        return more

    @property
    def hired(self) -> Array:
        """Mean machines over the hours of a month, by flexible offer, month and scenario."""
        found: Array = (self.solved.hired * self.asked.hours).sum(axis=3)
        return found

    @property
    def most_hired(self) -> Array:
        """The most machines in any level, likewise."""
        found: Array = self.solved.hired.max(axis=3)
        return found

    def missed_share(self, stream: int) -> Array:
        """The share of the requests that are not served, by month and scenario; 0 where none come."""
        come = (self.asked.rates[stream] * self.asked.hours).sum(axis=2)
        missed = (self.solved.missed[stream] * self.asked.hours).sum(axis=2)
        share: Array = np.divide(missed, come, out=np.zeros_like(come), where=come > 0)
        return share

    def expected_missed(self, stream: int) -> float:
        """The share of all requests of all months."""
        come = float(((self.asked.rates[stream] * self.asked.hours).sum(axis=(0, 2))) @ self.asked.chance)
        missed = float(((self.solved.missed[stream] * self.asked.hours).sum(axis=(0, 2))) @ self.asked.chance)
        return missed / come if come else 0.0

    def chance_missed(self, stream: int) -> float:
        """The chance of a scenario in which some requests are not served."""
        some = (self.missed_share(stream) > _SEEN).any(axis=0)
        return float(self.asked.chance[some].sum())

    def marginal(self, stream: int) -> float:
        """What one more request costs, of a stream that is larger by as much at every moment."""
        prices = self.relaxed.price[self.relaxed.programme.rows.of["demand", stream]]
        return float(prices.sum()) / (len(self.asked.months) * _MONTH)

    def served_by(self, stream: int) -> dict[int, float]:
        """The share of the served requests that each pool serves."""
        found = dict[int, float]()
        for index, arc in enumerate(self.asked.arcs):
            if arc.stream == stream:
                rate = float(np.einsum("tsl,s,l->", self.solved.serving[index], self.asked.chance, self.asked.hours))
                found[arc.pool] = found.get(arc.pool, 0.0) + rate * arc.rate
        total = sum(found.values())
        return {pool: rate / total for pool, rate in found.items() if rate > _SEEN * total} if total else {}

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Of each offer, in the order of the file."""
        programme, asked = self.relaxed.programme, self.asked
        found = []
        for place, offer in enumerate(asked.offers):
            if offer.flexible:
                index = programme.flexibles.index(place)
                columns = np.arange(
                    programme.flexible + index * programme.blocks, programme.blocks * (index + 1) + programme.flexible
                )
                mean = self.hired[index] @ asked.chance
                machines, months = float(mean.mean()), int((mean > _SEEN).sum())
            else:
                columns = np.array([at for at, (one, _) in enumerate(programme.begins) if one == place], dtype=np.int64)
                machines = float(self.solved.values[columns].sum())
                months = int((self.solved.values[columns] > _SEEN).sum())
            found.append(Reason(offer, machines, months, self._worth(columns)))
        return tuple(found)

    def _worth(self, columns: npt.NDArray[np.int64]) -> float:
        costs, reduced = self.relaxed.programme.costs[columns], self.relaxed.reduced[columns]
        there = costs > 0
        return float(((costs - reduced)[there] / costs[there]).max()) if there.any() else 0.0

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """The limits that are reached, the most telling first."""
        programme, found = self.relaxed.programme, dict[tuple[str, str | int | None], list[tuple[int, float]]]()
        for name, places in programme.rows.of.items():
            key = self._limit(name)
            if key is not None:
                found.setdefault(key, []).extend(self._saved(name, -self.relaxed.price[places]))
        for index, place in enumerate(programme.flexibles):
            begin = programme.flexible + index * programme.blocks
            if self.asked.offers[place].most < inf:
                saved = np.maximum(-self.relaxed.reduced[begin : begin + programme.blocks], 0.0)
                found.setdefault(("offers", self.asked.offers[place].row), []).extend(self._saved(("quota",), saved))
        made = [
            Binding(name, row, len({month for month, one in entries if one > _SEEN}), sum(one for _, one in entries))
            for (name, row), entries in found.items()
        ]
        return tuple(sorted((one for one in made if one.saved > _SEEN), key=lambda one: -one.saved))

    def _saved(self, name: tuple[Any, ...], prices: Array) -> list[tuple[int, float]]:
        """The months that rows of the programme are of, and what one unit more saves in each."""
        months = len(self.asked.months)
        if name[0] == "quota":
            return [(month, float(one)) for month, one in enumerate(prices.reshape(months, -1).sum(axis=1))]
        if name[0] in ("budget", "unserved"):
            return [(month, float(prices.sum()) / months) for month in range(months)]
        month = name[1] if name[0] == "bill" else name[2]
        return [(month, float(prices.sum()))]

    def _limit(self, name: tuple[Any, ...]) -> tuple[str, str | int | None] | None:
        """The part of the file that a row of the programme is of, and the row there."""
        if name[0] == "most":
            return "offers", self.asked.offers[int(name[1])].row
        if name[0] == "quota":
            return "quotas", [pool for pool, _ in self.asked.limits.quotas].index(int(name[1]))
        if name[0] == "power":
            return "power", name[1]
        if name[0] in ("bill", "budget"):
            return "budget", "month" if name[0] == "bill" else "whole"
        return ("unserved", name[1]) if name[0] == "unserved" else None


def plan_months(asked: Question, jobs: Jobs = 1) -> Answer:
    """The machines that cost least in expectation. jobs: who computes; the answer is the same.

    Raises ``InfeasibleError`` where the limits cannot be kept, with the limit that stands in the way.
    """
    programme = Programme(asked)
    relaxed = programme.relaxed()
    whole = programme.missing <= MOST_WHOLE
    if relaxed is None:
        raise _infeasible(asked, whole)
    solved, mean, *costs = run_beside(_tasks(asked, programme, relaxed, whole), jobs, kept=[asked, programme])
    if solved is None:
        raise _infeasible(asked, whole)
    on_demand, reserved, *certain = costs
    known = None if None in certain or asked.limits.unserved else float(np.dot(certain, asked.chance))
    return Answer(
        asked=asked,
        solved=solved,
        relaxed=relaxed,
        whole=whole,
        on_demand=on_demand,
        reserved=reserved,
        mean=mean,
        certain=known,
    )


def _tasks(asked: Question, programme: Programme, relaxed: Solved, whole: bool) -> list[Callable[[], Any]]:
    """What is solved beside each other: the answer, and the costs of its alternatives."""

    def of_mean() -> float | None:
        mean = _solved(Programme(asked.mean), whole)
        fixed = None if mean is None else _with(programme, whole, mean.first_stage)
        return None if fixed is None else fixed.cost

    def only(term: str) -> float | None:
        there = tuple(offer for offer in asked.offers if offer.term == term)
        return _cost(replace(asked, offers=there), whole) if there else None

    known = [partial(_cost, asked.of(scenario), whole) for scenario in range(len(asked.scenarios))]
    return [
        partial(_solved, programme, whole, relaxed),
        of_mean,
        partial(only, "on-demand"),
        partial(only, "reserved"),
        *known,
    ]


def _cost(asked: Question, whole: bool) -> float | None:
    found = _solved(Programme(asked), whole)
    return None if found is None else found.cost


def _solved(programme: Programme, whole: bool, relaxed: Solved | None = None) -> Solved | None:
    """With all machines whole, or with those that are held."""
    if whole:
        return programme.whole()
    relaxed = programme.relaxed() if relaxed is None else relaxed
    if relaxed is None:
        return None
    for way in (np.round, np.ceil, np.floor):
        found = programme.relaxed(_rounded(programme, relaxed.first_stage, way))
        if found is not None:
            return replace(found, bound=relaxed.bound)
    return None


def _rounded(programme: Programme, first_stage: Array, way: Callable[[float], float]) -> Array:
    """Whole machines, so that the sum of an offer from the beginning to each month is rounded."""
    found, sums = np.zeros(len(first_stage)), dict[tuple[bool, int], tuple[float, float]]()
    for column, (place, _) in enumerate([*programme.begins, *programme.returns]):
        key = column < len(programme.begins), place
        exact, taken = sums.get(key, (0.0, 0.0))
        exact += first_stage[column]
        found[column] = max(float(way(round(exact, 6))) - taken, 0.0)
        sums[key] = exact, taken + found[column]
    return found


def _with(programme: Programme, whole: bool, first_stage: Array) -> Solved | None:
    return programme.whole(first_stage) if whole else programme.relaxed(first_stage)


def _infeasible(asked: Question, whole: bool) -> InfeasibleError:
    """The error, with the limits without which there is an answer."""
    limits, free = asked.limits, list[str]()
    tries: Sequence[tuple[str, bool, Question]] = [
        (
            "budget",
            limits.month < inf or limits.whole < inf,
            replace(asked, limits=replace(limits, month=inf, whole=inf)),
        ),
        ("power", bool(limits.power), replace(asked, limits=replace(limits, power=()))),
        ("quotas", bool(limits.quotas), replace(asked, limits=replace(limits, quotas=()))),
        (
            "most of the offers",
            any(offer.most < inf for offer in asked.offers),
            replace(asked, offers=tuple(replace(offer, most=inf) for offer in asked.offers)),
        ),
        ("unserved of the models", bool(limits.unserved), replace(asked, limits=replace(limits, unserved=()))),
    ]
    for name, given, freed in tries:
        if given and Programme(freed).relaxed() is not None:
            free.append(name)
    nobody = [stream.name for stream in asked.streams if stream.penalty is None and not _limited(limits, stream.model)]
    must = f"; every request of {', '.join(nobody[:3])} has to be served" if nobody else ""
    if free:
        because = f"without {' or without '.join(free)} there is one{must}"
    elif Programme(replace(asked, limits=Limits(), offers=tuple(replace(o, most=inf) for o in asked.offers))).relaxed():
        because = f"no single limit rules it out, all of them together do{must}"
    else:
        because = f"in some month no offer can serve a request{must}"
    return InfeasibleError(
        "no machines keep the limits" + ("" if whole else " in whole numbers"),
        because=because,
        hint="a larger limit"
        + (", or penalty: of the models, the cost per request that is not served" if must else ""),
    )


def _limited(limits: Limits, model: str) -> bool:
    return any(name == model for name, _ in limits.unserved)
