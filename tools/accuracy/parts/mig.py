"""MIG instances: an engine on half an H200."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from inferplan.catalog.assemble import Request, assemble
from inferplan.serving.flags import Flags
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import Requests
from tools.accuracy.parts.rows import Part, PartRow, published

PROMPT, ANSWER = 800, 128
ARMS: dict[str, tuple[str, str, int | None]] = {
    "stock V1 defaults": ("native", "", None),
    "max_model_len=2668": ("native", "", None),
    "prefix caching off": ("native", "", None),
    "max_num_batched_tokens=2668": ("native", "", 2668),
    "max_num_batched_tokens=8192": ("native", "", 8192),
    "max_num_batched_tokens=65536": ("native", "", 65536),
    "batch 1024": ("native", "", None),
    "batch 2048": ("native", "", None),
    "fp8 weights": ("fp8", "", None),
    "fp8 KV only": ("native", "fp8", None),
    "fp8 weights + fp8 KV": ("fp8", "fp8", None),
}
"""Formats of weights and cache, and the token budget. A shorter context and no prefix cache change nothing here:
prompts are short, and share no text."""


def mig_part(shared: Path) -> Part:
    """The rows of ``mig.csv`` whose flags are priced, each on both profiles that they may be of."""
    rows = []
    for row in published(shared, "mig"):
        if "MIG slice" not in row["gpu"] or row["arm"] not in ARMS:
            continue
        quant, cache, budget = ARMS[row["arm"]]
        for profile in ("3g.71gb", "4g.71gb"):
            request = Request(
                model="llama-3.1-8b",
                gpu=f"h200-sxm:{profile}",
                quant=quant,
                roles=(("kv", cache),) if cache else (),
                engine="vllm@0.18",
            )
            count = int(row["batch"])
            sent = Requests(prompt=np.full(count, PROMPT), output=np.full(count, ANSWER), arrival=np.zeros(count))
            run = simulate(assemble(request), sent, Flags(max_num_batched_tokens=budget))
            rows.append(
                PartRow(
                    source="llama31b-benchmark",
                    case=f"{row['arm']}, batches of {count:,}, as {profile}",
                    measured=float(row["value"]),
                    predicted=count * ANSWER / float(np.max(run.records.finish)),
                    unit="tokens/s",
                )
            )
    return Part(name="MIG", rows=rows)
