"""Tables of dispatch and combine: how their rows are read, and that no measured collective beats the ideal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pandas")

from inferplan.catalog.files import load_hardware
from inferplan.devices.constants import IDEAL
from inferplan.estimate.roofline import price
from inferplan.work.ops import Exchange
from tools.fitting.tables import exchanges
from tools.fitting.tables.read import EXCHANGES, _frame, _nccl, _records, read_table
from tools.fitting.tables.row import Row

SIZES = {"hidden_size": 7168, "num_token": 128, "num_topk": 8, "num_experts": 256}


def deepep(gpu: str = "h100-sxm", nodes: int = 4, version: str = "0.5.0", **columns: object) -> SimpleNamespace:
    return SimpleNamespace(gpu=gpu, node_num=nodes, version=version, **SIZES, **columns)


def test_a_row_of_normal_mode_is_a_dispatch_and_a_combine_with_their_notifications() -> None:
    times = {"dispatch_transmit_us": 100.0, "dispatch_notify_us": 50.0, "dispatch_sms": 20}
    times |= {"combine_transmit_us": 200.0, "combine_notify_us": 60.0, "combine_sms": 24}
    dispatch, combine = exchanges.normal([deepep(**times)])
    assert [row.measurement.seconds for row in (dispatch, combine)] == pytest.approx([150e-6, 260e-6])
    first, second = dispatch.measurement.op, combine.measurement.op
    assert isinstance(first, Exchange) and isinstance(second, Exchange)
    assert (first.group, first.groups, first.top_groups, first.blocks, first.label) == (32, 4, 4, 20, "fp8")
    assert (second.direction, second.blocks, second.label) == ("combine", 24, "bf16")


def test_congested_rows_and_copied_rows_are_left_out() -> None:
    times = {f"{way}_{part}_us": 1.0 for way in ("dispatch", "combine") for part in ("transmit", "notify", "avg_t")}
    times |= {"dispatch_sms": 20, "combine_sms": 20}
    rows = [deepep(nodes=8, **times), deepep(gpu="h200-sxm", **times)]
    assert not list(exchanges.normal(rows))
    assert len(list(exchanges.normal(rows, congested=True))) == 2
    assert len(list(exchanges.low_latency(rows))) == 2


def test_what_prepares_a_dispatch_is_part_of_it() -> None:
    shape = {"gpu": "gb200", "kernel_source": "NVLinkTwoSided", "moe_dtype": "nvfp4", "num_tokens": 64}
    shape |= {"hidden_size": 7168, "topk": 8, "num_experts": 256, "moe_ep_size": 16}
    times = {"alltoall_prepare": 0.010, "alltoall_dispatch": 0.020, "alltoall_combine": 0.030}
    rows = [SimpleNamespace(op_name=name, latency_ms=latency, **shape) for name, latency in times.items()]
    found = list(exchanges.nvlink(rows))
    assert [row.measurement.seconds for row in found] == pytest.approx([30e-6, 30e-6])
    assert [row.measurement.op.label for row in found] == ["nvfp4", "bf16"]


def measured(shared: Path) -> list[Row]:
    folder = shared / "measured/kernels"
    rows = [row for name, reader in EXCHANGES.items() for row in reader(_records(_frame(folder, name)))]
    rows += exchanges.normal(_records(_frame(folder, "deepep_normal")), congested=True)
    return [*rows, *_nccl(folder), *read_table(folder, "allreduce_custom")]


def test_no_measured_collective_beats_the_ideal(shared: Path) -> None:
    """Every timing of NCCL, of the engines' own all-reduce, of DeepEP and of TensorRT-LLM's all-to-all."""
    rows = measured(shared)
    ideal = [float(price(row.measurement.op, load_hardware(row.gpu), IDEAL).time) for row in rows]
    faster = Counter(
        f"{row.kernel} {row.gpu}" for row, seconds in zip(rows, ideal) if row.measurement.seconds < seconds
    )
    assert (len(rows), faster) == (26141, {})
