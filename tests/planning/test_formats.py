"""Every number format that device and engine run is a candidate; a plan in another than the checkpoint's says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inferplan.catalog.assemble import Request, default_quants, load_engine
from inferplan.catalog.files import load_hardware, load_model
from inferplan.catalog.price_lists import price_book
from inferplan.catalog.quality import quality_of, quantised_checkpoint
from inferplan.planning.demand import Demand
from inferplan.planning.option import Sizing
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.planning.space import Space
from inferplan.reports.plan_notes import answer, error_unknown, notes
from inferplan.reports.plan_record import plan_record
from inferplan.traffic.requests import Lengths, Slo
from tests.cases import for_each

L4 = 0.805
"""USD an hour of a g6.xlarge, one L4, on demand in us-east-1 (AWS)."""


def asked(model: str = "qwen3-4b", gpus: tuple[str, ...] = ("l4",), **changes: object) -> Question:
    question = Question(
        space=Space(base=Request(model=model, gpu=""), gpus=gpus, most=1, disaggregate=False),
        demand=Demand(prompt=Lengths(mean=400), output=Lengths(mean=100), rate=10.0),
        slo=Slo(ttft=0.15, tpot=0.02, percentile=95.0),
        sizing=Sizing(confidence=0.8, insists=False),
        prices=price_book(stated=[f"l4={L4}"]),
    )
    return replace(question, space=replace(question.space, **changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def planned() -> Plan:
    return plan(asked())


@for_each(
    ("gpu", "engine", "formats"),
    [
        # Ada, Hopper: fp8 arithmetic; AWQ, GPTQ and int8 of vLLM's table of supported hardware
        ("l4", "vllm", (None, "fp8", "int8", "w4a16")),
        ("h100-sxm", "sglang", (None, "fp8", "int8", "w4a16")),
        ("a100-80gb-sxm", "vllm", (None, "int8", "w4a16")),  # Ampere: no fp8
        ("h100-sxm", "trtllm", (None, "fp8", "w4a16")),  # QuantAlgo has AWQ and GPTQ
        ("h100-sxm", "llama.cpp", (None, "q8_0", "q4_k_m")),  # reads GGUF files alone
        ("m3-max", "llama.cpp", (None, "q8_0", "q4_k_m")),
        ("b200-hgx", "vllm", (None, "fp8", "nvfp4")),  # 4-bit arithmetic of its own
        ("mi300x", "vllm", (None, "fp8")),  # the table says neither AWQ nor int8 on AMD
        ("v100-sxm2-32gb", "vllm", (None, "w4a16")),  # int8 without tensor cores is not on file
    ],
)
def test_the_formats_that_device_and_engine_run(gpu: str, engine: str, formats: tuple[str | None, ...]) -> None:
    found = default_quants(load_model("llama-3.1-8b"), load_hardware(gpu), load_engine(engine))
    assert set(found) == set(formats) and found[0] is None


def test_weights_that_are_stored_narrow_are_not_narrowed_to_as_much() -> None:
    engine, h100 = load_engine("vllm"), load_hardware("h100-sxm")
    assert default_quants(load_model("gpt-oss-120b"), h100, engine) == (None,)  # released in 4 bits
    assert default_quants(load_model("deepseek-v3"), h100, engine) == (None, "w4a16")  # released in 8


def test_four_bits_halve_the_plan_and_the_native_one_stands_beside_it(planned: Plan) -> None:
    """qwen3-4b in fp8 reads twice the bytes of each step: at 20 ms per token w4a16 takes half the L4 or fewer."""
    assert planned.option.deployment.precision.weights.name == "int4"
    assert planned.option.cost == pytest.approx(planned.option.devices * L4)
    eight = plan(asked(quants=("fp8",)))
    assert planned.option.cost < 0.6 * (eight.option.cost or 0.0)
    assert planned.native is None  # 8 GB of weights in 300 GB/s: 27 ms per token and more on one L4
    assert "in the checkpoint's own format no tried option keeps the limits" in notes(planned)
    assert plan(asked(quants=(None, "fp8", "int8", "w4a16"))).option.cost == planned.option.cost


def test_a_plan_that_rests_on_no_measurements_says_so_first(planned: Plan) -> None:
    assert planned.unkept is not None and planned.confidence == 0.5
    first = answer(planned).partition(". ")[0]
    assert first == error_unknown(planned)[0].upper() + error_unknown(planned)[1:]
    assert "no measurements support vllm on l4" in first
    said = plan_record(planned)["plan"]
    assert said["confidence"] is None and said["miss"] is None and "l4" in said["error_unknown"]


def test_the_cheapest_in_its_own_format_costs_what_a_plan_of_that_alone_costs() -> None:
    """At 40 ms per token qwen3-4b fits the L4 in bf16 too (8 GB over 300 GB/s: 27 ms), with fewer requests per L4."""
    loose = replace(asked(), slo=Slo(ttft=0.5, tpot=0.04, percentile=95.0))
    found = plan(loose)
    alone = plan(replace(loose, space=replace(loose.space, quants=(None,))))
    assert found.option.request.quant is not None and found.native is not None
    assert found.native.option.cost == pytest.approx(alone.option.cost)
    assert plan_record(found)["native_alternative"]["cost"] == found.native.option.cost


def test_of_equal_cost_the_checkpoints_own_format_is_taken() -> None:
    """One request a minute takes one GPU in every format: nothing is bought with a narrower one."""
    found = plan(replace(asked(), demand=replace(asked().demand, rate=1 / 60), slo=Slo(ttft=2.0, tpot=0.1)))
    assert (found.option.devices, found.option.request.quant) == (1, None)


def test_what_was_published_of_a_format() -> None:
    """Model card of RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16: 98.9 % of OpenLLM v1, 93.0 % of Arena-Hard."""
    known = quantised_checkpoint(load_model("llama-3.1-8b"), "w4a16")
    assert known is not None and known.checkpoint == "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16"
    assert "98.9% of OpenLLM v1" in quality_of(load_model("llama-3.1-8b"), "w4a16")
    assert "no evaluation of qwen3-4b in w4a16 is on file" in quality_of(load_model("qwen3-4b"), "w4a16")
    release = quantised_checkpoint(load_model("qwen3-235b-a22b"), "nvfp4")  # on file as a model of its own
    assert release is not None and release.checkpoint == "nvidia/Qwen3-235B-A22B-NVFP4"
    assert quantised_checkpoint(load_model("qwen3-4b"), "w4a16") is None
    for endless in ("m" * 300, "\u6f22" * 100):  # longer than a file's name may be, in characters or in bytes
        assert quantised_checkpoint(load_model("qwen3-4b").model_copy(update={"name": endless}), "fp8") is None


def test_every_ratio_on_file_is_that_of_the_scores_that_its_source_prints() -> None:
    """Scores of the quantised checkpoint over those of the original, as the model cards have them."""
    printed = {
        ("mixtral-8x7b-v0.1", "fp8", "OpenLLM v1"): 73.19 / 73.48,
        ("mixtral-8x22b-v0.1", "fp8", "OpenLLM v1"): 78.47 / 79.15,
        ("llama-3-70b", "fp8", "OpenLLM v1"): 79.16 / 79.51,
        ("deepseek-r1", "nvfp4", "MATH-500"): 94.2 / 95.4,
        ("deepseek-r1", "nvfp4", "GPQA Diamond"): 69.2 / 69.7,
        ("qwen2-7b", "w4a16", "mean of MMLU, C-Eval and IFEval"): 64.1 / 66.9,
        ("qwen2-72b", "w4a16", "mean of MMLU, C-Eval and IFEval"): 80.4 / 81.3,
        ("qwen3.6-35b-a3b", "fp8", "GSM8K Platinum"): 96.44 / 95.86,
    }
    for (model, quant, benchmark), ratio in printed.items():
        known = quantised_checkpoint(load_model(model), quant)
        assert known is not None and known.recovered[benchmark] == pytest.approx(ratio, abs=6e-4), model
