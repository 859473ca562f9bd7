"""The device that torch runs on: kernels checked and timed, ceilings, whole models and collectives.

CPU and MPS: laps of whole calls by the wall clock (:mod:`calibrate.device.timing`). CUDA: graphs and device events
(:mod:`calibrate.device.cuda_laps`), with the device's health read while they run (:mod:`calibrate.device.health`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from calibrate.device.collectives import measure_collectives
from calibrate.device.cuda_laps import CudaLaps
from calibrate.device.device import HOST_WAYS, Device
from calibrate.device.health import Monitor
from calibrate.device.health_tools import find_tool
from calibrate.device.memory import free_memory, planned
from calibrate.device.timing import LAP, Call, Laps, wall_laps
from calibrate.device.whole_models import WholeModels, wanted
from calibrate.kernels.builders import build
from calibrate.kernels.choice import first_line, passed_over, refusal_of
from calibrate.kernels.kernel import check
from calibrate.kernels.linear import recipe
from calibrate.kernels.operands import NoKernelError, OperandPool, Operands
from calibrate.kernels.target import target_of
from calibrate.samples import WARM, Sample, StepSample
from calibrate.shapes import small
from inferplan.work.formats import find_format
from inferplan.work.ops import Op

MAX_SETS = 256
"""Sets of operands at most: smaller ones than a 256th of three caches stay in them in part, as they do in serving."""
STEADY = 0.02
"""A clock that moved by less between three readings holds still."""
WARM_UP = (4096, 64)
"""Size of the matmuls that warm a device up, and how many are issued at once: 13 ms on an H100, 0.2 s on a T4."""
CEILING_FORMATS = {
    "cuda": ("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "nvfp4"),
    "cpu": ("fp32", "bf16", "fp16", "int8"),
    "mps": ("fp32", "bf16", "fp16"),
}
CEILING_SHAPES = {
    "cuda": ((4096, 4096, 4096), (8192, 8192, 8192)),
    "cpu": ((512, 1024, 1024), (256, 2048, 2048)),
    "mps": ((2048, 2048, 2048),),
}
"""Formats and shapes (m, k, n) of the large matmuls."""
HOST_COPY = 128 << 20
"""Bytes of a copy between the host's memory and the device's: a launch takes less than a hundredth of it."""


class TorchMeasurer:
    """The device that torch runs on. block: bytes of random values of each type
    (:func:`calibrate.device.memory.block_bytes`)."""

    def __init__(self, device: Device, seed: int, block: float) -> None:
        self.device = device
        self.pool = OperandPool(device.kind, int(block), seed)
        plan = planned(device, block, free_memory(device.kind))
        self.largest = plan.operands
        self.monitor = Monitor(find_tool(device.kind))
        self._events = CudaLaps(device.cache, plan.results, self.monitor.look) if device.kind == "cuda" else None
        self._whole = WholeModels(device.kind, self)
        self._without: dict[str, str] = {}

    def clock(self) -> float:
        """Seconds of the process's monotonic clock."""
        return time.perf_counter()

    def prepare(self, seconds: float) -> None:
        """Run matmuls until the clock holds still, for ``seconds`` at most, and note how the device is set.

        A device that has been idle is cool and runs faster than one that serves. The clock that long matmuls hold is
        what a fallen one is told by (:class:`calibrate.device.health.Monitor`).
        """
        if self.device.kind == "cpu":
            return
        size, count = WARM_UP
        left, right = (torch.randn(size, size, device=self.device.kind, dtype=torch.float16) for _ in range(2))
        clocks: list[float] = []
        deadline = self.clock() + seconds
        for _ in range(1000):
            for _ in range(count):
                torch.mm(left, right)
            told = self.monitor.read_now().clock
            self.synchronize()
            clocks += [told] if told is not None else []
            still = len(clocks) >= 5 and max(clocks[-3:]) - min(clocks[-3:]) <= STEADY * clocks[-1]
            if self.clock() >= deadline or (still and self.clock() >= deadline - seconds / 2):
                break
        if clocks:
            self.monitor.steady = float(np.median(clocks[-3:]))
        told_facts = self.monitor.facts()
        driver = told_facts.pop("driver", None)
        software = self.device.software if driver is None else {"driver": driver} | self.device.software
        self.device = replace(self.device, software=software, state=told_facts)

    def refusal(self, op: Op) -> str | None:
        """Build the operator's kernel at a small size and check it against float64."""
        try:
            build(op, self.pool)
            kernel = build(small(op), self.pool)
            error = check(kernel)
        except NoKernelError as refused:
            return refusal_of(refused)
        except Exception as failed:  # optional libraries fail in any way they like (Triton: errors of its own)
            if _no_memory(failed):
                self.release()
            return f"torch cannot run it here: {first_line(failed)}"
        if not error <= kernel.tolerance:
            return f"{kernel.name} is {error:.2g} off its float64 reference, more than {kernel.tolerance:g}"
        return None

    def passed_over(self) -> dict[str, str]:
        """Kernel libraries that could not be used so far, and why; and the tool that told the device's health, when it
        failed on the way: nothing is known of the visits after that."""
        found, monitor = passed_over(self.pool) | self._without, self.monitor
        if monitor.tool is not None and monitor.failure:
            found[monitor.tool.name] = f"told of clocks and other processes until it failed: {monitor.failure}"
        return found

    def measure(self, op: Op, seconds: float) -> Sample:
        """Laps of an operator on fresh operands for about ``seconds``. Raises ``MemoryError`` when it does not fit."""
        self.monitor.begin()
        try:
            kernel = build(op, self.pool)
            sets, cold = self._sets(kernel.operands, op, seconds)
            sample = self._laps(kernel.run, sets, seconds).sample(kernel.name, kernel.library)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if _no_memory(error):
                self.release()
                raise MemoryError(first_line(error)) from None
            raise
        return replace(sample, disturbed=_joined("" if cold else WARM, sample.disturbed, self.monitor.end()))

    def release(self) -> None:
        """Give cached memory back to the device."""
        if self.device.kind == "cuda":
            torch.cuda.empty_cache()
        elif self.device.kind == "mps":
            torch.mps.empty_cache()

    def free(self) -> float:
        """Bytes of memory that this process may still take."""
        return free_memory(self.device.kind)

    def _sets(self, operands: Callable[[], Operands], op: Op, seconds: float) -> tuple[list[Operands], bool]:
        """As many sets of operands as fill the cache three times over, two at least; and whether, on a GPU, they are
        larger than the cache or as many as there may be.

        They are made in four times ``seconds`` at most. Of a block that is filled they take no time; until it is,
        kernels on fewer sets would be timed from a last-level cache that the weights of a model do not fit into.
        """
        gpu = self.device.kind == "cuda"
        size, most = max(float(op.work().bytes), 1.0), MAX_SETS
        wanted = min(int(np.ceil(3 * self.device.cache / size)), most)
        start, sets = time.perf_counter(), [operands(), operands()]
        while len(sets) < wanted and time.perf_counter() - start < 4.0 * seconds:
            sets.append(operands())
        return sets, not gpu or len(sets) == most or len(sets) * size > self.device.cache

    def synchronize(self) -> None:
        """Wait until the device has done what it was given. Raises ``RuntimeError`` when it is lost."""
        if self.device.kind == "cuda":
            torch.cuda.synchronize()
        elif self.device.kind == "mps":
            torch.mps.synchronize()

    def _laps(self, run: Call, sets: list[Operands], seconds: float) -> Laps:
        if self._events is not None:
            return self._events.laps(run, sets, seconds)
        return wall_laps(run, sets, seconds, self.synchronize, LAP[self.device.kind])

    def laps(self, call: Callable[[], Any], seconds: float) -> Laps:
        """A call that brings its own operands, launched eagerly, by the wall clock."""
        self.monitor.begin()
        laps = wall_laps(call, [()], seconds, self.synchronize, LAP[self.device.kind])
        self.monitor.look()
        return replace(laps, disturbed=self.monitor.end())

    def replays(self, call: Callable[[], Any], seconds: float) -> Laps:
        """Laps of a call captured in a graph, by device events."""
        if self._events is None:
            raise NoKernelError(f"there are no graphs on {self.device.kind}")
        self.monitor.begin()
        laps = self._events.replays(call, seconds)
        return replace(laps, disturbed=self.monitor.end())

    def ceilings(self, seconds: float) -> Iterator[tuple[str, float]]:
        """Large copies and reads, those from and to the host's memory, then the best of a few large matmuls in each
        format."""
        formats, shapes = CEILING_FORMATS[self.device.kind], CEILING_SHAPES[self.device.kind]
        each = seconds / (2 + len(formats) + (self.device.kind == "cuda"))
        half = self.pool.capacity(torch.float32) // 2 - 64
        source, target = (self.pool.typed((half,), torch.float32) for _ in range(2))
        yield "copy", self._best(target.copy_, (source,), each, 8.0 * half)
        yield "read", self._best(source.sum, (), each, 4.0 * half)
        if self.device.kind == "cuda":
            yield from self._host_rates(each)
        for name in formats:
            best = max(self._matmul_rate(name, shape, each / len(shapes)) for shape in shapes)
            if best:
                yield f"matmul.{find_format(name).math}", best

    def _host_rates(self, seconds: float) -> Iterator[tuple[str, float]]:
        """Copies between pinned memory and the device; none where what arrives is not what was sent."""
        there = self.pool.integers((HOST_COPY,), 256, torch.uint8)
        pinned, back = (torch.empty(HOST_COPY, dtype=torch.uint8, pin_memory=True) for _ in range(2))
        pinned.copy_(there)
        self.synchronize()
        here = torch.empty_like(there)
        for name, (target, source) in zip(HOST_WAYS, ((back, there), (here, pinned))):
            run = partial(target.copy_, source, non_blocking=True)
            fastest = min(wall_laps(run, [()], seconds / 2, self.synchronize, LAP[self.device.kind]).seconds)
            if bool((target.cpu() == pinned).all()):
                yield name, HOST_COPY / fastest

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
        if self._events is not None:
            return amount / self._events.fastest(run, operands, seconds)
        return amount / min(wall_laps(run, [operands], seconds, self.synchronize, LAP[self.device.kind]).seconds)

    def steps(self, own: Sequence[str] = ()) -> list[StepSample]:
        """The steps of whole models to time on this device, in the 16-bit format that it multiplies in."""
        free = min(self.device.memory, self.free() + self.pool.bytes)
        return wanted(self.device.kind, free, target_of(self.device.kind).base, own)

    def step(self, asked: StepSample) -> StepSample:
        """One of them, timed for half a second (a quarter on a CPU). The operands of operators are given back first.

        Raises ``MemoryError`` when it does not fit.
        """
        self.pool.release()
        if self._events is not None:
            self._events.release()
        return self._whole.time(asked, 0.5 if self.device.kind == "cuda" else 0.25)

    def collectives(self, seconds: float) -> Iterator[tuple[Op, Sample]]:
        """Collectives between the devices, or between two processes of a CPU; none where there is one device."""
        yield from measure_collectives(self.device, seconds, without=self._without)


def _no_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out (a library's handle may say so by its own name)."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "alloc" in text


def _joined(*words: str) -> str:
    return "; ".join(dict.fromkeys(word for word in words if word))
