"""Images as words: what makes and draws them, vector-quantised (2203.13131): Chameleon, Emu3, Janus."""

from __future__ import annotations

from math import log2

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.beside import VISION, Beside, Media, vision
from inferplan.models.huggingface.towers.parts import Tensors, conv, copies, feed_forward, linear, norm, tower
from inferplan.models.huggingface.towers.vit import pooling_head

TABLE = "vq_config"


def _normed(name: str, channels: int, codes: int = 0) -> Tensors:
    """A norm of groups; where it draws from codes of a width, their scale and shift of every pixel too."""
    tensors = norm(name, channels)
    for part in ("scale", "shift") if codes else ():
        tensors |= conv(f"{name}.{part}", codes, channels, 1, 1)
    return tensors


def _residual(name: str, inputs: int, outputs: int, codes: int = 0) -> Tensors:
    """Two convolutions under norms, and one of a pixel where the widths differ."""
    tensors = _normed(f"{name}.norm.0", inputs, codes) | conv(f"{name}.0", inputs, outputs, 3, 3)
    tensors |= _normed(f"{name}.norm.1", outputs, codes) | conv(f"{name}.1", outputs, outputs, 3, 3)
    return tensors | (conv(f"{name}.short", inputs, outputs, 1, 1) if inputs != outputs else {})


def _attends(name: str, channels: int, width: int, codes: int = 0) -> Tensors:
    """Attention over the pixels of one resolution."""
    tensors = _normed(f"{name}.norm", channels, codes) | linear(f"{name}.qkv", width, 3 * width)
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


def _drawing(r: Reader, seen: list[bool], width: int | None, codes: int = 0) -> Tensors:
    """The way back, from the last resolution to the pixels: a block more at each resolution."""
    base, multiples = r.integer("base_channels"), r.need("channel_multiplier")
    channels = base * multiples[-1]
    tensors = conv("draw.in", r.integer("latent_channels"), channels, 3, 3)
    tensors |= _residual("draw.middle.0", channels, channels, codes)
    tensors |= _attends("draw.middle.attention", channels, width or channels, codes)
    tensors |= _residual("draw.middle.1", channels, channels, codes)
    for level in reversed(range(len(multiples))):
        for index in range(r.integer("num_res_blocks") + 1):
            tensors |= _residual(f"draw.up.{level}.{index}", channels, base * multiples[level], codes)
            channels = base * multiples[level]
            if seen[level]:
                tensors |= _attends(f"draw.up.{level}.{index}.attention", channels, width or channels, codes)
        if level:
            tensors |= conv(f"draw.up.{level}.stride", channels, channels, 3, 3)
    return tensors | _normed("draw.norm", channels, codes) | conv("draw", channels, r.integer("out_channels"), 3, 3)


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
    """Emu3's (2409.18869 section 2.2): frames are joined in time too, and drawn by the way back."""
    r = m.part(TABLE, "emu3_vqgan")
    r.only("model_type", "emu3_vqgan")
    at, levels = r.get("attn_resolutions") or [], len(r.need("channel_multiplier"))
    seen, width = [level in at for level in range(levels)], r.integer("hidden_size")
    tensors, out = _pyramid(r, seen, width, True)
    steps, codes = int(log2(r.integer("temporal_downsample_factor"))), r.integer("embed_dim")
    tensors |= copies(steps, conv("time.stride", out, out, 4, 3, 3)) | _in_time(r, "time", out)
    latent = r.integer("latent_channels")
    tensors |= conv("codes.in", latent, codes, 3, 1, 1) | {"codes": [r.integer("codebook_size"), codes]}
    tensors |= conv("codes.out", codes, latent, 3, 1, 1) | _in_time(r, "draw.time", latent)
    tensors |= copies(steps, conv("draw.time.stride", latent, latent, 3, 3, 3)) | _drawing(r, seen, width, codes)
    r.skip("num_attention_heads")
    m.towers[TABLE] = tower(codes, [], tensors)
    m.outer.skip("vocabulary_map")


def _in_time(r: Reader, name: str, channels: int) -> Tensors:
    """Pairs of convolutions over frames and pixels, each under a norm."""
    one = norm(f"{name}.norm", channels) | conv(name, channels, channels, 3, 3, 3)
    return copies(2 * r.integer("num_res_blocks"), one)


def janus(m: Media) -> None:
    """What draws in Janus (2410.13848 section 3.1): an autoencoder, and an aligner and a head for its codes."""
    r = m.part(TABLE, "janus_vqgan")
    r.only("model_type", "janus_vqgan")
    levels = len(r.need("channel_multiplier"))
    seen = [level + 1 == levels for level in range(levels)]
    tensors, _ = _pyramid(r, seen, None, True)
    latent, width, codes = r.integer("latent_channels"), r.integer("embed_dim"), r.integer("num_embeddings")
    tensors |= conv("codes.in", latent, width, 1, 1) | conv("codes.out", width, latent, 1, 1)
    tensors |= copies(2, {"codes": [codes, width]}) | _drawing(r, seen, None)
    inner = r.integer("projection_dim")
    tensors |= feed_forward("aligner", [width, *[inner] * max(1, r.integer("num_hidden_layers"))])
    tensors |= feed_forward("head", [r.integer("image_token_embed_dim"), inner, codes])
    r.skip("num_patches")
    m.towers[TABLE] = tower(width, [], tensors)


def janus_original(m: Media) -> None:
    """Janus as DeepSeek stores it: with SigLIP's pooling head, which nothing reads."""
    janus(m)
    width = m.width(VISION)
    m.add(VISION, pooling_head(width, 4 * width))


JOINED: dict[str, Beside] = {
    "multi_modality": vision("janus_vision_model", janus_original),
    "chameleon": Beside(towers={}, join=chameleon),
    "emu3": Beside(towers={}, join=emu3),
    "janus": vision("janus_vision_model", janus),
}
"""Rows of the table of what stands beside a language model."""
