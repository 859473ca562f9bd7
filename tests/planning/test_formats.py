"""Every number format that device and engine run is a candidate; a plan in another than the checkpoint's says so."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from yaml import safe_load

from inferplan.catalog.assemble import Request, load_engine
from inferplan.catalog.files import config_root, load_hardware, load_model
from inferplan.catalog.price_lists import price_book
from inferplan.catalog.quality import published, quality_in_short, quality_of, quantised_checkpoint, sister
from inferplan.errors import UsageError
from inferplan.estimate.formats import default_quants
from inferplan.planning.demand import Demand
from inferplan.planning.option import Sizing
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.planning.space import Rejections, Space, candidates
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
    release = quantised_checkpoint(load_model("kimi-k2.5"), "nvfp4")  # on file as a model of its own
    assert release is not None and (release.checkpoint, release.shares) == ("nvidia/Kimi-K2.5-NVFP4", {})
    both = quantised_checkpoint(load_model("qwen3-32b"), "fp8")  # a release, and scores that name no checkpoint
    assert both is not None and both.checkpoint == "Qwen/Qwen3-32B-FP8" and both.lowest == pytest.approx(70.43 / 74.53)
    assert quantised_checkpoint(load_model("phi-4"), "nvfp4") is None
    for endless in ("m" * 300, "\u6f22" * 100):  # longer than a file's name may be, in characters or in bytes
        assert quantised_checkpoint(load_model("qwen3-4b").model_copy(update={"name": endless}), "fp8") is None


def test_where_nothing_was_published_of_a_model_one_of_the_same_layers_is_named() -> None:
    """The model card of nvidia/Llama-3.3-70B-Instruct-FP4: MMLU 81.1 of 83.3, GSM8K 92.6 of 95.3. Of Llama 3 there is
    none; 3.1 and 3.3 are both of its layers, and the one whose name is the nearer has its own."""
    coder, said = load_model("qwen3-coder-30b-a3b"), quality_of(load_model("qwen3-coder-30b-a3b"), "w4a16")
    like = sister(coder, "w4a16")
    assert like is not None and like.model == "qwen3-30b-a3b"
    assert said.startswith("no evaluation of qwen3-coder-30b-a3b in w4a16 is on file; of qwen3-30b-a3b, which has the ")
    assert "the model card of RedHatAI/Qwen3-30B-A3B-quantized.w4a16" in said
    older = load_model("llama-3.3-70b").model_copy(update={"name": "llama-3.3-70b-mine"})
    assert "of llama-3.3-70b, which has the same layers, it keeps 97.4% of MMLU, 97.2% of GSM8K" in (
        quality_of(older, "nvfp4")
    )
    assert sister(load_model("phi-4"), "nvfp4") is None
    none = "no evaluation of phi-4 in nvfp4 is on file; other models in nvfp4 kept about 99 % at 70 to 235 billion"
    assert quality_of(load_model("phi-4"), "nvfp4").startswith(none)
    assert quality_of(load_model("phi-4"), "q8_0") == "no evaluation of phi-4 in q8_0 is on file"


def test_a_headline_has_the_lowest_scores_and_a_warning_below_97_per_cent() -> None:
    """Llama-3.1-8B in w4a16: 24.0 of 25.8 in Arena-Hard, 26.5 of 27.6 in OpenLLM v2, 73.5 of 74.3 in v1."""
    assert quality_in_short(load_model("llama-3.1-8b"), "w4a16") == (
        "quality in w4a16: caution, it keeps 93.0% of Arena-Hard, 96.0% of OpenLLM v2, 98.9% of OpenLLM v1 (the lowest "
        "3 of 4 published scores)"
    )
    assert quality_in_short(load_model("llama-3.1-70b"), "nvfp4") == (
        "quality in nvfp4: it keeps 97.3% of OpenLLM v2, 97.9% of HumanEval, 98.7% of OpenLLM v1 (published scores)"
    )
    assert "99.4% of GPQA Diamond, against fp8 (" in quality_in_short(load_model("qwen3.6-27b"), "nvfp4")
    phi = load_model("phi-4")
    assert quality_in_short(phi, "nvfp4") == "quality in nvfp4: no evaluation of phi-4 in nvfp4 is on file"
    assert quality_in_short(load_model("qwen3-coder-30b-a3b"), "w4a16") == (
        "quality in w4a16: no evaluation of qwen3-coder-30b-a3b in w4a16 is on file; of qwen3-30b-a3b, which has the "
        "same layers: caution, it keeps 96.9% of LiveCodeBench (the lowest of 7 published scores)"
    )


PRINTED = """
llama-3.1-8b fp8 | Arena-Hard 105.4, OpenLLM v1 99.7, OpenLLM v2 101.2, HumanEval 100.0
llama-3.1-8b w4a16 | Arena-Hard 93.0, OpenLLM v1 98.9, OpenLLM v2 96.1, HumanEval 99.7
llama-3.1-8b nvfp4 | OpenLLM v1 97.68, OpenLLM v2 94.37, HumanEval_64 pass@2 99.36
llama-3.1-8b mxfp4 | mean of LAMBADA, HellaSwag, PIQA, WinoGrande and MMLU 93.6
llama-3.1-70b fp8 | Arena-Hard 101.6, OpenLLM v1 99.7, OpenLLM v2 100.0, HumanEval 100.4
llama-3.1-70b int8 | Arena-Hard 98.8, OpenLLM v1 99.9, OpenLLM v2 97.3, HumanEval 98.7
llama-3.1-70b nvfp4 | OpenLLM v1 98.70, OpenLLM v2 97.28, HumanEval 97.89
llama-3.1-405b fp8 | Arena-Hard 99.0, OpenLLM v1 100.0, OpenLLM v2 99.9, HumanEval 100.2
llama-3.1-405b w4a16 | Arena-Hard 98.7, OpenLLM v1 100.0, OpenLLM v2 99.0, HumanEval 98.0
llama-3.3-70b fp8 | OpenLLM v1 100.6, OpenLLM v2 99.8, HumanEval 100.6
llama-3.3-70b int8 | OpenLLM v1 99.4, OpenLLM v2 99.7, HumanEval 100.1
llama-3.1-nemotron-70b fp8 | OpenLLM v1 100.2, OpenLLM v2 99.0
llama-4-scout-17b-16e fp8 | OpenLLM v1 99.59, OpenLLM v2 100.28, RULER of 131,072 tokens 99.49, MMMU and ChartQA 99.38
llama-4-scout-17b-16e w4a16 | OpenLLM v1 99.59, OpenLLM v2 99.54, RULER of 131,072 tokens 98.16, MMMU and ChartQA 100.0
llama-4-scout-17b-16e nvfp4 | OpenLLM v1 98.59, OpenLLM v2 99.13, HumanEval_64 pass@2 101.17
llama-4-maverick-17b-128e w4a16 | OpenLLM v1 99.4
llama-4-maverick-17b-128e nvfp4 | MMLU 98.53, GSM8K 99.93, ARC Challenge 99.91, TruthfulQA 100.28, WinoGrande 99.69
mistral-small-24b-instruct-2501 int8 | OpenLLM v1 98.92
mistral-small-3.1-24b-instruct-2503 fp8 | OpenLLM v1 97.9, MMLU-Pro 99.4, GPQA Diamond 98.9, HumanEval 100.0, MBPP 98.5
devstral-small-2507 fp8 | HumanEval and MBPP 99.68
gemma-3-12b fp8 | OpenLLM v1 100.29, MMMU and ChartQA 100.81
phi-4 w4a16 | OpenLLM v1 99.3
glm-4.6 w4a16 | MMLU-Pro 105.07, IFEval 100.26, AIME 2025 93.10, MATH-500 99.10, GPQA Diamond 98.14
nvidia-nemotron-3-ultra-550b-a55b fp8 | AIME 2025 and GPQA Diamond 104.1, LiveCodeBench v6 96.51, BFCL v4 100.16
nvidia-nemotron-3-ultra-550b-a55b w4a16 | AIME 2025 and GPQA Diamond 99.8
nvidia-nemotron-3-ultra-550b-a55b nvfp4 | AIME 2025 and GPQA Diamond 103.6
qwen2.5-14b int8 | OpenLLM v1 100.4
qwen2.5-7b mxfp4 | mean of LAMBADA, HellaSwag, PIQA, WinoGrande and MMLU 92.6
qwen3-8b w4a16 | OpenLLM v1 100.7, OpenLLM v2 93.8, AIME 2025 95.1, GPQA Diamond 94.8, LiveCodeBench 92.9, MGSM 95.3
qwen3-8b nvfp4 | OpenLLM v1 98.38, OpenLLM v2 98.33, AIME 2024, AIME 2025 and GPQA Diamond 88.91
qwen3-8b mxfp4 | mean of LAMBADA, HellaSwag, PIQA, WinoGrande and MMLU 93.4
qwen3-14b nvfp4 | OpenLLM v1 99.16, OpenLLM v2 96.68, HumanEval_64 pass@2 99.04
qwen3-32b w4a16 | OpenLLM v1 99.6, OpenLLM v2 97.9, AIME 2024 97.4, AIME 2025 89.6, LiveCodeBench 95.5, MGSM 103.7
qwen3-32b nvfp4 | OpenLLM v1 99.83, OpenLLM v2 97.79, AIME 2024, AIME 2025 and GPQA Diamond 94.21
qwen3-32b mxfp4 | mean of LAMBADA, HellaSwag, PIQA, WinoGrande and MMLU 94.3
qwen3-30b-a3b w4a16 | OpenLLM v1 98.5, OpenLLM v2 98.2, AIME 2025 98.4, GPQA Diamond 99.2, LiveCodeBench 96.9
qwen3-30b-a3b nvfp4 | OpenLLM v1 98.19, OpenLLM v2 92.81, HumanEval_64 pass@2 97.34
qwen3-235b-a22b nvfp4 | OpenLLM v1 99.87, OpenLLM v2 99.75, HumanEval_64 pass@2 102.34, GPQA Diamond and MATH-500 97.72
qwen3-235b-a22b-instruct-2507 nvfp4 | OpenLLM v2 101.00, HumanEval_64 pass@2 99.78, GPQA Diamond and MATH-500 94.16
qwen3-vl-235b-a22b nvfp4 | OpenLLM v1 98.35, MMMU and ChartQA 98.08
qwen3-next-80b-a3b int8 | AIME 2025 103.5, GPQA Diamond 100.8, MATH-500 100.9, MMLU-Pro 100.3, IFEval 100.1, GSM8K 100.0
qwen3.5-122b-a10b nvfp4 | MMLU-Pro 99.61, IFEval 99.49, AIME 2025 98.65, GPQA Diamond 99.04, MATH-500 100.08
qwen3.6-35b-a3b fp8 | GSM8K Platinum 100.60
deepseek-r1-distill-qwen-32b w4a16 | AIME 2024, MATH-500 and GPQA Diamond 99.45, OpenLLM v1 99.8, HumanEval 100.0
"""
"""Of model cards that print both scores and, beside them, the share in per cent that is kept."""


@for_each(("known", "printed"), [tuple(line.split(" | ")) for line in PRINTED.strip().splitlines()])
def test_the_scores_on_file_give_the_share_that_their_source_prints(known: str, printed: str) -> None:
    """But for the rounding of the scores, some of which have three digits."""
    model, quant = known.split()
    found = published(load_model(model), quant)
    assert found is not None
    for name, percent in re.findall(r"([^\d ,].*?) (\d+\.\d+)(?:, |$)", printed):
        assert 100 * found.shares[name] == pytest.approx(float(percent), abs=0.3), name


def test_no_score_on_file_is_mistyped() -> None:
    """No published format keeps less than four fifths of a score, or adds a tenth to one; a model has one entry."""
    entries = safe_load((config_root() / "quality.yaml").read_text())["checkpoints"]
    assert len({(one["model"], one["quant"]) for one in entries}) == len(entries) > 100
    for one in entries:
        found = quantised_checkpoint(load_model(one["model"]), one["quant"])
        assert found is not None and all(0.8 < share < 1.1 for share in found.shares.values()), one
        assert one["source"].endswith(("2026-11-29", "2026-11-30"))
        Request(model=one["model"], gpu="", quant=one["quant"])


@for_each(
    ("model", "share", "left"),
    [
        ("llama-3.1-8b", 0.9, {}),
        ("llama-3.1-8b", 0.97, {"w4a16": "93.0% of Arena-Hard", "nvfp4": "94.4% of OpenLLM v2"}),
        ("phi-4", 0.99, dict.fromkeys(("fp8", "int8", "nvfp4"), "none published")),
    ],
)
def test_a_least_share_leaves_out_what_keeps_less_or_was_never_published(
    model: str, share: float, left: dict[str, str]
) -> None:
    """Of Llama-3.1-8B w4a16 has 24.0 of 25.8 in Arena-Hard and nvfp4 40.58 of 43.00 in OpenLLM v2; of phi-4 w4a16 alone
    has scores, 75.96 of 76.52."""
    space = Space(base=Request(model=model, gpu=""), gpus=("l4", "b200-hgx"), quality=share)
    assert space.left_out == left
    rejections = Rejections()
    tried = {request.quant for request, _ in candidates(space, rejections)}
    assert tried == {None, "fp8", "int8", "w4a16", "nvfp4"} - left.keys()
    assert (rejections.counts["quality"] > 0) is bool(left)


def test_a_plan_says_what_a_least_share_left_out() -> None:
    """Of qwen3-4b int8 keeps 66.46 of 72.56 in HumanEval and w4a16 81.65 of 85.37 in GSM8K (AngelSlim)."""
    given = asked()
    slow = replace(given, demand=replace(given.demand, rate=1 / 60), slo=Slo(ttft=2.0, tpot=0.1))
    found = plan(replace(slow, space=replace(given.space, quality=0.95, tp=(1,), budgets=(2048,))))
    assert "--quality 0.95 leaves out int8 (91.6% of HumanEval)" in notes(found)
    record = plan_record(found)
    assert record["question"]["quality"] == 0.95 and record["rejected"]["quality"] > 0
    assert record["question"]["formats_left_out"] == {"int8": "91.6% of HumanEval"}
    assert plan_record(plan(slow))["question"]["formats_left_out"] is None


def test_a_least_share_that_leaves_nothing_or_has_nothing_to_leave_out() -> None:
    request = Request(model="qwen3-32b", gpu="")
    with pytest.raises(UsageError, match=r"no format of --quant keeps --quality 0.98") as refused:
        Space(base=request, gpus=("l4",), quants=("fp8",), quality=0.98)
    assert refused.value.because == "fp8: 94.5% of GSM8K"  # 70.43 of 74.53
    own = Space(base=request, gpus=("l4",), quants=(None, "bf16"), quality=0.999)  # its config.json: bfloat16
    assert own.left_out == {} and Space(base=request, gpus=("l4",), quants=("fp16",)).left_out == {}
    with pytest.raises(UsageError, match="no format of --quant"):
        Space(base=request, gpus=("l4",), quants=("fp16",), quality=0.999)
    with pytest.raises(UsageError, match=r"quality is in \(0, 1\], not 2"):
        Space(base=request, gpus=("l4",), quality=2.0)
    assert Space(base=request, gpus=("l4",), quants=(None, "fp8"), quality=0.98).left_out == {"fp8": "94.5% of GSM8K"}
