"""The table of families: one row a ``model_type``. A new dialect is a row in one of the files here."""

from __future__ import annotations

from inferplan.models.huggingface.dialect import Dialect
from inferplan.models.huggingface.families import (
    decoders,
    early,
    encoder_decoders,
    encoders,
    mechanisms,
    multimodal,
    rare,
    recent,
    uncommon,
)

__all__ = ["ALIASES", "FAMILIES", "UNKNOWN"]

FAMILIES: dict[str, Dialect] = {
    **decoders.FAMILIES,
    **encoder_decoders.FAMILIES,
    **encoder_decoders.SOUND,
    **encoder_decoders.CONFORMERS,
    **encoder_decoders.PICTURES,
    **mechanisms.FAMILIES,
    **recent.FAMILIES,
    **rare.FAMILIES,
    **early.FAMILIES,
    **encoders.FAMILIES,
    **uncommon.FAMILIES,
    **multimodal.FAMILIES,
}

ALIASES: dict[str, str] = {
    **decoders.ALIASES,
    **encoder_decoders.ALIASES,
    **mechanisms.ALIASES,
    **recent.ALIASES,
    **early.ALIASES,
    **encoders.ALIASES,
    **uncommon.ALIASES,
    **multimodal.ALIASES,
}
"""Other names of a row."""

UNKNOWN: dict[str, str] = {
    **decoders.UNKNOWN,
    **mechanisms.UNKNOWN,
    **encoder_decoders.UNKNOWN,
    **recent.UNKNOWN,
    **early.UNKNOWN,
    **encoders.UNKNOWN,
    **uncommon.UNKNOWN,
    **multimodal.UNKNOWN,
}
"""Families that are known and not covered, and what they need."""
