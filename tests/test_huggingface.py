"""Importing configs: what is read, what is refused by name, what is ignored, and each family's defaults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferplan.errors import SpecError
from inferplan.models.gguf import ARCHITECTURES
from inferplan.models.huggingface import import_config, model_from_config
from inferplan.models.huggingface.dialect import compress
from inferplan.models.huggingface.families import ALIASES, FAMILIES
from inferplan.models.huggingface.media import _RULES as MEDIA_RULES
from inferplan.models.huggingface.quantisation import LAYOUTS
from inferplan.models.huggingface.quantisation.rules import Module, by_path, by_wildcard
from inferplan.models.huggingface.towers import BESIDE
from tests.cases import for_each

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
MOE = LLAMA | {"model_type": "qwen3_moe", "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2}
MOE |= {"moe_intermediate_size": 32, "decoder_sparse_step": 1, "mlp_only_layers": []}
INTERNLM = LLAMA | {"model_type": "internlm2", "bias": False}
"""A family without a class in transformers."""
LATENT = {
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
}


def model(config, **changes):
    return model_from_config({k: v for k, v in (config | changes).items() if v != "absent"}, "tiny", "test")


def test_a_small_llama_by_hand():
    spec = model(LLAMA)
    attention = 64 * 64 + 2 * (2 * 16) * 64 + 64 * 64
    layer = attention + 3 * 64 * 96 + 2 * 64
    assert spec.parameters == {
        "total": 2 * layer + 2 * 100 * 64 + 64,
        "embedding": 6400,
        "lm_head": 6400,
        "active": 2 * layer + 2 * 100 * 64 + 64,
    }
    assert spec.kv_elements_per_token == 2 * 2 * 2 * 16
    assert spec.max_context == 512


def test_a_small_mixture_by_hand():
    spec = model(MOE)
    attention = 64 * 64 + 2 * (2 * 16) * 64 + 64 * 64 + 2 * 16
    router, expert = 8 * 64, 3 * 64 * 32
    outside = 2 * 6400 + 64
    assert spec.parameters["total"] == outside + 2 * (attention + router + 8 * expert + 2 * 64)
    assert spec.parameters["active"] == outside + 2 * (attention + router + 2 * expert + 2 * 64)


def test_a_small_latent_model_by_hand():
    spec = model(LATENT)
    heads = 24 * 64 + 24 + 4 * 20 * 24 + 24 * 64 + 16 + 4 * 22 * 16 + 64 * 40
    dense, sparse = 3 * 64 * 96, 4 * 64 + 5 * 3 * 64 * 32
    assert spec.parameters["total"] == 2 * 6400 + 64 + 3 * (heads + 128) + dense + 2 * sparse
    assert spec.kv_elements_per_token == 3 * (16 + 8)


@for_each(
    ("config", "changes", "named"),
    [
        (LLAMA, {"mystery_layers": 4}, "mystery_layers"),
        (LLAMA, {"sliding_window": 128}, "sliding_window"),
        (LLAMA, {"num_experts": 8}, "num_experts"),
        (LLAMA, {"kv_lora_rank": 8}, "kv_lora_rank"),
        (LLAMA, {"hidden_act": "cubic"}, "cubic"),
        (LLAMA, {"torch_dtype": "float12"}, "float12"),
        (INTERNLM, {"hidden_size": "absent"}, "hidden_size"),
        (INTERNLM, {"intermediate_size": "absent"}, "intermediate_size"),
        (INTERNLM, {"vocab_size": "absent"}, "vocab_size"),
        (LLAMA, {"model_type": "absent"}, "model_type"),
        (LLAMA, {"model_type": "canine"}, "canine"),
        (LLAMA, {"n_layer": 3}, "n_layer"),
        (LLAMA, {"num_hidden_layers": 2.5}, "num_hidden_layers"),
        (LLAMA, {"num_attention_heads": True}, "num_attention_heads"),
        (LLAMA, {"attention_bias": "yes"}, "attention_bias"),
        (LLAMA, {"layer_types": ["full_attention"]}, "layer_types"),
        (LLAMA, {"layer_types": ["full_attention", "odd"]}, "odd"),
        (LLAMA, {"model_type": "nemotron-nas", "num_key_value_heads": "absent"}, "block_configs"),
        (LLAMA, {"quantization_config": {"quant_method": "quip"}}, "quip"),
        (LLAMA, {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}, "weight_block_size"),
        (MOE, {"num_experts_per_tok": 9}, "top_k"),
        (MOE, {"n_shared_experts": 2}, "n_shared_experts"),
        (LATENT, {"moe_layer_freq": [1, 1]}, "moe_layer_freq"),
    ],
)
def test_what_matters_and_is_not_understood_is_refused_by_name(config, changes, named):
    with pytest.raises(SpecError, match=named) as caught:
        model(config, **changes)
    assert caught.value.because or caught.value.hint


def test_what_does_not_matter_is_listed():
    config = LLAMA | {"rope_theta": 1e6, "bos_token_id": 1, "temperature": 0.7, "new_switch": False, "_source": "x"}
    imported = import_config(config, "tiny", "test")
    assert {"rope_theta", "bos_token_id", "temperature", "new_switch"} <= set(imported.ignored)
    assert "hidden_size" not in imported.ignored
    assert "_source" not in imported.ignored


@for_each(
    ("family", "tied"),
    [("llama", False), ("mistral", False), ("qwen2", False), ("qwen3_moe", False), ("phi3", False), ("gemma", True)],
)
def test_the_tie_flag_takes_the_default_of_its_family(family, tied):
    extra = {"gemma": {"head_dim": 16}, "qwen3_moe": MOE, "mistral": {"sliding_window": None}}.get(family, {})
    spec = model(LLAMA | extra, model_type=family, tie_word_embeddings="absent")
    assert spec.tied is tied
    assert model(LLAMA | extra, model_type=family, tie_word_embeddings=not tied).tied is not tied


def test_tie_defaults_are_those_of_transformers():
    mapping = pytest.importorskip("transformers").CONFIG_MAPPING
    from tests.oracle.built import config_of

    checked = 0
    for family, dialect in FAMILIES.items():
        if family in mapping:
            assert getattr(config_of(family), "tie_word_embeddings", dialect.tied) is dialect.tied, family
            checked += 1
    assert checked > 40


def test_aliases_lead_to_families():
    assert set(ALIASES.values()) <= set(FAMILIES)


def test_tables_hold_types_that_are_read():
    """Families without names of modules are refused when they are quantised; two rules are of towers in any config."""
    assert set(LAYOUTS) <= set(FAMILIES)
    assert {"palm", "zamba2"} <= set(FAMILIES) - set(LAYOUTS)
    assert set(ARCHITECTURES.values()) <= set(FAMILIES)
    assert {kind for _, kind in MEDIA_RULES} - set(BESIDE) == {"moonvit", "pixtral"}


def test_a_dead_window_is_dead():
    base = LLAMA | {"model_type": "qwen2", "sliding_window": 64, "max_window_layers": 1}
    assert model(base, use_sliding_window=False).windows == []
    alive = model(base, use_sliding_window=True)
    assert [layer.mixer.window for layer in alive.sequence] == [None, 64]
    assert model(LLAMA, model_type="mistral", sliding_window=None).windows == []
    assert model(LLAMA, model_type="mistral", sliding_window=64).windows == [64]


def test_placement_of_experts():
    def sparse(config, **changes):
        return [layer.ffn.kind == "moe" for layer in model(config, **changes).sequence]

    four = MOE | {"num_hidden_layers": 4}
    assert sparse(four, decoder_sparse_step=2) == [False, True, False, True]
    assert sparse(four, mlp_only_layers=[0, 3]) == [False, True, True, False]
    assert sparse(LATENT, first_k_dense_replace=2) == [False, False, True]
    assert sparse(LATENT, moe_layer_freq=[0, 1, 0]) == [False, True, False]


GEMMA3 = {  # text_config of google/gemma-3-4b-it: the fields it shares with its class are left out
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}


def test_a_gemma_2_may_say_its_window_twice_as_the_released_9b_does():
    """9,241,705,984 parameters, as google/gemma-2-9b has; its config holds both names of the window."""
    spec = model(
        {
            "model_type": "gemma2",
            "hidden_size": 3584,
            "num_hidden_layers": 42,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "intermediate_size": 14336,
            "vocab_size": 256000,
            "max_position_embeddings": 8192,
            "sliding_window": 4096,
            "sliding_window_size": 4096,
        }
    )
    assert spec.parameters["total"] == 9_241_705_984
    assert {layer.mixer.window for layer in spec.sequence} == {4096, None}


def test_a_gemma_3_takes_the_defaults_of_its_class_and_says_so():
    """3,880,263,168: the language model of gemma-3-4b, with 8 heads of 256, 4 of them for the cache."""
    spec = model({"model_type": "gemma3", "text_config": GEMMA3})
    assert spec.parameters["total"] == 3_880_263_168
    taken, tower = spec.notes
    assert tower == "the config has no vision_config: its tower is not counted"
    for field in ("num_attention_heads = 8", "num_key_value_heads = 4", "head_dim = 256", "vocab_size = 262208"):
        assert field in taken
    assert model(GEMMA3, num_attention_heads=4, num_key_value_heads=2).sequence[0].mixer.heads == 4


def test_opt_350m_by_hand():
    """Tables of 512 columns, projections of 512 x 1024 without bias, no norm at the end."""
    config = {"model_type": "opt", "hidden_size": 1024, "word_embed_proj_dim": 512, "do_layer_norm_before": False}
    config |= {"num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096, "vocab_size": 50272}
    spec = model(config | {"max_position_embeddings": 2048})
    layer = 4 * (1024 * 1024 + 1024) + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024
    outside = 50272 * 512 + 2 * 512 * 1024 + 2050 * 1024
    assert spec.parameters["total"] == 24 * layer + outside == 331_196_416
    assert spec.parameters["embedding"] == 50272 * 512


@for_each(
    ("kind", "why"),
    [("rwkv5", "RWKV-5"), ("rwkv6", "RWKV-6")],
)
def test_families_that_are_not_covered_say_what_they_need(kind, why):
    with pytest.raises(SpecError, match=kind) as caught:
        model(LLAMA, model_type=kind)
    assert why in caught.value.because


PUBLIC = json.loads((Path(__file__).parent / "fixtures" / "configs.json").read_text(encoding="utf-8"))


@for_each("name", PUBLIC)
def test_public_configs_are_exact_or_refused_by_name(name):
    entry = PUBLIC[name]
    if "refused" in entry:
        with pytest.raises(SpecError, match=entry["refused"]):
            model(entry["config"])
    else:
        assert model(entry["config"]).parameters["total"] == entry["total"]


def test_an_activation_and_its_approximation_agree():
    both = {"hidden_act": "gelu_pytorch_tanh", "activation_function": "gelu"}
    assert model(LLAMA, **both).sequence[0].ffn.activation == "gelu"
    with pytest.raises(SpecError, match="disagree"):
        model(LLAMA, hidden_act="silu", activation_function="gelu")


def test_a_nested_config_and_its_contradictions():
    nested = {"model_type": "mistral3", "text_config": LLAMA | {"model_type": "mistral"}, "image_token_index": 10}
    assert model_from_config(nested, "tiny", "test").parameters["total"] == model(LLAMA).parameters["total"]
    tied = model_from_config(nested | {"tie_word_embeddings": True}, "tiny", "test")
    assert tied.tied
    assert "vLLM goes by the nested one" in " ".join(tied.notes)
    # LlavaConfig.__post_init__ of transformers 5.23 ties where the nested config says so; Mistral3Config does not.
    for kind, expected in (("llava", True), ("mistral3", False)):
        saved = nested | {"model_type": kind, "tie_word_embeddings": False}
        saved["text_config"] = saved["text_config"] | {"tie_word_embeddings": True}
        assert model_from_config(saved, "tiny", "test").tied is expected
    with pytest.raises(SpecError, match=r"llm_config\.num_hidden_layers"):
        model_from_config({"model_type": "internvl_chat", "llm_config": {"model_type": "internlm2"}}, "tiny", "test")


def test_a_table_for_each_layer():
    """DeciLM: 4 query heads in groups of 2, a matrix instead of attention, nothing; widths rounded up to 256."""
    blocks = [
        {"attention": {"n_heads_in_group": 2, "no_op": False}, "ffn": {"ffn_mult": 2.0, "no_op": False}},
        {"attention": {"replace_with_linear": True}, "ffn": {"ffn_mult": 7.0}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 2.0}},
        {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True}},
    ]
    config = LLAMA | {"model_type": "nemotron-nas", "num_hidden_layers": 4, "block_configs": blocks}
    spec = model(config | {"num_key_value_heads": None, "intermediate_size": None})
    assert spec.kv_elements_per_token == 2 * 2 * 16 + 2 * 1 * 16
    attention = [64 * 64 * 2 + 64 * 64, 64 * 64, 0, 64 * 64 * 2 + 64 * 32]
    widths, norms = [256, 512, 256, 0], [2, 2, 1, 1]
    layers = sum(a + 3 * 64 * w + 64 * n for a, w, n in zip(attention, widths, norms, strict=True))
    assert spec.parameters["total"] == layers + 2 * 6400 + 64


def module(name):
    return Module(name, f"model.{name}")


@for_each("pattern", ["model.layers.*.self_attn", "*self_attn*", "model.layers.1.self_attn.q_proj"])
def test_patterns_name_modules(pattern):
    rule = by_wildcard([pattern])
    assert rule(module("layers.1.self_attn.q_proj")) == pattern
    assert rule(module("layers.1.mlp.up_proj")) is None


def test_gate_is_not_gate_proj():
    assert by_path(["gate"])(module("layers.1.mlp.gate")) == "gate"
    assert by_path(["gate"])(module("layers.1.mlp.gate_proj")) is None


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def native(config, **quantization):
    return model(config, quantization_config=quantization).native.model_dump(exclude_defaults=True)


def test_formats_by_role():
    fp8 = {"weights": "fp8-block", "experts": "fp8-block", "activations": "fp8"}
    assert native(MOE, **FP8) == fp8
    assert native(LLAMA, quant_method="fp8") == {"weights": "fp8", "activations": "fp8"}
    assert native(LLAMA, quant_method="gptq", bits=4, group_size=128) == {"weights": "int4-gptq"}
    assert native(LLAMA, quant_method="awq", bits=4, group_size=64) == {"weights": "int4-g64z"}
    assert native(LLAMA, quant_method="bitsandbytes", load_in_8bit=True) == {"weights": "int8-row"}
    assert native(MOE, quant_method="mxfp4") == {"experts": "mxfp4"}
    modelopt = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    assert native(LLAMA, **modelopt) == {"weights": "nvfp4", "activations": "nvfp4", "kv": "fp8"}
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True}}
    packed = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    assert native(LLAMA, **packed) == {"weights": "int4-g32"}


def test_ignore_lists_become_exceptions():
    ignored = ["lm_head", "model.layers.1.self_attn*", "model.layers.0.mlp.down_proj"]
    found = native(LLAMA, quant_algo="NVFP4", exclude_modules=ignored)
    assert found["weights"] == "nvfp4"
    assert found["exceptions"] == [
        {"tensors": ["q", "k", "v", "o"], "format": "bf16", "layers": [1]},
        {"tensors": ["down"], "format": "bf16", "layers": [0]},
    ]
    spec = model(LLAMA, quantization_config={"quant_algo": "NVFP4", "exclude_modules": ignored})
    attention, down = 64 * 64 * 2 + 2 * 32 * 64, 64 * 96
    narrow = 2 * (attention + 3 * down) - attention - down
    wide = spec.parameters["total"] - narrow
    assert spec.checkpoint_bytes == pytest.approx(2 * wide + narrow * 4.5 / 8)


def test_a_layer_by_layer_quantisation():
    layers = {"model.layers.0.mlp.up_proj": {"quant_algo": "FP8"}, "lm_head": {"quant_algo": "W4A16_NVFP4"}}
    found = native(LLAMA, quant_algo="MIXED_PRECISION", quantized_layers=layers)
    assert found["head"] == "nvfp4"
    assert {"tensors": ["up"], "format": "fp8", "layers": [0]} in found["exceptions"]


def test_layers_are_compressed_and_come_back():
    a, b = {"mixer": 1}, {"mixer": 2}
    assert compress([a] * 5) == [{"repeat": 5, "mixer": 1}]
    assert compress([a, a, b] * 3 + [a]) == [{"repeat": 3, "pattern": [{"repeat": 2, "mixer": 1}, b]}, a]

    def unroll(groups):
        for group in groups:
            body = group.get("pattern")
            for _ in range(group.get("repeat", 1)):
                yield from unroll(body) if body else [{"mixer": group["mixer"]}]

    for text in ("aabab", "abbaabba", "a", "aaabbbab", "abcabcab"):
        layers = [{"mixer": letter} for letter in text]
        assert list(unroll(compress(layers))) == layers


def scaled(kind, factor, original=None):
    return {"rope_type": kind, "factor": factor} | ({"original_max_position_embeddings": original} if original else {})


@for_each(
    ("positions", "fields", "expected"),
    [
        # Qwen3-32B as its model card asks for long texts: 4 x 32,768.
        (40960, {"rope_scaling": scaled("yarn", 4.0, 32768)}, 131072),
        # DeepSeek-V3 writes the product, 40 x 4,096, as its positions too.
        (163840, {"rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}}, 163840),
        # Llama 3.1 writes the scaled positions.
        (131072, {"rope_scaling": scaled("llama3", 8.0, 8192)}, 131072),
        (4096, {"rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
        (4096, {"rope_scaling": scaled("dynamic", 2.0)}, 8192),
        (4096, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 4096),
        (4096, {"rope_parameters": {"full_attention": scaled("linear", 8.0)}}, 32768),
        (262144, {"rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20]}}, 262144),
    ],
)
def test_the_scaling_of_positions_stretches_the_context(positions, fields, expected):
    spec = model(LLAMA | fields, max_position_embeddings=positions)
    assert spec.max_context == expected
    assert any("context" in note for note in spec.notes) == (expected != positions)


@for_each("factor", [0, -1, "4", True, float("inf")])
def test_a_factor_that_is_none_is_refused(factor):
    with pytest.raises(SpecError, match=r"rope_scaling\.factor = .* is not understood"):
        model(LLAMA, rope_scaling={"rope_type": "linear", "factor": factor})
