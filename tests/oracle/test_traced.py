"""What a trace finds, beside described models and beside what transformers builds."""

from __future__ import annotations

from fractions import Fraction

import pytest

from inferplan.errors import SpecError
from tests.oracle.traced import LAYERS, beside, config_of, traced

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 192}
SMALL |= {"vocab_size": 500, "num_hidden_layers": 3}
ROUTED = SMALL | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "head_dim": 16}
WINDOWS = SMALL | {"head_dim": 16, "sliding_window": 40, "query_pre_attn_scalar": 16}
FAMILIES = {
    "llama": SMALL,
    "qwen2": SMALL,
    "qwen3_moe": ROUTED,
    "gemma3_text": WINDOWS,
    "gpt2": {"n_embd": 128, "n_head": 4, "n_layer": 2, "vocab_size": 500},
    "bloom": {"hidden_size": 128, "n_head": 4, "n_layer": 2, "vocab_size": 500},
}
"""Biases, experts, windows, tied heads, learned positions; bloom spells its attention out."""


@pytest.mark.parametrize("family", FAMILIES)
def test_flop_and_bytes_are_those_of_the_described_model(family: str) -> None:
    """Both are also right in parameters and caches, which the sweep compares with the class."""
    found = beside(family, FAMILIES[family])
    assert found.why == ""
    assert found.exact
    assert found.ratios == {name: pytest.approx(1.0, abs=0.01) for name in found.ratios}
    assert len(found.ratios) == 4


def test_parameters_and_cache_are_those_of_the_class() -> None:
    """Of a type that nobody described here: counted from the class and the tensors of its cache, by hand."""
    config = config_of("qwen3_moe", ROUTED)
    found = traced(config)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(transformers.Qwen3MoeConfig(**ROUTED))
    assert found.parameters["total"] == sum(tensor.numel() for tensor in built.parameters())
    assert found.kv_elements_per_token == 3 * 2 * 2 * 16
    experts = 3 * 8 * 3 * 48 * 128
    assert found.parameters["total"] - found.parameters["active"] == experts * Fraction(5, 8)
    assert found.basis == "traced"
    assert found.notes[0].startswith("traced: transformers")


def test_a_window_is_where_the_cache_stops_to_grow() -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    found = traced(config_of("gemma3_text", WINDOWS | {"layer_types": kinds, "num_hidden_layers": 4}))
    assert [layer.mixer.keeps.window for layer in found.sequence][:2] == [40, None]
    masks = [(op.mask, op.size) for layer in found.sequence for op in layer.mixer.operators if op.runs == "attention"]
    assert masks[:2] == [("window", 40), ("causal", 0)]
    assert found.kv_elements_per_token == 2 * found.kv_elements_per_token_beyond_windows


def test_layers_of_a_vision_tower_are_counted_apart() -> None:
    text = SMALL | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    vision = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision |= {"image_size": 32, "patch_size": 8, "model_type": "clip_vision_model"}
    config = transformers.LlavaConfig(text_config=text | {"model_type": "llama"}, vision_config=vision)
    with torch.device("meta"):
        built = transformers.AutoModelForImageTextToText.from_config(config)
    found = traced(config.to_dict() | {"model_type": "llava"})
    sizes = {name: tensor.numel() for name, tensor in built.named_parameters()}
    words = {name for name in sizes if "language" in name or "lm_head" in name}
    assert found.parameters["total"] == sum(sizes[name] for name in words)
    assert found.tower_parameters == sum(sizes[name] for name in set(sizes) - words)


def test_attention_that_depends_on_numbers_has_no_time() -> None:
    """A state space model runs other operators for one token than for many: memory is exact, time refused."""
    found = traced(config_of("falcon_h1", {"num_hidden_layers": 2}))
    assert found.parameters["total"] > 0
    assert found.state_elements_per_sequence > 0
    assert {layer.mixer.untimed for layer in found.sequence} == {"other operators run at other loads"}


def test_latents_that_are_expanded_at_every_step_are_said() -> None:
    """The class multiplies every cached latent again, which engines do not: prefill agrees, decode is above."""
    found = beside("glm4_moe_lite", {"num_hidden_layers": 2})
    assert found.exact
    assert found.ratios["prefill FLOP"] == pytest.approx(1.0, abs=0.01)
    assert found.ratios["decode FLOP"] > 2
    notes = traced(config_of("glm4_moe_lite", {"num_hidden_layers": 2})).notes
    assert any("engines absorb them" in note for note in notes)


def test_a_state_that_a_layer_fills_by_itself_is_counted() -> None:
    """Jamba's layers write into their own layer of the cache: 8192 channels, each with 16 states and 4 inputs."""
    found = traced(config_of("jamba", {"num_hidden_layers": 4, "attn_layer_offset": 3}))
    assert [layer.mixer.keeps.state for layer in found.sequence] == [8192 * (16 + 4)] * 3 + [0]


def test_a_quantised_config_is_refused() -> None:
    with pytest.raises(SpecError, match="quantization_config is not traced"):
        traced(config_of("llama", SMALL) | {"quantization_config": {"quant_method": "fp8"}})


def test_few_layers_are_asked_for() -> None:
    assert config_of("llama")["num_hidden_layers"] == LAYERS
