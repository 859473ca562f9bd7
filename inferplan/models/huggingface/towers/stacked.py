"""Towers behind towers, and encoders of convolutions alone: DeepSeek-OCR 2, Granite 4 Vision,
Kosmos, VibeVoice."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.beside import VISION, Beside, Media, vision
from inferplan.models.huggingface.towers.documents import sam
from inferplan.models.huggingface.towers.parts import (
    Tensors,
    block,
    conv,
    copies,
    heads_of,
    linear,
    norm,
    patches,
    tower,
)
from inferplan.models.huggingface.towers.qformer import qformer
from inferplan.models.huggingface.towers.vit import plain


def _queries(r: Reader) -> dict[str, Any]:
    """Qwen2's layers over an image and learned queries, one set for each of two resolutions."""
    width, heads = r.integer("hidden_size"), r.integer("num_attention_heads")
    kv_heads = r.integer("num_key_value_heads", default=heads)
    r.only("use_sliding_window", False)
    style = {"bias": False, "qkv_bias": True, "gated": True, "rotary": True, "kv_heads": kv_heads}
    layer = block(heads, heads_of(r, width, heads), r.integer("intermediate_size"), **style)
    r.skip("vocab_size", "max_window_layers", "sliding_window", "max_position_embeddings", "layer_types")
    r.skip("tie_word_embeddings", "hidden_act")
    tensors: Tensors = {"queries.768": [144, width], "queries.1024": [256, width], **norm("norm", width, 1)}
    return tower(width, [{"repeat": r.integer("num_hidden_layers"), **layer}], tensors, "rms")


def deepseek_ocr2(m: Media) -> None:
    """SAM, its neck and two convolutions, a language model's layers in the place of CLIP, one matrix (2601.20552)."""
    whole = m.part(VISION, "deepseek_ocr2_vision")
    fine = m.within(whole, "sam_config", "deepseek_ocr2_sam_vision_model")
    behind = m.within(whole, "encoder_config", "deepseek_ocr2_encoder")
    whole.only("model_type", "deepseek_ocr2_vision")
    fine.only("model_type", "deepseek_ocr2_sam_vision_model")
    behind.only("model_type", "deepseek_ocr2_encoder")
    first, last = sam(fine), _queries(behind)
    _shrinks(fine, first, last["d_model"])
    last["tensors"] |= linear("projector", last["d_model"], m.d_model) | {"separator": [m.d_model]}
    m.towers["sam_config"], m.towers["encoder_config"] = first, last


def unlimited(m: Media) -> None:
    """As DeepSeek-OCR: CLIP's layers behind SAM's, one matrix over what both put out."""
    whole = m.part(VISION, "unlimited_ocr_vision")
    fine = m.within(whole, "sam_config", "unlimited_ocr_sam_vision_model")
    behind = m.within(whole, "encoder_config", "unlimited_ocr_vision_encoder")
    for table, kind in ((whole, "vision"), (fine, "sam_vision_model"), (behind, "vision_encoder")):
        table.only("model_type", f"unlimited_ocr_{kind}")
        table.skip("hidden_act")
    first = sam(fine)
    width, layers = plain(behind)
    tensors: Tensors = {"class": [width], "positions": [patches(behind) + 1, width], **norm("norm.before", width)}
    behind.skip("num_channels")
    joined = _shrinks(fine, first, width)
    tensors |= linear("projector", joined + width, m.d_model) | {"separators": [2, m.d_model]}
    m.towers["sam_config"], m.towers["encoder_config"] = first, tower(width, layers, tensors)


def _shrinks(fine: Reader, first: dict[str, Any], width: int) -> int:
    """Two convolutions behind SAM, to the width of what reads them."""
    out, (middle, joined) = fine.integer("output_channels"), fine.need("downsample_channels")
    first["tensors"] |= conv("projector.0", out, middle, 3, 3, bias=False)
    first["tensors"] |= conv("projector.1", middle, joined, 3, 3, bias=False)
    if joined != width:
        raise fine.refuse(f"downsample_channels = [..., {joined}]", f"the layers behind are {width} wide")
    return width


def granite4(m: Media) -> None:
    """A Q-Former over windows of the image for each layer of the decoder that reads it."""
    m.outer.need("qformer_config")
    own, width = m.part("qformer_config", ""), m.width(VISION)
    own.only("model_type", "blip_2_qformer")
    for name, said in (("hidden_size", width), ("encoder_hidden_size", width), ("num_attention_heads", width // 64)):
        own.only(name, said)
        own.config[name] = said
    parts = str(m.outer.need("downsample_rate")).split("/")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise m.outer.refuse(f"downsample_rate = {'/'.join(parts)!r}", "it is not a fraction such as 4/8")
    reads, window = (int(part) for part in parts)
    tensors = qformer(own, width, own.flag("use_qformer_text_input", False)) | norm("qformer.norm", width)
    tensors |= norm("norm", width) | {"queries": [reads**2, width], "places": [window**2, width]}
    tensors |= linear("out", width, m.d_model)
    own.skip("vocab_size", "max_position_embeddings", "hidden_act")
    count = len(m.outer.need("deepstack_layer_map")) + 4
    m.add(VISION, {f"projector.{name}": shape for name, shape in copies(count, tensors).items()})
    m.add(VISION, {"newline": [m.d_model]})


def convnext(r: Reader, channels: int) -> Tensors:
    """A depthwise convolution and a feed-forward, each under a norm and a scale."""
    inner = r.integer("ffn_expansion") * channels
    tensors = norm("norms", channels, 2) | {"layer_scales": [2, channels]}
    tensors |= conv("depthwise", 1, channels, r.integer("kernel_size"))
    return tensors | linear("up", channels, inner) | linear("down", inner, channels)


def vibevoice_audio(r: Reader) -> dict[str, Any]:
    """VibeVoice's tokenizer of sound (2508.19205 section 2.1): stages of convolutions, twice as wide each time."""
    width, kernel, channels = r.integer("hidden_size"), r.integer("kernel_size"), r.integer("num_filters")
    ratios, depths = r.need("downsampling_ratios"), r.need("depths")
    if len(depths) != len(ratios) + 1:
        raise r.refuse("depths", f"{len(depths)} of them for {len(ratios)} downsampling_ratios")
    tensors = conv("stem", r.integer("channels"), channels, kernel)
    for stage, depth in enumerate(depths):
        if stage:
            tensors |= conv(f"stage.{stage}.stride", channels, 2 * channels, 2 * ratios[stage - 1])
            channels *= 2
        own = copies(depth, convnext(r, channels))
        tensors |= {f"stage.{stage}.{name}": shape for name, shape in own.items()}
    return tower(width, [], tensors | conv("head", channels, width, kernel))


def vibevoice(m: Media) -> None:
    """Two matrices with a norm between for what is heard, and for what is said."""
    m.untied()
    for table in _VIBEVOICE:
        projected(m, table)


def projected(m: Media, table: str) -> None:
    """Two matrices with a norm between, from a tower to the language model."""
    tensors = linear("projector.0", m.width(table), m.d_model) | norm("projector.norm", m.d_model, 1)
    m.add(table, tensors | linear("projector.1", m.d_model, m.d_model))


_VIBEVOICE = ("acoustic_tokenizer_encoder_config", "semantic_tokenizer_encoder_config")

TOWERS = {
    "vibevoice_acoustic_tokenizer_encoder": vibevoice_audio,
}

JOINED: dict[str, Beside] = {
    "unlimited_ocr": Beside(towers={}, join=unlimited),
    "deepseek_ocr2": Beside(towers={}, join=deepseek_ocr2),
    "granite4_vision": vision(
        "clip_vision_model", granite4, "deepstack_layer_map", "spatial_vision_layer", "spatial_target_layers"
    ),
    "vibevoice_asr": Beside(
        towers=dict.fromkeys(_VIBEVOICE, "vibevoice_acoustic_tokenizer_encoder"),
        join=vibevoice,
        ignored=("acoustic_tokenizer_chunk_size",),
    ),
}
"""Rows of the table of what stands beside a language model."""
