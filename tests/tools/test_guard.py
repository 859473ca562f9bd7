"""Kernels far behind their neighbours are refused, older releases stand in; dense matmuls take the fastest library."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

import pytest

pytest.importorskip("pandas")

from calibrate.fit import Group, Measurement
from inferplan.catalog.files import load_hardware
from inferplan.work.formats import find_format
from inferplan.work.ops import Matmul
from tools.fitting.tables.choose import DeviceTables
from tools.fitting.tables.fastest import with_fastest
from tools.fitting.tables.guard import behind, guarded, reached
from tools.fitting.tables.read import without_scales

H100 = load_hardware("h100-sxm")
FP8, BF16 = find_format("fp8"), find_format("bf16")
GROUP = ("matmul", "fp8")


def timed(share: float, fixed: float = 0.0, count: int = 80) -> list[Measurement]:
    """Matmuls of one row that move k x k bytes at ``share`` of the bandwidth, and take ``fixed`` seconds besides."""
    rows = []
    for k in range(1024, 1024 + 128 * count, 128):
        op = Matmul(name="gemm", m=1.0, k=k, n=k, weight=FP8, input=FP8, output=BF16)
        seconds = op.work().bytes / (share * H100.memory.bandwidth) + fixed
        rows.append(Measurement(op=op, seconds=float(seconds)))
    return rows


def tables(**libraries: list[Measurement]) -> DeviceTables:
    sources = {name: {"matmul/fp8": f"{name}'s"} for name in libraries}
    pools = {name: {GROUP: rows} for name, rows in libraries.items()}
    return DeviceTables(hardware=H100, libraries=pools, impossible=0, fallbacks=0, rows=0, sources=sources)


def nothing_older(gpu: str, library: str, group: Group) -> Iterator[tuple[str, str, list[Measurement]]]:
    return iter(())


def test_what_a_kernel_reaches_is_its_share_of_the_bandwidth_where_memory_binds() -> None:
    memory, arithmetic = reached(timed(0.7), H100)
    assert memory == pytest.approx(0.7)
    assert isnan(arithmetic)


def test_how_far_behind_is_the_median_of_the_neighbours() -> None:
    nan = float("nan")
    assert behind((0.2, nan), [(0.8, nan), (0.6, 0.5), (0.2, 0.5)]) == pytest.approx(3.0)
    assert behind((0.8, 0.5), [(0.4, 0.25)]) == 1.0


def test_a_kernel_under_half_of_its_neighbour_is_refused_and_named() -> None:
    device, refused = guarded(tables(trtllm=timed(0.9), vllm=timed(0.3)), nothing_older)
    assert GROUP in device.libraries["trtllm"] and GROUP not in device.libraries["vllm"]
    assert refused == [
        "h100-sxm: vllm matmul/fp8: none, so a neighbour's: vllm's reaches 30% of the bandwidth, 3.0 times behind its "
        "neighbours"
    ]


def test_a_kernel_at_half_of_its_neighbour_is_kept() -> None:
    device, refused = guarded(tables(trtllm=timed(0.9), vllm=timed(0.5)), nothing_older)
    assert GROUP in device.libraries["vllm"] and not refused and not device.refused


def test_the_newest_healthy_release_stands_in() -> None:
    def older(gpu: str, library: str, group: Group) -> Iterator[tuple[str, str, list[Measurement]]]:
        assert (gpu, library, group) == ("h100-sxm", "vllm", GROUP)
        yield "0.22.0", "slow", timed(0.25)
        yield "0.19.0", "fused", timed(0.8)
        yield "0.14.0", "first", timed(0.9)

    device, refused = guarded(tables(trtllm=timed(0.9), vllm=timed(0.3)), older)
    assert device.sources["vllm"]["matmul/fp8"] == "fused of 0.19.0"
    assert reached(device.libraries["vllm"][GROUP], H100)[0] == pytest.approx(0.8)
    assert "fused of vllm 0.19.0" in refused[0]


def test_dense_matmuls_take_the_fastest_library_of_each_shape() -> None:
    """One has 5 us less, the other twice the bandwidth: they cross where moving k x k bytes takes 5 us more."""
    slow, quick = timed(0.45, fixed=1e-6), timed(0.9, fixed=6e-6)
    device = with_fastest(tables(trtllm=quick, vllm=slow))
    kept = {(row.op.k, row in quick) for row in device.libraries["vllm"][GROUP] if isinstance(row.op, Matmul)}
    crossing = (5e-6 * 0.9 * H100.memory.bandwidth) ** 0.5
    assert all(is_quick == (k > crossing) for k, is_quick in kept if abs(k / crossing - 1.0) > 0.1)
    assert device.libraries["vllm"][GROUP] == device.libraries["trtllm"][GROUP]


def test_the_search_for_scales_is_taken_off_trtllm_alone(tmp_path) -> None:  # type: ignore[no-untyped-def]
    import pandas as pd

    (tmp_path / "releases").mkdir()
    scales = {"gpu": "h100-sxm", "framework": "trtllm", "m": [1, 1], "k": [1024, 4096], "latency_ms": [0.007, 0.009]}
    pd.DataFrame(scales).to_csv(tmp_path / "releases/computescale.csv", index=False)
    rows = {"gpu": "h100-sxm", "framework": ["TRTLLM", "TRTLLM", "VLLM"], "gemm_dtype": ["fp8", "bfloat16", "fp8"]}
    rows |= {"m": 1, "k": 2048, "latency_ms": 0.012}
    left = without_scales(tmp_path, pd.DataFrame(rows))
    assert list(left.latency_ms) == pytest.approx([0.004, 0.012, 0.012])
