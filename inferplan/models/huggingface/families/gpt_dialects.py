"""Decoders in the manner of GPT, 2018 to 2023."""

from __future__ import annotations

from dataclasses import replace

from inferplan.models.huggingface import decoder as d
from inferplan.models.huggingface import gpt_dialects
from inferplan.models.huggingface.dialect import Dialect

_PLAIN = Dialect(build=d.decoder)
_BIASED = replace(
    _PLAIN, norm="layer", qkv_bias=True, out_bias=True, mlp_bias=True, gated=False, kv_default=True, ffn_factor=4
)

FAMILIES: dict[str, Dialect] = {
    "persimmon": replace(
        _BIASED, build=gpt_dialects.persimmon, qk_norm=("layer", True), ffn_factor=None, activation="relu2"
    ),
}

ALIASES: dict[str, str] = {}

UNKNOWN: dict[str, str] = {}
