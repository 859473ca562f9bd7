"""Towers with what joins them: Llama 3.2 Vision, MiniMax-M3, readers of documents, transcribers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inferplan.models.huggingface.reader import Reader
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
from inferplan.models.huggingface.towers.qwen import gated_merger
from inferplan.models.huggingface.towers.vit import headless, plain


def mllama(m: Media) -> None:
    """One matrix from the joined hidden states, and the layers of the decoder that attend to them.

    A request without an image passes those layers by (``MllamaTextModel.forward`` of transformers): they are counted
    beside the decoder, with the eight words that its head does not have.
    """
    if m.text.flag("tie_word_embeddings", False):
        raise m.text.refuse("tie_word_embeddings = True", "the embedding has eight rows more than the head")
    m.add(VISION, linear("projector", m.tables[VISION].integer("vision_output_dim"), m.d_model))
    count, heads = len(m.text.need("cross_attention_layers")), m.text.integer("num_attention_heads")
    style = {"bias": False, "gated": True, "qk_norm": "head", "kv_heads": m.text.integer("num_key_value_heads")}
    layer = block(heads, heads_of(m.text, m.d_model, heads), m.text.integer("intermediate_size"), **style)
    tensors: Tensors = {"gates": [count, 2], "words": [8, m.d_model]}
    m.notes.append(
        f"the {count} layers that attend to an image stand beside the decoder: a text passes them by; they have no time"
    )
    m.towers["cross_attention"] = tower(m.d_model, [{"repeat": count, **layer}] if count else [], tensors, "rms")


def minimax_vision(r: Reader) -> dict[str, Any]:
    """MiniMax-M3's: CLIP's layers with rotary positions over frames and patches."""
    width, layers = plain(r, rotary=True)
    kernel = (r.integer("temporal_patch_size"), *pair(r, "patch_size"))
    r.only("position_embedding_type", "rope")
    r.only("rope_mode", "3d")
    r.skip("image_size", "projection_dim", "vocab_size", "vision_segment_max_frames", "initializer_factor")
    tensors = conv("patch", r.integer("num_channels"), width, *kernel, bias=False)
    return tower(width, layers, tensors | norm("norm.before", width))


def minimax_released(table: Reader) -> None:
    """MiniMax-M3's released tower calls itself CLIP's, and nests what joins its patches."""
    joined = table.table("img_token_compression_config")
    if joined is None or table.get("model_type") != "clip_vision_model":
        return
    joined.only("image_token_compression_method", "patch_merge")
    for name in ("spatial_merge_size", "temporal_patch_size"):
        table.config[name] = joined.integer(name)
    joined.require_read()
    table.config["model_type"] = "minimax_m3_vl_vision"


def minimax(m: Media) -> None:
    """Two matrices a patch, then two over what is joined."""
    inner = m.outer.integer("projector_hidden_size", default=m.d_model)
    merged = m.d_model * m.tables[VISION].integer("spatial_merge_size") ** 2
    m.outer.only("merged_hidden_size", merged)
    m.outer.only("num_reward_heads", 0)
    m.outer.skip("img_token_compression_config", "process_image_mode")  # what the tower's table says too
    m.add(VISION, feed_forward("projector", [m.width(VISION), inner, m.d_model]))
    m.add(VISION, feed_forward("merger", [merged, inner, m.d_model]))


def glm_ocr(r: Reader) -> dict[str, Any]:
    """GLM-OCR's and GLM-5's: norms on queries and keys, no learned positions."""
    width, heads, out = r.integer("hidden_size"), r.integer("num_heads"), r.integer("out_hidden_size")
    biased = r.flag("attention_bias", True)
    layer = block(
        heads,
        heads_of(r, width, heads),
        r.integer("intermediate_size"),
        rotary=True,
        gated=True,
        bias=biased,
        qk_norm="head",
    )
    merge, channels = r.integer("spatial_merge_size"), r.integer("in_channels")
    inner = r.optional("projection_intermediate_size") or out * channels
    tensors = conv("patch", channels, width, r.integer("temporal_patch_size"), *pair(r, "patch_size"))
    tensors |= norm("norm", width, 1) | conv("downsample", width, out, merge, merge) | gated_merger(out, inner)
    r.skip("image_size", "swiglu_limit")
    return tower(width, [{"repeat": r.integer("depth"), **layer}], tensors, "rms")


def aya(m: Media) -> None:
    """A pixel shuffle, a norm, a gated pair of matrices (2505.08751)."""
    joined = m.width(VISION) * m.outer.integer("downsample_factor", default=2) ** 2
    inner = m.outer.integer("alignment_intermediate_size", default=m.d_model)
    m.add(VISION, norm("projector.norm", joined) | linear("projector.0", joined, inner))
    m.add(VISION, linear("projector.1", inner // 2, m.d_model))


def paddle_vision(r: Reader) -> dict[str, Any]:
    """PaddleOCR-VL's: SigLIP's layers with rotary positions too."""
    found = headless(r)
    found["layers"][0]["mixer"]["rotary"] = True
    return found


def paddle(m: Media) -> None:
    """A norm a patch, two matrices over what is joined (2510.14528)."""
    width, merge = m.width(VISION), m.tables[VISION].integer("spatial_merge_size")
    joined = width * merge**2
    m.add(VISION, norm("projector.norm", width) | feed_forward("projector", [joined, joined, m.d_model]))


def lfm3_vision(r: Reader) -> dict[str, Any]:
    """LFM3-VL's: gated convolutions over the image in most layers, attention in the others."""
    width, heads, count = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("num_hidden_layers")
    style = {
        "bias": False,
        "gated": True,
        "rotary": True,
        "qk_norm": "head",
        "kv_heads": r.integer("num_key_value_heads"),
    }
    layer = block(heads, heads_of(r, width, heads), r.integer("intermediate_size"), **style)
    kinds = r.items("layer_types", count)
    if kinds is None or set(kinds) - {"conv", "full_attention"}:
        raise r.refuse(f"layer_types = {kinds!r}", "only conv and full_attention are known here")
    layers = [layer if kind == "full_attention" else {"ffn": layer["ffn"], "norms": 2} for kind in kinds]
    kernel = r.integer("conv_kernel_size")
    own = linear("conv.in", width, 3 * width, bias=False) | linear("conv.out", width, width, bias=False)
    own |= conv("conv.depthwise", 1, width, kernel, kernel, bias=False)
    inputs = r.integer("in_channels") * r.integer("temporal_patch_size") * r.integer("patch_size") ** 2
    tensors = linear("patch", inputs, width, bias=False) | norm("norm", width, 1)
    return tower(width, layers, tensors | copies(kinds.count("conv"), own), "rms")


def lfm3(m: Media) -> None:
    """A norm a patch, two matrices over what is joined."""
    width, merge = m.width(VISION), m.tables[VISION].integer("spatial_merge_size")
    inner, bias = m.outer.integer("projector_hidden_size", default=4096), m.outer.flag("projector_bias", True)
    m.add(VISION, norm("projector.norm", width))
    m.add(VISION, feed_forward("projector", [width * merge**2, inner, m.d_model], bias))


def hyperclova(m: Media) -> None:
    """One matrix after Qwen2.5-VL's tower."""
    m.add(VISION, linear("projector", m.tables[VISION].integer("out_hidden_size"), m.d_model))


def fuyu(m: Media) -> None:
    """No tower: a patch is one matrix."""
    inputs = m.outer.integer("patch_size", default=30) ** 2 * m.outer.integer("num_channels", default=3)
    m.towers[VISION] = tower(m.d_model, [], linear("patch", inputs, m.d_model))


def moss(m: Media) -> None:
    """Joined frames, two matrices, a norm."""
    joined = m.width(AUDIO) * m.outer.integer("audio_merge_size", default=4)
    bias = m.outer.flag("projector_bias", True)
    m.add(AUDIO, feed_forward("projector", [joined, m.d_model, m.d_model], bias) | norm("projector.norm", m.d_model))


def cosmos_vision(r: Reader) -> dict[str, Any]:
    """SigLIP 2's without its pooling head."""
    width, layers = plain(r)
    inputs = r.integer("num_channels") * r.integer("patch_size") ** 2
    tensors = linear("patch", inputs, width) | {"positions": [r.integer("num_patches"), width]} | norm("norm", width)
    return tower(width, layers, tensors)


def cosmos(m: Media) -> None:
    """A norm a patch, two matrices over what is joined."""
    width, merge = m.width(VISION), m.tables[VISION].integer("spatial_merge_size")
    inner = m.outer.integer("projector_hidden_size", default=11520)
    m.untied()
    m.add(VISION, norm("projector.norm", width) | feed_forward("projector", [width * merge**2, inner, m.d_model]))


def sam(r: Reader) -> dict[str, Any]:
    """SAM's encoder (2304.02643): positions by distance in windows and in the layers over everything, a neck."""
    width, heads, count = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("num_hidden_layers")
    head_dim, out = heads_of(r, width, heads), r.integer("output_channels")
    d_ff = r.optional("mlp_dim") or int(width * r.need("mlp_ratio"))
    layer = block(heads, head_dim, d_ff, qkv_bias=r.flag("qkv_bias", True))
    side, window = r.integer("image_size") // r.integer("patch_size"), r.integer("window_size")
    wide = len([index for index in r.need("global_attn_indexes") if 0 <= index < count])
    tensors = patch_conv(r, width)
    if r.flag("use_abs_pos", True):
        tensors |= {"positions": [side, side, width]}
    if r.flag("use_rel_pos", True):
        tensors |= copies(wide, {"distances.wide": [2, 2 * side - 1, head_dim]})
        tensors |= copies(count - wide, {"distances": [2, 2 * (window or side) - 1, head_dim]})
    tensors |= conv("neck.0", width, out, 1, 1, bias=False) | conv("neck.1", out, out, 3, 3, bias=False)
    r.skip("num_pos_feats", "scale", "mlp_ratio")
    return tower(width, [{"repeat": count, **layer}], tensors | norm("neck.norms", out, 4))


def deepseek_hybrid(m: Media) -> None:
    """Both towers halved into one width; the finer one through a second neck and two convolutions (2403.05525)."""
    fine = "high_res_vision_config"
    out = m.tables[fine].integer("output_channels")
    tensors = conv("neck.2", m.width(fine), out, 1, 1, bias=False) | conv("neck.3", out, out, 3, 3, bias=False)
    tensors |= norm("neck.norms.2", out, 4) | {"share": [1]}
    tensors |= conv("projector.0", out, 2 * out, 3, 3, bias=False)
    tensors |= conv("projector.1", 2 * out, 4 * out, 3, 3, bias=False)
    m.add(fine, tensors | linear("projector.2", 4 * out, m.d_model // 2))
    half = m.d_model // 2
    m.add(VISION, linear("projector.0", m.width(VISION), half) | linear("projector.1", m.d_model, m.d_model))


def step_vision(r: Reader) -> dict[str, Any]:
    """Step-3's: scaled residuals, two convolutions of stride 2 behind."""
    # Its class takes the ratio alone, whatever an intermediate_size beside it says.
    r.config["intermediate_size"] = int(r.integer("hidden_size") * r.need("mlp_ratio"))
    width, layers = plain(r, rotary=True)
    count = r.integer("num_hidden_layers")
    tensors = patch_conv(r, width, bias=False) | {"positions": [patches(r), width]}
    tensors |= norm("norm.before", width) | {"layer_scales": [count, 2, width]}
    tensors |= conv("downsample.0", width, 2 * width, 3, 3) | conv("downsample.1", 2 * width, 4 * width, 3, 3)
    r.skip("max_position_embeddings")
    return tower(width, layers, tensors)


def step(m: Media) -> None:
    """One matrix."""
    m.add(VISION, linear("projector", 4 * m.width(VISION), m.d_model, m.outer.flag("projector_bias", False)))
    if m.text.integer("num_nextn_predict_layers", default=0):
        m.notes.append("the prediction modules (num_nextn_predict_layers) are not counted")


def molmo_vision(r: Reader) -> dict[str, Any]:
    """Molmo 2's: a vision transformer without a norm behind."""
    heads, width = r.integer("num_attention_heads"), r.integer("hidden_size")
    style = {"kv_heads": r.integer("num_key_value_heads"), "qkv_bias": r.flag("attention_bias", True)}
    layer = block(heads, r.integer("head_dim"), r.integer("intermediate_size"), out_bias=style["qkv_bias"], **style)
    inputs = r.integer("num_channels") * r.integer("patch_size") ** 2
    tensors = linear("patch", inputs, width) | {"positions": [r.integer("num_position_embeddings"), width]}
    r.skip("image_size")
    return tower(width, [{"repeat": r.integer("num_hidden_layers"), **layer}], tensors)


def molmo(m: Media) -> None:
    """A pool that attends over neighbouring patches of several layers, a gated projection, and words of its own."""
    own = m.part("adapter_config", "molmo2_adapter")
    heads, kv_heads, head_dim = (own.integer(f) for f in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    own.only("hidden_size", m.width(VISION))  # the class joins as many layers of its own width
    width, bias = own.integer("hidden_size"), own.flag("attention_bias", True)
    joined = m.width(VISION) * len(own.need("vision_feature_layer"))
    tensors = linear("pool.q", joined, heads * head_dim, bias) | linear("pool.o", heads * head_dim, width, bias)
    for name in ("k", "v"):
        tensors |= linear(f"pool.{name}", joined, kv_heads * head_dim, bias)
    inner, out, biased = own.integer("intermediate_size"), own.integer("text_hidden_size"), own.flag("mlp_bias", False)
    tensors |= linear("projector.gate", width, inner, biased) | linear("projector.up", width, inner, biased)
    tensors |= linear("projector.down", inner, out, bias=False)
    m.add(VISION, tensors | {"words": [m.text.integer("additional_vocab_size", default=128), m.d_model]})


def docling_vision(r: Reader) -> dict[str, Any]:
    """Granite Docling's: SigLIP without its head, joined at two scales, and for each layer that feeds the decoder."""
    found = headless(r)
    width, out, scale = found["d_model"], r.integer("out_hidden_size"), r.integer("scale_factor")
    levels = r.get("deepstack_visual_indexes")
    stack = 3 if levels is None else len(levels)  # GraniteDoclingVisionConfig: [3, 7, 10]
    for name, side in (("coarse", scale), ("fine", scale // 2))[: 2 if r.flag("use_fine_route", True) else 1]:
        joined = width * side**2
        own = norm("norm", joined) | linear("0", joined, out) | linear("1", out, out)
        found["tensors"] |= linear(f"{name}.projection", joined, out, bias=False)
        found["tensors"] |= {f"{name}.stack.{key}": shape for key, shape in copies(stack, own).items()}
    found["tensors"] |= norm("projector.norm", width) | linear("projector", out, out, bias=False)
    found["tensors"] |= norm("projector.norms", out, 4)
    return found


def radio(r: Reader) -> dict[str, Any]:
    """RADIO (2312.06709): class tokens and registers, scaled residuals."""
    width, heads, count = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("num_hidden_layers")
    if r.flag("use_swiglu_ffn", False):
        raise r.refuse("use_swiglu_ffn = True", "only plain feed-forwards are known here")
    layer = block(heads, heads_of(r, width, heads), int(width * r.need("mlp_ratio")), qkv_bias=r.flag("qkv_bias", True))
    patch = r.integer("patch_size")
    inputs = r.integer("num_channels") * patch**2
    frames = r.integer("video_temporal_patch_size", default=1)
    r.only("patch_dim", inputs)
    r.only("video_patch_dim", inputs * frames)
    tensors = linear("patch", inputs, width, bias=False) | {"layer_scales": [count, 2, width]}
    tensors |= {"positions": [(r.integer("max_img_size") // patch) ** 2, width]}
    if frames > 1:
        tensors |= linear("patch.video", inputs * frames, width, bias=False)
    tensors |= {"registers": [r.integer("num_cls_tokens") + r.integer("num_registers"), width]}
    r.skip("image_size", "layerscale_value", "norm_mean", "norm_std")
    return tower(width, [{"repeat": count, **layer}], tensors)


TOWERS = {
    "minimax_m3_vl_vision": minimax_vision,
    "glm_ocr_vision": glm_ocr,
    "glm5_next_vision": glm_ocr,
    "paddleocr_vl_vision": paddle_vision,
    "lfm3_vl_vision": lfm3_vision,
    "cosmos3_edge_vision": cosmos_vision,
    "sam_vision_model": sam,
    "step3p5_vision": step_vision,
    "molmo2_vision": molmo_vision,
    "granite_docling_vision": docling_vision,
    "radio": radio,
}

JOINED: dict[str, Beside] = {
    "mllama": vision("mllama_vision_model", mllama),
    "minimax_m3_vl": replace(vision("minimax_m3_vl_vision", minimax), released=minimax_released),
    "glm_ocr": vision("glm_ocr_vision"),
    "glm5_next": vision("glm5_next_vision"),
    "aya_vision": vision("siglip_vision_model", aya, "adapter_layer_norm_eps"),
    "paddleocr_vl": vision("paddleocr_vl_vision", paddle),
    "lfm3_vl": vision("lfm3_vl_vision", lfm3),
    "hyperclovax_vision_v2": vision("qwen2_5_vl_vision", hyperclova),
    "fuyu": Beside(towers={}, join=fuyu),
    "moss_transcribe_diarize": audio("moss_transcribe_diarize_audio", moss),
    "cosmos3_edge": vision("cosmos3_edge_vision", cosmos),
    "deepseek_vl_hybrid": Beside(
        towers={VISION: "siglip_vision_model", "high_res_vision_config": "sam_vision_model"}, join=deepseek_hybrid
    ),
    "step3p7": vision("step3p5_vision", step),
    "molmo2": vision("molmo2_vision", molmo),
    "granite_docling": vision("granite_docling_vision", lambda media: None, "density_router_threshold"),
}
"""Further rows of the table of what stands beside a language model."""
