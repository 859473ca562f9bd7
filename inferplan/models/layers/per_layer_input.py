"""Per-layer embeddings: each layer adds a gated look-up of the token (Gemma 3n and Gemma 4 E models)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.base import FeedForward, LayerContext, Weight
from inferplan.spec import Field
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism


class PerLayerInputLayer(FeedForward):
    """``x + norm(W_p(act(W_g x) * e))`` with ``e`` this layer's ``width`` columns of the token's per-layer embedding.

    The table itself belongs to the model (``per_layer_embedding``). Source: google/gemma-3n-E4B-it, as transformers'
    Gemma3nTextDecoderLayer states it.
    """

    kind: ClassVar[str] = "per_layer_input"
    summary: ClassVar[str] = "gated per-layer embedding"

    width: int = Field(ge=1)

    def weights(self, d_model: int) -> Iterator[Weight]:
        yield Weight(name="gate", shape=(self.width, d_model))
        yield Weight(name="projection", shape=(d_model, self.width))
        yield Weight(name="norm", shape=(d_model,), role="base")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return d_model + 2 * self.width

    def ops(self, context: LayerContext) -> Iterator[Op]:
        yield from context.linear("ple.gate", context.d_model, self.width)
        yield context.pointwise("ple.activation", self.width, reads=2.0, flops=5.0)
        yield from context.linear("ple.projection", self.width, context.d_model)
        yield context.normalise("ple.norm", context.d_model)


LAYER = PerLayerInputLayer
