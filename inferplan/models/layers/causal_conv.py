"""A causal convolution of a few taps over a stream: ``docs/formulas/causal_conv.md``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

from inferplan.models.layers.base import Cache, FeedForward, LayerContext, Weight
from inferplan.spec import Field, model_validator
from inferplan.work.ops import Matmul, Op
from inferplan.work.parallel import Parallelism, require_divides


class CausalConvLayer(FeedForward):
    """``y[t] = sum over taps of w * x[t - tap]``, each channel by itself or in groups of ``group`` channels.

    A sequence keeps ``taps`` inputs of each channel unless ``kept`` says otherwise.
    """

    kind: ClassVar[str] = "causal_conv"
    summary: ClassVar[str] = "short causal convolution over a stream"
    residual: ClassVar[bool] = False

    channels: int = Field(ge=1)
    taps: int = Field(ge=1)
    group: int = Field(default=1, ge=1)
    """Channels that each output reads (Zaya: those of a head)."""
    bias: bool = False
    kept: int | None = Field(default=None, ge=0)
    """Inputs of a channel that a sequence keeps, as transformers keeps them, where they are not ``taps``."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.channels % self.group:
            raise ValueError(f"groups of {self.group} do not divide {self.channels} channels")
        return self

    @property
    def units(self) -> int:
        return self.channels // self.group

    def weights(self, d_model: int) -> Iterator[Weight]:
        shape = (self.channels, self.taps) if self.group == 1 else (self.channels, self.group, self.taps)
        name = "conv" if self.group == 1 else "conv.grouped"
        yield Weight(name=name, shape=shape, role="base", shard="tp", units=self.units)
        if self.bias:
            yield Weight(name="conv.bias", shape=(self.channels,), role="base", shard="tp", units=self.units)

    def cache(self) -> Cache:
        kept = self.taps if self.kept is None else self.kept
        spare = max(0, kept - self.taps + 1) * self.channels
        return Cache(state=kept * self.channels, state_units=self.units, conv=kept * self.channels, spare=spare)

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.units, "groups of channels of a convolution")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return 2 * self.channels / parallel.tp

    def ops(self, context: LayerContext) -> Iterator[Op]:
        tp, base = context.parallel.tp, context.precision.base
        if self.group == 1:
            yield from context.convolve("stream.conv", self.channels // tp, self.taps)
            return
        yield Matmul(
            name="stream.conv.grouped",
            ranks=context.ranks,
            batch=self.units // tp,
            m=context.tokens,
            k=self.group * self.taps,
            n=self.group,
            weight=base,
            input=base,
            output=base,
        )


LAYER = CausalConvLayer
