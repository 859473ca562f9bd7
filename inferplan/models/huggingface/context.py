"""The longest context of a config: its positions, and what the scaling of rotary positions makes of them."""

from __future__ import annotations

from inferplan.models.huggingface.reader import LARGEST, Reader

_ALREADY_SCALED = ("su", "longrope", "llama3")
"""Kinds of scaling whose configs write the scaled positions."""


def context(r: Reader, positions: int | None, family: str) -> tuple[int | None, list[str]]:
    """The longest context in tokens, and a note where scaling made it.

    The rule of vLLM (``_get_and_verify_max_len`` of ``vllm/config/model.py``): positions times ``factor``, for YaRN
    (2309.00071) ``original_max_position_embeddings`` times ``factor``. Gemma 3 writes the scaled positions. Raises
    ``SpecError`` for a factor that is no number above 0.
    """
    table = next((found for name in ("rope_parameters", "rope_scaling") if (found := r.table(name))), None)
    if table is None or family.startswith("gemma3"):
        return positions, []
    # Gemma and others write one table for each kind of layer; the one that scales decides.
    kinds = [inner for name in table.config if isinstance(table.config[name], dict) and (inner := table.table(name))]
    for scaling in kinds or [table]:
        kind, factor = scaling.get("rope_type") or scaling.get("type"), scaling.get("factor")
        if kind in _ALREADY_SCALED or factor is None:
            continue
        if not isinstance(kind, str | None):
            raise scaling.refuse(f"rope_type = {kind!r}", "it is not a kind of scaling")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= LARGEST:
            said = repr(factor)[:20]
            raise scaling.refuse(f"factor = {said}", f"it is not a number above 0 up to {LARGEST:,}")
        start = (scaling.optional("original_max_position_embeddings") if kind == "yarn" else None) or positions
        if start is not None and int(start * factor) != positions:
            return int(start * factor), [f"context: {start:,} positions x {factor:g} ({kind} scaling of the config)"]
    return positions, []
