"""Masks of structured decoding: what a service loses by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from inferplan.catalog.assemble import load_engine
from inferplan.estimate.structured import Structured, mask_filling
from tools.accuracy.parts.rows import Part, PartRow, published


def masks_part(shared: Path) -> Part:
    """The rows of ``structured.csv`` with two arms."""
    rows = published(shared, "structured")
    asked = Structured(share=1.0, library="xgrammar", cores=16)
    filling = mask_filling(load_engine("vllm"))
    v0 = {
        row["grammar_backend"]: float(row["value"])
        for row in rows
        if row["source"] == "vllm-project/vllm#10835" and row["quantity"] == "output_throughput"
    }
    each = {row["arm"]: float(row["value"]) for row in rows if row["source"] == "flagos-ai/vllm-plugin-FL#414"}
    slow, fast = each["per-request mask fill"], each["batched mask fill + tuned MoE config"]
    found = [
        PartRow(
            source="vllm 10835",
            case="vLLM V0, Llama 3.1 8B, XGrammar, 20 sequences: seconds that masks add to a step",
            measured=1e3 * (20 / v0["XGrammar"] - 20 / v0["none"]),
            predicted=1e3 * asked.fill(20, filling),
            unit="ms",
        ),
        PartRow(
            source="vllm-plugin-FL 414",
            case="vLLM 0.24, Qwen3.6-35B-A3B, H100, XGrammar, MTP 1, 64 sequences: one by one over in batches",
            measured=1e3 * 64 * 1.8 * (1 / slow - 1 / fast),
            predicted=1e3 * (asked.fill(128, filling, serial=True) - asked.fill(144, filling)),
            unit="ms",
        ),
    ]
    usual = next(row for row in rows if row["quantity"] == "tbm_typical")
    found.append(
        PartRow(
            source="llguidance, README",
            case="LLGuidance, vocabulary of 128k, one core, JSON schemas: a usual mask",
            measured=float(usual["value"]),
            predicted=1e6 * replace(asked, library="llguidance").each(filling),
            unit="us",
        )
    )
    return Part(name="Masks", rows=found)
