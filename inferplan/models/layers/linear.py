"""One matrix in the place of a mixer or a feed-forward (Puzzle, 2411.19146 section 2; Nemotron NAS models)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.base import FeedForward, LayerContext, Mixer, Weight
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism


class LinearLayer(Mixer, FeedForward):
    """``y = W x`` with a square matrix; positions do not mix. Every tensor-parallel rank has the whole matrix."""

    kind: ClassVar[str] = "linear"
    summary: ClassVar[str] = "one square matrix instead of a mixer or feed-forward"

    def weights(self, d_model: int) -> Iterator[Weight]:
        yield Weight(name="linear", shape=(d_model, d_model))

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return float(d_model)

    def ops(self, context: LayerContext) -> Iterator[Op]:
        yield from context.linear("linear", context.d_model, context.d_model)


LAYER = LinearLayer
