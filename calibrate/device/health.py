"""What a device does beside what is timed: its clocks, power and temperature, and other programs that compute on it.

NVML (``pynvml``) or ``nvidia-smi`` on NVIDIA, ``amdsmi`` or ``rocm-smi`` on AMD, whichever answers first; macOS lets
no program without privileges read a GPU's clocks. Readings are taken while laps run, so that they show the clock under
load, and never take more than :data:`SHARE` of the time. What cannot be read is said, never assumed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

SHARE = 0.01
"""Share of the time that readings may take; ten times that while something disturbs the device."""
EVERY = 0.05
"""Seconds between two readings at least; between two looks at the processes, twenty times that."""
FELL = 0.85
"""A clock below this share of the one that long matmuls held has fallen. Between kernels of one power limit it moves by
less: memory-bound ones run faster than matmuls, matmuls of other formats within some per cent of each other."""
BUSY = 0.05
"""Share of the device that another process must use to count as computing."""
HARD = frozenset({"hardware slowdown", "hardware too hot", "too hot", "power brake"})
"""Reasons that disturb whatever the clock is; a power cap does so only when the clock falls below what it was. So does
AMD's "throttled", in which a power cap is one of the reasons, and which MI300X never tells (amdgpu, smu_v13_0_6)."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One look at a device: clocks in Hz, power in W, temperature in degrees Celsius; ``None`` for what is not told.

    slowed: why the clock is not higher, in words.
    """

    clock: float | None = None
    memory_clock: float | None = None
    power: float | None = None
    temperature: float | None = None
    slowed: tuple[str, ...] = ()


class Tool(Protocol):
    """A way to ask a device's driver. Its methods may raise anything: a tool that fails is not asked again."""

    name: str

    def facts(self) -> dict[str, str]:
        """What does not change during a run, in words: driver, power cap, highest clock, ECC, MIG."""

    def read(self) -> Reading:
        """One look at the clocks."""

    def processes(self) -> Mapping[int, float | None]:
        """The programs on the device by process number, and the share of it that each uses (``None``: not told)."""


def others(found: Mapping[int, float | None], own: int) -> str:
    """Which other programs compute, in words; empty when none does.

    In a container the numbers may be the host's, so that this program is one of them without being named: then one
    more than itself must be there, or busy.
    """
    rest = {pid: use for pid, use in found.items() if pid != own}
    named = own in found
    busy = {pid: use for pid, use in rest.items() if use is None or use > BUSY}
    if len(busy) <= (0 if named else 1):
        return ""
    numbers = ", ".join(map(str, sorted(busy)))
    if not named:
        return f"more than one process computes ({numbers})"
    if all(use is None for use in busy.values()):
        return f"another process ({numbers}) is on the device, and whether it computes is not told"
    return f"another process ({numbers}) computes"


class Monitor:
    """Watches a device during visits and says what disturbed them.

    tool: ``None`` where nothing can be read. clock: seconds, of a clock that only goes forward (the process's).
    """

    def __init__(self, tool: Tool | None, clock: Callable[[], float] | None = None) -> None:
        self.tool, self._clock = tool, clock or time.perf_counter
        self.failure = ""
        self.steady: float | None = None
        """The clock that long matmuls held [Hz]: what a fallen one is told by."""
        self.last = Reading()
        self._words: tuple[str, ...] = ()
        self._seen: dict[str, None] = {}
        self._others = ""
        self._next = self._next_processes = -float("inf")

    def facts(self) -> dict[str, str]:
        """How the device is set, in words, and who said so."""
        told: dict[str, str] = {}
        if self.tool is not None and not self.failure:
            try:
                told = self.tool.facts() | {"read by": self.tool.name}
            except Exception as error:  # a driver's own errors, of types that only its module knows
                self._fail(error)
        if self.tool is None:
            return {"read by": "nothing: clocks, throttling, power and other processes are unknown"}
        if self.failure:
            told["read by"] = f"{self.tool.name}, until it failed: {self.failure}"
        if self.steady is not None:
            told |= {"clock of long matmuls": f"{self.steady / 1e6:.0f} MHz"} | self._under_load()
        return told

    def _under_load(self) -> dict[str, str]:
        """What the last reading tells beside the clock: that of the end of the warm-up when a run asks for it."""
        seen = self.last
        told = {
            "memory clock then": None if seen.memory_clock is None else f"{seen.memory_clock / 1e6:.0f} MHz",
            "power then": None if seen.power is None else f"{seen.power:.0f} W",
            "temperature then": None if seen.temperature is None else f"{seen.temperature:.0f} C",
        }
        return {name: value for name, value in told.items() if value is not None}

    def begin(self) -> None:
        """A visit begins: what is known now counts for it until something newer is."""
        self._seen = {}

    def look(self) -> None:
        """Read the device if it is time to: between issuing work and waiting for it, so that it is busy."""
        if self.tool is None or self.failure or self._clock() < self._next:
            return
        began = self._clock()
        try:
            self.last = self.tool.read()
            if began >= self._next_processes:
                self._others = others(self.tool.processes(), os.getpid())
                self._next_processes = began + 20 * EVERY
        except Exception as error:
            self._fail(error)
            return
        self._words = self._judged(self.last)
        self._seen |= dict.fromkeys(self._words)
        now = self._clock()
        self._next = now + max(EVERY, (now - began) / (10 * SHARE if self._words else SHARE))

    def end(self) -> str:
        """What disturbed the visit, in words; empty when nothing is known to have."""
        words = self._seen or dict.fromkeys(self._words)
        return "; ".join(words)

    def read_now(self) -> Reading:
        """A reading whatever the time since the last, for the warm-up."""
        self._next = -float("inf")
        self.look()
        return self.last

    def _judged(self, seen: Reading) -> tuple[str, ...]:
        words = []
        why = f": {', '.join(seen.slowed)}" if seen.slowed else ""
        if seen.clock is not None and self.steady is not None and seen.clock < FELL * self.steady:
            words.append(f"clocks fell to {seen.clock / 1e6:.0f} of {self.steady / 1e6:.0f} MHz{why}")
        elif HARD & set(seen.slowed):
            words.append(f"the device slowed itself down: {', '.join(sorted(HARD & set(seen.slowed)))}")
        if self._others:
            words.append(self._others)
        return tuple(words)

    def _fail(self, error: Exception) -> None:
        self.failure = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"[:200]
        self._words = ()
