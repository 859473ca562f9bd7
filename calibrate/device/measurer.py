"""What a run needs of a device: torch's devices have it, and the synthetic ones of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from calibrate.device.device import Device
from calibrate.device.timing import Laps
from calibrate.samples import Sample, StepSample
from inferplan.work.ops import Op


class Measurer(Protocol):
    """What a run needs of a device; tests put a device of known constants behind it."""

    device: Device
    largest: float
    """Bytes of operands that one operator may have."""

    def clock(self) -> float:
        """Seconds of a clock that only goes forward."""

    def prepare(self, seconds: float) -> None:
        """Bring the device to the state in which it is measured, ``seconds`` at most; ``device`` then tells of it."""

    def synchronize(self) -> None:
        """Wait until the device has done what it was given. Raises ``RuntimeError`` when it is lost."""

    def refusal(self, op: Op) -> str | None:
        """Why an operator of this kind and format cannot be measured; ``None`` when it can."""

    def passed_over(self) -> dict[str, str]:
        """Kernel libraries that could not be used so far, and a tool of the device's health that failed; and why."""

    def measure(self, op: Op, seconds: float) -> Sample:
        """One visit to an operator. Raises ``MemoryError`` when it does not fit."""

    def ceilings(self, seconds: float) -> Iterator[tuple[str, float]]:
        """Names (``copy``, ``read``, ``matmul.bf16``) and rates [B/s, FLOP/s]."""

    def steps(self, own: Sequence[str] = ()) -> list[StepSample]:
        """The steps of whole models to time, with no time in them yet: of ``own``, by name or path, and of others."""

    def step(self, asked: StepSample) -> StepSample:
        """One of them, timed. Raises ``MemoryError`` when it does not fit."""

    def collectives(self, seconds: float) -> Iterator[tuple[Op, Sample]]:
        """Collectives between devices, or between two processes of a CPU."""


class Timer(Protocol):
    """How calls that bring their own operands are timed: what whole models need of a device."""

    def laps(self, call: Callable[[], Any], seconds: float) -> Laps:
        """Laps of a call launched eagerly, for about ``seconds``."""

    def replays(self, call: Callable[[], Any], seconds: float) -> Laps:
        """Laps of a call captured in a graph, for about ``seconds``."""

    def free(self) -> float:
        """Bytes of memory that this process may still take."""

    def release(self) -> None:
        """Give memory that nothing uses back to the device."""
