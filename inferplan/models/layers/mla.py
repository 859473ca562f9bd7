"""Multi-head latent attention (DeepSeek-V2, 2405.04434 eq. 9-19), and its sparse form (DeepSeek-V3.2 eq. 1-2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field, model_validator

from inferplan.models.layers.base import Cache, LayerContext, Mixer, Weight
from inferplan.spec import Spec
from inferplan.units import Num
from inferplan.work.formats import find_format
from inferplan.work.ops import Attention, Copy, IndexSelect, Mask, Matmul, Op
from inferplan.work.parallel import Parallelism, require_divides
from inferplan.work.step import Segment


class Indexer(Spec):
    """Chooses the ``top_k`` cached positions each token attends to; every rank runs all of its ``heads``."""

    heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    top_k: int = Field(ge=1)
    shared: bool = False
    """Takes the positions an earlier layer chose: no weights, no index keys, no scoring (GLM-5.2)."""


class MlaLayer(Mixer):
    """Keys and values of all heads come from one latent of ``kv_lora`` and one rotary key of ``rope_dim``.

    One token and layer: ``kv_lora + rope_dim`` cached elements, copied on every tensor-parallel rank.
    """

    kind: ClassVar[str] = "mla"
    summary: ClassVar[str] = "multi-head latent attention, dense or with an indexer"

    heads: int = Field(ge=1)
    q_lora: int | None = Field(default=None, ge=1)
    """Rank of the query projection; ``None`` for a full one (DeepSeek-V2-Lite)."""
    kv_lora: int = Field(ge=1)
    nope_dim: int = Field(ge=1)
    """Width of a query or key head without position."""
    rope_dim: int = Field(ge=0)
    value_dim: int = Field(ge=1)
    rotary: bool = True
    bias: bool = False
    """Biases on the two down projections and on the output."""
    indexer: Indexer | None = None

    @model_validator(mode="after")
    def _consistent(self) -> MlaLayer:
        if self.indexer is not None and self.q_lora is None:
            raise ValueError("an indexer reads the query latent: q_lora is missing")
        return self

    @property
    def key_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def latent_dim(self) -> int:
        return self.kv_lora + self.rope_dim

    @property
    def mask(self) -> Mask:
        return Mask() if self.indexer is None else Mask(kind="top", size=self.indexer.top_k)

    def weights(self, d_model: int) -> Iterator[Weight]:
        heads = self.heads
        if self.q_lora is None:
            yield Weight(name="q", shape=(heads * self.key_dim, d_model), shard="tp", units=heads)
        else:
            yield Weight(name="q_a", shape=(self.q_lora, d_model))
            yield Weight(name="q_a_norm", shape=(self.q_lora,), role="base")
            yield Weight(name="q_b", shape=(heads * self.key_dim, self.q_lora), shard="tp", units=heads)
        yield Weight(name="kv_a", shape=(self.latent_dim, d_model))
        yield Weight(name="kv_a_norm", shape=(self.kv_lora,), role="base")
        up = heads * (self.nope_dim + self.value_dim)
        yield Weight(name="kv_b", shape=(up, self.kv_lora), shard="tp", units=heads)
        yield Weight(name="o", shape=(d_model, heads * self.value_dim), shard="tp", units=heads)
        if self.bias:
            yield Weight(name="down.bias", shape=((self.q_lora or 0) + self.latent_dim,), role="base")
            yield Weight(name="o.bias", shape=(d_model,), role="base")
        yield from self._index_weights(d_model)

    def _index_weights(self, d_model: int) -> Iterator[Weight]:
        index = self.indexer
        if index is None or index.shared or self.q_lora is None:
            return
        yield Weight(name="index.q", shape=(index.heads * index.head_dim, self.q_lora))
        yield Weight(name="index.k", shape=(index.head_dim, d_model))
        yield Weight(name="index.k_norm", shape=(2, index.head_dim), role="base")
        yield Weight(name="index.weights", shape=(index.heads, d_model), role="base")

    def cache(self) -> Cache:
        index = self.indexer
        extra = 0 if index is None or index.shared else index.head_dim
        return Cache(per_token=self.latent_dim + extra, units=1)

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.heads, "query heads")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        expanded = self.heads // parallel.tp * (2 * self.key_dim + 2 * self.value_dim)
        return (self.q_lora or 0) + self.latent_dim + expanded

    def ops(self, context: LayerContext) -> Iterator[Op]:
        heads, tokens = self.heads // context.parallel.tp, context.tokens
        yield from self._project(context, heads)
        yield Copy(
            name="attn.kv_write",
            ranks=context.ranks,
            fusible=True,
            elements=tokens * self.cache().per_token,
            source=context.precision.base,
            target=context.precision.kv,
        )
        absorbed = [segment for segment in context.segments if self._absorbs(segment)]
        expanded = [segment for segment in context.segments if not self._absorbs(segment)]
        if expanded:
            rows = sum((s.batch * (s.past + s.new) for s in expanded), start=0.0)
            yield from context.linear("attn.kv_b", self.kv_lora, heads * (self.nope_dim + self.value_dim), rows=rows)
        if absorbed:
            rows = sum((context.rows(s) for s in absorbed), start=0.0)
            yield self._absorb(context, "attn.absorb_q", rows, (heads, self.nope_dim, self.kv_lora))
        yield from self._index(context)
        for segment in context.segments:
            yield from self._select(context, segment)
            yield from self._core(context, segment, heads)
        if absorbed:
            yield self._absorb(context, "attn.absorb_v", rows, (heads, self.kv_lora, self.value_dim))
        yield from context.linear("attn.out", heads * self.value_dim, context.d_model)
        yield from context.all_reduce("attn.all_reduce", context.d_model)

    def _absorbs(self, segment: Segment) -> bool:
        """Few new tokens attend to the latents themselves; so does every sparse segment (V3.2 section 2.1)."""
        return self.indexer is not None or not segment.wide

    def _project(self, context: LayerContext, heads: int) -> Iterator[Op]:
        """Down projections (whole on every rank), their norms, the query up projection, rotary."""
        if self.q_lora is None:
            yield from context.linear("attn.q", context.d_model, heads * self.key_dim)
            yield from context.linear("attn.kv_a", context.d_model, self.latent_dim)
        else:
            yield from context.linear("attn.qkv_a", context.d_model, self.q_lora + self.latent_dim)
            yield context.normalise("attn.q_a_norm", self.q_lora, style="rms")
            yield from context.linear("attn.q_b", self.q_lora, heads * self.key_dim)
        yield context.normalise("attn.kv_a_norm", self.kv_lora, style="rms")
        if self.rotary and self.rope_dim:
            yield context.pointwise("attn.rotary", (heads + 1) * self.rope_dim, flops=3.0)

    def _absorb(self, context: LayerContext, name: str, rows: Num, size: tuple[int, int, int]) -> Op:
        """One half of kv_b applied for each head to the query or to the output (2405.04434 section 2.1.2)."""
        batch, k, n = size
        weight, base = context.precision.stored("weights", "kv_b"), context.precision.base
        return Matmul(
            name=name, ranks=context.ranks, batch=batch, m=rows, k=k, n=n, weight=weight, input=base, output=base
        )

    def _index(self, context: LayerContext) -> Iterator[Op]:
        """The indexer's projections, once for the rows of all segments (DeepSeek-V3.2 eq. 1)."""
        index = self.indexer
        if index is None or index.shared or self.q_lora is None:
            return
        yield from context.linear("attn.index.q", self.q_lora, index.heads * index.head_dim)
        yield from context.linear("attn.index.k", context.d_model, index.head_dim)
        yield context.normalise("attn.index.k_norm", index.head_dim, style="layer")
        yield from context.linear("attn.index.weights", context.d_model, index.heads, role="base")

    def _select(self, context: LayerContext, segment: Segment) -> Iterator[Op]:
        """The indexer's scores over the whole context of a segment, and the choice of its best positions."""
        index = self.indexer
        if index is None or index.shared or self.q_lora is None:
            return
        cp = context.parallel.cp
        select = IndexSelect(
            name="attn.index.select",
            ranks=context.ranks,
            batch=segment.batch,
            new=segment.new,
            past=segment.past,
            heads=index.heads,
            key_dim=index.head_dim,
            top_k=index.top_k,
            mask=Mask() if segment.causal else Mask(kind="full"),
            base=context.precision.base,
            kv=context.precision.kv,
            query_shards=cp if segment.wide else 1,
            key_shards=1 if segment.wide else cp,
        )
        yield select
        wide = find_format("fp32")
        yield Copy(
            name="attn.index.scores",
            ranks=context.ranks,
            fusible=True,
            elements=select.pairs,
            source=wide,
            target=wide,
        )

    def _core(self, context: LayerContext, segment: Segment, heads: int) -> Iterator[Op]:
        """Attention of one segment in the form it takes, with the traffic of context parallelism."""
        cp, absorbed = context.parallel.cp, self._absorbs(segment)
        mask = self.mask if segment.causal or self.indexer is not None else Mask(kind="full")
        yield Attention(
            name="attn.core",
            ranks=context.ranks,
            batch=segment.batch,
            new=segment.new,
            past=segment.past,
            heads=heads,
            kv_heads=1 if absorbed else heads,
            key_dim=self.latent_dim if absorbed else self.key_dim,
            value_dim=self.kv_lora if absorbed else self.value_dim,
            mask=mask,
            base=context.precision.base,
            kv=context.precision.kv if absorbed else context.precision.base,
            shared_value=absorbed,
            fused=not context.unfused,
            query_shards=cp if segment.wide else 1,
            key_shards=1 if segment.wide else cp,
        )
        span = context.parallel.tp * cp
        if segment.wide:
            elements = segment.batch * (segment.past + segment.new) * self.latent_dim
            yield from context.collective("attn.gather_kv", "all_gather", elements, cp, span)
        else:
            elements = segment.tokens * heads * (self.kv_lora + 1)
            yield from context.collective("attn.merge", "all_reduce", elements, cp, span)


LAYER = MlaLayer
