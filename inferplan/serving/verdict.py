"""What a simulated run says about the load: stable, saturated, overloaded, rejecting (docs/serving.md).

An overload is read from rates: the number of requests in the system, arrivals less departures, grows for as long as the
traffic lasts, and those that came on top are waiting. It is told from noise by batch means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from inferplan.serving.batch_means import BATCHES, STUDENT_99_9, student_95
from inferplan.serving.records import REJECTED, TIMED_OUT
from inferplan.serving.run_figures import RunFigures
from inferplan.units import Array

Verdict = Literal["stable", "saturated", "overloaded", "rejecting", "too short to tell"]
"""stable: requests are admitted about as soon as they come. saturated: they wait longer than their prompt takes, and
the queue does not grow. overloaded: requests arrive faster than they leave, so the queue grows for as long as the
traffic lasts, or more than a tenth of the clients give up. rejecting: some can never run. too short to tell: the run
ends before the system is full."""
Ending = Literal["saturated", "overloaded", "rejecting", "limits"]
"""What may end a command with exit code 3: a verdict, or limits that too few requests keep."""
FEWEST_LIFETIMES = 5.0
"""An open loop that holds fewer times of one request, or of one conversation, says nothing about the next ones."""
FEWEST_CONVERSATIONS = 2
"""A closed loop with fewer for each of its users has hardly seen their later turns."""
FEWEST_ARRIVALS = 20
"""Fewer requests say nothing about a trend."""
_GAVE_UP_SHARE = 0.1
"""More clients than this that give up are a queue that would grow."""


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Arrivals against departures of an open loop while the traffic lasts.

    arriving, leaving: requests a second that could run. growth: share of the arrivals by which the number in the system
    rises; error: its standard error by batch means; later_growth, later_error: the same of the second half.
    queue: mean number of requests that wait. lifetimes: the span over the mean time of a request from admission on, or
    over that of a conversation of such requests.
    """

    arrivals: int
    arriving: float
    leaving: float
    growth: float
    error: float
    later_growth: float
    later_error: float
    queue: float
    lifetimes: float

    @property
    def grows(self) -> bool:
        """Whether the number in the system rises beyond chance, still does in the second half, and not because the
        system fills: at least half of those who came on top are in a queue.
        """
        beyond_chance = self.growth > STUDENT_99_9 * self.error
        lasting = self.later_growth > max(student_95(BATCHES // 2) * self.later_error, self.growth / 2)
        return beyond_chance and lasting and self.queue > self.growth * self.arrivals / 4


def verdict_of(run: RunFigures) -> Verdict:
    """The verdict on a run. A closed loop is overloaded only by clients who give up: others wait for their answers."""
    if gave_up(run) > _GAVE_UP_SHARE:
        return "overloaded"
    if not run.closed:
        flow = flow_of(run)
        if flow is not None and flow.grows:
            return "overloaded"
    if np.any(run.records.outcome == REJECTED):
        return "rejecting"
    if not run.closed and (flow is None or flow.lifetimes < FEWEST_LIFETIMES):
        return "too short to tell"
    if run.closed and _unfinished(run):
        return "too short to tell"
    return "saturated" if _waits(run) else "stable"


def long_enough(run: RunFigures) -> float:
    """Seconds from the first arrival to the last, without which an open loop like this is too short to tell."""
    records = run.records
    finish, admitted = np.asarray(records.finish, dtype=np.float64), np.asarray(records.admitted, dtype=np.float64)
    served = (finish - admitted)[np.isfinite(finish)]
    return FEWEST_LIFETIMES * records.conversation(float(np.mean(served))) if len(served) else 0.0


def gave_up(run: RunFigures) -> float:
    """Share of the clients who gave up, of those whose requests could run."""
    status = run.records.outcome
    return float(np.sum(status == TIMED_OUT) / max(np.sum(status != REJECTED), 1))


def _unfinished(run: RunFigures) -> bool:
    """Whether users of a closed loop do not get through their conversations: two each, or one where all begin at once
    and every request counts. Of users who think and do not begin at once it is as long as of an open loop.
    """
    traffic = run.conditions.get("traffic", {})
    turns, loop = traffic.get("prefix", {}).get("turns", 1), traffic.get("arrivals", {})
    if turns == 1:
        thinks = traffic.get("prefix", {}).get("think", {}).get("mean") and not loop.get("burst")
        flow = flow_of(run) if thinks else None
        return flow is not None and flow.lifetimes < FEWEST_LIFETIMES
    rounds = 1 if loop["burst"] else FEWEST_CONVERSATIONS
    return len(run.records.prompt) < int(rounds * loop["concurrency"] * turns)


def load_of_capacity(run: RunFigures) -> float | None:
    """Arrivals a second, as the load names them, over what can leave; ``None`` where the capacity is not known."""
    traffic = run.conditions.get("traffic", {})
    rate = traffic.get("arrivals", {}).get("rate")
    return None if rate is None or not run.capacity_rate else rate * traffic.get("samples", 1) / run.capacity_rate


def capacity_band(run: RunFigures) -> tuple[float, float]:
    """Factors on the simulated capacity between which the real one may lie: one over the band of the step times. What
    servers reached over it, beside their steps, is known of too few runs to be a band (docs/serving.md).
    """
    fast, slow = run.bands.get("tpot", (1.0, 1.0))
    return min(1 / slow, 1.0), max(1 / fast, 1.0)


def near_capacity(run: RunFigures) -> bool | None:
    """Whether the load lies within the error of the capacity, so that an overload may be none, and none be one."""
    load, (low, high) = load_of_capacity(run), capacity_band(run)
    return None if load is None else low < load < high


def _waits(run: RunFigures) -> bool:
    """Whether requests wait for longer than all else takes until their first token."""
    waited = sum(sum(meter.waited.values()) for meter in run.meters)
    return waited > 0.5 * float(np.sum(run.ttft))


def flow_of(run: RunFigures) -> Flow | None:
    """Arrivals against departures from the first counted request to the last one that begins anything, until which
    traffic lasts; ``None`` for too few of them.
    """
    records = run.records
    kept = records.outcome != REJECTED
    arrival, admitted, finish, prompt, output = (
        np.asarray(column, dtype=np.float64)[kept]
        for column in (records.arrival, records.admitted, records.finish, records.prompt, records.output)
    )
    start, end = run.window[0], float(np.max(arrival[records.begins[kept]], initial=-np.inf))
    inside = (arrival >= start) & (arrival <= end)
    count = int(np.sum(inside))
    if count < FEWEST_ARRIVALS or end <= start:
        return None
    edges = np.linspace(start, end, BATCHES + 1)
    number = np.searchsorted(np.sort(arrival), edges, "right") - np.searchsorted(np.sort(finish), edges, "right")
    work = np.histogram(arrival[inside], edges, weights=(prompt + output)[inside])[0]
    growth, error = _growth(number.astype(np.float64), work, count)
    half = BATCHES // 2
    later = max(int(np.sum(inside & (arrival > edges[half]))), 1)
    later_growth, later_error = _growth(number[half:].astype(np.float64), work[half:], later)
    served = (finish - admitted)[np.isfinite(finish) & inside]
    return Flow(
        arrivals=count,
        arriving=count / (end - start),
        leaving=float(np.sum((finish > start) & (finish <= end))) / (end - start),
        growth=growth,
        error=error,
        later_growth=later_growth,
        later_error=later_error,
        queue=sum(sum(meter.waited.values()) for meter in run.meters) / (end - start),
        lifetimes=(end - start) / records.conversation(float(np.mean(served))) if len(served) else 0.0,
    )


def _growth(number: Array, work: Array, arrivals: int) -> tuple[float, float]:
    """By which share of the ``arrivals`` the number in the system rises, and the standard error of that.

    The slope of a least-squares line through ``number`` at the edges of the batches. Two errors add up in squares: that
    of the line, for what is bounded (requests of equal length leave in waves), and what arrivals alone make of a number
    that nothing holds: a random walk whose steps vary as the ``work`` (tokens) that arrives in each batch; the slope of
    a line through a random walk varies 6/5 times as much as the walk from end to end.
    """
    batches = len(work)
    place = np.arange(batches + 1) - batches / 2
    slope = float(place @ number) / float(place @ place)
    rest = number - np.mean(number) - slope * place
    line = float(rest @ rest) / (batches - 1) / float(place @ place)
    mean = float(np.mean(work))
    walk = (float(np.std(work, ddof=1)) / mean * arrivals / batches) ** 2 / batches if mean > 0 else 0.0
    return slope * batches / arrivals, (line + 1.2 * walk) ** 0.5 * batches / arrivals
