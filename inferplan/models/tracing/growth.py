"""What a cache keeps, layer by layer, from two lengths of it; and where its growth stops."""

from __future__ import annotations

from typing import Any

import torch

from inferplan.errors import SpecError
from inferplan.models.layers.traced import TracedCache
from inferplan.models.tracing.passes import Subject, across, cache_layers, tensors_of

_SHORT, _LONG = 7, 12
"""Tokens of the two lengths: short of every window, prime to each other's differences."""
_RECURRENT_BITS = {4: 32, 2: 16}


def growth(subject: Subject) -> list[TracedCache]:
    """The caches of a model, in the order of its cache's layers. Raises ``SpecError`` where one is not understood."""
    short, long = (cache_layers(subject.kept(tokens)) for tokens in (_SHORT, _LONG))
    if len(short) != len(long):
        raise SpecError("the cache has other layers for other lengths")
    found = [_layer(a, b) for a, b in zip(short, long)]
    if subject.decodes:
        _require_alike(subject, found)
    return found


def _require_alike(subject: Subject, own: list[TracedCache]) -> None:
    """Raise ``SpecError`` unless each layer keeps as much of a position of the encoder as of a token of the decoder:
    a request's tokens are then counted together (docs/encoder-decoders.md)."""
    few = [_elements(layer) for layer in across(subject.kept(_SHORT))]
    subject.positions += 1
    more = [_elements(layer) for layer in across(subject.kept(_SHORT))]
    subject.positions -= 1
    source = [after - before for before, after in zip(few, more)]
    if any(one.window is not None or one.state for one in own):
        raise SpecError("the decoder behind an encoder keeps a window or a state")
    if source != [one.per_token for one in own] or few != [subject.positions * one for one in source]:
        raise SpecError(
            f"its layers keep {source} elements of a position of the encoder, {[x.per_token for x in own]} of a token",
            because="a request's tokens are counted together, those that it reads and those that it writes",
        )


def _elements(layer: Any) -> int:
    return sum(tensor.numel() for _, tensor in tensors_of(layer))


def _layer(short: Any, long: Any) -> TracedCache:
    before, after = _elements(short), _elements(long)
    per_token, rest = divmod(after - before, _LONG - _SHORT)
    state = before - _SHORT * per_token
    if rest or state < 0:
        raise SpecError(f"{type(short).__name__} does not grow evenly: {before} elements, then {after}")
    keys = getattr(long, "keys", None)
    heads = keys.shape[1] if isinstance(keys, torch.Tensor) and keys.dim() == 4 else 1
    states = [(name, tensor) for name, tensor in tensors_of(long) if tensor.shape == _same(short, name, tensor)]
    conv = sum(tensor.numel() for name, tensor in states if "conv" in name)
    widths = {tensor.element_size() for name, tensor in states if "conv" not in name}
    window = _window(long, per_token) if per_token else None
    bits = _RECURRENT_BITS.get(widths.pop()) if state > conv and len(widths) == 1 else None
    return TracedCache(
        per_token=per_token, window=window, heads=heads if per_token else 1, state=state, conv=conv, state_bits=bits
    )


def _same(layer: Any, name: str, tensor: Any) -> Any:
    return next((other.shape for own, other in tensors_of(layer) if own == name and other.shape == tensor.shape), None)


def _window(layer: Any, per_token: int) -> int | None:
    """The tokens that a layer looks back at: transformers keeps one fewer, as the new one is not yet there.

    The layer is given more tokens than its window and must then hold just those.
    """
    size = getattr(layer, "sliding_window", None)
    if not getattr(layer, "is_sliding", False) or not isinstance(size, int):
        return None
    keys, values = (
        torch.empty(1, *x.shape[1:2], size + 9, *x.shape[3:], device="meta") for x in (layer.keys, layer.values)
    )
    layer.update(keys, values)
    kept = sum(tensor.numel() for name, tensor in tensors_of(layer) if name in ("keys", "values"))
    if kept != per_token * (size - 1):
        raise SpecError(f"{type(layer).__name__} with a window of {size} keeps {kept} elements")
    return size
