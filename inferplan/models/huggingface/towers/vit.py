"""Vision transformers with learned positions: CLIP, SigLIP, InternViT, Llama 4's, Ovis 2's, BLIP's."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.parts import (
    Tensors,
    block,
    conv,
    feed_forward,
    heads_of,
    linear,
    norm,
    patch_conv,
    patches,
    tower,
)


def plain(r: Reader, **style: Any) -> tuple[int, list[dict[str, Any]]]:
    """Width and layers by the usual names."""
    width, heads = r.integer("hidden_size"), r.integer("num_attention_heads")
    layer = block(heads, heads_of(r, width, heads), r.integer("intermediate_size"), **style)
    return width, [{"repeat": r.integer("num_hidden_layers"), **layer}]


def clip(r: Reader) -> dict[str, Any]:
    """CLIP (2103.00020) without its projection: a class token, norms before and after."""
    width, layers = plain(r)
    tensors = patch_conv(r, width, bias=False)
    tensors |= {"class": [width], "positions": [patches(r) + 1, width]}
    r.skip("projection_dim", "vocab_size", "output_dim")
    return tower(width, layers, tensors | norm("norm.before", width) | norm("norm", width))


def pooling_head(width: int, d_ff: int) -> Tensors:
    """SigLIP's pooling: a learned query attends to the patches, then a feed-forward."""
    tensors: Tensors = {"head.probe": [width], **linear("head.qkv", width, 3 * width), **linear("head.o", width, width)}
    return tensors | norm("head.norm", width) | feed_forward("head.mlp", [width, d_ff, width])


def siglip(r: Reader) -> dict[str, Any]:
    """SigLIP (2303.15343), with its pooling head where the config has it: released checkpoints may not use it."""
    width, layers = plain(r)
    tensors = patch_conv(r, width) | {"positions": [patches(r), width]} | norm("norm", width)
    if r.flag("vision_use_head", True):
        tensors |= pooling_head(width, r.integer("intermediate_size"))
    r.skip("projection_dim", "vocab_size", "num_image_tokens", "projector_hidden_act")
    return tower(width, layers, tensors)


def siglip2(r: Reader) -> dict[str, Any]:
    """SigLIP 2 (2502.14786) for images of any shape: patches are vectors already."""
    width, layers = plain(r)
    inputs = r.integer("num_channels") * r.integer("patch_size") ** 2
    tensors = linear("patch", inputs, width) | {"positions": [r.integer("num_patches"), width]} | norm("norm", width)
    if r.flag("vision_use_head", True):
        tensors |= pooling_head(width, r.integer("intermediate_size"))
    return tower(width, layers, tensors)


def phi4(r: Reader) -> dict[str, Any]:
    """SigLIP with its pooling head, as Phi-4-multimodal stores it."""
    r.skip("crop_size", "feature_layer")
    return siglip(r)


def headless(r: Reader) -> dict[str, Any]:
    """SigLIP as Idefics and SmolVLM use it: no pooling head."""
    width, layers = plain(r)
    tensors = patch_conv(r, width) | {"positions": [patches(r), width]} | norm("norm", width)
    r.skip("tie_word_embeddings")
    return tower(width, layers, tensors)


def intern(r: Reader) -> dict[str, Any]:
    """InternViT (2312.14238): a class token, scaled residuals, norms on queries and keys where the config has them."""
    style = r.get("norm_type") or "layer_norm"
    kinds = {"layer_norm": "layer", "rms_norm": "rms"}
    if style not in kinds:
        raise r.refuse(f"norm_type = {style!r}", f"only {', '.join(kinds)} are known")
    biased = r.flag("attention_bias", False)
    normed = r.flag("use_qk_norm", False)
    width, layers = plain(r, qkv_bias=biased, qk_norm="full" if normed else "none")
    count = r.integer("num_hidden_layers")
    tensors = patch_conv(r, width) | {"class": [width], "layer_scales": [count, 2, width]}
    if r.flag("use_absolute_position_embeddings", True):
        tensors |= {"positions": [patches(r) + 1, width]}
    if r.flag("use_mask_token", False):
        tensors |= {"mask": [width]}
    if not r.flag("use_mean_pooling", True):
        tensors |= norm("norm", width)
    return tower(width, layers, tensors, kinds[style])


def llama4(r: Reader) -> dict[str, Any]:
    """Llama 4's: rotary positions beside learned ones; its adapter reads patches joined by the pixel shuffle."""
    width, layers = plain(r, rotary=True)
    patch, out = r.integer("patch_size"), r.integer("projector_output_dim")
    tensors = linear("patch", r.integer("num_channels") * patch**2, width, bias=False)
    tensors |= {"class": [width], "positions": [patches(r) + 1, width]}
    tensors |= norm("norm.before", width) | norm("norm", width)
    tensors |= linear("adapter.0", r.integer("intermediate_size"), r.integer("projector_input_dim"), bias=False)
    tensors |= linear("adapter.1", out, out, bias=False)
    r.skip("pixel_shuffle_ratio", "vision_output_dim", "vision_feature_layer", "vision_feature_select_strategy")
    r.skip("multi_modal_projector_bias", "projector_dropout")
    return tower(width, layers, tensors)


def ovis2(r: Reader) -> dict[str, Any]:
    """Ovis 2 (AIMv2): RMSNorm, gated, and a head over the visual vocabulary."""
    biased = r.flag("qkv_bias", False)
    width, layers = plain(r, gated=True, qkv_bias=biased, out_bias=biased, mlp_bias=r.flag("mlp_bias", False))
    rows = r.integer("vocab_size") - r.integer("num_visual_indicator_tokens")
    joined = width * r.integer("hidden_stride") ** 2
    tensors = patch_conv(r, width) | {"positions": [patches(r), width]}
    tensors |= norm("norm.before", width, 1) | norm("norm", width, 1)
    tensors |= linear("head", joined, rows, bias=False) | norm("head.norm", rows)
    r.skip("tokenize_function")
    return tower(width, layers, tensors, "rms")


def pixtral(r: Reader) -> dict[str, Any]:
    """Pixtral (2410.07073): rotary positions in two dimensions, RMSNorm, gated, no biases."""
    heads = r.integer("num_attention_heads")
    width = r.integer("hidden_size")
    head_dim = heads_of(r, width, heads)
    r.only("head_dim", head_dim)
    layer = block(heads, head_dim, r.integer("intermediate_size"), bias=False, gated=True, rotary=True)
    layers = [{"repeat": r.integer("num_hidden_layers"), **layer}]
    r.skip("image_size", "vocab_size", "tie_word_embeddings")
    return tower(width, layers, patch_conv(r, width, bias=False) | norm("norm", width, 1), "rms")


def mllama(r: Reader) -> dict[str, Any]:
    """Llama 3.2's (2407.21783 section 7): tiles of an image, then gated layers over all of them."""
    width, heads = r.integer("hidden_size"), r.integer("attention_heads")
    style = {"qkv_bias": False, "out_bias": False}
    layer = block(heads, heads_of(r, width, heads), r.integer("intermediate_size"), **style)
    after = r.integer("num_global_layers")
    layers = [{"repeat": r.integer("num_hidden_layers") + after, **layer}]
    tiles = r.integer("max_num_tiles")
    ratios, spots = len(r.need("supported_aspect_ratios")) + 1, patches(r) + 1
    tensors: Tensors = {"class": [width], **patch_conv(r, width, bias=False)}
    tensors |= {"positions": [spots, width], "positions.tiles": [ratios, tiles * spots * width], "positions.gate": [1]}
    for name in ("before", "after"):
        tensors |= {f"tiles.{name}": [ratios, tiles * width], f"tiles.{name}.gate": [1]} | norm(f"norm.{name}", width)
    r.skip("vision_output_dim", "intermediate_layers_indices", "max_aspect_ratio_id", "tie_word_embeddings")
    return tower(width, layers, tensors | {"global.gates": [after, 2]})


def blip(r: Reader) -> dict[str, Any]:
    """BLIP-2's EVA encoder (2301.12597): one matrix for queries, keys and values, with or without its bias."""
    width, layers = plain(r, qkv_bias=r.flag("qkv_bias", True))
    tensors = (
        patch_conv(r, width) if "num_channels" in r.config else conv("patch", 3, width, *[r.integer("patch_size")] * 2)
    )
    tensors |= {"class": [width], "positions": [patches(r) + 1, width]}
    return tower(width, layers, tensors | norm("norm", width))


TOWERS = {
    "clip_vision_model": clip,
    "siglip_vision_model": siglip,
    "siglip2_vision_model": siglip2,
    "idefics3_vision": headless,
    "smolvlm_vision": headless,
    "idefics2_vision": headless,
    "internvl_vision": intern,
    "qianfan_ocr_vision": intern,
    "llama4_vision_model": llama4,
    "ovis2_vision": ovis2,
    "pixtral": pixtral,
    "mllama_vision_model": mllama,
    "phi4_multimodal_vision": phi4,
    "blip_2_vision_model": blip,
}
