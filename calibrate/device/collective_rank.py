"""One process of a group that times collectives: every message, all processes in step, laps replayed from graphs.

Whatever one process finds out that changes what comes next (a library that is not there, a wrong result, a capture
that failed, the time that is over) is agreed on by all before they go on: one that goes its own way is waited for
without end.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from calibrate.device import timing
from calibrate.kernels.builders import build
from calibrate.kernels.collectives import ALL_REDUCES, AllReduce, CollectiveKernel
from calibrate.kernels.kernel import check
from calibrate.kernels.operands import NoKernelError, OperandPool, Operands
from calibrate.samples import Sample, encode
from inferplan.units import format_bytes
from inferplan.work.formats import find_format
from inferplan.work.ops import Collective

ENVIRONMENT = ("GLOO_", "NCCL_", "RCCL_", "TORCH_", "CUDA_", "HIP_", "ROCR_")
"""Beginnings of the variables that choose devices and interfaces."""
PATTERNS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
LAPS = 7
LAP = 2e-3
"""Seconds that a lap takes at least: long against the start of a graph and against processes that begin apart."""
MOST = 50
"""Calls in one graph; shorter ones are replayed several times a lap."""
CHECKED = 1 << 16
"""Elements up to which a result is compared with float64."""
SETS = 4
USUAL_SHARE = 0.7
"""Share of the time on accelerators for the usual library; the rest is for further all-reduces."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a group of processes does: on which devices of a kind, where they meet and write, for about how long [s].

    met: how long they may take to meet [s]. environment: variables that the communication libraries read.
    """

    kind: str
    devices: tuple[int, ...]
    folder: str
    seconds: float
    met: float
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def results(self) -> Path:
        """Where the first process writes what was measured, a line each, and first that they met."""
        return Path(self.folder) / "results.jsonl"


def messages(kind: str, group: int) -> list[Collective]:
    """Messages of a kilobyte to 16 MB (CPU) or 256 MB, four times larger each."""
    fmt = find_format("bf16" if kind == "cuda" else "fp32")
    largest = 28 if kind == "cuda" else 24
    sizes = [2.0**power / fmt.width for power in range(10, largest + 1, 2)]
    return [
        Collective(name=pattern, pattern=pattern, elements=size, group=group, format=fmt, span=group)
        for pattern in PATTERNS
        for size in sizes
    ]


def run_rank(rank: int, plan: Plan) -> None:
    """Meet the others, time every message with the usual library, then all-reduces with the others that are there."""
    for name in [name for name in os.environ if name.startswith(ENVIRONMENT)]:
        del os.environ[name]  # what the server of processes began with, for a group before this one
    os.environ.update(plan.environment)
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if plan.kind == "cuda":
        torch.cuda.set_device(plan.devices[rank])
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if plan.kind == "cuda" else "gloo",
        init_method=f"file://{plan.folder}/meeting",
        rank=rank,
        world_size=len(plan.devices),
        timeout=timedelta(seconds=plan.met),
    )
    Rank(plan).measure()
    dist.destroy_process_group()


class Rank:
    """A process that has met the others."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.kind = plan, plan.kind
        block = 64 << 20 if plan.kind == "cpu" else 1 << 30
        self.pool = OperandPool(plan.kind, block, seed=0)  # equal in every process, as the references want it
        self._start = time.monotonic()

    def measure(self) -> None:
        """Every message, the small ones first; the smallest of each pattern even when that takes longer."""
        everything = sorted(messages(self.kind, len(self.plan.devices)), key=lambda op: float(op.elements))
        limit = self.plan.seconds * (USUAL_SHARE if self.kind == "cuda" else 1.0)
        self._write({"met": True})
        for place, op in enumerate(everything):
            if self._over(limit) and place >= len(PATTERNS):
                break
            self._timed(op, lambda op=op: build(op, self.pool))  # type: ignore[misc]
        if self.kind == "cuda":
            reduces = [op for op in everything if op.pattern == "all_reduce"]
            for library in ALL_REDUCES:
                self._further(library, reduces)

    def _further(self, library: Callable[[int, torch.device], AllReduce], reduces: Sequence[Collective]) -> None:
        """All-reduces of another library, where every process could set it up."""
        made: list[AllReduce] = []
        largest = int(max(float(op.elements) for op in reduces)) + len(self.plan.devices)
        why = self._attempt(lambda: made.append(library(largest, torch.device("cuda", torch.cuda.current_device()))))
        if not self._all(not why):
            self._write({"without": getattr(library, "name", "?"), "why": why or "another process could not set it up"})
            return
        for op in reduces:
            if self._over(self.plan.seconds):
                break
            self._timed(op, lambda op=op: made[0].kernel(op, self.pool))  # type: ignore[misc]

    def _timed(self, op: Collective, builder: Callable[[], Any]) -> None:
        """Time a message and write it down; a message that some process is refused, or that is wrong, is left out."""
        kernels: list[CollectiveKernel] = []
        if not self._all(not self._attempt(lambda: kernels.append(builder()))):
            return
        kernel = kernels[0]
        if float(op.elements) <= CHECKED:
            right: list[bool] = []
            self._attempt(lambda: right.append(check(kernel) <= kernel.tolerance))
            if not self._all(right == [True]):
                size = format_bytes(float(op.elements) * op.format.width)
                self._write(
                    {"without": f"{kernel.name} of {size}", "why": "some process got another result than float64"}
                )
                return
        sample = self._sample(kernel, [kernel.operands() for _ in range(SETS)])
        self._write({"op": encode(op), "sample": asdict(sample)})

    def _sample(self, kernel: CollectiveKernel, sets: list[Operands]) -> Sample:
        if self.kind != "cuda":
            calls = 3
            for _ in range(2):  # the first runs are slow: connections are made, pages are found
                usual = float(np.median([self._wall(kernel, sets, calls) for _ in range(3)]))
                calls = max(calls, self._calls(usual, 1 << 20))
            begun, before = time.perf_counter(), timing.waited()
            laps = [self._wall(kernel, sets, calls) for _ in range(LAPS)]
            waiting = (timing.waited() - before) / (time.perf_counter() - begun)
            return replace(self._summed(laps, calls, kernel, "wall"), waited=self._most([waiting])[0])
        once = self._device(lambda: [kernel.run(*sets[index % SETS]) for index in range(3)], 3)
        calls = self._calls(once, MOST)
        graph = self._captured(kernel, sets, calls)
        if graph is None:
            calls = self._calls(once, 1 << 10)
            run: Callable[[], Any] = lambda: [kernel.run(*sets[index % SETS]) for index in range(calls)]  # noqa: E731
            return self._summed([self._device(run, calls) for _ in range(LAPS)], calls, kernel, "events")
        replays = self._calls(self._device(graph.replay, 1), 1 << 10)
        laps = [self._device(lambda: [graph.replay() for _ in range(replays)], calls * replays) for _ in range(LAPS)]
        return self._summed(laps, calls * replays, kernel, "graph")

    def _calls(self, once: float, most: int) -> int:
        """Runs that make a lap long enough: the same number in every process."""
        slowest = self._most([max(once, 1e-7)])[0]
        return min(max(math.ceil(LAP / slowest), 2), most)

    def _summed(self, laps: list[float], calls: int, kernel: CollectiveKernel, method: str) -> Sample:
        """The median lap; of each the slowest process counts."""
        low, mid, high = np.quantile(self._most(laps), (0.25, 0.5, 0.75))
        return Sample(
            seconds=float(mid),
            spread=float((high - low) / mid),
            laps=LAPS,
            calls=calls,
            method=method,
            kernel=kernel.name,
            library=kernel.library,
        )

    def _wall(self, kernel: CollectiveKernel, sets: list[Operands], calls: int) -> float:
        """Seconds of a run by the wall clock, all processes beginning together."""
        dist.barrier()
        begun = time.perf_counter()
        for index in range(calls):
            kernel.run(*sets[index % SETS])
        return (time.perf_counter() - begun) / calls

    def _device(self, call: Callable[[], Any], runs: int) -> float:
        """Seconds of a run by device events; a message in the stream before them lines the devices up."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier()
        self._most([0.0], wait=False)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / runs

    def _captured(self, kernel: CollectiveKernel, sets: list[Operands], calls: int) -> torch.cuda.CUDAGraph | None:
        """A graph of so many runs, after one run of each set of operands; ``None`` when a process could not capture."""
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())

        def capture() -> None:
            with torch.cuda.stream(side):  # communicators are made at the first call, which no graph may hold
                for operands in sets:
                    kernel.run(*operands)
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            back = torch.cuda.stream(torch.cuda.current_stream())  # a capture that fails leaves its own stream current
            with back, kernel.capturing(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for index in range(calls):
                    kernel.run(*sets[index % SETS])
            graph.replay()
            torch.cuda.synchronize()

        return graph if self._all(not self._attempt(capture)) else None

    def _attempt(self, call: Callable[[], Any]) -> str:
        """Why a call failed, in a line; empty when it did not."""
        try:
            call()
        except NoKernelError as refused:
            return f"{refused.what} ({refused.because})" if refused.because else refused.what
        except Exception as failed:  # libraries built for another torch or driver fail in any way they like
            return f"{type(failed).__name__}: {next(iter(str(failed).splitlines()), '')}"[:200]
        return ""

    def _most(self, values: list[float], wait: bool = True) -> list[float]:
        """The largest of each number over all processes."""
        table = torch.tensor(values, dtype=torch.float64, device=self.kind)
        dist.all_reduce(table, op=dist.ReduceOp.MAX)
        return [float(value) for value in table.tolist()] if wait else values

    def _all(self, mine: bool) -> bool:
        """Whether something is so in every process."""
        return self._most([float(not mine)])[0] == 0.0

    def _over(self, limit: float) -> bool:
        return not self._all(time.monotonic() - self._start <= limit)

    def _write(self, record: dict[str, Any]) -> None:
        """Append a line, at once: it is kept even when a later message hangs. Only the first process writes."""
        if dist.get_rank() == 0:
            with self.plan.results.open("a", encoding="utf-8") as results:
                results.write(json.dumps(record) + "\n")
