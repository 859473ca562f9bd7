"""Attention with terms for content and position apart (DeBERTa, 2006.03654, section 3.1)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Self

from inferplan.models.layers.attention import AttentionLayer
from inferplan.models.layers.base import LayerContext, Weight
from inferplan.spec import Field, model_validator
from inferplan.work.ops import Attention, Elementwise, Matmul, Op
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment


class DisentangledAttentionLayer(AttentionLayer):
    """Scores of content to content, and ``terms`` of content to position or position to content.

    Every head multiplies its queries (or keys) with ``2*span`` embeddings of relative positions, of which each pair of
    tokens takes the one at its distance. The embeddings belong to the model; every layer projects them.
    """

    kind: ClassVar[str] = "disentangled_attention"
    summary: ClassVar[str] = "attention with terms for content and position apart"

    span: int = Field(ge=1)
    """Distances on either side that have an embedding of their own."""
    terms: int = Field(ge=1, le=2)
    shares_projections: bool = False
    """Positions go through the projections of queries and keys."""

    @model_validator(mode="after")
    def _of_every_head(self) -> Self:
        if self.kv_heads != self.heads or self.shares_cache or self.input_scale != 1:
            raise ValueError("terms of position are known of attention with a key for every query head")
        return self

    def weights(self, d_model: int) -> Iterator[Weight]:
        yield from super().weights(d_model)
        width = self.heads * self.head_dim
        for name in () if self.shares_projections else ("position_key", "position_query")[: self.terms]:
            yield Weight(name=name, shape=(width, d_model), shard="tp", units=self.heads)
            yield Weight(name=f"{name}.bias", shape=(width,), role="base", shard="tp", units=self.heads)

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        heads, _ = self.rank_heads(parallel)
        return super().live_width(d_model, parallel) + heads * 2 * self.span

    def _core(self, context: LayerContext, segment: Segment, on_rank: tuple[int, int], joined: bool) -> Iterator[Op]:
        """The scores lie in memory: what is added to them has to be gathered from those of the positions."""
        heads, base = on_rank[0], context.precision.base
        width = self.terms * heads * self.head_dim
        name = "attn.shared_positions" if self.shares_projections else "attn.positions"
        yield from context.linear(name, context.d_model, width, rows=2.0 * self.span)
        matmul = Matmul(
            name="attn.position_scores",
            ranks=context.ranks,
            m=segment.tokens,
            k=self.head_dim,
            n=2 * self.span,
            weight=base,
            input=base,
            output=base,
            batch=heads,
        )
        yield matmul.repeated(self.terms)
        for op in super()._core(context, segment, on_rank, joined):
            if not isinstance(op, Attention):
                yield op
                continue
            yield replace(op, fused=False)
            pairs = segment.batch * op.mask.pairs(segment.new, segment.past)
            yield Elementwise(
                name="attn.position_add",
                ranks=context.ranks,
                fusible=True,
                tokens=pairs,
                width=heads,
                base=base,
                reads=1.0 + self.terms,
                flops=float(self.terms),
            )


LAYER = DisentangledAttentionLayer
