"""DeepSeek-V4's releases as their files have them: formats, what drafts, and every stored element of one of them."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from inferplan.catalog.files import load_model
from inferplan.errors import SpecError, UsageError
from inferplan.models.huggingface import import_path, model_from_config
from inferplan.models.prediction import prediction_model
from inferplan.models.spec import ModelSpec
from tests.cases import for_each

D, RANK, VOCAB = 4096, 256, 129280


def release(shared: Path, name: str) -> ModelSpec:
    return import_path(shared / "model_configs" / "real" / f"{name}.json").model


def config(shared: Path, name: str) -> dict[str, Any]:
    path = shared / "model_configs" / "real" / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


def blocks(rows: int, columns: int) -> int:
    """Elements and scales of a matrix of fp8 by blocks of 128 x 128."""
    return rows * columns + ceil(rows / 128) * ceil(columns / 128)


def packed(elements: int) -> int:
    """Bytes of MXFP4: two elements in one, and a scale for 32."""
    return elements // 2 + elements // 32


def stored(model: ModelSpec) -> int:
    """Elements of the tensors in a release, as safetensors count them."""
    kinds = {"experts": lambda w: packed(w.elements), "weights": lambda w: blocks(*w.shape)}
    return sum(count * kinds.get(weight.role, lambda w: w.elements)(weight) for weight, count in model.weights())


def test_every_stored_element_of_v4_flash_0731(shared: Path) -> None:
    """165,265,454,782 in all, and the shapes of its DSpark draft (``mtp.0`` to ``mtp.2``), as printed by
    https://github.com/gogongxt/python/blob/c1feefbda85d61ad5cca42410a39cc194aa790fc/scripts/models/deepseek_v4_flash_0731.md
    """
    attention = blocks(1024, D) + blocks(32768, 1024) + blocks(512, D) + blocks(8192, 4096) + blocks(D, 8192)
    attention += 64 + 512 + 1024
    experts = packed(256 * 3 * 2048 * D) + 256 * D + 256 + 3 * blocks(2048, D)
    layer = attention + experts + 2 * D + 2 * (24 * 4 * D + 24 + 3)
    draft = 3 * layer + blocks(D, 3 * D) + D  # what it reads: three of the model's states, and a norm
    draft += 2 * VOCAB * RANK + (D + RANK) + 4 * 4 * D + 4 + 1 + D  # Markov and confidence heads, the join, a norm
    buffers = 3 * VOCAB * 6 + 40 * 256  # tables of token ids and corrections of the routers
    model = release(shared, "deepseek-ai--DeepSeek-V4-Flash-0731")
    assert stored(model) + draft + buffers == 165_265_454_782
    assert any("DSpark" in note for note in model.notes)
    with pytest.raises(UsageError, match="no prediction module"):
        prediction_model(model)


@for_each(
    "file, name",
    [
        ("deepseek-ai--DeepSeek-V4-Flash", "deepseek-v4-flash"),
        ("deepseek-ai--DeepSeek-V4-Flash-0731", "deepseek-v4-flash-0731"),
        ("deepseek-ai--DeepSeek-V4-Pro", "deepseek-v4-pro"),
        ("nvidia--DeepSeek-V4-Pro-NVFP4", "deepseek-v4-pro-nvfp4"),
    ],
)
def test_the_catalogue_is_the_config_of_the_release(file: str, name: str, shared: Path) -> None:
    found, filed = release(shared, file), load_model(name)
    for field in ("layers", "mtp", "native", "hyper_streams", "max_context", "vocab"):
        assert getattr(found, field) == getattr(filed, field), field


def test_nvidia_changes_the_experts_alone(shared: Path) -> None:
    native = release(shared, "nvidia--DeepSeek-V4-Pro-NVFP4").native
    assert (native.weights, native.experts, native.exceptions) == ("fp8-block", "nvfp4", [])
    quant = json.loads(
        (shared / "model_configs" / "quant" / "nvidia--DeepSeek-V4-Flash-NVFP4_hf_quant_config.json").read_text()
    )
    named = quant["quantization"]["quantized_layers"]
    assert {name.split(".", 2)[2] for name in named} == {"ffn.experts"} and len(named) == 43


def test_sglangs_repackage_has_no_fp4(shared: Path) -> None:
    """``deepseek_ref``, DeepSeek's own reference: no ``expert_dtype``, and SGLang runs it with its fp4 experts off."""
    found, filed = release(shared, "sgl-project--DeepSeek-V4-Flash-FP8"), load_model("deepseek-v4-flash-fp8")
    assert (found.layers, found.native) == (filed.layers, filed.native)
    assert found.native.experts == "fp8-block"


@for_each(
    "change, field",
    [
        ({"compress_ratios": [0] * 45}, "compress_ratios"),
        ({"dspark_something": 3}, "dspark_something"),
        ({"expert_dtype": "fp6"}, "expert_dtype"),
    ],
)
def test_what_is_new_is_refused(change: dict[str, Any], field: str, shared: Path) -> None:
    said = config(shared, "deepseek-ai--DeepSeek-V4-Flash-0731") | change
    with pytest.raises(SpecError, match=field):
        model_from_config(said, "v4", "test")


def test_blocks_beside_one_algorithm_are_refused(shared: Path) -> None:
    said = config(shared, "nvidia--DeepSeek-V4-Pro-NVFP4")
    said["quantization_config"] |= {"quant_algo": "NVFP4"}
    with pytest.raises(SpecError, match="weight_block_size"):
        model_from_config(said, "v4", "test")
