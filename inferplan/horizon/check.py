"""An answer run hour by hour: weeks of its months with Poisson requests and spot machines that are taken away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from inferplan.fields import Topic, Whole, ask
from inferplan.horizon.answer import Answer
from inferplan.horizon.question import Question
from inferplan.units import HOURS_PER_MONTH, Array

_WEEK = 168
"""Hours."""
_STEP = 3600.0
"""Seconds of the steps in which requests are counted and machines are taken away."""


@dataclass(frozen=True, kw_only=True)
class CheckAsked:
    """How an answer is checked."""

    topic: ClassVar = Topic("a check", "there is none", "--check 4")
    weeks: int | None = ask(
        "--check",
        Whole(1, 520),
        "Run this many weeks of the first, the middle and the last month of each scenario hour by hour.",
        None,
        metavar="WEEKS",
    )
    seed: int = ask("--seed", Whole(0, 2**31 - 1), "With --check: seed of requests and interruptions. [0]", 0)


class CheckedMonth(NamedTuple):
    """A month of a scenario. planned, bill: of the month. missed_planned, missed: shares of its requests.
    interruptions: of spot machines, in a month."""

    month: str
    scenario: str
    chance: float
    planned: float
    bill: float
    missed_planned: float
    missed: float
    interruptions: float


class Checked(NamedTuple):
    weeks: int
    rows: tuple[CheckedMonth, ...]


def check(answer: Answer, asked: CheckAsked) -> Checked:
    """The first, the middle and the last month of each scenario."""
    months, rows = len(answer.asked.months), list[CheckedMonth]()
    weeks = asked.weeks or 1
    random = np.random.default_rng(asked.seed)
    for month in sorted({0, months // 2, months - 1}):
        for scenario in range(len(answer.asked.scenarios)):
            rows.append(_month(answer, month, scenario, (weeks, random)))
    return Checked(weeks, tuple(rows))


def _month(answer: Answer, month: int, scenario: int, how: tuple[int, np.random.Generator]) -> CheckedMonth:
    """Every hour: requests by Poisson, those that the machines of the plan carry, less those of spot machines that were
    taken away. A machine that is taken away is missing, and paid for, until its successor has started."""
    asked, solved, (weeks, random) = answer.asked, answer.solved, how
    hours = np.random.default_rng(0).permutation(np.repeat(np.arange(len(asked.levels)), _whole_hours(asked.hours)))
    spent, gone, lost, come = 0.0, 0, 0.0, 0.0
    committed = solved.programme.committed(solved.first_stage, month)
    for level in np.tile(hours, weeks):
        paid, usable, taken = _spot_hour(answer, (month, scenario, int(level)), random)
        spent, gone = spent + paid, gone + taken
        requests = random.poisson(asked.rates[:, month, scenario, level] * _STEP) / _STEP
        room = _room(answer, (month, scenario, int(level)), usable)
        lost += float(np.maximum(requests - room, 0.0).sum())
        come += float(requests.sum())
    months = HOURS_PER_MONTH / (weeks * _WEEK)
    planned_lost = sum(float(missed[month, scenario] @ asked.hours) for missed in solved.missed) / max(
        sum(float(rate[month, scenario] @ asked.hours) for rate in asked.rates), 1e-300
    )
    return CheckedMonth(
        month=asked.months[month],
        scenario=asked.scenarios[scenario],
        chance=float(asked.chance[scenario]),
        planned=float(answer.bills[month, scenario]),
        bill=float(committed) + spent * months,
        missed_planned=planned_lost,
        missed=lost / come if come else 0.0,
        interruptions=gone * months,
    )


def _whole_hours(shares: Array) -> npt.NDArray[np.int64]:
    """Hours of a week in each level, by largest remainder."""
    exact = shares * _WEEK
    found = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(-(exact - found), kind="stable")
    found[order[: _WEEK - found.sum()]] += 1
    return found


def _spot_hour(answer: Answer, at: tuple[int, int, int], random: np.random.Generator) -> tuple[float, Array, int]:
    """What flexible machines cost in an hour, the share of each pool's machines that is up, and how many were taken."""
    asked, programme = answer.asked, answer.solved.programme
    month, scenario, _ = at
    up, there = answer.solved.machines[:, month].copy(), answer.solved.machines[:, month].copy()
    paid, gone = 0.0, 0
    for index, place in enumerate(programme.flexibles):
        offer = asked.offers[place]
        running = float(answer.solved.hired[index][at])
        price = offer.cost / HOURS_PER_MONTH * asked.price[scenario]
        taken = 0
        if offer.interruptions and running:
            taken = int(random.poisson(running * offer.ratio * offer.interruptions * _STEP))
        machines = running * offer.ratio
        starting = min(taken * offer.restart / _STEP, machines)
        paid += machines * price
        up[offer.pool] += machines - starting
        there[offer.pool] += running
        gone += taken
    share: Array = np.divide(up, there, out=np.ones_like(up), where=there > 0)
    return paid, share, gone


def _room(answer: Answer, at: tuple[int, int, int], usable: Array) -> Array:
    """Requests a second that the replicas of each stream carry."""
    asked: Question = answer.asked
    found = np.zeros(len(asked.streams))
    for index, arc in enumerate(asked.arcs):
        found[arc.stream] += answer.solved.serving[index][at] * arc.rate * min(usable[arc.pool], 1.0)
    return found
