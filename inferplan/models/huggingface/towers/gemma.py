"""Gemma 4's and Gemma 3n's towers: images of any shape, sound in chunks; projections in place of towers."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.beside import AUDIO, VISION, Beside, Media
from inferplan.models.huggingface.towers.parts import Tensors, block, conv, copies, heads_of, linear, norm, tower


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
    """Gemma 4's conformer behind two convolutions, and a projection of its own."""
    first, second = r.need("subsampling_conv_channels")
    tensors = conv("conv.0", 1, first, 3, 3, bias=False) | conv("conv.1", first, second, 3, 3, bias=False)
    tensors |= norm("conv.0.norm", first, 1) | norm("conv.1.norm", second, 1)
    tensors |= linear("input", first // 4 * second, r.integer("hidden_size"), bias=False)
    tensors |= linear("output", r.integer("hidden_size"), r.integer("output_proj_dims"))
    r.skip("attention_chunk_size", "attention_context_left", "attention_context_right", "attention_logit_cap")
    r.skip("attention_invalid_logits_value", "gradient_clipping", "residual_weight", "use_clipped_linears")
    return _conformer(r, "", tensors)


def _conformer(r: Reader, prefix: str, tensors: Tensors) -> dict[str, Any]:
    """Layers (2303.01037): two feed-forwards around attention to a chunk and its surroundings, a convolution.

    prefix: of the fields of its layers.
    """
    width, heads = r.integer("hidden_size"), r.integer(f"{prefix}num_attention_heads")
    head_dim, count = heads_of(r, width, heads), r.integer(f"{prefix}num_hidden_layers")
    layer = block(heads, head_dim, 4 * width, bias=False, norms=9, activation="silu")
    own = linear("positions", width, width, bias=False) | {"dim_scale": [head_dim]}
    own |= linear("conv.in", width, 2 * width, bias=False) | linear("conv.out", width, width, bias=False)
    own |= conv("conv.depthwise", 1, width, r.integer(f"{prefix}conv_kernel_size"), bias=False)
    tensors = tensors | {f"layers.{name}": shape for name, shape in copies(count, own).items()}
    return tower(width, [{"repeat": count, **layer, "extras": [layer["ffn"]]}], tensors, "rms")


def gemma3n_audio(r: Reader) -> dict[str, Any]:
    """Gemma 3n's: convolutions over time and pitch, padded by one pitch to either side."""
    channels, kernels, strides = (
        r.need(f"sscp_conv_{name}") for name in ("channel_size", "kernel_size", "stride_size")
    )
    tensors: Tensors = {}
    before, pitches = 1, r.integer("input_feat_size")
    for index, (after, kernel, stride) in enumerate(zip(channels, kernels, strides, strict=True)):
        tensors |= conv(f"conv.{index}", before, after, *kernel, bias=False) | norm(f"conv.{index}.norm", after, 1)
        before, pitches = after, (pitches + 2 - kernel[1]) // stride[1] + 1
    tensors |= linear("input", before * pitches, r.integer("hidden_size"), bias=False)
    r.skip("vocab_offset", "gradient_clipping", "sscp_conv_group_norm_eps", "conf_attention_chunk_size")
    r.skip("conf_attention_context_left", "conf_attention_context_right", "conf_attention_logit_cap")
    r.skip("conf_reduction_factor", "conf_residual_weight")
    return _conformer(r, "conf_", tensors)


def gemma3n_vision(r: Reader) -> dict[str, Any]:
    """A MobileNet of timm: no field here is a shape of it, but for the width it puts out."""
    r.skip("architecture", "model_args", "do_pooling", "vocab_offset", "num_classes", "label_names")
    return tower(r.integer("hidden_size"), [], {})


def gemma3n(m: Media) -> None:
    """For each tower a table of words of its own, a norm for those and one for what it puts out, one matrix."""
    for table, own in m.tables.items():
        width = m.width(table)
        tensors: Tensors = {"words": [own.integer("vocab_size"), width]} | norm("norms", width, 2)
        m.add(table, tensors | linear("projector", width, m.d_model, bias=False))
    if VISION in m.tables:
        m.notes.append("the tower of vision_config (a MobileNet, of timm) is not counted")


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
    "gemma3n_audio": gemma3n_audio,
    "gemma3n_vision": gemma3n_vision,
    "gemma4_unified_vision": unified_vision,
    "gemma4_unified_audio": unified_audio,
}

JOINED: dict[str, Beside] = {
    "gemma3n": Beside(
        towers={VISION: "gemma3n_vision", AUDIO: "gemma3n_audio"},
        join=gemma3n,
        ignored=("audio_soft_tokens_per_image", "vision_soft_tokens_per_image"),
        partial=True,
    ),
}
"""Rows of the table of what stands beside a language model."""
