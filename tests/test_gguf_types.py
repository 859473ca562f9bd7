"""llama.cpp's file types: bytes of published files, the rules by hand, and what they do to an estimate."""

from __future__ import annotations

import csv
import json
import re
from functools import cache
from pathlib import Path

import pytest

from inferplan.catalog import files as catalog
from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import InferplanError, UsageError
from inferplan.estimate.memory import Footprint
from inferplan.models.gguf_formats import FILE_TYPES, blend, file_precision
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import Precision, find_format
from tests.cases import for_each


@cache
def load_model(name: str) -> ModelSpec:
    return catalog.load_model(name)


def size(model: ModelSpec, precision: Precision, module: bool = False) -> float:
    """Bytes of the file's tensors, with the prediction module where it is in the file."""
    tensors = [*model.weights(), *(model.mtp.weights(model) if module and model.mtp else ())]
    return sum(w.elements * count * precision.stored(w.role, w.name).width for w, count in tensors)


@for_each(
    ("name", "file_type", "bits", "digits"),
    [  # llama.cpp's tools/quantize README; Llama-3.1-70B and Qwen2.5-72B: gguf-parser-go's README
        ("llama-2-7b", "q3_k_s", 3.50, 0.005),
        ("llama-2-7b", "q3_k_m", 3.91, 0.005),
        ("llama-2-7b", "q4_k_s", 4.58, 0.005),
        ("llama-2-7b", "q4_k_m", 4.84, 0.005),
        ("llama-2-7b", "q5_k_s", 5.52, 0.005),
        ("llama-2-7b", "q5_k_m", 5.68, 0.005),
        ("llama-2-13b", "q3_k_l", 4.26, 0.005),
        ("llama-2-70b", "q4_k_m", 4.80, 0.005),
        ("llama-2-70b", "q6_k", 6.56, 0.005),
        ("llama-3.1-8b", "q4_k_m", 4.89, 0.005),
        ("llama-3.1-8b", "q5_k_m", 5.70, 0.005),
        ("llama-3.1-70b", "q4_k_m", 4.82, 0.005),
        ("qwen2.5-72b", "q4_k_m", 5.22, 0.005),
    ],
)
def test_bits_of_a_weight_in_published_files(name: str, file_type: str, bits: float, digits: float) -> None:
    model = load_model(name)
    found = size(model, file_precision(model, file_type)) * 8 / model.parameters["total"]
    assert found == pytest.approx(bits, abs=digits)


def test_a_tensor_map_to_the_byte() -> None:
    """Qwen3-4B, every matrix in q6_k: 3,299,520,000 bytes and 784,384 of float32 (Thireus' GGUF tensor maps)."""
    model = load_model("qwen3-4b")
    assert size(model, file_precision(model, "q6_k-pure")) == 3_299_520_000 + 784_384


def test_the_rules_by_hand() -> None:
    """32 layers: the first 4, the last 4 and every third of the others have more bits: 4 + 4 + 8 of 32."""
    precision = file_precision(load_model("llama-3.1-8b"), "q4_k_m")
    q4, q6 = find_format("q4_k").width, find_format("q6_k").width
    for tensor in ("v", "down"):
        assert precision.stored("weights", tensor).width == pytest.approx((q4 + q6) / 2)
    assert precision.stored("weights", "q") == find_format("q4_k")
    assert precision.stored("base", "norm") == find_format("fp32")
    assert (precision.embedding.name, precision.head.name) == ("q4_k", "q6_k")


def test_eight_experts_keep_keys_and_values_wide() -> None:
    precision = file_precision(load_model("mixtral-8x7b-v0.1"), "q4_k_m")
    assert {precision.stored("weights", name).name for name in "kv"} == {"q8_0"}
    assert precision.stored("weights", "o").name == "q5_k"
    assert precision.stored("base", "router").name == "fp32"


def test_rows_that_are_no_multiple_of_a_block() -> None:
    """Qwen2.5-0.5B: rows of 896 are 3.5 blocks of 256, so q4_k becomes q5_0; its down projection has rows of 4864."""
    precision = file_precision(load_model("qwen2.5-0.5b"), "q4_k_s")
    assert precision.stored("weights", "q").name == "q5_0"
    assert precision.stored("weights", "down").kernel == "q4_k"
    assert precision.embedding.name == "q8_0"  # tied: it is the head


def test_a_blend_is_the_mean_of_bytes() -> None:
    mixed = blend({"q4_k": 300, "q6_k": 100})
    assert mixed.width == pytest.approx((3 * 4.5 + 6.5625) / 4 / 8)
    assert (mixed.name, mixed.kernel) == ("q4_k+q6_k", "q4_k")
    assert blend({"q4_k": 5}) == find_format("q4_k")


@for_each("file_type", FILE_TYPES)
def test_every_file_type_of_every_kind_of_model(file_type: str) -> None:
    for name in ("llama-3.1-8b", "falcon-7b", "gpt2", "deepseek-v2-lite", "qwen3.5-0.8b", "jamba-v0.1", "gemma-3n-e2b"):
        model = load_model(name)
        bits = size(model, file_precision(model, file_type)) * 8 / model.parameters["total"]
        low = find_format(FILE_TYPES[file_type]).width * 8
        assert low * 0.99 <= bits <= low + 4, name


def test_an_unknown_file_type_is_refused() -> None:
    with pytest.raises(UsageError, match="q9_k"):
        file_precision(load_model("gpt2"), "q9_k")


def test_an_estimate_runs_weight_only() -> None:
    """Matrices in q4_k and the head in q6_k multiply in the activations' format; memory holds the file's bytes."""
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", quant="Q4_K_M", engine="none"))
    assert deployment.precision.linear_input(deployment.precision.weights).name == "bf16"
    footprint = Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0)
    assert footprint.weights == pytest.approx(4.58 * 2**30, rel=1e-3)
    assert footprint.weights == pytest.approx(size(deployment.model, deployment.precision))


_SAME_SHAPES = {
    "Qwen3-4B-Instruct-2507": "qwen3-4b",
    "Qwen3-4B-Thinking-2507": "qwen3-4b",
    "Qwen3-VL-235B-A22B-Thinking": "qwen3-vl-235b-a22b",
    "Qwen3.8-27B": "qwen3.6-27b",
}


def test_published_tensor_maps(shared: Path) -> None:
    """Files of one format with the fallbacks of llama.cpp: within 0.1 %, most of them to the byte.

    Left out: mixes of other tools (two main formats, q6_0 or the formats of ik_llama.cpp), and GLM-4.6, whose module
    has no copies of the vocabulary tables while its config is that of GLM-4.5.
    """
    checked = exact = 0
    with (shared / "reference" / "memory_truths.csv").open(encoding="utf-8") as file:
        table = [row for row in csv.DictReader(file) if row["metric"] == "sum of GGUF tensor bytes"]
    for row in table:
        kind = row["quant"].split()[-1].lower()
        types = set(json.loads(re.search(r"by dtype (\{.*\})", row["context"])[1])) - {"f32"}
        if not types <= {kind, {"q4_k": "q5_0", "q6_k": "q8_0"}.get(kind, "iq4_nl")} or row["model"] == "GLM-4.6":
            continue
        try:
            model = load_model(_SAME_SHAPES.get(row["model"], row["model"]))
            precision = file_precision(model, f"{kind}-pure")
        except InferplanError:
            continue
        found = [size(model, precision, module) for module in (False, True)]
        error = min(abs(value / float(row["value"]) - 1) for value in found)
        if kind in ("q2_k", "q3_k") and "iq4_nl" in types:  # ik_llama.cpp falls back to iq4_nl, llama.cpp to q4_0
            assert find_format("iq4_nl").width == find_format("q4_0").width
        assert error < 1e-3, (row["model"], kind, error)
        checked += 1
        exact += error < 1e-9
    assert checked >= 135
    assert exact >= 95


def test_norms_without_weights_are_in_no_file() -> None:
    """OLMo's norms have neither weights nor biases, so that every tensor is a matrix: 8.5 bits in q8_0 (32 weights of
    8 bits and a scale of 16)."""
    model = load_model("olmo-7b")
    assert size(model, file_precision(model, "q8_0")) == pytest.approx(model.parameters["total"] * 8.5 / 8, rel=1e-12)
