"""What `fit` and `compare` say of published quality, by the scores on model cards."""

from __future__ import annotations

import re

import pytest

from inferplan.catalog.files import load_model
from inferplan.catalog.quality import is_own, left_out, quality_of, share_kept
from tests.cases import for_each
from tests.cli.conftest import Run

ARENA = 24.0 / 25.8
"""Arena-Hard of RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16 over that of the original, by its card: the lowest
of four."""
KEPT = {"native": 1.0, "fp8": 73.6 / 73.8, "int8": 0.997, "w4a16": ARENA}
"""Of Llama-3.1-8B the lowest share on the cards of RedHatAI: OpenLLM v1 of fp8, HumanEval of int8."""


def test_fit_has_the_published_share_of_each_format(run: Run) -> None:
    said = run("fit", "llama-3.1-8b", "--have", "1x-l4", "--format", "json").json["options"]
    assert {one["quant"]: one["quality_kept"] for one in said} == pytest.approx(KEPT)
    assert "93.0% of Arena-Hard, mean of 4 96.9%" in run("fit", "llama-3.1-8b", "--have", "1x-l4").out
    everywhere = run("fit", "llama-3.1-8b", "--format", "json").json["options"]
    found = {one["quant"]: one["quality_kept"] for one in everywhere if one["gpu"] in ("l4", "m4-max")}
    assert found == pytest.approx(KEPT | {"q8_0": None, "q4_k_m": None})
    models = run("fit", "--have", "1x-rtx-4090", "--format", "json").json["models"]
    assert {one["model"]: one.get("quality_kept") for one in models}["llama-3.1-8b"] == 1.0


@for_each(
    "command",
    [
        "fit llama-3.1-8b --have 1x-l4 --quality 0.97",
        "fit llama-3.1-8b --quality 0.97",
        "fit llama-3.1-8b --quality 97%",
    ],
)
def test_fit_leaves_out_what_keeps_less(run: Run, command: str) -> None:
    options = run(*command.split(), "--format", "json").json["options"]
    on_l4 = {one["quant"]: one["fits"] for one in options if one["gpu"] == "l4"}
    assert on_l4 == {quant: share >= 0.97 for quant, share in KEPT.items()}
    assert "w4a16 (93.0% of Arena-Hard)" in run(*command.split()).out


def test_fit_refuses_a_format_that_keeps_less(run: Run) -> None:
    for where in (("--gpu", "l4"), ("--have", "1x-l4"), ()):
        said = run("fit", "llama-3.1-8b", *where, "--quant", "w4a16", "--quality", "0.97")
        assert (said.code, "w4a16: 93.0% of Arena-Hard" in said.err) == (2, True)
    assert run("fit", "llama-3.1-8b", "--gpu", "l4", "--quant", "w4a16", "--quality", "0.93").code == 0


def test_compare_has_the_share_of_each_format(run: Run) -> None:
    asked = ("compare", "llama-3.1-8b", "--gpu", "l4", "--quant", "native,bf16,w4a16,nf4", "--batch", "1")
    found = {one["candidate"]: one["quality_kept"] for one in run(*asked, "--format", "json").json["candidates"]}
    assert list(found.values()) == pytest.approx([1.0, 1.0, ARENA, None])
    line = next(line for line in run(*asked).out.splitlines() if line.startswith("quality kept"))
    assert re.split(r"  +", line)[-2:] == ["93.0% of Arena-Hard, mean of 4 96.9%", "none published"]
    assert "quality kept" not in run("compare", "llama-3.1-8b,qwen3-8b", "--gpu", "l4", "--batch", "1").out


def test_the_checkpoints_own_format_keeps_all() -> None:
    """`torch_dtype` of their config.json: Llama and Qwen bfloat16, Qwen3-32B-FP8 fp8 in blocks of 128."""
    llama = load_model("llama-3.1-8b")
    assert [is_own(llama, quant) for quant in (None, "native", "bf16", "BF16", "w16a16")] == [True] * 5
    assert [is_own(llama, quant) for quant in ("fp8", "bf16kv8", "q8_0", "nonsense")] == [False] * 4
    assert share_kept(llama, "bf16") == (1.0, "the checkpoint's own")
    assert share_kept(llama, "q8_0") == (None, "none published")
    assert left_out(llama, [None, "bf16", "w4a16", "q8_0"], 0.95) == {
        "w4a16": "93.0% of Arena-Hard",
        "q8_0": "none published",
    }
    assert not is_own(load_model("qwen3-32b-fp8"), "bf16")


def test_a_plan_in_the_checkpoints_own_format_keeps_every_quality(run: Run) -> None:
    load = "--rate 2 --prompt 512 --output 128 --ttft 2s --tpot 50ms --tp 1 --aggregated"
    for quant in ("bf16", "native"):
        said = run(*f"plan qwen2.5-7b --gpu h100-sxm --quant {quant} --quality 0.999 {load}".split())
        assert said.code == 0 and "--quality 0.999 leaves out no format" in said.out
        assert "no evaluation" not in said.out


@for_each("spelled", ["w4a16", "W4A16", "int4", "awq", "gptq"])
def test_evidence_is_that_of_the_format_however_it_is_spelled(run: Run, spelled: str) -> None:
    """The card of RedHatAI/Qwen3-32B-quantized.w4a16: 64.27 of 71.77 in AIME 2025, weights of 4 bits, inputs of 16."""
    qwen, llama = load_model("qwen3-32b"), load_model("llama-3.1-8b")
    assert share_kept(qwen, spelled)[0] == pytest.approx(64.27 / 71.77)
    assert quality_of(qwen, spelled).startswith("it keeps ")
    assert [share_kept(llama, one)[0] for one in ("int8", "w8a8")] == [0.997, 0.997]
    for other in ("w4a8", "w4a16kv8", "w8a16", "llm.int8", "nf4"):  # other inputs, cache or layout: evaluated of none
        assert share_kept(qwen, other) == share_kept(llama, other) == (None, "none published")
    floor = ("--quant", spelled, "--quality", "0.89")
    assert run("fit", "qwen3-32b", "--gpu", "1x-h100", *floor).code == 0
