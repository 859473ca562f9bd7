"""What each engine's rule leaves for the cache, written out by hand: a device of 80 GB and a model of known bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inferplan.devices.engine import Batching, Engine, EngineVersion, MemoryTier
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.memory import Footprint
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import uniform
from inferplan.work.parallel import Parallelism
from tests.builders import SOURCE, chip, dense
from tests.cases import for_each

USABLE = 80e9
WIDTH, LAYERS, FF, VOCAB = 4096, 32, 14336, 128256
WEIGHTS = 2.0 * (2 * VOCAB * WIDTH + LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * FF))
"""Bytes of two vocabulary tables, q, k, v, o and a gated feed-forward in bf16: no norms."""
LOGITS = 256 * VOCAB * 4.0
"""The widest point of a step of 256 sequences: logits in fp32 (131 MB, more than 512 rows of any layer)."""


def made(rule: str, fraction: float | None, parallel: Parallelism | None = None, **sizes: Any) -> Deployment:
    tier = MemoryTier(memory_at_least="0 B", token_budget=512, max_sequences=256)
    version = EngineVersion(
        version="1", source=SOURCE, kv_rule=rule, memory_fraction=fraction, block_size=16, tiers=[tier], **sizes
    )
    return Deployment(
        model=dense(layers=LAYERS, d_model=WIDTH, heads=32, d_ff=FF, vocab=VOCAB),
        hardware=chip(3e12, 1e15, usable=USABLE, link=1e11),
        precision=uniform(),
        parallel=parallel or Parallelism(),
        engine=Engine(name="test", policy="vllm", batching=Batching(mixed=True), defaults=version),
    )


def pool(deployment: Deployment) -> float:
    return Footprint(deployment=deployment, batch=1.0, prompt=512.0, context=512.0).kv_pool


def test_weights_and_activations_are_those_of_the_hand_count() -> None:
    held = Footprint(deployment=made("all", None), batch=1.0, prompt=512.0, context=512.0)
    assert held.weights == WEIGHTS
    assert float(held.activations) == LOGITS > 512 * 2 * (2 * WIDTH + 3 * FF)


def test_a_fraction_of_the_total() -> None:
    """vLLM: gpu_memory_utilization of the device, less weights, the profiled peak, context and graphs."""
    found = pool(made("of_total", 0.9, context="1 GB", graphs="0.5 GB"))
    assert found == pytest.approx(0.9 * USABLE - WEIGHTS - LOGITS - 1.5e9, rel=1e-12)


def test_a_fraction_of_what_is_free() -> None:
    """TensorRT-LLM: free_gpu_memory_fraction of what weights, the warm-up's peak and the context leave."""
    found = pool(made("of_free", 0.9, context="1 GB"))
    assert found == pytest.approx(0.9 * (USABLE - WEIGHTS - LOGITS - 1e9), rel=1e-12)


def test_all_that_is_left() -> None:
    """llama.cpp: everything but a fixed margin."""
    assert pool(made("all", None, context="1 GB")) == pytest.approx(USABLE - WEIGHTS - LOGITS - 1e9, rel=1e-12)


@for_each(("fraction", "expected"), [(0.8, 0.8 * USABLE - WEIGHTS), (0.9999, USABLE - WEIGHTS - LOGITS)])
def test_a_static_fraction_for_weights_and_cache(fraction: float, expected: float) -> None:
    """SGLang: the fraction holds weights and cache; activations live in the rest, or take from it what they need."""
    assert pool(made("static_of_total", fraction)) == pytest.approx(expected, rel=1e-12)


def test_collective_buffers_are_taken_where_there_is_more_than_one_device() -> None:
    one, two = (pool(made("all", None, Parallelism(dp=n), communicator="0.42 GB")) for n in (1, 2))
    assert one - two == pytest.approx(0.42e9, rel=1e-6)


@for_each(
    ("parallel", "share"), [(Parallelism(), 1), (Parallelism(dp=4), 4), (Parallelism(pp=2), 1), (Parallelism(tp=2), 1)]
)
def test_sequences_that_fit_are_those_of_the_tightest_rank(parallel: Parallelism, share: int) -> None:
    """Every attention rank has a pool of its own; a stage holds its own layers, a rank its own heads."""
    deployment = made("all", None, parallel)
    layers, heads = LAYERS // parallel.pp, 32 // parallel.tp
    sequence = 1024 * 2 * heads * 128 * layers * 2
    blocks = LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * FF) / parallel.pp
    table = 2 if parallel.pp == 1 else 1
    weights = 2.0 * (blocks + table * VOCAB * WIDTH) / parallel.tp
    held = Footprint(deployment=deployment, batch=1.0, prompt=512.0, context=1024.0)
    assert float(held.max_batch()) == share * ((USABLE - weights - LOGITS) // sequence)


def test_sglang_computes_its_static_fraction_from_the_device() -> None:
    """memory_hook.py: 512 + 1.5*2048 + 8*58 + 128*tp*pp + 2*256 MiB of 40 GiB at TP 1; 2*512 from TP 4 on."""
    gib40 = 40 * 1024
    for tp, graphs in ((1, 256), (4, 512)):
        deployment = made("static_of_total", None, Parallelism(tp=tp))
        hardware = chip(3e12, 1e15, usable=gib40 * 2.0**20, link=1e11)
        held = Footprint(
            deployment=Deployment(
                model=deployment.model,
                hardware=hardware,
                precision=deployment.precision,
                parallel=deployment.parallel,
                engine=deployment.engine,
            ),
            batch=1.0,
            prompt=512.0,
            context=512.0,
        )
        reserved = 512 + 1.5 * 2048 + 8 * 58 + 128 * tp + 2 * graphs
        assert held.memory_fraction == round((gib40 - reserved) / gib40, 3)


def test_pages_are_whole() -> None:
    held = Footprint(deployment=made("all", None), batch=3.0, prompt=512.0, context=1025.0)
    assert float(held.state_allocated) == 3 * 1040 * 2 * 32 * 128 * LAYERS * 2
    assert float(held.state) == 3 * 1025 * 2 * 32 * 128 * LAYERS * 2


@for_each(("usable", "expected"), [(USABLE, 256), (1e9, 0)])
def test_sequences_that_keep_nothing_are_limited_by_slots_where_the_weights_fit(usable: float, expected: int) -> None:
    """32 matrices of 4096 x 4096 in bf16 are 1.07 GB, with two small tables: too much for 1 GB."""
    matrix = {"mixer": {"kind": "linear"}, "repeat": 32}
    model = ModelSpec.model_validate(
        {"name": "m", "source": SOURCE, "norm": "plain", "d_model": WIDTH, "vocab": 64, "layers": [matrix]}
    )
    served = replace(made("all", None), model=model, hardware=chip(3e12, 1e15, usable=usable))
    held = Footprint(deployment=served, batch=1.0, prompt=8.0, context=8.0)
    assert float(held.max_batch()) == expected
    assert held.fits == (expected > 0)
    assert float(held.terms("max_batch").value) == expected
