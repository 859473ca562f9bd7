"""Mixers and feed-forwards, one file a kind: ``kind: attention`` in a YAML is ``inferplan/models/layers/attention.py``.

A kind's module defines one class named ``Layer``-something and binds it to ``LAYER``. Nothing else registers it.
"""

from __future__ import annotations

from inferplan.models.layers.base import (
    AnyMixer,
    Cache,
    FeedForward,
    LayerContext,
    LayerSpec,
    Mixer,
    Weight,
    kinds,
    parse_layer,
)

__all__ = ["AnyMixer", "Cache", "FeedForward", "LayerContext", "LayerSpec", "Mixer", "Weight", "kinds", "parse_layer"]
