"""What a service was watched to do, in a bounded memory: events, and how far predictions were from what was seen."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from inferplan.watching.drift import Event
from inferplan.watching.minutes import Minute

MOST_EVENTS = 1_000
"""Events that are kept; older ones are counted."""


@dataclass(kw_only=True)
class Miss:
    """How far predictions of one figure are from what was seen: mean of the relative errors, signed and not."""

    count: int = 0
    off: float = 0.0
    bias: float = 0.0

    def add(self, predicted: float | None, seen: float | None) -> None:
        """One minute, if it has both."""
        if predicted and seen:
            self.count += 1
            error = predicted / seen - 1.0
            self.off += (abs(error) - self.off) / self.count
            self.bias += (error - self.bias) / self.count


@dataclass(kw_only=True)
class Summary:
    """What is kept of the minutes: their number, events with the times at which they were, the last minute."""

    minutes: int = 0
    idle: int = 0
    requests: float = 0.0
    counted: int = 0
    """Events, those that are not kept too."""
    events: deque[tuple[float, Event]] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    misses: dict[str, Miss] = field(default_factory=lambda: {"ttft": Miss(), "gap": Miss()})
    last: Minute | None = None

    def add(self, minute: Minute) -> None:
        """One more minute."""
        self.minutes += 1
        self.idle += minute.load is None
        self.requests += minute.span.begun
        self.counted += len(minute.events)
        self.events.extend((minute.at, event) for event in minute.events)
        if minute.as_seen is not None:
            self.misses["ttft"].add(minute.as_seen.ttft, minute.span.ttft.mean)
            self.misses["gap"].add(minute.as_seen.gap, minute.span.gap.mean)
        self.last = minute
