"""Collectives for real: one process for each device (NCCL), or two processes of a CPU (gloo)."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from calibrate.device.device import Device
from calibrate.kernels.builders import build
from calibrate.kernels.kernel import check
from calibrate.kernels.operands import NoKernelError, OperandPool
from calibrate.samples import Sample, decode, encode
from inferplan.work.formats import find_format
from inferplan.work.ops import Collective, Op

PATTERNS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
LAPS = 7
MEETING = 120.0
"""Seconds in which the processes must have started and met: each imports torch, which is slow on a busy machine."""
HANGING = 60.0
"""Seconds beyond three times the asked ones after which processes that have met are taken to hang."""


def world_size(device: Device) -> int:
    """How many processes take part; 1 when there is nothing to measure."""
    if device.kind == "cuda":
        return int(torch.cuda.device_count())
    return 2 if device.kind == "cpu" and dist.is_available() else 1


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


def measure_collectives(device: Device, seconds: float) -> Iterator[tuple[Op, Sample]]:
    """Time every message between the processes, within about ``seconds`` once they have met.

    The smallest message of each pattern is timed even if that takes longer. Nothing where there is one device.
    """
    group = world_size(device)
    if group < 2:
        return
    from torch import multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.spawn(_worker, (device.kind, group, folder, seconds), nprocs=group, join=False)
        results = Path(folder) / "results.jsonl"
        met, deadline = False, time.monotonic() + MEETING
        while not context.join(timeout=1.0):
            if not met and results.is_file():
                met, deadline = True, time.monotonic() + 3 * seconds + HANGING
            if time.monotonic() > deadline:
                for process in context.processes:
                    process.terminate()
                break
        for line in results.read_text().splitlines() if results.is_file() else []:
            record = json.loads(line)
            yield decode(record["op"]), Sample(**record["sample"])


def _worker(rank: int, kind: str, group: int, folder: str, seconds: float) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if kind == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=group
    )
    pool = OperandPool(
        kind, 64 << 20 if kind == "cpu" else 1 << 30, seed=0
    )  # equal on every rank, as the references want it
    results = (Path(folder) / f"results{'' if rank == 0 else rank}.jsonl").open("w", encoding="utf-8")
    start = time.monotonic()
    for index, op in enumerate(sorted(messages(kind, group), key=lambda m: float(m.elements))):
        over = torch.tensor([float(time.monotonic() - start > seconds)], device=kind)
        dist.all_reduce(over, op=dist.ReduceOp.MAX)  # every process stops at the same message
        if over.item() and index >= len(PATTERNS):
            break
        sample = _timed(op, pool, kind)
        if sample is not None:
            results.write(json.dumps({"op": encode(op), "sample": asdict(sample)}) + "\n")
            results.flush()  # kept even when a later message hangs
    results.close()
    dist.destroy_process_group()


def _timed(op: Collective, pool: OperandPool, kind: str) -> Sample | None:
    """Laps that begin together; the slowest process's time counts. ``None`` for what the library refuses."""
    try:
        kernel = build(op, pool)
        if float(op.elements) <= 1 << 16 and check(kernel) > kernel.tolerance:
            return None
    except (NoKernelError, RuntimeError):
        return None
    operands = [kernel.operands() for _ in range(4)]
    calls = int(max(2, min(50, 2**22 / float(op.elements))))
    laps = []
    for _ in range(LAPS):
        dist.barrier()
        begun = time.perf_counter()
        for index in range(calls):
            kernel.run(*operands[index % len(operands)])
        if kind == "cuda":
            torch.cuda.synchronize()
        laps.append((time.perf_counter() - begun) / calls)
    table = torch.tensor(laps, dtype=torch.float64, device=kind)
    dist.all_reduce(table, op=dist.ReduceOp.MAX)
    low, mid, high = np.quantile(table.cpu().numpy(), (0.25, 0.5, 0.75))
    return Sample(seconds=float(mid), spread=float((high - low) / mid), laps=LAPS, calls=calls, kernel=kernel.name)
