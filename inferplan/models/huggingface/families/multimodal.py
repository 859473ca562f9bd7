"""Language models that stand in configs of several modalities, where they are not a family of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from inferplan.models.huggingface import (
    decoder,
    decoder_builders,
    gates_and_norms,
    latent,
    mechanisms,
    movements,
)
from inferplan.models.huggingface.dialect import Dialect, Flag, Layer, untimed
from inferplan.models.huggingface.families import decoders
from inferplan.models.huggingface.reader import FFN, HEAD_DIM, HEADS, LAYERS, WIDTH, Reader

Build = Callable[[Reader, Dialect], dict[str, Any]]

_CANVAS = "it denoises a canvas that attends to a separate cache, in a number of steps that depends on its logits"
_PLAIN = Dialect(build=decoder.decoder)
_BIAS: Flag = ("attention_bias", False)


def _floored(build: Build) -> Build:
    """Where the config states no size of heads, the class takes the whole part of width over heads."""

    def rule(r: Reader, d: Dialect) -> dict[str, Any]:
        width, heads = r.integer(*WIDTH), r.integer(*HEADS)
        if r.get(*HEAD_DIM) is None and width % heads:
            r.config["head_dim"] = width // heads
        return build(r, d)

    return rule


def _passed(r: Reader, d: Dialect) -> dict[str, Any]:
    """Llama 3.2 Vision without the layers that attend to an image, which a text passes by."""
    crossing, count = r.need("cross_attention_layers"), r.integer(*LAYERS)
    if len(set(crossing)) != len(crossing) or not set(crossing) < set(range(count)):
        raise r.refuse(f"cross_attention_layers = {crossing!r}", f"they are not some of {count} layers")
    layer = {"mixer": decoder.attention(r, d), "ffn": decoder.mlp(r, d)}
    return decoder.model(r, d, [layer] * (count - len(crossing)))


def _flamingo(r: Reader, d: Dialect) -> dict[str, Any]:
    """Idefics: a feed-forward more before every ``cross_layer_interval``-th layer, behind attention to an image."""
    count, step = r.integer(*LAYERS), r.integer("cross_layer_interval")
    if step < 1 or count % step:
        raise r.refuse(f"cross_layer_interval = {step}", f"its class needs as many such layers as {count} layers have")
    r.config["vocab_size"] = r.integer("vocab_size") + r.integer("additional_vocab_size", default=0)
    layer = {"mixer": decoder.attention(r, d), "ffn": decoder.mlp(r, d)}
    layers: list[Layer] = [{"ffn": layer["ffn"], "norms": 1}, *[layer] * step] * (count // step)
    return decoder.model(r, d, layers)


def _aria(r: Reader, d: Dialect, count: int) -> list[Layer | None]:
    """Every layer; the shared expert is as wide as ``moe_num_shared_experts`` of the others together."""
    width = r.integer("intermediate_size")
    return [decoder.moe(r, d, width, shared_d_ff=width * r.integer("moe_num_shared_experts"))] * count


def _ernie(r: Reader, d: Dialect, count: int) -> list[Layer | None]:
    """The experts of text: those of images stand with the tower. The shared ones see both."""
    kinds, widths = r.items("mlp_layer_types", count), r.need("moe_intermediate_size")
    if kinds is None or not isinstance(widths, list) or len(widths) != 2:
        raise r.refuse("mlp_layer_types or moe_intermediate_size", "one kind a layer and two widths are known")
    shared = widths[0] * r.integer("moe_num_shared_experts", default=0)
    experts = decoder.moe(r, d, widths[0], router_bias=True, **({"shared_d_ff": shared} if shared else {}))
    return [experts if kind == "sparse" else None for kind in kinds]


def _unified(r: Reader, d: Dialect) -> dict[str, Any]:
    """Gemma 4 without per-layer embeddings and experts."""
    r.only("hidden_size_per_layer_input", 0)
    r.config["hidden_size_per_layer_input"] = None
    return decoder_builders.gemma4(r, d)


def _canvas(r: Reader, d: Dialect) -> dict[str, Any]:
    """DiffusionGemma: Gemma 4's layers read a prompt and denoise a canvas; its last logits are fed back."""
    r.config |= {"hidden_size_per_layer_input": None, "attention_k_eq_v": True, "enable_moe_block": True}
    fields = decoder_builders.gemma4(r, d)
    for layer in gates_and_norms.walk(fields["layers"]):
        layer["extras"] = [*layer["extras"], untimed(_CANVAS)]
    width, inner = r.integer(*WIDTH), r.integer(*FFN)
    fed = {"feedback.gate": [inner, width], "feedback.up": [inner, width], "feedback.down": [width, inner]}
    return fields | {"ends": {"tensors": fed | {"feedback.norm": [width]}}}


def _equal_heads(r: Reader, d: Dialect) -> dict[str, Any]:
    """DeepSeek-OCR 2: the class takes the width over the heads, whatever ``head_dim`` says."""
    r.only("head_dim", r.integer(*WIDTH) // r.integer(*HEADS))
    return decoder.decoder(r, d)


_REFERS = "each token sees the whole prompt and a window of the written tokens: no mask here is both"


def _referring(r: Reader, d: Dialect) -> dict[str, Any]:
    """Unlimited-OCR: the cache is that of the prompt; what leaves the window of written tokens is counted too."""
    kinds, window = r.items("layer_types", r.integer(*LAYERS)), r.optional("sliding_window")
    if set(kinds or ["reference_sliding_attention"]) != {"reference_sliding_attention"} or window is None:
        raise r.refuse("layer_types or sliding_window", "only layers of reference_sliding_attention are known here")
    r.config["layer_types"] = r.config["sliding_window"] = None
    fields = _equal_heads(r, d)
    for layer in gates_and_norms.walk(fields["layers"]):
        layer["extras"] = [untimed(_REFERS)]
    note = f"of written tokens the last {window} are kept, and the cache here counts all of them"
    return fields | {"notes": [f"{note}: too much for longer answers"]}


def _molmo(r: Reader, d: Dialect) -> dict[str, Any]:
    """Molmo 2's: words that the embedding alone has are counted with the tower, where there is one."""
    style = {"qwen3": "head", "olmo": "full"}
    kind = r.get("qk_norm_type") or "qwen3"
    if kind not in style:
        raise r.refuse(f"qk_norm_type = {kind!r}", "only qwen3 and olmo are known")
    fields = decoder.decoder(r, replace(d, qk_norm=(style[kind], True)))
    words = 0 if r.prefix else r.integer("additional_vocab_size", default=128)
    return fields | ({"ends": {"tensors": {"words": [words, fields["d_model"]]}}} if words else {})


_OCR = replace(
    _PLAIN,
    qkv_bias=_BIAS,
    out_bias=_BIAS,
    kv_default=True,
    fixed={"mlp_bias": (False,)},
    moe=decoder.first_dense,
)
"""DeepSeek's decoders behind its readers of pages."""

FAMILIES: dict[str, Dialect] = {
    "pi0": Dialect(build=movements.pi0(decoders.FAMILIES["gemma"]), whole=True),
    "chameleon": replace(
        _PLAIN,
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        mlp_bias=("mlp_bias", False),
        qk_norm=("layer_per_head", True),
        kv_default=True,
        ignored=("swin_norm",),
    ),
    "unlimited_ocr_text": replace(_OCR, build=_referring),
    "deepseek_ocr2_text": replace(_OCR, build=_equal_heads),
    "glm4v_text": replace(_PLAIN, qkv_bias=True, norms=4),
    "glm5_next_text": replace(_PLAIN, build=mechanisms.glm5_next, qkv_bias=_BIAS),
    "glm_ocr_text": replace(_PLAIN, norms=4),
    "mllama_text_model": replace(_PLAIN, build=_passed),
    "molmo2_text": replace(
        _PLAIN,
        build=_molmo,
        qkv_bias=_BIAS,
        head_dim=True,
        ignored=("norm_after",),
    ),
    "cosmos3_edge_text": replace(
        _PLAIN, gated=False, activation="relu2", qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias=("mlp_bias", False)
    ),
    "muse_glimmer_text": replace(
        _PLAIN,
        fixed={"attention_bias": (False,)},  # its gates would have none
        head_dim=True,
        norms=4,
        attention={"output_gate": True},
        ignored=("qk_scale_factor", "layer_rope_theta", "post_norm_eps"),
    ),
    "muse_spark_text": replace(
        _PLAIN,
        build=gates_and_norms.muse_spark,
        fixed={"attention_bias": (False,)},  # its gates would have none
        head_dim=True,
        norm="plain",
        embedding_norm=True,
        attention={"output_gate": True},
    ),
    "idefics": replace(_PLAIN, build=_flamingo, kv_default=True),
    "aria_text": replace(_PLAIN, kv_default=True, qkv_bias=_BIAS, out_bias=_BIAS, moe=_aria),
    "ernie4_5_vl_moe_text": replace(
        _PLAIN, tied=True, fixed={"use_bias": (False,)}, moe=_ernie, ignored=("moe_norm_min",)
    ),
    "voxtral_realtime_text": replace(_PLAIN, tied=True, head_dim=True, windows=decoder.every_layer),
    "glm4v_moe_text": replace(
        _PLAIN, build=_floored(decoder.decoder), qkv_bias=("attention_bias", True), moe=decoder.first_dense
    ),
    "mistral4": replace(
        _PLAIN,
        build=latent.latent,
        qkv_bias=_BIAS,
        moe=decoder.first_dense,
        ignored=("rope_interleave", "intermediate_size"),
    ),
    "gemma4_unified_text": replace(decoders.FAMILIES["gemma4_text"], build=_unified),
    "diffusion_gemma_text": replace(
        decoders.FAMILIES["gemma4_text"], build=_canvas, fixed={"attention_bias": (False,)}
    ),
    "qwen3_omni_moe_text": replace(decoders.FAMILIES["qwen3_moe"], build=_floored(decoder.decoder)),
    "phi4_multimodal": replace(_PLAIN, kv_default=True, windows=decoder.every_layer),
}

ALIASES = {
    "diffusion_gemma": "diffusion_gemma_text",
    "muse_spark": "muse_spark_text",
    "qwen4_exp": "qwen4_exp_text",
    "inkling2": "inkling2_text",
    "inkling_mm_model": "inkling_text",
    "glm5_next": "glm5_next_text",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_5_omni_text": "qwen2",
    "paddleocr_vl_text": "ernie4_5",
    "emu3_text_model": "mistral",
    "granite4_vision_text": "granite",
    "granite_docling_text": "granite",
    "hunyuan_vl_text": "hunyuan_v1_dense",
    "gemma4_unified": "gemma4_unified_text",
}
"""Other names of a row."""

UNKNOWN: dict[str, str] = {}
"""Families that are known and not covered, and what they need."""
