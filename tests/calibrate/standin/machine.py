"""The stand-in's state: a virtual clock, one queue of device work, graphs, events and memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tests.calibrate.standin.chips import Chip
from tests.calibrate.standin.failures import Call, Failure
from tests.calibrate.standin.truth import Truth

TICK = 2.0**-40
"""Seconds of a tick (0.9 ps). A power of two: times are whole ticks, so that differences of times are exact."""
GLANCE = 5e-8
"""Seconds that reading the clock takes, so that a loop which only waits for it ends."""
REPLAY = 8e-6
"""Seconds from the launch of a graph to its first kernel."""
COUNTED = 1 << 20
"""Bytes of the smallest allocation that is counted."""


def ticks(seconds: float) -> int:
    """Seconds as whole ticks."""
    return round(seconds / TICK)


class Machine:
    """A host with a clock of its own, and a device that works through one queue behind it.

    instantiate: seconds that capturing a graph costs the host. taken: bytes that other processes hold.
    """

    def __init__(
        self, chip: Chip, truth: Truth, failures: Sequence[Failure], memory: int | None, instantiate: float
    ) -> None:
        self.chip, self.truth, self.failures = chip, truth, list(failures)
        self.memory, self.instantiate = chip.memory if memory is None else memory, instantiate
        self.taken = 0
        self.calls = 0
        self.launched: dict[str, int] = {}
        """How often each torch function was launched, by its name."""
        self.recording: list[tuple[str, str]] | None = None
        """Calls as they are made, while somebody wants to know them."""
        self.now = 0
        self._free_at = 0
        self._capturing: Graph | None = None
        self._scope = 0
        self._stores: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0
        self.default = Stream(self)
        self.current: Stream = self.default

    # The clock

    def clock(self) -> float:
        """Seconds of the virtual clock; reading it takes :data:`GLANCE`."""
        self.now += ticks(GLANCE)
        return self.now * TICK

    def pass_time(self, seconds: float) -> None:
        """The host is busy, or asleep."""
        self.now += ticks(seconds)

    # Calls

    def call(self, kind: str, name: str = "") -> None:
        """One call to the device, which may fail."""
        self.calls += 1
        if self.recording is not None:
            self.recording.append((kind, name))
        for failure in self.failures:
            failure(Call(number=self.calls, kind=kind, name=name or kind))

    def launch(self, name: str, seconds: float) -> None:
        """A torch function that computes: the host launches it, the device gets to it in its turn."""
        self.call("launch", name)
        self.launched[name] = self.launched.get(name, 0) + 1
        self.pass_time(self.chip.launch)
        if not self._scope:
            self._enqueue(seconds)

    def relaunch(self, names: Sequence[str]) -> None:
        """The launches of a call once more, without its tensors."""
        for name in names:
            self.launch(name, 0.0)

    def _enqueue(self, seconds: float) -> None:
        if self._capturing is not None:
            self._capturing.work += ticks(seconds)
        else:
            self._free_at = max(self._free_at, self.now) + ticks(seconds)

    @contextlib.contextmanager
    def operator(self, seconds: float) -> Iterator[None]:
        """What is launched inside is one operator that takes ``seconds`` altogether (its host time aside)."""
        if self._scope == 0:
            self._enqueue(seconds)
        self._scope += 1
        try:
            yield
        finally:
            self._scope -= 1
            if self._capturing is None:
                self._free_at = max(self._free_at, self.now)

    def synchronize(self, *_: Any) -> None:
        """The host waits for the device. Not permitted while a graph is captured."""
        if self._capturing is not None:
            raise torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing")
        self.call("synchronize")
        self.now = max(self.now, self._free_at)

    # Graphs

    @contextlib.contextmanager
    def capture(self, graph: Graph, *_: Any, **__: Any) -> Iterator[None]:
        """``torch.cuda.graph``. As in torch, a capture that fails at its end leaves its own stream the current one."""
        before, self.current, self._capturing = self.current, Stream(self), graph
        try:
            yield
        finally:
            self._capturing = None
            self.pass_time(self.instantiate)
            self.call("capture")
            self.current = before

    def replay(self, graph: Graph) -> None:
        """The captured work once more, :data:`REPLAY` after its launch."""
        self.call("replay")
        self.pass_time(4e-6)
        self._free_at = max(self._free_at, self.now + ticks(REPLAY)) + graph.work

    def mark(self) -> int:
        """When all that is in the queue will be done."""
        return max(self._free_at, self.now)

    @property
    def capturing(self) -> bool:
        """Whether a graph is being captured."""
        return self._capturing is not None

    # Memory

    @property
    def live(self) -> int:
        """Bytes of the allocations that are alive, of those of :data:`COUNTED` bytes and more."""
        self._stores = {key: entry for key, entry in self._stores.items() if not entry[0].expired()}
        return sum(size for _, size in self._stores.values())

    def allocated(self, tensor: torch.Tensor) -> None:
        """Count a tensor's memory. Raises ``torch.OutOfMemoryError`` when the device has no more."""
        store = tensor.untyped_storage()
        size = store.nbytes()
        if size < COUNTED:
            return
        key = store._cdata
        entry = self._stores.get(key)
        if entry is not None and not entry[0].expired():
            return
        self.call("allocate")
        live = self.live
        if self.taken + live + size > self.memory:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / 2**30:.2f} GiB. GPU 0 has a total capacity of "
                f"{self.memory / 2**30:.2f} GiB of which {(self.memory - self.taken - live) / 2**30:.2f} GiB is free."
            )
        self._stores[key] = (StorageWeakRef(store), size)
        self.peak = max(self.peak, live + size)

    def mem_get_info(self, *_: Any) -> tuple[int, int]:
        """Free and total bytes."""
        return self.memory - self.taken - self.live, self.memory


class Stream:
    """``torch.cuda.Stream``: all streams share the device's one queue."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def wait_stream(self, other: Stream) -> None:
        """Nothing: the queue is in order."""

    def wait_event(self, event: Event) -> None:
        """Nothing: the queue is in order."""

    def synchronize(self) -> None:
        """The host waits for the device."""
        self._machine.synchronize()

    def record_event(self, event: Event | None = None) -> Event:
        """The moment at which the queue is empty."""
        event = event or Event(self._machine)
        event.record(self)
        return event


class Event:
    """``torch.cuda.Event``: the moment at which what was queued before it is done."""

    def __init__(self, machine: Machine, enable_timing: bool = False) -> None:
        self._machine, self._timed = machine, enable_timing
        self._at: int | None = None

    def record(self, *_: Any) -> None:
        """Put it into the queue."""
        self._machine.call("event")
        self._machine.pass_time(1e-6)
        self._at = self._machine.mark()

    def query(self) -> bool:
        """Whether the device has come past it."""
        self._machine.clock()
        return self._at is None or self._at <= self._machine.now

    def synchronize(self) -> None:
        """The host waits for it."""
        self._machine.call("synchronize")
        self._machine.now = max(self._machine.now, self._at or 0)

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds to another one. Both must be recorded and past, and made for timing."""
        if not (self._timed and other._timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or other._at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and other.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (other._at - self._at) * TICK * 1e3


class Graph:
    """``torch.cuda.CUDAGraph``: ticks of work."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self.work = machine, 0

    def replay(self) -> None:
        """The work once more."""
        self._machine.replay(self)

    def reset(self) -> None:
        """Forget the work."""
        self.work = 0

    def pool(self) -> tuple[int, int]:
        """A handle of its memory."""
        return (0, 0)


def bound(kind: type, machine: Machine) -> Callable[..., Any]:
    """A class of this module as torch offers it: made without naming the machine."""

    class Bound(kind):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            known = {name: value for name, value in kwargs.items() if name == "enable_timing"}
            super().__init__(machine, **known)

    Bound.__name__ = kind.__name__
    return Bound
