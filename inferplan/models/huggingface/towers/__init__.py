"""Encoders of images and sound beside a language model: a table of towers and one of what joins them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferplan.models.huggingface.class_defaults import CLASS_DEFAULTS
from inferplan.models.huggingface.inert import inert
from inferplan.models.huggingface.reader import ACTIVATION, SYNONYMS, Reader
from inferplan.models.huggingface.towers import (
    audio,
    conformer,
    discrete,
    documents,
    encoders,
    flamingo,
    folded,
    frames_and_sound,
    gemma,
    qwen,
    resamplers,
    stacked,
    transcribe,
    vit,
)
from inferplan.models.huggingface.towers.beside import Beside, Media
from inferplan.models.huggingface.towers.defaults import DEFAULTS, OUTER_TEXT_DEFAULTS
from inferplan.models.huggingface.towers.joins import (
    JOINED,
    TIED_BY_DEFAULT,
    TIED_BY_EITHER,
    TIED_BY_NESTED,
    TIED_BY_NONE,
    UNFLAGGED,
)

__all__ = [
    "BESIDE",
    "SPEAKING",
    "TIED_BY_DEFAULT",
    "TIED_BY_EITHER",
    "TIED_BY_NESTED",
    "TIED_BY_NONE",
    "TOWERS",
    "UNFLAGGED",
    "text_defaults",
    "towers",
]

TOWERS: dict[str, Callable[[Reader], dict[str, Any]]] = {
    **vit.TOWERS,
    **qwen.TOWERS,
    **gemma.TOWERS,
    **audio.TOWERS,
    **conformer.TOWERS,
    **documents.TOWERS,
    **resamplers.TOWERS,
    **folded.TOWERS,
    **frames_and_sound.TOWERS,
    **stacked.TOWERS,
    **flamingo.TOWERS,
}
"""What builds a tower, by the ``model_type`` of its table."""

SPEAKING = ("qwen2_5_omni", "qwen3_omni_moe")
"""Types whose talker and vocoder are counted beside the thinker."""

BESIDE: dict[str, Beside] = {
    **JOINED,
    **documents.JOINED,
    **resamplers.JOINED,
    **discrete.JOINED,
    **folded.JOINED,
    **frames_and_sound.JOINED,
    **stacked.JOINED,
    **gemma.JOINED,
    **flamingo.JOINED,
    **transcribe.JOINED,
    **audio.JOINED,
}
"""What stands beside the language model, by the ``model_type`` of the whole config."""

_WITHOUT_SHAPE = ("layer_scale_init_value", "drop_path_rate", "layerdrop")


def towers(outer: Reader, text: Reader, d_model: int) -> tuple[list[dict[str, Any]], list[str]]:
    """The towers that the config describes, and notes: those that are not counted, fields that it leaves out.

    Raises ``SpecError`` for a field of a known tower that is not understood.
    """
    kind = str(outer.get("model_type") or "").lower()
    beside = BESIDE.get(kind)
    vision = outer.config.get("vision_config")
    if beside is None or (isinstance(vision, dict) and "vt_hidden_size" in vision):
        return _other(outer, d_model)
    media, notes = Media(outer, text, d_model), []
    outer.skip(*beside.ignored)
    text.skip(*beside.text_ignored)
    for key, default in beside.towers.items():
        table = outer.table(key)
        if table is None:
            if key not in outer.config:
                notes.append(f"the config has no {key}: its tower is not counted")
            continue
        beside.released(table)
        stated = str(table.get("model_type") or default)
        which = stated if stated in TOWERS else default if stated == kind else ""
        if not which:
            raise table.refuse(f"model_type = {stated!r}", f"no tower of that kind is known for {kind}")
        table.fill(DEFAULTS.get(which, {}))
        table.skip(*inert(which))
        table.skip(*ACTIVATION, *_WITHOUT_SHAPE)
        media.tables[key] = table
        media.towers[key] = TOWERS[which](table)
    if len(media.towers) == len(beside.towers) or (beside.partial and media.towers):
        beside.join(media)
    for table in media.tables.values():
        table.require_read(f"tower of a {kind} config")
    notes += [note for table in media.tables.values() for note in table.taken()]
    return [{"name": key.removesuffix("_config"), **tower} for key, tower in media.towers.items()], [
        *notes,
        *media.notes,
    ]


def text_defaults(outer: Reader, text: Reader, family: str = "") -> None:
    """Give a language model what its class says where its table says nothing.

    family: whose class it is where the table has no ``model_type``.
    """
    kind = str(outer.get("model_type") or "").lower()
    within = outer is not text
    if within and kind in BESIDE and BESIDE[kind].encodes:
        text.config |= {name: outer.config.get(name) for name in ("architectures", "id2label", "num_labels")}
        outer.skip("id2label", "num_labels")
    said = str(text.get("model_type") or family)
    own = CLASS_DEFAULTS.get(said, CLASS_DEFAULTS.get(family, {}))
    text.fill(own | (OUTER_TEXT_DEFAULTS.get(kind, {}) if within else {}), SYNONYMS)


def _other(outer: Reader, d_model: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Towers of configs that no class of transformers reads; a note for each that is not counted."""
    found, notes = [], []
    for key in ("vision_config", "audio_config"):
        table = outer.table(key)
        if table is None:
            continue
        kind = str(table.get("model_type") or "")
        if key == "vision_config" and "vt_hidden_size" in table.config:
            found.append(encoders.moonvit(table, d_model))
        else:
            notes.append(f"the tower of {key} ({kind or 'no model_type'}) is not counted")
    return found, notes
