"""Fields whose absence means the value of the type's own class: nothing else is taken for it.

Each of these classes has a default that is neither zero nor what other families have, so that a count without the field
would differ from what transformers builds of the same config.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferplan.errors import SpecError
from inferplan.models.huggingface import import_config
from inferplan.models.huggingface.families.absent import STATED

pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import CONFIG_MAPPING

from tests.oracle.built import config_of, kinds


def stated(name: str) -> dict[str, Any]:
    said = config_of(name).to_dict() | {"architectures": [kinds()[name].architecture]}
    config: dict[str, Any] = json.loads(json.dumps(said, default=str))
    return config


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("axk2", "n_shared_experts"),
        ("unlimited_ocr", "text_config.n_shared_experts"),
        ("glm5_next", "text_config.n_shared_experts"),
        ("zaya", "head_dim"),
        ("evolla", "num_key_value_heads"),
        ("evolla", "protein_encoder_config.position_embedding_type"),
        ("dia", "decoder_config.num_key_value_heads"),
        ("dia", "encoder_config"),
        ("qwen3_omni_moe", "talker_config.text_config.num_key_value_heads"),
        ("qwen3_omni_moe", "talker_config.code_predictor_config.num_key_value_heads"),
        ("nystromformer", "conv_kernel_size"),
        ("sew-d", "position_buckets"),
        ("sew-d", "share_att_key"),
        ("sew-d", "norm_rel_ebd"),
        ("wavlm", "mask_time_prob"),
        ("speecht5", "mask_time_prob"),
        ("wav2vec2-bert", "mask_time_prob"),
        ("seamless_m4t", "position_embeddings_type"),
        ("wav2vec2-conformer", "position_embeddings_type"),
    ],
)
def test_an_absent_field_is_refused_by_name(name: str, field: str) -> None:
    config = stated(name)
    *tables, last = field.split(".")
    table = config
    for key in tables:
        table = table[key]
    del table[last]
    with pytest.raises(SpecError, match=last):
        import_config(config, name, "test")


def test_patches_of_two_counts_are_refused() -> None:
    """The class widens BLT's patches by the whole config's ``cross_attn_k`` and cuts them by its encoder's."""
    with pytest.raises(SpecError, match="cross_attn_k = 4"):
        import_config(stated("blt") | {"cross_attn_k": 4}, "blt", "test")


def test_a_pool_of_another_width_than_its_tower_is_refused() -> None:
    """Molmo 2's class reads layers of the adapter's width, whatever the tower's is."""
    config = stated("molmo2")
    config["adapter_config"]["hidden_size"] *= 2
    with pytest.raises(SpecError, match="hidden_size = 2304"):
        import_config(config, "molmo2", "test")


def test_a_decoder_that_attends_to_no_image_is_refused() -> None:
    config = stated("blip")
    config["text_config"]["is_decoder"] = False
    with pytest.raises(SpecError, match="is_decoder = False"):
        import_config(config, "blip", "test")


@pytest.mark.parametrize("name", sorted(STATED))
def test_what_a_class_fills_in_is_its_own_and_must_be_stated(name: str) -> None:
    own = CONFIG_MAPPING[name]()
    assert {field: getattr(type(own), field) for field in STATED[name]} == STATED[name]
    config = json.loads(json.dumps(own.to_dict(), default=str))
    for field in STATED[name]:
        with pytest.raises(SpecError, match=field):
            import_config({key: value for key, value in config.items() if key != field}, name, "test")
