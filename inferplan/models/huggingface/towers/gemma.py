"""Gemma 4's towers: images of any shape, sound in chunks; projections stand for towers in the unified one."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.parts import block, conv, copies, heads_of, linear, norm, tower


def vision(r: Reader) -> dict[str, Any]:
    """Four norms a layer, norms on queries and keys, a table of positions for each axis."""
    heads, head_dim, width = r.integer("num_attention_heads"), r.integer("head_dim"), r.integer("hidden_size")
    style = {"gated": True, "bias": False, "kv_heads": r.integer("num_key_value_heads"), "qk_norm": "head"}
    layer = block(heads, head_dim, r.integer("intermediate_size"), rotary=True, norms=4, activation="gelu", **style)
    layer["mixer"]["value_norm"] = True
    r.only("attention_bias", False)
    tensors = linear("patch", 3 * r.integer("patch_size") ** 2, width, bias=False)
    tensors |= {"positions": [2, r.integer("position_embedding_size"), width]}
    r.skip("hidden_activation", "max_position_embeddings", "pooling_kernel_size", "use_clipped_linears", "standardize")
    r.skip("default_output_length", "global_head_dim")
    return tower(width, [{"repeat": r.integer("num_hidden_layers"), **layer}], tensors, "rms")


def audio(r: Reader) -> dict[str, Any]:
    """A conformer (2303.01037): two feed-forwards around attention to a chunk and its surroundings, a convolution."""
    width, heads, count = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("num_hidden_layers")
    head_dim = heads_of(r, width, heads)
    layer = block(heads, head_dim, 4 * width, bias=False, norms=9, activation="silu")
    first, second = r.need("subsampling_conv_channels")
    tensors = conv("conv.0", 1, first, 3, 3, bias=False) | conv("conv.1", first, second, 3, 3, bias=False)
    tensors |= norm("conv.0.norm", first, 1) | norm("conv.1.norm", second, 1)
    tensors |= linear("input", first // 4 * second, width, bias=False)
    own = linear("positions", width, width, bias=False) | {"dim_scale": [head_dim]}
    own |= linear("conv.in", width, 2 * width, bias=False) | linear("conv.out", width, width, bias=False)
    own |= conv("conv.depthwise", 1, width, r.integer("conv_kernel_size"), bias=False)
    tensors |= {f"layers.{name}": shape for name, shape in copies(count, own).items()}
    tensors |= linear("output", width, r.integer("output_proj_dims"))
    r.skip("attention_chunk_size", "attention_context_left", "attention_context_right", "attention_logit_cap")
    r.skip("attention_invalid_logits_value", "gradient_clipping", "residual_weight", "use_clipped_linears")
    return tower(width, [{"repeat": count, **layer, "extras": [layer["ffn"]]}], tensors, "rms")


def unified_vision(r: Reader) -> dict[str, Any]:
    """No encoder: a patch is a dense layer between norms, with learned positions of two axes."""
    width = r.integer("mm_embed_dim")
    side = r.integer("patch_size") * r.integer("pooling_kernel_size")
    r.only("model_patch_size", side)
    inputs = 3 * side**2
    tensors = norm("patch.norm", inputs) | linear("patch", inputs, width) | norm("norm", width)
    tensors |= {"positions": [r.integer("mm_posemb_size"), 2, width]} | norm("positions.norm", width)
    r.skip("num_soft_tokens")
    return tower(width, [], tensors)


def unified_audio(r: Reader) -> dict[str, Any]:
    """No encoder: frames of the wave go into the projection."""
    r.skip("audio_samples_per_token", "audio_embed_dim")
    return tower(r.integer("output_proj_dims", default=r.integer("audio_embed_dim")), [], {})


TOWERS = {
    "gemma4_vision": vision,
    "gemma4_audio": audio,
    "gemma4_unified_vision": unified_vision,
    "gemma4_unified_audio": unified_audio,
}
