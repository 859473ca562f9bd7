"""Towers of images and video that merge neighbouring patches: Qwen's, GLM's, MoonViT."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.parts import Tensors, block, conv, heads_of, linear, norm, pair, tower


def _patch(r: Reader, width: int, bias: bool) -> Tensors:
    """A convolution over frames and patches."""
    kernel = (r.integer("temporal_patch_size"), *pair(r, "patch_size"))
    return conv("patch", r.integer("in_channels"), width, *kernel, bias=bias)


def _merger(name: str, joined: int, out: int) -> Tensors:
    """Two matrices over neighbouring patches that were joined."""
    return linear(f"{name}.in", joined, joined) | linear(f"{name}.out", joined, out)


def qwen2(r: Reader) -> dict[str, Any]:
    """Qwen2-VL (2409.12191): ``embed_dim`` wide, its merger puts out ``hidden_size``."""
    width, heads = r.integer("embed_dim"), r.integer("num_heads")
    ratio = r.need("mlp_ratio")
    layer = block(heads, heads_of(r, width, heads), int(width * ratio), rotary=True)
    joined = width * r.integer("spatial_merge_size") ** 2
    _old_names(r)
    tensors = _patch(r, width, bias=False) | norm("merger.norm", width)
    tensors |= _merger("merger", joined, r.integer("hidden_size"))
    return tower(width, [{"repeat": r.integer("depth"), **layer}], tensors)


def _old_names(r: Reader) -> None:
    """``in_chans`` and ``spatial_patch_size`` of the released configs, which no class reads."""
    r.only("in_chans", r.config.get("in_channels"))
    r.skip("spatial_patch_size")


def qwen25(r: Reader) -> dict[str, Any]:
    """Qwen2.5-VL (2502.13923): RMSNorm and gated feed-forwards; most layers attend within windows of the image."""
    width, heads = r.integer("hidden_size"), r.integer("num_heads")
    kv_heads = r.integer("num_key_value_heads", default=heads)
    style = {"rotary": True, "gated": True, "kv_heads": kv_heads}
    layer = block(heads, heads_of(r, width, heads), r.integer("intermediate_size"), **style)
    joined = width * r.integer("spatial_merge_size") ** 2
    _old_names(r)
    r.skip("window_size", "fullatt_block_indexes", "tokens_per_second")
    tensors = _patch(r, width, bias=False) | norm("merger.norm", width, 1)
    tensors |= _merger("merger", joined, r.integer("out_hidden_size"))
    return tower(width, [{"repeat": r.integer("depth"), **layer}], tensors, "rms")


def qwen3(r: Reader) -> dict[str, Any]:
    """Qwen3-VL: a merger after the last layer, and one for each layer that feeds the decoder's own (deepstack)."""
    width, out, heads = r.integer("hidden_size"), r.integer("out_hidden_size"), r.integer("num_heads")
    joined = width * r.integer("spatial_merge_size") ** 2
    tensors = _patch(r, width, bias=True) | {"positions": [r.integer("num_position_embeddings"), width]}
    tensors |= norm("merger.norm", width) | _merger("merger", joined, out)
    for index in range(len(r.get("deepstack_visual_indexes") or [])):
        tensors |= _merger(f"deepstack.{index}", joined, out) | norm(f"deepstack.{index}.norm", joined)
    layer = block(heads, heads_of(r, width, heads), r.integer("intermediate_size"), rotary=True)
    return tower(width, [{"repeat": r.integer("depth"), **layer}], tensors)


def glm(r: Reader) -> dict[str, Any]:
    """GLM-4.5V (2507.01006): feed-forwards as wide as what it puts out; a convolution joins, a gated merger follows."""
    width, heads, out = r.integer("hidden_size"), r.integer("num_heads"), r.integer("out_hidden_size")
    style = {"rotary": True, "gated": True, "bias": False, "qkv_bias": r.flag("attention_bias", False)}
    layer = block(heads, heads_of(r, width, heads), out, **style)
    merge, inner = r.integer("spatial_merge_size"), r.integer("intermediate_size")
    side = r.integer("image_size") // r.integer("patch_size")
    tensors = _patch(r, width, bias=True) | {"positions": [side**2, width]}
    tensors |= norm("norm.before", width, 1) | norm("norm", width, 1)
    tensors |= conv("downsample", width, out, merge, merge) | gated_merger(out, inner)
    return tower(width, [{"repeat": r.integer("depth"), **layer}], tensors, "rms")


def gated_merger(out: int, inner: int) -> Tensors:
    """GLM's: a projection, a norm, a gated feed-forward."""
    tensors = linear("merger.projection", out, out, bias=False) | norm("merger.norm", out)
    for name, shape in (("gate", (out, inner)), ("up", (out, inner)), ("down", (inner, out))):
        tensors |= linear(f"merger.{name}", *shape, bias=False)
    return tensors


def kimi(r: Reader) -> dict[str, Any]:
    """MoonViT (2504.07491) as transformers writes it; its projector is that of the whole config."""
    width, heads = r.integer("hidden_size"), r.integer("num_attention_heads")
    layer = block(heads, heads_of(r, width, heads), r.integer("intermediate_size"), rotary=True)
    tensors = conv("patch", 3, width, *pair(r, "patch_size")) | norm("norm", width)
    tensors |= {"positions": [r.integer("pos_emb_height"), r.integer("pos_emb_width"), width]}
    r.skip("pos_emb_time", "merge_kernel_size")
    return tower(width, [{"repeat": r.integer("num_hidden_layers"), **layer}], tensors)


TOWERS = {
    "qwen2_vl_vision": qwen2,
    "qwen2_5_vl_vision": qwen25,
    "qwen2_5_omni_vision_encoder": qwen25,
    "exaone4_5_vision": qwen25,
    "qwen3_vl_vision": qwen3,
    "qwen3_vl_moe_vision": qwen3,
    "qwen3_5_vision": qwen3,
    "qwen3_5_moe_vision": qwen3,
    "qwen3_omni_moe_vision_encoder": qwen3,
    "cohere_compass_vision": qwen3,
    "qwen4_exp_vision": qwen3,
    "glm4v_vision": glm,
    "glm4v_moe_vision": glm,
    "kimi_k25_vision": kimi,
}
