"""Several answers of one prompt: pages, steps and rates against counts by hand and block tables that are replayed."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from inferplan.answers.explain import Explainer
from inferplan.api import estimate_batch
from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.engine import Windows
from inferplan.errors import InfeasibleError, UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.memory import Footprint
from inferplan.estimate.run import estimate, estimate_unchecked
from inferplan.estimate.sharing import Sharing
from inferplan.reports.estimate import estimate_record
from inferplan.serving.techniques.applied import Techniques, served_estimate
from inferplan.serving.techniques.paging import shared_samples
from inferplan.work.ops import Mask
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.command import exit_code
from tests.strategies import deployments, loads

TOKEN = 2 * 8 * 128 * 32 * 2
"""Bytes of a cached token of Llama 3.1 8B in bf16: keys and values of 8 heads of 128 in 32 layers."""


def deploy(model: str = "llama-3.1-8b", gpu: str = "h100-sxm", **changes: Any) -> Deployment:
    return assemble(Request(model=model, gpu=gpu, **changes))


def priced(batch: float = 1.0, samples: float = 1.0, prompt: float = 1024.0, **changes: Any) -> Estimate:
    return estimate_unchecked(deploy(**changes), StaticLoad(batch=batch, samples=samples, prompt=prompt))


def test_the_prompt_is_held_once() -> None:
    """1024 tokens, and 4 times 256: 2048 tokens of 131,072 bytes; four requests have 5120 tokens."""
    assert TOKEN == 131_072
    found = priced(samples=4.0).footprint
    assert found.state == found.state_allocated == 2048 * TOKEN == 268_435_456
    assert priced(batch=4.0).footprint.state == 5120 * TOKEN
    assert priced(batch=3.0, samples=4.0).footprint.state == 3 * 2048 * TOKEN


def test_a_last_page_that_is_partly_filled_is_copied() -> None:
    """1030 tokens fill 64 pages of 16 and 6 places of another: 64 pages once, 4 times ceil((6 + 256)/16) = 17."""
    found = priced(samples=4.0, prompt=1030.0).footprint
    assert found.state == (1030 + 4 * 256) * TOKEN
    assert found.state_allocated == (64 + 4 * 17) * 16 * TOKEN


def replayed(prompt: int, output: int, samples: int, block: int) -> int:
    """Pages in use when every answer has written its last token, by block tables with reference counts.

    The rules of 2309.06180, section 4.4: a fork counts every page of the prompt once more; who writes into a page that
    others refer to gets a copy of it and gives up the old one.
    """
    counts = dict.fromkeys(range(-(-prompt // block)), samples)
    tables = [list(counts) for _ in range(samples)]
    for place in range(prompt, prompt + output):
        for table in tables:
            if place // block == len(table):
                table.append(len(counts))
                counts[table[-1]] = 1
            elif counts[table[-1]] > 1:
                counts[table[-1]] -= 1
                table[-1] = len(counts)
                counts[table[-1]] = 1
    return sum(count > 0 for count in counts.values())


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 5), st.sampled_from([1, 2, 7, 16]))
def test_pages_are_those_of_replayed_block_tables(prompt: int, output: int, samples: int, block: int) -> None:
    sharing = Sharing(samples=float(samples), prompt=float(prompt))
    found = sharing.tokens(Windows(), Mask(), float(prompt + output), block)
    assert found == replayed(prompt, output, samples, block) * block
    assert found == shared_samples(prompt, output, samples, block)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 5), st.integers(1, 50))
def test_windows_keep_the_tokens_that_any_answer_sees(prompt: int, output: int, samples: int, window: int) -> None:
    """The last ``window`` positions of each answer, those of the prompt counted once."""
    end = prompt + output
    seen = {
        (-1 if place < prompt else sample, place)
        for sample in range(samples)
        for place in range(max(end - window, 0), end)
    }
    sharing = Sharing(samples=float(samples), prompt=float(prompt))
    assert sharing.tokens(Windows(), Mask(kind="window", size=window), float(end), 1) == len(seen)


def test_gemma_has_both_kinds() -> None:
    """Gemma 3 27B: 10 layers see all, 52 the last 1024 and are paid as 60, each 2 x 16 x 128 x 2 bytes a token."""
    found = priced(samples=3.0, model="gemma-3-27b", gpu="h200").footprint
    whole, windowed = 1024 + 3 * 256, 1024 + 2 * 256
    alone = priced(model="gemma-3-27b", gpu="h200").footprint
    more = (10 * (whole - 1280) + 60 * (windowed - 1024)) * 8192  # what steps in flight take is the same for both
    assert found.state - alone.state == pytest.approx(more, rel=1e-12)


def test_a_step_is_that_of_as_many_sequences_and_the_prefill_that_of_the_prompts() -> None:
    for changes in ({}, {"model": "mixtral-8x7b", "parallel": Parallelism(tp=4)}, {"parallel": Parallelism(pp=2)}):
        many, two, eight = (priced(*load, **changes) for load in ((2.0, 4.0), (2.0, 1.0), (8.0, 1.0)))
        assert many.ttft == two.ttft
        assert many.prefill.by_operator() == two.prefill.by_operator()
        assert many.decode.by_operator() == eight.decode.by_operator()
        assert (many.tpot, many.tpot_start, many.tpot_end) == (eight.tpot, eight.tpot_start, eight.tpot_end)
        assert many.e2el == two.ttft + 255 * eight.tpot


def test_one_sample_is_the_plain_estimate() -> None:
    for engine in ("vllm", "none", "sglang"):
        deployment = deploy(engine=engine)
        plain, one = (estimate(deployment, StaticLoad(batch=3.0, **more)) for more in ({}, {"samples": 1.0}))
        assert estimate_record(one) == estimate_record(plain)


def test_rates_count_all_samples_and_each_prompt_once() -> None:
    found = priced(batch=2.0, samples=4.0)
    assert found.output_rate == pytest.approx(2 * 4 * 256 / found.e2el)
    assert found.total_rate == pytest.approx(2 * (1024 + 4 * 256) / found.e2el)
    assert found.request_rate == pytest.approx(2 / found.e2el)


def test_the_largest_batch_is_of_requests() -> None:
    """A request has 2048 tokens; the pool is that of one sample."""
    plain, found = priced().footprint, priced(samples=4.0).footprint
    assert found.kv_pool == plain.kv_pool
    assert found.max_batch() == plain.kv_pool // (2048 * TOKEN)
    assert plain.max_batch() == plain.kv_pool // (1280 * TOKEN)


def test_the_longest_context_keeps_the_prompt() -> None:
    """2 requests of 1024 tokens and 4 answers each: pool = 2 (1024 + 4 (n - 1024)) tokens, n in pages of 16."""
    plain, found = priced().footprint, priced(batch=2.0, samples=4.0).footprint
    assert found.max_context() == ((plain.kv_pool / TOKEN / 2 - 1024) // 4 + 1024) // 16 * 16
    assert float(found.terms("max_context").value) == found.max_context()


def test_without_an_engine_a_step_has_logits_of_every_sample() -> None:
    """Activations are the larger of a prefill's layer and of a decode's logits: 64 rows of 128,256 at 16 tokens."""
    deployment = deploy(engine="none")
    held = [
        estimate_unchecked(deployment, StaticLoad(prompt=16.0, samples=n, batch=b)).footprint
        for n, b in ((64.0, 1.0), (1.0, 64.0))
    ]
    per_logit = deployment.engine.defaults.sampler_bytes_per_logit
    assert held[0].activations == 64 * 128_256 * per_logit
    assert held[0].activations <= held[1].activations
    assert at(held[0], held[0].max_batch()).fits and not at(held[0], held[0].max_batch() + 1).fits


def at(footprint: Footprint, batch: Any) -> Footprint:
    return replace(footprint, batch=float(batch))


def test_more_samples_are_more_tokens_a_second_in_a_longer_latency() -> None:
    found = [priced(batch=2.0, samples=float(n)) for n in (1, 2, 4, 8, 16, 32)]
    assert all(more.output_rate > less.output_rate for less, more in pairwise(found))
    assert all(more.e2el >= less.e2el and more.ttft == less.ttft for less, more in pairwise(found))


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["none", "vllm", "sglang", "trtllm", "llama.cpp"]).flatmap(lambda name: deployments(engine=name)),
    loads,
    st.integers(2, 9),
    st.sampled_from([1, 16]),
)
def test_samples_take_at_least_one_request_and_at_most_as_many(
    deployment: Deployment, point: dict[str, float], samples: int, block: int
) -> None:
    context, footprint = (
        point["prompt"] + point["output"],
        Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0),
    )
    assume(not footprint.keeps_state)
    for stage in footprint.stages:
        one = stage.held(context, block)
        shared = [
            stage.held(context, block, sharing=Sharing(samples=float(n), prompt=point["prompt"]))
            for n in (samples, samples + 1)
        ]
        assert one <= shared[0] * (1 + 1e-12) and shared[0] <= shared[1] * (1 + 1e-12)
        assert shared[0] <= samples * one * (1 + 1e-12)
    whole = Footprint(
        deployment=deployment,
        batch=point["batch"],
        prompt=point["prompt"],
        context=context,
        sharing=Sharing(samples=float(samples), prompt=point["prompt"]),
    )
    largest = float(whole.max_batch())
    if largest and any(stage.caches for stage in whole.stages):
        assert at(whole, largest).fits
        assert not at(whole, largest + 1).fits


@for_each(
    ("request_of", "more", "words"),
    [
        ({"model": "mamba2-2.7b"}, {}, "layers that keep a state of constant size"),
        ({"model": "bert-base-uncased"}, {"output": 1.0}, "a model with an encoder and several answers"),
        ({"model": "llada-8b", "gpu": "h200"}, {}, "a diffusion model"),
        ({}, {"kv_cache": False}, "samples share nothing"),
        ({"parallel": Parallelism(dp=2)}, {"batch": 3.0}, "does not divide"),
    ],
)
def test_where_nothing_is_shared_it_is_refused(request_of: dict[str, Any], more: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        estimate_unchecked(deploy(**request_of), StaticLoad(**{"samples": 2.0, "prompt": 256.0} | more))


def test_what_does_not_fit_says_how_many_requests_do() -> None:
    with pytest.raises(InfeasibleError) as caught:
        estimate(deploy(gpu="l4"), StaticLoad(batch=1000.0, samples=4.0))
    fits = int(priced(samples=4.0, gpu="l4").footprint.max_batch())
    assert f"--batch {fits}" in str(caught.value.hint)


def test_techniques_are_refused() -> None:
    with pytest.raises(UsageError, match=r"several answers of a prompt .* and a given hit rate"):
        served_estimate(deploy(), StaticLoad(samples=2.0), Techniques(hit_rate=0.5))


def test_explain_gives_the_bytes_from_the_load() -> None:
    explainer = Explainer(
        request=Request(model="llama-3.1-8b", gpu="h100-sxm"), load=StaticLoad(batch=2.0, samples=4.0)
    )
    found = explainer.explain("memory.kv")
    assert found.value == 2 * 2048 * TOKEN
    assert {"--samples - 1", "--samples", "--prompt"} <= {one.origin for one in found.inputs}
    rate = explainer.explain("output_tokens_per_s")
    assert "batch * samples * output" in rate.formula


def test_terms_of_entries_that_stand_for_many_tokens() -> None:
    """DeepSeek V4 Flash keeps entries of whole groups of tokens, whose number is rounded down."""
    explainer = Explainer(
        request=Request(model="deepseek-v4-flash", gpu="h200", parallel=Parallelism(tp=4)), load=StaticLoad()
    )
    assert explainer.explain("memory.kv").value == float(np.max(explainer.estimate.footprint.state))


def test_python_takes_samples_too() -> None:
    assert estimate_batch(deploy(), batch=2, samples=4).footprint.state == 2 * 2048 * TOKEN


def test_the_record_and_the_screen_name_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--batch", "2", "--samples", "4")
    assert exit_code(monkeypatch, *command, "--format", "json") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["load"]["batch"], record["load"]["samples"]) == (2, 4)
    assert record["memory"]["kv_bytes"] == 2 * 2048 * TOKEN
    assert record["requests_per_s"] * 4 * 256 == pytest.approx(record["output_tokens_per_s"])
    assert exit_code(monkeypatch, *command) == 0
    screen = capsys.readouterr().out
    assert "batch 2 x 4 samples" in screen and "no cascade attention" in screen


def test_an_engine_refuses_more_answers_than_it_has_slots_for() -> None:
    """vLLM on an H100 runs 1024 sequences: 300 requests of 4 samples are 1200."""
    record = estimate_record(
        estimate_unchecked(deploy(), StaticLoad(batch=300.0, samples=4.0, prompt=64.0, output=16.0))
    )
    assert "not 1,200" in record["rejected_because"]
