"""Residual connections with a gate for each channel (transformers' ``muse_spark``, ``MuseSparkResidualGate``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.base import FeedForward, LayerContext, Weight
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism

_SITES = 2
"""Parts of a layer that have a gate each."""


class ResidualGateLayer(FeedForward):
    """``x' = a x + b y`` in place of ``x + y`` at each of the two parts of a layer, mixer and feed-forward.

    ``b = sigmoid(g/temperature)`` of one learned number a channel, ``a = sqrt(1 - b^2)``: neither depends on the token.
    """

    kind: ClassVar[str] = "residual_gate"
    summary: ClassVar[str] = "a learned share of each channel between residual and output"

    def weights(self, d_model: int) -> Iterator[Weight]:
        yield Weight(name="residual.gate", shape=(_SITES, d_model), role="base")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return float(d_model)

    def ops(self, context: LayerContext) -> Iterator[Op]:
        """Two products and a sum for each channel; the shares of a layer are computed once, not in a step."""
        yield context.pointwise("residual.gate", context.d_model, reads=2.0, flops=3.0).repeated(_SITES)


LAYER = ResidualGateLayer
