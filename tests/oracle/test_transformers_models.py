"""Parameter counts against the models that transformers builds on the meta device."""

from __future__ import annotations

import pytest

from inferplan.errors import SpecError
from inferplan.models.huggingface import model_from_config
from inferplan.models.huggingface.families import FAMILIES, multimodal

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.cases import for_each  # noqa: E402
from tests.oracle.built import WHOLE, Kind, build, config_of, kinds  # noqa: E402
from tests.oracle.sweep import SPARE  # noqa: E402
from tests.oracle.zoo import sample  # noqa: E402

NOT_BUILT = {
    "step3p5": "it stands in the config of step3p7",
    "mistral_large4_text": "it stands in the config of mistral_large4: test_mechanisms.py builds that",
}
NOT_BUILT |= dict.fromkeys(
    multimodal.FAMILIES, "it stands in a config of several modalities: test_towers.py builds those"
)


@for_each("family", sample(name for name in FAMILIES if name not in NOT_BUILT))
def test_the_default_model_of_a_family(family):
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip("not in this transformers")
    config = config_of(family)
    kind = kinds().get(family)
    causal = type(config) in transformers.AutoModelForCausalLM._model_mapping and family not in WHOLE
    if kind is None or (causal and kind.kind not in ("encoder", "speech")):
        kind = Kind(kind="text", auto="AutoModelForCausalLM", architecture="")
    built = build(config, kind)
    expected = sum(parameter.numel() for parameter in built.parameters())
    if family in SPARE:
        expected -= SPARE[family][0](config)
    found = model_from_config(config.to_dict() | {"model_type": family}, family, "test")
    assert found.parameters["total"] + found.tower_parameters == expected


@for_each("family", sample(name for name in FAMILIES if name not in NOT_BUILT))
def test_layers_slide_where_transformers_says(family):
    """The family's own rule, where the config has no ``layer_types``."""
    config = config_of(family) if family in transformers.CONFIG_MAPPING else None
    kinds = getattr(config, "layer_types", None) or []
    if "sliding_attention" not in kinds:
        pytest.skip("no sliding layers by default")
    fields = {key: value for key, value in config.to_dict().items() if key != "layer_types"}
    try:
        found = model_from_config(fields | {"model_type": family}, family, "test")
    except SpecError as error:
        assert "layer_types" in error.what or "full_attn_idxs" in error.what
        pytest.skip("the family has no rule of its own: layer_types is asked for")
    slides = [getattr(layer.mixer, "window", None) is not None for layer in found.sequence]
    assert slides == [kind == "sliding_attention" for kind in kinds]


SMALL = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2}
SMALL |= {"intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 512}
ROUTED = {"moe_intermediate_size": 96, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_routed_experts": 8}
LATENT = {"kv_lora_rank": 64, "q_lora_rank": 96, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24}
ERNIE = {"moe_k": 3, "moe_num_experts": 12, "moe_intermediate_size": 96}
GLOBAL = {"head_dim": 32, "global_head_dim": 64, "sliding_window": 128, "vocab_size_per_layer_input": 900}


@for_each(
    ("family", "fields"),
    [
        ("arcee", {"head_dim": 64, "mlp_bias": True, "attention_bias": True}),
        ("ernie4_5", {"head_dim": 64, "use_bias": True}),
        ("ernie4_5_moe", ERNIE | {"moe_num_shared_experts": 2, "moe_layer_start_index": 2, "moe_layer_end_index": 4}),
        ("ernie4_5_moe", ERNIE | {"moe_num_shared_experts": 0, "moe_layer_start_index": 1, "moe_layer_interval": 2}),
        ("internlm3", {"head_dim": 48, "bias": True, "qkv_bias": True}),
        ("granitemoeshared", {"num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 128}),
        ("minicpm3", LATENT | {"num_key_value_heads": 8}),
        ("glm4_moe_lite", LATENT | ROUTED | {"num_key_value_heads": 8, "first_k_dense_replace": 1}),
        ("gemma4_text", GLOBAL | {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}),
        ("gemma4_text", GLOBAL | {"attention_k_eq_v": True, "num_global_key_value_heads": 1}),
        (
            "gemma4_text",
            GLOBAL
            | {"num_kv_shared_layers": 3, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 16}
            | {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2},
        ),
        (
            "gemma4_text",
            GLOBAL | {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 96},
        ),
        ("opt", {"word_embed_proj_dim": 128, "do_layer_norm_before": False, "ffn_dim": 1024}),
        ("opt", {"word_embed_proj_dim": 256, "do_layer_norm_before": True, "ffn_dim": 1024}),
    ],
)
def test_a_small_model_of_a_family(family, fields):
    """Fields as a released config writes them, with other values than the class's own."""
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip("not in this transformers")
    fields = SMALL | ({"hidden_size_per_layer_input": 16} if family == "gemma4_text" else {}) | fields
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING[family](**fields))
    known = fields if family != "opt" else {k: v for k, v in fields.items() if k != "intermediate_size"}
    known = {k: v for k, v in known.items() if not (family == "opt" and k == "num_key_value_heads")}
    found = model_from_config(known | {"model_type": family}, family, "test")
    assert found.parameters["total"] == sum(parameter.numel() for parameter in built.parameters())


def test_at_least_ten_families_are_compared():
    assert sum(family in transformers.CONFIG_MAPPING for family in FAMILIES if family not in NOT_BUILT) >= 40
