"""Collectives: processes that time them, die, hang or cannot start; every branch for accelerators on the stand-in."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from calibrate.device import collectives  # noqa: E402
from calibrate.device.collective_rank import PATTERNS, Plan, Rank, run_rank  # noqa: E402
from calibrate.device.collectives import NoCollectivesError, group_sizes, measure_collectives  # noqa: E402
from calibrate.device.device import Device, identify  # noqa: E402
from calibrate.samples import Sample  # noqa: E402
from inferplan.catalog.files import load_hardware  # noqa: E402
from inferplan.devices.constants import Calibration  # noqa: E402
from inferplan.estimate.roofline import price  # noqa: E402
from inferplan.work.ops import Collective, Op  # noqa: E402
from tests.calibrate.standin import KNOWN, Failure, no_capture, no_collectives, standin  # noqa: E402
from tests.cases import for_each  # noqa: E402

CPU = Device(kind="cpu", name="cpu", memory=1e9, units=1, cache=1e6, software={})
SYMMETRIC = "torch.distributed._symmetric_memory"
Found = list[tuple[Op, Sample]]
WITHOUT: dict[str, str] = {}
"""What the last call of :func:`gathered` was told of libraries and messages that are left out."""


def gathered(seconds: float, worker: Any = run_rank) -> tuple[Found, str]:
    """What was measured, and what was said at the end."""
    found: Found = []
    WITHOUT.clear()
    try:
        for pair in measure_collectives(CPU, seconds, worker, WITHOUT):
            found.append(pair)
    except NoCollectivesError as error:
        assert error.hint
        return found, error.what
    finally:
        assert not multiprocessing.active_children(), "a process stays behind"
    return found, ""


def of_groups(found: Found) -> dict[int, set[str]]:
    table: dict[int, set[str]] = defaultdict(set)
    for op, _ in found:
        assert isinstance(op, Collective)
        table[op.group].add(op.pattern)
    return dict(table)


def test_two_processes_time_every_pattern() -> None:
    found, said = gathered(0.5)
    assert not said
    assert of_groups(found) == {2: set(PATTERNS)}
    assert {(sample.method, sample.library) for _, sample in found} == {("wall", "gloo")}
    assert np.median([sample.seconds * sample.calls for _, sample in found]) >= 1e-3


def test_an_interface_that_is_not_there_costs_the_collectives_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuchif0")
    found, said = gathered(0.5)
    assert not found
    assert "over 2 processes" in said
    assert "nosuchif0" in said


def test_a_group_has_the_interface_that_is_asked_and_not_that_of_the_first_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server of processes keeps the environment of the group that it began with."""
    forkserver._forkserver._stop()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuchif0")
    assert "nosuchif0" in gathered(0.1)[1]
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    found, said = gathered(0.1)
    assert not said
    assert 2 in of_groups(found)


def dying(rank: int, plan: Plan) -> None:
    """A group of two loses a process after three messages (an out-of-memory killer, a driver)."""
    if rank == 1 and len(plan.devices) == 2:
        write, seen = Rank._timed, []

        def timed(self: Rank, op: Collective, builder: Any) -> None:
            seen.append(op)
            if len(seen) == 4:
                os._exit(9)
            write(self, op, builder)

        Rank._timed = timed  # type: ignore[method-assign]
    run_rank(rank, plan)


def test_a_group_that_loses_a_process_keeps_what_it_measured_and_the_next_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three processes: the last one has nobody to send to, and 256 elements are no multiple of three."""
    monkeypatch.setattr(collectives, "_devices", lambda device: (0, 1, 2))
    found, said = gathered(0.1, dying)
    groups = of_groups(found)
    assert len(groups[2]) == 3
    assert groups[3] == set(PATTERNS)
    died, deserted = "process 1 terminated with exit code 9", "RuntimeError: "  # whichever of the two is heard first
    assert f"over 2 processes: {died}" in said or ("gloo" in said and f"over 2 processes: {deserted}" in said)
    assert "over 3" not in said


def hanging(rank: int, plan: Plan) -> None:
    """One process stops answering once they have met."""
    if rank == 1:
        Rank._timed = lambda *_: time.sleep(60)  # type: ignore[method-assign, assignment]
    run_rank(rank, plan)


def test_a_group_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "HANGING", 0.5)
    begun = time.monotonic()
    found, said = gathered(0.1, hanging)
    assert not found
    assert "they met and then hung" in said
    assert time.monotonic() - begun < 30


def absent(rank: int, plan: Plan) -> None:
    """One process never comes."""
    if rank == 0:
        run_rank(rank, plan)
    time.sleep(60)


def test_processes_that_do_not_meet_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "MEETING", 1.0)
    found, said = gathered(0.1, absent)
    assert not found
    assert "did not meet within 1 s" in said or "Timed out" in said or "timed out" in said


def losing(rank: int, plan: Plan) -> None:
    """An all-gather that gives everybody's part as this process's own."""
    from calibrate.kernels import collectives as kernels

    def alone(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(x.chunk(dist.get_world_size())[0].repeat(dist.get_world_size()))

    kernels._all_gather = alone
    run_rank(rank, plan)


def test_a_collective_that_is_wrong_is_left_out() -> None:
    found, said = gathered(0.1, losing)
    assert not said
    assert of_groups(found) == {2: set(PATTERNS) - {"all_gather"}}
    assert WITHOUT and all(name.startswith("torch.distributed all_gather (gloo) of ") for name in WITHOUT)
    assert set(WITHOUT.values()) == {"some process got another result than float64"}


@for_each(("devices", "sizes"), [(1, []), (2, [2]), (3, [2, 3]), (4, [2, 4]), (6, [2, 4, 6]), (8, [2, 4, 8])])
def test_groups_are_powers_of_two_and_all(devices: int, sizes: list[int]) -> None:
    assert group_sizes(devices) == sizes


# Accelerators, on the stand-in


@contextlib.contextmanager
def pretended_group(size: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of NCCL whose collectives do nothing: their time is the stand-in's, their values are unknown."""
    silent = ("all_reduce", "barrier", "all_to_all_single", "send", "recv")
    silent += ("all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single")
    nothing = {name: lambda *_, **__: None for name in silent}
    facts = {"is_initialized": True, "get_world_size": size, "get_rank": 0, "get_backend": "nccl"}
    for name, call in (nothing | {name: lambda *_, value=value: value for name, value in facts.items()}).items():
        monkeypatch.setattr(dist, name, call, raising=False)
    monkeypatch.setattr(dist, "new_group", lambda **_: SimpleNamespace(), raising=False)
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=SimpleNamespace(group_name="0")))
    yield


def on_standin(
    chip: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *failures: Failure, modules: Any = None
) -> tuple[Found, str]:
    """What the first process of eight measures, and all that it wrote."""
    folder.mkdir(exist_ok=True)
    modules = {SYMMETRIC: None} | (modules or {})
    plan = Plan(kind="cuda", devices=tuple(range(8)), folder=str(folder), seconds=60.0, met=1.0)
    with standin(chip, *failures, modules=modules, devices=8), pretended_group(8, monkeypatch):
        Rank(plan).measure()
    return list(collectives._fastest(collectives._records(plan.results))), plan.results.read_text()


@for_each(("chip", "library"), [("h200-sxm", "nccl"), ("mi300x", "rccl")])
def test_laps_are_replayed_from_graphs(
    chip: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By device events a message takes what the stand-in says: its bytes over the links, and 3 us."""
    found, _ = on_standin(chip, tmp_path, monkeypatch)
    assert len(found) == 5 * 10, "five patterns of 1 KiB to 256 MiB"
    for op, sample in found:
        assert (sample.method, sample.library) == ("graph", library)
        assert sample.seconds * sample.calls >= 1e-3
        known = Calibration(name="known", constants={op.kernel: {op.label: KNOWN}})
        assert sample.seconds == pytest.approx(float(price(op, load_hardware(chip), known).time), rel=0.02)


def test_without_capture_eager_laps_are_labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = on_standin("h200-sxm", tmp_path, monkeypatch, no_capture())
    assert {sample.method for _, sample in found} == {"events"}
    assert all(sample.seconds * sample.calls >= 1e-3 for _, sample in found)


class Custom:
    """vLLM's all-reduce as its module offers it: messages below 8 MiB, twice as fast as NCCL, registered in graphs."""

    captures = 0

    def __init__(self, group: Any, device: torch.device) -> None:
        self.disabled, self._capturing = False, False

    def should_custom_ar(self, x: torch.Tensor) -> bool:
        return x.numel() * x.element_size() < 8 << 20

    def custom_all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        assert self._capturing or not torch.cuda.is_current_stream_capturing(), "its inputs are not registered"
        return x

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        self._capturing = True
        Custom.captures += 1
        yield
        self._capturing = False


def test_the_fastest_library_of_a_message_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm.distributed.device_communicators.custom_all_reduce")
    module.CustomAllreduce = Custom  # type: ignore[attr-defined]
    parents = {name: ModuleType(name) for name in ("vllm", "vllm.distributed", "vllm.distributed.device_communicators")}
    found, _ = on_standin("h200-sxm", tmp_path, monkeypatch, modules=parents | {module.__name__: module})
    by = {(op.pattern, float(op.elements) * 2): sample.library for op, sample in found}  # type: ignore[attr-defined]
    assert by["all_reduce", 2.0**20] == "vllm-custom-all-reduce"
    assert by["all_reduce", 2.0**24] == "nccl", "vLLM does not take that message"
    assert by["all_gather", 2.0**20] == "nccl"
    assert Custom.captures >= 7


def test_symmetric_memory_is_reduced_by_the_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight H200: ``multimem_all_reduce_`` (vLLM, symm_mem.py). Without multicast it is left out, and said."""
    module, calls = ModuleType(SYMMETRIC), []
    module.empty = lambda size, dtype, device: torch.empty(size, dtype=dtype, device="cuda")  # type: ignore[attr-defined]
    module.rendezvous = lambda tensor, group: SimpleNamespace(multicast_ptr=7)  # type: ignore[attr-defined]
    reduce = SimpleNamespace(multimem_all_reduce_=lambda *given: calls.append(given[1:]), two_shot_all_reduce_=None)
    monkeypatch.setattr(torch.ops, "symm_mem", reduce, raising=False)
    _, text = on_standin("h200-sxm", tmp_path, monkeypatch, modules={SYMMETRIC: module})
    assert set(calls) == {("sum", "0")}
    assert "torch-symmetric-memory multimem_all_reduce_" in text
    module.rendezvous = lambda tensor, group: SimpleNamespace(multicast_ptr=0)  # type: ignore[attr-defined]
    _, text = on_standin("h200-sxm", tmp_path / "other", monkeypatch, modules={SYMMETRIC: module})
    assert '"without": "torch-symmetric-memory", "why": "no symmetric memory (these devices have no multicast' in text


def test_processes_that_cannot_start_are_one_error() -> None:
    with standin("h200-sxm", no_collectives(), devices=8):
        with pytest.raises(NoCollectivesError, match=r"over 2 devices: NCCL error.*over 8 dev") as caught:
            list(measure_collectives(identify("cuda"), 1.0))
        assert "--shm-size" in (caught.value.hint or "")


def test_one_device_has_no_collectives() -> None:
    with standin("h200-sxm"):
        assert not list(measure_collectives(identify("cuda"), 1.0))


def test_devices_that_others_use_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four H200 one has 43 GB of somebody's; then all but one."""
    used = {0: 1e9, 1: 0.0, 2: 2e9, 3: 43e9}
    monkeypatch.setattr(torch.cuda, "device_memory_used", lambda index: used[index])
    with standin("h200-sxm", devices=4):
        device = identify("cuda")
        assert collectives._devices(device) == (0, 1, 2)
        used.update({0: 20e9, 1: 40e9})
        with pytest.raises(NoCollectivesError, match="no two devices are free") as caught:
            collectives._devices(device)
        assert "device 3" in (caught.value.because or "")
