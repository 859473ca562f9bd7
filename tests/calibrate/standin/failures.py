"""Failures to inject into the stand-in, each at the calls it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

CUDA_HINT = "CUDA kernel errors might be asynchronously reported at some other API call"


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call to the device: its number from 1 on, its kind, and the function's name.

    kind: ``launch`` (a torch function that computes), ``allocate``, ``synchronize``, ``capture`` (the end of one),
    ``replay``, ``event`` or ``collectives``.
    """

    number: int
    kind: str
    name: str


Failure = Callable[[Call], None]
"""Looks at every call to the device, and raises where it is to fail."""


def dies_after(number: int, message: str = "an illegal memory access was encountered") -> Failure:
    """A sticky error: every call after the first ``number`` raises, whatever it is, until the process ends."""

    def failure(call: Call) -> None:
        if call.number > number:
            raise torch.AcceleratorError(f"CUDA error: {message}\n{CUDA_HINT}")

    return failure


def out_of_memory(after: int, times: int = 1) -> Failure:
    """``times`` launches after the first ``after`` calls find no memory, as when a neighbour takes it for a while."""
    left = [times]

    def failure(call: Call) -> None:
        if call.kind == "launch" and call.number > after and left[0] > 0:
            left[0] -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has none free")

    return failure


def refuses(name: str, message: str = "Invalid scaling configuration.") -> Failure:
    """The library refuses every call of a function, by its name (``_scaled_mm``), with a ``RuntimeError``."""

    def failure(call: Call) -> None:
        if call.kind == "launch" and call.name == name:
            raise RuntimeError(message)

    return failure


def no_capture(times: int | None = None) -> Failure:
    """Captures of a graph fail at their end, all of them or the first ``times``."""
    left = [times]

    def failure(call: Call) -> None:
        if call.kind == "capture" and left[0] != 0:
            left[0] = None if left[0] is None else left[0] - 1
            raise torch.AcceleratorError("CUDA error: operation failed due to a previous error during capture")

    return failure


def interrupted(after: int, error: type[BaseException] = KeyboardInterrupt) -> Failure:
    """The run is killed at the first call after ``after`` calls: Ctrl-C, or ``SystemExit``."""
    done = [False]

    def failure(call: Call) -> None:
        if call.number > after and not done[0]:
            done[0] = True
            raise error

    return failure


def no_collectives(message: str = "NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)") -> Failure:
    """The processes of a collective die as they start, as ``torch.multiprocessing`` reports it."""

    def failure(call: Call) -> None:
        if call.kind == "collectives":
            raise torch.multiprocessing.ProcessRaisedException(message, 0, 0)

    return failure
