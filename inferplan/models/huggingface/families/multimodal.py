"""Language models that stand in configs of several modalities, where they are not a family of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from inferplan.models.huggingface import decoder, early, latent, modern, special
from inferplan.models.huggingface.dialect import Dialect, Flag, Layer
from inferplan.models.huggingface.families import decoders
from inferplan.models.huggingface.reader import HEAD_DIM, HEADS, LAYERS, WIDTH, Reader

Build = Callable[[Reader, Dialect], dict[str, Any]]

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


def _captions(r: Reader, d: Dialect) -> dict[str, Any]:
    """GIT: BERT's layers, whose norms stand behind their parts."""
    return decoder.decoder(r, d) | {"final_norm": False}


def _unified(r: Reader, d: Dialect) -> dict[str, Any]:
    """Gemma 4 without per-layer embeddings and experts."""
    r.only("hidden_size_per_layer_input", 0)
    r.config["hidden_size_per_layer_input"] = None
    return special.gemma4(r, d)


def _equal_heads(r: Reader, d: Dialect) -> dict[str, Any]:
    """DeepSeek-OCR 2: the class takes the width over the heads, whatever ``head_dim`` says."""
    r.only("head_dim", r.integer(*WIDTH) // r.integer(*HEADS))
    return decoder.decoder(r, d)


def _kyutai(r: Reader, d: Dialect) -> dict[str, Any]:
    """Moshi's layers; a step reads a word and a code of each codebook, whose rows are the embedding's further ones."""
    rows = r.integer("num_codebooks") * r.integer("codebook_vocab_size") + 1
    r.skip("codec_config", "frame_size")
    notes = ["what makes codes of sound (codec_config) is not counted"]
    return early.moshi(r, d) | {"ends": {"tables": {"codes": rows}}, "notes": notes}


def _kosmos(attention: dict[str, Any], tables: dict[str, int]) -> Build:
    """Kosmos: layer norms within feed-forwards. attention: further fields of it; tables: beside the embedding."""
    named = early.renamed(embed_dim="hidden_size", layers="num_hidden_layers", attention_heads="num_attention_heads")

    def build(r: Reader, d: Dialect) -> dict[str, Any]:
        fields = named(r, d)
        for layer in modern.walk(fields["layers"]):
            layer["mixer"] = layer["mixer"] | attention
            layer["ffn"] = layer["ffn"] | {"inner_norm": "layer"}
        return fields | ({"ends": {"tables": tables}} if tables else {})

    return build


_KOSMOS = replace(
    _PLAIN,
    norm="layer",
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    gated=False,
    kv_default=True,
    tied=True,
    rotary=False,
    fixed={"add_cross_attention": (False,)},
    ignored=("layerdrop",),
)

FAMILIES: dict[str, Dialect] = {
    "kosmos_2_text_model": replace(_KOSMOS, build=_kosmos({"out_norm": "layer"}, {})),
    "kosmos_2_5_text_model": replace(_KOSMOS, build=_kosmos({}, {"segments": 2})),
    "kyutai_speech_to_text": replace(_PLAIN, build=_kyutai, kv_default=True),
    "chameleon": replace(
        _PLAIN,
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        mlp_bias=("mlp_bias", False),
        qk_norm=("layer_per_head", True),
        kv_default=True,
        ignored=("swin_norm",),
    ),
    "deepseek_ocr2_text": replace(
        _PLAIN,
        build=_equal_heads,
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        kv_default=True,
        fixed={"mlp_bias": (False,)},
        moe=decoder.first_dense,
    ),
    "glm4v_text": replace(_PLAIN, qkv_bias=True, norms=4),
    "glm_ocr_text": replace(_PLAIN, norms=4),
    "mllama_text_model": replace(_PLAIN, build=_passed),
    "molmo2_text": replace(
        _PLAIN,
        qkv_bias=_BIAS,
        qk_norm=("head", True),
        head_dim=True,
        fixed={"qk_norm_type": ("qwen3",), "norm_after": (False,), "attention_bias": (False,)},
    ),
    "cosmos3_edge_text": replace(
        _PLAIN, gated=False, activation="relu2", qkv_bias=_BIAS, out_bias=_BIAS, mlp_bias=("mlp_bias", False)
    ),
    "git": replace(
        _PLAIN,
        build=_captions,
        norm="layer",
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        gated=False,
        kv_default=True,
        rotary=False,
        positions=0,
        embedding_norm=True,
        head_bias=True,
        ignored=("num_image_with_embedding", "position_embedding_type"),
    ),
    "muse_glimmer_text": replace(
        _PLAIN,
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        head_dim=True,
        norms=4,
        attention={"output_gate": True},
        ignored=("qk_scale_factor", "layer_rope_theta", "post_norm_eps"),
    ),
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
    "qwen3_omni_moe_text": replace(decoders.FAMILIES["qwen3_moe"], build=_floored(decoder.decoder)),
    "phi4_multimodal": replace(_PLAIN, kv_default=True, windows=decoder.every_layer),
}

ALIASES = {
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

_CANVAS = "it denoises a canvas that attends to a cache beside it, fed by its own last logits: no layer kind does that"
_STREAMS = "its streams are joined by low-rank hyper-connections, and its class gives no size of its indexer"
_IMAGE_READER = "its encoder reads an image, not tokens: no row of encoder-decoders does"

UNKNOWN: dict[str, str] = {
    "idefics": "a layer that attends to an image stands before the others, for a text too: no layer kind is one",
    "unlimited_ocr_text": "its layers keep the whole prompt and slide over what is written: no mask here does that",
    "glm5_next_text": "its indexer chooses among pooled keys: no layer kind has that indexer",
    "qwen4_exp": _STREAMS,
    "qwen4_exp_text": _STREAMS,
    "diffusion_gemma": _CANVAS,
    "diffusion_gemma_text": _CANVAS,
    "muse_spark_text": "its experts work in a narrower width under norms, and its residuals have gates: no layer does",
    "blip_text_model": _IMAGE_READER,
    "pix2struct_text_model": _IMAGE_READER,
    "pp_formulanet_text": _IMAGE_READER,
    "vision-encoder-decoder": "its two halves are models of any two families",
    "udop": "its encoder joins patches of an image with the words of a page: no layer kind does that",
    "evolla": "its language model reads a protein through adapters in some of its layers: no layer kind has those",
    "pi0": "it puts out movements, by steps of flow matching over a second stack of layers: no layer kind does that",
}
"""Families that are known and not covered, and what they need."""
