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
