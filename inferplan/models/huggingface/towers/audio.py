"""Encoders of sound: Whisper's and those built like it."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.beside import AUDIO, Beside
from inferplan.models.huggingface.towers.parts import Tensors, block, conv, heads_of, linear, norm, tower

_NAMES = {
    "width": ("d_model", "hidden_size"),
    "layers": ("encoder_layers", "num_hidden_layers"),
    "heads": ("encoder_attention_heads", "num_attention_heads"),
    "d_ff": ("encoder_ffn_dim", "intermediate_size"),
}


def _layers(r: Reader, key_bias: bool) -> tuple[int, list[dict[str, Any]], Tensors]:
    """Width, layers and the biases of queries and values that stand alone where keys have none."""
    width, heads = r.integer(*_NAMES["width"]), r.integer(*_NAMES["heads"])
    count = r.integer(*_NAMES["layers"])
    layer = block(heads, heads_of(r, width, heads), r.integer(*_NAMES["d_ff"]), qkv_bias=key_bias)
    r.skip("encoder_layerdrop", "scale_embedding", "num_hidden_layers", "vocab_size")
    return width, [{"repeat": count, **layer}], {} if key_bias else {"layers.qv_bias": [count, 2, width]}


def stem(r: Reader, width: int) -> Tensors:
    """Whisper's two convolutions over the spectrogram (2212.04356)."""
    return conv("conv.0", r.integer("num_mel_bins"), width, 3) | conv("conv.1", width, width, 3)


def whisper(r: Reader) -> dict[str, Any]:
    """Whisper's encoder: positions are sinusoids, kept as parameters."""
    width, layers, tensors = _layers(r, key_bias=False)
    tensors |= stem(r, width) | {"positions": [r.integer("max_source_positions"), width]} | norm("norm", width)
    return tower(width, layers, tensors)


def qwen25_omni(r: Reader) -> dict[str, Any]:
    """Qwen2.5-Omni (2503.20215): Whisper's layers, positions computed, projected to the language model's width."""
    width, layers, tensors = _layers(r, key_bias=False)
    out = r.integer("output_dim")
    tensors |= stem(r, width) | norm("norm", width) | linear("projector", width, out) | {"bounds": [2, out]}
    r.skip("max_source_positions", "n_window")
    return tower(width, layers, tensors)


def qwen3_omni(r: Reader) -> dict[str, Any]:
    """Qwen3-Omni (2509.17765): three convolutions of stride 2 over time and frequency."""
    width, layers, tensors = _layers(r, key_bias=True)
    channels, bins = r.integer("downsample_hidden_size"), r.integer("num_mel_bins")
    for index in range(3):
        tensors |= conv(f"conv.{index}", channels if index else 1, channels, 3, 3)
        bins = (bins + 1) // 2
    tensors |= linear("conv.out", channels * bins, width, bias=False) | norm("norm", width)
    tensors |= linear("projector.0", width, width) | linear("projector.1", width, r.integer("output_dim"))
    r.skip("max_source_positions", "n_window", "n_window_infer", "conv_chunksize", "max_position_embeddings")
    return tower(width, layers, tensors)


def glm(r: Reader) -> dict[str, Any]:
    """GLM-ASR: Whisper's stem and layers with rotary positions."""
    width, layers, tensors = _layers(r, key_bias=False)
    layers[0]["mixer"]["rotary"] = True
    r.only("num_key_value_heads", r.integer("num_attention_heads"))
    r.only("head_dim", layers[0]["mixer"]["head_dim"])
    r.skip("max_position_embeddings")
    return tower(width, layers, tensors | stem(r, width) | norm("norm", width))


JOINED = {"qwen3_asr": Beside(towers={AUDIO: "qwen3_asr_encoder"}, ignored=("token_classification_bias",))}

TOWERS = {
    "qwen3_asr_encoder": qwen3_omni,
    "qwen2_audio_encoder": whisper,
    "voxtral_encoder": whisper,
    "audioflamingo3_encoder": whisper,
    "moss_transcribe_diarize_audio": whisper,
    "qwen2_5_omni_audio_encoder": qwen25_omni,
    "qwen3_omni_moe_audio_encoder": qwen3_omni,
    "glmasr_encoder": glm,
}
