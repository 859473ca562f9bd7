"""Attention to a window and to compressed entries (DeepSeek-V4, section 2.3): sliding, sparsely and heavily compressed.

Each head reads one key that is its value too. ``rate`` tokens are pooled into one entry by a softmax of learned gates;
an indexer with entries of its own may choose the best. The shapes are those of transformers' ``deepseek_v4``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

from inferplan.models.layers.base import Cache, LayerContext, Mixer, Role, Weight
from inferplan.models.layers.mla import Indexer
from inferplan.spec import Field, Spec, model_validator
from inferplan.units import Num
from inferplan.work.formats import find_format
from inferplan.work.ops import Attention, Copy, Mask, Matmul, Op
from inferplan.work.parallel import Parallelism, require_divides
from inferplan.work.step import Segment

_ROTARY = find_format("bf16")
"""Rotary elements of a key stay in it whatever the KV format (vLLM ``fp8_ds_mla``, SGLang's FlashMLA cache)."""


class Pool(Spec):
    """Pools ``rate`` tokens into one entry of ``width`` (section 2.3.1 eq. 9-12, section 2.3.2 eq. 20-23).

    Each token gives values and gates, twice where windows overlap: an entry then is the softmax over its own ``rate``
    tokens and over those before them.
    """

    rate: int = Field(ge=1)
    overlap: bool = False

    @property
    def series(self) -> int:
        """Values, and gates, of the entry's width that a token gives."""
        return 2 if self.overlap else 1

    def weights(self, prefix: str, d_model: int, width: int) -> Iterator[Weight]:
        wide = self.series * width
        for name in ("kv", "gate"):
            yield Weight(name=f"{prefix}.{name}", shape=(wide, d_model), role="base")
        yield Weight(name=f"{prefix}.position", shape=(self.rate, wide), role="base")
        yield Weight(name=f"{prefix}.norm", shape=(width,), role="base")

    def state(self, width: int) -> int:
        """Elements of the values and gates of tokens that have no entry yet, at most, and of those that overlap."""
        waiting = 2 * (self.rate - 1) * self.series * width
        return waiting + (2 * self.rate * width if self.overlap else 0)

    def ops(self, context: LayerContext, prefix: str, width: int) -> Iterator[Op]:
        """The projection of every token, and the entries that they make: bias, exponential, sum, product, sum."""
        wide = 2 * self.series * width
        yield from context.linear(f"attn.{prefix}.kv_gate", context.d_model, wide, role="base")
        slots = self.series * self.rate
        yield context.pointwise(f"attn.{prefix}.pool", width / self.rate, reads=2.0 * slots, flops=5.0 * slots)
        yield context.normalise(f"attn.{prefix}.norm", width, rows=context.tokens / self.rate, style="rms")


class EntryIndexer(Indexer):
    """Chooses the ``top_k`` entries that a token attends to, with narrower entries of its own."""

    @model_validator(mode="after")
    def _own(self) -> Self:
        if self.shared or self.pool is not None:
            raise ValueError("an indexer of compressed entries is its layer's own, and has no further pool")
        return self

    def tensors(self, d_model: int, q_lora: int, pool: Pool) -> Iterator[Weight]:
        """Its parameter tensors."""
        yield Weight(name="index.q", shape=(self.heads * self.head_dim, q_lora))
        yield Weight(name="index.weights", shape=(self.heads, d_model), role="base")
        yield from pool.weights("index", d_model, self.head_dim)

    def run(self, context: LayerContext, q_lora: int, pool: Pool) -> Iterator[Op]:
        """Its queries, head weights and entries, once for the rows of all segments."""
        width = self.heads * self.head_dim
        yield from context.linear("attn.index.q", q_lora, width)
        yield from context.linear("attn.index.weights", context.d_model, self.heads, role="base")
        yield from pool.ops(context, "index", self.head_dim)
        queries, keys = self.queries(context), self.keys or context.precision.kv
        if queries != context.precision.base:
            yield context.quantise("attn.index.q_quantise", context.tokens * width, queries)
        yield context.quantise("attn.index.k_write", context.tokens / pool.rate * self.head_dim, keys)


class CompressedAttentionLayer(Mixer):
    """``heads`` queries of ``head_dim`` over the last ``window`` keys and over one entry for each ``rate`` tokens.

    One token: ``head_dim`` cached elements while in the window, and ``(head_dim + index width)/rate`` for good.
    """

    kind: ClassVar[str] = "compressed_attention"
    summary: ClassVar[str] = "attention to a window and to compressed entries, all or chosen"

    heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    rope_dim: int = Field(default=0, ge=0)
    q_lora: int = Field(ge=1)
    window: int = Field(ge=1)
    groups: int = Field(default=1, ge=1)
    """Groups of heads that the output projection first takes by themselves (section 2.3.1)."""
    group_rank: int = Field(ge=1)
    """Width that it takes each group to."""
    pool: Pool | None = None
    """How entries are made; ``None``: the window alone."""
    indexer: EntryIndexer | None = None
    state_bits: int | None = 32
    """Of what waits for its entry (DeepSeek's ``kv_state`` and ``score_state`` are fp32)."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.heads % self.groups:
            raise ValueError(f"{self.heads} heads are not a multiple of {self.groups} groups")
        if self.indexer is not None and self.pool is None:
            raise ValueError("an indexer chooses among compressed entries: pool is missing")
        if self.rope_dim > self.head_dim:
            raise ValueError(f"rope_dim {self.rope_dim} is more than head_dim {self.head_dim}")
        return self

    @property
    def mask(self) -> Mask:
        if self.pool is None:
            return Mask(kind="window", size=self.window)
        top = self.indexer.top_k if self.indexer is not None else 0
        return Mask(kind="compressed", size=self.window, rate=self.pool.rate, top=top)

    def weights(self, d_model: int) -> Iterator[Weight]:
        heads, wide = self.heads, self.heads * self.head_dim
        yield Weight(name="q_a", shape=(self.q_lora, d_model))
        yield Weight(name="q_a_norm", shape=(self.q_lora,), role="base")
        yield Weight(name="q_b", shape=(wide, self.q_lora), shard="tp", units=heads)
        yield Weight(name="kv", shape=(self.head_dim, d_model))
        yield Weight(name="kv_norm", shape=(self.head_dim,), role="base")
        inner = self.groups * self.group_rank
        yield Weight(name="o_a", shape=(inner, wide // self.groups), shard="tp", units=self.groups)
        yield Weight(name="o_b", shape=(d_model, inner), shard="tp", units=self.groups)
        yield Weight(name="sinks", shape=(heads,), role="base", shard="tp", units=heads)
        if self.pool is not None:
            yield from self.pool.weights("compress", d_model, self.head_dim)
            if self.indexer is not None:
                yield from self.indexer.tensors(d_model, self.q_lora, self.pool)

    def cache(self) -> Cache:
        """The keys of the window."""
        return Cache(
            per_token=self.head_dim,
            mask=Mask(kind="window", size=self.window),
            apart=self.rope_dim,
            apart_format=_ROTARY if self.rope_dim else None,
        )

    def caches(self) -> list[Cache]:
        if self.pool is None:
            return [self.cache()]
        mask, rate = Mask(kind="compressed", rate=self.pool.rate), self.pool.rate
        index, state = self.indexer, self.pool.state(self.head_dim)
        kept = []
        if index is not None:
            apart = 0 if index.keys is None else index.head_dim
            kept = [Cache(per_token=index.head_dim, rate=rate, mask=mask, apart=apart, apart_format=index.keys)]
            state += self.pool.state(index.head_dim)
        entries = Cache(
            per_token=self.head_dim,
            rate=rate,
            mask=mask,
            apart=self.rope_dim,
            apart_format=_ROTARY if self.rope_dim else None,
            state=state,
            state_bits=self.state_bits,
        )
        return [self.cache(), entries, *kept]

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.heads, "query heads")
        require_divides("tp", parallel.tp, self.groups, "groups of the output projection")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        own = self.heads * 2 * self.head_dim + self.groups * self.group_rank
        pooled = 2 * self.pool.series * self.head_dim if self.pool is not None else 0
        return self.q_lora + self.head_dim + pooled + own / parallel.tp

    def ops(self, context: LayerContext) -> Iterator[Op]:
        heads, groups = self.heads // context.parallel.tp, self.groups // context.parallel.tp
        yield from self._project(context, heads)
        if self.pool is not None:
            yield from self.pool.ops(context, "compress", self.head_dim)
            yield self._write(context, "attn.compress.kv_write", context.tokens / self.pool.rate)
            if self.indexer is not None:
                yield from self.indexer.run(context, self.q_lora, self.pool)
        for segment in context.segments:
            if self.indexer is not None and self.pool is not None:
                yield from self.indexer.score(context, segment, Mask(kind="compressed", rate=self.pool.rate))
            yield from self._core(context, segment, heads)
        if self.rope_dim:
            yield context.pointwise("attn.unrotate", heads * self.rope_dim, flops=3.0)
        yield from self._group(context, heads * self.head_dim // groups, groups)
        yield from context.linear("attn.o_b", groups * self.group_rank, context.d_model)
        yield from context.all_reduce("attn.all_reduce", context.d_model)

    def _project(self, context: LayerContext, heads: int) -> Iterator[Op]:
        """Queries through their latent, the one key, their norms, rotary, and the key to the cache."""
        yield from context.linear("attn.qkv_a", context.d_model, self.q_lora + self.head_dim)
        yield context.normalise("attn.q_a_norm", self.q_lora, style="rms")
        yield context.normalise("attn.kv_norm", self.head_dim, style="rms")
        yield from context.linear("attn.q_b", self.q_lora, heads * self.head_dim)
        yield context.normalise("attn.q_norm", self.head_dim, rows=context.tokens * heads, style="plain")
        if self.rope_dim:
            yield context.pointwise("attn.rotary", (heads + 1) * self.rope_dim, flops=3.0)
        yield self._write(context, "attn.kv_write", context.tokens)

    def _write(self, context: LayerContext, name: str, rows: Num) -> Op:
        return Copy(
            name=name,
            ranks=context.ranks,
            fusible=True,
            elements=rows * self.head_dim,
            source=context.precision.base,
            target=context.precision.kv,
        )

    def _group(self, context: LayerContext, width: int, groups: int) -> Iterator[Op]:
        """The outputs of each group of heads projected by themselves."""
        role: Role = "weights"
        weight, base = context.precision.stored(role, "o_a"), context.precision.base
        source = context.precision.linear_input(weight)
        if source != base:
            yield context.quantise("attn.o_a.quantise", context.tokens * width * groups, source)
        yield Matmul(
            name="attn.o_a",
            ranks=context.ranks,
            batch=groups,
            m=context.tokens,
            k=width,
            n=self.group_rank,
            weight=weight,
            input=source,
            output=base,
        )

    def _core(self, context: LayerContext, segment: Segment, heads: int) -> Iterator[Op]:
        """Attention of one segment, with the traffic of context parallelism: keys gathered, or outputs merged."""
        cp, mask = context.parallel.cp, self.mask if segment.causal else Mask(kind="full")
        yield Attention(
            name="attn.core",
            ranks=context.ranks,
            batch=segment.batch,
            new=segment.new,
            past=segment.past,
            heads=heads,
            kv_heads=1,
            key_dim=self.head_dim,
            value_dim=self.head_dim,
            mask=mask,
            base=context.precision.base,
            kv=context.precision.kv,
            shared_value=True,
            fused=not context.unfused,
            query_shards=cp if segment.wide else 1,
            key_shards=1 if segment.wide else cp,
        )
        span = context.parallel.tp * cp
        if segment.wide:
            elements = segment.batch * mask.reach(segment.new, segment.past) * self.head_dim
            yield from context.collective("attn.gather_kv", "all_gather", elements, cp, span)
        else:
            elements = segment.tokens * heads * (self.head_dim + 1)
            yield from context.collective("attn.merge", "all_reduce", elements, cp, span)


LAYER = CompressedAttentionLayer
