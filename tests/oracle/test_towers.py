"""Models of several modalities against the classes of transformers, built on the meta device."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
import math
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import transformers

from inferplan.errors import MissingFactError, SpecError
from inferplan.models.huggingface import model_from_config
from inferplan.models.huggingface.towers import BESIDE
from inferplan.models.huggingface.towers.defaults import DEFAULTS
from inferplan.models.layers import LayerContext
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import uniform
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment
from tests.cases import for_each
from tests.oracle.built import build, config_of, count, kinds
from tests.oracle.sweep import sweep
from tests.oracle.zoo import sample

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


@for_each("name", sample(BUILT))
def test_language_model_and_towers_are_those_of_the_class(name):
    total, config = expected(name, COMPLETE.get(name, {}))
    found = model_from_config(config, name, "test")
    assert found.towers
    assert found.parameters["total"] + found.tower_parameters == total


TIMM = {"gemma3n"}
"""Types with a tower of timm, which no config describes."""

SHARE = BUILT if os.environ.get("INFERPLAN_SWEEP") == "all" else random.Random(11).sample(BUILT, 5)


@for_each("name", sample(SHARE))
def test_variations_are_exact_or_refused(name):
    (found,) = sweep([name], 2, 1)
    assert found.verdict == ("text" if name in TIMM else "exact"), found.what


@for_each(
    ("name", "fields"),
    [
        ("gemma3n", {"audio_config": {"conf_num_hidden_layers": 3, "input_feat_size": 101, "hidden_size": 1024}}),
        ("gemma3n", {"audio_config": {"sscp_conv_kernel_size": [[5, 3], [3, 5]], "conf_conv_kernel_size": 7}}),
        ("gemma3n", {"vision_config": {"hidden_size": 1000, "vocab_size": 7}}),
    ],
)
def test_what_stands_beside_a_tower_of_timm_is_that_of_the_class(name, fields):
    """The class is built without that tower, and a note says that it is not counted."""
    total, config = expected(name, fields)
    found = model_from_config(config, name, "test")
    assert found.parameters["total"] + found.tower_parameters == total
    assert any("of timm) is not counted" in note for note in found.notes)


def varied(config: dict[str, Any], table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The config with one field of a table doubled or switched."""
    for name, value in config[table].items():
        if isinstance(value, bool) or (isinstance(value, int) and not name.endswith(("_id", "_index"))):
            changed = copy.deepcopy(config)
            changed[table][name] = (not value) if isinstance(value, bool) else 2 * value
            yield name, changed


@for_each("name", SHARE[:2])
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
            assert found.parameters["total"] + found.tower_parameters == total


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
    for kind, fields in DEFAULTS.items():
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


@for_each("name", ["qwen2_vl", "qwen2_5_vl"])
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


def test_a_tower_of_another_kind_is_refused_by_name():
    config = json.loads(json.dumps(config_of("llava").to_dict(), default=str))
    config["vision_config"] = {"model_type": "vit_mae"}
    with pytest.raises(SpecError, match="vit_mae"):
        model_from_config(config, "llava", "test")


@for_each(("name", "parts"), [("qwen2_5_omni", 2), ("qwen3_omni_moe", 3)])
def test_what_speaks_is_counted_unless_it_is_switched_off(name, parts):
    """Talker and vocoder, with what predicts further codes in Qwen3-Omni."""
    thinker = {"thinker_config": {"text_config": {"num_hidden_layers": 2}}, "enable_audio_output": False}
    totals = []
    for fields in (thinker, thinker | {"enable_audio_output": True}):
        total, config = expected(name, fields)
        found = model_from_config(config, name, "test")
        assert found.parameters["total"] + found.tower_parameters == total
        totals.append(len(found.towers))
    assert totals == [2, 2 + parts]


def test_what_draws_and_what_sees_are_towers_of_their_own_by_hand():
    """Janus's codes: 16,384 rows of 8 in the autoencoder and again beside it; a head from 2048 to them."""
    config = json.loads(json.dumps(config_of("janus").to_dict(), default=str))
    found = model_from_config(config, "janus", "test")
    tower = next(tower for tower in found.towers if tower.name == "vq")
    assert tower.tensors["codes"] == [2, 16384, 8]
    head = sum(math.prod(shape) for name, shape in tower.tensors.items() if name.startswith("head."))
    assert head == 2048 * 2048 + 2048 + 2048 * 16384 + 16384


def test_the_experts_of_a_tower_are_counted_layer_by_layer():
    """dots3 Note: 25 dense layers, then 4, 8, ... 64 and 64 experts of 2112 and their routers, 1536 wide."""
    config = json.loads(json.dumps(config_of("dots3_note").to_dict(), default=str))
    found = model_from_config(config, "dots3", "test")
    tower = next(tower for tower in found.towers if tower.name == "vision")
    experts = [*range(4, 65, 4), 64]
    attention = 4 * 1536**2 + 2 * 64 + 2 * 1536
    layers = 42 * attention + 25 * 3 * 1536 * 4224 + sum(experts) * (3 * 1536 * 2112 + 1536)
    merger = 2 * 1536 + 6144 * 6144 + 6144 + 6144 * 5120 + 5120
    assert tower.parameters == layers + 3 * 14 * 14 * 1536 + 1536 + 2 * 1536 + merger


def test_diffusion_gemma_has_memory_and_no_time():
    """By hand: 25 windowed layers of 4 KV heads of 256, 5 of 4 heads of 512; one feed-forward feeds logits back."""
    config = json.loads(json.dumps(config_of("diffusion_gemma").to_dict(), default=str))
    found = model_from_config(config, "diffusion", "test")
    assert found.kv_elements_per_token == 25 * 2 * 4 * 256 + 5 * 2 * 4 * 512
    attention = 2 * 2304 * 8 * 256 + 2 * 2304 * 4 * 256 + 2 * 256, 2 * 2304 * 8 * 512 + 2304 * 4 * 512 + 2 * 512
    experts = 16 * 3 * 2304 * 704 + 16 * 2304 + 2304 + 16
    layers = 25 * attention[0] + 5 * attention[1] + 30 * (3 * 2304 * 9216 + experts + 7 * 2304)
    fed_back = 3 * 2304 * 9216 + 2304
    assert found.parameters["total"] == layers + fed_back + 262144 * 2304 + 2304
    with pytest.raises(MissingFactError, match="time"):
        prefill(found)
    config["tie_word_embeddings"] = False
    with pytest.raises(SpecError, match="tie_word_embeddings"):
        model_from_config(config, "diffusion", "test")


def prefill(model: ModelSpec) -> list[Op]:
    segment = Segment(batch=1.0, new=64.0, past=0.0)
    context = LayerContext(d_model=model.d_model, precision=uniform(), parallel=Parallelism(), segments=(segment,))
    return [op for layer in model.sequence for part in layer.parts for op in part.ops(context)]


def test_inkling_folds_pixels_by_hand():
    """40 x 40 pixels of 2 frames in 24 layers: sides grow by 5, 2, 2 and 2, then frames; each is a matrix."""
    config = json.loads(json.dumps(config_of("inkling_mm_model").to_dict(), default=str))
    found = model_from_config(config, "inkling", "test")
    image, sound = found.towers
    folds = [shape for name, shape in image.tensors.items() if name.startswith("fold.") and "norm" not in name]
    assert len(folds) == 24
    joined = [shape for shape in folds if shape[0] != shape[1]]
    assert joined == [[128, 75], [320, 512], [1216, 1280], [4800, 4864], [614400, 9600], [6144, 614400]]
    assert sound.parameters == 80 * 256 * 6144 + 6144
    config["vision_config"]["num_channels"] = 7  # transformers folds otherwise in bf16 than in fp32
    with pytest.raises(SpecError, match="num_channels"):
        model_from_config(config, "inkling", "test")
    config["vision_config"] |= {"n_layers": 4, "num_channels": 3}
    with pytest.raises(SpecError, match="num_hidden_layers"):
        model_from_config(config, "inkling", "test")


@for_each("name", ["audioflamingo3", "musicflamingo", "molmo2"])
@for_each("whole", [True, False])
def test_a_class_with_a_head_of_its_own_is_never_tied(name: str, whole: bool):
    fields = {"text_config": {"num_hidden_layers": 2, "tie_word_embeddings": True}, "tie_word_embeddings": whole}
    fields["text_config"]["model_type"] = "molmo2_text" if name == "molmo2" else "qwen2"
    total, config = expected(name, fields)
    found = model_from_config(config, name, "test")
    assert found.parameters["total"] + found.tower_parameters == total
    assert any("a head of its own" in note for note in found.notes)
