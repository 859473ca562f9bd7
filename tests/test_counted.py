"""GPUs with their number: ``2x-a6000``, ``2xA6000``, ``4 x rtx-4090``, ``2x24GB``."""

from __future__ import annotations

import re

import pytest

from inferplan.answers.fit import FitAsked, fit_on
from inferplan.answers.fit_models import models_that_fit
from inferplan.answers.fit_owned import fit_owned
from inferplan.catalog.assemble import Request, assembled
from inferplan.catalog.counted import Counted, counted, devices_meant
from inferplan.catalog.files import load_hardware, names
from inferplan.catalog.price_lists import price_book
from inferplan.errors import InfeasibleError, MissingFactError, UnknownNameError, UsageError
from inferplan.reports.fit import memory_report
from inferplan.work.parallel import Parallelism
from tests.cases import for_each


@for_each(
    ("text", "count", "gpu"),
    [
        ("2x-a6000", 2, "a6000"),
        ("2xA6000", 2, "A6000"),
        ("2x A6000", 2, "A6000"),
        ("4 x rtx-4090", 4, "rtx-4090"),
        ("8 × h100-sxm", 8, "h100-sxm"),
        ("2x24GB", 2, "24GB"),
        ("1000x24GB", 1000, "24GB"),
        ("1000000 x 24 GB", 1000000, "24 GB"),
        ("h100-sxm", None, "h100-sxm"),
        ("rtx-4090", None, "rtx-4090"),
        ("2x-h100,l40s", None, "2x-h100,l40s"),  # a list, whose parts are read one by one
        ("./2x.yaml", None, "./2x.yaml"),
    ],
)
def test_a_number_before_a_name(text: str, count: int | None, gpu: str) -> None:
    assert counted(text) == Counted(count, gpu)


def test_no_device_on_file_is_taken_for_a_number() -> None:
    aliases = [alias for name in names("hardware") for alias in (name, *load_hardware(name).aliases)]
    assert [name for name in aliases if counted(name).number is not None] == []


@for_each("text", ["0x-h100", "0 x h100", "1000001x-h100", "1000001x24GB"])
def test_what_is_no_number_of_gpus_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a number of GPUs"):
        counted(text)


def test_a_deployment_runs_on_all_of_them() -> None:
    assert Request(model="llama-3.1-8b", gpu="2x-h100").parallel == Parallelism(tp=2)
    named = Request(model="llama-3.1-8b", gpu="4 x h100", parallel=Parallelism(tp=2, replicas=2))
    assert (named.gpu, named.parallel) == ("h100", Parallelism(tp=2, replicas=2))
    with pytest.raises(UsageError, match="the division uses 2") as refused:
        Request(model="llama-3.1-8b", gpu="4x-h100", parallel=Parallelism(tp=2))
    assert "--tp 4" in refused.value.hint and "--replicas 2" in refused.value.hint


def test_a_size_means_every_gpu_that_is_sold_with_it() -> None:
    meant = devices_meant("2x24GB")
    assert {one.number for one in meant} == {2}
    assert {"rtx-3090", "rtx-4090", "rtx-a5000", "l4", "a10g"} <= {one.gpu for one in meant}
    assert all("24 G" in load_hardware(one.gpu).memory.label for one in meant)
    assert devices_meant("2x-a6000") == [Counted(2, "rtx-a6000")]
    with pytest.raises(UnknownNameError, match="23GB") as refused:
        devices_meant("2x23GB")
    assert "24GB" in refused.value.hint


def test_what_two_cards_hold() -> None:
    """Llama-3.1-70B: 80 layers x 2 x 8 heads x 128 x 2 B x 8,192 tokens are 2.684 GB a request, half on each card. In
    bf16 70.55e9 weights x 2 B are more than 2 x 48 GB; an A6000 has no fp8 arithmetic, so that int8 is its eight bits.
    Those 68.4e9 weights of the layers and 2.1e9 of embedding and head in bf16 are 36.3 GB on each card.
    """
    found = fit_owned("llama-3.1-70b", "2x-a6000", FitAsked(engine="vllm"), price_book())
    assert [(one.quant, one.fitting is not None) for one in found.options] == [
        ("native", False),
        ("int8", True),
        ("w4a16", True),
    ]
    eight, fits = found.fitting
    assert eight.fitting is not None and fits.fitting is not None
    assert eight.fitting.footprint.weights == pytest.approx((68.45e9 + 2.1e9 * 2) / 2, rel=2e-3)
    assert {one.quant for one in fit_owned("llama-3.1-70b", "8x-b200", FitAsked(), price_book()).options} == {
        "native",
        "fp8",
        "nvfp4",
    }
    parallel, pool = fits.fitting.deployment.parallel, fits.fitting.footprint.kv_pool
    assert (parallel.tp, parallel.pp) == (2, 1)
    assert fits.fitting.requests == int(pool // (80 * 2 * 8 * 128 * 2 * 8192 / 2))
    assert "weights do not fit" in found.options[0].reason


def test_formats_are_those_that_the_engine_loads_there() -> None:
    """TensorRT-LLM's QuantAlgo has AWQ and GPTQ, and no int8 of weights and activations; Ampere computes in no fp8."""
    tried = fit_owned("llama-3.1-8b", "1x-a10g", FitAsked(engine="trtllm"), price_book()).options
    assert [one.quant for one in tried] == ["native", "w4a16"]


def test_a_number_that_tensor_parallelism_cannot_divide_is_cut_into_stages() -> None:
    """8 key-value heads and 32 query heads on 3 cards: no tensor parallelism of 3, three stages."""
    (best,) = fit_owned("llama-3.1-8b", "3x-rtx-3090", FitAsked(quant="bf16"), price_book()).fitting
    assert best.fitting is not None
    assert (best.fitting.deployment.parallel.tp, best.fitting.deployment.parallel.pp) == (1, 3)


def test_what_they_do_not_hold_is_infeasible() -> None:
    """70.55e9 weights in 4.16 bits are 36.7 GB, and the embedding and head in 16 bits 4.2 GB more: 40.9 of the 44 GB
    that an engine takes of 2 x 24 GB, without activations and a cache."""
    with pytest.raises(InfeasibleError, match=r"2x24GB do not hold .* 1 request of 8,192 tokens") as refused:
        fit_owned("llama-3.1-70b", "2x24GB", FitAsked(engine="vllm"), price_book())
    # one line: the others lack more. The first of the GPUs has 0.86 GB left, 163,840 B a token
    because = refused.value.because or ""
    assert because.count(":") == 1 and re.search(
        r"w4a16 comes nearest: holds one request of up to 5,\d+ tokens, not", because
    )
    own = "inferplan fit llama-3.1-70b --have 2x24GB --engine"
    longest = re.search(rf"shorter requests, in w4a16: {own} vllm --context (\d+)\n", refused.value.hint or "")
    assert longest is not None
    held = FitAsked(engine="vllm", quant="w4a16", context=int(longest[1]))
    # 80 layers x 2 x 8 heads x 128 x 2 B, half on each card: the pool has room for so many tokens, not for one more
    pools = [
        one.fitting.footprint.kv_pool
        for one in fit_owned("llama-3.1-70b", "2x24GB", held, price_book()).fitting
        if one.fitting
    ]
    assert int(max(pools) // (80 * 2 * 8 * 128 * 2 / 2)) // 16 * 16 == int(longest[1])  # whole pages
    more = FitAsked(engine="vllm", quant="w4a16", context=int(longest[1]) + 16)
    with pytest.raises(InfeasibleError, match=f"{int(longest[1]) + 16:,} tokens"):
        fit_owned("llama-3.1-70b", "2x24GB", more, price_book())
    assert f"llama.cpp in q4_k_m: {own} llama.cpp\n" in refused.value.hint
    with pytest.raises(InfeasibleError) as crowded:  # 16 GB of weights, 1.07 GB a request: some 50 requests fit
        fit_owned("llama-3.1-8b", "1x-h100", FitAsked(users=2000, quant="native"), price_book())
    fewer = re.search(r"fewer requests at once: inferplan fit .* --in-flight (\d+)", crowded.value.hint)
    assert fewer is not None and 45 < int(fewer[1]) < 60
    with pytest.raises(UsageError, match="nosuch"):
        fit_owned("llama-3.1-8b", "2x24GB", FitAsked(quant="nosuch"), price_book())
    with pytest.raises(UsageError, match="does not divide 3"):
        fit_owned("llama-3.1-8b", "3x-rtx-3090", FitAsked(tp=2), price_book())


def test_fewer_gpus_in_narrower_formats_are_named() -> None:
    """480.2e9 weights: 960 GB in bf16 are 120 GB on each of 8 B200s of 192 GB, and 240 GB on each of 4. In fp8 some 483
    GB are 121 GB on each of 4, 241 GB on each of 2; in nvfp4 (4.5 bits) 271 GB are 137 GB on each of 2."""
    found = fit_on("qwen3-coder-480b", "b200", FitAsked(), price_book())
    assert (found.deployment.parallel.devices, found.fewer) == (8, {"fp8": 4, "nvfp4": 2})
    assert any(
        "fp8 4, in nvfp4 2" in note and note.endswith("--have 8x-b200-hgx") for note in memory_report(found).notes
    )


def test_a_box_of_less_memory_is_asked_again_with_its_memory() -> None:
    """70.55e9 weights: 42.5 GB in q4_k_m (4.8 bits), 75 GB in q8_0 (8.5 bits); a Mac of 64 GB lends its GPU some 56."""
    with pytest.raises(InfeasibleError) as refused:
        fit_on("llama-3.3-70b", "m4-max", FitAsked(memory="64GB"), price_book())
    hint = refused.value.hint or ""
    assert hint.startswith("--quant q4_k_m;") and "--have 1x-m4-max --memory 64GB;" in hint
    with pytest.raises(InfeasibleError) as small:  # nothing above 3.6 bits: 32 GB are less than 42.5 GB
        fit_on("llama-3.3-70b", "m4-max", FitAsked(memory="32GB"), price_book())
    assert "--quant" not in (small.value.hint or "")


def test_the_longest_context_is_a_hint_that_fits() -> None:
    """1.6 GB of cache at 64 layers x 2 x 8 heads x 128 x 2 B = 262,144 B a token are 6,000 tokens and some."""
    with pytest.raises(InfeasibleError) as refused:
        fit_on("qwen3-32b", "rtx-4090", FitAsked(quant="w4a16", most=1), price_book())
    said = re.search(r"--context (\d+);", refused.value.hint or "")
    assert said is not None and 6000 < int(said[1]) < 6400
    held = fit_on("qwen3-32b", "rtx-4090", FitAsked(quant="w4a16", most=1, context=int(said[1])), price_book())
    assert int(held.footprint.kv_pool // (64 * 2 * 8 * 128 * 2 * 16)) * 16 == int(said[1])


def test_a_format_said_instead_of_missing_arithmetic_fits() -> None:
    """671e9 weights: 671 GB in fp8 are more than the 512 GB of the box, whatever the activations are; at 4.8 bits some
    403 GB are less than the 498 GB that its GPU may use, and more than the 128 GB of another."""
    with pytest.raises(MissingFactError) as refused:
        assembled(Request(model="deepseek-r1", gpu="m3-ultra", engine="llama.cpp"))
    assert refused.value.hint == "--quant q4_k_m"
    with pytest.raises(MissingFactError, match="fp8") as small:
        assembled(Request(model="deepseek-r1", gpu="m4-max", engine="llama.cpp"))
    assert not re.search(r"--(quant|activations)", small.value.hint or "")
    with pytest.raises(MissingFactError) as eight:  # 70.6 GB in fp8: 35.3 on each of two cards of 80 GB
        assembled(Request(model="llama-3.1-70b-instruct-fp8", gpu="a100", parallel=Parallelism(tp=2)))
    assert eight.value.hint == "--activations bf16, or --quant w4a16"


def test_a_quantised_copy_is_listed_in_its_own_format_alone() -> None:
    """70.6 GB in fp8 are more than 48 GB: that somebody else's 4 bits of the plain model fit is said of that model."""
    found = {one.model.name: one.option for one in models_that_fit("1x-a6000", FitAsked(), price_book()).models}
    assert found["llama-3.1-70b"].quant == "w4a16" and found["llama-3.1-70b"].fitting is not None
    assert found["llama-3.1-70b-instruct-fp8"].fitting is None
    assert found["deepseek-r1"].reason.startswith("4 bits")  # of whose fp8 there is no wider one on file


def test_a_box_has_its_price_per_gpu() -> None:
    """aws-us-east-1 lets 8 H100s for three years at 23.777 an hour: 2.97 each."""
    found = fit_on("llama-3.1-8b", "h100-sxm", FitAsked(), price_book(term="reserved-3y"))
    assert any(note.startswith("price: 23.78 USD per hour, 2.97 per GPU: ") for note in memory_report(found).notes)


def test_a_degree_that_does_not_hold_it_names_what_does() -> None:
    """32.8e9 weights in bf16: 65.5 GB are more than one L40S of 48 GB, half of it on each of two is less."""
    with pytest.raises(InfeasibleError) as refused:
        fit_on("qwen3-32b", "l40s", FitAsked(tp=1), price_book())
    assert (refused.value.hint or "").startswith("--tp 2, or --quant fp8")
    with pytest.raises(InfeasibleError) as large:  # 810 GB on two cards of 24 GB, and 203 GB in 4 bits
        fit_on("llama-3.1-405b", "rtx-4090", FitAsked(tp=2), price_book())
    assert "--quant" not in (large.value.hint or "") and "--context" not in (large.value.hint or "")
