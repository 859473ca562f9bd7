"""Masks of structured decoding: what a service loses by them, and what one takes."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from inferplan.catalog.assemble import Request, assemble, load_engine
from inferplan.catalog.files import config_root
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.structured import Structured, StructuredEstimate, mask_filling
from tools.accuracy.parts.rows import Part, PartRow, published

ASKED = Structured(share=1.0, library="xgrammar", cores=16)
FILLING = mask_filling(load_engine("vllm"))
AT_ONCE = 1024
"""Sequences in a step of vLLM by default, on a GPU of 70 GB or more; eight threads gain the same with 256."""

LINK = 63e9
"""Bytes per second from the host, PCIe 5.0 x16."""


def _quoted() -> dict[str, dict[str, float]]:
    """The figures of ``masks.csv``: of each source, each arm."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    with (config_root().parent / "tests" / "benchmarks" / "masks.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found[row["source"]][row["arm"]] = float(row["value"])
    return found


def masks_part(shared: Path) -> Part:
    """Pairs of arms of services, and means of masks alone."""
    return Part(name="Masks", rows=[*_services(shared), *_alone(shared)])


def _services(shared: Path) -> list[PartRow]:
    rows = published(shared, "structured")
    v0 = {
        row["grammar_backend"]: float(row["value"])
        for row in rows
        if row["source"] == "vllm-project/vllm#10835" and row["quantity"] == "output_throughput"
    }
    each = {row["arm"]: float(row["value"]) for row in rows if row["source"] == "flagos-ai/vllm-plugin-FL#414"}
    slow, fast = each["per-request mask fill"], each["batched mask fill + tuned MoE config"]
    quoted = _quoted()
    hidden, threads = quoted["vllm 24300"], quoted["vllm 21862"]
    tokens, each_mask = quoted["tt-inference-server 2994"]["tokens of an answer"], 1e6 * ASKED.each(FILLING)
    found = [
        PartRow(
            source="vllm 10835",
            case="vLLM V0, Llama 3.1 8B, XGrammar, 20 sequences: seconds that masks add to a step",
            measured=1e3 * (20 / v0["XGrammar"] - 20 / v0["none"]),
            predicted=1e3 * ASKED.fill(20, FILLING),
            unit="ms",
            fitted=True,
        ),
        PartRow(
            source="vllm 24300",
            case="vLLM, Qwen3-8B, XGrammar, xgrammar_bench, 100 sequences: saved per token by masks behind the pass",
            measured=1e6 * (1 / hidden["masks before the pass"] - 1 / hidden["masks behind the pass"]),
            predicted=each_mask,
            unit="us",
            fitted=True,
        ),
        PartRow(
            source="vllm 21862",
            case="vLLM, Qwen3-1.7B, XGrammar, schema of seven fields: saved per token by eight threads",
            measured=1e6 * (1 / threads["one after another"] - 1 / threads["on eight threads"]) / tokens,
            predicted=each_mask - 1e6 * ASKED.fill(AT_ONCE, FILLING) / AT_ONCE,
            unit="us",
        ),
        PartRow(
            source="vllm-plugin-FL 414",
            case="vLLM 0.24, Qwen3.6-35B-A3B, H100, XGrammar, MTP 1, 64 sequences: one by one over in batches",
            measured=1e3 * 64 * 1.8 * (1 / slow - 1 / fast),
            predicted=1e3 * (ASKED.fill(128, FILLING, serial=True) - ASKED.fill(144, FILLING)),
            unit="ms",
        ),
    ]
    return found + [_behind(quoted["vllm 26866"], share) for share in ("0.2", "0.8", "1")]


def _behind(arms: dict[str, float], share: str) -> PartRow:
    """What 128 tokens of each of 800 sequences gain by masks behind the pass, per masked token. With 256 at a time the
    eight threads would take a tenth less."""
    before, behind = arms[f"before the pass, share {share}"], arms[f"behind the pass, share {share}"]
    masks = round(800 * float(share))
    return PartRow(
        source="vllm 26866",
        case=f"vLLM, Qwen3-1.7B, 800 sequences, {masks} masks a step: saved per masked token by masks behind the pass",
        measured=1e6 * (1 / before - 1 / behind) / (128 * float(share)),
        predicted=1e6 * ASKED.fill(masks, FILLING) / masks,
        unit="us",
    )


def _alone(shared: Path) -> list[PartRow]:
    """Means of masks that were filled without an engine, of other schemas, releases or processors than MaskBench's."""
    quoted = _quoted()
    plain = quoted["xgrammar 852"]["273 masks, no bound on the string"]
    usual = next(row for row in published(shared, "structured") if row["quantity"] == "tbm_typical")
    means = [
        ("xgrammar 852", "xgrammar", "an object with one string, 163,840 tokens", 1e3 * plain / 273),
        ("llguidance, README", "llguidance", "vocabulary of 128k, one core: a usual mask", float(usual["value"])),
    ]
    for source, said in (
        ("jsonschemabench 14", "1,707 schemas of function calls, macOS"),
        ("jsonschemabench aa8d24f", "releases before MaskBench's, 10,163 schemas, its server"),
        ("grid 0.4.0", "releases of 2026, 11,306 schemas, macOS"),
    ):
        means += [(source, library, said, quoted[source][library]) for library in ("xgrammar", "llguidance")]
    names = {"xgrammar": "XGrammar", "llguidance": "LLGuidance"}
    return [
        PartRow(
            source=source,
            case=f"{names[library]}, {said}",
            measured=mean,
            predicted=1e6 * replace(ASKED, library=library).each(FILLING),
            unit="us",
        )
        for source, library, said, mean in means
    ]


def hidden_part(shared: Path) -> Part:
    """Steps whose masks are filled behind the pass, over the same steps without masks."""
    quoted = _quoted()
    deployment = assemble(Request(model="qwen2.5-7b-instruct", gpu="h100-sxm", engine="vllm@0.26"))
    asked = Structured(share=1.0, mask_time=1e-6 * quoted["grid 0.4.0"]["grid"], cores=16, bandwidth=LINK)
    found = []
    for arm, percent in quoted["grid 0.4.0 serving"].items():
        load = StaticLoad(batch=float(arm.partition(" ")[0]), prompt=512.0, output=128.0)
        made = StructuredEstimate(deployment=deployment, load=load, structured=asked)
        found.append(
            PartRow(
                source="GRID 0.4.0",
                case=f"vLLM 0.26, Qwen2.5-7B, H100, {arm}: TPOT with masks over without",
                measured=1 + percent / 100,
                predicted=float(made.tpot) / float(made.plain_tpot),
                unit="TPOT",
            )
        )
    return Part(name="Masks, behind the pass", rows=found)
