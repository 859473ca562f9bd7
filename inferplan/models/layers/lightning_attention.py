"""Lightning attention: linear attention with a fixed decay (2401.04658 algorithm 1; MiniMax-01, 2501.08313)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from inferplan.models.layers.base import Cache, LayerContext, Mixer, Weight
from inferplan.spec import Field
from inferplan.units import Num
from inferplan.work.ops import Op, Scan
from inferplan.work.parallel import Parallelism, require_divides
from inferplan.work.step import Segment


class LightningAttentionLayer(Mixer):
    """``S_t = r S_{t-1} + k_t v_t^T``, ``o_t = q_t S_t`` for each of ``heads``, then a norm and an output gate.

    A sequence keeps ``heads*head_dim^2`` elements.
    """

    kind: ClassVar[str] = "lightning_attention"
    summary: ClassVar[str] = "linear attention with a fixed decay for each head"

    heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    chunk: int = Field(default=256, ge=1)
    """Tokens that the prefill algorithm multiplies at once."""
    state_bits: int | None = 32

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    def weights(self, d_model: int) -> Iterator[Weight]:
        heads, inner = self.heads, self.inner
        yield Weight(name="qkv", shape=(3 * inner, d_model), shard="tp", units=heads)
        yield Weight(name="gate", shape=(inner, d_model), shard="tp", units=heads)
        yield Weight(name="norm", shape=(inner,), role="base", shard="tp", units=heads)
        yield Weight(name="out", shape=(d_model, inner), shard="tp", units=heads)

    def cache(self) -> Cache:
        return Cache(state=self.inner * self.head_dim, state_units=self.heads, state_bits=self.state_bits)

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.heads, "linear-attention heads")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return 5 * self.inner / parallel.tp

    def ops(self, context: LayerContext) -> Iterator[Op]:
        heads = self.heads // context.parallel.tp
        inner = heads * self.head_dim
        yield from context.linear("lightning.qkv", context.d_model, 3 * inner)
        yield context.pointwise("lightning.activation", 3 * inner, flops=4.0)
        yield from context.linear("lightning.gate", context.d_model, inner)
        for segment in context.segments:
            yield Scan(
                name="lightning.scan",
                ranks=context.ranks,
                batch=segment.batch,
                new=segment.new,
                state=inner * self.head_dim,
                flops=self.scan_flops(segment, heads),
                inputs=3 * inner,
                outputs=inner,
                parameters=heads,
                base=context.precision.base,
                state_format=context.state_format(self.state_bits),
                tensor=segment.wide,
            )
        yield context.normalise("lightning.norm", inner, style="rms")
        yield from context.all_reduce("lightning.norm_all_reduce", 1)
        yield context.pointwise("lightning.gating", inner, reads=2.0, flops=4.0)
        yield from context.linear("lightning.out", inner, context.d_model)
        yield from context.all_reduce("lightning.all_reduce", context.d_model)

    def scan_flops(self, segment: Segment, heads: int) -> Num:
        """FLOP a token and head: ``4Bd + 4d^2`` in blocks of B tokens (2401.04658 algorithm 1), ``5d^2`` one by one."""
        width = self.head_dim
        if not segment.wide:
            return float(heads * 5 * width * width)
        block = np.minimum(segment.new, self.chunk)
        return heads * (4.0 * block * width + 4.0 * width * width)


LAYER = LightningAttentionLayer
