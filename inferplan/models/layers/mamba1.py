"""Mamba's selective state space (2312.00752 algorithm 2; Jamba 2403.19887 and Falcon-Mamba 2410.05355 add norms)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from inferplan.models.layers.base import Cache, LayerContext, Mixer, Weight
from inferplan.spec import Field
from inferplan.work.ops import Op, Scan
from inferplan.work.parallel import Parallelism, require_divides


class Mamba1Layer(Mixer):
    """``h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t``, ``y_t = C_t h_t + D x_t`` for each of ``inner`` channels.

    A sequence keeps ``inner*state`` elements and ``taps`` inputs of the convolution on ``inner`` channels.
    """

    kind: ClassVar[str] = "mamba1"
    summary: ClassVar[str] = "selective state space, one decay for each channel and state"

    inner: int = Field(ge=1)
    """Channels after expansion."""
    state: int = Field(ge=1)
    """State elements for each channel (N)."""
    dt_rank: int = Field(ge=1)
    """Rank of the step-size projection."""
    taps: int = Field(default=4, ge=1)
    bias: bool = False
    conv_bias: bool = True
    heads: int = Field(default=1, ge=1)
    """Groups of channels with dt, B and C of their own (Zamba)."""
    inner_norms: Literal["none", "rms", "plain"] = "none"
    """RMS norms on dt, B and C: with weights (Jamba) or without (Falcon-Mamba)."""
    state_bits: int | None = 32

    @property
    def mixed(self) -> int:
        """Width of dt, B and C together."""
        return self.dt_rank + 2 * self.state

    def weights(self, d_model: int) -> Iterator[Weight]:
        inner = self.inner  # dt, B and C of a head read its channels alone: as many elements for any number of heads
        yield Weight(name="in", shape=(2 * inner, d_model), shard="tp", units=inner)
        yield Weight(name="conv", shape=(inner, self.taps), role="base", shard="tp", units=inner)
        yield Weight(name="x", shape=(self.mixed, inner), shard="tp", units=inner)
        yield Weight(name="dt", shape=(inner, self.dt_rank), shard="tp", units=inner)
        yield Weight(name="dt.bias", shape=(inner,), role="base", shard="tp", units=inner)
        yield Weight(name="A_log", shape=(inner, self.state), role="base", shard="tp", units=inner)
        yield Weight(name="D", shape=(inner,), role="base", shard="tp", units=inner)
        yield Weight(name="out", shape=(d_model, inner), shard="tp", units=inner)
        if self.conv_bias:
            yield Weight(name="conv.bias", shape=(inner,), role="base", shard="tp", units=inner)
        if self.bias:
            yield Weight(name="in.bias", shape=(2 * inner,), role="base", shard="tp", units=inner)
            yield Weight(name="out.bias", shape=(d_model,), role="base")
        if self.inner_norms == "rms":
            yield Weight(name="inner_norms", shape=(self.mixed,), role="base")

    def cache(self) -> Cache:
        conv = self.inner * self.taps
        return Cache(
            state=self.inner * self.state + conv,
            state_units=self.inner,
            state_bits=self.state_bits,
            conv=conv,
            spare=conv // self.taps,
        )

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.inner, "state-space channels (inner)")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return 4 * self.inner / parallel.tp + self.mixed

    def ops(self, context: LayerContext) -> Iterator[Op]:
        inner, base = self.inner // context.parallel.tp, context.precision.base
        yield from context.linear("mamba.in", context.d_model, 2 * inner)
        yield from context.convolve("mamba.conv", inner, self.taps)
        yield from context.linear("mamba.x", inner, self.mixed)
        if self.heads == 1:  # the channels of a head stay on one rank
            yield from context.all_reduce("mamba.x_all_reduce", self.mixed)
        if self.inner_norms != "none":
            for name, width in {"dt": self.dt_rank, "B": self.state, "C": self.state}.items():
                yield context.normalise(f"mamba.{name}_norm", width, style=self.inner_norms)
        yield from context.linear("mamba.dt", self.dt_rank, inner)
        for segment in context.segments:
            yield Scan(
                name="mamba.scan",
                ranks=context.ranks,
                batch=segment.batch,
                new=segment.new,
                state=inner * self.state,
                flops=inner * (7.0 * self.state + 3.0),
                inputs=2 * inner + 2 * self.state * max(1, self.heads // context.parallel.tp),
                outputs=inner,
                parameters=inner * (self.state + 2),
                base=base,
                state_format=context.state_format(self.state_bits),
            )
        yield context.pointwise("mamba.gate", inner, reads=2.0, flops=5.0)
        yield from context.linear("mamba.out", inner, context.d_model)
        yield from context.all_reduce("mamba.all_reduce", context.d_model)


LAYER = Mamba1Layer
