"""Decoders in the manner of GPT (2018 to 2022) whose configs have names or biases of their own."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.decoder import attention, decoder, mlp, model
from inferplan.models.huggingface.dialect import Dialect, Layer
from inferplan.models.huggingface.gates_and_norms import Build, walk
from inferplan.models.huggingface.reader import CONTEXT, LAYERS, WIDTH, Reader


def renamed(**names: str) -> Build:
    """A decoder of a config with other names for usual fields: theirs to ours."""

    def build(r: Reader, d: Dialect) -> dict[str, Any]:
        for theirs, ours in names.items():
            value = r.get(theirs)
            if value is not None:
                r.config[ours] = value
        return decoder(r, d)

    return build


def first_gpt(r: Reader, d: Dialect) -> dict[str, Any]:
    """GPT: norms after each part, so none at the end."""
    return renamed(afn="activation_function")(r, d) | {"final_norm": False}


def gpt_neo(r: Reader, d: Dialect) -> dict[str, Any]:
    """GPT-Neo: queries, keys and values without bias; local layers see ``window_size`` tokens."""
    count = r.integer(*LAYERS)
    kinds = r.items("attention_layers", count)
    if kinds is None:
        kinds = [kind for block, times in r.need("attention_types") for _ in range(times) for kind in block]
    r.skip("attention_types")
    mixer, ffn, window = attention(r, d), mlp(r, d), r.integer("window_size")
    for kind in kinds:
        if kind not in ("global", "local"):
            raise r.refuse(f"attention_layers entry {kind!r}", "only global and local are known")
    layers: list[Layer] = [
        {"mixer": mixer | ({"window": window} if kind == "local" else {}), "ffn": ffn} for kind in kinds
    ]
    return model(r, d, layers)


def neox_japanese(r: Reader, d: Dialect) -> dict[str, Any]:
    """GPT-NeoX Japanese: no biases but that of the last layer's attention."""
    count, width = r.integer(*LAYERS), r.integer(*WIDTH)
    mixer, ffn = attention(r, d), mlp(r, d, width * r.integer("intermediate_multiple_size"))
    layers: list[Layer] = [
        {"mixer": mixer | ({"out_bias": True} if index == count - 1 else {}), "ffn": ffn} for index in range(count)
    ]
    return model(r, d, layers)


def persimmon(r: Reader, d: Dialect) -> dict[str, Any]:
    """Persimmon: layer norms on queries and keys, by ``qk_layernorm``."""
    fields = decoder(r, d)
    if not r.flag("qk_layernorm", True):
        for layer in walk(fields["layers"]):
            layer["mixer"] = layer["mixer"] | {"qk_norm": "none"}
    return fields


def moshi(r: Reader, d: Dialect) -> dict[str, Any]:
    """Moshi's language model: a row more for what is not heard yet; ``ffn_dim`` is twice the feed-forward's width."""
    count = r.integer(*LAYERS)
    mixer, window = attention(r, d), r.optional("sliding_window")
    ffn = mlp(r, d, r.integer("ffn_dim") // 2)
    mixer |= {"window": window} if window else {}
    r.only("tie_word_embeddings", False)
    r.skip("audio_encoder_config", "depth_decoder_config", "num_codebooks", "audio_vocab_size", *CONTEXT)
    return model(r, d, [{"mixer": mixer, "ffn": ffn}] * count) | {"ends": {"tables": {"silence": 1}}}
