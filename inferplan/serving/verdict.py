"""What a simulated run says about the load: stable, saturated, overloaded, rejecting (docs/serving.md).

An overload is read from rates: the number of requests in the system, arrivals less departures, grows for as long as the
traffic lasts, and those that came on top are waiting. It is told from noise by batch means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from inferplan.serving.batch_means import BATCHES, STUDENT_95, STUDENT_99_9
from inferplan.serving.records import REJECTED, TIMED_OUT, Meter, Records
from inferplan.units import Array

Verdict = Literal["stable", "saturated", "overloaded", "rejecting", "too short to tell"]
"""stable: requests are admitted about as soon as they come. saturated: they wait longer than their prompt takes, and
the queue does not grow. overloaded: requests arrive faster than they leave, so the queue grows for as long as the
traffic lasts. rejecting: some can never run. too short to tell: the run ends before the system is full."""
FEWEST_LIFETIMES = 5.0
"""An open loop that holds fewer times of one request says nothing about the next ones."""
_FEWEST_ARRIVALS = 20
"""Fewer requests say nothing about a trend."""
_GAVE_UP_SHARE = 0.1
"""More clients than this that give up are a queue that would grow."""


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Arrivals against departures of an open loop while the traffic lasts.

    arriving, leaving: requests a second that could run. growth: share of the arrivals by which the number in the system
    rises; error: its standard error by batch means; later_growth, later_error: the same of the second half.
    queue: mean number of requests that wait. lifetimes: the span over the mean time of a request from admission on.
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
        lasting = self.later_growth > max(STUDENT_95 * self.later_error, self.growth / 2)
        return beyond_chance and lasting and self.queue > self.growth * self.arrivals / 4

    @property
    def most_growth(self) -> float:
        """The growth that chance may hide: the upper end of its 95 % interval."""
        return self.growth + STUDENT_95 * self.error


class Run(Protocol):
    """What a verdict looks at: a closed loop or not, meters, records, and the seconds that figures are counted in."""

    @property
    def closed(self) -> bool: ...
    @property
    def meters(self) -> Sequence[Meter]: ...
    @property
    def records(self) -> Records: ...
    @property
    def window(self) -> tuple[float, float]: ...
    @property
    def ttft(self) -> Array: ...


def verdict_of(run: Run) -> Verdict:
    """The verdict on a run. A closed loop is never overloaded: its users wait for their answers."""
    status = np.frombuffer(bytes(run.records.status), dtype=np.uint8)
    if not run.closed:
        flow = flow_of(run)
        arrived = np.sum(status != REJECTED)
        if (flow is not None and flow.grows) or np.sum(status == TIMED_OUT) > _GAVE_UP_SHARE * arrived:
            return "overloaded"
    if np.any(status == REJECTED):
        return "rejecting"
    if not run.closed and flow is not None and flow.lifetimes < FEWEST_LIFETIMES:
        return "too short to tell"
    return "saturated" if _waits(run) else "stable"


def _waits(run: Run) -> bool:
    """Whether requests wait for longer than all else takes until their first token."""
    waited = sum(sum(meter.waited.values()) for meter in run.meters)
    return waited > 0.5 * float(np.sum(run.ttft))


def flow_of(run: Run) -> Flow | None:
    """Arrivals against departures from the first counted request to the last arrival; ``None`` for too few of them."""
    records = run.records
    kept = np.frombuffer(bytes(records.status), dtype=np.uint8) != REJECTED
    arrival, admitted, finish = (
        np.asarray(column, dtype=np.float64)[kept] for column in (records.arrival, records.admitted, records.finish)
    )
    start, end = run.window[0], float(np.max(arrival, initial=-np.inf))
    come, gone = np.sort(arrival[arrival >= start]), np.sort(finish[finish >= start])
    if len(come) < _FEWEST_ARRIVALS or end <= start:
        return None
    edges = np.linspace(start, end, BATCHES + 1)
    rise = np.diff(np.searchsorted(come, edges, "right") - np.searchsorted(gone, edges, "right")).astype(np.float64)
    later = rise[BATCHES // 2 :]
    arrivals = len(come)
    later_arrivals = int(np.sum(come > edges[BATCHES // 2]))
    served = (finish - admitted)[np.isfinite(finish) & (arrival >= start)]
    waits = sum(sum(meter.waited.values()) for meter in run.meters)
    return Flow(
        arrivals=arrivals,
        arriving=arrivals / (end - start),
        leaving=float(np.sum(gone <= end)) / (end - start),
        growth=float(np.sum(rise)) / arrivals,
        error=float(np.std(rise, ddof=1)) * len(rise) ** 0.5 / arrivals,
        later_growth=float(np.sum(later)) / max(later_arrivals, 1),
        later_error=float(np.std(later, ddof=1)) * len(later) ** 0.5 / max(later_arrivals, 1),
        queue=waits / (end - start),
        lifetimes=(end - start) / float(np.nanmean(served)) if len(served) else 0.0,
    )
