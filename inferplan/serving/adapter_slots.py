"""LoRA adapters of one engine: which of them lie in the slots of its device, and who uses them.

As vLLM 0.20.2 does it: a request is admitted when its adapter is one of those in use or fewer are in use than there are
slots (``v1/core/sched/scheduler.py:597``), others behind it are looked at meanwhile; an adapter that lies in no slot is
copied there from the host's memory in the step that admits it, in the place of the least recently used of those that
nobody uses (``lora/model_manager.py``, ``LRUCacheLoRAModelManager``).

With several batches in flight each batch has its own limit: the scheduler counts the adapters of the requests that it
schedules, and a request in flight is not scheduled. Every stage has slots of its own, copies its own part of an adapter
when the batch reaches it, and may do so anew for each batch where those in flight name more adapters than it has slots.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferplan.serving.records import Meter
from inferplan.serving.step_times import StepTimes
from inferplan.serving.waiting import Lines


@dataclass(frozen=True, kw_only=True, eq=False)
class AdapterPool:
    """What the adapters of every engine of a run follow from.

    of: the adapter of each request. slots: adapters in device memory. stages: seconds in which each pipeline stage
    copies its part of one there. times: of steps whose requests have so many different ones.
    """

    of: Sequence[int]
    slots: int
    stages: tuple[float, ...]
    times: Callable[[int], StepTimes]

    @property
    def seconds(self) -> float:
        """Seconds in which the fullest device gets an adapter."""
        return max(self.stages)


class AdapterSlots:
    """The slots of one engine that has so many batches in flight (``lanes``)."""

    def __init__(self, pool: AdapterPool, meter: Meter, lanes: int = 1) -> None:
        self.pool, self.meter = pool, meter
        self.held: OrderedDict[int, None] = OrderedDict()
        """Adapters in slots, the least recently used first."""
        self.lanes: list[dict[int, int]] = [{} for _ in range(lanes)]
        """Of each lane the running requests of each adapter that has some."""
        self.users = self.lanes[0]
        """Those of the lane whose batch is composed."""
        self.home: dict[int, dict[int, int]] = {}
        """In which of the lanes each running request is, where there are several."""
        self.copies = 0
        """Adapters that the stages copy when the batch that is composed reaches them."""

    @property
    def staged(self) -> bool:
        """Whether several batches are in flight: each stage then copies its own part."""
        return len(self.lanes) > 1

    @property
    def crowded(self) -> bool:
        """Whether batches in flight take slots from each other."""
        return self.staged and len(set().union(*self.lanes)) > self.pool.slots

    def has_place(self, request: int) -> bool:
        """Whether a request may run now beside those of its batch."""
        return self.pool.of[request] in self.users or len(self.users) < self.pool.slots

    def seek(self, waiting: deque[int] | Lines, skipped: list[int]) -> bool:
        """Move those at the head of a queue that have no place out of it; whether somebody is left."""
        while waiting and not self.has_place(waiting[0]):
            self.meter.block("adapters")
            skipped.append(waiting.popleft())
        return bool(waiting)

    def enter(self, request: int) -> float:
        """A request runs from now on. Gives the seconds for which its step waits for its adapter: 0 where it is there
        already, and where the stages of a pipeline wait, each when the batch reaches it."""
        adapter, meter = self.pool.of[request], self.meter
        self._count(request)
        if adapter in self.held:
            meter.adapters_found += 1
            return 0.0
        self._hold(adapter)
        meter.adapters_loaded += 1
        if not self.staged:
            return self.pool.seconds
        self.copies += 1
        return 0.0

    def leave(self, request: int) -> None:
        """A request runs no longer: its adapter was used until now."""
        adapter, users = self.pool.of[request], self.home.pop(request, self.users)
        users[adapter] -= 1
        if not users[adapter]:
            del users[adapter]
        if adapter in self.held:
            self.held.move_to_end(adapter)

    def turn(self, lane: int) -> None:
        """The next batch of a lane is composed."""
        self.users = self.lanes[lane]

    def move(self, request: int) -> None:
        """The next piece of a prompt is in the batch that is composed."""
        users, adapter = self.home.get(request), self.pool.of[request]
        if users is None or users is self.users:
            return
        users[adapter] -= 1
        if not users[adapter]:
            del users[adapter]
        self._count(request)

    def fetch(self) -> None:
        """A batch is sent: the slots have the adapters of its requests, those copied anew that another batch in flight
        took the place of."""
        for adapter in self.users:
            if adapter in self.held:
                self.held.move_to_end(adapter)
            else:
                self._hold(adapter)
                self.meter.adapters_reloaded += 1
                self.copies += 1

    def copied(self) -> list[float]:
        """Seconds that each stage copies adapters for the batch that is sent; nothing is left to copy."""
        copies, self.copies = self.copies, 0
        return [copies * seconds for seconds in self.pool.stages]

    def _count(self, request: int) -> None:
        adapter = self.pool.of[request]
        self.users[adapter] = self.users.get(adapter, 0) + 1
        if self.staged:
            self.home[request] = self.users

    def _hold(self, adapter: int) -> None:
        """An adapter gets a slot, that of the least recently used one which the batch does not need."""
        if len(self.held) >= self.pool.slots:
            del self.held[next((one for one in self.held if one not in self.users), next(iter(self.held)))]
        self.held[adapter] = None
