"""A device stand-in: every branch for CUDA, ROCm and MPS runs without a device, up to the kernel itself.

    with standin("h200-sxm") as device:                      # a whole 450 s budget takes seconds
        execute(Options(device="cuda", budget=450.0, out=out))
    with standin("a100-80gb-sxm", dies_after(5000), memory=40 << 30) as device: ...

What it is: torch functions that ask for the device run on ``meta`` (shapes, types and most contracts of kernels are
checked for real, values are not known: a comparison with a reference passes when its shapes fit); ``torch.cuda`` (or
``torch.mps``) has one device with the chip's properties, streams, events, graphs and memory; ``time`` runs on a
virtual clock. An operator built by ``calibrate.kernels.builders.build`` takes what the truth says (its price under
``Fit(math=0.7, memory=0.8, overhead=3e-6, sharpness=4)`` unless a test brings its own), any other torch function its
roofline at the same shares; a launch costs the host 4 us (40 on MPS), a replay 8 us before its first kernel, a capture
``instantiate`` seconds. Everything is exact and repeatable: equal calls give equal times.

Everything is undone at the end of the ``with``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

from calibrate.kernels import builders
from calibrate.kernels.kernel import Kernel
from calibrate.kernels.operands import OperandPool
from inferplan.catalog.files import load_hardware
from inferplan.devices.constants import Calibration
from inferplan.work.ops import Op
from tests.calibrate.standin.chips import CHIPS, SEVEN, Chip
from tests.calibrate.standin.failures import (
    Failure,
    dies_after,
    interrupted,
    no_capture,
    no_collectives,
    out_of_memory,
    refuses,
)
from tests.calibrate.standin.machine import Event, Graph, Machine, Stream, bound
from tests.calibrate.standin.tensors import OnDevice, Repeated
from tests.calibrate.standin.truth import KNOWN, Truth

__all__ = [
    "CHIPS",
    "KNOWN",
    "SEVEN",
    "Chip",
    "Failure",
    "Machine",
    "dies_after",
    "interrupted",
    "no_capture",
    "no_collectives",
    "out_of_memory",
    "refuses",
    "standin",
]
_REAL_GENERATOR = torch.Generator


@contextlib.contextmanager
def standin(
    name: str,
    *failures: Failure,
    memory: int | None = None,
    truth: Calibration | None = None,
    instantiate: float = 0.25,
    launch: float | None = None,
    devices: int = 1,
    layers: int | None = 2,
    modules: dict[str, ModuleType | None] | None = None,
) -> Iterator[Machine]:
    """Put a stand-in in the place of torch's device. name: a key of :data:`CHIPS`.

    failures: what fails at which call. memory: bytes, if not the chip's. truth: constants of its operators.
    instantiate, launch: virtual seconds of a capture (on MPS, which has no graphs: of making a kernel) and of launching
    a kernel (the chip's, if ``None``); longer ones make fewer visits of a budget, and so a quicker test. devices: how
    many torch sees; starting a group of them fails, since processes would be real. layers: that whole models are cut
    to, since each costs CPU time in every step; ``None`` leaves them whole. modules: further modules by their import
    name (a fake ``pynvml``), ``None`` for one that is not there; if not given, there is neither NVML nor amdsmi.
    """
    chip = CHIPS[name] if launch is None else dataclasses.replace(CHIPS[name], launch=launch)
    machine = Machine(chip, Truth(load_hardware(name), truth), failures, memory, instantiate)
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        _patch_time(stack, machine)
        _patch_builders(stack, machine)
        (_patch_cuda if chip.kind == "cuda" else _patch_mps)(stack, machine, devices)
        if layers is not None:
            _cut_models(stack, layers)
        absent: dict[str, ModuleType | None] = {"pynvml": None, "amdsmi": None}
        _put_modules(stack, absent | (modules or {}))
        _set(stack, torch, "Generator", _Generator)
        _set(stack, torch, "compile", lambda function=None, **_: function or (lambda f: f))
        # Meta kernels of packed weights ask it of the fake tensors of a compiler (torch/_meta_registrations.py).
        _set(stack, torch.Tensor, "fake_device", SimpleNamespace(type=chip.kind))
        stack.enter_context(OnDevice(machine))
        yield machine


class _Generator:
    """``torch.Generator`` of the device: a CPU's."""

    def __new__(cls, device: Any = None) -> Any:
        return _REAL_GENERATOR("cpu")


def _put_modules(stack: contextlib.ExitStack, given: dict[str, ModuleType | None]) -> None:
    """Modules by name, until the stack is left. What torch imports meanwhile stays: it cannot be imported twice."""
    table: dict[str, Any] = sys.modules  # type: ignore[assignment]
    for name, value in given.items():
        before = table.get(name, table)
        stack.callback(lambda n=name, b=before: table.pop(n, None) if b is table else table.__setitem__(n, b))
        table[name] = value


def _set(stack: contextlib.ExitStack, target: Any, name: str, value: Any) -> None:
    stack.enter_context(mock.patch.object(target, name, value, create=True))


def _patch_time(stack: contextlib.ExitStack, machine: Machine) -> None:
    for name in ("perf_counter", "monotonic"):
        _set(stack, time, name, machine.clock)
        _set(stack, time, f"{name}_ns", lambda: round(machine.clock() * 1e9))
    _set(stack, time, "sleep", machine.pass_time)
    from calibrate.device import timing

    _set(stack, timing, "waited", lambda: 0.0)


def _patch_builders(stack: contextlib.ExitStack, machine: Machine) -> None:
    """Every kernel of an operator takes what the truth says of the operator, and runs on ``meta`` once a shape."""

    def timed(builder: Callable[[Any, OperandPool], Kernel]) -> Callable[[Any, OperandPool], Kernel]:
        def build(op: Op, pool: OperandPool) -> Kernel:
            kernel = builder(op, pool)
            if machine.chip.kind == "mps":
                machine.pass_time(machine.instantiate)
            seconds = machine.truth.operator(op)
            if seconds is None:
                return kernel

            run = Repeated(machine, kernel.run, seconds)
            return dataclasses.replace(kernel, run=run)

        return build

    wrapped = {kind: timed(builder) for kind, builder in builders.KERNELS.items()}
    stack.enter_context(mock.patch.dict(builders.KERNELS, wrapped))


def _cut_models(stack: contextlib.ExitStack, layers: int) -> None:
    from calibrate.device import whole_models

    find = whole_models.find_model
    _set(stack, whole_models, "find_model", lambda name: whole_models.shortened(find(name), layers))


def _patch_cuda(stack: contextlib.ExitStack, machine: Machine, devices: int) -> None:
    chip, cuda = machine.chip, torch.cuda
    properties = SimpleNamespace(
        name=chip.product,
        total_memory=machine.memory,
        multi_processor_count=chip.units,
        L2_cache_size=chip.l2,
        major=chip.capability[0],
        minor=chip.capability[1],
        gcnArchName=chip.arch or None,
        uuid="00000000-0000-0000-0000-000000000001",
        pci_bus_id=1,
        warp_size=64 if chip.arch else 32,
    )
    if not chip.arch:
        del properties.gcnArchName
    _set(stack, torch.version, "cuda", None if chip.arch else "13.0")
    _set(stack, torch.version, "hip", "7.0.51831" if chip.arch else None)
    offered: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: devices,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_properties": lambda device=0: properties,
        "get_device_capability": lambda device=0: chip.capability,
        "get_device_name": lambda device=0: chip.product,
        "is_bf16_supported": lambda including_emulation=True: including_emulation or chip.capability >= (8, 0),
        "is_initialized": lambda: True,
        "init": lambda: None,
        "synchronize": machine.synchronize,
        "empty_cache": lambda: None,
        "mem_get_info": machine.mem_get_info,
        "memory_allocated": lambda device=0: machine.live,
        "memory_reserved": lambda device=0: machine.live,
        "max_memory_allocated": lambda device=0: machine.peak,
        "reset_peak_memory_stats": lambda device=0: setattr(machine, "peak", machine.live),
        "current_stream": lambda device=None: machine.current,
        "default_stream": lambda device=None: machine.default,
        "stream": lambda stream: _on(machine, stream),
        "set_stream": lambda stream: setattr(machine, "current", stream),
        "is_current_stream_capturing": lambda: machine.capturing,
        "graph_pool_handle": lambda: (0, 0),
        "graph": machine.capture,
        "_sleep": lambda cycles: machine.launch("_sleep", cycles / 1.5e9),
        "Stream": bound(Stream, machine),
        "Event": bound(Event, machine),
        "CUDAGraph": bound(Graph, machine),
    }
    for name, value in offered.items():
        _set(stack, cuda, name, value)
    _set(stack, torch.multiprocessing, "start_processes", lambda *_, **__: _spawned(machine))


@contextlib.contextmanager
def _on(machine: Machine, stream: Stream) -> Iterator[None]:
    before, machine.current = machine.current, stream
    try:
        yield
    finally:
        machine.current = before


def _spawned(machine: Machine) -> Any:
    machine.call("collectives")
    raise RuntimeError("the stand-in starts no processes: a group of devices needs devices")


def _patch_mps(stack: contextlib.ExitStack, machine: Machine, devices: int) -> None:
    for name, value in (
        ("is_available", True),
        ("get_core_count", machine.chip.units),
        ("get_name", machine.chip.product),
    ):
        _set(stack, torch.backends.mps, name, lambda value=value: value)
    _set(stack, platform, "processor", lambda: "arm")
    _set(stack, platform, "machine", lambda: "arm64")
    offered: dict[str, Any] = {
        "synchronize": machine.synchronize,
        "empty_cache": lambda: None,
        "recommended_max_memory": lambda: machine.memory,
        "current_allocated_memory": lambda: machine.live,
        "driver_allocated_memory": lambda: machine.taken + machine.live,
        "device_count": lambda: 1,
        "Event": bound(Event, machine),
    }
    for name, value in offered.items():
        _set(stack, torch.mps, name, value)
