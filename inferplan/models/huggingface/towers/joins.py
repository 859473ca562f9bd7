"""What stands between towers and the language model, by the ``model_type`` of the whole config."""

from __future__ import annotations

from inferplan.models.huggingface.towers import speaks
from inferplan.models.huggingface.towers.beside import AUDIO, VISION, Beside, Media, audio, vision
from inferplan.models.huggingface.towers.parts import feed_forward, linear, norm
from inferplan.models.huggingface.towers.qformer import perceiver, qformer


def _layers_read(m: Media) -> int:
    """How many hidden states of the tower are joined."""
    read = m.outer.get("vision_feature_layer")
    return len(read) if isinstance(read, list) else 1


def llava(m: Media) -> None:
    """Two matrices (2310.03744)."""
    bias = m.outer.flag("multimodal_projector_bias", True)
    m.add(VISION, feed_forward("projector", [m.width(VISION) * _layers_read(m), m.d_model, m.d_model], bias))


def llava_next(m: Media) -> None:
    """LLaVA's, and the vector that ends a row of tiles."""
    llava(m)
    m.add(VISION, {"newline": [m.d_model]})


def mistral3(m: Media) -> None:
    """A norm, a merger of neighbouring patches, two matrices."""
    width, merge = m.width(VISION), m.outer.integer("spatial_merge_size", default=2)
    bias = m.outer.flag("multimodal_projector_bias", False)
    tensors = norm("projector.norm", width, 1) | linear("projector.merger", width * merge**2, width, bias=False)
    widths = [width * _layers_read(m), m.d_model, m.d_model]
    m.add(VISION, tensors | feed_forward("projector", widths, bias))


def internvl(m: Media) -> None:
    """A pixel shuffle, a norm, two matrices."""
    ratio = m.outer.get("downsample_ratio") or 0.5
    joined = m.width(VISION) * int(1 / ratio) ** 2
    m.add(VISION, norm("projector.norm", joined) | feed_forward("projector", [joined, m.d_model, m.d_model]))


def gemma3(m: Media) -> None:
    """One matrix after pooling, under a norm."""
    width = m.width(VISION)
    m.add(VISION, {"projector": [width, m.d_model], "projector.norm": [width]})


def paligemma(m: Media) -> None:
    """One matrix (2407.07726), 2048 wide where the config does not say, as ``PaliGemmaConfig`` has it."""
    m.outer.skip("hidden_size", "vocab_size")
    m.add(VISION, linear("projector", m.width(VISION), m.outer.integer("projection_dim", default=2048)))


def idefics3(m: Media) -> None:
    """A pixel shuffle and one matrix."""
    joined = m.width(VISION) * m.outer.integer("scale_factor", default=2) ** 2
    m.add(VISION, linear("projector", joined, m.d_model, bias=False))


def vbert(m: Media) -> None:
    """A pixel shuffle and one matrix (2510.01149)."""
    joined = m.width(VISION) * m.outer.integer("pixel_shuffle_factor", default=4) ** 2
    m.add(VISION, linear("projector", joined, m.d_model, bias=False))


def llama4(m: Media) -> None:
    """One matrix."""
    m.add(VISION, linear("projector", m.tables[VISION].integer("vision_output_dim"), m.d_model, bias=False))


def kimi(m: Media) -> None:
    """A norm and two matrices over neighbouring patches that were joined."""
    high, wide = m.tables[VISION].need("merge_kernel_size")
    normed = m.outer.integer("projection_hidden_size", default=m.width(VISION))
    joined = m.width(VISION) * high * wide
    m.add(VISION, norm("projector.norm", normed) | feed_forward("projector", [joined, joined, m.d_model]))


def qwen2_audio(m: Media) -> None:
    """One matrix (2407.10759)."""
    m.untied()
    m.add(AUDIO, linear("projector", m.width(AUDIO), m.d_model))


def flamingo(m: Media) -> None:
    """Two matrices behind a pool of neighbouring frames (2507.08128)."""
    bias = m.outer.flag("projector_bias", True)
    m.add(AUDIO, feed_forward("projector", [m.width(AUDIO), m.d_model, m.d_model], bias))


def voxtral(m: Media) -> None:
    """Neighbouring frames joined to the feed-forward's width, two matrices (2507.13264)."""
    m.outer.only("hidden_size", m.d_model)
    m.untied()
    joined = m.tables[AUDIO].integer("intermediate_size")
    m.add(AUDIO, feed_forward("projector", [joined, m.d_model, m.d_model], bias=False))


def glmasr(m: Media) -> None:
    """As Voxtral's, twice as wide between, with biases."""
    joined = m.tables[AUDIO].integer("intermediate_size")
    m.add(AUDIO, feed_forward("projector", [joined, 2 * m.d_model, m.d_model]))


def lfm2(m: Media) -> None:
    """A pixel shuffle, a norm, two matrices."""
    bias = m.outer.flag("projector_bias", True)
    joined = m.width(VISION) * m.outer.integer("downsample_factor", default=2) ** 2
    if m.outer.flag("projector_use_layernorm", True):
        m.add(VISION, norm("projector.norm", joined))
    inner = m.outer.integer("projector_hidden_size", default=2560)
    m.add(VISION, feed_forward("projector", [joined, inner, m.d_model], bias))


def cohere2(m: Media) -> None:
    """A pixel shuffle, a gated pair of matrices."""
    joined = m.width(VISION) * m.outer.integer("downsample_factor", default=2) ** 2
    inner = m.outer.integer("alignment_intermediate_size", default=36864)
    m.add(VISION, linear("projector.0", joined, inner) | linear("projector.1", inner // 2, m.d_model))


def deepseek_vl(m: Media) -> None:
    """Two matrices (2403.05525)."""
    m.add(VISION, feed_forward("projector", [m.width(VISION), m.d_model, m.d_model]))


def ovis2(m: Media) -> None:
    """A table of visual words."""
    rows = m.tables[VISION].integer("vocab_size")
    m.add(VISION, {"words": [rows, m.outer.integer("hidden_size", default=1536)]})
    m.outer.skip("vocab_size")
    if m.outer.get("tie_word_embeddings") is False:  # its head has the outer sizes, which its embedding has not
        m.outer.only("hidden_size", m.d_model)
        m.outer.only("vocab_size", m.text.integer("vocab_size"))


def gemma4(m: Media) -> None:
    """One matrix from each tower."""
    for table, own in m.tables.items():
        width = own.optional("output_proj_dims") or m.width(table)
        m.add(table, linear("projector", width, m.d_model, bias=False))


def phi4(m: Media) -> None:
    """Two matrices from images, and two pairs from sound: alone, and beside an image."""
    width, rate = m.width(AUDIO), m.tables[AUDIO].integer("downsample_rate")
    m.add(VISION, feed_forward("projector", [m.width(VISION), m.d_model, m.d_model]))
    m.add(VISION, {"separators": [2, m.width(VISION)]})
    for name in ("speech", "vision_speech"):
        m.add(AUDIO, feed_forward(f"projector.{name}", [width * rate, m.d_model, m.d_model]))


def granite_speech(m: Media) -> None:
    """A Q-Former over windows of frames, one matrix."""
    own = m.part("projector_config", "blip_2_qformer")
    own.only("model_type", "blip_2_qformer")
    queries = m.outer.integer("window_size") // m.outer.integer("downsample_rate")
    width = own.integer("hidden_size")
    tensors = (
        qformer(own, own.integer("encoder_hidden_size"), own.flag("use_qformer_text_input", False))
        | {"queries": [queries, width]}
        | norm("qformer.norm", width)
    )
    m.add("encoder_config", tensors | linear("projector", width, m.d_model))
    own.skip("vocab_size", "max_position_embeddings")


def blip2(m: Media) -> None:
    """A Q-Former and one matrix (2301.12597)."""
    own = m.part("qformer_config", "blip_2_qformer")
    width = own.integer("hidden_size")
    text = own.flag("use_qformer_text_input", False)
    tensors = qformer(own, m.width(VISION), text) | norm("qformer.norm", width)
    own.skip("vocab_size", "max_position_embeddings", "encoder_hidden_size")
    tensors |= {"queries": [m.outer.integer("num_query_tokens"), width]}
    m.add(VISION, tensors | linear("projector", width, m.d_model))
    m.outer.skip("image_text_hidden_size", "use_decoder_only_language_model")


def phi3_vision(m: Media) -> None:
    """Four patches joined, two matrices, a vector behind a row and one between views (vLLM's models/phi3v.py)."""
    joined = 4 * m.width(VISION)
    tensors = feed_forward("projector", [joined, m.d_model, m.d_model])
    m.add(VISION, tensors | {"newline": [joined], "separator": [joined]})


def idefics2(m: Media) -> None:
    """A gated projection to the language model's width, a resampler."""
    own = m.part("perceiver_config", "idefics2_perceiver")
    inner = m.text.integer("intermediate_size")
    tensors = linear("projector.gate", m.width(VISION), inner, bias=False)
    tensors |= linear("projector.up", m.width(VISION), inner, bias=False)
    m.add(VISION, tensors | linear("projector.down", inner, m.d_model, bias=False) | perceiver(own, m.d_model))


_LORA = ("has_lora_adapter",)
_OMNI = ("position_id_per_seconds", "seconds_per_chunk")

TIED_BY_EITHER = frozenset(
    {
        "glm4v",
        "glm4v_moe",
        "glm_ocr",
        "hunyuan_vl",
        "llava",
        "llava_next_video",
        "llava_onevision",
        "minimax_m3_vl",
        "paddleocr_vl",
        "qwen2_5_vl",
        "qwen2_vl",
    }
)
"""Types whose class ties where the nested config says so, whatever the outer one says (transformers 5.23)."""

TIED_BY_NESTED = frozenset({"llama4"})
"""Types whose language model is a class of its own, which knows the nested flag alone."""

TIED_BY_DEFAULT = frozenset(
    {
        "aya_vision",
        "cohere2_vision",
        "deepseek_vl",
        "deepseek_vl_hybrid",
        "diffusion_gemma",
        "ernie4_5_vl_moe",
        "fun_asr_nano",
        "gemma3",
        "gemma3n",
        "gemma4",
        "gemma4_unified",
        "glmasr",
        "granite_docling",
        "granite_speech",
        "granite_speech_plus",
        "hunyuan_vl",
        "hyperclovax_vision_v2",
        "internvl",
        "janus",
        "kimi_k25",
        "lfm2_vl",
        "lfm3_vl",
        "lighton_ocr",
        "minicpm_ocr",
        "mistral3",
        "moss_transcribe_diarize",
        "ovis2",
        "paddleocr_vl",
        "paligemma",
        "qwen3_asr",
        "voxtral_realtime",
    }
)
"""Types whose class takes true where the outer config has no ``tie_word_embeddings``; the others take false."""

UNFLAGGED = frozenset({"blip-2"})
"""Types whose class has no flag beside that of its language model, which is true where its config says nothing."""

TIED_BY_NONE = frozenset({"audioflamingo3", "molmo2", "musicflamingo"})
"""Types whose class has a head of its own, whatever the flags say."""

_SIGLIP = {VISION: "siglip_vision_model"}
_CUT = ("initializer_cutoff_factor", "classifier_bias")
_TIMES = ("audio_frame_step", "max_position_embeddings", "head_dim")
"""Of the rotation of frames by their time."""

JOINED: dict[str, Beside] = {
    "llava": vision("clip_vision_model", llava),
    "llava_next": vision("clip_vision_model", llava_next),
    "llava_next_video": vision("clip_vision_model", llava_next),
    "llava_onevision": vision("siglip_vision_model", llava_next),
    "mistral3": vision("pixtral", mistral3),
    "lighton_ocr": vision("pixtral", mistral3),
    "mistral_large4": vision("pixtral", mistral3),
    "internvl": vision("internvl_vision", internvl),
    "qianfan_ocr": vision("qianfan_ocr_vision", internvl),
    "gemma4": Beside(towers={VISION: "gemma4_vision", AUDIO: "gemma4_audio"}, join=gemma4, partial=True),
    "gemma4_unified": Beside(
        towers={VISION: "gemma4_unified_vision", AUDIO: "gemma4_unified_audio"}, join=gemma4, partial=True
    ),
    "phi4_multimodal": Beside(towers={VISION: "phi4_multimodal_vision", AUDIO: "phi4_multimodal_audio"}, join=phi4),
    "granite_speech": Beside(towers={"encoder_config": "granite_speech_encoder"}, join=granite_speech, ignored=_LORA),
    "granite_speech_plus": Beside(
        towers={"encoder_config": "granite_speech_plus_encoder"}, join=granite_speech, ignored=_LORA
    ),
    "blip-2": vision("blip_2_vision_model", blip2),
    "idefics2": vision("idefics2_vision", idefics2),
    "phi3_v": vision("clip_vision_model", phi3_vision),
    "gemma3": vision("siglip_vision_model", gemma3),
    "paligemma": Beside(
        towers={VISION: "siglip_vision_model"},
        join=paligemma,
        text_ignored=("use_bidirectional_attention", "num_image_tokens"),
    ),
    "idefics3": vision("idefics3_vision", idefics3),
    "smolvlm": vision("smolvlm_vision", idefics3),
    "modernvbert": Beside(towers=_SIGLIP, join=vbert, ignored=_CUT, encodes=True),
    "llama4": vision("llama4_vision_model", llama4),
    "kimi_k25": vision("kimi_k25_vision", kimi, "projection_layer_norm_eps"),
    "qwen2_vl": vision("qwen2_vl_vision"),
    "qwen2_5_vl": vision("qwen2_5_vl_vision"),
    "exaone4_5": vision("exaone4_5_vision"),
    "qwen3_vl": vision("qwen3_vl_vision"),
    "qwen3_vl_moe": vision("qwen3_vl_moe_vision"),
    "qwen3_5": vision("qwen3_5_vision"),
    "qwen3_5_moe": vision("qwen3_5_moe_vision"),
    "glm4v": vision("glm4v_vision"),
    "cohere_compass": vision("cohere_compass_vision"),
    "glm46v": vision("glm4v_vision"),
    "glmga": vision("glm4v_vision"),
    "glm4v_moe": vision("glm4v_moe_vision"),
    "lfm2_vl": vision("siglip2_vision_model", lfm2),
    "cohere2_vision": vision("siglip_vision_model", cohere2),
    "deepseek_vl": vision("siglip_vision_model", deepseek_vl),
    "ovis2": vision("ovis2_vision", ovis2),
    "qwen2_audio": audio("qwen2_audio_encoder", qwen2_audio),
    "audioflamingo3": audio("audioflamingo3_encoder", flamingo),
    "musicflamingo": audio("audioflamingo3_encoder", flamingo, *_TIMES),
    "voxtral": audio("voxtral_encoder", voxtral),
    "glmasr": audio("glmasr_encoder", glmasr),
    "qwen2_5_omni_thinker": Beside(
        towers={VISION: "qwen2_5_omni_vision_encoder", AUDIO: "qwen2_5_omni_audio_encoder"},
        join=speaks.qwen25_omni,
        ignored=_OMNI,
    ),
    "qwen3_omni_moe_thinker": Beside(
        towers={VISION: "qwen3_omni_moe_vision_encoder", AUDIO: "qwen3_omni_moe_audio_encoder"},
        join=speaks.qwen3_omni,
        ignored=_OMNI,
    ),
}
