"""Learned augmented residual layers (LAuReL, 2411.07501 section 2, the low-rank form), as in Gemma 3n."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.base import FeedForward, LayerContext, Weight
from inferplan.spec import Field
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism


class LaurelLayer(FeedForward):
    """``x + norm(B A x)`` with ``A`` of ``rank`` rows, added to the attention's output."""

    kind: ClassVar[str] = "laurel"
    summary: ClassVar[str] = "low-rank learned residual"

    rank: int = Field(ge=1)

    def weights(self, d_model: int) -> Iterator[Weight]:
        yield Weight(name="left", shape=(self.rank, d_model))
        yield Weight(name="right", shape=(d_model, self.rank))
        yield Weight(name="norm", shape=(d_model,), role="base")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return float(d_model + self.rank)

    def ops(self, context: LayerContext) -> Iterator[Op]:
        yield from context.linear("laurel.left", context.d_model, self.rank)
        yield from context.linear("laurel.right", self.rank, context.d_model)
        yield context.normalise("laurel.norm", context.d_model)


LAYER = LaurelLayer
