"""LoRA adapters of one engine: which of them lie in the slots of its device, who uses them, what a step takes by them.

As vLLM 0.20.2 does it: a request is admitted when its adapter is one of those in use or fewer are in use than there are
slots (``v1/core/sched/scheduler.py:597``), others behind it are looked at meanwhile; an adapter that lies in no slot is
copied there from the host's memory in the step that admits it, in the place of the least recently used of those that
nobody uses (``lora/model_manager.py``, ``LRUCacheLoRAModelManager``).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferplan.serving.records import Meter
from inferplan.serving.step_times import Chunk, StepTimes
from inferplan.serving.waiting import Lines


@dataclass(frozen=True, kw_only=True, eq=False)
class AdapterPool:
    """What the adapters of every engine of a run follow from.

    of: the adapter of each request. slots: adapters in device memory. seconds: to copy one there. times: of steps whose
    requests have so many different ones.
    """

    of: Sequence[int]
    slots: int
    seconds: float
    times: Callable[[int], StepTimes]


class AdapterSlots:
    """The slots of one engine."""

    def __init__(self, pool: AdapterPool, meter: Meter) -> None:
        self.pool, self.meter = pool, meter
        self.held: OrderedDict[int, None] = OrderedDict()
        """Adapters in slots, the least recently used first."""
        self.users: dict[int, int] = {}
        """Running requests of each adapter that has some."""

    def has_place(self, request: int) -> bool:
        """Whether a request may run now beside those that do."""
        return self.pool.of[request] in self.users or len(self.users) < self.pool.slots

    def seek(self, waiting: deque[int] | Lines, skipped: list[int]) -> bool:
        """Move those at the head of a queue that have no place out of it; whether somebody is left."""
        while waiting and not self.has_place(waiting[0]):
            self.meter.block("adapters")
            skipped.append(waiting.popleft())
        return bool(waiting)

    def enter(self, request: int) -> float:
        """A request runs from now on. Gives the seconds until its adapter is there: 0 where it is already."""
        adapter, held, meter = self.pool.of[request], self.held, self.meter
        self.users[adapter] = self.users.get(adapter, 0) + 1
        if adapter in held:
            meter.adapters_found += 1
            return 0.0
        if len(held) >= self.pool.slots:
            del held[next(one for one in held if one not in self.users)]
        held[adapter] = None
        meter.adapters_loaded += 1
        return self.pool.seconds

    def leave(self, request: int) -> None:
        """A request runs no longer: its adapter was used until now."""
        adapter = self.pool.of[request]
        self.users[adapter] -= 1
        if not self.users[adapter]:
            del self.users[adapter]
        self.held.move_to_end(adapter)


class AdapterTimes:
    """Times of the steps of an engine, by the adapters that its requests have at that moment."""

    def __init__(self, pool: AdapterPool, slots: AdapterSlots) -> None:
        self.pool, self.slots = pool, slots
        self.between: dict[int, tuple[StepTimes, StepTimes, float]] = {}
        """By number of adapters: the times at the numbers below and above that are tabulated, and the way between."""

    def _now(self) -> tuple[StepTimes, StepTimes, float]:
        count = len(self.slots.users)
        if count not in self.between:
            low, high = around(count, self.pool.slots)
            self.between[count] = self.pool.times(low), self.pool.times(high), (count - low) / max(high - low, 1)
        return self.between[count]

    def decode(self, batch: int, context: float) -> float:
        """As :meth:`StepTimes.decode`."""
        low, high, share = self._now()
        time = low.decode(batch, context)
        return time if not share else time + (high.decode(batch, context) - time) * share

    def mixed(self, batch: int, context: float, chunk: Chunk) -> float:
        """As :meth:`StepTimes.mixed`."""
        low, high, share = self._now()
        time = low.mixed(batch, context, chunk)
        return time if not share else time + (high.mixed(batch, context, chunk) - time) * share


def around(count: int, slots: int) -> tuple[int, int]:
    """The tabulated numbers of adapters next to one: 0 to 16, 18, 20, ..., 32, 36, ..., at most ``slots``."""
    low = high = 0
    while high < count:
        low, high = high, min(high + (1 << max(high.bit_length() - 4, 0)), slots)
    return (high, high) if high == count else (low, high)
