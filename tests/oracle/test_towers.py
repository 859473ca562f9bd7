"""Models of several modalities against the classes of transformers, built on the meta device."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers

from inferplan.errors import SpecError
from inferplan.models.huggingface import model_from_config
from inferplan.models.huggingface.towers import BESIDE
from inferplan.models.huggingface.towers.defaults import DEFAULTS, TEXT_DEFAULTS
from tests.oracle.built import build, config_of, count, kinds
from tests.oracle.sweep import sweep

COMPLETE = {
    "gemma4": {"vision_config": {"model_type": "gemma4_vision"}, "audio_config": {"model_type": "gemma4_audio"}},
    "gemma4_unified": {
        "vision_config": {"model_type": "gemma4_unified_vision"},
        "audio_config": {"model_type": "gemma4_unified_audio"},
    },
}
"""What the class's own default leaves out."""

BUILT = sorted(set(BESIDE) & set(kinds()))


def expected(name: str, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """All parameters of the class, and the config that it was built from."""
    config = config_of(name, fields)
    total = count(build(config, kinds()[name])).total
    assert isinstance(total, int)
    return total, json.loads(json.dumps(config.to_dict(), default=str))


@pytest.mark.parametrize("name", BUILT)
def test_language_model_and_towers_are_those_of_the_class(name):
    total, config = expected(name, COMPLETE.get(name, {}))
    found = model_from_config(config, name, "test")
    assert found.towers
    assert found.parameters["total"] + found.tower_parameters == total - drawing(name)


DRAWING = {"janus": ("vqmodel", "generation_"), "emu3": ("vqmodel.decoder", "post_quant_conv")}
"""What draws images by the names of its parameters: autoencoder, tables, aligner and head; the second half of one."""


def drawing(name: str) -> int:
    """The parameters that draw images; a note says that they are not counted."""
    if name not in DRAWING:
        return 0
    built = build(config_of(name), kinds()[name])
    return sum(p.numel() for key, p in built.named_parameters() if any(part in key for part in DRAWING[name]))


SHARE = BUILT if os.environ.get("INFERPLAN_SWEEP") == "all" else random.Random(11).sample(BUILT, 5)


@pytest.mark.parametrize("name", SHARE)
def test_variations_are_exact_or_refused(name):
    (found,) = sweep([name], 2, 1)
    assert found.verdict == ("text" if name in DRAWING else "exact"), found.what


def varied(config: dict[str, Any], table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The config with one field of a table doubled or switched."""
    for name, value in config[table].items():
        if isinstance(value, bool) or (isinstance(value, int) and not name.endswith(("_id", "_index"))):
            changed = copy.deepcopy(config)
            changed[table][name] = (not value) if isinstance(value, bool) else 2 * value
            yield name, changed


@pytest.mark.parametrize("name", SHARE[:2])
def test_no_field_of_a_tower_is_lost(name):
    """Every field of a tower's table, changed alone: the class's count, or a refusal."""
    _, config = expected(name, COMPLETE.get(name, {}))
    for table in BESIDE[name].towers:
        for _, changed in varied(config, table):
            try:
                total, _ = expected(name, changed)
            except Exception:  # the class refuses it
                continue
            try:
                found = model_from_config(changed, name, "test")
            except SpecError:
                continue
            assert found.parameters["total"] + found.tower_parameters == total - drawing(name)


def _classes() -> dict[str, Any]:
    """Every config class by its model_type."""
    found: dict[str, Any] = {}
    models = Path(transformers.__file__).parent / "models"
    for path in models.glob("*/configuration_*.py"):
        if path.parent.name == "auto":
            continue
        module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        for value in vars(module).values():
            if isinstance(value, type) and getattr(value, "model_type", "") and value.__module__ == module.__name__:
                found.setdefault(value.model_type, value)
    return found


def test_defaults_are_those_of_the_classes():
    classes = _classes()
    for kind, fields in (DEFAULTS | TEXT_DEFAULTS).items():
        own = {field.name: field for field in dataclasses.fields(classes[kind])}
        for name, value in fields.items():
            field = own[name]
            default = field.default_factory() if field.default is dataclasses.MISSING else field.default
            assert (list(default) if isinstance(default, tuple) else default) == value, (kind, name)


def test_a_config_as_released_and_one_as_saved_again_are_the_same_model():
    """LLaVA 1.5 7B by hand: CLIP-L/14 at 336, two matrices, Llama 2 7B with 64 words more."""
    layer = 4 * (1024 * 1024 + 1024) + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024
    clip = 24 * layer + 1024 * 588 + 578 * 1024 + 4 * 1024
    projector = 1024 * 4096 + 4096 + 4096 * 4096 + 4096
    released = {
        "model_type": "llava",
        "image_token_index": 32000,
        "projector_hidden_act": "gelu",
        "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": 1024,
            "image_size": 336,
            "intermediate_size": 4096,
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "patch_size": 14,
            "projection_dim": 768,
        },
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
    }
    found = model_from_config(released, "llava", "test")
    assert found.tower_parameters == clip + projector
    assert found.parameters["total"] == 6_738_415_616 + 2 * 64 * 4096
    assert any("num_hidden_layers = 32" in note for note in found.notes)
    saved = config_of("llava", released).to_dict()
    again = model_from_config(json.loads(json.dumps(saved, default=str)), "llava", "test")
    assert (again.parameters, again.tower_parameters) == (found.parameters, found.tower_parameters)


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl"])
def test_a_flat_config_is_read_as_the_nested_one(name):
    """The language model at the top level, as those types were released."""
    nested = json.loads(json.dumps(config_of(name).to_dict(), default=str))
    vision = {key: value for key, value in nested["vision_config"].items() if key not in ("model_type", "in_channels")}
    flat = {**nested["text_config"], "model_type": name, "vision_config": vision | {"in_chans": 3}}
    found, same = (model_from_config(config, name, "test") for config in (flat, nested))
    assert (found.parameters, found.tower_parameters) == (same.parameters, same.tower_parameters)
    assert found.towers == same.towers


def test_a_text_passes_the_layers_of_llama_vision_by():
    """11B: the cache of 32 of 40 layers, 8 KV heads of 128; the eight others and eight words stand beside."""
    found = model_from_config(json.loads(json.dumps(config_of("mllama").to_dict(), default=str)), "mllama", "test")
    assert found.parameters["total"] == 8_030_261_248  # Llama 3.1 8B
    assert found.kv_elements_per_token == 32 * 2 * 8 * 128
    beside = next(tower for tower in found.towers if tower.name == "cross_attention")
    attention = 4096 * 4096 * 2 + 4096 * 1024 * 2 + 2 * 128
    assert beside.parameters == 8 * (attention + 3 * 4096 * 14336 + 2 * 4096 + 2) + 8 * 4096


def test_a_new_field_of_a_tower_is_refused_by_name():
    config = json.loads(json.dumps(config_of("llava").to_dict(), default=str))
    config["vision_config"]["register_tokens"] = 4
    with pytest.raises(SpecError, match=r"vision_config\.register_tokens"):
        model_from_config(config, "llava", "test")


def test_an_encoder_decoder_of_images_is_refused_by_name():
    config = json.loads(json.dumps(config_of("florence2").to_dict(), default=str))
    with pytest.raises(SpecError, match="florence2"):
        model_from_config(config, "florence2", "test")


def test_a_tower_of_another_kind_is_refused_by_name():
    config = json.loads(json.dumps(config_of("llava").to_dict(), default=str))
    config["vision_config"] = {"model_type": "vit_mae"}
    with pytest.raises(SpecError, match="vit_mae"):
        model_from_config(config, "llava", "test")


def test_kyutai_has_rows_for_codes_and_a_window_and_its_codec_is_said_not_to_be_counted():
    """By hand: 48 layers 2048 wide with one norm more, 32 codebooks of 2049 rows and one row, 4001 words twice."""
    config = json.loads(json.dumps(config_of("kyutai_speech_to_text").to_dict(), default=str))
    found = model_from_config(config, "kyutai", "test")
    layer = 4 * 2048**2 + 3 * 2048 * 5632 + 2 * 2048
    assert found.parameters["total"] == 48 * layer + 2048 + 2048 * (2 * 4001 + 32 * 2049 + 1)
    assert found.kv_elements_per_token == 48 * 2 * 32 * 64
    assert all(cache.mask.kind == "window" and cache.mask.size == 375 for cache, _ in found.caches())
    assert any("codec_config" in note for note in found.notes)
