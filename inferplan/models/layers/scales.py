"""Learned vectors that scale or shift what passes by: ``docs/formulas/scales.md``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.base import FeedForward, LayerContext, Weight
from inferplan.spec import Field
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism


class ScalesLayer(FeedForward):
    """``y = s * x + b`` and the like, of one vector or several: every rank has them."""

    kind: ClassVar[str] = "scales"
    summary: ClassVar[str] = "learned vectors that scale or shift a stream"
    residual: ClassVar[bool] = False

    vectors: dict[str, list[int]] = Field(min_length=1)
    """Each tensor with its shape: how many vectors, and how wide they are."""

    def weights(self, d_model: int) -> Iterator[Weight]:
        for name, shape in self.vectors.items():
            yield Weight(name=name, shape=tuple(shape), role="base")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return float(max(shape[-1] for shape in self.vectors.values()))

    def ops(self, context: LayerContext) -> Iterator[Op]:
        for name, (count, width) in self.vectors.items():
            yield context.pointwise(f"scales.{name}", width, flops=float(count))


LAYER = ScalesLayer
