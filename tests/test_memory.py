"""Memory of one device, against what vLLM logged (llm-d-planner, docs/empirical-vllm-memory-results.md)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inferplan.answers.fit import footprint_at
from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.engine import EngineFlags
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.run import estimate
from inferplan.work.parallel import Parallelism

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


@pytest.mark.parametrize(
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
    assert longest == 131072 or not fits(8.0, longest + 1.0)


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


@pytest.mark.parametrize("engine", ["none", "vllm", "sglang", "trtllm", "llama.cpp"])
@pytest.mark.parametrize("degrees", [{}, {"tp": 2}, {"pp": 2}, {"dp": 2}, {"tp": 2, "cp": 2}])
def test_the_limits_are_the_limits(engine: str, degrees: dict[str, int]) -> None:
    request = Request(model="mistral-7b-v0.1", gpu="l40s", engine=engine, ideal=True)
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
    assert longest == deployment.model.max_context or not fits(batch, longest + 1)
