"""Cache tiers: the seconds in which a cache comes back, or goes from one replica to another; and what writing costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.hardware import Link
from inferplan.estimate.deployment import Deployment
from inferplan.serving.cache_transfer import Transfer
from inferplan.serving.first_token import IdlePrompt, first_token
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from inferplan.work.parallel import Parallelism
from tools.accuracy.parts.rows import Part, PartRow, published

NIC = Link.model_validate({"name": "ConnectX-7", "bandwidth": "25 GB/s"})
"""One of eight, by the peak that the source of the transfers takes; each rank has its own."""
FITTED = (128, 512, 2048, 8192, 32768)
"""Prompts of the transfers that ``reached`` and ``latency`` of configs/engines were taken from: every second one."""
H20 = 98304.0
"""Bytes that a token of Qwen3-Coder-30B-A3B keeps (48 layers x 2 x 4 heads x 128 x 2 B)."""
GIB = 2.0**30
NICS = 8 * 50e9
"""Bytes a second of 8 x 400 Gbit/s."""


def tiers_part(shared: Path) -> Part:
    """Transfers of ``kv_offload.csv``, and hits in host memory."""
    return Part(name="Cache tiers", rows=[*_transfers(shared), *_hits(shared)])


def writing_part(shared: Path) -> Part:
    """Servers whose connector writes down what it finds nothing of."""
    return Part(name="Cache tiers, writing", rows=list(_writes(shared)))


def _transfers(shared: Path) -> Iterator[PartRow]:
    """Mooncake's table, whose sizes and rates are in MiB and GiB: 128 tokens of Qwen3-8B (147,456 B) are "20 MB", of
    which one block of 16 tokens beyond them; and a production's reads of 1 GiB and more, as those of 1 GiB."""
    served = assemble(Request(model="qwen3-8b", gpu="h800", engine="vllm@0.12", parallel=Parallelism(tp=8)))
    inside = [link for link in served.hardware.links if link.domain is not None]
    there = replace(served, hardware=served.hardware.model_copy(update={"links": [*inside, NIC]}))
    way = Transfer.between(there, there)
    rows = published(shared, "kv_offload")
    for row in rows:
        if row["quantity"] == "mean_ttft" and row["engine"] == "vLLM MooncakeConnector":
            tokens = int(row["input_tokens"])
            yield PartRow(
                source="Mooncake, vllm-v1-pd-performance",
                case=f"the same, TTFT of one user, {tokens:,} tokens",
                measured=float(row["value"]),
                predicted=1e3 * _ttft(there, tokens),
                unit="ms",
            )
        if row["quantity"] == "kv_transfer_time":
            tokens = int(row["input_tokens"])
            yield PartRow(
                source="Mooncake, vllm-v1-pd-performance",
                case=f"Qwen3-8B, tp 8, 8 x ConnectX-7 at 200 GB/s, {tokens:,} tokens",
                measured=float(row["value"]),
                predicted=1e3 * way.of(tokens),
                unit="ms",
                fitted=tokens in FITTED,
            )
    mean = next(float(row["value"]) for row in rows if row["quantity"] == "effective_bandwidth_mean")
    apart = served.engine.apart
    yield PartRow(
        source="vLLM blog on PegaFlow",
        case="reads of 1 GiB and more from another node over 8 x 400 Gbit/s, as 1 GiB",
        measured=1e3 * GIB / (mean * 1e9),
        predicted=1e3 * (apart.latency + GIB / (apart.reached * NICS)),
        unit="ms",
    )


def _ttft(served: Deployment, tokens: int) -> float:
    """Seconds to the first token of one user whose prompts are computed on one replica and decoded on another."""
    one = Traffic(
        arrivals=ClosedLoop(concurrency=1), prompt=Lengths(mean=tokens), output=Lengths(mean=128), requests_count=20
    )
    run = simulate(served, one, options=Options(fleet=Fleet(prefill=1, decode=1)))
    return float(run.ttft.mean())


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


def _writes(shared: Path) -> Iterator[PartRow]:
    """With a connector over without, where it finds nothing, or all is on the device: 1, for writing is free."""
    rows = [
        row for row in published(shared, "kv_offload") if row["quantity"] in ("output_throughput", "mean_ttft_query")
    ]
    found = {(row["workload"], row["input_tokens"], row["arm"]): float(row["value"]) for row in rows}
    for (load, tokens, arm), without in found.items():
        if arm != "without LMCache":
            continue
        idle = found.get((load, tokens, "with LMCache, 0 hits"))
        ratio = without / idle if idle is not None else found[load, tokens, "with LMCache"] / without
        yield PartRow(
            source="LMCache 1741" if idle is not None else "gpustack, LMCache",
            case=f"{load}{f', {tokens} tokens' if tokens else ''}: with LMCache over without",
            measured=ratio,
            predicted=1.0,
            unit="speed",
        )
    own = next(
        float(row["value"]) for row in published(shared, "kv_offload") if "custom_kernel_vs_no" in row["quantity"]
    )
    for_copies = next(
        float(row["value"])
        for row in published(shared, "kv_offload")
        if row["quantity"].endswith("_throughput_at_0pct_hit")
    )
    for way, ratio in (("kernel", 1 + own / 100), ("copies", (1 + own / 100) * (1 + for_copies / 100))):
        yield PartRow(
            source="vLLM blog on its connector",
            case=f"Llama 3.2 1B, H100, prompts of 512 tokens, no hits, written by a {way}: with over without",
            measured=ratio,
            predicted=1.0,
            unit="speed",
        )
