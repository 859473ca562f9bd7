"""Vision towers: Qwen3-VL's, SigLIP and MoonViT."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.reader import Reader


def encoder(width: int, layers: int, heads: int, d_ff: int, tensors: dict[str, list[int]]) -> dict[str, Any]:
    """A pre-norm encoder with biases everywhere, and the tensors around it."""
    mixer = {
        "kind": "attention",
        "heads": heads,
        "kv_heads": heads,
        "head_dim": width // heads,
        "causal": False,
        "rotary": False,
        "qkv_bias": True,
        "out_bias": True,
    }
    ffn = {"kind": "mlp", "d_ff": d_ff, "gated": False, "bias": True, "activation": "gelu"}
    return {
        "name": "vision",
        "d_model": width,
        "norm": "layer",
        "layers": [{"repeat": layers, "mixer": mixer, "ffn": ffn}],
        "tensors": tensors,
    }


def qwen(r: Reader) -> dict[str, Any]:
    """A merger after the last layer, and one for each layer that feeds the decoder's own layers (deepstack)."""
    width, out = r.integer("hidden_size"), r.integer("out_hidden_size")
    joined = width * r.integer("spatial_merge_size") ** 2
    patch = [width, r.integer("in_channels"), r.integer("temporal_patch_size"), *[r.integer("patch_size")] * 2]
    tensors = {
        "patch": patch,
        "patch.bias": [width],
        "positions": [r.integer("num_position_embeddings"), width],
        "merger.norm": [2, width],
    }
    stack = [f"deepstack.{index}" for index in range(len(r.get("deepstack_visual_indexes") or []))]
    for name in ("merger", *stack):
        tensors |= {f"{name}.in": [joined, joined], f"{name}.in.bias": [joined]}
        tensors |= {f"{name}.out": [out, joined], f"{name}.out.bias": [out]}
    tensors |= {f"{name}.norm": [2, joined] for name in stack}
    tower = encoder(width, r.integer("depth"), r.integer("num_heads"), r.integer("intermediate_size"), tensors)
    tower["layers"][0]["mixer"]["rotary"] = True
    return tower


def siglip(r: Reader, d_model: int) -> dict[str, Any]:
    """SigLIP without its pooling head, and Gemma 3's projection."""
    width, patch = r.integer("hidden_size"), r.integer("patch_size")
    tensors = {
        "patch": [width, r.integer("num_channels", default=3), patch, patch],
        "patch.bias": [width],
        "positions": [(r.integer("image_size") // patch) ** 2, width],
        "norm": [2, width],
        "projector": [width, d_model],
        "projector.norm": [width],
    }
    heads = r.integer("num_attention_heads")
    return encoder(width, r.integer("num_hidden_layers"), heads, r.integer("intermediate_size"), tensors)


def moonvit(r: Reader, d_model: int) -> dict[str, Any]:
    """Kimi's MoonViT and its patch merger."""
    width, patch = r.integer("vt_hidden_size"), r.integer("patch_size")
    merge = r.need("merge_kernel_size")
    joined = width * merge[0] * merge[1]
    tensors = {
        "patch": [width, 3, patch, patch],
        "patch.bias": [width],
        "positions": [r.integer("init_pos_emb_height"), r.integer("init_pos_emb_width"), width],
        "norm": [2, width],
        "projector.norm": [2, width],
        "projector.in": [joined, joined],
        "projector.in.bias": [joined],
        "projector.out": [d_model, joined],
        "projector.out.bias": [d_model],
    }
    heads = r.integer("vt_num_attention_heads")
    return encoder(width, r.integer("vt_num_hidden_layers"), heads, r.integer("vt_intermediate_size"), tensors)
