"""Agents as they are measured in public: lanes that send one call of a session after another (AgentX)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from inferplan.catalog.assemble import Request, assemble
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from inferplan.work.parallel import Parallelism
from tools.accuracy.parts.rows import Part, PartRow, published

PROMPT, ANSWER = 135_000.0, 850.0
"""Tokens of a call where a source states no rates to divide: those of the same traces in another's words."""
CALLS = 12
"""Of each lane, and in all where there are few lanes."""


class _Lanes(NamedTuple):
    """Calls of so many lanes, of which a share of each prompt is found in the cache."""

    request: Request
    flags: Flags
    lanes: int
    prompt: float
    answer: float
    found: float


def agents_part(shared: Path) -> Part:
    """Medians of the arms of ``agentic_autoscaling.csv`` that state their hits, and keep most of what they read."""
    arms: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for row in published(shared, "agentic_autoscaling"):
        if row["model"] in ("DeepSeek-V4-Pro", "GLM-5.2") and row["concurrency"]:
            keys = ("source", "engine", "model", "gpu", "arm", "concurrency")
            arms[tuple(row[key] for key in keys)][row["quantity"]] = float(row["value"])
    rows = [one for key, told in arms.items() for one in _rows(key, told)]
    return Part(name="Agents", rows=rows)


def _rows(key: tuple[str, ...], told: dict[str, float]) -> Iterator[PartRow]:
    source, engine, model, gpu, arm, lanes = key
    found = told.get("realized_prefix_hit", 100 * told.get("gpu_kv_hit_rate", 0.0)) / 100
    again = engine == "ATOM PR1640" and "sweep" not in arm
    if found < 0.9 or "DPA" in arm or again:
        return
    asked, itl = _asked(key, told, found)
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=asked.lanes),
        prompt=Lengths(mean=asked.prompt),
        output=Lengths(kind="lognormal", mean=asked.answer, spread=1.0),
        requests_count=CALLS * max(asked.lanes, 4),
    )
    run = simulate(assemble(asked.request), traffic, asked.flags, Options(hit_rate=asked.found))
    gap = run.percentiles("itl_s")["p50"] or float(np.median(run.tpot))
    said = f"{model}, {gpu} x 8, {engine.removesuffix(' PR1640')}, {lanes} lanes{', util 0.9' if '0.9' in arm else ''}"
    name = source.partition("@")[0].partition(" (")[0]
    for what, measured, predicted, unit in (
        ("ITL p50", itl, 1e3 * gap, "ms"),
        ("TTFT p50", told["ttft_p50"], float(np.median(run.ttft)), "s"),
    ):
        yield PartRow(source=name, case=f"{said}: {what}", measured=measured, predicted=predicted, unit=unit)


def _asked(key: tuple[str, ...], told: dict[str, float], found: float) -> tuple[_Lanes, float]:
    """How an arm is deployed, and the milliseconds between its tokens."""
    _, engine, model, _, _, lanes = key
    eight, count = Parallelism(tp=8), int(lanes)
    if model == "GLM-5.2":
        request = Request(model="glm-5.2", gpu="b300-hgx", quant="nvfp4", engine="sglang", parallel=eight)
        return _Lanes(request, Flags(), count, PROMPT, ANSWER, found), 1e3 / told["interactivity_p50"]
    prompt = told["input_throughput_incl_cached"] / told["request_throughput"]
    answer = told["output_throughput"] / told["request_throughput"]
    name = engine.split()[0].lower()
    request = Request(model="deepseek-v4-pro", gpu="mi355x", roles=(("kv", "fp8"),), engine=name, parallel=eight)
    return _Lanes(request, Flags(gpu_memory_utilization=0.9), count, prompt, answer, found), told["itl_p50"]
