"""Encoder-decoders of text and of sound."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from inferplan.models.huggingface import encoder_decoder as e
from inferplan.models.huggingface.dialect import Dialect

_BIASED = Dialect(build=partial(e.bart, offset=2), tied=True, norm="layer", qkv_bias=True, activation="gelu")
_T5 = Dialect(build=e.t5, tied=True)

FAMILIES: dict[str, Dialect] = {
    "t5": _T5,
    "mt5": _T5,
    "umt5": replace(_T5, build=partial(e.t5, every=True)),
    "bart": replace(_BIASED, embedding_norm=True),
    "whisper": replace(_BIASED, build=e.whisper, attention={"key_bias": False}),
    "moonshine": replace(_BIASED, build=e.moonshine),
    "cohere_asr": replace(_BIASED, build=e.cohere_asr, tied=False),
}

ALIASES: dict[str, str] = {}
"""Other names of a row."""

UNKNOWN: dict[str, str] = {}
"""Families that are known and not covered, and what they need."""
