"""What engines take of their cache for layers with windows: against a public log, and by hand from their sources."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import inferplan
from inferplan.devices.engine import Batching, Engine, EngineVersion, MemoryTier, Windows
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.memory import Footprint
from inferplan.models.spec import ModelSpec
from inferplan.serving.admission import Admitted, Progress
from inferplan.serving.flags import Flags, rules_of
from inferplan.serving.records import Records
from inferplan.work.formats import uniform
from inferplan.work.parallel import Parallelism
from tests.builders import SOURCE, chip
from tests.cases import for_each

KIB, GIB = 2.0**10, 2.0**30
BLOCK, BUDGET, WINDOW = 16, 512, 100
TOKEN = 2 * 4 * 32 * 2.0
"""Bytes of a token in one layer: keys and values, 4 heads of 32, bf16."""
VLLM = Windows(steps=1, spare_blocks=1, grouped=True)


def model(windowed: int, full: int, **mixer: Any) -> ModelSpec:
    heads = {"kind": "attention", "heads": 8, "kv_heads": 4, "head_dim": 32}
    ffn = {"kind": "mlp", "d_ff": 512}
    own = mixer or {"window": WINDOW}
    layers = [{"repeat": n, "mixer": heads | extra, "ffn": ffn} for n, extra in ((windowed, own), (full, {}))]
    return ModelSpec.model_validate(
        {
            "name": "t",
            "source": SOURCE,
            "d_model": 256,
            "vocab": 1024,
            "layers": [one for one in layers if one["repeat"]],
        }
    )


def deployed(windows: Windows, spec: ModelSpec, pp: int = 1, block: int = BLOCK) -> Deployment:
    tier = MemoryTier(memory_at_least="0 B", token_budget=BUDGET, max_sequences=256)
    version = EngineVersion(version="1", source=SOURCE, kv_rule="all", block_size=block, tiers=[tier], windows=windows)
    return Deployment(
        model=spec,
        hardware=chip(3e12, 1e15, usable=1e9, link=1e11),
        precision=uniform(),
        parallel=Parallelism(pp=pp),
        engine=Engine(name="test", policy="vllm", batching=Batching(mixed=True), defaults=version),
    )


def footprint(deployment: Deployment, context: float = 4096.0, batch: float = 1.0) -> Footprint:
    return Footprint(deployment=deployment, batch=batch, prompt=context, context=context)


def of_gemma(version: str, **flags: Any) -> Footprint:
    return footprint(inferplan.deploy("gemma-4-31b", "h200", engine=f"vllm@{version}", ideal=True, **flags), 262144.0)


def test_the_public_log_of_gemma_4_31b() -> None:
    """redhat-performance/configiq #112: vLLM 0.24 on one H200, 262,144 tokens at most, logs 108.2 KiB a token.

    That is a budget of 8,192: 50 layers keep (ceil((1,023 + 8,192)/16) + 1) blocks, 9,232 tokens of 16 heads of 256; 10
    layers keep all of 4 heads of 512.
    """
    found = of_gemma("0.24")
    by_hand = (50 * 16 * 256 * 2 * 2 * 9232 + 10 * 4 * 512 * 2 * 2 * 262144) / 262144
    assert found.kv_pool / found.cache_tokens(262144) == pytest.approx(by_hand, rel=1e-5)
    assert by_hand / KIB == pytest.approx(108.2, abs=0.05)
    decoding = footprint(found.deployment, 262144.0, batch=2.0).state_allocated - found.state_allocated
    assert (
        decoding == 50 * 16384 * (1024 + 16) + 10 * 8192 * 262144
    )  # 83 KiB a token: the next one, while the first decodes


def test_the_public_log_of_gemma_3_1b() -> None:
    """Eole's benchmark, vLLM 0.13.0, 2026-01-16: 25.39 GiB, "Add 2 padding layers", 950,864 tokens, 461.21x of 2,048.

    By hand: 22 layers with windows of 512 are six groups of four beside one of four: a block is 4 layers of 16 KiB, a
    request of 2,048 under a budget of 8,192 takes 128 blocks of the one and 129 of each of the six.
    """
    stage = footprint(inferplan.deploy("gemma-3-1b", "h100", engine="vllm@0.18", ideal=True)).stage
    pool = 25.39 * GIB
    assert stage.logged_tokens(pool, 16) == pytest.approx(950_864, rel=1e-4)
    assert pool / float(stage.reserved(2048.0, 8192.0, 16)) == pytest.approx(461.21, rel=1e-4)
    assert stage.reserved(2048.0, 8192.0, 16) == (128 + 6 * 129) * 4 * 16 * KIB


def test_blocks_that_every_kind_shares() -> None:
    """vllm-project/vllm #43308: Gemma 4 31B and about 50 GB of cache: 55k tokens by vLLM 0.20.0, which logged blocks.

    By hand: six groups of ten layers (one of those that see all), blocks of 16 tokens of 16 heads of 256 a layer.
    """
    stage = of_gemma("0.18").stage
    by_hand = 50 * GIB // (60 * 16 * 16 * 256 * 2 * 2) * 16
    assert stage.logged_tokens(50 * GIB, 16) == by_hand == 54608


def test_a_batch_for_each_stage_and_one_more_in_flight() -> None:
    """vLLM 0.33 (config/vllm.py, max_in_flight_tokens): by default two batches on one stage, three on two."""
    found = of_gemma("0.33")
    by_hand = 50 * 16384 * ((1023 + 2 * 8192 + 15) // 16 + 1) * 16 + 10 * 8192 * 262144
    assert found.concurrency(262144) == pytest.approx(found.kv_pool / by_hand, rel=1e-12)
    spec = model(1, 1)
    spec = spec.model_copy(update={"layers": [*spec.layers, *spec.layers]})
    staged = footprint(deployed(VLLM.model_copy(update={"staged": True}), spec, pp=2))
    one_each = TOKEN * ((WINDOW - 1 + 3 * BUDGET + 15) // 16 * 16 + 16 + 4096)
    assert staged.concurrency(4096) == pytest.approx(min(staged.pool(s) for s in staged.stages) / one_each)


@for_each(
    ("windowed", "full", "paid"),
    [
        (6, 2, (6, 2)),  # groups of two
        (5, 2, (6, 2)),  # the third group of windows is half empty
        (7, 6, (7, 7)),  # nearly as many: groups of seven, one layer of padding (vLLM's gpt-oss with a draft)
        (7, 0, (7, 0)),  # one kind is one group
    ],
)
def test_groups_of_equally_many_layers(windowed: int, full: int, paid: tuple[int, int]) -> None:
    """vLLM kv_cache_planning.py: the rarest kind gives the size, unless the commonest is below 1.5 times it."""
    held = footprint(deployed(VLLM, model(windowed, full)))
    flight = BUDGET - 1  # min(window - 1 + budget, prompt) over the window
    assert held.state == TOKEN * (paid[0] * (WINDOW + flight) + paid[1] * 4096)
    assert held.state_allocated == TOKEN * (paid[0] * (112 + 16 + flight) + paid[1] * 4096)  # 7 blocks and one more


def test_chunks_keep_a_chunk_and_the_budget() -> None:
    """vLLM ChunkedLocalAttentionSpec: min(chunk + budget, length) in whole blocks, without one more."""
    found = footprint(deployed(VLLM, model(2, 2, chunk=128)))
    per_request = TOKEN * 2 * (128 + BUDGET + 4096)
    assert found.concurrency(4096) == pytest.approx(found.kv_pool / per_request, rel=1e-12)


def test_windows_in_flight_are_paid_once_whatever_the_batch() -> None:
    found = deployed(VLLM, model(2, 2))
    each, once = TOKEN * 2 * (WINDOW + 4096), TOKEN * 2 * (BUDGET - 1)
    assert footprint(found, batch=8.0).state == 8 * each + once
    most = footprint(found)
    assert float(most.max_batch()) == (most.kv_pool - once) // each


def test_two_memories() -> None:
    """SGLang's HybridSWAPoolConfigurator: cell = full + 0.8*windowed bytes; tokens of windows are 0.8 of the others'.

    A request of 4,096 tokens takes 4,096 of the full memory; one of 90 takes 90 of both, which are 90/0.8 of it.
    """
    windows = Windows(keeps="pool", share=0.8)
    cell = TOKEN * (2 + 0.8 * 6)
    long, short = (footprint(deployed(windows, model(6, 2), block=1), n) for n in (4096.0, 90.0))
    assert float(long.max_batch()) == long.kv_pool // (cell * 4096)
    assert float(short.max_batch()) == short.kv_pool // (cell * 90 / 0.8)
    rules = rules_of(long.deployment, Flags(), 2000.0, 4096.0)
    assert rules.held(4096, 4096) == pytest.approx(4096 + rules.overhead, rel=1e-9)


def test_engines_that_keep_every_token() -> None:
    """TensorRT-LLM without max_attention_window, and SGLang for Gemma 3 (gemma2_gemma3.py of its model_overrides)."""
    gemma = partial(inferplan.deploy, "gemma-3-27b", "h200", ideal=True)
    each = 2 * 16 * 128 * 62 * 2.0  # K and V, heads, width, layers, bytes
    for engine in ("trtllm", "sglang"):
        assert footprint(gemma(engine=engine), 8192.0).state == each * 8192
    assert footprint(gemma(engine="none"), 8192.0).state == each * (8192 * 10 + 1024 * 52) / 62


def test_llama_cpp_keeps_a_physical_batch_beside_the_windows() -> None:
    """llama-kv-cache-iswa.cpp: n_swa*n_seq_max + n_ubatch cells, 512 by default."""
    found = footprint(inferplan.deploy("gemma-3-27b", "h200", engine="llama.cpp", ideal=True), 8192.0, batch=4.0)
    cells = 52 * (4 * 1024 + 512) + 10 * 4 * 8192
    assert found.state == pytest.approx(2 * 16 * 128 * 2.0 * cells, rel=1e-3)


def test_a_request_starts_when_its_prompt_finds_its_windows_free() -> None:
    """Two layers of a window of 100 and two that see all; capacity is counted in tokens of the latter two.

    A prompt of 600 holds 608 + 100 when it decodes, and must find min(600, 99 + 512) - 100 = 500 more.
    """
    rules = rules_of(deployed(VLLM, model(2, 2)), Flags(), 600.0, 700.0)
    rules = replace(rules, overhead=0.0, page=BLOCK)
    assert rules.unsettled(600) == 500 and rules.held(700, 600) == 608 + 100
    for capacity, second in ((2 * 708 + 499, "cache"), (2 * 708 + 500 + 2 * BLOCK, 0)):
        tight = replace(rules, capacity=float(capacity))
        records = Records(arrival=[0.0, 0.0], prompt=[600, 600], output=[100, 100])
        admitted = Admitted(tight, records, Progress(records), None)
        assert admitted.admit(0, 4096, True, lambda: 0.0, 0) == 0
        assert admitted.admit(1, 4096, False, lambda: 0.0, 0) == second
    assert replace(rules, capacity=704.0 + 100 + 500).refusal(600, 700) == ""
    assert "more than the cache" in replace(rules, capacity=1303.0).refusal(600, 700)
