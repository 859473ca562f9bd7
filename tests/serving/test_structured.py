"""Masks of structured decoding: bytes, rounds of threads and steps by hand, means by enumeration."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import comb
from typing import Any

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble, load_engine
from inferplan.errors import MissingFactError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import decode_phase, host_seconds
from inferplan.estimate.run import estimate
from inferplan.estimate.structured import MaskedSteps, Structured, StructuredEstimate, binomial, mask_filling
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from tests.cases import for_each
from tests.command import exit_code

VOCABULARY, LINK = 128_256, 64e9


def deployment(gpu: str = "h100-sxm", **more: Any) -> Deployment:
    return assemble(Request(model="llama-3.1-8b", gpu=gpu, ideal=True, **more))


def asked(share: float = 1.0, mask_time: float | None = 50e-6, **more: Any) -> Structured:
    return Structured(share=share, mask_time=mask_time, cores=32, bandwidth=LINK, **more)


def after(masks: int) -> float:
    """Seconds to copy and to apply masks by hand: bits over the link, two bytes read and written of every logit and its
    bit read, at 3.35 TB/s.
    """
    return masks * (VOCABULARY / 8 / LINK + VOCABULARY * (2 + 2 + 1 / 8) / 3.35e12)


def replayed(pieces: list[int], threads: int) -> float:
    """Seconds of pieces of so many masks of 50 us, each on the thread that is free first."""
    free = [0.0] * threads
    for piece in pieces:
        at = free.index(min(free))
        free[at] += piece * 50e-6
    return max(free)


def test_a_mask_is_a_bit_a_token() -> None:
    steps = MaskedSteps(deployment=deployment(), structured=asked())
    assert steps.mask_bytes == 16_032 == VOCABULARY / 8
    assert steps.copied(64.0) == pytest.approx(64 * 16_032 / 64e9, rel=1e-12)
    assert float(steps.copied(64.0) + steps.applied(64.0)) == pytest.approx(after(64), rel=1e-9)


def test_a_mask_has_a_word_for_the_last_tokens_too() -> None:
    """33 tokens take two words of 32 bits, 8 bytes; 32 take one. Most vocabularies divide by 32 and cannot tell."""
    honest = deployment()
    for vocabulary, size in ((32, 4), (33, 8), (64, 8), (65, 12)):
        small = replace(honest, model=honest.model.model_copy(update={"vocab": vocabulary}))
        assert MaskedSteps(deployment=small, structured=asked()).mask_bytes == size


@for_each("cores", [1, 2, 6, 32, 400])
def test_masks_are_filled_by_the_threads_that_are_free(cores: int) -> None:
    """One after another up to 128; beyond, pieces of 16 on half the cores, 8 threads at most."""
    of, filling = Structured(share=1.0, mask_time=50e-6, cores=cores), mask_filling(load_engine("vllm"))
    for masks in (1, 64, 128):
        assert of.fill(masks, filling) == pytest.approx(masks * 50e-6, rel=1e-12)
    threads = {1: 1, 2: 1, 6: 3, 32: 8, 400: 8}[cores]
    for masks in (129, 144, 145, 200, 256, 257, 1000):
        pieces = [16] * (masks // 16) + ([masks % 16] if masks % 16 else [])
        assert of.fill(masks, filling) == pytest.approx(replayed(pieces, threads), rel=1e-12)


def test_a_structured_step_by_its_parts() -> None:
    """64 masks of 50 us are filled in 3.2 ms: behind a forward pass of 5 ms none of it shows, of 2 ms 1.2 ms."""
    steps = MaskedSteps(deployment=deployment(), structured=asked())
    assert steps.beyond(64, 5e-3) == pytest.approx(after(64), rel=1e-9)
    assert steps.beyond(64, 2e-3) == pytest.approx(1.2e-3 + after(64), rel=1e-9)
    before = MaskedSteps(deployment=deployment(), structured=asked(overlapped=False))
    assert before.beyond(64, 5e-3) == pytest.approx(3.2e-3 + after(64), rel=1e-9)
    assert steps.beyond(0, 1.0) == 0.0
    both = np.asarray(steps.beyond(64, np.array([5e-3, 2e-3])))
    assert both.tolist() == [steps.beyond(64, 5e-3), steps.beyond(64, 2e-3)]


def test_a_share_of_a_batch_by_enumeration() -> None:
    """Eight requests, each structured with a chance of 0.3: all 256 ways, with masks of 1 ms behind 2.5 ms."""
    steps = MaskedSteps(deployment=deployment(), structured=asked(share=0.3, mask_time=1e-3))
    mean = 0.0
    for ways in product((0, 1), repeat=8):
        masks = sum(ways)
        chance = 0.3**masks * 0.7 ** (8 - masks)
        mean += chance * (max(masks * 1e-3 - 2.5e-3, 0.0) + after(masks))
    assert steps.beyond(8, 2.5e-3) == pytest.approx(mean, rel=1e-9)
    assert binomial(20, 0.3) == pytest.approx([comb(20, n) * 0.3**n * 0.7 ** (20 - n) for n in range(21)], rel=1e-9)
    assert float(np.sum(binomial(1024, 0.4))) == pytest.approx(1.0, rel=1e-9)


def found(load: StaticLoad, structured: Structured) -> StructuredEstimate:
    plain = estimate(deployment(), load)
    return StructuredEstimate(deployment=plain.deployment, load=plain.load, structured=structured)


def test_an_estimate_adds_them_to_every_step() -> None:
    """255 steps one by one, each the larger of its kernels and 12.8 ms; the prompts' step is longer than its masks."""
    load, structured = StaticLoad(batch=64.0, prompt=1024.0, output=256.0), asked(mask_time=200e-6)
    plain, made = estimate(deployment(), load), found(load, structured)
    kernels = decode_phase(deployment(), load, 1024.0 + np.arange(255.0)).time - host_seconds(deployment(), 64.0)
    steps = np.maximum(kernels, 12.8e-3) + after(64)
    assert made.tpot == pytest.approx(float(np.mean(steps)), rel=1e-9)
    assert made.ttft == pytest.approx(float(plain.ttft) + after(64), rel=1e-9)
    hidden = found(load, asked(mask_time=1e-6))
    assert hidden.tpot == pytest.approx(float(plain.tpot) + after(64), rel=1e-9)
    assert hidden.plain_tpot == plain.tpot


def test_what_is_asked_for_has_units_in_its_keys() -> None:
    assert asked(share=0.3, overlapped=False).to_dict() == {
        "share": 0.3,
        "mask_time_s": 50e-6,
        "mask_library": None,
        "host_cores": 32,
        "mask_overlap": False,
        "mask_bandwidth_bytes_per_s": LINK,
    }


@for_each("mask_time", [50e-6, 20e-3])
def test_a_lone_request_is_the_same_in_simulation(mask_time: float) -> None:
    """Its masks are hidden, or longer than every step: 20 ms, its copy and its kernel."""
    structured = asked(mask_time=mask_time)
    made = found(StaticLoad(batch=1.0, prompt=512.0, output=100.0), structured)
    load = Traffic(
        arrivals=ClosedLoop(concurrency=1), prompt=Lengths(mean=512.0), output=Lengths(mean=100.0), requests_count=1
    )
    run = simulate(deployment(), load, options=Options(structured=structured))
    assert float(run.tpot[0]) == pytest.approx(float(made.tpot), rel=1e-6)
    assert float(run.ttft[0]) == pytest.approx(float(made.ttft), rel=1e-4)
    if mask_time > 1e-3:
        assert made.tpot == pytest.approx(20e-3 + after(1), rel=1e-9)


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match="under trtllm"):
        MaskedSteps(deployment=deployment(engine="trtllm"), structured=asked())
    with pytest.raises(UsageError, match="with drafts are not known of sglang"):
        MaskedSteps(deployment=deployment(engine="sglang"), structured=asked(), width=2)
    with pytest.raises(UsageError, match=r"no time of a mask of 'llama\.cpp'"):
        MaskedSteps(deployment=deployment(), structured=asked(mask_time=None, library="llama.cpp"))
    for both in ({}, {"mask_time": 1e-6, "library": "xgrammar"}):
        with pytest.raises(UsageError, match="--mask-library"):
            Structured(share=1.0, cores=1, **both)
    with pytest.raises(MissingFactError, match="the bandwidth from the host"):
        MaskedSteps(deployment=deployment(gpu="b200-hgx"), structured=Structured(share=1, mask_time=1e-6, cores=1)).copied(1.0)
    for share, mask_time in ((0.0, 1e-6), (1.1, 1e-6), (0.5, 0.0)):
        with pytest.raises(UsageError):
            Structured(share=share, mask_time=mask_time, cores=1)


@for_each(
    ("engine", "library", "masks", "seconds"),
    [
        # MaskBench's percentiles 25, 50, 75, 90, 95 and 99, twice the areas under straight lines between them
        ("vllm", "xgrammar", 128, 128 * (25 * 3 + 25 * 12 + 25 * 48 + 15 * 138 + 5 * 598 + 4 * 6186) / 2 / 99 * 1e-6),
        # 16 pieces of 16 on 8 threads
        ("vllm", "llguidance", 256, 32 * (25 * 29 + 25 * 75 + 25 * 101 + 15 * 132 + 5 * 196 + 4 * 652) / 2 / 99 * 1e-6),
        ("sglang", "outlines", 256, 256 * 1858e-6),  # one after another, however many; the lines are above the mean
    ],
)
def test_a_library_has_the_published_mean_of_99_in_100_and_the_engine_fills_as_its_source_says(
    engine: str, library: str, masks: int, seconds: float
) -> None:
    of = Structured(share=1.0, library=library, cores=32)
    filling = mask_filling(load_engine(engine))
    assert of.fill(masks, filling) == pytest.approx(seconds, rel=1e-12)
    assert library in of.rests_on(filling)
    assert "11,306 schemas" in of.rests_on(filling)
    assert "as given" in asked().rests_on(filling)


def test_masks_of_sglang_are_hidden_behind_the_forward_pass() -> None:
    """64 masks of llguidance, 54 us each: 3.5 ms behind a pass of some 10 ms; of outlines 119 ms."""
    load = StaticLoad(batch=64.0, prompt=1024.0, output=256.0)
    made = {
        library: StructuredEstimate(
            deployment=deployment(engine="sglang"),
            load=load,
            structured=asked(mask_time=None, library=library),
        )
        for library in ("llguidance", "outlines")
    }
    plain = float(made["llguidance"].plain_tpot)
    assert float(made["llguidance"].tpot) == pytest.approx(plain + after(64), rel=1e-9)
    assert float(made["outlines"].tpot) > 64 * 1858e-6 > plain


HERE = ("llama-3.1-8b", "--gpu", "h100-sxm")
MASKS = ("--structured-share", "0.5", "--mask-time", "50us", "--host-cores", "8", "--mask-bandwidth", "63GB/s")


@for_each(
    ("words", "said"),
    [
        (("estimate", *HERE, "--mask-time", "40us"), "--mask-time belongs to structured decoding"),
        (("estimate", *HERE, "--grammar-compile", "4ms"), "--grammar-compile needs structured decoding"),
        (("estimate", *HERE, "--structured-share", "1"), "needs --host-cores"),
        (("estimate", *HERE, "--structured-share", "1", "--host-cores", "8"), "needs --mask-time or --mask-library"),
        (("estimate", *HERE, *MASKS, "--samples", "2"), "several answers of a prompt"),
        (("estimate", *HERE, *MASKS, "--thinking-tokens", "200"), "thoughts before answers"),
        (("estimate", *HERE, *MASKS, "--no-kv-cache"), "steps without a KV cache"),
        (("estimate", "bge-m3", *HERE[1:], *MASKS), "a model with an encoder"),
        (("simulate", "t5-small", *HERE[1:], "--rate", "1", "--output", "9", *MASKS), "a model with an encoder"),
        (("estimate", *HERE, *MASKS, "--pp", "2"), "pipeline stages (--pp)"),
        (("simulate", *HERE, "--rate", "1", "--pp", "2", *MASKS, "--no-mask-overlap"), "before the forward pass"),
        (("estimate", *HERE, *MASKS, "--energy"), "energy (--energy)"),
    ],
)
def test_what_is_refused(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch, *words) == 2
    assert said in capsys.readouterr().err
