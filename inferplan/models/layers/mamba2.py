"""Mamba-2's state space duality (2405.21060 section 6; the layer of its figure 6)."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import ClassVar

import numpy as np

from inferplan.models.layers.base import Cache, LayerContext, Mixer, Weight
from inferplan.spec import Field, model_validator
from inferplan.units import Num
from inferplan.work.ops import Op, Scan
from inferplan.work.parallel import Parallelism, require_divides
from inferplan.work.step import Segment


class Mamba2Layer(Mixer):
    """``h_t = exp(dt_t a) h_{t-1} + dt_t B_t x_t^T``, ``y_t = C_t h_t + D x_t``, one decay ``a`` for each head.

    A sequence keeps ``heads*head_dim*state`` elements and ``taps`` inputs of the convolution on x, B and C.
    """

    kind: ClassVar[str] = "mamba2"
    summary: ClassVar[str] = "state space duality, one decay for each head"

    heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    state: int = Field(ge=1)
    """State elements for each channel (N)."""
    groups: int = Field(default=1, ge=1)
    """Groups of heads that share B and C."""
    taps: int = Field(default=4, ge=1)
    chunk: int = Field(default=256, ge=1)
    """Tokens that the prefill algorithm multiplies at once."""
    bias: bool = False
    conv_bias: bool = True
    gated_norm: bool = True
    """RMS norm of the gated output; without it the gate alone (Falcon-H1)."""
    state_bits: int | None = 32

    @model_validator(mode="after")
    def _consistent(self) -> Mamba2Layer:
        if self.heads % self.groups:
            raise ValueError(f"{self.heads} heads are not a multiple of {self.groups} groups")
        return self

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def shared(self) -> int:
        """Width of B and C of all groups."""
        return 2 * self.groups * self.state

    def weights(self, d_model: int) -> Iterator[Weight]:
        heads, inner, groups = self.heads, self.inner, self.groups
        projected, convolved = 2 * inner + heads, inner
        yield Weight(name="in.zxdt", shape=(projected, d_model), shard="tp", units=heads)
        yield Weight(name="in.bc", shape=(self.shared, d_model), shard="tp", units=groups)
        yield Weight(name="conv.x", shape=(convolved, self.taps), role="base", shard="tp", units=heads)
        yield Weight(name="conv.bc", shape=(self.shared, self.taps), role="base", shard="tp", units=groups)
        yield Weight(name="dt_bias_A_log_D", shape=(3, heads), role="base", shard="tp", units=heads)
        yield Weight(name="out", shape=(d_model, inner), shard="tp", units=heads)
        if self.gated_norm:
            yield Weight(name="norm", shape=(inner,), role="base", shard="tp", units=heads)
        if self.conv_bias:
            yield Weight(name="conv.x.bias", shape=(convolved,), role="base", shard="tp", units=heads)
            yield Weight(name="conv.bc.bias", shape=(self.shared,), role="base", shard="tp", units=groups)
        if self.bias:
            yield Weight(name="in.zxdt.bias", shape=(projected,), role="base", shard="tp", units=heads)
            yield Weight(name="in.bc.bias", shape=(self.shared,), role="base", shard="tp", units=groups)
            yield Weight(name="out.bias", shape=(d_model,), role="base")

    def cache(self) -> Cache:
        conv = (self.inner + self.shared) * self.taps
        return Cache(
            state=self.inner * self.state + conv,
            state_units=self.heads,
            state_bits=self.state_bits,
            conv=conv,
            spare=conv // self.taps,
        )

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.heads, "state-space heads")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return (3 * self.inner + self.heads) / parallel.tp + 2 * self.rank_groups(parallel) * 2 * self.state

    def rank_groups(self, parallel: Parallelism) -> int:
        """Groups on one rank: copied when there are more ranks than groups."""
        return max(1, ceil(self.groups / parallel.tp))

    def ops(self, context: LayerContext) -> Iterator[Op]:
        parallel, tokens, base = context.parallel, context.tokens, context.precision.base
        heads, groups = self.heads // parallel.tp, self.rank_groups(parallel)
        inner, shared = heads * self.head_dim, 2 * groups * self.state
        yield from context.linear("mamba.in_proj", context.d_model, 2 * inner + shared + heads)
        yield from context.convolve("mamba.conv", inner + shared, self.taps)
        for segment in context.segments:
            yield Scan(
                name="mamba.scan",
                ranks=context.ranks,
                batch=segment.batch,
                new=segment.new,
                state=inner * self.state,
                flops=self.scan_flops(segment, heads, groups),
                inputs=inner + shared + heads,
                outputs=inner,
                parameters=3 * heads,
                base=base,
                state_format=context.state_format(self.state_bits),
                tensor=segment.wide,
            )
        yield context.pointwise("mamba.gate", inner, reads=2.0, flops=5.0)
        if self.gated_norm:
            yield context.normalise("mamba.norm", inner // groups, rows=tokens * groups, style="rms")
            if self.groups % parallel.tp:
                yield from context.all_reduce("mamba.norm_all_reduce", 1)
        yield from context.linear("mamba.out", inner, context.d_model)
        yield from context.all_reduce("mamba.all_reduce", context.d_model)

    def scan_flops(self, segment: Segment, heads: int, groups: int) -> Num:
        """FLOP a token: the matmuls of the chunked algorithm, or the recurrence for few new tokens.

        With chunks of Q tokens and P channels a head (2405.21060 section 6): ``C B^T`` costs ``2QN`` a group; ``(L * C
        B^T) X``, the chunk's state ``B^T X`` and its use ``C h`` cost ``2QP + 2NP + 2NP`` a head; passing the state on
        costs ``2NP/Q``. The recurrence costs ``5NP + 3P`` a head.
        """
        state, width = self.state, self.head_dim
        if not segment.wide:
            return float(heads * (5 * state * width + 3 * width))
        q: Num = np.minimum(segment.new, self.chunk)
        return groups * 2.0 * q * state + heads * (2.0 * q * width + 4.0 * state * width + 2.0 * state * width / q)


LAYER = Mamba2Layer
