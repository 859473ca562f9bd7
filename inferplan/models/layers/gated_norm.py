"""A gate of low rank behind a norm (A.X K2): ``docs/formulas/gated_norm.md``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.base import FeedForward, LayerContext, Weight
from inferplan.spec import Field
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism


class GatedNormLayer(FeedForward):
    """``y * sigmoid(B act(A y))`` with ``y`` the output of one of ``sites`` norms of the layer, which it has itself."""

    kind: ClassVar[str] = "gated_norm"
    summary: ClassVar[str] = "low-rank gate behind a norm"
    residual: ClassVar[bool] = False

    rank: int = Field(ge=1)
    sites: int = Field(default=1, ge=1)

    def weights(self, d_model: int) -> Iterator[Weight]:
        yield Weight(name="down", shape=(self.sites, self.rank, d_model))
        yield Weight(name="up", shape=(self.sites, d_model, self.rank))

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return float(d_model + self.rank)

    def ops(self, context: LayerContext) -> Iterator[Op]:
        for op in self._site(context):
            yield op.repeated(self.sites)

    def _site(self, context: LayerContext) -> Iterator[Op]:
        yield from context.linear("norm_gate.down", context.d_model, self.rank)
        yield context.pointwise("norm_gate.activation", self.rank, flops=4.0)
        yield from context.linear("norm_gate.up", self.rank, context.d_model)
        yield context.pointwise("norm_gate.gate", context.d_model, reads=2.0, flops=5.0)


LAYER = GatedNormLayer
