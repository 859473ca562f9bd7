"""Conformers (2005.08100): encoders of sound with a convolution beside attention, between two feed-forwards."""

from __future__ import annotations

from math import log2
from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.parts import Tensors, block, conv, copies, heads_of, linear, norm, tower


def _named(count: int, own: Tensors) -> Tensors:
    """Tensors that every layer has beside attention and feed-forwards."""
    return {f"layers.{name}": shape for name, shape in copies(count, own).items()}


def phi4(r: Reader) -> dict[str, Any]:
    """Phi-4-multimodal's (2503.01743): gated feed-forwards, a bias by distance, depthwise convolutions ahead."""
    width, heads, count = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("num_blocks")
    layer = block(heads, heads_of(r, width, heads), r.integer("intermediate_size"), gated=True, norms=4)
    out, kernel = r.integer("ext_pw_out_channel"), r.integer("kernel_size")
    between, wide = r.integer("depthwise_separable_out_channel"), width * r.integer("depthwise_multiplier", default=1)
    own = norm("conv.norm", width) | linear("conv.glu", width, 2 * out) | {"conv.glu.scales": [2, out]}
    own |= conv("conv.depthwise", 1, wide, kernel) | linear("conv.pointwise", wide, between)
    own |= linear("conv.out", width, out)
    steps, channels = int(log2(r.integer("time_reduction"))), r.integer("nemo_conv_channels")
    bins = r.integer("input_size")
    tensors = conv("stem.0", 1, channels, 3, 3)
    for index in range(1, steps):
        tensors |= conv(f"stem.{index}", 1, channels, 3, 3) | conv(f"stem.{index}.out", channels, channels, 1, 1)
    for _ in range(steps):
        bins = (bins - 1) // 2 + 1
    r.only("nemo_final_size", bins)
    tensors |= linear("stem.out", channels * bins, width)
    reach = r.integer("bias_max_distance") * (1 if r.flag("bias_symmetric", False) else 2)
    tensors |= {"distances": [reach, heads]}
    r.skip("activation", "chunk_size", "left_chunk", "conv_activation", "conv_glu_type", "nemo_activation")
    r.skip("feature_layer", "downsample_rate")
    return tower(width, [{"repeat": count, **layer, "extras": [layer["ffn"]]}], tensors | _named(count, own))


def granite(r: Reader) -> dict[str, Any]:
    """Granite Speech's (2505.08699): positions by distance, and a head of characters in its middle."""
    width, heads, head_dim = r.integer("hidden_dim"), r.integer("num_heads"), r.integer("dim_head")
    count, letters = r.integer("num_layers"), r.integer("output_dim")
    layer = block(heads, head_dim, width * r.integer("feedforward_mult"), qkv_bias=False, norms=5, activation="silu")
    wide = width * r.integer("conv_expansion_factor")
    own = {"distances": [2 * r.integer("max_pos_emb") + 1, head_dim]}
    own |= linear("conv.in", width, 2 * wide) | linear("conv.out", wide, width)
    own |= conv("conv.depthwise", 1, wide, r.integer("conv_kernel_size"), bias=False) | norm("conv.batch_norm", wide)
    tensors = linear("input", r.integer("input_dim"), width)
    tensors |= linear("letters.out", width, letters) | linear("letters.in", letters, width)
    r.skip("context_size", "cat_hidden_layers")
    return tower(width, [{"repeat": count, **layer, "extras": [layer["ffn"]]}], tensors | _named(count, own))


TOWERS = {
    "phi4_multimodal_audio": phi4,
    "granite_speech_encoder": granite,
    "granite_speech_plus_encoder": granite,
}
