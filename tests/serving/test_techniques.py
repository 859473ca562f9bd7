"""Each technique against a number from outside or a law it has to keep."""

from __future__ import annotations

import numpy as np
import pytest

from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.batching import static_waste
from inferplan.serving.techniques.chunked_prefill import attention_pairs, chunked_prefill, chunks
from inferplan.serving.techniques.fused_attention import fusion_gain
from inferplan.serving.techniques.offload import HostTier, load_time, reload_gain
from inferplan.serving.techniques.paging import (
    admitted_contiguous,
    paged_tokens,
    requests_held,
    shared_samples,
    sharing_gain,
    waste,
)
from inferplan.serving.techniques.prefix_caching import prefix_gain
from inferplan.serving.techniques.tiers import CacheTier
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from inferplan.work.step import prefill
from tests.cases import for_each
from tests.serving.conftest import deployment


@for_each("chunk", [1, 7, 512, 8192, 10000])
def test_chunks_conserve_work(chunk: int) -> None:
    assert sum(new for new, _ in chunks(8192, chunk)) == 8192
    assert attention_pairs(8192, chunk) == 8192 * 8193 / 2


def test_chunking_shortens_the_longest_gap_and_costs_a_little() -> None:
    served = deployment(ideal=False)
    whole = chunked_prefill(served, 8192, 8192, batch=32, context=2000.0)
    cut = chunked_prefill(served, 8192, 1024, batch=32, context=2000.0)
    assert cut.steps == 8 and whole.steps == 1
    assert cut.longest_gap < 0.3 * whole.longest_gap
    assert 1.0 < cut.cost < 1.6


def test_pages_waste_half_a_block_and_reservations_most() -> None:
    tokens = np.arange(1, 1601)
    assert float(np.mean(paged_tokens(tokens, 16) - tokens)) == 7.5
    assert waste(300.0, 2048.0) == pytest.approx(0.8535, abs=1e-4)
    assert requests_held(100_000, 300.0, 16) == 328
    assert admitted_contiguous(100_000, 2048.0) == 48


def test_copy_on_write_keeps_the_prompt_once() -> None:
    assert shared_samples(1024, 256, 4, 16) == 1024 + 4 * 256
    assert sharing_gain(1024, 256, 4, 16) == pytest.approx(4 * 1280 / 2048)
    assert shared_samples(1030, 256, 2, 16) == 1024 + 2 * 272  # the last block of the prompt is copied
    assert sharing_gain(1024, 256, 1, 16) == 1


def test_static_batches_pad() -> None:
    lost = static_waste(np.array([100, 400]), np.array([11, 101]))
    assert lost.useful_prompt == 500 / 800
    assert lost.useful_decode == 110 / 200


def test_the_simulator_pads_static_batches_by_as_much() -> None:
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=16),
        prompt=Lengths(mean=500),
        output=Lengths(kind="lognormal", mean=200, spread=0.7),
        requests_count=16,
    )
    requests = traffic.requests(16)
    lost = static_waste(requests.prompt, requests.output)
    timeline = simulate(deployment(engine="none"), traffic, options=Options(timeline=True)).meters[0].timeline
    assert timeline is not None
    assert sum(steps * decodes for _, _, steps, decodes, *_ in timeline) == lost.decode_slots > 2 * lost.decode_tokens
    assert sum(prompt for *_, prompt, _, _ in timeline) == lost.prompt_tokens


@for_each("longest", [4096, 8192])
def test_the_simulator_reserves_contiguous_caches_as_counted(longest: int) -> None:
    served = deployment(gpu="l40s")
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=200), prompt=Lengths(mean=500), output=Lengths(mean=200), requests_count=400
    )
    capacity = simulate(served, traffic, Flags(max_model_len=longest)).capacity
    flags = Flags(max_model_len=longest, contiguous=True)
    timeline = simulate(served, traffic, flags, Options(timeline=True)).meters[0].timeline
    assert timeline is not None
    assert max(decodes for _, _, _, decodes, *_ in timeline) == admitted_contiguous(capacity, float(longest))


def test_unfused_attention_moves_the_scores() -> None:
    served = deployment("llama-2-7b", "a100-40gb-pcie", quant="bf16")
    gain = fusion_gain(served, prefill(8.0, 1024.0))
    # scores of 32 heads and 32 layers, written and read before and after the softmax, two bytes each
    scores = 8 * 32 * 32 * (1024 * 1025 / 2) * 2 * 4
    assert float(gain.traffic) == pytest.approx(scores, rel=0.01)
    assert float(gain.speedup) > 1.0


def test_loading_a_cache_takes_its_bytes_over_the_link() -> None:
    served = deployment("llama-3.1-8b", "h100-sxm")
    host = HostTier(capacity=1e12, bandwidth=64e9)
    assert float(load_time(served, host, 1000.0)) == pytest.approx(1000 * 131072 / 64e9)  # 131,072 B a token in bf16
    assert float(reload_gain(served, host, 30000.0)) > 5
    kept = CacheTier(name="host", capacity=1e12, bandwidth=64e9)
    assert kept.blocks((served, None), 16) == int(1e12 // (131072 * 16))


def test_cached_prefixes_save_their_share() -> None:
    served = deployment("llama-3.1-70b", "h200-sxm", quant="fp8")
    assert float(prefix_gain(served, 1.0, 8192.0, 0.0)) == 1.0
    assert 3.5 < float(prefix_gain(served, 1.0, 8192.0, 0.75)) < 4.5
