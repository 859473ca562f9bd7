"""Block-sparse attention (MiniMax-M3's MSA): each key head attends to the blocks of keys that its index head chooses.

The shapes are those of transformers' ``minimax_m3_vl`` (``MiniMaxM3VLIndexer``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

from inferplan.models.layers.attention import AttentionLayer
from inferplan.models.layers.base import Cache, LayerContext, Weight
from inferplan.spec import Field, Spec, model_validator
from inferplan.work.formats import find_format
from inferplan.work.ops import IndexSelect, Mask, Op, TopK
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment


class BlockIndexer(Spec):
    """Scores every key with ``heads`` queries of ``head_dim``; the best key of a ``block`` stands for all of it."""

    heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    block: int = Field(ge=2)
    top_blocks: int = Field(ge=1)
    """Blocks that a token attends to, its own among them."""


class BlockSparseAttentionLayer(AttentionLayer):
    """Grouped-query attention to ``top_blocks`` blocks of ``block`` keys.

    One token and layer: ``2*kv_heads*head_dim`` cached elements and one index key, copied on every rank.
    """

    kind: ClassVar[str] = "block_sparse_attention"
    summary: ClassVar[str] = "grouped-query attention to chosen blocks of keys"

    indexer: BlockIndexer

    @model_validator(mode="after")
    def _chosen(self) -> Self:
        if self.kv_heads % self.indexer.heads:
            raise ValueError(f"{self.kv_heads} key heads do not share {self.indexer.heads} index heads evenly")
        if self.window is not None or self.chunk is not None or not self.causal:
            raise ValueError("chosen blocks exclude windows, chunks and looking ahead")
        return self

    @property
    def mask(self) -> Mask:
        return Mask(kind="blocks", size=self.indexer.block, top=self.indexer.top_blocks)

    def weights(self, d_model: int) -> Iterator[Weight]:
        yield from super().weights(d_model)
        index = self.indexer
        yield Weight(name="index.q", shape=(index.heads * index.head_dim, d_model), shard="tp", units=index.heads)
        yield Weight(name="index.k", shape=(index.head_dim, d_model))
        yield Weight(name="index.norms", shape=(2, index.head_dim), role="base")

    def caches(self) -> list[Cache]:
        return [self.cache(), Cache(per_token=self.indexer.head_dim)]

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        index = self.indexer
        return super().live_width(d_model, parallel) + self._index_heads(parallel) * index.head_dim + index.head_dim

    def _index_heads(self, parallel: Parallelism) -> int:
        """Those of the key heads of one rank."""
        return max(1, self.indexer.heads // parallel.tp)

    def ops(self, context: LayerContext) -> Iterator[Op]:
        index, heads = self.indexer, self._index_heads(context.parallel)
        yield from context.linear("attn.index.q", context.d_model, heads * index.head_dim)
        yield from context.linear("attn.index.k", context.d_model, index.head_dim)
        yield context.normalise("attn.index.norm", index.head_dim, rows=context.tokens * (heads + 1), style="rms")
        if self.rotary:
            yield context.pointwise("attn.index.rotary", (heads + 1) * index.head_dim, flops=3.0)
        yield context.quantise("attn.index.k_write", context.tokens * index.head_dim, context.precision.kv)
        for segment in context.segments:
            yield from self._choose(context, segment, heads)
        yield from super().ops(context)

    def _choose(self, context: LayerContext, segment: Segment, heads: int) -> Iterator[Op]:
        """The scores of a segment, and the best blocks of each index head."""
        cp, index = context.parallel.cp, self.indexer
        select = IndexSelect(
            name="attn.index.select",
            ranks=context.ranks,
            batch=segment.batch,
            new=segment.new,
            past=segment.past,
            heads=heads,
            key_dim=index.head_dim,
            top_k=index.top_blocks,
            block=index.block,
            mask=Mask() if segment.causal else Mask(kind="full"),
            base=context.precision.base,
            kv=context.precision.kv,
            query_shards=cp if segment.wide else 1,
            key_shards=1 if segment.wide else cp,
        )
        yield select
        yield TopK(
            name="attn.index.top_k",
            ranks=context.ranks,
            fusible=True,
            rows=context.rows(segment) * heads,
            scores=select.pairs * heads / index.block,
            top_k=index.top_blocks,
            base=find_format("fp32"),
        )


LAYER = BlockSparseAttentionLayer
