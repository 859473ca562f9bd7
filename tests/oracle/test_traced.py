"""What a trace finds, beside described models and beside what transformers builds."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from inferplan.errors import SpecError
from tests.cases import for_each
from tests.oracle.traced import LAYERS, beside, config_of, traced
from tests.oracle.zoo import sample

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


@for_each("family", sample(FAMILIES))
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
    assert found.made_from.trust == "traced" and found.made_from.traced.startswith("transformers")


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
    """Jamba's scan, which no described kind is, runs other operators for one token than for many: memory is exact."""
    found = traced(config_of("jamba", {"num_hidden_layers": 3, "attn_layer_offset": 2}))
    assert found.parameters["total"] > 0
    assert found.state_elements_per_sequence > 0
    assert [layer.mixer.untimed for layer in found.sequence] == ["other operators run at other loads"] * 2 + [""]


def test_a_type_that_is_described_says_so() -> None:
    """Qwen3 is read from its config; one with a field that nobody knows is known by its trace alone."""
    small = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 200}
    assert "without --trace its config is read" in traced(config_of("qwen3", small)).made_from.traced
    assert "this model is not described" in traced(config_of("qwen3", small | {"brand_new": 7})).made_from.traced


def test_latents_that_are_expanded_at_every_step_are_said() -> None:
    """A.X K2 has gates beside its latents, so no described kind is found in it: the class multiplies every cached
    latent again, which engines do not."""
    found = beside("axk2", {"num_hidden_layers": 2})
    assert found.exact
    assert found.ratios["decode FLOP"] > 2
    notes = traced(config_of("axk2", {"num_hidden_layers": 2})).notes
    assert any("engines absorb them" in note for note in notes)


def test_a_described_mixer_beside_attention_keeps_the_state_and_the_rest_the_tokens() -> None:
    """Falcon-H1 runs both in every layer."""
    config = config_of("falcon_h1", {"num_hidden_layers": 2})
    found = traced(config)
    heads, width, state = config["mamba_n_heads"], config["mamba_d_head"], config["mamba_d_state"]
    for layer in found.sequence:
        mixer = layer.mixer.mixer
        assert (mixer.kind, mixer.heads, mixer.head_dim, mixer.state) == ("mamba2", heads, width, state)
        assert (
            layer.mixer.keeps.per_token
            == 2 * config["num_key_value_heads"] * config["hidden_size"] // config["num_attention_heads"]
        )
        assert (layer.mixer.keeps.state, layer.mixer.keeps.conv) == (0, 0)
    assert any("2 modules are mamba2" in note for note in found.notes)


def test_a_state_that_a_layer_fills_by_itself_is_counted() -> None:
    """Jamba's layers write into their own layer of the cache: 8192 channels, each with 16 states and 4 inputs."""
    found = traced(config_of("jamba", {"num_hidden_layers": 4, "attn_layer_offset": 3}))
    assert [layer.mixer.keeps.state for layer in found.sequence] == [8192 * (16 + 4)] * 3 + [0]


def built(config: dict[str, Any], auto: str = "AutoModelForSeq2SeqLM") -> Any:
    """What transformers builds of a config on meta."""
    with torch.device("meta"):
        fields = {name: value for name, value in config.items() if name != "model_type"}
        return getattr(transformers, auto).from_config(transformers.CONFIG_MAPPING[config["model_type"]](**fields))


def test_experts_of_layers_without_a_time_are_active_by_their_routers() -> None:
    """A token reads 6 of 256 experts of 3 matrices in a layer of Inkling, whose convolutions run otherwise for one."""
    config = config_of("inkling_text", {"num_hidden_layers": 4})
    found = traced(config)
    parameters = dict(built(config, "AutoModelForCausalLM").named_parameters())
    routed = [name for name in parameters if ".mlp.experts." in name]
    assert {parameters[name].shape[0] for name in routed} == {config["n_routed_experts"]}
    unread = 1 - Fraction(config["num_experts_per_tok"], config["n_routed_experts"])
    assert found.parameters["total"] == sum(tensor.numel() for tensor in parameters.values())
    read = found.parameters["total"] - unread * sum(parameters[name].numel() for name in routed)
    assert found.parameters["active"] == pytest.approx(float(read), abs=1)


def test_experts_that_are_picked_by_number_count_by_the_ids_that_they_are_given() -> None:
    """Switch: one of 8 experts a token, in every other layer of the decoder; its encoder is counted apart."""
    config = config_of(
        "switch_transformers", {"num_layers": 2, "num_decoder_layers": 2, "num_sparse_decoder_layers": 1}
    )
    found, parameters = traced(config), dict(built(config).named_parameters())
    encoder = sum(tensor.numel() for name, tensor in parameters.items() if name.startswith("encoder."))
    experts = sum(x.numel() for name, x in parameters.items() if name.startswith("decoder.") and ".experts." in name)
    assert experts > 0
    assert found.tower_parameters == encoder
    assert found.parameters["total"] - found.parameters["active"] == experts * Fraction(7, 8)


def test_experts_that_a_mask_picks_have_no_count_of_active_parameters() -> None:
    config = config_of("nllb-moe", {"num_experts": 4, "decoder_layers": 4, "encoder_layers": 4})
    found = traced(config)
    assert "active" not in found.parameters
    assert any("is not known" in note for note in found.notes)


@for_each("family", ["bart", "t5", "whisper"])
def test_a_decoder_behind_an_encoder_has_parameters_and_a_cache(family: str) -> None:
    """Its time is refused; a token and a position of the encoder each keep the keys and values of every layer."""
    config = config_of(family, {"encoder_layers": 2, "decoder_layers": 3, "num_layers": 2, "num_decoder_layers": 3})
    found = traced(config)
    model = built(config, "AutoModelForSpeechSeq2Seq" if family == "whisper" else "AutoModelForSeq2SeqLM")
    assert found.parameters["total"] + found.tower_parameters == sum(x.numel() for x in model.parameters())
    assert found.tower_parameters > 0
    assert found.kv_elements_per_token == 3 * 2 * config["d_model"]
    assert {layer.mixer.untimed for layer in found.sequence} == {
        "the time of a decoder behind an encoder is not traced"
    }


def test_layers_that_run_again_are_counted_once() -> None:
    config = config_of("albert", {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4})
    found = traced(config)
    model = built(config, "AutoModelForMaskedLM")
    assert found.parameters["total"] == sum(tensor.numel() for tensor in model.parameters())
    assert len(found.sequence) == 4


def test_a_cache_with_more_than_layers_is_refused() -> None:
    """MiniMax keeps the states of its linear attention beside the layers of its cache."""
    with pytest.raises(SpecError, match="MiniMaxCache is not understood"):
        traced(config_of("minimax", {"num_hidden_layers": 2}))


def test_where_the_whole_model_wants_an_image_its_decoder_runs_alone() -> None:
    """BLIP-2 behind OPT: 12 layers of 768. BLIP itself attends to the image, whose cache text does not show."""
    config = config_of("blip-2")
    found = traced(config | {"architectures": ["Blip2ForConditionalGeneration"]})
    model = built(config, "AutoModelForImageTextToText")
    assert found.parameters["total"] + found.tower_parameters == sum(x.numel() for x in model.parameters())
    assert found.kv_elements_per_token == 12 * 2 * 768
    assert any("OPTForCausalLM ran alone" in note for note in found.notes)
    with pytest.raises(SpecError, match="does not run on tokens alone"):
        traced(config_of("blip") | {"architectures": ["BlipForConditionalGeneration"]})


def test_few_layers_are_asked_for() -> None:
    assert config_of("llama")["num_hidden_layers"] == LAYERS
