"""Hyena: long convolutions with implicit filters between elementwise gates (2302.10866 definition 3.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.base import Cache, LayerContext, Mixer, Weight
from inferplan.spec import Field
from inferplan.work.ops import Copy, LongConv, Op
from inferplan.work.parallel import Parallelism, require_divides


class HyenaLayer(Mixer):
    """``z_{n+1} = x_n * (h_n conv z_n)`` for ``order - 1`` filters as long as the context, ``y = x * z``.

    The filters come from a small network of the position, computed once for a model and not for each token. Without a
    recurrent form every input of every long convolution is kept: ``(order - 1)*width`` elements a token.
    """

    kind: ClassVar[str] = "hyena"
    summary: ClassVar[str] = "long convolution with implicit filters"

    width: int = Field(ge=1)
    order: int = Field(default=2, ge=2)
    taps: int = Field(default=3, ge=2)
    filter_width: int = Field(default=64, ge=1)
    """Hidden width of the network that makes the filters."""
    filter_inputs: int = Field(default=3, ge=1)
    """Features of the position it reads."""
    filter_layers: int = Field(default=2, ge=0)
    """Hidden layers between its first and its last."""

    @property
    def long(self) -> int:
        """Channels of all long convolutions."""
        return (self.order - 1) * self.width

    @property
    def short(self) -> int:
        """Channels of the short convolution."""
        return (self.order + 1) * self.width

    def weights(self, d_model: int) -> Iterator[Weight]:
        short, hidden = self.short, self.filter_width
        yield Weight(name="in", shape=(short, d_model + 1), shard="tp", units=self.width)
        yield Weight(name="conv", shape=(short, self.taps + 1), role="base", shard="tp", units=self.width)
        yield Weight(name="filter.in", shape=(hidden, self.filter_inputs + 1), role="base")
        yield Weight(name="filter.hidden", shape=(self.filter_layers, hidden, hidden + 1), role="base")
        yield Weight(name="filter.frequency", shape=(hidden,), role="base")
        yield Weight(name="filter.out", shape=(self.long, hidden), role="base", shard="tp", units=self.width)
        yield Weight(name="filter.bias", shape=(self.long,), role="base", shard="tp", units=self.width)
        yield Weight(name="out", shape=(d_model, self.width), shard="tp", units=self.width)
        yield Weight(name="out.bias", shape=(d_model,), role="base")

    def cache(self) -> Cache:
        conv = self.short * (self.taps - 1)
        return Cache(per_token=self.long, units=self.width, state=conv, state_units=self.width, conv=conv)

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.width, "convolution channels (width)")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return (2 * self.short + self.long) / parallel.tp

    def ops(self, context: LayerContext) -> Iterator[Op]:
        tp, precision = context.parallel.tp, context.precision
        width, short, long = self.width // tp, self.short // tp, self.long // tp
        yield from context.linear("hyena.in", context.d_model, short)
        yield from context.convolve("hyena.short_conv", short, self.taps)
        yield Copy(
            name="hyena.input_write",
            ranks=context.ranks,
            fusible=True,
            elements=context.tokens * long,
            source=precision.base,
            target=precision.kv,
        )
        for segment in context.segments:
            yield LongConv(
                name="hyena.long_conv",
                ranks=context.ranks,
                batch=segment.batch,
                new=segment.new,
                past=segment.past,
                channels=long,
                base=precision.base,
                kv=precision.kv,
            )
        yield context.pointwise("hyena.gate", self.order * width, reads=2.0)
        yield from context.linear("hyena.out", width, context.d_model)
        yield from context.all_reduce("hyena.all_reduce", context.d_model)


LAYER = HyenaLayer
