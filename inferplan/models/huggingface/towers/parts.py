"""The pieces that encoders are written with: tensors by name with their shapes, layers, a whole tower."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from inferplan.models.huggingface.reader import Reader

Tensors = dict[str, list[int]]
"""Tensors outside the layers by name, with their shapes."""


def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> Tensors:
    """A matrix, and its bias."""
    return {name: [outputs, inputs]} | ({f"{name}.bias": [outputs]} if bias else {})


def norm(name: str, width: int, vectors: int = 2) -> Tensors:
    """A norm of ``vectors`` vectors: weight and bias of LayerNorm, the weight alone of RMSNorm."""
    return {name: [vectors, width]}


def conv(name: str, inputs: int, outputs: int, *kernel: int, bias: bool = True) -> Tensors:
    """A convolution, and its bias."""
    return {name: [outputs, inputs, *kernel]} | ({f"{name}.bias": [outputs]} if bias else {})


def feed_forward(name: str, widths: list[int], bias: bool = True) -> Tensors:
    """Matrices one after another: ``widths`` are input, what lies between, output."""
    tensors: Tensors = {}
    for place, (inputs, outputs) in enumerate(pairwise(widths)):
        tensors |= linear(f"{name}.{place}", inputs, outputs, bias)
    return tensors


def copies(count: int, tensors: Tensors) -> Tensors:
    """The same tensors ``count`` times, as one with a further dimension."""
    return {name: [count, *shape] for name, shape in tensors.items()} if count else {}


def heads_of(r: Reader, width: int, heads: int) -> int:
    """The width of one head. Raises ``SpecError`` where the heads do not divide the width."""
    if heads <= 0 or width % heads:
        raise r.refuse("num_attention_heads", f"{heads} heads do not divide the width {width}")
    return width // heads


def block(heads: int, head_dim: int, d_ff: int, **style: Any) -> dict[str, Any]:
    """A layer of attention over everything and a feed-forward.

    style: ``bias`` (all of them), ``qkv_bias``, ``out_bias``, ``mlp_bias``, ``gated``, ``kv_heads``, ``rotary``,
    ``qk_norm``, ``activation``, ``norms``.
    """
    bias = style.get("bias", True)
    mixer = {
        "kind": "attention",
        "heads": heads,
        "kv_heads": style.get("kv_heads", heads),
        "head_dim": head_dim,
        "causal": style.get("causal", False),
        "rotary": style.get("rotary", False),
        "qkv_bias": style.get("qkv_bias", bias),
        "out_bias": style.get("out_bias", bias),
        "qk_norm": style.get("qk_norm", "none"),
    }
    gated = style.get("gated", False)
    ffn = {
        "kind": "mlp",
        "d_ff": d_ff,
        "gated": gated,
        "bias": style.get("mlp_bias", bias),
        "activation": style.get("activation", "silu" if gated else "gelu"),
    }
    return {"mixer": mixer, "ffn": ffn} | ({"norms": style["norms"]} if "norms" in style else {})


def tower(width: int, layers: list[dict[str, Any]], tensors: Tensors, style: str = "layer") -> dict[str, Any]:
    """A tower of the width, its layers and the tensors around them; its name is that of its table."""
    return {"d_model": width, "norm": style, "layers": layers, "tensors": tensors}


def patches(r: Reader) -> int:
    """How many patches an image of the config's size has."""
    high, wide = pair(r, "image_size")
    down, across = pair(r, "patch_size")
    return (high // down) * (wide // across)


def pair(r: Reader, name: str) -> tuple[int, int]:
    """A size: one number for both sides, or one for each."""
    value = r.need(name)
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return int(value[0]), int(value[1])
    return r.integer(name), r.integer(name)


def patch_conv(r: Reader, width: int, bias: bool = True) -> Tensors:
    """The convolution that makes a vector of each patch."""
    return conv("patch", r.integer("num_channels"), width, *pair(r, "patch_size"), bias=bias)
