"""Tables of dispatch and combine into measurements: DeepEP over 1 to 8 nodes, TensorRT-LLM inside an NVLink rack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from calibrate.fit import Measurement
from inferplan.work.formats import find_format
from inferplan.work.ops import Direction, Exchange, ExchangeMode
from tools.fitting.tables.row import Row

LIBRARY = "exchange"
"""Engines share these kernels."""
DIRECTIONS: tuple[Direction, ...] = ("dispatch", "combine")
NODE = 8
"""GPUs of a node in DeepEP's benchmarks."""
MOST_GROUPS = 4
"""Over several nodes DeepEP's benchmark of normal mode lets a token choose experts on at most so many of them."""
CONGESTED = 8
"""Nodes at which the table of normal mode is left out: dispatching 4,096 tokens takes 5.5 ms where DeepEP publishes
2.2 (docs/legacy.md), and the notification of a combine 8 ms."""
_TRAVELS = {"bfloat16": "bf16", "fp8": "fp8", "nvfp4": "nvfp4"}


def deepep(row: Any, direction: Direction, mode: ExchangeMode, **fields: Any) -> Exchange:
    """The exchange of a row of DeepEP's tables."""
    nodes = int(row.node_num)
    grouped = mode == "normal" and nodes > 1
    return Exchange(
        name=direction,
        direction=direction,
        mode=mode,
        tokens=float(row.num_token),
        width=int(row.hidden_size),
        experts=int(row.num_experts),
        top_k=int(row.num_topk),
        parts=NODE * nodes,
        group=NODE * nodes,
        span=NODE * nodes,
        format=find_format("fp8-tile" if direction == "dispatch" else "bf16"),
        groups=nodes if grouped else 1,
        top_groups=min(nodes, MOST_GROUPS) if grouped else 1,
        **fields,
    )


def _copied_row(row: Any) -> bool:
    """The rows of the H200 in version 0.5.0 are the H100's."""
    return bool(row.gpu == "h200-sxm" and row.version == "0.5.0")


def low_latency(records: Iterable[Any]) -> Iterator[Row]:
    """DeepEP's low-latency kernels: every row twice, as dispatch and as combine."""
    for row in records:
        if _copied_row(row):
            continue
        for direction in DIRECTIONS:
            op = deepep(row, direction, "low_latency")
            seconds = float(getattr(row, f"{direction}_avg_t_us")) * 1e-6
            yield Row(str(row.gpu), LIBRARY, "DeepEP", Measurement(op=op, seconds=seconds, source="DeepEP"))


def normal(records: Iterable[Any], congested: bool = False) -> Iterator[Row]:
    """DeepEP's normal kernels, with the notification ahead of each. congested: those of eight nodes instead."""
    for row in records:
        if _copied_row(row) or (row.node_num >= CONGESTED) != congested:
            continue
        for direction in DIRECTIONS:
            op = deepep(row, direction, "normal", blocks=int(getattr(row, f"{direction}_sms")))
            parts = (getattr(row, f"{direction}_{part}_us") for part in ("transmit", "notify"))
            measured = Measurement(op=op, seconds=sum(map(float, parts)) * 1e-6, source="DeepEP")
            yield Row(str(row.gpu), LIBRARY, "DeepEP", measured)


def nvlink(records: Iterable[Any]) -> Iterator[Row]:
    """TensorRT-LLM's kernels through NVLink memory; their benchmark deals a token's experts evenly over the ranks.

    Dispatch includes the kernel that prepares it, where there is one. Sums in low precision are left out.
    """
    rows = list(records)
    prepared = {_case(row): float(row.latency_ms) for row in rows if row.op_name == "alltoall_prepare"}
    for row in rows:
        direction = row.op_name.removeprefix("alltoall_")
        if direction not in DIRECTIONS:
            continue
        ranks, dispatch = int(row.moe_ep_size), direction == "dispatch"
        op = Exchange(
            name=direction,
            direction=direction,
            mode="nvlink",
            tokens=float(row.num_tokens),
            width=int(row.hidden_size),
            experts=int(row.num_experts),
            top_k=int(row.topk),
            parts=ranks,
            group=ranks,
            span=ranks,
            format=find_format(_TRAVELS[row.moe_dtype] if dispatch else "bf16"),
            balanced=True,
        )
        spent = float(row.latency_ms) + (prepared.get(_case(row), 0.0) if dispatch else 0.0)
        kernel = str(row.kernel_source)
        yield Row(str(row.gpu), LIBRARY, kernel, Measurement(op=op, seconds=spent * 1e-3, source=kernel))


def _case(row: Any) -> tuple[Any, ...]:
    return row.gpu, row.kernel_source, row.moe_dtype, row.num_tokens, row.moe_ep_size
