"""The longest context of a config: its positions, and what the scaling of rotary positions makes of them."""

from __future__ import annotations

from inferplan.models.huggingface.reader import CONTEXT, LARGEST, Reader

_ALREADY_SCALED = ("su", "longrope", "llama3")
"""Kinds of scaling whose configs write the scaled positions."""


def stated(r: Reader) -> tuple[int | None, list[str]]:
    """The longest context that the config states, and a note where its fields disagree.

    The rule of vLLM (``_get_and_verify_max_len`` of ``vllm/config/model.py``): ``model_max_length`` where it is there,
    else the smallest.
    """
    found = {name: r.integer(name) for name in CONTEXT if r.get(name) is not None}
    longest = r.optional("model_max_length")
    taken = longest if longest is not None else min(found.values(), default=None)
    if len({*found.values(), taken}) < 2 or not found:
        return taken, []
    fields = ", ".join(f"{name} = {value:,}" for name, value in found.items())
    fields += f", model_max_length = {longest:,}" if longest is not None else ""
    return taken, [f"context: the config says {fields}: {taken:,} is taken, as vLLM does"]


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
            raise scaling.refuse(f"rope_type = {kind!r}", "it is no kind of scaling")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= LARGEST:
            said = repr(factor)[:20]
            raise scaling.refuse(f"factor = {said}", f"it is no number above 0 up to {LARGEST:,}")
        start = (scaling.optional("original_max_position_embeddings") if kind == "yarn" else None) or positions
        if start is not None and int(start * factor) != positions:
            return int(start * factor), [f"context: {start:,} positions x {factor:g} ({kind} scaling of the config)"]
    return positions, []
