"""Biases of attention scores that each token makes for every distance: ``docs/formulas/relative_bias.md``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.base import FeedForward, LayerContext, Weight
from inferplan.spec import Field
from inferplan.work.ops import Matmul, Op
from inferplan.work.parallel import Parallelism, require_divides


class RelativeBiasLayer(FeedForward):
    """``b[t] = (W_r x[t]) P``: of each of ``heads``, ``rank`` numbers mix a bank of ``extent`` distances (Inkling).

    The kernel of attention adds ``b[t, t - s]`` to the score of s where it is nearer than ``extent``.
    """

    kind: ClassVar[str] = "relative_bias"
    summary: ClassVar[str] = "biases of scores by distance, made of each token"
    residual: ClassVar[bool] = False

    heads: int = Field(ge=1)
    rank: int = Field(ge=1)
    extent: int = Field(ge=1)

    def weights(self, d_model: int) -> Iterator[Weight]:
        yield Weight(name="relative", shape=(self.heads * self.rank, d_model), shard="tp", units=self.heads)
        yield Weight(name="relative.bank", shape=(self.rank, self.extent), role="base")

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.heads, "query heads")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return self.heads * (self.rank + self.extent) / parallel.tp

    def ops(self, context: LayerContext) -> Iterator[Op]:
        heads, base = self.heads // context.parallel.tp, context.precision.base
        yield from context.linear("attn.relative", context.d_model, heads * self.rank)
        yield Matmul(
            name="attn.relative.bank",
            ranks=context.ranks,
            m=context.tokens * heads,
            k=self.rank,
            n=self.extent,
            weight=base,
            input=base,
            output=base,
        )


LAYER = RelativeBiasLayer
