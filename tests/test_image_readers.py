"""Models of images with parts beside their language model, by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import (
    CONFIG_MAPPING,
)

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import MissingFactError, SpecError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build
from inferplan.models.huggingface import import_config
from inferplan.models.spec import ModelSpec
from inferplan.work.ops import Attention, Matmul
from inferplan.work.step import prefill


def config(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(json.dumps(CONFIG_MAPPING[kind](**fields).to_dict(), default=str))
    return said


def imported(kind: str, fields: dict[str, Any]) -> ModelSpec:
    return import_config(config(kind, fields), kind, "test").model


def deployment(model: ModelSpec) -> Deployment:
    return assemble(Request(model="x", gpu="h100-sxm", ideal=True), model_loader=lambda _: model)


def multiplied(model: ModelSpec, positions: int) -> float:
    """FLOP of matrices and attention of a request's first step."""
    ops = [op for stage in build(deployment(model), prefill(1.0, float(positions))) for op in stage.ops]
    return sum(float(op.work().flop * op.count) for op in ops if isinstance(op, Attention | Matmul))


def test_idefics_9b_by_hand() -> None:
    """Llama 7B with a gated layer before every fourth: a feed-forward of the decoder, and attention beside it."""
    perceiver = {"use_resampler": True, "qk_layer_norms_perceiver": True}
    fields = {"alpha_type": "vector", "cross_layer_interval": 4, "qk_layer_norms": True, "use_resampler": True}
    fields |= {"additional_vocab_size": 2, "vision_config": {"embed_dim": 1280}, "perceiver_config": perceiver}
    model, d, wide = imported("idefics", fields), 4096, 1280
    assert model.parameters["total"] == 6_738_415_616 + 2 * 2 * d + 8 * (
        3 * d * 11008 + d
    )  # Llama 2 7B, two words more
    assert model.kv_elements_per_token == 32 * 2 * d
    vision = 32 * (4 * wide * wide + 4 * wide + 2 * wide * 5120 + 5120 + wide + 4 * wide)
    vision += 588 * wide + wide + 257 * wide + 4 * wide
    latents = 64 * wide + 2 * wide + 6 * (4 * wide * 16 * 96 + 8 * wide * wide + 6 * wide + 4 * 96)
    cross = 8 * (2 * d * d + 2 * wide * d + d + 2 * 128 + 2 * d)
    assert model.tower_parameters == vision + latents + cross
    rows = 32 * (4 * d * d + 3 * d * 11008) + 8 * 3 * d * 11008 + 32002 * d
    assert multiplied(model, 1) == 2 * rows + 32 * 4 * d
    with pytest.raises(SpecError, match="cross_layer_interval"):
        imported("idefics", {"cross_layer_interval": 5})


def test_pi0_by_hand() -> None:
    """PaliGemma 3B without a head, Gemma's layers 1024 wide with an embedding of their own, five matrices."""
    model, d, narrow, rows = imported("pi0", {}), 2048, 1024, 257152
    text = rows * d + 18 * (2 * d * 2048 + 2 * d * 256 + 3 * d * 16384 + 2 * d) + d
    expert = rows * narrow + 18 * (2 * narrow * 2048 + 2 * narrow * 256 + 3 * narrow * 4096 + 2 * narrow) + narrow
    moves = 2 * (32 * narrow + narrow) + 2 * narrow * narrow + narrow + narrow * narrow + narrow + narrow * 32 + 32
    assert model.parameters["total"] == text + expert + moves
    vision = (
        27 * (4 * 1152**2 + 2 * 1152 * 4304 + 4304 + 5 * 1152 + 4 * 1152) + 588 * 1152 + 1152 + 256 * 1152 + 2 * 1152
    )
    assert model.tower_parameters == vision + 1152 * d + d
    with pytest.raises(MissingFactError, match="time of this model"):
        multiplied(model, 300)
    with pytest.raises(SpecError, match=r"dit_config\.model_type"):
        imported("pi0", {"dit_config": {"model_type": "llama"}})


def test_unlimited_ocr_by_hand() -> None:
    """DeepSeek's experts in 11 of 12 layers, CLIP-L behind SAM; the window of what is written has no time here."""
    model, d = imported("unlimited_ocr", {}), 1280
    expert = 3 * d * 896
    sparse = 11 * (64 * expert + 2 * expert + 64 * d)
    text = 2 * 129280 * d + 12 * (4 * d * d + 2 * d) + sparse + 3 * d * 6848 + d
    assert model.parameters["total"] == text
    assert model.kv_elements_per_token == 12 * 2 * d
    clip = 24 * (12 * 1024**2 + 4096 + 9 * 1024) + 1024 + 257 * 1024 + 2 * 1024
    behind = next(tower for tower in model.towers if tower.name == "encoder")
    assert behind.parameters == clip + 2048 * d + d + 2 * d
    assert any("the last 128 are kept" in note for note in model.notes)
    with pytest.raises(MissingFactError, match="time of this model"):
        multiplied(model, 100)
