"""Towers with what joins them: MiniCPM-V, Muse Glimmer, Aria, ERNIE-4.5-VL, Nemotron Omni, Voxtral Realtime, Janus."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.audio import stem
from inferplan.models.huggingface.towers.beside import AUDIO, VISION, Beside, Media, audio, vision
from inferplan.models.huggingface.towers.parts import (
    Tensors,
    block,
    conv,
    copies,
    feed_forward,
    heads_of,
    linear,
    norm,
    pair,
    patch_conv,
    patches,
    tower,
)
from inferplan.models.huggingface.towers.vit import headless


def minicpm_vision(r: Reader) -> dict[str, Any]:
    """MiniCPM-V 4.6's: SigLIP without its head, and attention in windows that merges patches half way up."""
    found = headless(r)
    width, (high, wide) = found["d_model"], pair(r, "window_kernel_size")
    joined, inner = width * high * wide, r.integer("intermediate_size") * high * wide
    tensors = linear("inserted.qkv", width, 3 * width) | linear("inserted.o", width, width)
    tensors |= norm("inserted.norm", width) | norm("inserted.joined", joined)
    found["tensors"] |= tensors | feed_forward("inserted", [joined, inner, width])
    r.skip("insert_layer_id")
    return found


def minicpm(m: Media) -> None:
    """Norms and pairs of matrices, each over four patches that were joined."""
    width, times = 4 * m.width(VISION), m.outer.integer("merger_times", default=1)
    own = norm("norm", width) | linear("0", width, width) | linear("1", width, m.width(VISION))
    tensors = {f"merger.{name}": shape for name, shape in copies(times - 1, own).items()}
    m.add(VISION, tensors | norm("projector.norm", width) | feed_forward("projector", [width, width, m.d_model]))
    m.outer.skip("insert_layer_id", "image_size", "downsample_mode", "merge_kernel_size", "patch_size")
    m.outer.skip("drop_vision_last_layer")


def muse_vision(r: Reader) -> dict[str, Any]:
    """Muse's: most layers attend within windows."""
    width, heads, count = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("num_hidden_layers")
    layer = block(heads, heads_of(r, width, heads), r.integer("intermediate_size"), rotary=True)
    tensors = linear("patch", 3 * r.integer("patch_temporal") * r.integer("patch_size") ** 2, width, bias=False)
    tensors |= {"positions": [r.integer("pos_emb_height") * r.integer("pos_emb_width"), width]}
    r.skip("layer_types", "max_position_embeddings", "merge_size", "window_size")
    return tower(width, [{"repeat": count, **layer}], tensors | norm("norm.before", width) | norm("norm", width))


def muse(m: Media) -> None:
    """Three matrices without biases."""
    m.untied()
    inner = m.outer.integer("projector_hidden_size")
    widths = [m.outer.integer("out_hidden_size"), inner, inner, m.d_model]
    m.add(VISION, feed_forward("projector", widths, bias=False))


def aria(m: Media) -> None:
    """Learned queries attend to the patches, a feed-forward (2410.05993)."""
    width = m.width(VISION)
    stated = m.outer.get("projector_patch_to_query_dict") or {"1225": 128, "4900": 256}
    queries = m.outer.integer("max_value_projector_patch_to_query_dict", default=max(stated.values()))
    tensors: Tensors = {"queries": [queries, width]}
    for name in "qkv":
        tensors |= linear(f"cross.{name}", width, width, bias=False)
    tensors |= (
        linear("cross.qkv", width, 3 * width) | linear("cross.o", width, width) | linear("cross.out", width, width)
    )
    tensors |= norm("cross.norms", width, 4) | norm("projector.norm", width)
    m.add(VISION, tensors | feed_forward("projector", [width, m.d_model, m.d_model], bias=False))


def ernie_vision(r: Reader) -> dict[str, Any]:
    """ERNIE-4.5-VL's: rotary positions over patches of any shape."""
    width, heads = r.integer("hidden_size"), r.integer("num_heads")
    layer = block(heads, heads_of(r, width, heads), r.integer("intermediate_size"), rotary=True)
    tensors = linear("patch", r.integer("in_channels") * r.integer("patch_size") ** 2, width, bias=False)
    return tower(width, [{"repeat": r.integer("depth"), **layer}], tensors | norm("norm", width))


def ernie(m: Media) -> None:
    """Patches joined in space, then in time; and the experts that only tokens of images are sent to."""
    own = m.tables[VISION]
    flat = m.width(VISION) * own.integer("spatial_merge_size") ** 2
    deep = flat * own.integer("temporal_merge_size")
    tensors = feed_forward("merger.space", [flat, flat, flat]) | norm("merger.space.norm", flat)
    tensors |= feed_forward("merger.time", [deep, flat, flat]) | norm("merger.time.norm", flat)
    tensors |= linear("projector", flat, m.d_model) | norm("projector.norm", m.d_model, 1)
    experts, width = m.text.integer("moe_num_experts"), m.text.need("moe_intermediate_size")[1]
    kinds = m.text.items("mlp_layer_types", m.text.integer("num_hidden_layers")) or []
    sparse: Tensors = {"router": [experts, m.d_model], "router.bias": [experts]}
    sparse |= {"experts.gate_up": [experts, 2 * width, m.d_model], "experts.down": [experts, m.d_model, width]}
    m.add(VISION, tensors | copies(kinds.count("sparse"), sparse))


def nemotron(m: Media) -> None:
    """A pixel shuffle, a norm, two matrices."""
    m.outer.only("vision_hidden_size", m.width(VISION))
    if m.outer.get("audio_config") is not None:
        raise m.outer.refuse("audio_config", "the tower of sound of this family is not known")
    if m.text.integer("num_nextn_predict_layers", default=0):
        m.add(VISION, norm("norm", m.width(VISION)))
    joined = m.width(VISION) * int(1 / (m.outer.get("downsample_ratio") or 0.5)) ** 2
    inner = m.outer.integer("projector_hidden_size")
    m.add(VISION, norm("projector.norm", joined, 1) | feed_forward("projector", [joined, inner, m.d_model], bias=False))


def realtime_audio(r: Reader) -> dict[str, Any]:
    """Voxtral Realtime's: causal, windowed, gated, RMSNorm; of the biases of q, k and v those of keys are left out."""
    width, heads, count = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("num_hidden_layers")
    head_dim = r.optional("head_dim") or heads_of(r, width, heads)
    style = {"gated": True, "rotary": True, "qkv_bias": False, "mlp_bias": False, "causal": True}
    layer = block(heads, head_dim, r.integer("intermediate_size"), out_bias=True, **style)
    layer["mixer"]["window"] = r.optional("sliding_window")
    own: Tensors = {"layers.qv_bias": [2, heads * head_dim], "layers.down_bias": [width]}
    r.only("num_key_value_heads", heads)
    r.skip("vocab_size", "max_position_embeddings")
    tensors = stem(r, width) | norm("norm", width, 1) | copies(count, own)
    return tower(width, [{"repeat": count, **layer}], tensors, "rms")


def realtime(m: Media) -> None:
    """Joined frames, two matrices; and what a delay of the transcript scales each layer of the decoder by."""
    m.outer.only("hidden_size", m.d_model)
    joined = m.width(AUDIO) * m.outer.integer("downsample_factor")
    m.add(AUDIO, feed_forward("projector", [joined, m.d_model, m.d_model], bias=False))
    delays = linear("delays.0", m.d_model, 32, bias=False) | linear("delays.1", 32, m.d_model, bias=False)
    m.add(AUDIO, copies(m.text.integer("num_hidden_layers"), delays))


def janus_vision(r: Reader) -> dict[str, Any]:
    """Janus's understanding tower: SigLIP without its head."""
    width, heads, count = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("num_hidden_layers")
    d_ff = int(width * r.need("mlp_ratio"))
    layer = block(heads, heads_of(r, width, heads), d_ff, qkv_bias=r.flag("attention_bias", True))
    tensors = patch_conv(r, width) | {"positions": [patches(r), width]} | norm("norm", width)
    if r.flag("use_qk_norm", False):
        tensors |= {"layers.qk_norms": [count, 4, width]}
    out = r.integer("projection_dim")
    tensors |= feed_forward("projector", [width, *[out] * r.integer("depth")])
    r.skip("num_image_tokens", "hidden_dropout_rate")
    return tower(width, [{"repeat": count, **layer}], tensors)


def hunyuan_vision(r: Reader) -> dict[str, Any]:
    """Hunyuan-OCR's: positions of the largest image, convolutions that join, words that mark rows and images."""
    width, heads, out = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("text_hidden_size")
    r.only("num_key_value_heads", heads)
    layer = block(heads, heads_of(r, width, heads), r.integer("intermediate_size"))
    side, merge = r.integer("max_image_size") // r.integer("patch_size"), r.integer("spatial_merge_size")
    tensors = patch_conv(r, width) | {"positions": [side**2 + 1, width]}
    tensors |= norm("merger.norm", width, 1) | conv("merger.0", width, 2 * width, merge, merge)
    tensors |= linear("merger.1", 2 * width, 4 * width) | linear("projector", 4 * width, out)
    tensors |= norm("projector.norm", out, 1) | {"newline": [4 * width], "marks": [3, out]}
    r.skip("interpolate_mode", "img_max_token_num", "min_image_size", "max_vit_seq_len", "out_hidden_size")
    r.skip("temporal_patch_size")
    return tower(width, [{"repeat": r.integer("num_hidden_layers"), **layer}], tensors)


def nano_audio(r: Reader) -> dict[str, Any]:
    """Fun-ASR's: attention with a depthwise convolution over its values; the first layer reads stacked frames."""
    width, heads, count = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("num_hidden_layers")
    layer = block(heads, heads_of(r, width, heads), r.integer("intermediate_size"))
    inputs = r.integer("num_mel_bins") * r.integer("num_stacked_frames")
    if inputs < width:
        raise r.refuse("num_stacked_frames", "its frames are narrower than the layers")
    tensors = {"layers.memory": [count, width, r.integer("fsmn_kernel_size")], **norm("norm", width, 4)}
    tensors |= {"first.qkv": [3, width, inputs - width], "first.norm": [2, inputs - width]}
    r.skip("num_timestamp_prediction_layers", "max_position_embeddings")
    return tower(width, [{"repeat": count, **layer}], tensors)


def nano(m: Media) -> None:
    """Two matrices, then layers over what they put out."""
    own = m.part("adaptor_config", "")
    width, heads = own.integer("hidden_size"), own.integer("num_attention_heads")
    layer = block(heads, heads_of(own, width, heads), own.integer("intermediate_size"))
    tensors = feed_forward("projector", [m.width(AUDIO), own.integer("projector_hidden_size"), width])
    own.skip("projector_hidden_act")
    m.towers["adaptor"] = tower(width, [{"repeat": own.integer("num_hidden_layers"), **layer}], tensors)


TOWERS = {
    "hunyuan_vl_vision": hunyuan_vision,
    "fun_asr_nano_encoder": nano_audio,
    "minicpmv4_6_vision": minicpm_vision,
    "minicpmv4_7_vision": minicpm_vision,
    "minicpm_ocr_vision": minicpm_vision,
    "muse_glimmer_vision": muse_vision,
    "ernie4_5_vl_moe_vision": ernie_vision,
    "voxtral_realtime_encoder": realtime_audio,
    "janus_vision_model": janus_vision,
}

JOINED: dict[str, Beside] = {
    "hunyuan_vl": vision("hunyuan_vl_vision", lambda media: None, "im_start_id", "im_end_id", "im_newline_id"),
    "fun_asr_nano": audio("fun_asr_nano_encoder", nano),
    "minicpmv4_6": vision("minicpmv4_6_vision", minicpm),
    "minicpmv4_7": vision("minicpmv4_7_vision", minicpm),
    "minicpm_ocr": vision("minicpm_ocr_vision", minicpm),
    "muse_glimmer": vision("muse_glimmer_vision", muse),
    "aria": vision("idefics3_vision", aria),
    "ernie4_5_vl_moe": vision("ernie4_5_vl_moe_vision", ernie),
    "nemotron_h_omni": vision("radio", nemotron, "video_temporal_patch_size"),
    "voxtral_realtime": audio("voxtral_realtime_encoder", realtime, "audio_length_per_tok", "default_num_delay_tokens"),
}
"""Further rows of the table of what stands beside a language model."""
