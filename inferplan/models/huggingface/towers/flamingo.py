"""Attention of a decoder to what an encoder puts out, counted beside it (2204.14198 section 2): Idefics."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.beside import VISION, Beside, Media, vision
from inferplan.models.huggingface.towers.parts import Tensors, copies, linear, norm, tower
from inferplan.models.huggingface.towers.vit import clip


def idefics_vision(r: Reader) -> dict[str, Any]:
    """CLIP's under another name for its width."""
    r.config["hidden_size"] = r.integer("embed_dim", "hidden_size")
    return clip(r)


def idefics(m: Media) -> None:
    """A resampler where the config has one; and the attention to images of every ``cross_layer_interval``-th layer.

    A text passes that attention by: its output is nothing where a token has no image before it. The feed-forward
    behind it works on every token, and stands in the decoder.
    """
    own, width = m.part("perceiver_config", "idefics_perciever"), m.width(VISION)
    if m.outer.flag("use_resampler", False):
        m.add(VISION, _resampler(own, width))
    else:
        own.skip(*own.config)
    heads = m.outer.integer("num_attention_heads")
    count = m.outer.integer("num_hidden_layers") // m.outer.integer("cross_layer_interval")
    square, read = (m.d_model, m.d_model), (width, m.d_model)
    layer = norm("norm", m.d_model, 1)
    for name, (inputs, outputs) in {"q": square, "k": read, "v": read, "o": square}.items():
        layer |= linear(name, inputs, outputs, bias=False)
    if m.outer.flag("qk_layer_norms", False):
        layer |= norm("heads.norm", m.d_model // heads)
    kind = m.outer.get("alpha_type")
    if kind not in ("float", "vector"):
        raise m.outer.refuse(f"alpha_type = {kind!r}", "only 'float' and 'vector' are known")
    layer |= {"gates": [2, 1 if kind == "float" else m.d_model]}
    m.towers["cross_attention"] = tower(m.d_model, [], copies(count, layer))
    m.notes.append(
        f"the attention of {count} layers to an image stands beside the decoder: a text passes it by; it has no time"
    )
    m.outer.skip("alpha_initializer", "alphas_initializer_range", "freeze_text_layers", "freeze_lm_head")
    m.outer.skip("freeze_text_module_exceptions", "freeze_vision_layers", "freeze_vision_module_exceptions")


def _resampler(r: Reader, width: int) -> Tensors:
    """Latents attend to the image and to themselves."""
    heads, size, inner = r.integer("resampler_n_heads"), r.integer("resampler_head_dim"), 4 * width
    own = norm("norms", width, 6) | linear("qkv", width, 3 * heads * size, bias=False)
    own |= linear("o", heads * size, width, bias=False)
    own |= linear("up", width, inner, bias=False) | linear("down", inner, width, bias=False)
    if r.flag("qk_layer_norms_perceiver", False):
        own |= norm("heads.norms", size, 4)
    tensors = {"latents": [r.integer("resampler_n_latents"), width]} | norm("norm", width)
    found = tensors | copies(r.integer("resampler_depth"), own)
    r.skip("use_resampler")
    return {f"resampler.{name}": shape for name, shape in found.items()}


TOWERS = {"idefics_vision": idefics_vision}

JOINED: dict[str, Beside] = {
    "idefics": vision("idefics_vision", idefics),
}
"""Rows of the table of what stands beside a language model."""
