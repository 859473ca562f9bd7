"""RWKV-4's time mixing (2305.13048 eq. 11-13 and 16-17, in the stable form of its RNN cell)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.base import Cache, LayerContext, Mixer, Weight
from inferplan.spec import Field
from inferplan.work.ops import Op, Scan
from inferplan.work.parallel import Parallelism, require_divides


class RwkvLayer(Mixer):
    """``wkv_t = (sum_{i<t} e^{-(t-1-i)w + k_i} v_i + e^{u + k_t} v_t) / (the same without v)`` for each channel.

    A sequence keeps the last input (``width``) and numerator, denominator and exponent (``3*inner``).
    """

    kind: ClassVar[str] = "rwkv"
    summary: ClassVar[str] = "RWKV-4 time mixing"

    inner: int = Field(ge=1)
    """Channels of the recurrence."""
    width: int = Field(ge=1)
    """Model width: the last input that is kept for the shift."""
    state_bits: int | None = 32

    def weights(self, d_model: int) -> Iterator[Weight]:
        inner = self.inner
        yield Weight(name="decay_first", shape=(2, inner), role="base", shard="tp", units=inner)
        yield Weight(name="mix", shape=(3, d_model), role="base")
        for name in ("key", "value", "receptance"):
            yield Weight(name=name, shape=(inner, d_model), shard="tp", units=inner)
        yield Weight(name="output", shape=(d_model, inner), shard="tp", units=inner)

    def cache(self) -> Cache:
        return Cache(
            state=3 * self.inner + self.width,
            state_units=self.inner,
            state_bits=self.state_bits,
            conv=self.width,
        )

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.inner, "recurrent channels (inner)")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return 3 * d_model + 4 * self.inner / parallel.tp

    def ops(self, context: LayerContext) -> Iterator[Op]:
        inner = self.inner // context.parallel.tp
        yield context.pointwise("rwkv.shift", 3 * context.d_model, reads=2.0, flops=3.0)
        for name in ("key", "value", "receptance"):
            yield from context.linear(f"rwkv.{name}", context.d_model, inner)
        for segment in context.segments:
            yield Scan(
                name="rwkv.scan",
                ranks=context.ranks,
                batch=segment.batch,
                new=segment.new,
                state=3 * inner,
                flops=23.0 * inner,
                inputs=2 * inner,
                outputs=inner,
                parameters=2 * inner,
                base=context.precision.base,
                state_format=context.state_format(self.state_bits),
            )
        yield context.pointwise("rwkv.gate", inner, reads=2.0, flops=4.0)
        yield from context.linear("rwkv.output", inner, context.d_model)
        yield from context.all_reduce("rwkv.all_reduce", context.d_model)


LAYER = RwkvLayer
