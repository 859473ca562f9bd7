"""Images as words of the vocabulary: the encoders that make them, vector-quantised (2203.13131): Chameleon, Emu3."""

from __future__ import annotations

from math import log2

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.beside import Beside, Media
from inferplan.models.huggingface.towers.parts import Tensors, conv, copies, linear, norm, tower

TABLE = "vq_config"


def _residual(name: str, inputs: int, outputs: int) -> Tensors:
    """Two convolutions under norms of groups, and one of a pixel where the widths differ."""
    tensors = norm(f"{name}.norm.0", inputs) | conv(f"{name}.0", inputs, outputs, 3, 3)
    tensors |= norm(f"{name}.norm.1", outputs) | conv(f"{name}.1", outputs, outputs, 3, 3)
    return tensors | (conv(f"{name}.short", inputs, outputs, 1, 1) if inputs != outputs else {})


def _attends(name: str, channels: int, width: int) -> Tensors:
    """Attention over the pixels of one resolution."""
    tensors = norm(f"{name}.norm", channels) | linear(f"{name}.qkv", width, 3 * width)
    return tensors | linear(f"{name}.out", width, width)


def _pyramid(r: Reader, seen: list[bool], width: int | None, attends_between: bool) -> tuple[Tensors, int]:
    """Convolutions from the pixels to the last resolution, and what they put out.

    seen: at which resolutions every block attends too. width: of that attention where it is not the channels'.
    """
    base, multiples = r.integer("base_channels"), r.need("channel_multiplier")
    tensors, channels = conv("in", r.integer("in_channels"), base, 3, 3), base
    for level, multiple in enumerate(multiples):
        for index in range(r.integer("num_res_blocks")):
            tensors |= _residual(f"down.{level}.{index}", channels, base * multiple)
            channels = base * multiple
            if seen[level]:
                tensors |= _attends(f"down.{level}.{index}.attention", channels, width or channels)
        if level + 1 < len(multiples):
            tensors |= conv(f"down.{level}.stride", channels, channels, 3, 3)
    tensors |= _residual("middle.0", channels, channels) | _residual("middle.1", channels, channels)
    if attends_between:
        tensors |= _attends("middle.attention", channels, width or channels)
    out = r.integer("latent_channels") * (2 if r.flag("double_latent", False) else 1)
    return tensors | norm("out.norm", channels) | conv("out", channels, out, 3, 3), out


def chameleon(m: Media) -> None:
    """Chameleon's (2405.09818 section 2.1): nothing of it draws."""
    r = m.part(TABLE, "chameleon_vqgan")
    r.only("model_type", "chameleon_vqgan")
    side, levels = r.integer("resolution"), len(r.need("channel_multiplier"))
    attends, at = r.get("attn_type") == "vanilla", r.get("attn_resolutions") or []
    tensors, _ = _pyramid(r, [attends and side // 2**level in at for level in range(levels)], None, attends)
    width, latent = r.integer("embed_dim"), r.integer("latent_channels")
    tensors |= conv("codes.in", latent, width, 1, 1) | conv("codes.out", width, latent, 1, 1)
    m.towers[TABLE] = tower(width, [], tensors | {"codes": [r.integer("num_embeddings"), width]})
    m.outer.skip("vocabulary_map", "model_parallel_size")


def emu3(m: Media) -> None:
    """Emu3's (2409.18869 section 2.2): frames are joined in time too. The half that draws is not served."""
    r = m.part(TABLE, "emu3_vqgan")
    r.only("model_type", "emu3_vqgan")
    at = r.get("attn_resolutions") or []
    levels, width = len(r.need("channel_multiplier")), r.integer("hidden_size")
    tensors, out = _pyramid(r, [level in at for level in range(levels)], width, True)
    tensors |= copies(int(log2(r.integer("temporal_downsample_factor"))), conv("time.stride", out, out, 4, 3, 3))
    time = norm("time.norm", out) | conv("time", out, out, 3, 3, 3)
    tensors |= copies(2 * r.integer("num_res_blocks"), time)
    codes, latent = r.integer("embed_dim"), r.integer("latent_channels")
    tensors |= conv("codes.in", latent, codes, 3, 1, 1) | {"codes": [r.integer("codebook_size"), codes]}
    r.skip("out_channels", "num_attention_heads")
    m.towers[TABLE] = tower(codes, [], tensors)
    m.outer.skip("vocabulary_map")
    m.notes.append("what draws images (the decoder of vq_config) is not counted")


JOINED: dict[str, Beside] = {
    "chameleon": Beside(towers={}, join=chameleon),
    "emu3": Beside(towers={}, join=emu3),
}
"""Rows of the table of what stands beside a language model."""
