"""The convolution of a conformer (2005.08100, section 2.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from inferplan.models.layers.base import LayerContext, Mixer, Weight
from inferplan.spec import Field
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism, require_divides


class ConformerConvLayer(Mixer):
    """``y = W_out act(norm(conv(glu(W_in x))))``: ``width`` channels, each with a filter of ``taps`` of its own.

    The norm has a weight and a bias of every channel. Nothing is kept: a conformer reads its whole input at once.
    """

    kind: ClassVar[str] = "conformer_conv"
    summary: ClassVar[str] = "gated depthwise convolution of a conformer"

    width: int = Field(ge=1)
    taps: int = Field(ge=1)
    bias: bool | Literal["projections"] = False
    """Biases of both projections and of the convolution, or of the projections alone."""

    def weights(self, d_model: int) -> Iterator[Weight]:
        width = self.width
        yield Weight(name="in", shape=(2 * width, d_model), shard="tp", units=width)
        yield Weight(name="conv", shape=(width, self.taps), role="base", shard="tp", units=width)
        yield Weight(name="norm", shape=(width, 2), role="base", shard="tp", units=width)
        yield Weight(name="out", shape=(d_model, width), shard="tp", units=width)
        if self.bias:
            yield Weight(name="in.bias", shape=(2 * width,), role="base", shard="tp", units=width)
            if self.bias is True:
                yield Weight(name="conv.bias", shape=(width,), role="base", shard="tp", units=width)
            yield Weight(name="out.bias", shape=(d_model,), role="base")

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.width, "convolution channels (width)")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return 3 * self.width / parallel.tp

    def ops(self, context: LayerContext) -> Iterator[Op]:
        width = self.width // context.parallel.tp
        yield from context.linear("conformer.in", context.d_model, 2 * width)
        yield context.pointwise("conformer.gate", width, reads=2.0, flops=5.0)
        yield from context.convolve("conformer.conv", width, self.taps)
        yield context.normalise("conformer.norm", width, style="layer")
        yield context.pointwise("conformer.activation", width, flops=4.0)
        yield from context.linear("conformer.out", width, context.d_model)
        yield from context.all_reduce("conformer.all_reduce", context.d_model)


LAYER = ConformerConvLayer
