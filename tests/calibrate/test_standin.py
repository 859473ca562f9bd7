"""The device stand-in itself: its clock, memory, failures and contracts, against closed forms; nothing stays behind."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch")

import torch

from calibrate.device.device import identify, match
from calibrate.device.torch_measurer import TorchMeasurer
from calibrate.kernels.builders import build
from calibrate.kernels.kernel import check
from calibrate.kernels.operands import OperandPool
from inferplan.work.formats import find_format
from inferplan.work.ops import Matmul
from tests.calibrate.standin import (
    CHIPS,
    SEVEN,
    Machine,
    dies_after,
    interrupted,
    no_capture,
    out_of_memory,
    refuses,
    standin,
)
from tests.cases import for_each

BF16 = find_format("bf16")


def matmul(m: int = 1024, n: int = 1024, k: int = 1024) -> Matmul:
    return Matmul(name="m", m=float(m), k=k, n=n, weight=BF16, input=BF16, output=BF16)


def replayed(calls: int, op: Matmul) -> float:
    """Seconds between two events around a replay of so many calls of an operator."""
    kernel = build(op, OperandPool("cuda", 1 << 24))
    operands = kernel.operands()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            kernel.run(*operands)
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e-3


def test_everything_is_undone() -> None:
    before = (time.perf_counter, time.sleep, torch.Generator, torch.cuda.is_available, torch.version.cuda)
    with standin("h200-sxm"):
        assert torch.cuda.is_available() and torch.empty(2, device="cuda").device.type == "cuda"
    assert (time.perf_counter, time.sleep, torch.Generator, torch.cuda.is_available, torch.version.cuda) == before
    with pytest.raises((RuntimeError, AssertionError)):
        torch.empty(2, device="cuda")


@for_each("name", CHIPS)
def test_every_chip_is_identified_as_torch_would(name: str) -> None:
    with standin(name) as device:
        found = identify(device.chip.kind)
        assert found.memory == device.chip.memory
        assert torch.cuda.is_available() == (device.chip.kind == "cuda")
        known = match(found)
        assert known is not None and known.name == name
        assert bool(torch.version.hip) == (name == "mi300x")


def test_copies_from_and_to_pinned_memory_are_ceilings_of_a_gpu() -> None:
    """128 MiB come in the time that the stand-in takes for them in its own memory, at 0.8 of 4.8 TB/s."""
    with standin("h200-sxm"):
        measurer = TorchMeasurer(identify("cuda"), 0, 1 << 28)
        found = dict(measurer.ceilings(1.0))
    assert found["host to device"] == pytest.approx(0.8 * 4.8e12, rel=0.1)
    assert found["device to host"] > 0
    with standin("m3"):
        assert "host to device" not in dict(TorchMeasurer(identify("mps"), 0, 1 << 26).ceilings(1.0))


def test_a_replay_takes_the_operators_price_and_the_launch_of_the_graph() -> None:
    """2 x 1024^3 FLOP at 0.7 of 989.4 TFLOP/s and 3 x 2 MiB at 0.8 of 4.8 TB/s, joined with p = 4, and 3 us."""
    math, memory = 2 * 1024**3 / (0.7 * 989.4e12), 3 * 2 * 1024**2 / (0.8 * 4.8e12)
    one = 3e-6 + (math**4 + memory**4) ** 0.25
    with standin("h200-sxm"):
        ten, twenty = replayed(10, matmul()), replayed(20, matmul())
    assert (twenty - ten) / 10 == pytest.approx(one, rel=1e-6)
    assert 4e-6 < ten - 10 * one < 12e-6, "the graph's launch lies between the events"


def test_times_repeat_to_the_last_digit() -> None:
    seconds = []
    for _ in range(2):
        with standin("h200-sxm") as device:
            device.pass_time(len(seconds) * 77.7)
            seconds.append(replayed(7, matmul(96)))
    assert seconds[0] == seconds[1]


def test_eager_calls_wait_for_the_host_and_sleep_takes_no_time_of_ours() -> None:
    begun = time.process_time()
    with standin("h200-sxm"):
        x = torch.zeros(8, 8, device="cuda")
        start = time.perf_counter()
        for _ in range(1000):
            x.add_(1)
        torch.cuda.synchronize()
        assert time.perf_counter() - start == pytest.approx(1000 * 4e-6, rel=0.01), "4 us a launch, 3 us a kernel"
        start = time.perf_counter()
        time.sleep(3600.0)
        assert time.perf_counter() - start == pytest.approx(3600.0)
    assert time.process_time() - begun < 20.0


def test_memory_fills_and_comes_back() -> None:
    with standin("h200-sxm", memory=10 << 30):
        kept = torch.empty(6 << 30, dtype=torch.int8, device="cuda")
        assert torch.cuda.mem_get_info() == (4 << 30, 10 << 30)
        part = kept[:10]
        with pytest.raises(torch.OutOfMemoryError, match=r"5\.00 GiB"):
            torch.empty(5 << 30, dtype=torch.int8, device="cuda")
        del kept
        assert torch.cuda.mem_get_info()[0] == 4 << 30, "a slice keeps the whole"
        del part
        torch.empty(9 << 30, dtype=torch.int8, device="cuda")
        assert torch.cuda.max_memory_allocated() == 9 << 30


def test_values_are_unknown_but_shapes_are_checked() -> None:
    with standin("h200-sxm"):
        x = torch.randn(4, 8, device="cuda")
        assert torch.tensor([3, 5], device="cuda").tolist() == [3, 5]
        assert float((x.cpu() - 1.0).norm()) == 0.0
        with pytest.raises(RuntimeError):
            x @ torch.randn(4, 8, device="cuda")
        with pytest.raises(RuntimeError):
            x + torch.randn(4, 8)
        assert check(build(matmul(48, 128, 128), OperandPool("cuda", 1 << 24))) == 0.0


def test_what_an_architecture_lacks() -> None:
    def flash() -> None:
        q = torch.randn(1, 8, 2, 64, device="cuda", dtype=torch.float16)
        torch.ops.aten._flash_attention_forward(q, q, q, None, None, 8, 8, 0.0, True, False)

    with standin("t4"), pytest.raises(RuntimeError, match="Ampere"):
        flash()
    with standin("a100-80gb-sxm"):
        flash()
    with standin("m3"):
        x = torch.randn(4, device="mps")
        for double in (
            x.double,
            lambda: x.to(torch.float64),
            lambda: torch.zeros(2, device="mps", dtype=torch.float64),
        ):
            with pytest.raises(TypeError, match="float64"):
                double()
        assert x.cpu().double().dtype is torch.float64


def work(device: Machine) -> None:
    torch.ones(4, device="cuda").mul_(2)
    torch.cuda.synchronize()


def test_a_sticky_error_stays() -> None:
    with standin("h200-sxm", dies_after(2)) as device:
        torch.ones(4, device="cuda").mul_(2)
        for call in (torch.cuda.synchronize, lambda: torch.ones(4, device="cuda")):
            with pytest.raises(RuntimeError, match="illegal memory access"):
                call()
    with standin("h200-sxm") as device:
        work(device)


def test_other_failures_pass() -> None:
    with standin("h200-sxm", out_of_memory(after=3)) as device:
        work(device)
        with pytest.raises(torch.OutOfMemoryError):
            work(device)
        work(device)
    with standin("h200-sxm", no_capture(times=1)), pytest.raises(RuntimeError, match="during capture"):
        replayed(1, matmul())
    with standin("h200-sxm", interrupted(after=3)) as device:
        work(device)
        with pytest.raises(KeyboardInterrupt):
            work(device)
        work(device)
    with standin("h200-sxm", refuses("_scaled_mm")):
        x = torch.ones(32, 32, device="cuda", dtype=torch.float8_e4m3fn)
        one = torch.ones((), device="cuda")
        with pytest.raises(RuntimeError, match="Invalid scaling"):
            torch._scaled_mm(x, x.t(), one, one, out_dtype=torch.bfloat16)


def test_a_capture_that_fails_leaves_its_stream_current_as_torch_does() -> None:
    with standin("h200-sxm", no_capture()):
        before = torch.cuda.current_stream()
        with pytest.raises(RuntimeError):
            replayed(1, matmul())
        assert torch.cuda.current_stream() is not before


def test_waiting_is_not_permitted_in_a_capture() -> None:
    with standin("h200-sxm"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        x = torch.ones(2, device="cuda")
        with pytest.raises(RuntimeError, match="capturing"):
            x.tolist()


def test_seven_devices() -> None:
    assert len(SEVEN) == 7 and set(SEVEN) < set(CHIPS)
