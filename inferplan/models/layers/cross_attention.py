"""Attention of a decoder to its encoder's output (1706.03762 section 3.2.3): ``docs/formulas/cross_attention.md``."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from inferplan.models.layers.base import LayerContext, SharedHeads, Weight
from inferplan.spec import Field
from inferplan.units import Num
from inferplan.work.ops import Attention, Copy, Mask, Op
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment


class CrossAttentionLayer(SharedHeads):
    """``heads`` query heads of a decoder share ``kv_heads`` keys and values of the encoder's positions.

    Keys and values are projected once for a request, when its encoder has run, and read in every step:
    ``2*kv_heads*head_dim`` elements for each position of the encoder, however many tokens the decoder writes.
    """

    kind: ClassVar[str] = "cross_attention"
    summary: ClassVar[str] = "attention of a decoder to the output of its encoder"

    head_dim: int = Field(ge=1)
    source_width: int | None = Field(default=None, ge=1)
    """Width of the encoder where it is not the decoder's."""
    qkv_bias: bool = False
    key_bias: bool = True
    """With ``qkv_bias``: keys have one too (not in Whisper)."""
    out_bias: bool = False

    @property
    def source_elements(self) -> int:
        """Elements kept for each position of the encoder."""
        return 2 * self.kv_heads * self.head_dim

    def weights(self, d_model: int) -> Iterator[Weight]:
        q, kv, source = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.source_width or d_model
        yield Weight(name="cross.q", shape=(q, d_model), shard="tp", units=self.heads)
        yield Weight(name="cross.k", shape=(kv, source), shard="tp", units=self.kv_heads)
        yield Weight(name="cross.v", shape=(kv, source), shard="tp", units=self.kv_heads)
        yield Weight(name="cross.o", shape=(d_model, q), shard="tp", units=self.heads)
        if self.qkv_bias:
            yield Weight(name="cross.q.bias", shape=(q,), role="base", shard="tp", units=self.heads)
            for name in ("k", "v") if self.key_bias else ("v",):
                yield Weight(name=f"cross.{name}.bias", shape=(kv,), role="base", shard="tp", units=self.kv_heads)
        if self.out_bias:
            yield Weight(name="cross.o.bias", shape=(d_model,), role="base")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        heads, kv = self.rank_heads(parallel)
        return 2 * (heads + kv) * self.head_dim

    def ops(self, context: LayerContext) -> Iterator[Op]:
        heads, kv = self.rank_heads(context.parallel)
        yield from context.linear("cross.q", context.d_model, heads * self.head_dim)
        for segment in context.segments:
            if segment.media:
                yield from self._keep(context, segment.batch * _source(segment), kv)
        for segment in context.segments:
            yield Attention(
                name="cross.core",
                ranks=context.ranks,
                batch=segment.batch,
                new=segment.new,
                past=np.maximum(_source(segment) - segment.new, 0.0),  # the mask adds the new tokens to what is seen
                heads=heads,
                kv_heads=kv,
                key_dim=self.head_dim,
                value_dim=self.head_dim,
                mask=Mask(kind="full"),
                base=context.precision.base,
                kv=context.precision.kv,
                fused=not context.unfused,
            )
        yield from context.linear("cross.out", heads * self.head_dim, context.d_model)
        yield from context.all_reduce("cross.all_reduce", context.d_model)

    def _keep(self, context: LayerContext, rows: Num, kv: int) -> Iterator[Op]:
        """Keys and values of the encoder's positions, computed and written once."""
        width = 2 * kv * self.head_dim
        yield from context.linear("cross.kv", self.source_width or context.d_model, width, rows)
        yield Copy(
            name="cross.kv_write",
            ranks=context.ranks,
            fusible=True,
            elements=rows * width,
            source=context.precision.base,
            target=context.precision.kv,
        )


def _source(segment: Segment) -> Num:
    """Positions of the encoder that the sequences of a segment attend to."""
    return segment.past if segment.source is None else segment.source


LAYER = CrossAttentionLayer
