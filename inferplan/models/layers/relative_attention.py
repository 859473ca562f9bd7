"""Attention with keys of positions beside those of tokens (Transformer-XL, 1901.02860, 3.3; Shaw, 1803.02155)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Self

from pydantic import Field, model_validator

from inferplan.models.layers.attention import AttentionLayer
from inferplan.models.layers.base import LayerContext, Weight
from inferplan.work.ops import Attention, Elementwise, Mask, Op
from inferplan.work.step import Segment

_GATE = 8
"""Columns that a head's part of the input is projected to."""


class RelativeAttentionLayer(AttentionLayer):
    """To the score of each pair comes the product of the query with a key of their distance.

    The keys of distances are projections of sinusoids, every distance of the sequence once, with a bias of the queries
    for tokens and one for distances; or rows of a table that all heads share (``distances``). ``gated``: there are no
    such keys; a bias by distance (``relative_buckets``) is scaled by two gates of each head's part of the input.
    """

    kind: ClassVar[str] = "relative_attention"
    summary: ClassVar[str] = "attention with keys of distances"

    distances: int = Field(default=0, ge=0)
    """Rows of the layer's table of distances; 0: they are projected."""
    shares_distances: bool = False
    """The table is that of an earlier layer (SpeechT5)."""
    segments: int = Field(default=0, ge=0)
    """Segments of a text that pairs may share or not, each with a key, and a bias of the queries for them (XLNet)."""
    gated: bool = False
    """Two gates of a head, sums of four columns each, and a constant scale its biases (WavLM, 2110.13900)."""

    @model_validator(mode="after")
    def _of_every_head(self) -> Self:
        if self.kv_heads != self.heads or self.shares_cache or self.input_scale != 1:
            raise ValueError("keys of distances are known of attention with a key for every query head")
        if self.shares_distances and not self.distances:
            raise ValueError("shares_distances needs the number of distances")
        if self.gated and self.distances:
            raise ValueError("gates scale biases by distance: there are no keys of distances beside them")
        return self

    def weights(self, d_model: int) -> Iterator[Weight]:
        yield from super().weights(d_model)
        if self.gated:
            yield Weight(name="position_gate", shape=(_GATE, self.head_dim), role="base")
            yield Weight(name="position_gate.bias", shape=(_GATE,), role="base")
            yield Weight(name="position_gate.scale", shape=(self.heads,), role="base", shard="tp", units=self.heads)
            return
        if self.distances:
            if not self.shares_distances:
                yield Weight(name="distances", shape=(self.distances, self.head_dim), role="base")
            return
        yield Weight(name="position", shape=(self.heads * self.head_dim, d_model), shard="tp", units=self.heads)
        biases = (self.heads, 2, self.head_dim)
        yield Weight(name="position.bias", shape=biases, role="base", shard="tp", units=self.heads)
        if self.segments:
            keys = (self.heads, self.segments + 1, self.head_dim)
            yield Weight(name="segments", shape=keys, role="base", shard="tp", units=self.heads)

    def _core(self, context: LayerContext, segment: Segment, on_rank: tuple[int, int], joined: bool) -> Iterator[Op]:
        """The scores lie in memory: those of distances are shifted before they are added."""
        heads, base = on_rank[0], context.precision.base
        if self.gated:
            yield from context.linear("attn.position_gate", self.head_dim, _GATE, segment.tokens * heads, role="base")
        elif not self.distances:
            rows = segment.past + 2 * segment.new - 1
            yield from context.linear("attn.position", context.d_model, heads * self.head_dim, rows=rows)
        for op in super()._core(context, segment, on_rank, joined):
            if not isinstance(op, Attention):
                yield op
                continue
            if not self.gated:
                past = segment.past + (0 if self.distances else segment.new - 1)
                full = Mask(kind="full")
                scores = replace(op, name="attn.position_scores", past=past, value_dim=0, mask=full, kv=base)
                yield replace(scores, fused=False, joined=False)
            yield replace(op, fused=False)
            yield Elementwise(
                name="attn.position_add",
                ranks=context.ranks,
                fusible=True,
                tokens=segment.batch * op.mask.pairs(segment.new, segment.past),
                width=heads,
                base=base,
                reads=2.0,
                flops=2.0 if self.gated else 1.0,
            )


LAYER = RelativeAttentionLayer
