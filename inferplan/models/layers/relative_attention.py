"""Attention with keys of distances beside those of tokens (Transformer-XL, 1901.02860, 3.3)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Self

from inferplan.models.layers.attention import AttentionLayer
from inferplan.models.layers.base import LayerContext, Weight
from inferplan.spec import model_validator
from inferplan.work.ops import Attention, Elementwise, Mask, Op
from inferplan.work.step import Segment


class RelativeAttentionLayer(AttentionLayer):
    """To the score of each pair comes the product of the query with a key of their distance.

    The keys of distances are projections of sinusoids, every distance of the sequence once; the queries have a bias for
    tokens and one for distances.
    """

    kind: ClassVar[str] = "relative_attention"
    summary: ClassVar[str] = "attention with keys of distances"

    @model_validator(mode="after")
    def _of_every_head(self) -> Self:
        if self.kv_heads != self.heads or self.shares_cache or self.input_scale != 1:
            raise ValueError("keys of distances are known of attention with a key for every query head")
        return self

    def weights(self, d_model: int) -> Iterator[Weight]:
        yield from super().weights(d_model)
        yield Weight(name="position", shape=(self.heads * self.head_dim, d_model), shard="tp", units=self.heads)
        biases = (self.heads, 2, self.head_dim)
        yield Weight(name="position.bias", shape=biases, role="base", shard="tp", units=self.heads)

    def _core(self, context: LayerContext, segment: Segment, on_rank: tuple[int, int], joined: bool) -> Iterator[Op]:
        """The scores lie in memory: those of distances are shifted before they are added."""
        heads, base = on_rank[0], context.precision.base
        rows = segment.past + 2 * segment.new - 1
        yield from context.linear("attn.position", context.d_model, heads * self.head_dim, rows=rows)
        for op in super()._core(context, segment, on_rank, joined):
            if not isinstance(op, Attention):
                yield op
                continue
            past = segment.past + segment.new - 1
            scores = replace(op, name="attn.position_scores", past=past, value_dim=0, mask=Mask(kind="full"), kv=base)
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
                flops=1.0,
            )


LAYER = RelativeAttentionLayer
