"""Language models with a mechanism of their own."""

from __future__ import annotations

from dataclasses import replace

from inferplan.models.huggingface import around_attention, music, segments_and_bytes
from inferplan.models.huggingface.decoder import decoder, first_dense
from inferplan.models.huggingface.dialect import Dialect, Flag

_PLAIN = Dialect(build=decoder)
_BIAS: Flag = ("attention_bias", False)

_ASSISTANT = replace(
    _PLAIN,
    build=segments_and_bytes.assistant,
    whole=True,
    tied=True,
    qkv_bias=_BIAS,
    out_bias=_BIAS,
    head_dim=True,
    activation="gelu",
    qk_norm=("head", True),
    attention={"value_norm": True},
)
"""Gemma 4's row, with what stands around an assistant's layers."""

FAMILIES: dict[str, Dialect] = {
    "jetmoe": replace(_PLAIN, build=segments_and_bytes.jetmoe, tied=True),
    "doge": replace(
        _PLAIN,
        build=segments_and_bytes.doge,
        kv_default=True,
        qk_norm=("head", True),
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        mlp_bias=("mlp_bias", False),
    ),
    "xlnet": replace(_PLAIN, build=segments_and_bytes.xlnet, tied=True, gated=False, mlp_bias=True),
    "cpmant": replace(_PLAIN, build=segments_and_bytes.cpmant, tied=True, activation="gelu"),
    "trocr": replace(_PLAIN, build=segments_and_bytes.trocr, tied=True, gated=False, mlp_bias=True),
    "gemma4_assistant": _ASSISTANT,
    "gemma4_unified_assistant": _ASSISTANT,
    "musicgen": replace(_PLAIN, build=music.musicgen, gated=False),
    "musicgen_melody": replace(_PLAIN, build=music.melody, gated=False),
    "blt": replace(_PLAIN, build=segments_and_bytes.blt),
    "axk2": replace(_PLAIN, build=around_attention.axk2, moe=first_dense, qkv_bias=_BIAS, ignored=("rope_interleave",)),
    "zaya": replace(
        _PLAIN,
        build=around_attention.zaya,
        tied=True,
        head_dim=True,
        qkv_bias=_BIAS,
        out_bias=_BIAS,
        head_bias=("lm_head_bias", False),
    ),
    "inkling_text": replace(_PLAIN, build=around_attention.inkling),
    "inkling2_text": replace(_PLAIN, build=around_attention.inkling2),
    "qwen4_exp_text": replace(
        _PLAIN, build=around_attention.qwen4, qkv_bias=_BIAS, out_bias=_BIAS, qk_norm=("head", True), head_dim=True
    ),
}

ALIASES: dict[str, str] = {}
"""Other names of a row."""
