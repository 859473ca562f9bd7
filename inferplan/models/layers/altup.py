"""Alternating updates (AltUp, 2301.13310 algorithm 1): several residual streams, one of which a layer computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.base import FeedForward, LayerContext, Weight
from inferplan.spec import Field
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism


class AltupLayer(FeedForward):
    """Predict all ``streams`` as a mix of each other, run the layer on one, correct all by what it changed.

    The mixing coefficients are linear in ``tanh(R norm(x))`` of the computed stream (Gemma 3n).
    """

    kind: ClassVar[str] = "altup"
    summary: ClassVar[str] = "alternating updates of several residual streams"

    streams: int = Field(ge=2)

    def weights(self, d_model: int) -> Iterator[Weight]:
        n = self.streams
        yield Weight(name="router", shape=(n, d_model), role="base")
        yield Weight(name="router_norm", shape=(d_model,), role="base")
        yield Weight(name="prediction", shape=(n * n, n), role="base")
        yield Weight(name="correction", shape=(n, n), role="base")
        yield Weight(name="output_scale", shape=(d_model,), role="base")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return float(2 * self.streams * d_model)

    def ops(self, context: LayerContext) -> Iterator[Op]:
        n, width = self.streams, context.d_model
        for phase, columns in {"predict": n * n, "correct": n}.items():
            yield context.normalise(f"altup.{phase}_norm", width)
            yield from context.linear(f"altup.{phase}_router", width, n, role="base")
            yield from context.linear(f"altup.{phase}_coefficients", n, columns, role="base")
        yield context.pointwise("altup.predict", n * width, reads=1.0, flops=2.0 * n)
        yield context.pointwise("altup.correct", n * width, reads=1.0 + 1.0 / n, flops=3.0)
        yield context.pointwise("altup.scale", width)


LAYER = AltupLayer
