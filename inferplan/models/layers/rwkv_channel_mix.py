"""RWKV's channel mixing (2305.13048 eq. 14-15 and 18): a feed-forward that also sees the token before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.base import Cache, FeedForward, LayerContext, Weight
from inferplan.spec import Field
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism, require_divides


class RwkvChannelMixLayer(FeedForward):
    """``sigmoid(R x') * (V relu(K x'')^2)`` with x' and x'' mixed from this input and the one before it.

    A sequence keeps the last input (``width``).
    """

    kind: ClassVar[str] = "rwkv_channel_mix"
    summary: ClassVar[str] = "RWKV channel mixing"

    d_ff: int = Field(ge=1)
    width: int = Field(ge=1)
    """Model width: the last input that is kept for the shift."""
    receptance: bool = True
    """A gate over the output; RWKV-7 has none (2503.14456)."""

    def weights(self, d_model: int) -> Iterator[Weight]:
        yield Weight(name="mix", shape=(1 + self.receptance, d_model), role="base")
        yield Weight(name="key", shape=(self.d_ff, d_model), shard="tp", units=self.d_ff)
        if self.receptance:
            yield Weight(name="receptance", shape=(d_model, d_model))
        yield Weight(name="value", shape=(d_model, self.d_ff), shard="tp", units=self.d_ff)

    def cache(self) -> Cache:
        return Cache(state=self.width, conv=self.width)

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.d_ff, "feed-forward columns (d_ff)")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return 4 * d_model + 2 * self.d_ff / parallel.tp

    def ops(self, context: LayerContext) -> Iterator[Op]:
        d_model, columns = context.d_model, self.d_ff // context.parallel.tp
        yield context.pointwise("ffn.shift", (1 + self.receptance) * d_model, reads=2.0, flops=3.0)
        yield from context.linear("ffn.key", d_model, columns)
        yield context.pointwise("ffn.activation", columns, flops=2.0)
        if self.receptance:
            yield from context.linear("ffn.receptance", d_model, d_model)
        yield from context.linear("ffn.value", columns, d_model)
        yield from context.all_reduce("ffn.all_reduce", d_model)
        if self.receptance:
            yield context.pointwise("ffn.gate", d_model, reads=2.0, flops=4.0)


LAYER = RwkvChannelMixLayer
