"""Whether a simulated run was steady: stable, saturated or overloaded (docs/serving.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from inferplan.serving.records import REJECTED, Meter
from inferplan.units import Array

Verdict = Literal["stable", "saturated", "overloaded"]
"""stable: nobody waits for a slot or for cache for long. saturated: they do, and the queue does not grow. overloaded:
requests arrive faster than they leave, so the queue grows for as long as the traffic lasts."""
_FEWEST_ARRIVALS = 20
"""Fewer requests say nothing about a trend."""
_FEWEST_FOR_SLOW_GROWTH = 1000
_GAVE_UP_SHARE = 0.1
"""More clients than this that give up are a queue that grows."""


class Run(Protocol):
    """What a verdict looks at: a closed loop or not, meters, and of each request its arrival, fate and wait."""

    @property
    def closed(self) -> bool: ...
    @property
    def meters(self) -> Sequence[Meter]: ...
    @property
    def arrival(self) -> Array: ...
    @property
    def status(self) -> Any: ...
    @property
    def counts(self) -> dict[str, int]: ...
    @property
    def wait(self) -> Array: ...
    @property
    def end(self) -> float: ...


def verdict_of(result: Run) -> Verdict:
    """The verdict on a run. A closed loop is never overloaded: its users wait for their answers."""
    if not result.closed and _queue_grows(result):
        return "overloaded"
    waited = {reason for meter in result.meters for reason in meter.blocked_by} & {"slots", "cache"}
    busy, backlogged = (sum(getattr(meter, name) for meter in result.meters) for name in ("busy", "backlogged"))
    return "saturated" if waited and backlogged > 0.5 * busy else "stable"


def _queue_grows(result: Run) -> bool:
    """Whether there was a backlog most of the time, and waits grew from quarter to quarter up to the end, or would
    have, had clients not given up.
    """
    arrived = result.arrival[result.status != REJECTED]
    if len(arrived) < _FEWEST_ARRIVALS:
        return False
    span = float(arrived[-1] - arrived[0])
    backlogged = sum(max(meter.backlogged, meter.front_backlogged) for meter in result.meters)
    if span <= 0 or backlogged < 0.5 * span * max(len(result.meters), 1):
        return False
    if result.counts["timed_out"] > _GAVE_UP_SHARE * len(arrived):
        return True
    quarters = [float(np.mean(part)) for part in np.array_split(result.wait, 4)]
    steadily = quarters[3] > 1.15 * quarters[2] > 1.15**2 * quarters[1]
    many = len(arrived) >= _FEWEST_FOR_SLOW_GROWTH
    slowly = many and quarters[2] + quarters[3] > 1.5 * (quarters[0] + quarters[1])
    if not (steadily or slowly):
        return False
    last = float(np.mean(result.wait[-max(len(arrived) // 20, 1) :]))
    behind = min(last, result.end - float(arrived[-1]))
    return behind > (0.05 if steadily else 0.03) * span
