"""MIG instances: an engine on half an H200."""

from __future__ import annotations

from pathlib import Path

from inferplan.catalog.assemble import Request, assemble
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from tools.accuracy.parts.rows import Part, PartRow, published

PROMPT, ANSWER = 800.0, 128.0
ARMS = {
    "stock V1 defaults": ("native", ""),
    "fp8 weights": ("fp8", ""),
    "fp8 KV only": ("native", "fp8"),
    "fp8 weights + fp8 KV": ("fp8", "fp8"),
}


def mig_part(shared: Path) -> Part:
    """The rows of ``mig.csv`` of batches of 16, on both profiles that they may be of."""
    rows = []
    for row in published(shared, "mig"):
        if "MIG slice" not in row["gpu"] or row["batch"] != "16" or row["arm"] not in ARMS:
            continue
        for profile in ("3g.71gb", "4g.71gb"):
            quant, cache = ARMS[row["arm"]]
            request = Request(
                model="llama-3.1-8b",
                gpu=f"h200-sxm:{profile}",
                quant=quant,
                roles=(("kv", cache),) if cache else (),
                engine="vllm",
            )
            found = Estimate(deployment=assemble(request), load=StaticLoad(batch=16.0, prompt=PROMPT, output=ANSWER))
            seconds = float(found.ttft) + (ANSWER - 1) * float(found.tpot)
            rows.append(
                PartRow(
                    source="llama31b-benchmark",
                    case=f"{row['arm']}, as {profile}",
                    measured=float(row["value"]),
                    predicted=16.0 * ANSWER / seconds,
                    unit="tokens/s",
                )
            )
    return Part(name="MIG", rows=rows)
