"""Encoders of images and sound beside a language model."""

from __future__ import annotations

from typing import Any

from inferplan.models.huggingface.reader import Reader
from inferplan.models.huggingface.towers import encoders

__all__ = ["towers"]


def towers(outer: Reader, d_model: int) -> tuple[list[dict[str, Any]], list[str]]:
    """The towers that the config describes, and a note for each that is not counted."""
    found, notes = [], []
    for key in ("vision_config", "audio_config"):
        table = outer.table(key)
        if table is None:
            continue
        kind = str(table.get("model_type") or "")
        if key == "vision_config" and kind.startswith(("qwen3_vl", "qwen3_5")):
            found.append(encoders.qwen(table))
        elif key == "vision_config" and kind == "siglip_vision_model" and "mm_tokens_per_image" in outer.config:
            found.append(encoders.siglip(table, d_model))
        elif key == "vision_config" and "vt_hidden_size" in table.config:
            found.append(encoders.moonvit(table, d_model))
        else:
            notes.append(f"the tower of {key} ({kind or 'no model_type'}) is not counted")
    return found, notes
