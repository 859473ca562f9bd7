"""What makes codes of sound and sound of them: Mimi, VibeVoice's tokenizers and its diffusion head."""

from __future__ import annotations

from itertools import pairwise
from math import ceil, prod
from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers.beside import AUDIO, Beside, Media
from inferplan.models.huggingface.towers.parts import Tensors, block, conv, copies, linear, norm, tower
from inferplan.models.huggingface.towers.stacked import convnext, projected, vibevoice_audio


def _half(r: Reader) -> Tensors:
    """Convolutions between samples and vectors; the way back has the same but for its biases."""
    base, kernel, ratios = r.integer("num_filters"), r.integer("kernel_size"), r.need("upsampling_ratios")[::-1]
    widths, ends = [base * 2**stage for stage in range(len(ratios) + 1)], (kernel, r.integer("last_kernel_size"))
    squeeze, count, shortcut = (
        r.integer("compress"),
        r.integer("num_residual_layers"),
        r.flag("use_conv_shortcut", False),
    )
    residual, channels, latent = (
        r.integer("residual_kernel_size"),
        r.integer("audio_channels"),
        r.integer("hidden_size"),
    )
    tensors: Tensors = {}
    for way, (first, last) in (("in", ends), ("out", ends[::-1])):
        sides = (base, latent) if way == "in" else (channels, widths[-1])
        tensors |= {f"{way}.first": [base, channels, first], f"{way}.last": [latent, widths[-1], last]}
        tensors |= {f"{way}.first.bias": [sides[0]], f"{way}.last.bias": [sides[1]]}
        for stage, (narrow, wide) in enumerate(pairwise(widths)):
            inner = narrow // squeeze
            own = conv("squeeze", narrow, inner, residual) | conv("spread", inner, narrow, 1)
            own |= conv("shortcut", narrow, narrow, 1) if shortcut else {}
            tensors |= {f"{way}.{stage}.{name}": shape for name, shape in copies(count, own).items()}
            tensors |= {f"{way}.{stage}": [wide, narrow, 2 * ratios[stage]]}
            tensors |= {f"{way}.{stage}.bias": [wide if way == "in" else narrow]}
    return tensors


def mimi(r: Reader) -> dict[str, Any]:
    """Mimi (2410.00037 section 3.3): convolutions, layers, and codebooks, which are buffers and no parameters."""
    width, heads, count = r.integer("hidden_size"), r.integer("num_attention_heads"), r.integer("num_hidden_layers")
    kv_heads, bias = r.integer("num_key_value_heads"), r.flag("attention_bias", False)
    size = r.integer("head_dim", default=width // heads)
    style = {"bias": False, "qkv_bias": bias, "out_bias": bias, "kv_heads": kv_heads, "rotary": True, "causal": True}
    layer = block(heads, size, r.integer("intermediate_size"), **style)
    tensors = _half(r) | {"layer_scales": [2 * count, 2, width]}
    rate, hop = r.integer("sampling_rate"), prod(r.need("upsampling_ratios"))
    own, every = float(r.get("frame_rate") or rate / (2 * hop)), ceil(rate / hop)
    if own != every:
        taps, groups = 2 * int(every / own), r.integer("upsample_groups")
        tensors |= {"downsample": [width, width, taps], "upsample": [width, width // groups, taps]}
    codes = r.integer("vector_quantization_hidden_dimension")
    if codes != width:
        tensors |= {"quantizers": [2, 2, codes, width]}
    r.skip(*_CODES)
    return tower(width, [{"repeat": 2 * count, **layer}], tensors)


_CODES = (
    "codebook_size", "codebook_dim", "num_quantizers", "num_semantic_quantizers", "dilation_growth_rate", "pad_mode",
    "use_causal_conv", "trim_right_ratio", "use_streaming", "sliding_window", "max_position_embeddings",
    "layer_scale_initial_scale", "frame_size", "tie_word_embeddings", "use_cache",
)  # fmt: skip
"""Fields that change no parameter."""


def kyutai(m: Media) -> None:
    m.notes.append("no time is given for what makes codes of sound (codec_config)")


def vibevoice_tokenizer(r: Reader) -> dict[str, Any]:
    """VibeVoice's acoustic tokenizer (2508.19205 section 2.1): its encoder, and the same back to samples."""
    found, kernel, channels = vibevoice_audio(r), r.integer("kernel_size"), r.integer("num_filters")
    ratios, depths, tensors = r.need("downsampling_ratios"), r.need("depths"), found["tensors"]
    tensors |= conv("back.head", channels, r.integer("channels"), kernel)
    for stage, depth in enumerate(depths):
        if stage:
            tensors |= {f"back.{stage}.bias": [channels]}
            tensors |= {f"back.{stage}": [2 * channels, channels, 2 * ratios[stage - 1]]}
            channels *= 2
        own = copies(depth, convnext(r, channels))
        tensors |= {f"back.{stage}.{name}": shape for name, shape in own.items()}
    tensors |= conv("back.stem", r.integer("hidden_size"), channels, kernel)
    r.skip("vae_std")
    return found


_SEMANTIC, _DIFFUSION = "semantic_model_config", "diffusion_head_config"


def vibevoice(m: Media) -> None:
    """The tokenizers' projectors, and what makes sound of a hidden state by steps of diffusion."""
    m.untied()
    m.outer.only("vocab_size", m.text.get("vocab_size"))
    for table in (AUDIO, _SEMANTIC):
        projected(m, table)
    r = m.part(_DIFFUSION, "vibevoice_diffusion")
    width, latent, bias = m.d_model, m.width(AUDIO), r.flag("mlp_bias", False)
    r.only("hidden_size", width)
    r.only("latent_size", latent)
    steps, inner = r.integer("frequency_embedding_size"), r.integer("intermediate_size")
    own = norm("norm", width, 1) | linear("modulation", width, 3 * width, bias=False)
    for name, inputs, outputs in (("gate", width, inner), ("up", width, inner), ("down", inner, width)):
        own |= linear(name, inputs, outputs, bias)
    tensors = copies(r.integer("num_hidden_layers"), own)
    for name, inputs, outputs in (
        *(("noise", latent, width), ("condition", width, width), ("step.0", steps, width)),
        *(("step.1", width, width), ("last.modulation", width, 2 * width), ("last", width, latent)),
    ):
        tensors |= linear(name, inputs, outputs, bias=False)
    r.skip("hidden_act", "diffusion_max_period")
    tensors |= {"latent": [2]}
    m.add(AUDIO, {f"diffusion.{name}": shape for name, shape in tensors.items()})
    m.notes.append("no time is given for what speaks: its steps of diffusion and its tokenizers")


_TOKENIZER = "vibevoice_acoustic_tokenizer"

TOWERS = {"mimi": mimi, _TOKENIZER: vibevoice_tokenizer}

JOINED: dict[str, Beside] = {
    "kyutai_speech_to_text": Beside(towers={"codec_config": "mimi"}, join=kyutai),
    "vibevoice": Beside(
        towers={AUDIO: _TOKENIZER, _SEMANTIC: f"{_TOKENIZER}_encoder"},
        join=vibevoice,
    ),
}
"""Rows of the table of what stands beside a language model."""
