"""The clock of a run: one heap of events, and the engines that run between them.

Whatever takes time is an :class:`Engine`: a replica, a pipeline or ranks that step together, models that share a
device. It makes one step after another, and says before which time it can have nothing to say to anyone. All else is an
event with a handler: a user sends a request, a cache arrives, a replica is lost, the meters begin to count. The engine
that may say something first runs on, up to the next event and not past the time from which another may cause one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf

Event = tuple[float, int, int]
"""When, to which request (below 0: none), and what."""

_MOMENT = 1e-9
"""Seconds by which engines pass an event, so that rounding cannot keep it ahead of them."""


class Engine:
    """What makes steps. ``reactive``: a notification may bring a new request at once, so no run of steps passes one."""

    def __init__(self) -> None:
        self.reactive = self.pause = False
        self.clock = 0.0
        """When the next step can begin."""

    def step(self, until: float) -> bool:
        """Do what comes next, if it begins before ``until``: false when nothing does."""
        raise NotImplementedError

    def earliest(self) -> float:
        """A time before which it cannot notify anyone; infinity when it is idle."""
        raise NotImplementedError

    def restart(self, now: float) -> None:
        """All is quiet: the clocks go on from ``now`` with empty meters."""
        raise NotImplementedError

    def advance(self, until: float) -> None:
        """Make every step that starts before ``until``; stop early when a notification sets ``pause``."""
        self.pause = False
        while not self.pause and self.step(until):
            pass


class Clock:
    """The engines of a run, and what happens beside them."""

    def __init__(self) -> None:
        self.engines: list[Engine] = []
        self.events: list[Event] = []
        """A heap."""
        self.handlers: dict[int, Callable[[Event], None]] = {}
        """What is done about each kind of event. An engine that a handler gives something to do is told to
        :meth:`touch`."""
        self.running: Engine | None = None
        """The engine that advances."""
        self.now = 0.0
        """When what happened last did, beside the engines."""
        self._due: list[float] = []
        """What each engine said last."""
        self._heap: list[tuple[float, int]] = []
        """(when, engine); an entry that the engine has changed since no longer counts."""
        self._alone = False

    def join(self, engine: Engine) -> int:
        """Another engine is there: gives its index."""
        self.engines.append(engine)
        self._due.append(inf)
        return len(self.engines) - 1

    def touch(self, index: int) -> None:
        """An engine has more to do, or less, than it said."""
        if self._alone:
            return
        self._due[index] = time = self.engines[index].earliest()
        heapq.heappush(self._heap, (time, index))

    def advance(self, index: int, until: float) -> None:
        """One engine runs on."""
        self.running = self.engines[index]
        self.running.advance(until)

    def run_until_quiet(self, sealed: bool = False) -> None:
        """Run everything to its end. sealed: no engine has anything to say to another: each runs to the next event."""
        engines, events, handlers, due, heap = self.engines, self.events, self.handlers, self._due, self._heap
        heap.clear()
        for index in range(len(self.engines)):
            self.touch(index)
        while True:
            while heap and due[heap[0][1]] != heap[0][0]:
                heapq.heappop(heap)
            first, index = heap[0] if heap else (inf, -1)
            coming = events[0][0] if events else inf
            if coming == first == inf:
                return
            if coming <= first:
                event = heapq.heappop(events)
                self.now = coming
                handlers[event[2]](event)
                continue
            heapq.heappop(heap)
            until = coming if sealed or not heap else min(coming, heap[0][0])
            self.running = engine = engines[index]
            engine.advance(max(until, first * (1 + 1e-12) + _MOMENT))
            due[index] = first = engine.earliest()
            heapq.heappush(heap, (first, index))

    def run_alone(self) -> None:
        """The same for one engine that says nothing before its clock, so that no event lies ahead of it."""
        self._alone = True
        while True:
            while self.events:
                event = heapq.heappop(self.events)
                self.now = event[0]
                self.handlers[event[2]](event)
            self.advance(0, inf)
            if not self.events:
                break
        self._alone = False
