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
    """Kimi's MoonViT and its patch merger; K3's second one has no biases (vLLM and SGLang ``kimi_k3_vl.py``)."""
    width, patch = r.integer("vt_hidden_size"), r.integer("patch_size")
    merge = r.need("merge_kernel_size")
    joined = width * merge[0] * merge[1]
    if r.get("mm_projector_type") == "patchmergerv2":
        return _moonvit3d(r, d_model, joined)
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


def _moonvit3d(r: Reader, d_model: int, joined: int) -> dict[str, Any]:
    """K3's: RMS norms, heads of a width of their own, two matrices and a norm behind them."""
    for name in ("attn_bias", "linear_bias", "patch_embed_proj_bias"):
        r.only(name, False)
    r.only("norm_type", "rmsnorm")
    width, patch, heads = r.integer("vt_hidden_size"), r.integer("patch_size"), r.integer("vt_num_attention_heads")
    tensors = {
        "patch": [width, 3, patch, patch],
        "positions": [r.integer("init_pos_emb_height"), r.integer("init_pos_emb_width"), width],
        "norm": [width],
        "projector.in": [joined, joined],
        "projector.out": [d_model, joined],
        "projector.norm": [d_model],
    }
    found = encoder(width, r.integer("vt_num_hidden_layers"), heads, r.integer("vt_intermediate_size"), tensors)
    (layers,) = found["layers"]
    layers["mixer"] |= {"head_dim": r.integer("qkv_hidden_size") // heads, "qkv_bias": False, "out_bias": False}
    layers["ffn"]["bias"] = False
    return found | {"norm": "rms"}
