"""The table of families: one row a ``model_type``. A new dialect is a row in one of the files here."""

from __future__ import annotations

from inferplan.models.huggingface.dialect import Dialect
from inferplan.models.huggingface.families import (
    decoders,
    encoder_decoders,
    encoders,
    gated_decoders,
    gpt_dialects,
    mechanisms,
    multimodal,
    single_models,
)

__all__ = ["ALIASES", "FAMILIES", "UNKNOWN"]

FAMILIES: dict[str, Dialect] = {
    **decoders.FAMILIES,
    **encoder_decoders.FAMILIES,
    **mechanisms.FAMILIES,
    **gated_decoders.FAMILIES,
    **single_models.FAMILIES,
    **gpt_dialects.FAMILIES,
    **encoders.FAMILIES,
    **multimodal.FAMILIES,
}

ALIASES: dict[str, str] = {
    **decoders.ALIASES,
    **encoder_decoders.ALIASES,
    **mechanisms.ALIASES,
    **gated_decoders.ALIASES,
    **gpt_dialects.ALIASES,
    **encoders.ALIASES,
    **multimodal.ALIASES,
}
"""Other names of a row."""

UNKNOWN: dict[str, str] = {
    **decoders.UNKNOWN,
    **encoder_decoders.UNKNOWN,
    **gated_decoders.UNKNOWN,
    **gpt_dialects.UNKNOWN,
    **encoders.UNKNOWN,
    **multimodal.UNKNOWN,
}
"""Families that are known and not covered, and what they need."""
