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
_TABLED = replace(_BIASED, tied=True, rotary=False, positions=0)

FAMILIES: dict[str, Dialect] = {
    "biogpt": replace(_TABLED, positions=2, ffn_factor=None, ignored=("layerdrop",)),
    "ctrl": replace(
        _BIASED,
        build=gpt_dialects.renamed(dff="n_inner"),
        tied=True,
        rotary=False,
        head_bias=True,
        activation="relu",
    ),
    "gpt_neo": replace(_TABLED, build=gpt_dialects.gpt_neo, qkv_bias=False),
    "gpt_neox_japanese": replace(
        _BIASED, build=gpt_dialects.neox_japanese, tied=True, qkv_bias=False, out_bias=False, mlp_bias=False
    ),
    "moshi": replace(_PLAIN, build=gpt_dialects.moshi, kv_default=True),
    "openai-gpt": replace(_TABLED, build=gpt_dialects.first_gpt),
    "persimmon": replace(
        _BIASED, build=gpt_dialects.persimmon, qk_norm=("layer", True), ffn_factor=None, activation="relu2"
    ),
    "xglm": replace(
        _BIASED,
        build=gpt_dialects.renamed(attention_heads="num_attention_heads"),
        tied=True,
        rotary=False,
        ffn_factor=None,
        fixed={"add_cross_attention": (False,)},
        ignored=("layerdrop",),
    ),
}

ALIASES: dict[str, str] = {}

UNKNOWN: dict[str, str] = {}
