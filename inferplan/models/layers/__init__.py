"""Mixers and feed-forwards, one file a kind: ``kind: attention`` in a YAML is ``inferplan/models/layers/attention.py``.

A kind's module defines one class named ``Layer``-something and binds it to ``LAYER``. Nothing else registers it.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from inferplan.models.layers.base import Cache, FeedForward, LayerContext, LayerSpec, Mixer, Weight

__all__ = ["Cache", "FeedForward", "LayerContext", "LayerSpec", "Mixer", "Weight", "kinds", "parse_layer"]


def kinds() -> list[str]:
    """Every kind there is a file for."""
    return sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem not in ("__init__", "base"))


def parse_layer(value: Any) -> LayerSpec:
    """A layer spec from its mapping, found by its ``kind``. Raises ``ValueError`` for a kind that has no file."""
    if isinstance(value, LayerSpec):
        return value
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in kinds():
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(kinds())}")
    layer_class: type[LayerSpec] = import_module(f"inferplan.models.layers.{kind}").LAYER
    return layer_class.model_validate({k: v for k, v in value.items() if k != "kind"})
