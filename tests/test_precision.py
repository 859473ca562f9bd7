"""Formats and shorthands: widths from the formats' own documents, arithmetic from what the operands can run in."""

from __future__ import annotations

import re

import pytest

from inferplan.catalog.assemble import Request, assemble, cache_format, usual_engine
from inferplan.catalog.files import load_hardware, load_model, names
from inferplan.errors import MissingFactError, UnknownNameError, UsageError
from inferplan.estimate.phase import run_step
from inferplan.serving.cold_start import weights_of
from inferplan.validation.deploy import deployment_of
from inferplan.validation.rows import Run
from inferplan.work.formats import arithmetic, find_format, parse_precision
from inferplan.work.step import decode
from tests.cases import for_each

HOPPER = frozenset({"fp32", "bf16", "fp16", "fp8", "int8"})
AMPERE = frozenset({"fp32", "bf16", "fp16", "int8"})


@for_each(
    ("name", "bits"),
    [
        ("bf16", 16),
        ("fp8", 8),
        ("fp8-block", 8 + 32 / 16384),  # DeepSeek-V3: one fp32 scale for 128 x 128
        ("int4", 4 + 20 / 128),  # AWQ, GPTQ: fp16 scale and 4-bit zero for 128: 4.15625
        ("nvfp4", 4.5),
        ("mxfp4", 4.25),
    ],
)
def test_bits_of_a_weight_with_its_scales(name: str, bits: float) -> None:
    assert find_format(name).width * 8 == pytest.approx(bits, rel=1e-12)


@for_each(
    ("weights", "activations", "math"),
    [
        ("bf16", "bf16", "bf16"),
        ("int4", "bf16", "bf16"),
        ("fp8", "bf16", "bf16"),
        ("fp8", "fp8", "fp8"),
        ("int8", "int8", "int8"),
        ("nvfp4", "nvfp4", "fp4"),
        ("int4", "fp8", "fp8"),
        ("mxfp4", "bf16", "bf16"),
    ],
)
def test_weight_only_formats_run_in_their_activations(weights: str, activations: str, math: str) -> None:
    assert arithmetic(find_format(weights), find_format(activations)) == math


@for_each(
    ("text", "peaks", "weights", "activations", "kv"),
    [
        ("bf16", HOPPER, "bf16", "bf16", "bf16"),
        ("fp8", HOPPER, "fp8", "fp8", "bf16"),
        ("FP8_block", HOPPER, "fp8-block", "fp8", "bf16"),
        ("w8a8", HOPPER, "int8", "int8", "bf16"),
        ("int8", HOPPER, "int8", "int8", "bf16"),
        ("int4", HOPPER, "int4", "bf16", "bf16"),
        ("awq", HOPPER, "int4", "bf16", "bf16"),
        ("gptq", HOPPER, "int4-gptq", "bf16", "bf16"),
        ("nf4", HOPPER, "nf4", "bf16", "bf16"),
        ("nvfp4", HOPPER, "nvfp4", "nvfp4", "bf16"),
        ("w4a16kv8", HOPPER, "int4", "bf16", "fp8"),
        ("w4a16kv8", AMPERE, "int4", "bf16", "int8"),
        ("w16a16kv8", AMPERE, "bf16", "bf16", "int8"),
        ("w4a8", HOPPER, "int4", "fp8", "bf16"),
    ],
)
def test_shorthands(text: str, peaks: frozenset[str], weights: str, activations: str, kv: str) -> None:
    precision = parse_precision(text, peaks)
    assert (precision.weights.name, precision.activations.name, precision.kv.name) == (weights, activations, kv)
    assert precision.experts == precision.weights
    assert {precision.embedding.name, precision.head.name, precision.base.name} == {"bf16"}


@for_each("text", ["w3a16", "w8a4", "banana", "w8", "", "w16a8", "w8a8kv2"])
def test_bad_shorthands_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read the precision"):
        parse_precision(text, HOPPER)


def test_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="bf16"):
        find_format("fp7")


@for_each(
    ("name", "bits"),
    [
        ("fp8-token-head", 8 + 32 / 128),
        ("int4-token-head-zero", 4 + 32 / 128),
        ("int4-kivi", 5),
        ("int2-kivi", 3),
        ("fp8-ds-mla", 656 * 8 / 576),
        ("nf4-dq", 4 + 8 / 64 + 32 / (64 * 256)),
        ("llm.int8", 8.008),
    ],
)
def test_caches_and_others_with_their_scales(name: str, bits: float) -> None:
    assert find_format(name).width * 8 == pytest.approx(bits, rel=1e-12)


def test_what_stands_beside_rows_and_columns() -> None:
    """GPTQ's g_idx: 4 bytes for each input column of each expert; LLM.int8's scale: 4 for each output row."""
    gptq, plain, outlier = find_format("int4-gptq"), find_format("int4"), find_format("llm.int8")
    assert gptq.stored((512, 4096)) == plain.stored((512, 4096)) + 4 * 4096
    assert gptq.stored((8, 512, 4096)) == plain.stored((8, 512, 4096)) + 8 * 4 * 4096
    assert outlier.stored((512, 4096)) == 512 * 4096 * 8.008 / 8 + 4 * 512
    assert gptq.kernel == "int4"
    assert find_format("bf16").stored((7,)) == 14


def test_llm_int8_multiplies_in_int8() -> None:
    precision = parse_precision("llm.int8", HOPPER)
    inputs = precision.linear_input(precision.weights)
    assert arithmetic(precision.weights, inputs) == "int8"


def test_scales_of_a_cache_follow_the_heads() -> None:
    """Two scales of 4 bytes a token, layer and KV head: heads of 64 have twice the share of heads of 128."""
    for name, width in (("llama-3.1-8b", 128), ("llama-3.2-1b", 64), ("gemma-2-9b", 256)):
        fmt = cache_format(find_format("int8-token-head"), load_model(name))
        assert fmt.width == pytest.approx(1 + 4 / width)


def test_caches_of_latents() -> None:
    """656 bytes for 576 elements, whatever the format of the index keys beside them (V3.2)."""
    fmt = find_format("fp8-ds-mla")
    for name in ("deepseek-v3", "deepseek-v3.2"):
        assert cache_format(fmt, load_model(name)).width * 576 == pytest.approx(656)
    with pytest.raises(UsageError, match="latents"):
        cache_format(fmt, load_model("llama-3.1-8b"))
    with pytest.raises(UsageError, match="not heads"):
        cache_format(find_format("int8-token-head"), load_model("deepseek-v3"))


@for_each(
    ("model", "gpu", "taken"),
    [
        ("llama-3.2-3b", "t4", "fp16"),  # Turing multiplies no bf16: vLLM falls back to float16
        ("llama-2-7b", "gaudi2", "bf16"),  # the data sheet has bf16 and fp8 alone
        ("llama-2-7b", "tpu-v6e", "bf16"),
        ("llama-2-7b", "h100-sxm", "fp16"),
    ],
)
def test_sixteen_bits_that_the_device_multiplies(model: str, gpu: str, taken: str) -> None:
    """Without --quant the weights stay as wide, so bytes are those of the checkpoint; the note says what was taken."""
    found = assemble(Request(model=model, gpu=gpu, ideal=True))
    assert {found.precision.base.name, found.precision.weights.name, found.precision.kv.name} == {taken}
    assert found.precision.base.width == 2.0
    assert (f"16 bits are {taken}: {gpu} has no" in found.formats_note) is (taken != found.model.native.base)
    row = Run(
        model=model, gpu=gpu, engine="vllm", engine_version=None, precision=None, weights=found.model.native.base,
        experts=None, kv=None, activations=None, prompt=128.0, output=8.0, batch=1,
    )  # fmt: skip
    priced, notes = deployment_of(row, ideal=True)
    assert priced.precision.weights.name == taken
    assert ([found.formats_note] if found.formats_note else []) == [note for note in notes if "16 bits" in note]


@for_each(
    ("model", "engine", "gpu", "taken"),
    [
        # vLLM logs "Downcasting torch.float32 to torch.float16." of BAAI/bge-reranker-v2-m3 under vLLM
        ("bge-reranker-v2-m3", "vllm", "l40s", "fp16"),
        ("bge-m3", "sglang", "l40s", "fp16"),
        (
            "gpt2",
            "vllm",
            "l40s",
            "bf16",
        ),  # _resolve_auto_dtype: the first of supported_dtypes from Ampere on
        ("gpt2", "vllm", "t4", "fp16"),  # the same on Turing
        ("gpt2", "sglang", "l40s", "fp16"),  # the same lines in CI logs of SGLang
        ("bge-m3", "none", "l40s", "fp32"),
    ],
)
def test_a_checkpoint_of_32_bits_runs_as_the_engine_narrows_it(model: str, engine: str, gpu: str, taken: str) -> None:
    found = assemble(Request(model=model, gpu=gpu, engine=engine, ideal=True))
    own, narrow = found.precision, taken != "fp32"
    assert {own.base.name, own.weights.name, own.activations.name, own.kv.name, own.embedding.name} == {taken}
    assert (f"{engine} runs this checkpoint of fp32 in {taken}" in found.formats_note) is narrow
    kept = assemble(Request(model=model, gpu=gpu, engine=engine, ideal=True, quant="fp32"))
    assert kept.precision.weights.name == "fp32" and not kept.formats_note
    fp8 = assemble(Request(model=model, gpu="l40s", engine=engine, ideal=True, quant="fp8"))
    assert fp8.precision.base.name == (taken if gpu == "l40s" else "bf16")


def test_a_narrowed_checkpoint_is_read_as_it_is_stored() -> None:
    """BAAI/bge-m3 has 567,754,752 elements of 4 bytes: 2.271 GB from the volume, 1.136 GB on the GPU."""
    found = assemble(Request(model="bge-m3", gpu="l4", ideal=True))
    assert weights_of(found) == pytest.approx(4 * 567_754_752, rel=2e-3)
    assert weights_of(assemble(Request(model="bge-m3", gpu="l4", ideal=True, quant="fp32"))) == weights_of(found)


@for_each("gpu", names("hardware"))
@for_each("quant", [None, "bf16", "fp16", "int8", "fp8", "nvfp4", "w4a8", "q4_k_m"])
def test_a_hint_works_when_followed(gpu: str, quant: str | None) -> None:
    """A format that is refused for want of arithmetic runs in the one that the refusal names."""
    engine = usual_engine("llama-3.1-8b", "h100-sxm", quant)
    asked = Request(model="llama-3.1-8b", gpu=gpu, quant=quant, engine=engine, ideal=True)
    try:
        assemble(asked)
    except MissingFactError as error:
        if not load_hardware(gpu).peak:
            assert "copy of the hardware YAML" in (error.hint or "")
            return
        option, value = re.search(r"--(quant|activations) (\w+)", error.hint or "").groups()  # type: ignore[union-attr]
        followed = {"quant": value} if option == "quant" else {"quant": quant, "roles": ((option, value),)}
        fields = {"model": asked.model, "gpu": gpu, "engine": engine, "ideal": True}
        step = run_step(assemble(Request(**(fields | followed))), decode(1.0, 128.0))  # type: ignore[arg-type]
        assert float(step.time) > 0.0


def test_inputs_asked_for_in_the_missing_format() -> None:
    with pytest.raises(MissingFactError) as refused:
        assemble(Request(model="llama-3.1-8b", gpu="t4", roles=(("weights", "fp8"), ("activations", "bf16"))))
    assert refused.value.hint == "--activations fp16"
    assemble(Request(model="llama-3.1-8b", gpu="t4", roles=(("weights", "fp8"), ("activations", "fp16"))))
