"""Language models with a mechanism of their own."""

from __future__ import annotations

from dataclasses import replace

from inferplan.models.huggingface import around_attention, decoder_builders
from inferplan.models.huggingface.decoder import decoder, first_dense
from inferplan.models.huggingface.dialect import Dialect, Flag

_PLAIN = Dialect(build=decoder)
_BIAS: Flag = ("attention_bias", False)

_ASSISTANT = replace(
    _PLAIN,
    build=decoder_builders.assistant,
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
    "gemma4_assistant": _ASSISTANT,
    "gemma4_unified_assistant": _ASSISTANT,
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
