"""Models told from names and shapes of tensors, their model_type erased, against transformers and descriptions.

The folders are those of classes of transformers on meta: headers that are whole before data that are sparse.
"""

from __future__ import annotations

import json
import os
import struct
from math import prod
from pathlib import Path
from typing import Any

import pytest

from inferplan.answers.fit import footprint_at
from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import InferplanError, MissingFactError
from inferplan.models.huggingface import import_config, import_path
from inferplan.models.huggingface.families import ALIASES, FAMILIES
from inferplan.models.spec import ModelSpec
from tests.cases import for_each

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.oracle.built import build, config_of, growth, kinds  # noqa: E402
from tests.oracle.traced import work  # noqa: E402
from tests.oracle.zoo import sample  # noqa: E402

TYPES = {torch.bfloat16: ("BF16", 2), torch.float32: ("F32", 4)}
FORTY = (
    *("afmoe", "arcee", "aria_text", "bloom", "codegen", "cohere", "cohere2", "cwm"),
    *("deepseek_v3", "dots1", "ernie4_5", "exaone4", "falcon", "flex_olmo", "gemma", "gemma2", "gemma3_text"),
    *("glm4_moe", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe", "hunyuan_v1_moe"),
    *("llama", "minimax_m2", "mixtral", "mpt", "nemotron", "olmo3", "olmoe", "opt", "phi"),
    *("phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "starcoder2"),
)
"""Families whose cache is told whole."""
UNLIKE = ("falcon",)
"""Types whose class keeps otherwise than an engine does (tests/oracle/sweep.py)."""


def erased(folder: Path, name: str, fields: dict[str, Any]) -> tuple[Any, dict[str, Any], int]:
    """A folder with the header of a class on meta, experts numbered as on the hub, and its config without model_type.

    The class, the config with its type, and the bytes of all tensors.
    """
    try:
        config = config_of(name, fields)
        model = build(config, kinds()[name])
    except Exception:
        config = config_of(name)
        model = build(config, kinds()[name])
    width = config.get_text_config().hidden_size
    shapes: dict[str, tuple[str, int, list[int]]] = {}
    for own, tensor in model.named_parameters():
        dtype, size = TYPES[tensor.dtype]
        shape = list(tensor.shape)
        before, _, last = own.rpartition(".")
        if before.endswith(".experts") and len(shape) == 3 and width in shape[1 : 2 if last == "down_proj" else 3]:
            parts = ["gate_proj", "up_proj"] if last == "gate_up_proj" and shape[2] == width else [last]
            each = [shape[1] // len(parts), shape[2]]
            for index in range(shape[0]):
                shapes |= {f"{before}.{index}.{part}.weight": (dtype, size, each) for part in parts}
        else:
            shapes[own] = (dtype, size, shape)
    header, offset = {}, 0
    for own, (dtype, size, shape) in shapes.items():
        end = offset + size * prod(shape)
        header[own] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    words = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(words)) + words)
    os.truncate(folder / "model.safetensors", 8 + len(words) + offset)
    said = json.loads(config.to_json_string(use_diff=False)) | {"architectures": [type(model).__name__]}
    (folder / "config.json").write_text(json.dumps(without_type(said)), encoding="utf-8")
    return model, said, offset


def without_type(fields: Any) -> Any:
    """The same without any ``model_type``."""
    if not isinstance(fields, dict):
        return fields
    return {key: without_type(value) for key, value in fields.items() if key != "model_type"}


def weights(folder: Path) -> float:
    """Bytes of the weights on one device, as ``fit`` has them."""
    return footprint_at(assemble(Request(model=str(folder), gpu="h200-sxm")), 128).stage.weights


def kept(model: ModelSpec) -> tuple[float, float, float]:
    """Elements that a token adds below and beyond all windows, and those of constant size."""
    beyond = model.kv_elements_per_token_beyond_windows
    return model.kv_elements_per_token, beyond, model.state_elements_per_sequence


@for_each("name", FORTY)
def test_forty_families_without_their_type_keep_what_they_keep_and_weigh_what_they_weigh(
    tmp_path: Path, name: str
) -> None:
    model, said, size = erased(tmp_path, name, {"num_hidden_layers": 4})
    told = import_path(tmp_path).model
    assert told.basis == "stored"
    assert told.parameters["total"] == sum(parameter.numel() for parameter in model.parameters())
    assert told.checkpoint_bytes == size
    assert weights(tmp_path) == pytest.approx(size, rel=1e-3)
    described = import_config(said, name, "test").model
    assert kept(told) == kept(described)
    if name not in UNLIKE:
        assert kept(told) == growth(model, described.windows)
    if name == "deepseek_v3":
        with pytest.raises(MissingFactError, match="latent"):
            work(told, (8.0, 1.0, 900.0))
        return
    for load in ((2.0, 700.0, 0.0), (8.0, 1.0, 900.0)):
        flop, moved = work(told, load)
        theirs, most = work(described, load)
        assert flop == pytest.approx(theirs, rel=1e-4), load  # a gate of shared experts is one row of it
        assert moved == pytest.approx(most, rel=5e-3), load  # a gate beside queries reads its rows once more


@for_each("name", sample(name for name, kind in kinds().items() if kind.kind == "text" and name not in FORTY))
def test_any_other_type_of_text_is_told_right_or_refused(tmp_path: Path, name: str) -> None:
    try:
        _, said, size = erased(tmp_path, name, {"num_hidden_layers": 4})
    except Exception as error:
        pytest.skip(f"not built: {str(error)[:60]}")
    try:
        told = import_path(tmp_path).model
    except InferplanError as error:
        assert "embedding" in error.what, error
        return
    assert told.checkpoint_bytes == size
    try:
        held = kept(told)
    except MissingFactError as error:
        assert error.because
        return
    if ALIASES.get(name, name) in FAMILIES:  # else no table describes it
        assert held == kept(import_config(said, name, "test").model)
