"""Collectives for real: groups of two, four, eight ... devices of this machine (NCCL), or two processes of a CPU.

Each group is a set of processes of its own, so that one that cannot start, dies or hangs costs that group and no more.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from calibrate.device.collective_rank import ENVIRONMENT, Plan, run_rank
from calibrate.device.device import Device
from calibrate.samples import Sample, decode, key_of
from inferplan.errors import MissingFactError
from inferplan.units import format_bytes
from inferplan.work.ops import Op

MEETING = 120.0
"""Seconds in which the first group must have met: torch is imported for it, which is slow on a busy machine."""
AGAIN = 60.0
"""The same for the groups after it."""
HANGING = 30.0
"""Seconds beyond three times the asked ones after which processes that have met are taken to hang."""
IN_USE = 0.1
"""Share of a device's memory that others may hold before it counts as theirs."""
Worker = Callable[[int, Plan], None]


class NoCollectivesError(MissingFactError):
    """Some group of devices could not be measured; what was, has been given before (exit 2 when it was all)."""


def group_sizes(devices: int) -> list[int]:
    """Two, four, eight, and so on up to all of them: sizes that tell a link's speed from the time of a step on it."""
    powers = [2**power for power in range(1, devices.bit_length()) if 2**power <= devices]
    return powers if not powers or powers[-1] == devices else [*powers, devices]


def measure_collectives(
    device: Device, seconds: float, worker: Worker = run_rank, without: dict[str, str] | None = None
) -> Iterator[tuple[Op, Sample]]:
    """Time every message between the devices, about ``seconds`` in all once they have met; nothing where there is one.

    Of several libraries the fastest counts for each message, as engines choose; ``without`` is told which could not be
    used, which messages came out wrong, and why. Raises :class:`NoCollectivesError` at
    the end, when what could be measured has been given, if a group could not start, died or hung; or before, when
    others use the devices.
    """
    devices = _devices(device)
    sizes, problems = group_sizes(len(devices)), []
    for place, size in enumerate(sizes):
        with tempfile.TemporaryDirectory() as folder:
            plan = Plan(
                kind=device.kind,
                devices=devices[:size],
                folder=folder,
                seconds=seconds / len(sizes),
                met=AGAIN if place else MEETING,
                environment={name: value for name, value in os.environ.items() if name.startswith(ENVIRONMENT)},
            )
            why = _run(plan, worker)
            records = _records(plan.results)
            if without is not None:
                without |= {record["without"]: record["why"] for record in records if "without" in record}
            yield from _fastest(records)
        if why:
            problems.append(f"{size} {'processes' if device.kind == 'cpu' else 'devices'}: {why}")
    if problems:
        raise NoCollectivesError(f"collectives over {'; over '.join(problems)}", hint=_hint(device.kind))


def _hint(kind: str) -> str:
    if kind == "cpu":
        return "GLOO_SOCKET_IFNAME names the network interface; it must be there"
    return "NCCL_DEBUG=INFO says more; a container wants --shm-size=1g or more, and --ipc=host for peer access"


def _devices(device: Device) -> tuple[int, ...]:
    """The devices that take part: those like the first one that nobody else uses. For a CPU, two processes of it."""
    if device.kind == "cpu":
        return (0, 1) if dist.is_available() else ()
    count = torch.cuda.device_count() if device.kind == "cuda" and dist.is_available() else 1
    if count < 2:
        return ()
    taken = {index: used for index in range(count) if (used := _taken(index))}
    name = torch.cuda.get_device_properties(0).name
    free = [i for i in range(count) if i not in taken and torch.cuda.get_device_properties(i).name == name]
    if len(free) < 2 and taken:
        told = ", ".join(f"{format_bytes(used)} of device {index}" for index, used in taken.items())
        raise NoCollectivesError(
            "no two devices are free for collectives", because=f"others hold {told}", hint="CUDA_VISIBLE_DEVICES"
        )
    return tuple(free) if len(free) > 1 else ()


def _taken(index: int) -> float:
    """Bytes that others hold of a device, when that is more than :data:`IN_USE` of it; 0 where nobody tells."""
    try:
        used = float(torch.cuda.device_memory_used(index))
    except Exception:  # no management library, or one without the right to ask
        return 0.0
    own = float(torch.cuda.memory_reserved(index))
    total = float(torch.cuda.get_device_properties(index).total_memory)
    return used - own if used - own > IN_USE * total else 0.0


def _run(plan: Plan, worker: Worker) -> str:
    """Run the processes of a group to their end; why it was not the one they should have had, or nothing."""
    from torch import multiprocessing as processes

    multiprocessing.set_forkserver_preload(
        ["calibrate.device.collective_rank"]
    )  # torch is imported once for all groups
    context = None
    try:
        context = processes.start_processes(
            worker, (plan,), nprocs=len(plan.devices), join=False, start_method="forkserver"
        )
        return _watched(context, plan)
    except processes.ProcessRaisedException as raised:
        return _last_line(str(raised))
    except (processes.ProcessExitedException, RuntimeError, OSError) as failed:
        return _last_line(str(failed))
    finally:
        _end(context)


def _watched(context: torch.multiprocessing.ProcessContext, plan: Plan) -> str:
    """Wait for the processes; why they were not waited for any longer, or nothing. Raises what a process raised."""
    met, deadline = False, time.monotonic() + plan.met
    while not context.join(timeout=0.5, grace_period=2.0):
        if not met and plan.results.is_file():
            met, deadline = True, time.monotonic() + 3 * plan.seconds + HANGING
        if time.monotonic() > deadline:
            return "they met and then hung" if met else f"they did not meet within {plan.met:.0f} s"
    return ""


def _end(context: torch.multiprocessing.ProcessContext | None) -> None:
    """No process stays behind, whatever happened."""
    for process in context.processes if context else ():
        if process.is_alive():
            process.terminate()
            process.join(2.0)
        if process.is_alive():
            process.kill()
            process.join()


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it gave no reason")[:200]


def _records(results: Path) -> list[dict[str, Any]]:
    """What a group wrote."""
    records = []
    for line in results.read_text(encoding="utf-8").splitlines() if results.is_file() else []:
        with contextlib.suppress(ValueError):  # cut short when the process was ended
            records.append(json.loads(line))
    return records


def _fastest(records: Iterable[dict[str, Any]]) -> Iterator[tuple[Op, Sample]]:
    """What a group measured: of each message the sample of the library that was fastest."""
    found: dict[str, tuple[Op, Sample]] = {}
    for record in records:
        if "sample" in record:
            op, sample = decode(record["op"]), Sample(**record["sample"])
            if key_of(op) not in found or sample.seconds < found[key_of(op)][1].seconds:
                found[key_of(op)] = op, sample
    yield from found.values()
