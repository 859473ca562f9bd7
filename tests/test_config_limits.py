"""Configs that no model has: one clear error each, and values that switch something off."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from inferplan.errors import SpecError
from inferplan.models.huggingface import model_from_config
from tests.cases import for_each

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
}
GUARD: dict[str, Any] = {
    "model_type": "llama4_text",
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 8192,
    "vocab_size": 202048,
    "num_local_experts": 0,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 0,
    "moe_layers": [],
    "attention_chunk_size": None,
    "tie_word_embeddings": False,
}


@for_each(
    ("field", "value"),
    [
        ("num_hidden_layers", 0),
        ("num_hidden_layers", 10**12),
        ("num_attention_heads", 0),
        ("num_key_value_heads", 0),
        ("hidden_size", -64),
        ("intermediate_size", float("inf")),
        ("vocab_size", float("nan")),
        ("vocab_size", 10**12),
    ],
)
def test_a_size_that_no_model_has_is_named(field, value):
    with pytest.raises(SpecError) as error:
        model_from_config(LLAMA | {field: value}, "x", "test")
    assert field in error.value.what


@for_each("value", [1, 0, "on", True, [3]])
def test_a_new_field_is_refused_though_it_is_zero(value):
    with pytest.raises(SpecError, match="brand_new_field"):
        model_from_config(LLAMA | {"brand_new_field": value}, "x", "test")


@for_each("value", [None, False, "", [], {}, 0.0])
def test_a_new_field_that_is_off_passes(value):
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64
    expected = 2 * layer + 2 * 100 * 64 + 64
    assert model_from_config(LLAMA | {"brand_new_field": value}, "x", "test").parameters["total"] == expected


def test_an_empty_list_of_sparse_layers_has_no_experts():
    """Llama Guard 4: 48 dense layers, by hand."""
    attention = 5120 * 40 * 128 * 2 + 5120 * 8 * 128 * 2
    layer = attention + 3 * 5120 * 8192 + 2 * 5120
    expected = 48 * layer + 2 * 202048 * 5120 + 5120
    assert model_from_config(GUARD, "guard", "test").parameters["total"] == expected


def test_a_number_that_engines_read_differently_is_refused():
    """Nemotron-H with two shared experts: vLLM builds both, transformers one."""
    sizes = {"hidden_size": 64, "vocab_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    shared = {"moe_shared_expert_intermediate_size": 32, "n_shared_experts": 2}
    config = {"model_type": "nemotron_h", "hybrid_override_pattern": "*E"} | sizes | experts | shared
    with pytest.raises(SpecError, match="n_shared_experts"):
        model_from_config(config, "x", "test")
    assert model_from_config(config | {"n_shared_experts": 1}, "x", "test").sequence[1].ffn.shared_d_ff == 32


def test_experts_that_give_back_their_input_have_no_weights():
    """LongCat-Flash: 28 layers of two attentions and two feed-forwards; 512 experts and 256 that copy, by hand."""
    config = {
        "model_type": "longcat_flash",
        "vocab_size": 131072,
        "hidden_size": 6144,
        "num_layers": 28,
        "num_attention_heads": 64,
        "ffn_hidden_size": 12288,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "moe_topk": 12,
        "n_routed_experts": 512,
        "zero_expert_num": 256,
        "expert_ffn_hidden_size": 2048,
    }
    model = model_from_config(config, "longcat", "test")
    queries = 6144 * 1536 + 1536 + 1536 * 64 * (128 + 64)
    keys = 6144 * (512 + 64) + 512 + 512 * 64 * (128 + 128)
    half = queries + keys + 64 * 128 * 6144 + 3 * 6144 * 12288 + 2 * 6144
    expert = 3 * 6144 * 2048
    outside = 2 * 131072 * 6144 + 6144
    assert model.parameters["total"] == 28 * (2 * half + 768 * 6144 + 512 * expert) + outside
    assert model.parameters["active"] == 28 * (2 * half + 768 * 6144 + 8 * expert) + outside  # 12 of 768 are 8 of 512
    assert model.kv_elements_per_token == 28 * 2 * (512 + 64)


@for_each(
    ("kind", "field", "value"),
    [
        ("chameleon", "vq_config", {"attn_resolutions": 1}),
        ("bart", "encoder_attention_heads", 0),
        ("aya_vision", "vision_config", 3.5),
        ("aya_vision", "vision_config", {}),
        ("diffusion_gemma", "vision_config", {"pooling_kernel_size": float("nan")}),
        ("deberta-v2", "pos_att_type", 1),
        ("llama", "num_key_value_heads", [2]),
        ("llama", "layer_types", 7),
        ("llama", "quantization_config", {"quant_method": {}}),
    ],
)
def test_a_value_of_another_kind_is_an_error_and_no_crash(kind, field, value):
    """The class's own config with one value that it never holds, nested tables too."""
    own = CONFIG_MAPPING[kind]().to_dict()
    own[field] = own[field] | value if isinstance(value, dict) and value and field in own else value
    with pytest.raises(SpecError) as error:
        model_from_config(own, "x", "test")
    assert error.value.because
