"""Florence-2's tower: a DaViT (2204.03645), whose four resolutions are counted as tensors."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.beside import VISION, Beside, Media
from inferplan.models.huggingface.towers.parts import Tensors, conv, copies, linear, norm, tower

_STAGED = ("depths", "patch_size", "patch_prenorm", "num_heads", "num_groups")


def davit(r: Reader) -> dict[str, Any]:
    """At each resolution a convolution, then pairs of blocks: attention in windows, and attention between channels."""
    widths = r.need("embed_dim")
    staged = {name: r.need(name) for name in _STAGED}
    for name, values in staged.items():
        if len(values) != len(widths):
            raise r.refuse(name, f"it has {len(values)} entries for {len(widths)} resolutions")
    tensors: Tensors = {}
    for stage, (width, before) in enumerate(zip(widths, [r.integer("in_channels"), *widths], strict=False)):
        for name in ("num_heads", "num_groups"):
            if width % staged[name][stage]:
                raise r.refuse(name, f"{staged[name][stage]} of them do not divide the width {width}")
        tensors |= conv(f"stage.{stage}.patch", before, width, *[staged["patch_size"][stage]] * 2)
        tensors |= norm(f"stage.{stage}.norm", before if staged["patch_prenorm"][stage] else width)
        own = _block(width, int(width * r.need("mlp_ratio")), r.flag("qkv_bias", True))
        blocks = copies(2 * staged["depths"][stage], own)
        tensors |= {f"stage.{stage}.{name}": shape for name, shape in blocks.items()}
    r.skip("patch_padding", "patch_stride", "window_size", "activation_function", "max_temporal_embeddings")
    return tower(widths[-1], [], tensors)


def _block(width: int, inner: int, bias: bool) -> Tensors:
    """The same tensors whichever the attention is: two depthwise convolutions, attention, a feed-forward."""
    tensors = norm("norms", width, 4) | conv("depthwise", 2, width, 3, 3, bias=False) | {"depthwise.bias": [2, width]}
    tensors |= linear("qkv", width, 3 * width, bias) | linear("out", width, width)
    return tensors | linear("up", width, inner) | linear("down", inner, width)


def florence(m: Media) -> None:
    """Learned rows and columns, one matrix, a norm (2311.06242 section 3.1)."""
    own, width = m.tables[VISION], m.width(VISION)
    own.only("projection_dim", m.d_model)
    tensors = linear("projector", width, m.d_model, bias=False) | norm("projector.norm", m.d_model)
    m.add(VISION, tensors | {"positions": [own.integer("max_position_embeddings"), width]})


TOWERS = {"florence_vision": davit}

JOINED: dict[str, Beside] = {"florence2": Beside(towers={VISION: "florence_vision"}, join=florence)}
"""Rows of the table of what stands beside a language model."""
