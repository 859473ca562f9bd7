"""Timing: warm-up, laps long enough to time, operands that no cache holds, medians with spread, waiting told apart.

CPU: laps of whole calls by the wall clock; the time that threads of this process waited for a core (``schedstat``) is
read with each lap, so that a sample another program disturbed is known.
CUDA: :mod:`calibrate.device.cuda_laps`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.kernels.operands import Operands
from calibrate.samples import QUIET, Sample

LAP = {"cpu": 1e-3, "mps": 2e-2, "cuda": 1e-3}
"""Seconds a lap takes at least by the wall clock: long against a clock's resolution and a system call; on MPS against
the commit of a command buffer and the wait for it, some tenths of a millisecond; on CUDA, of eager steps only."""
MOST_CALLS = 2000
"""Calls in a lap at most."""
Call = Callable[..., Any]
"""What is timed: a call with the operands of a kernel."""


def waited() -> float:
    """Seconds that this process's threads have waited for a core since they started (Linux; elsewhere 0)."""
    total = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        try:
            total += int(task.read_bytes().split()[1])
        except (OSError, IndexError, ValueError):  # a thread that has just ended
            continue
    return total * 1e-9


@dataclass(frozen=True, kw_only=True)
class Laps:
    """Seconds of one call in each lap, and the share of each lap that a thread waited for a core."""

    seconds: list[float]
    waiting: list[float]
    calls: int
    method: str = "wall"
    host: float | None = None
    disturbed: str = ""

    def sample(self, kernel: str, library: str = "") -> Sample:
        """Their median, over the laps that nothing disturbed when there are at least three."""
        calm = [s for s, w in zip(self.seconds, self.waiting) if w <= QUIET]
        used = calm if len(calm) >= 3 else self.seconds
        low, mid, high = np.quantile(used, (0.25, 0.5, 0.75))
        share = 0.0 if len(calm) >= 3 else float(np.median(self.waiting))
        return Sample(
            seconds=float(mid),
            spread=float((high - low) / mid),
            laps=len(used),
            calls=self.calls,
            host=self.host,
            waited=share,
            method=self.method,
            kernel=kernel,
            library=library,
            disturbed=self.disturbed,
        )


def wall_laps(
    run: Call, sets: Sequence[Operands], seconds: float, sync: Callable[[], None], lap: float = LAP["cpu"]
) -> Laps:
    """Laps of at least ``lap`` by the wall clock until ``seconds`` have passed; three at least, forty at most."""
    turn = cycle(sets)
    run(*next(turn))
    sync()
    start = time.perf_counter()
    run(*next(turn))
    sync()
    once = time.perf_counter() - start
    calls = max(1, min(MOST_CALLS, round(lap / max(once, 1e-7))))
    times: list[float] = []
    waiting: list[float] = []
    deadline = start + seconds
    while len(times) < 3 or (time.perf_counter() < deadline and (len(times) < 40)):
        before, begun = waited(), time.perf_counter()
        for _ in range(calls):
            run(*next(turn))
        sync()
        took = time.perf_counter() - begun
        times.append(took / calls)
        waiting.append((waited() - before) / took)
        if time.perf_counter() - start > 20 * seconds + 5.0:
            break
    return Laps(seconds=times, waiting=waiting, calls=calls)
