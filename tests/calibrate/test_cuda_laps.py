"""Laps, cold operands, marks and memory on the stand-in of CUDA devices, whose kernels take what closed forms say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from calibrate.designs import find_model  # noqa: E402
from calibrate.device.cuda_laps import HOST_BOUND, LAP, CudaLaps, Results, capture  # noqa: E402
from calibrate.device.device import identify  # noqa: E402
from calibrate.device.memory import block_bytes, free_memory, planned  # noqa: E402
from calibrate.device.torch_measurer import TorchMeasurer  # noqa: E402
from calibrate.device.whole_models import WholeModels, cache_bytes, wanted, weight_bytes  # noqa: E402
from calibrate.kernels.decoder import FusedMaps  # noqa: E402
from calibrate.session.fitting import fit  # noqa: E402
from calibrate.session.raw_file import RawFile, read  # noqa: E402
from calibrate.session.report import state_of  # noqa: E402
from calibrate.session.run import Run  # noqa: E402
from calibrate.session.settings import Settings  # noqa: E402
from inferplan.errors import ToleranceError  # noqa: E402
from inferplan.work.formats import FORMATS  # noqa: E402
from inferplan.work.ops import Matmul  # noqa: E402
from tests.calibrate.standin import Machine, no_capture, out_of_memory, standin  # noqa: E402
from tests.calibrate.synthetic import DESIGN  # noqa: E402
from tests.calibrate.test_health import FakeNvml  # noqa: E402
from tests.cases import for_each  # noqa: E402

BF16 = FORMATS["bf16"]


def matmul(m: int, k: int, n: int) -> Matmul:
    return Matmul(name="m", m=float(m), k=k, n=n, weight=BF16, input=BF16, output=BF16)


SMALL, WEIGHT, LARGE = matmul(8, 256, 512), matmul(16, 4096, 4096), matmul(4096, 8192, 8192)


@contextmanager
def device(name: str = "h200-sxm", *failures: Any, **more: Any) -> Iterator[tuple[Machine, TorchMeasurer]]:
    with standin(name, *failures, **more) as machine:
        found = identify("cuda")
        yield machine, TorchMeasurer(found, 0, block_bytes(found, 450.0))


@for_each("op", [SMALL, WEIGHT, LARGE], ids=["small", "weight", "large"])
def test_a_lap_is_longer_than_a_millisecond_and_holds_no_launch(op: Matmul) -> None:
    """A launch of a graph shows as 8 us on the stand-in: in none of the laps, since they are queued."""
    with device() as (machine, measurer):
        sample = measurer.measure(op, 0.04)
        truth = machine.truth.operator(op)
    assert truth is not None
    assert sample.method == "graph"
    assert sample.seconds * sample.calls >= 1e-3
    assert sample.seconds == pytest.approx(truth, rel=1e-3)
    assert not sample.disturbed


def test_no_lap_of_a_queue_holds_the_launch_of_a_graph() -> None:
    """Three laps of one and the same work take the same to the last tick, the first one too."""
    with device() as (_, measurer):
        graph = torch.cuda.CUDAGraph()
        x = torch.zeros(1 << 20, device="cuda")
        with torch.cuda.graph(graph):
            for _ in range(20):
                x.add_(1)
        first, second, third = CudaLaps(measurer.device.cache, 1e9, lambda: None).queued(graph.replay, 3)
    assert first == pytest.approx(second, rel=1e-9)
    assert second == pytest.approx(third, rel=1e-9)


def test_what_is_not_captured_is_timed_by_events_without_the_host() -> None:
    """A matmul takes 7 us, its launch 4: 1,250 us of them are 178 calls, issued while memory is written over."""
    with device("h200-sxm", no_capture(times=1000)) as (machine, measurer):
        before = torch.cuda.current_stream()
        sample = measurer.measure(WEIGHT, 0.04)
        truth = machine.truth.operator(WEIGHT)
        assert torch.cuda.current_stream() is before, "torch leaves the stream of a failed capture current"
    assert (sample.method, sample.disturbed) == ("events", "")
    assert sample.seconds == pytest.approx(truth, rel=0.02)
    assert sample.seconds * sample.calls >= 1e-3


def test_a_call_that_waits_for_the_device_is_marked() -> None:
    """Its launches cannot be hidden: the host waits until the queue is empty in each call."""

    def waits(x: Any) -> Any:
        y = x + 1
        torch.cuda.synchronize()
        return y + 1

    with device() as (_, measurer):
        laps = CudaLaps(measurer.device.cache, 1e9, lambda: None)
        found = laps.laps(waits, [(torch.zeros(1024, device="cuda"),)] * 2, 0.02)
    assert found.method == "events"
    assert found.sample("k").disturbed == HOST_BOUND
    assert not found.sample("k").calm


def test_a_failed_capture_gives_its_pool_back(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def note(what: str) -> Callable[[int, object], None]:
        return lambda device, pool: done.append(what)

    with device("h200-sxm", no_capture(times=1)):
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", note("ended"), raising=False)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", note("released"), raising=False)
        with pytest.raises(RuntimeError, match="during capture"):
            capture(lambda: None)
        assert done == ["ended", "released"]
        capture(lambda: None)
    assert done == ["ended", "released"]


def test_memory_that_runs_out_in_a_capture_is_told_as_such() -> None:
    with device() as (machine, _):

        def issue() -> None:
            try:
                torch.empty(2 * machine.memory, dtype=torch.int8, device="cuda")
            finally:
                machine.failures.append(no_capture(times=1))  # the end of that capture fails too, as torch's does

        with pytest.raises(torch.OutOfMemoryError):
            capture(issue)


def test_results_are_written_to_more_memory_than_a_cache_holds() -> None:
    results = Results(most=1000.0)
    for _ in range(10):
        results.keep((torch.empty(75, dtype=torch.int8), None, [torch.empty(25, dtype=torch.float32)]))
    assert results.size == 5 * 175
    results.keep(torch.empty(5000, dtype=torch.int8))
    assert results.size == 5000, "the newest stays, however large it is"


@for_each(("name", "cache"), [("h200-sxm", 60 << 20), ("mi300x", 256 << 20), ("t4", 4 << 20)])
def test_operands_are_three_times_the_last_cache(name: str, cache: int) -> None:
    """The runtime of an MI300X tells of 4 MB of L2; its Infinity Cache has 256."""
    with device(name) as (_, measurer):
        assert measurer.device.cache == cache
        sets, cold = measurer._sets(lambda: (object(),), WEIGHT, 1.0)
        each = float(WEIGHT.work().bytes)
    assert cold
    assert 3 * cache <= len(sets) * each < 3 * cache + 2 * each


def test_operands_that_a_cache_held_are_marked() -> None:
    with device() as (machine, measurer):

        def slow() -> tuple[Any, ...]:
            machine.pass_time(0.1)  # packing, say: there is time for two sets only, a tenth of the cache
            return (torch.empty(8, 256, device="cuda"),)

        sets, cold = measurer._sets(slow, matmul(16, 1024, 1024), 0.04)
    assert len(sets) == 2
    assert not cold


class Throttling(FakeNvml):
    """Holds 1755 MHz through the warm-up; a neighbour's job then takes the power."""

    def __init__(self) -> None:
        super().__init__()
        self.speed = 1755
        self.nvmlDeviceGetClockInfo = lambda h, which: {1: self.speed, 2: 3201}[which]
        self.nvmlDeviceGetComputeRunningProcesses = lambda h: []


def test_the_clock_is_held_before_anything_is_measured_and_told() -> None:
    with device(modules={"pynvml": Throttling()}) as (machine, measurer):
        measurer.prepare(4.5)
        assert 2.0 < machine.clock() < 6.0
        assert measurer.device.state == {
            "power cap": "500 W of 700 W",
            "highest clock": "1980 MHz",
            "ECC": "on",
            "read by": "NVML",
            "clock of long matmuls": "1755 MHz",
            "memory clock then": "3201 MHz",
            "power then": "498 W",
            "temperature then": "61 C",
        }
        record = json.loads(json.dumps(measurer.device.record()))
        assert state_of(record) == [
            "The device: power cap: 500 W of 700 W, highest clock: 1980 MHz, ECC: on, read by: NVML, "
            "clock of long matmuls: 1755 MHz, memory clock then: 3201 MHz, power then: 498 W, temperature then: 61 C."
        ]
        assert state_of({"name": "a CPU"}) == []
        assert record["software"]["driver"] == "580.95.05"
        assert record["software"]["cuda"] == "13.0"


def test_without_a_tool_nothing_is_claimed() -> None:
    with device() as (_, measurer):
        measurer.prepare(1.0)
        assert list(measurer.device.state) == ["read by"]
        assert measurer.device.state["read by"].startswith("nothing")
        assert measurer.measure(SMALL, 0.04).calm


def test_visits_under_a_fallen_clock_are_marked() -> None:
    nvml = Throttling()
    with device(modules={"pynvml": nvml}) as (_, measurer):
        measurer.prepare(1.0)
        calm = measurer.measure(SMALL, 0.04)
        nvml.speed = 1200
        fallen = measurer.measure(SMALL, 0.04)
        nvml.speed = 1755
        again = [measurer.measure(SMALL, 0.04) for _ in range(2)][1]
    assert calm.calm
    assert fallen.disturbed == "clocks fell to 1200 of 1755 MHz: power cap"
    assert not fallen.calm
    assert again.calm


def test_a_run_under_fallen_clocks_gives_no_constants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From NVML to the exit code: every visit is marked, kept in the raw file, and fitted to nothing."""
    nvml, warm_up = Throttling(), TorchMeasurer.prepare

    def prepared(self: TorchMeasurer, seconds: float) -> None:
        warm_up(self, seconds)
        nvml.speed = 1200

    monkeypatch.setattr(TorchMeasurer, "prepare", prepared)
    settings = Settings(budget=45.0, design=DESIGN)
    with device(instantiate=3.0, modules={"pynvml": nvml}) as (_, measurer):
        raw = RawFile.open(tmp_path / "raw.jsonl")
        Run(measurer, raw, settings, lambda *_: None).measure()
        raw.close()
        told = r"visits were disturbed[^\n]*\n.*clocks fell to 1200 of 1755 MHz: power cap"
        with pytest.raises(ToleranceError, match=told) as refused:
            fit(raw.session, measurer.device, settings)
    assert refused.value.exit_code == 6
    samples = [sample for visits in read(raw.path).samples.values() for sample in visits]
    assert samples and not any(sample.calm for sample in samples)
    assert raw.session.provenance[0]["device"]["state"]["clock of long matmuls"] == "1755 MHz"


def test_a_neighbour_is_marked() -> None:
    nvml = Throttling()
    with device(modules={"pynvml": nvml}) as (_, measurer):
        measurer.prepare(1.0)
        others = FakeNvml().nvmlDeviceGetComputeRunningProcesses
        nvml.nvmlDeviceGetComputeRunningProcesses = others
        seen = [measurer.measure(WEIGHT, 0.04).disturbed for _ in range(8)]
    assert seen[-1] == "another process (77) computes"


@for_each("name", ["t4", "a100-80gb-sxm", "h200-sxm", "mi300x"])
@for_each("taken", [0.0, 0.7])
def test_memory_is_planned_from_what_is_free(name: str, taken: float) -> None:
    """All blocks, two sets of the largest operands and a result as large, and the results of a graph."""
    with standin(name) as machine:
        machine.taken = int(taken * machine.memory)
        free = free_memory("cuda")
        assert free == machine.memory - machine.taken
        found = identify("cuda")
        plan = planned(found, block_bytes(found, 450.0), free)
        assert 7 * plan.block + 3 * plan.operands + plan.results <= 0.9 * free
        assert plan.block >= min(8 * found.cache, 0.05 * free)


def test_the_largest_operator_fits_beside_another_program() -> None:
    with standin("h200-sxm") as machine:
        machine.taken = int(0.7 * machine.memory)
        found = identify("cuda")
        measurer = TorchMeasurer(found, 0, block_bytes(found, 450.0))
        side = int((measurer.largest / 2 / 2) ** 0.5)
        measurer.measure(matmul(side, side, side), 0.04)
        assert machine.peak + machine.taken < machine.memory


def test_memory_that_ran_out_costs_one_visit() -> None:
    with device("h200-sxm", out_of_memory(after=200)) as (_, measurer):
        with pytest.raises(MemoryError, match="out of memory"):
            for _ in range(3):
                measurer.measure(WEIGHT, 0.04)
        assert measurer.measure(WEIGHT, 0.04).calm


LONGEST = (128, 1, 4096)


def longest(mode: str) -> Any:
    return next(s for s in wanted("cuda", 150e9) if s.mode == mode and (s.batch, s.new, s.past) == LONGEST)


def test_the_largest_decode_step_fits_an_h200_in_both_modes() -> None:
    """Llama 3.1 8B: 16.06 GB of weights, 128 KiB of cache a token, 4097 tokens of 128 sequences: 68.7 GB.

    Caches of two loads at once, or blocks of operands beside them, would not fit.
    """
    asked = longest("graph")
    spec = find_model(asked.model)
    assert weight_bytes(spec) == pytest.approx(2 * 8.03e9, rel=1e-3)
    assert cache_bytes(spec, asked) == 131072 * 128 * 4097
    with device(layers=None) as (machine, measurer):
        measurer.measure(WEIGHT, 0.04)
        for mode in ("graph", "eager"):
            timed = measurer.step(longest(mode))
            assert timed.seconds > 0.6 * (16e9 + 68.7e9) / 4.8e12
            assert timed.maps == "compiled"
        assert machine.peak < 0.9 * machine.memory


def test_a_step_that_cannot_fit_is_refused_before_it_is_tried() -> None:
    """80 GB hold the weights; the cache of the longest step is more than what is left."""
    with device("a100-80gb-sxm", layers=None) as (machine, measurer):
        with pytest.raises(MemoryError, match=r"a cache of 128 x 4097 tokens takes 68\.7\d GB of the"):
            measurer.step(longest("graph"))
        assert machine.peak < 20e9


def test_maps_that_are_compiled_too_often_run_eagerly_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class FailOnRecompileLimitHit(Exception):
        pass

    def given_up(*_: Any) -> Any:
        raise FailOnRecompileLimitHit("recompile_limit reached")

    monkeypatch.setattr(FusedMaps, "on", lambda kind: FusedMaps(rotate=given_up, note="compiled"))
    asked = replace(next(s for s in wanted("cpu", 1e9) if s.new == 1 and s.batch == 1), layers=1)
    measurer = TorchMeasurer(identify("cpu"), 0, 1 << 20)
    timed = WholeModels("cpu", measurer).time(asked, 0.01)
    assert timed.maps == "eager: compiled for too many shapes"
    assert timed.seconds > 0


def test_the_lap_hides_a_launch_of_twelve_microseconds() -> None:
    assert 0.01 * LAP > 12e-6
