"""Cache tiers: the seconds in which a cache comes back, or goes from one replica to another."""

from __future__ import annotations

from pathlib import Path

from inferplan.catalog.assemble import Request, assemble
from inferplan.serving.first_token import IdlePrompt, first_token
from tools.accuracy.parts.rows import Part, PartRow, published

PEAK = 200e9
"""Bytes a second that the source of the transfers takes as the peak of eight ConnectX-7."""
SIZES = {"MB": 1e6, "GB": 1e9}
H20 = 98304.0
"""Bytes that a token of Qwen3-Coder-30B-A3B keeps (48 layers x 2 x 4 heads x 128 x 2 B)."""


def tiers_part(shared: Path) -> Part:
    """Transfers of ``kv_offload.csv``, and hits in host memory."""
    return Part(name="Cache tiers", rows=[*_transfers(shared), *_hits(shared)])


def _transfers(shared: Path) -> list[PartRow]:
    rows = []
    for row in published(shared, "kv_offload"):
        if row["quantity"] == "kv_transfer_time":
            size, unit = row["kv_size"].split()
            rows.append(
                PartRow(
                    source="Mooncake, vllm-v1-pd-performance",
                    case=f"Qwen3-8B, tp 8, 8 x ConnectX-7 at 200 GB/s, {row['kv_size']}",
                    measured=float(row["value"]),
                    predicted=1e3 * float(size) * SIZES[unit] / PEAK,
                    unit="ms",
                )
            )
    return rows


def _hits(shared: Path) -> list[PartRow]:
    """Prompts found in host memory: 10,000 tokens of Llama 3.1 8B on H800 (PegaFlow), TTFT at the server; and what a
    hit there takes beyond one on the device (Qwen3-Coder-30B-A3B on H20, vLLM 0.18.1, copies of 54 GB/s)."""
    warm = next(
        row
        for row in published(shared, "kv_offload")
        if row["quantity"] == "mean_ttft" and row["arm"] == "warm (host hit)" and row["gpu"] == "H800"
    )
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h800", engine="vllm"))
    kept = 131072.0 * 9984
    first = first_token(deployment, IdlePrompt(new=16.0, cached=9984.0, budget=8192, load=kept / 54e9))
    beyond = [(1024.0, 57.0 - 42.0), (65536.0, 272.0 - 111.0)]
    return [
        PartRow(
            source="vLLM blog on PegaFlow",
            case="Llama 3.1 8B, H800, 10,000 tokens in host memory at 54 GB/s, TTFT",
            measured=float(warm["value"]),
            predicted=1e3 * float(first.at_server),
            unit="ms",
        ),
        *(
            PartRow(
                source="agentic-kvc v2, experiment a",
                case=f"Qwen3-Coder-30B-A3B, H20, {tokens:,.0f} tokens, host at 54 GB/s, beyond a hit on the device",
                measured=milliseconds,
                predicted=1e3 * tokens * H20 / 54e9,
                unit="ms",
            )
            for tokens, milliseconds in beyond
        ),
    ]
