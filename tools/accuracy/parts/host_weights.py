"""Layers and experts that the host computes, and prompts whose weights are copied from it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_model
from inferplan.catalog.offload import OffloadAsked
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.serving.first_token import IdlePrompt, first_token
from tools.accuracy.parts.rows import Part, PartRow, published, short

FORMATS = {
    "GGUF UD-Q4_K_XL": "q4_k_m",
    "GGUF IQ4_K_R4": "q4_k_m",
    "GGUF BF16": "bf16",
    "GGUF Q8_0": "q8_0",
    "GGUF Q5_0": "q5_0",
    "GGUF Q4_0": "q4_0",
    "GGUF Q4_K_S": "q4_k_s",
    "GGUF Q6_K": "q6_k",
    "GGUF MXFP4": "native",
}
HOSTS = {
    "1x AMD EPYC 9355 (32 cores)": ("epyc-9355", "700GB"),
    "Intel Xeon 8480 (ES)": ("xeon-8480plus", "500GB"),
    "AMD Ryzen 7950X": ("ryzen-9-7950x", "60GB"),
    "Intel 14900K": ("core-i9-14900k", "90GB"),
}
MODELS = {
    "DeepSeek-V3-0324": "deepseek-v3",
    "Qwen3-235B-A22B": "qwen3-235b-a22b",
    "LLaMA-3.1-8B-Instruct": "llama-3.1-8b",
    "gpt-oss-120b": "gpt-oss-120b",
}
CARDS = {"RTX 4090 (PCIe 4.0 x16)": "rtx-4090", "RTX 5090 (PCIe 5.0 x16)": "rtx-5090"}
UNNAMED = {"Intel Xeon 8480 (ES)": "rtx-pro-6000-ws", "Intel 14900K": "rtx-3090"}
"""Cards of sources that do not name theirs, as docs/offload.md takes them."""
FITTED = {"DeepSeek-V3-0324 UD-Q4_K_XL", "Qwen3-235B-A22B UD-Q4_K_XL", "gpt-oss-120b MXFP4"}
"""Systems whose tokens are the source of ``reads_experts``."""


class _Where(NamedTuple):
    """card: none where the processor computes everything."""

    model: str
    card: str
    quant: str
    host: str
    memory: str


class _Asked(NamedTuple):
    """One speed of a row: of a prompt of so many tokens, or of the tokens behind so many."""

    where: _Where
    engine: str
    prompt: bool
    tokens: float
    cached: float


def host_part(shared: Path) -> Part:
    """Tokens of the rows of ``cpu_offload.csv`` whose host and card are on file."""
    return Part(name="Weights and experts on the host", rows=list(_rows(shared, prompts=False)))


def host_prompts_part(shared: Path) -> Part:
    """Prompts of such rows, those behind a cache too."""
    return Part(name="Weights and experts on the host, prompts", rows=list(_rows(shared, prompts=True)))


def _rows(shared: Path, prompts: bool) -> Iterator[PartRow]:
    for row in published(shared, "cpu_offload"):
        where, depth = _where(row), float(row["n_kv_before"] or 0)
        if where is None or row["quantity"] != ("prompt_speed" if prompts else "generation_speed"):
            continue
        if _says_nothing(row, prompts):
            continue
        tokens = float(row["prompt_tokens"] or 0)
        new = tokens or 512.0 if prompts else max(depth, tokens)
        asked = _Asked(where, row["engine"], prompts, new, depth)
        behind = f" behind {depth:.0f}" if depth else ""
        said = f"prompts of {new:.0f}{behind}" if prompts else f"tokens behind {new:.0f}"
        yield PartRow(
            source=short(row["source"]),
            case=f"{row['engine']}, {row['model']}, {row['format']}, {where.card or 'no card'}, {row['cpu']}, {said}",
            measured=float(row["value"]),
            predicted=_speed(asked),
            unit="tokens/s",
            fitted=_fitted(row, prompts),
        )


def _fitted(row: dict[str, str], prompts: bool) -> bool:
    """Whether constants were taken from a row: F of both engines' prompts, ``reads_experts`` of tokens."""
    if prompts:
        return row["cpu"] == "AMD Ryzen 7950X" and (row["engine"], row["format"]) != ("llama.cpp", "GGUF Q5_0")
    return f"{row['model']} {row['format'].removeprefix('GGUF ')}" in FITTED


def _says_nothing(row: dict[str, str], prompts: bool) -> bool:
    """Whether a row's conditions are not those of a price: prompts over the link of a card that nobody names, and
    tokens of two threads whose kernels, not the memory, bind them."""
    if prompts:
        return row["engine"] == "llama.cpp" and row["cpu"] == "Intel 14900K"
    return row["engine"] == "llama.cpp" and row["threads"] == "2" and row["format"] != "GGUF BF16"


def _where(row: dict[str, str]) -> _Where | None:
    """How a row is deployed; ``None`` where something of it is not on file."""
    cpu, alone = row["cpu"], row["gpu"] == "none (CPU)"
    card = "" if alone else CARDS.get(row["gpu"]) or UNNAMED.get(cpu)
    known = cpu in HOSTS and row["format"] in FORMATS and row["model"] in MODELS and "blk" not in row["placement"]
    return (
        _Where(MODELS[row["model"]], card, FORMATS[row["format"]], *HOSTS[cpu]) if known and card is not None else None
    )


def _speed(asked: _Asked) -> float:
    """Tokens a second of one sequence."""
    deployed = _deployed(asked.where, asked.engine)
    if asked.prompt:
        first = first_token(deployed, IdlePrompt(new=asked.tokens, cached=asked.cached, budget=8192))
        return asked.tokens / float(first.alone)
    found = Estimate(deployment=deployed, load=StaticLoad(prompt=max(asked.tokens, 1.0), output=128.0))
    return 1.0 / float(found.tpot)


@cache
def _deployed(where: _Where, engine: str) -> Deployment:
    if not where.card:
        alone = Request(model=where.model, gpu=where.host, quant=where.quant, engine=engine, memory=where.memory)
        return assemble(alone)
    layers = len(load_model(where.model).sequence)
    placed = OffloadAsked(cpu_moe_layers=layers, host=where.host, host_memory=where.memory)
    return assemble(Request(model=where.model, gpu=where.card, quant=where.quant, engine=engine, offload=placed))
