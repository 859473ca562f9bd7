"""Laps by the device's own events: calls captured in graphs, or queued behind work that hides what the host takes.

A lap is :data:`LAP` of device time, mostly one replay of a graph of so many calls, and the laps are queued one behind
another with an event between them. The host is then far ahead: launching a graph costs the device nothing but the step
from one to the next. What cannot be captured is issued behind writes of memory that last longer than the host needs for
it; laps for which they did not are told apart, because launches are in their time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle, pairwise
from math import ceil
from typing import Any

import torch

from calibrate.device.timing import Call, Laps
from calibrate.kernels.operands import Operands

LAP = 1.25e-3
"""Seconds of device time in a lap: a launch of a graph takes 5 to 12 us, so that even one in plain sight stays below a
hundredth of it."""
MOST_CALLS = 256
"""Calls in a graph at most; a lap that needs more of them replays it several times. The step from one replay to the
next takes the device a microsecond or two: less than a hundredth of so many calls, which take as much each at least."""
FEWEST, MOST = 5, 100
"""Laps in a visit."""
GUESSED = 16
"""Calls by which the time of a pass is guessed before it is captured: a capture costs the host more than a visit."""
SHORT = 0.9
"""A graph shorter than this share of :data:`LAP` is captured again with more passes, or replayed several times."""
QUEUE = 2.5e-3
"""Seconds of launches that are issued ahead at most: about 500, half of what the driver's queue takes before the host
has to wait."""
SMALLEST_FLUSH = 64 << 20
HOST_BOUND = "the host issues it more slowly than the device runs it: launches are in its time"


class Results:
    """Results of calls, kept so that the next call writes elsewhere; beyond ``most`` bytes the oldest go.

    Without it every call of a graph writes to one and the same buffer, which a cache holds: no write reaches memory.
    """

    def __init__(self, most: float) -> None:
        self.most, self.size = most, 0.0
        self._kept: deque[tuple[float, Any]] = deque()

    def keep(self, result: Any) -> None:
        """Keep one more."""
        size = _bytes(result)
        self._kept.append((size, result))
        self.size += size
        while self.size > self.most and len(self._kept) > 1:
            self.size -= self._kept.popleft()[0]


def _bytes(result: Any) -> float:
    if isinstance(result, torch.Tensor):
        return float(result.untyped_storage().nbytes())
    return sum(map(_bytes, result)) if isinstance(result, tuple | list) else 0.0


def capture(issue: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """What ``issue`` launches, as a graph.

    Raises ``torch.OutOfMemoryError``, or ``RuntimeError`` for what cannot be captured; the current stream and the
    allocator are then as they were, which torch does not see to (``torch.cuda.graph.__exit__`` ends the capture first).
    """
    graph, pool, before = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, pool=pool):
            issue()
    except BaseException as error:
        torch.cuda.set_stream(before)
        _close(pool)
        if isinstance(error.__context__, torch.OutOfMemoryError):  # the end of the capture failed because of it
            raise error.__context__ from None
        raise
    return graph


def _close(pool: Any) -> None:
    """Let the allocator leave a pool whose capture failed: until torch 2.12 or so the end of a capture forgets it."""
    device = torch.cuda.current_device()
    try:
        torch._C._cuda_endAllocateToPool(device, pool)
    except (RuntimeError, AttributeError):  # it was left already
        return
    torch._C._cuda_releasePool(device, pool)


class CudaLaps:
    """Laps on a CUDA device (or HIP by the same calls).

    cache: bytes that must pass before memory is cold. kept: bytes of results that a graph may hold. look: what is done
    while the device works and the host waits for it (a reading of its health).
    """

    def __init__(self, cache: float, kept: float, look: Callable[[], None]) -> None:
        self.cache, self.kept, self.look = cache, kept, look
        self._flush: torch.Tensor | None = None
        self._flush_time = 0.0

    def laps(self, run: Call, sets: Sequence[Operands], seconds: float) -> Laps:
        """Laps of a call on each set of operands in turn, for about ``seconds``: by graph, else by events."""
        host = self.host(run, sets)
        try:
            return self._replayed(run, sets, seconds, host)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            torch.cuda.synchronize()  # raises again when the device, not the capture, has failed
            return self._evented(run, sets, seconds, host)

    def replays(self, call: Callable[[], Any], seconds: float) -> Laps:
        """Laps of a call that brings its own operands, replayed from a graph of it alone."""

        def issue() -> None:
            call()

        graph = capture(issue)
        return self._of(graph, 1, min(self.queued(graph.replay, 2)), seconds)

    def fastest(self, run: Call, operands: Operands, seconds: float) -> float:
        """Seconds of a call in the fastest lap of eager ones."""
        once = min(self.queued(lambda: run(*operands), 3))
        calls = min(ceil(LAP / once), MOST_CALLS)

        def lap() -> None:
            for _ in range(calls):
                run(*operands)

        return min(self.queued(lap, self._count(seconds, once * calls))) / calls

    def host(self, run: Call, sets: Sequence[Operands]) -> float:
        """Seconds the host needs to issue one call, with nothing to wait for."""
        for operands in sets[:3]:
            run(*operands)
        torch.cuda.synchronize()
        count = min(len(sets), 10)
        start = time.perf_counter()
        for operands in sets[:count]:
            run(*operands)
        issued = time.perf_counter() - start
        torch.cuda.synchronize()
        return issued / count

    def queued(self, lap: Callable[[], Any], count: int) -> list[float]:
        """Seconds of each of ``count`` laps that run one behind another; one more goes before them, untimed.

        It keeps the device busy while the host issues the first lap, and has its clocks up.
        """
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        lap()
        for event in events[:-1]:
            event.record()
            lap()
        events[-1].record()
        self.look()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e-3 for begin, end in pairwise(events)]

    def _count(self, seconds: float, lap: float) -> int:
        return min(max(round(seconds / lap), FEWEST), MOST)

    def _replayed(self, run: Call, sets: Sequence[Operands], seconds: float, host: float) -> Laps:
        few = sets[:GUESSED]

        def guess() -> None:
            for operands in few:
                run(*operands)

        passes = self._passes(self._behind(guess, host * len(few))[0] / len(few) * len(sets), len(sets))
        graph = self._graph(run, sets, passes)
        once = min(self.queued(graph.replay, 2))
        more = self._passes(once / passes, len(sets))
        if once < SHORT * LAP and more > passes:
            del graph  # its memory is the next one's
            graph, once, passes = self._graph(run, sets, more), once * more / passes, more
        return self._of(graph, passes * len(sets), once, seconds, host)

    def _passes(self, once: float, sets: int) -> int:
        """Passes over the sets of operands in a graph, by the seconds of one; at least one."""
        return max(1, min(ceil(LAP / once), MOST_CALLS // sets))

    def _of(
        self, graph: torch.cuda.CUDAGraph, calls: int, once: float, seconds: float, host: float | None = None
    ) -> Laps:
        """Laps of a graph of ``calls`` calls that takes ``once`` seconds."""
        times = max(1, ceil(SHORT * LAP / once))

        def lap() -> None:
            for _ in range(times):
                graph.replay()

        calls *= times
        found = [lap / calls for lap in self.queued(lap, self._count(seconds, once * times))]
        return Laps(seconds=found, waiting=[0.0] * len(found), calls=calls, method="graph", host=host)

    def _graph(self, run: Call, sets: Sequence[Operands], passes: int) -> torch.cuda.CUDAGraph:
        side, current = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            run(*sets[0])
        current.wait_stream(side)
        results = Results(self.kept)

        def issue() -> None:
            for _ in range(passes):
                for operands in sets:
                    results.keep(run(*operands))

        return capture(issue)

    def _evented(self, run: Call, sets: Sequence[Operands], seconds: float, host: float) -> Laps:
        turn, results = cycle(sets), Results(self.kept)

        def issue(count: int) -> None:
            for _ in range(count):
                results.keep(run(*next(turn)))

        once, _ = self._behind(lambda: issue(1), host)
        calls = max(1, min(ceil(LAP / once), int(QUEUE / max(host, 1e-7)), MOST_CALLS))
        found = [self._behind(lambda: issue(calls), host * calls) for _ in range(self._count(seconds, once * calls))]
        hidden = [lap / calls for lap, ahead in found if ahead]
        times = hidden if len(hidden) >= 3 else [lap / calls for lap, _ in found]
        return Laps(
            seconds=times,
            waiting=[0.0] * len(times),
            calls=calls,
            method="events",
            host=host,
            disturbed="" if len(hidden) >= 3 else HOST_BOUND,
        )

    def _behind(self, issue: Callable[[], None], host: float) -> tuple[float, bool]:
        """Seconds of what is issued behind writes of memory, and whether all of it was issued while they ran.

        ``host``: seconds that the host is expected to need. The writes also make every cache cold.
        """
        flush, each = self._flushes()
        count = min(ceil((2.0 * host + 1e-4) / each), 256)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started = time.perf_counter()
        for _ in range(count):
            flush.fill_(1)
        begin.record()
        issue()
        end.record()
        issued = time.perf_counter() - started
        self.look()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e-3, issued < count * each

    def _flushes(self) -> tuple[torch.Tensor, float]:
        """Memory of two caches to write over, and the seconds that it takes."""
        if self._flush is None:
            size = max(int(2 * self.cache), SMALLEST_FLUSH)
            self._flush = memory = torch.empty(size, dtype=torch.int8, device="cuda")
            self._flush_time = min(self.queued(lambda: memory.fill_(1), 4))
        return self._flush, self._flush_time

    def release(self) -> None:
        """Give back the memory that is kept for flushes."""
        self._flush = None
