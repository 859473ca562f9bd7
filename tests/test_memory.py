"""Memory of one device, against what vLLM logged (llm-d-planner, docs/empirical-vllm-memory-results.md)."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from inferplan.answers.fit import footprint_at
from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.engine import EngineFlags
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.run import estimate
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.command import exit_code

GIB = 2.0**30


def footprint(model: str, quant: str | None = None, tp: int = 1, fraction: float | None = None) -> Footprint:
    request = Request(
        model=model,
        gpu="h100-sxm",
        quant=quant,
        engine="vllm@0.19",
        ideal=True,
        parallel=Parallelism(tp=tp),
        flags=EngineFlags(memory_fraction=fraction),
    )
    return footprint_at(assemble(request), 8192)


@for_each(
    ("model", "quant", "tp", "fraction", "weights", "activations", "pool"),
    [
        ("llama-3.1-8b", None, 1, None, 14.99, 4.76, 51.38),
        ("llama-3.3-70b", "fp8", 2, None, 33.88, 4.84, 32.00),
        ("qwen3-32b", None, 1, None, 61.03, 5.64, 4.45),
        ("qwen3-32b", None, 2, None, 30.59, 5.64, 34.49),
        ("gpt-oss-20b", None, 1, None, 13.47, 7.38, 50.28),
        ("gpt-oss-120b", None, 1, 0.95, 64.38, 7.38, 3.33),
        ("qwen3-0.6b", None, 1, None, 1.12, 5.56, 64.45),
    ],
)
def test_vllm_start_up_on_an_h100(  # GiB as logged
    model: str, quant: str | None, tp: int, fraction: float | None, weights: float, activations: float, pool: float
) -> None:
    found = footprint(model, quant, tp, fraction)
    assert found.weights / GIB == pytest.approx(weights, rel=0.01)
    assert float(found.activations) / GIB == pytest.approx(activations, rel=0.03)
    assert found.kv_pool / GIB == pytest.approx(pool, abs=0.25)


def test_mistral_24b_tokens_are_exact_from_the_logged_pool() -> None:
    """184,832 tokens in 28.20 GiB: 163,840 B a token (same source)."""
    assert footprint("mistral-small-24b-instruct-2501").kv_per_token == 163840
    tokens = 28.20 * GIB / 163840
    assert tokens == pytest.approx(184832, rel=0.001)


def test_the_edge_is_the_edge() -> None:
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True))
    found = estimate(deployment, StaticLoad(batch=8.0, prompt=1024.0, output=256.0)).footprint
    most, longest = float(found.max_batch()), found.max_context()

    def fits(batch: float, context: float) -> bool:
        return Footprint(deployment=deployment, batch=batch, prompt=1024.0, context=context).fits

    assert fits(most, 1280.0)
    assert not fits(most + 1, 1280.0)
    assert fits(8.0, float(longest))
    assert longest == 131072 or (longest % 16 == 0 and not fits(8.0, longest + 16.0))


def test_sglang_static_fraction_on_an_h100() -> None:
    """sglang issue 29092: mem_fraction_static is 0.828 on an H100 at TP 1."""
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", engine="sglang", ideal=True))
    assert footprint_at(deployment, 8192).memory_fraction == pytest.approx(0.828, abs=0.006)


def test_llama2_13b_cache_is_the_lectures() -> None:
    """CS336 lecture 10: 839 MB a sequence of 1024 tokens for Llama-2-13B (4 S K H L bytes)."""
    deployment = assemble(Request(model="llama-2-13b", gpu="h100-sxm", engine="none", quant="bf16", ideal=True))
    found = Footprint(deployment=deployment, batch=64.0, prompt=1024.0, context=1024.0)
    assert float(found.state) == 64 * 838860800


def test_windows_stop_growing() -> None:
    """gpt-oss: every other layer keeps 128 tokens; its long-context row is 12,288 elements a token (oracle)."""
    deployment = assemble(Request(model="gpt-oss-20b", gpu="h100-sxm", engine="none", ideal=True))
    stage = footprint_at(deployment, 8192).stage
    grown = float(stage.state(32768.0)) - float(stage.state(16384.0))
    assert grown == 16384 * 12288 * 2


def test_pages_round_up() -> None:
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True))
    found = Footprint(deployment=deployment, batch=1.0, prompt=17.0, context=17.0)
    assert float(found.state) == 17 * 131072
    assert float(found.state_allocated) == 32 * 131072


def test_logits_of_every_position_need_their_room() -> None:
    """Without an engine: 8 x 4096 positions of 128256 fp32 logits, where the last position alone has 8."""
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h200-sxm", engine="none", ideal=True))
    all_logits = estimate(deployment, StaticLoad(batch=8.0, prompt=4096.0, output=1.0, all_logits=True)).footprint
    assert float(all_logits.activations) == 8 * 4096 * 128256 * 4
    last = estimate(deployment, StaticLoad(batch=8.0, prompt=4096.0, output=1.0)).footprint
    assert float(all_logits.max_batch()) < float(last.max_batch())


def test_without_a_cache_the_last_pass_is_the_longest() -> None:
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", engine="none", ideal=True))
    footprints = [
        estimate(deployment, StaticLoad(prompt=1024.0, output=1025.0, kv_cache=False)).footprint,
        estimate(deployment, StaticLoad(prompt=2048.0, output=1.0)).footprint,
    ]
    assert float(footprints[0].activations) == float(footprints[1].activations)


@for_each("engine", ["none", "vllm", "sglang", "trtllm", "llama.cpp"])
@for_each("degrees", [{}, {"tp": 2}, {"pp": 2}, {"dp": 2}, {"tp": 2, "cp": 2}])
def test_the_limits_are_the_limits(engine: str, degrees: dict[str, int]) -> None:
    request = Request(model="mistral-7b-v0.1", gpu="l40s", engine=engine, ideal=True)
    if engine == "llama.cpp":  # it has stages alone
        degrees = {name: degree for name, degree in degrees.items() if name == "pp"}
    deployment = assemble(replace(request, parallel=Parallelism(**degrees)))

    def fits(batch: float, context: float) -> bool:
        return Footprint(deployment=deployment, batch=batch, prompt=512.0, context=context).fits

    dp = deployment.parallel.dp
    most = float(Footprint(deployment=deployment, batch=1.0, prompt=512.0, context=2048.0).max_batch())
    assert fits(most, 2048.0)
    assert not fits(most + dp, 2048.0)
    batch = float(most)
    longest = Footprint(deployment=deployment, batch=batch, prompt=512.0, context=2048.0).max_context()
    assert fits(batch, longest)
    page = {"vllm": 16, "trtllm": 32}.get(engine, 1)
    assert longest == deployment.model.max_context or (longest % page == 0 and not fits(batch, longest + page))


# The engines' rules by hand: Llama-3.1-8B (8,030,261,248 parameters) on one device of 80 GB ------------------------

WEIGHTS = 2 * 8_030_261_248
EACH = 2 * 8 * 128 * 32 * 2 * 1280
"""KV cache of a sequence of 1024 + 256 tokens: keys and values of 8 heads of 128 in 32 layers, in bf16."""
LIVE = 2 * 4096 + 3 * 14336
"""Elements alive in a layer: two residuals; gate, up and their product."""


def engine_footprint(engine: str, **degrees: int) -> Footprint:
    parallel = Parallelism(**degrees)
    request = Request(model="llama-3.1-8b", gpu="h100-sxm", engine=engine, memory="80GB", ideal=True, parallel=parallel)
    return Estimate(deployment=assemble(request), load=StaticLoad(batch=8.0, prompt=1024.0, output=256.0)).footprint


def test_tensorrt_llm_keeps_a_tenth_of_what_is_free() -> None:
    """``free_gpu_memory_fraction`` 0.9 (llm_args.py): nine tenths of the memory free after weights and a warm-up.

    The warm-up is 8,192 tokens, or the fp32 logits of 2,048 sequences, which are more.
    """
    found = engine_footprint("trtllm")
    warm_up = 2048 * 128256 * 4
    assert float(found.activations) == warm_up > 8192 * LIVE * 2
    assert found.kv_pool == pytest.approx(0.9 * (80e9 - WEIGHTS - warm_up), rel=1e-12)
    assert found.reserve == pytest.approx(0.1 * (80e9 - WEIGHTS - warm_up), rel=1e-12)


def test_sglang_has_its_fraction_for_weights_and_cache() -> None:
    """memory_hook.py, in MiB: 512 + 1.5*8192 + 8*58 + 128 + 2*256 = 13904 of 76293.9 are kept back: 0.818 is static."""
    found = engine_footprint("sglang")
    assert found.memory_fraction == 0.818
    assert found.kv_pool == pytest.approx(0.818 * 80e9 - WEIGHTS, rel=1e-12)


@for_each(
    ("model", "gpu", "degrees", "kept"),
    [
        ("llama-3.1-8b", "h100-sxm", {}, 512 + 1.5 * 8192 + 8 * 58 + 128 + 2 * 256),
        ("llama-3.1-8b", "h100-sxm", {"tp": 4}, 512 + 1.5 * 8192 + 8 * 58 + 128 * 4 + 2 * 512),
        ("llama-3.1-8b", "h100-sxm", {"tp": 2, "pp": 2}, 512 + 1.5 * 8192 + 8 * 58 + 128 * 4 + 2 * 256),
        ("llama-3.1-8b", "l40s", {}, 512 + 1.5 * 4096 + 8 * 58 + 128 + 2 * 256),
        ("deepseek-v2-lite", "h100-sxm", {}, 512 + 1.5 * 8192 + 1536 + 128 + 2 * 256),
    ],
)
def test_sglang_keeps_what_its_rule_says(model: str, gpu: str, degrees: dict[str, int], kept: float) -> None:
    request = Request(model=model, gpu=gpu, engine="sglang", ideal=True, parallel=Parallelism(**degrees))
    found = footprint_at(assemble(request), 8192)
    assert found.memory_fraction == round(1 - kept / (found.usable / 2**20), 3)


def test_llama_cpp_keeps_a_margin_of_one_gib() -> None:
    """``-fitt 1024`` MiB a device; the compute buffer holds a batch of 2,048 tokens."""
    assert engine_footprint("llama.cpp").kv_pool == 80e9 - WEIGHTS - 2**30 - 2048 * LIVE * 2


def test_vllm_has_its_fraction_for_everything() -> None:
    """0.92 of the device less weights, activations (1,024 sequences at 38.6 B a logit), 0.13 and 1.03 GiB."""
    pool = 0.92 * 80e9 - WEIGHTS - 1024 * 128256 * 38.6 - (0.13 + 1.03) * 2**30
    assert engine_footprint("vllm").kv_pool == pytest.approx(pool, rel=1e-12)
    assert float(engine_footprint("vllm").max_batch()) == pool // EACH


@for_each("dp", [1, 4])
def test_without_an_engine_everything_is_for_the_batch(dp: int) -> None:
    """Each sequence keeps its cache and, while prompts are computed together, its 1,024 tokens of activations."""
    most = (80e9 - WEIGHTS) // (EACH + 1024 * LIVE * 2)
    assert float(engine_footprint("none", dp=dp).max_batch()) == dp * most


def test_vllm_logged_what_was_left_for_the_cache(shared: Path) -> None:
    """An H100 with 256 sequences: 79.14 GiB at 0.9, 54.93 GiB for the cache."""
    with (shared / "reference" / "memory_truths.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "rest reserved for KV cache"]
    logged = next(row for row in rows if "79.14 GiB x 0.90" in row["context"])
    request = Request(
        model="llama-3.1-8b",
        gpu="h100-sxm",
        engine="vllm@0.18",
        memory="79.14GiB",
        ideal=True,
        flags=EngineFlags(max_sequences=256, token_budget=2048),
    )
    found = footprint_at(assemble(request), 8192)
    assert found.kv_pool / GIB == pytest.approx(float(logged["value"]), abs=0.05)
    assert float(found.activations) / GIB == pytest.approx(1.19, abs=0.01)


def test_a_stage_without_the_head_has_no_logits() -> None:
    """4,096 sequences of one token: logits of 128,256 in fp32 on the last stage, a layer on the first."""
    request = Request(model="llama-3.1-8b", gpu="h200-sxm", engine="none", ideal=True, parallel=Parallelism(pp=2))
    found = Footprint(deployment=assemble(request), batch=4096.0, prompt=1.0, context=2.0)
    first, last = (float(stage.activations(*found.step())) for stage in found.stages)
    assert (first, last) == (4096 * LIVE * 2, 4096 * 128256 * 4)


def test_the_longest_context_is_whole_pages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """64 layers x 8 heads x 128 x K and V x 2 B x 16 tokens: 4,194,304 B a block; 5.444 GB is 1,297 of them and a rest.

    vLLM refuses to start where the pool has fewer blocks than ceil(max_model_len / 16): 1,297 x 16 = 20,752 tokens.
    """
    found = footprint_at(assemble(Request(model="qwen3-32b", gpu="h100-sxm", engine="vllm@0.33")), 8192)
    assert found.kv_pool == pytest.approx(5.444e9, abs=5e5) and 1297 < found.kv_pool / 4_194_304 < 1298
    longest = replace(found, batch=1.0).max_context()
    assert longest == float(found.terms("max_context").value) == 1297 * 16
    assert found.cache_tokens(8192) == found.cache_tokens(longest) == 1297 * 16 and found.concurrency(longest) == 1.0
    assert exit_code(monkeypatch, "emit", "vllm", "qwen3-32b", "--gpu", "h100") == 0
    assert " --max-model-len 20752 " in capsys.readouterr().out
