"""Gated delta networks (2412.06464 eq. 10 and section 3.3; Qwen3-Next, Qwen3.5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from inferplan.models.layers.base import Cache, LayerContext, Mixer, Weight
from inferplan.spec import Field, model_validator
from inferplan.units import Num
from inferplan.work.ops import Op, Scan
from inferplan.work.parallel import Parallelism, require_divides
from inferplan.work.step import Segment


class GatedDeltaNetLayer(Mixer):
    """``S_t = a_t S_{t-1} (I - b_t k_t k_t^T) + b_t v_t k_t^T``, ``o_t = S_t q_t`` for each of ``value_heads``.

    A sequence keeps ``value_heads*key_dim*value_dim`` elements and ``taps`` inputs of the convolution on q, k and v.
    """

    kind: ClassVar[str] = "gated_delta_net"
    summary: ClassVar[str] = "gated delta rule, one decay for each head"

    key_heads: int = Field(ge=1)
    value_heads: int = Field(ge=1)
    key_dim: int = Field(ge=1)
    value_dim: int = Field(ge=1)
    taps: int = Field(default=4, ge=1)
    chunk: int = Field(default=64, ge=1)
    """Tokens that the prefill algorithm multiplies at once."""
    state_bits: int | None = 32

    @model_validator(mode="after")
    def _consistent(self) -> GatedDeltaNetLayer:
        if self.value_heads % self.key_heads:
            raise ValueError(f"{self.value_heads} value heads are not a multiple of {self.key_heads} key heads")
        return self

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    def weights(self, d_model: int) -> Iterator[Weight]:
        keys, values, heads = 2 * self.keys, self.values, self.value_heads
        yield Weight(name="in.qk", shape=(keys, d_model), shard="tp", units=self.key_heads)
        yield Weight(name="in.vz", shape=(2 * values, d_model), shard="tp", units=heads)
        yield Weight(name="in.ba", shape=(2 * heads, d_model), shard="tp", units=heads)
        yield Weight(name="conv.qk", shape=(keys, self.taps), role="base", shard="tp", units=self.key_heads)
        yield Weight(name="conv.v", shape=(values, self.taps), role="base", shard="tp", units=heads)
        yield Weight(name="dt_bias_A_log", shape=(2, heads), role="base", shard="tp", units=heads)
        yield Weight(name="norm", shape=(self.value_dim,), role="base")
        yield Weight(name="out", shape=(d_model, values), shard="tp", units=heads)

    def cache(self) -> Cache:
        conv = (2 * self.keys + self.values) * self.taps
        return Cache(
            state=self.values * self.key_dim + conv,
            state_units=self.value_heads,
            state_bits=self.state_bits,
            conv=conv,
            spare=conv // self.taps,
        )

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.key_heads, "linear-attention key heads")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return (4 * self.keys + 4 * self.values + 2 * self.value_heads) / parallel.tp

    def ops(self, context: LayerContext) -> Iterator[Op]:
        tp, base = context.parallel.tp, context.precision.base
        keys, values, heads = self.keys // tp, self.values // tp, self.value_heads // tp
        yield from context.linear("gdn.in_qkvz", context.d_model, 2 * keys + 2 * values)
        yield from context.linear("gdn.in_ba", context.d_model, 2 * heads)
        yield from context.convolve("gdn.conv", 2 * keys + values, self.taps)
        rows = context.tokens * 2 * (self.key_heads // tp)
        yield context.normalise("gdn.qk_norm", self.key_dim, rows=rows, style="plain")
        for segment in context.segments:
            yield Scan(
                name="gdn.scan",
                ranks=context.ranks,
                batch=segment.batch,
                new=segment.new,
                state=values * self.key_dim,
                flops=delta_flops(segment, (heads, self.key_dim, self.value_dim), self.chunk),
                inputs=2 * keys + values + 2 * heads,
                outputs=values,
                parameters=2 * heads,
                base=base,
                state_format=context.state_format(self.state_bits),
                tensor=segment.wide,
            )
        yield context.normalise("gdn.norm", self.value_dim, rows=context.tokens * heads, style="rms")
        yield context.pointwise("gdn.gate", values, reads=2.0, flops=5.0)
        yield from context.linear("gdn.out", values, context.d_model)
        yield from context.all_reduce("gdn.all_reduce", context.d_model)


def delta_flops(segment: Segment, size: tuple[int, int, int], chunk: int) -> Num:
    """FLOP a token of the gated delta rule: the chunked algorithm, or the recurrence for few new tokens.

    With chunks of C tokens and a state of K x V a head (2412.06464 eq. 11-13, 2406.06484 section 3.2): ``k k^T``, ``q
    k^T`` and ``T (b k)`` cost ``2CK`` each; ``T (b v)`` and the scores times the new values ``2CV`` each; reading the
    state for the values and for the output, and adding to it, ``2KV`` each; inverting the unit triangle ``C^2/3``. The
    recurrence costs ``7KV + 2V`` (decay, read by k, difference times b, outer product added, read by q).
    """
    heads, key, value = size
    if not segment.wide:
        return float(heads * (7 * key * value + 2 * value))
    c = np.minimum(segment.new, chunk)
    return heads * (6.0 * c * key + 4.0 * c * value + 6.0 * key * value + c * c / 3.0)


LAYER = GatedDeltaNetLayer
