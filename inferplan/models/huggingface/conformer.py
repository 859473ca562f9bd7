"""Encoders of sound whose layers are conformers (2005.08100), with labels of every position: ``...ForCTC``."""

from __future__ import annotations

from math import log2
from typing import Any

from inferplan.models.huggingface.decoder import ACTIVATIONS
from inferplan.models.huggingface.dialect import Dialect, Layer
from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.segments_and_bytes import untimed

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


def positioned(r: Reader, mixer: Layer) -> Layer:
    """Attention with the positions of ``position_embeddings_type``."""
    kind = r.get("position_embeddings_type")
    if "position_embeddings_type" not in r.config:
        raise r.refuse("position_embeddings_type", "it is absent, and only null says that there are no positions")
    r.skip("max_source_positions")
    if kind not in (None, "rotary", "relative", "relative_key"):
        raise r.refuse(f"position_embeddings_type = {kind!r}", "only rotary, relative and relative_key are known")
    if kind == "relative_key":
        rows = r.integer("left_max_position_embeddings") + r.integer("right_max_position_embeddings") + 1
        return mixer | {"kind": "relative_attention", "distances": rows}
    r.skip("left_max_position_embeddings", "right_max_position_embeddings")
    return mixer | ({"kind": "relative_attention"} if kind == "relative" else {"rotary": kind == "rotary"})


def block(mixer: Layer, ffn: Layer, convolution: Layer) -> Layer:
    """A layer: attention and a convolution between two feed-forwards, and a norm behind them."""
    return {"mixer": mixer, "ffn": ffn, "extras": [ffn, {"kind": "conformer_conv", **convolution}], "norms": 5}


def labelled(r: Reader, width: int, parts: dict[str, Any]) -> dict[str, Any]:
    """The mapping of a model that labels every position of sound by ``parts``: its layers, norms and ``ends``."""
    ends = {**parts.pop("ends"), "heads": [{"name": "labels", "rows": "token", "vocabulary": True}]}
    fields = {"d_model": width, "vocab": r.integer("vocab_size"), "max_context": None, "tied": False}
    return fields | {"head_bias": True, "ends": ends, "generation": {"kind": "encode"}, **parts}


def fast(r: Reader, d: Dialect) -> dict[str, Any]:
    """Parakeet's (Fast Conformer, 2305.05084), with labels."""
    inner, width = _encoder(r)
    convolutions, layers = _fast(inner, width)
    parts = {"norm": "layer", "final_norm": False, "layers": layers, "ends": {"convolutions": convolutions}}
    return labelled(r, width, parts)


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


def lasr(r: Reader, d: Dialect) -> dict[str, Any]:
    """LASR's: two convolutions over time between linear layers, rotary positions, norms without a bias."""
    inner, width = _encoder(r)
    inner.config = {"attention_bias": False, "convolution_bias": False} | inner.config  # what LasrEncoderConfig says
    channels, size = inner.integer("subsampling_conv_channels"), inner.integer("subsampling_conv_kernel_size")
    step = {"taps": size, "stride": inner.integer("subsampling_conv_stride")}
    convolutions = [
        {"inputs": inner.integer("num_mel_bins"), "outputs": width, "taps": 1},
        {"inputs": width, "outputs": width, **step},
        {"inputs": width, "outputs": channels, **step},
        {"inputs": channels, "outputs": width, "taps": 1},
    ]
    mixer = _attention(inner, width) | {"rotary": True}
    layers = [{"repeat": inner.integer("num_hidden_layers"), **_block(inner, mixer, width)}]
    _read(inner)
    return labelled(r, width, {"norm": "layer_plain", "layers": layers, "ends": {"convolutions": convolutions}})


_HALVED = "some of its layers halve the positions, all attend within blocks, and labels are fed back in the middle"


def granite(r: Reader, d: Dialect) -> dict[str, Any]:
    """Granite Speech 5's: some layers halve the positions, and the labels of a middle one are fed back."""
    inner, width = _encoder(r)
    vocab, wide = r.integer("vocab_size"), width * inner.integer("conv_expansion_factor")
    inner.only("vocab_size", vocab)
    size = inner.integer("head_dim", default=width // inner.integer("num_attention_heads"))
    mixer = _attention(inner, width) | {"qkv_bias": False, "out_bias": True, "head_dim": size}
    mixer |= {"kind": "relative_attention", "distances": 2 * inner.integer("max_position_embeddings") + 1}
    layer = _block(inner, mixer, width)
    taps = inner.integer("conv_kernel_size")
    layer["extras"][1] = {"kind": "conformer_conv", "width": wide, "taps": taps, "bias": "projections"}
    layer["extras"].append(untimed(_HALVED))
    layers = [{"repeat": inner.integer("num_hidden_layers"), **layer}]
    tensors = {"middle.in": [width, vocab], "middle.in.bias": [width]}
    if not r.flag("tie_word_embeddings", True):
        tensors |= {"middle.out": [vocab, width], "middle.out.bias": [vocab]}
    inner.skip("context_size", "subsample_layers")
    ends = {"convolutions": [{"inputs": 4 * inner.integer("num_mel_bins"), "outputs": width, "taps": 1}]}
    parts = {"norm": "layer", "final_norm": False, "layers": layers, "ends": ends | {"tensors": tensors}}
    _read(inner)
    return labelled(r, width, parts)


def _encoder(r: Reader) -> tuple[Reader, int]:
    """The nested config of the encoder, and its width."""
    for name in r.get("architectures") or []:
        if not name.endswith("ForCTC"):
            raise r.refuse(f"architectures = {name}", "only the class that labels every position (ForCTC) is known")
    r.skip("ctc_loss_reduction", "ctc_zero_infinity")
    inner = r.table("encoder_config")
    if inner is None:
        raise r.refuse("encoder_config", "it is not there, and the counts depend on it")
    return inner, inner.integer("hidden_size")


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
