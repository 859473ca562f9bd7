"""Gated short convolution (LFM2, 2511.23404 section 2): a convolution of a few taps between two elementwise gates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.base import Cache, LayerContext, Mixer, Weight
from inferplan.spec import Field
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism, require_divides


class ShortConvLayer(Mixer):
    """``y = W_out (C * conv(B * x'))`` with ``[B, C, x'] = W_in x``, each ``width`` wide; the filter has ``taps``.

    A sequence keeps ``taps`` inputs of the convolution: ``width*taps`` elements.
    """

    kind: ClassVar[str] = "short_conv"
    summary: ClassVar[str] = "short convolution between two gates"

    width: int = Field(ge=1)
    taps: int = Field(default=3, ge=1)
    bias: bool = False
    """Biases of both projections and of the convolution."""

    def weights(self, d_model: int) -> Iterator[Weight]:
        width = self.width
        yield Weight(name="in", shape=(3 * width, d_model), shard="tp", units=width)
        yield Weight(name="conv", shape=(width, self.taps), role="base", shard="tp", units=width)
        yield Weight(name="out", shape=(d_model, width), shard="tp", units=width)
        if self.bias:
            yield Weight(name="in.bias", shape=(3 * width,), role="base", shard="tp", units=width)
            yield Weight(name="conv.bias", shape=(width,), role="base", shard="tp", units=width)
            yield Weight(name="out.bias", shape=(d_model,), role="base")

    def cache(self) -> Cache:
        conv = self.width * self.taps
        return Cache(state=conv, state_units=self.width, conv=conv, spare=self.width)

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.width, "convolution channels (width)")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return 4 * self.width / parallel.tp

    def ops(self, context: LayerContext) -> Iterator[Op]:
        width = self.width // context.parallel.tp
        yield from context.linear("short_conv.in", context.d_model, 3 * width)
        yield context.pointwise("short_conv.gate_in", width, reads=2.0)
        yield from context.convolve("short_conv.conv", width, self.taps)
        yield context.pointwise("short_conv.gate_out", width, reads=2.0)
        yield from context.linear("short_conv.out", width, context.d_model)
        yield from context.all_reduce("short_conv.all_reduce", context.d_model)


LAYER = ShortConvLayer
