"""Factors learned from an independent replay of vLLM's scheduler: prompts in pieces beside decodes, in an open loop
whose rate and lengths change, with noise, and with records and fields missing. What went in comes back within 3 %.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

from inferplan.catalog.assemble import Request, assemble
from inferplan.learning.factors import Kernels
from inferplan.learning.fit import learn
from inferplan.learning.records import read_records
from inferplan.serving.step_times import Chunk, Reach, step_times
from tests.cases import for_each

TRUE = {"host": 0.002, "sequence": 3e-5, "prompt": 1.2, "cache": 1.3}
PHASES = ((1, 300, 200, 12), (20, 400, 120, 110), (4, 5000, 100, 30), (12, 900, 250, 90), (1, 8000, 200, 8),
          (30, 150, 200, 150), (3, 600, 300, 20))  # fmt: skip
"""Requests a second, mean tokens of prompts and of answers, and how many requests."""
POOL = 400_000
Steps = list[tuple[list[int], list[tuple[int, int]], float]]
"""Contexts of the decodes of a step, new and cached tokens of its pieces of prompts, and its seconds."""


def oracle(shared: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("vllm_v1_replay", shared / "oracles" / "vllm_v1_replay.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["vllm_v1_replay"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def replayed(replay: ModuleType, draw: np.random.Generator) -> Steps:
    """The steps of a server whose factors are :data:`TRUE`, each off by 5 % of noise."""
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", quant="bf16"))
    took = step_times(Kernels(deployment).deployed(TRUE), Reach(sequences=200, tokens=8192, context=20_000))
    requests, steps, now = [], Steps(), 0.0
    for rate, prompt, output, count in PHASES * 2:
        for _ in range(count):
            now += draw.exponential(1 / rate)
            sizes = [max(2, int(mean * draw.lognormal(-0.1, 0.5))) for mean in (prompt, output)]
            requests.append(replay.Request(now, *sizes))
        now += draw.exponential(4.0)

    def step(decodes: list[int], chunks: list[tuple[int, int]]) -> float:
        context = float(np.mean(decodes)) if decodes else 0.0
        new, pairs = sum(n for n, _ in chunks), sum(n * past + n * (n + 1) / 2 for n, past in chunks)
        exact = took.mixed(len(decodes), context, Chunk(len(chunks), new, pairs))
        seconds = float(exact * np.exp(draw.normal(0.0, 0.05)))
        if decodes or chunks:
            steps.append((list(decodes), list(chunks), seconds))
        return seconds

    replay.replay(requests, step, slots=160, budget=8192, blocks=60_000)
    return steps


def records(steps: Steps, draw: np.random.Generator) -> str:
    """Forward-pass metrics, of which one in five was never written."""
    lines = []
    for decodes, chunks, seconds in steps:
        scheduled = {"num_prefill_requests": len(chunks), "sum_prefill_tokens": sum(new for new, _ in chunks),
                     "sum_prefill_kv_tokens": sum(past for _, past in chunks), "num_decode_requests": len(decodes),
                     "sum_decode_kv_tokens": sum(decodes)}  # fmt: skip
        if draw.random() > 0.2:
            lines.append(json.dumps({"wall_time": seconds, "scheduled_requests": scheduled}))
    return "\n".join(lines) + "\n"


def log(steps: Steps, draw: np.random.Generator) -> str:
    """vLLM's log, in which two lines of three do not say how much of the cache is in use."""
    lines = [f"INFO GPU KV cache size: {POOL:,} tokens"]
    for number, (decodes, chunks, seconds) in enumerate(steps):
        held = sum(decodes) + sum(new + past for new, past in chunks)
        used = f", GPU KV cache usage: {100 * held / POOL:.1f}%" if draw.random() > 2 / 3 else ""
        tokens = sum(new for new, _ in chunks)
        lines.append(
            f"INFO Iteration({number}): {len(chunks)} context requests, {tokens} context tokens, "
            f"{len(decodes)} generation requests, {len(decodes)} generation tokens, iteration elapsed time: "
            f"{seconds * 1e3:.2f} ms{used}"
        )
    return "\n".join(lines) + "\n"


@for_each("written", [records, log], ids=lambda one: one.__name__)
def test_what_goes_into_a_replay_comes_back(
    written: Callable[[Steps, np.random.Generator], str], shared: Path, tmp_path: Path
) -> None:
    draw = np.random.default_rng(7)
    steps = replayed(oracle(shared), draw)
    assert sum(bool(decodes and chunks) for decodes, chunks, _ in steps) > 100
    (tmp_path / "own.txt").write_text(written(steps, draw), encoding="utf-8")
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", quant="bf16"))
    (record,) = read_records([str(tmp_path / "own.txt")], deployment, 1000.0)
    found = learn(deployment, [record.observed], tuple(TRUE))
    off = {name: value / TRUE[name] - 1 for name, value in found.values.items()}
    assert set(off) == set(TRUE) and max(map(abs, off.values())) < 0.03, off
    assert found.held_out[1].mean < 0.05 < found.held_out[0].mean
