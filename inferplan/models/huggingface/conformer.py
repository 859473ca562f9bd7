"""Encoders of sound whose layers are conformers (2005.08100), with labels of every position: ``...ForCTC``."""

from __future__ import annotations

from math import log2
from typing import Any

from inferplan.models.huggingface.decoder import ACTIVATIONS
from inferplan.models.huggingface.dialect import Layer
from inferplan.models.huggingface.reader import Reader

_ENCODER = (
    "dropout_positions", "layerdrop", "scale_input", "num_key_value_heads", "max_position_embeddings",
    "feed_forward_residual_weights", "conv_residual_weights", "batch_norm_momentum",
)  # fmt: skip
"""Fields of the encoders that change no shape: sinusoids and rotations have no parameters."""


def activation(r: Reader, field: str = "hidden_act") -> str:
    """Ours for the encoder's ``hidden_act``; refused where it is not known."""
    name = str(r.need(field))
    if name not in ACTIVATIONS:
        raise r.refuse(f"{field} = {name!r}", f"only {', '.join(ACTIVATIONS)} are known")
    return ACTIVATIONS[name]


def block(mixer: Layer, ffn: Layer, convolution: Layer) -> Layer:
    """A layer: attention and a convolution between two feed-forwards, and a norm behind them."""
    return {"mixer": mixer, "ffn": ffn, "extras": [ffn, {"kind": "conformer_conv", **convolution}], "norms": 5}


def fast_encoder(r: Reader) -> dict[str, Any]:
    """The same as the encoder of an encoder-decoder."""
    width = r.integer("hidden_size")
    r.only("model_type", "parakeet_encoder")
    convolutions, layers = _fast(r, width)
    fields = {"d_model": width, "norm": "layer", "final_norm": False, "embedding": "none"}
    return fields | {
        "layers": layers,
        "convolutions": convolutions,
        "max_context": r.integer("max_position_embeddings"),
    }


def _fast(inner: Reader, width: int) -> tuple[list[dict[str, Any]], list[Layer]]:
    """Convolutions over time and pitch, and conformers."""
    channels, size = inner.integer("subsampling_conv_channels"), inner.integer("subsampling_conv_kernel_size")
    stride, factor = inner.integer("subsampling_conv_stride"), inner.integer("subsampling_factor")
    bins = inner.integer("num_mel_bins")
    steps = int(log2(factor))
    rows = bins // stride**steps
    convolutions: list[dict[str, Any]] = []
    for index in range(steps):
        bins = (bins + 2 * ((size - 1) // 2) - size) // stride + 1
        shape = {"outputs": channels, "taps": size * size, "stride": stride, "bands": bins}
        convolutions.append(shape | ({"inputs": channels, "groups": channels} if index else {"inputs": 1}))
        if index:
            convolutions.append({"inputs": channels, "outputs": channels, "taps": 1, "bands": bins})
    if bins != rows or stride**steps != factor:
        raise inner.refuse("num_mel_bins or subsampling_factor", "the convolutions put out other sizes than it says")
    convolutions.append({"inputs": channels * rows, "outputs": width, "taps": 1})
    mixer = _attention(inner, width) | {"kind": "relative_attention"}
    layers = [{"repeat": inner.integer("num_hidden_layers"), **_block(inner, mixer, width)}]
    _read(inner)
    return convolutions, layers


def _attention(r: Reader, width: int) -> Layer:
    heads, bias = r.integer("num_attention_heads"), r.flag("attention_bias", True)
    size = r.integer("head_dim", default=width // heads)
    if r.integer("num_key_value_heads", default=heads) != heads:
        raise r.refuse("num_key_value_heads", f"it is not {heads}, the number of query heads")
    mixer = {"kind": "attention", "heads": heads, "kv_heads": heads, "head_dim": size, "causal": False}
    return mixer | {"rotary": False, "qkv_bias": bias, "out_bias": bias}


def _block(r: Reader, mixer: Layer, width: int) -> Layer:
    ffn = {"kind": "mlp", "d_ff": r.integer("intermediate_size"), "gated": False, "activation": activation(r)}
    ffn |= {"bias": r.flag("attention_bias", True)}
    convolution = {"width": width, "taps": r.integer("conv_kernel_size"), "bias": r.flag("convolution_bias", True)}
    return block(mixer, ffn, convolution)


def _read(r: Reader) -> None:
    """Refuse a field of the encoder that nobody has read."""
    r.skip(*_ENCODER)
    r.require_read()
