"""Timing: warm-up, laps long enough to time, operands that no cache holds, medians with spread, waiting told apart.

CPU: laps of whole calls by the wall clock; the time that threads of this process waited for a core (``schedstat``) is
read with each lap, so that a sample another program disturbed is known.

CUDA: the calls of a lap are captured in a graph
and its replays timed by device events; what cannot be captured is timed by events behind a flush that keeps the device
busy while the host issues the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np
import torch

from calibrate.device.collectives import measure_collectives
from calibrate.device.device import Device
from calibrate.device.timing import Call, Laps, wall_laps
from calibrate.device.whole_models import WholeModels, wanted
from calibrate.kernels.builders import build
from calibrate.kernels.kernel import check
from calibrate.kernels.linear import recipe
from calibrate.kernels.operands import NoKernelError, OperandPool, Operands, fill_rate
from calibrate.samples import Sample, StepSample
from calibrate.shapes import small
from inferplan.work.formats import find_format
from inferplan.work.ops import Op

MAX_SETS = 256
FILL_SHARE = 0.1
"""Share of a run's time in which a CPU could fill one block of operands."""
SMALLEST_BLOCK = 64 << 20
"""Bytes of the smallest block: it holds two operands of 32 MB."""
CEILING_FORMATS = {
    "cuda": ("fp32", "tf32", "bf16", "fp16", "fp8", "int8"),
    "cpu": ("fp32", "bf16", "fp16", "int8"),
    "mps": ("fp32", "bf16", "fp16"),
}
CEILING_SHAPES = {
    "cuda": ((4096, 4096, 4096), (8192, 8192, 8192)),
    "cpu": ((512, 1024, 1024), (256, 2048, 2048)),
    "mps": ((2048, 2048, 2048),),
}
"""Formats and shapes (m, k, n) of the large matmuls."""


def block_bytes(device: Device, budget: float, short: bool = False) -> float:
    """Bytes of random values of each type: eight caches' worth at least (four in a short run), 8 GiB at most.

    On a CPU never more than is made in :data:`FILL_SHARE` of ``budget`` [s]: a virtual machine of two cores may report
    the cache of its whole host, and fresh memory may come slowly, so that making operands would be all that is done.
    """
    if short:
        size = 4.0 * device.cache
    else:
        part = {"cuda": 0.05, "mps": 0.05, "cpu": 0.02}[device.kind] * device.memory
        size = min(max(part, 8 * device.cache, 128 << 20), 8 << 30)
    if device.kind != "cpu":
        return size
    return min(size, max(FILL_SHARE * budget * fill_rate(device.kind), SMALLEST_BLOCK))


class TorchMeasurer:
    """The device that torch runs on. block: bytes of random values of each type (:func:`block_bytes`)."""

    def __init__(self, device: Device, seed: int, block: float) -> None:
        self.device, size = device, block
        self.pool = OperandPool(device.kind, int(size), seed)
        self.largest = 0.15 * device.memory if device.kind == "cuda" else size / 2
        self._whole = WholeModels(device.kind, self)
        self._flush: torch.Tensor | None = None

    def clock(self) -> float:
        """Seconds of the process's monotonic clock."""
        return time.perf_counter()

    def synchronize(self) -> None:
        """Wait until the device has done what it was given. Raises ``RuntimeError`` when it is lost."""
        self._sync()

    def refusal(self, op: Op) -> str | None:
        """Build the operator's kernel at a small size and check it against float64."""
        try:
            build(op, self.pool)
            kernel = build(small(op), self.pool)
            error = check(kernel)
        except NoKernelError as refused:
            return refused.what
        except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError) as failed:
            return f"torch cannot run it here: {_first_line(failed)}"
        if not error <= kernel.tolerance:
            return f"{kernel.name} is {error:.2g} off its float64 reference, more than {kernel.tolerance:g}"
        return None

    def measure(self, op: Op, seconds: float) -> Sample:
        """Laps of an operator on fresh operands for about ``seconds``. Raises ``MemoryError`` when it does not fit."""
        try:
            kernel = build(op, self.pool)
            sets = self._sets(kernel.operands, op, seconds)
            return self._laps(kernel.run, sets, seconds).sample(kernel.name, kernel.library)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            text = str(error).lower()
            if isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "alloc" in text:
                self.release()
                raise MemoryError(_first_line(error)) from None
            raise

    def release(self) -> None:
        """Give cached memory back to the device."""
        if self.device.kind == "cuda":
            torch.cuda.empty_cache()

    def _sets(self, operands: Callable[[], Operands], op: Op, seconds: float) -> list[Operands]:
        """As many sets of operands as fill the cache three times over; two at least, in half of ``seconds`` at most."""
        size = max(float(op.work().bytes), 1.0)
        wanted = min(int(np.ceil(3 * self.device.cache / size)), MAX_SETS)
        start, sets = time.perf_counter(), [operands(), operands()]
        while len(sets) < wanted and time.perf_counter() - start < seconds / 2:
            sets.append(operands())
        return sets

    def _sync(self) -> None:
        if self.device.kind == "cuda":
            torch.cuda.synchronize()
        elif self.device.kind == "mps":
            torch.mps.synchronize()

    def _laps(self, run: Call, sets: list[Operands], seconds: float) -> Laps:
        if self.device.kind != "cuda":
            return wall_laps(run, sets, seconds, self._sync)
        host = self._host(run, sets)
        try:
            return self._replayed(run, sets, seconds, host)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            torch.cuda.synchronize()
            return self._evented(run, sets, seconds, host)

    def _host(self, run: Call, sets: list[Operands]) -> float:
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

    def _replayed(self, run: Call, sets: list[Operands], seconds: float, host: float) -> Laps:
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run(*sets[0])
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            for operands in sets:
                run(*operands)
        graph.replay()
        torch.cuda.synchronize()
        times = self._events(graph.replay, seconds, len(sets))
        return Laps(seconds=times, waiting=[0.0] * len(times), calls=len(sets), method="graph", host=host)

    def _events(self, call: Callable[[], Any], seconds: float, calls: int, flush: bool = False) -> list[float]:
        """Seconds of one call by device events, over as many laps as the time allows (five at least)."""
        times: list[float] = []
        deadline = time.perf_counter() + seconds
        while len(times) < 5 or (time.perf_counter() < deadline and len(times) < 100):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if flush:
                self._flushed()
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e-3 / calls)
        return times

    def _evented(self, run: Call, sets: list[Operands], seconds: float, host: float) -> Laps:
        turn = cycle(sets)
        times = self._events(lambda: run(*next(turn)), seconds, 1, flush=True)
        return Laps(seconds=times, waiting=[0.0] * len(times), calls=1, method="events", host=host)

    def _flushed(self) -> None:
        """Overwrite four caches' worth of memory: it also keeps the device busy while the host issues what follows."""
        if self._flush is None:
            self._flush = torch.empty(int(4 * self.device.cache), dtype=torch.int8, device=self.device.kind)
        self._flush.fill_(1)

    def laps(self, call: Callable[[], Any], seconds: float) -> Laps:
        """A call that brings its own operands, launched eagerly, by the wall clock."""
        return wall_laps(call, [()], seconds, self._sync)

    def replays(self, call: Callable[[], Any], seconds: float) -> list[float]:
        """Seconds of each replay of a call captured in a graph."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        graph.replay()
        torch.cuda.synchronize()
        return self._events(graph.replay, seconds, 1)

    def ceilings(self, seconds: float) -> Iterator[tuple[str, float]]:
        """Large copies and reads, then the best of a few large matmuls in each format."""
        formats, shapes = CEILING_FORMATS[self.device.kind], CEILING_SHAPES[self.device.kind]
        each = seconds / (2 + len(formats))
        half = self.pool.capacity(torch.float32) // 2 - 64
        source, target = (self.pool.typed((half,), torch.float32) for _ in range(2))
        yield "copy", self._best(target.copy_, (source,), each, 8.0 * half)
        yield "read", self._best(source.sum, (), each, 4.0 * half)
        for name in formats:
            best = max(self._matmul_rate(name, shape, each / len(shapes)) for shape in shapes)
            if best:
                yield f"matmul.{find_format(name).math}", best

    def _matmul_rate(self, name: str, shape: tuple[int, int, int], seconds: float) -> float:
        m, k, n = shape
        fmt = find_format(name)
        output = fmt if fmt.bits >= 16 else find_format("bf16")
        try:
            linear = recipe(fmt, fmt, output, self.pool)
            operands = (linear.input(m, k), linear.weight(n, k))
            return self._best(linear.apply, operands, seconds, 2.0 * m * k * n)
        except (NoKernelError, RuntimeError):
            return 0.0

    def _best(self, run: Call, operands: Operands, seconds: float, amount: float) -> float:
        """The rate of the fastest lap: a ceiling is what can be reached, not what usually is."""
        if self.device.kind == "cuda":
            for _ in range(3):
                run(*operands)
            return amount / min(self._events(lambda: run(*operands), seconds, 1))
        return amount / min(wall_laps(run, [operands], seconds, self._sync).seconds)

    def steps(self) -> list[StepSample]:
        """The steps of whole models to time on this device."""
        return wanted(self.device.kind, self.device.memory)

    def step(self, asked: StepSample) -> StepSample:
        """One of them, timed for half a second (a quarter on a CPU)."""
        return self._whole.time(asked, 0.5 if self.device.kind == "cuda" else 0.25)

    def collectives(self, seconds: float) -> Iterator[tuple[Op, Sample]]:
        """Collectives between the devices, or between two processes of a CPU; none where there is one device."""
        yield from measure_collectives(self.device, seconds)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]
