"""Kimi delta attention (Kimi Linear, 2510.26692 eq. 1): the gated delta rule with a decay for each channel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

from inferplan.models.layers.base import Cache, LayerContext, Mixer, Weight
from inferplan.models.layers.gated_delta_net import delta_flops
from inferplan.spec import Field, model_validator
from inferplan.work.ops import Op, Scan
from inferplan.work.parallel import Parallelism, require_divides


class KimiDeltaLayer(Mixer):
    """``S_t = (I - b_t k_t k_t^T) diag(a_t) S_{t-1} + b_t k_t v_t^T``, ``o_t = S_t^T q_t``; gates of rank ``head_dim``.

    A sequence keeps ``heads*head_dim^2`` elements and ``taps`` inputs of the convolutions on q, k and v.
    """

    kind: ClassVar[str] = "kimi_delta"
    summary: ClassVar[str] = "gated delta rule, one decay for each channel"

    heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    taps: int = Field(default=4, ge=1)
    chunk: int = Field(default=64, ge=1)
    """Tokens that the prefill algorithm multiplies at once."""
    full_gates: bool = False
    """Decay and output gate come from a full matrix each, not from two of rank ``head_dim`` (Ling 3)."""
    full_output_gate: bool = False
    """The output gate alone does (Kimi-K3)."""
    state_bits: int | None = 32

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.full_gates and self.full_output_gate:
            raise ValueError("full_gates holds for the output gate too")
        return self

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    def weights(self, d_model: int) -> Iterator[Weight]:
        heads, inner = self.heads, self.inner
        yield Weight(name="qkv", shape=(3 * inner, d_model), shard="tp", units=heads)
        yield Weight(name="conv", shape=(3 * inner, self.taps), role="base", shard="tp", units=heads)
        if self.full_gates:
            yield Weight(name="gates", shape=(2 * inner, d_model), shard="tp", units=heads)
        elif self.full_output_gate:
            yield Weight(name="decay.a", shape=(self.head_dim, d_model))
            yield Weight(name="decay.b", shape=(inner, self.head_dim), shard="tp", units=heads)
            yield Weight(name="output_gate", shape=(inner, d_model), shard="tp", units=heads)
        else:
            yield Weight(name="gates_a", shape=(2 * self.head_dim, d_model))
            yield Weight(name="gates_b", shape=(2 * inner, self.head_dim), shard="tp", units=heads)
        yield Weight(name="b", shape=(heads, d_model), shard="tp", units=heads)
        yield Weight(name="A_log", shape=(heads,), role="base", shard="tp", units=heads)
        yield Weight(name="dt_bias", shape=(inner,), role="base", shard="tp", units=heads)
        yield Weight(name="norm", shape=(self.head_dim,), role="base")
        yield Weight(name="out", shape=(d_model, inner), shard="tp", units=heads)

    def cache(self) -> Cache:
        conv = 3 * self.inner * self.taps
        return Cache(
            state=self.inner * self.head_dim + conv,
            state_units=self.heads,
            state_bits=self.state_bits,
            conv=conv,
            spare=conv // self.taps,
        )

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.heads, "linear-attention heads")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return (8 * self.inner + self.heads) / parallel.tp + 2 * self.head_dim

    def ops(self, context: LayerContext) -> Iterator[Op]:
        heads, width = self.heads // context.parallel.tp, self.head_dim
        inner, tokens = heads * width, context.tokens
        yield from context.linear("kda.in_qkv", context.d_model, 3 * inner)
        yield from context.linear("kda.in_b", context.d_model, heads)
        if self.full_gates:
            yield from context.linear("kda.gates", context.d_model, 2 * inner)
        if self.full_output_gate:
            yield from context.linear("kda.output_gate", context.d_model, inner)
        for gate in () if self.full_gates else ("decay.",) if self.full_output_gate else ("decay_", "output_"):
            yield from context.linear(f"kda.{gate}a", context.d_model, width)
            yield from context.linear(f"kda.{gate}b", width, inner)
        yield from context.convolve("kda.conv", 3 * inner, self.taps)
        yield context.normalise("kda.qk_norm", width, rows=tokens * 2 * heads, style="plain")
        for segment in context.segments:
            yield Scan(
                name="kda.scan",
                ranks=context.ranks,
                batch=segment.batch,
                new=segment.new,
                state=inner * width,
                flops=delta_flops(segment, (heads, width, width), self.chunk),
                inputs=4 * inner + heads,
                outputs=inner,
                parameters=inner + heads,
                base=context.precision.base,
                state_format=context.state_format(self.state_bits),
                tensor=segment.wide,
            )
        yield context.normalise("kda.norm", width, rows=tokens * heads, style="rms")
        yield context.pointwise("kda.gate", inner, reads=2.0, flops=5.0)
        yield from context.linear("kda.out", inner, context.d_model)
        yield from context.all_reduce("kda.all_reduce", context.d_model)


LAYER = KimiDeltaLayer
