"""Griffin's recurrent block with the real-gated linear recurrent unit (2402.19427 eq. 1-4 and section 2.3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.base import Cache, LayerContext, Mixer, Weight
from inferplan.spec import Field, model_validator
from inferplan.work.ops import Matmul, Op, Scan
from inferplan.work.parallel import Parallelism, require_divides


class GatedLinearRecurrenceLayer(Mixer):
    """``h_t = a_t h_{t-1} + sqrt(1 - a_t^2) i_t x_t``, ``a_t = exp(-8 softplus(L) r_t)``; gates r and i block by block.

    A sequence keeps ``inner`` elements and ``taps - 1`` inputs of the convolution, as transformers allocates them here.
    """

    kind: ClassVar[str] = "gated_linear_recurrence"
    summary: ClassVar[str] = "Griffin's gated linear recurrence"

    inner: int = Field(ge=1)
    """Channels of the recurrence."""
    blocks: int = Field(ge=1)
    """Diagonal blocks of the gate projections."""
    taps: int = Field(default=4, ge=2)
    state_bits: int | None = 32

    @model_validator(mode="after")
    def _consistent(self) -> GatedLinearRecurrenceLayer:
        if self.inner % self.blocks:
            raise ValueError(f"{self.inner} channels are not a multiple of {self.blocks} blocks")
        return self

    @property
    def block(self) -> int:
        return self.inner // self.blocks

    def weights(self, d_model: int) -> Iterator[Weight]:
        inner, blocks = self.inner, self.blocks
        yield Weight(name="in", shape=(2 * inner, d_model), shard="tp", units=blocks)
        yield Weight(name="in.bias", shape=(2 * inner,), role="base", shard="tp", units=blocks)
        yield Weight(name="conv", shape=(inner, self.taps + 1), role="base", shard="tp", units=blocks)
        yield Weight(name="gates", shape=(2, blocks, self.block, self.block), shard="tp", units=blocks)
        yield Weight(name="gates.bias", shape=(2, inner), role="base", shard="tp", units=blocks)
        yield Weight(name="decay", shape=(inner,), role="base", shard="tp", units=blocks)
        yield Weight(name="out", shape=(d_model, inner), shard="tp", units=blocks)
        yield Weight(name="out.bias", shape=(d_model,), role="base")

    def cache(self) -> Cache:
        conv = self.inner * (self.taps - 1)
        return Cache(
            state=self.inner + conv,
            state_units=self.blocks,
            state_bits=self.state_bits,
            conv=conv,
        )

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.blocks, "blocks of the recurrence gates")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return 6 * self.inner / parallel.tp

    def ops(self, context: LayerContext) -> Iterator[Op]:
        blocks, base = self.blocks // context.parallel.tp, context.precision.base
        inner = blocks * self.block
        yield from context.linear("rglru.in", context.d_model, 2 * inner)
        yield context.pointwise("rglru.activation", inner, flops=4.0)
        yield from context.convolve("rglru.conv", inner, self.taps)
        yield Matmul(
            name="rglru.gates",
            ranks=context.ranks,
            batch=blocks,
            m=context.tokens,
            k=self.block,
            n=2 * self.block,
            weight=context.precision.stored("weights", "gates"),
            input=base,
            output=base,
        )
        for segment in context.segments:
            yield Scan(
                name="rglru.scan",
                ranks=context.ranks,
                batch=segment.batch,
                new=segment.new,
                state=inner,
                flops=15.0 * inner,
                inputs=3 * inner,
                outputs=inner,
                parameters=inner,
                base=base,
                state_format=context.state_format(self.state_bits),
            )
        yield context.pointwise("rglru.gate", inner, reads=2.0)
        yield from context.linear("rglru.out", inner, context.d_model)
        yield from context.all_reduce("rglru.all_reduce", context.d_model)


LAYER = GatedLinearRecurrenceLayer
