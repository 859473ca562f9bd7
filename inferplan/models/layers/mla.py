"""Multi-head latent attention (DeepSeek-V2, 2405.04434 eq. 9-19), and its sparse form (DeepSeek-V3.2 eq. 1-2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferplan.affine import dense
from inferplan.models.layers.base import Cache, LayerContext, Mixer, Weight
from inferplan.spec import Field, Spec, field_validator, model_validator
from inferplan.units import Num
from inferplan.work.formats import Format, find_format
from inferplan.work.ops import Attention, Copy, IndexSelect, Mask, Matmul, Op, TopK
from inferplan.work.parallel import Parallelism, require_divides
from inferplan.work.step import Segment

_ALL = Mask()


class Indexer(Spec):
    """Chooses the ``top_k`` cached positions each token attends to; every rank runs all of its ``heads``."""

    heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    top_k: int = Field(ge=1)
    shared: bool = False
    """Takes the positions an earlier layer chose: no weights, no index keys, no scoring (GLM-5.2)."""
    format: str | None = None
    """What its keys are kept in, and its queries rounded to, whatever the KV format; ``None`` for the KV format."""

    reads_input: bool = False
    """Its queries come from the layer's input through a norm of their own, with a scale and an offset for each head,
    where there is no query latent (Mistral Large 4)."""
    pool: int | None = Field(default=None, ge=2)
    """One key stands for so many tokens, their mean by learned gates; the tokens of a pool are chosen together, and
    those of the last, which is not whole yet, always are (GLM-5.3-Flash)."""

    @model_validator(mode="after")
    def _whole(self) -> Indexer:
        if self.pool is not None and self.top_k % self.pool:
            raise ValueError(f"top_k {self.top_k} is not a multiple of pools of {self.pool}")
        return self

    @field_validator("format")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        return None if name is None else find_format(name).name

    @property
    def keys(self) -> Format | None:
        """The format of the keys; ``None`` for that of the KV cache."""
        return None if self.format is None else find_format(self.format)

    def weights(self, d_model: int, q_lora: int) -> Iterator[Weight]:
        """Its parameter tensors in a layer whose query latent is ``q_lora`` wide."""
        if self.shared:
            return
        yield Weight(name="index.q", shape=(self.heads * self.head_dim, q_lora))
        if self.reads_input:
            yield Weight(name="index.q_norm", shape=(2, q_lora), role="base")
            yield Weight(name="index.scale", shape=(2, self.heads), role="base")
        yield Weight(name="index.k", shape=(self.head_dim, d_model))
        yield Weight(name="index.k_norm", shape=(2, self.head_dim), role="base")
        yield Weight(name="index.weights", shape=(self.heads, d_model), role="base")
        if self.pool is not None:
            yield Weight(name="index.gate", shape=(self.head_dim, d_model))
            yield Weight(name="index.position", shape=(self.pool, self.head_dim), role="base")

    @property
    def most(self) -> int:
        """Positions that a token attends to, at most: those chosen, and the pool that is not whole yet."""
        return self.top_k + (self.pool or 1) - 1

    def cache(self) -> Cache:
        """Its keys; where they are pooled, the keys and gates of tokens that wait for their pool to be whole."""
        kept = Cache(per_token=self.head_dim, apart=self.head_dim if self.keys else 0, apart_format=self.keys)
        if self.pool is None:
            return kept
        mask, waiting = Mask(kind="compressed", rate=self.pool), 2 * (self.pool - 1) * self.head_dim
        return replace(kept, rate=self.pool, mask=mask, state=waiting)

    def project(self, context: LayerContext, q_lora: int) -> Iterator[Op]:
        """Its projections and keys, once for the rows of all segments (DeepSeek-V3.2 eq. 1)."""
        if self.shared:
            return
        width = self.heads * self.head_dim
        if self.reads_input:
            yield context.normalise("attn.index.q_norm", q_lora, style="layer")
        yield from context.linear("attn.index.q", q_lora, width)
        yield from context.linear("attn.index.k", context.d_model, self.head_dim)
        yield context.normalise("attn.index.k_norm", self.head_dim, style="layer")
        yield from context.linear("attn.index.weights", context.d_model, self.heads, role="base")
        queries = self.queries(context)
        if queries != context.precision.base:
            yield context.quantise("attn.index.q_quantise", context.tokens * width, queries)
        keys, rate = self.keys or context.precision.kv, 1
        if self.pool is not None:
            rate = self.pool
            yield from context.linear("attn.index.gate", context.d_model, self.head_dim)
            yield context.pointwise("attn.index.pool", self.head_dim / rate, reads=2.0 * rate, flops=5.0 * rate)
        yield context.quantise("attn.index.k_write", context.tokens / rate * self.head_dim, keys)

    def queries(self, context: LayerContext) -> Format:
        """What its queries are rounded to: the arithmetic of its keys, where the device has it."""
        if self.keys is None or not context.computes(self.keys.math):
            return context.precision.base
        return find_format(self.keys.math)

    def score(self, context: LayerContext, segment: Segment, mask: Mask = _ALL) -> Iterator[Op]:
        """Its scores of what a segment sees, and the choice of its best positions, or compressed entries."""
        if self.shared:
            return
        cp, rate = context.parallel.cp, self.pool or 1
        if rate > 1:
            mask = Mask(kind="compressed", rate=rate)
        select = IndexSelect(
            name="attn.index.select",
            ranks=context.ranks,
            batch=segment.batch,
            new=segment.new,
            past=segment.past,
            heads=self.heads,
            key_dim=self.head_dim,
            top_k=self.top_k // rate,
            mask=mask if segment.causal else Mask(kind="full"),
            base=self.queries(context),
            kv=self.keys or context.precision.kv,
            query_shards=cp if segment.wide else 1,
            key_shards=1 if segment.wide else cp,
        )
        yield select
        yield TopK(
            name="attn.index.top_k",
            ranks=context.ranks,
            fusible=True,
            rows=context.rows(segment),
            scores=select.pairs,
            top_k=self.top_k // rate,
            base=find_format("fp32"),
        )


class _Wide(NamedTuple):
    """A segment of many new tokens, and where it runs in which form: 1 and 0, or an array of them."""

    segment: Segment
    expanded: Num
    scored: Num
    """Where the indexer scores: a segment that its choice would hold whole needs none."""


def _where(chosen: bool | NDArray[np.bool_]) -> Num:
    """1 where ``chosen``, else 0; a float for a single number."""
    return np.where(chosen, 1.0, 0.0) if np.ndim(chosen) else float(chosen)


def _run(ops: Iterator[Op], count: Num) -> Iterator[Op]:
    return ops if np.ndim(count) == 0 and count == 1.0 else (op.repeated(count) for op in ops)


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
    gate: Literal["none", "head", "channel", "query"] = "none"
    """A gate of the output from the layer's input: one a head (Ling 3, dots3) or one a channel (Hy4). ``query``: one a
    channel that comes with the queries, and both from the query latent before and behind its norm (A.X K2)."""
    rope_norm: bool = False
    """An RMS norm of the rotary key (dots3)."""
    sinks: bool = False
    """A learned logit for each head."""
    window: int | None = Field(default=None, ge=1)
    """Sliding window, without an indexer."""
    position_scale: bool = False
    """A scale and an offset for each query head, of the logarithm of the position (Mistral Large 4)."""

    @model_validator(mode="after")
    def _consistent(self) -> MlaLayer:
        index = self.indexer
        if index is not None and not index.shared and (self.q_lora is None) != index.reads_input:
            raise ValueError("an indexer reads the query latent: q_lora is missing, or reads_input is also set")
        if self.gate == "query" and self.q_lora is None:
            raise ValueError("a gate that comes with the queries reads the query latent: q_lora is missing")
        if self.indexer is not None and self.window is not None:
            raise ValueError("a window and an indexer exclude each other")
        return self

    @property
    def key_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def latent_dim(self) -> int:
        return self.kv_lora + self.rope_dim

    @property
    def mask(self) -> Mask:
        if self.indexer is not None:
            return Mask(kind="top", size=self.indexer.most)
        return Mask() if self.window is None else Mask(kind="window", size=self.window)

    @property
    def gate_width(self) -> int:
        """Gates of all heads."""
        return {"head": self.heads, "channel": self.heads * self.value_dim}.get(self.gate, 0)

    def weights(self, d_model: int) -> Iterator[Weight]:
        heads = self.heads
        if self.q_lora is None:
            yield Weight(name="q", shape=(heads * self.key_dim, d_model), shard="tp", units=heads)
        else:
            yield Weight(name="q_a", shape=(self.q_lora, d_model))
            yield Weight(name="q_a_norm", shape=(self.q_lora,), role="base")
            inputs, outputs = _query_head(self, self.q_lora)
            yield Weight(name="q_b", shape=(heads * outputs, inputs), shard="tp", units=heads)
        yield Weight(name="kv_a", shape=(self.latent_dim, d_model))
        yield Weight(name="kv_a_norm", shape=(self.kv_lora,), role="base")
        up = heads * (self.nope_dim + self.value_dim)
        yield Weight(name="kv_b", shape=(up, self.kv_lora), shard="tp", units=heads)
        yield Weight(name="o", shape=(d_model, heads * self.value_dim), shard="tp", units=heads)
        if self.bias:
            yield Weight(name="down.bias", shape=((self.q_lora or 0) + self.latent_dim,), role="base")
            yield Weight(name="o.bias", shape=(d_model,), role="base")
        if self.gate_width:
            yield Weight(name="gate", shape=(self.gate_width, d_model), shard="tp", units=heads)
        if self.rope_norm:
            yield Weight(name="rope_norm", shape=(self.rope_dim,), role="base")
        if self.sinks:
            yield Weight(name="sinks", shape=(heads,), role="base", shard="tp", units=heads)
        if self.position_scale:
            yield Weight(name="position_scale", shape=(2, heads), role="base", shard="tp", units=heads)
        if self.indexer is not None:
            yield from self.indexer.weights(d_model, self.q_lora or d_model)

    def cache(self) -> Cache:
        index = self.indexer
        if index is None or index.shared or index.pool is not None:
            mask = self.mask if self.window is not None else Mask()
            return Cache(per_token=self.latent_dim, mask=mask, units=1)
        apart = 0 if index.keys is None else index.head_dim
        return Cache(per_token=self.latent_dim + index.head_dim, units=1, apart=apart, apart_format=index.keys)

    def caches(self) -> list[Cache]:
        index = self.indexer
        pooled = index is not None and index.pool is not None and not index.shared
        return [self.cache(), index.cache()] if index is not None and pooled else [self.cache()]

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.heads, "query heads")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        expanded = self.heads // parallel.tp * (2 * self.key_dim + 2 * self.value_dim)
        return (self.q_lora or 0) + self.latent_dim + expanded

    def ops(self, context: LayerContext) -> Iterator[Op]:
        heads = self.heads // context.parallel.tp
        yield from self._project(context, heads)
        if context.keeps:
            yield Copy(
                name="attn.kv_write",
                ranks=context.ranks,
                fusible=True,
                elements=context.tokens * self.latent_dim,
                source=context.precision.base,
                target=context.precision.kv,
            )
        narrow = [segment for segment in context.segments if not segment.wide]
        wide = [self._form(context, segment, heads) for segment in context.segments if segment.wide]
        expanded = sum((s.batch * self._seen(s) * share for s, share, _ in wide), start=0.0)
        few: Num = sum((context.rows(segment) for segment in narrow), start=0.0)
        many: Num = sum((context.rows(s) * (1.0 - share) for s, share, _ in wide), start=0.0)
        for rows, count in context.present(expanded, bool(wide)):
            yield from _run(self._expand(context, rows, heads), count)
        absorbed = [*context.present(few, bool(narrow)), *context.present(many, bool(wide))]
        for rows, count in absorbed:
            yield self._absorb(context, "attn.absorb_q", rows, heads).repeated(count)
        if self.indexer is not None:
            yield from self.indexer.project(context, self.q_lora or context.d_model)
        for segment in narrow:
            yield from self._scores(context, segment)
            yield from self._core(context, segment, heads, absorbed=True)
        for segment, share, scored in wide:
            for count in context.runs(scored):
                yield from _run(self._scores(context, segment), count)
            for form, running in ((False, share), (True, 1.0 - share)):
                for count in context.runs(running):
                    yield from _run(self._core(context, segment, heads, absorbed=form), count)
        for rows, count in absorbed:
            yield self._absorb(context, "attn.absorb_v", rows, heads).repeated(count)
        if self.gate_width:
            yield from context.linear("attn.gate", context.d_model, self.gate_width // context.parallel.tp)
        if self.gate != "none":
            yield context.pointwise("attn.gating", heads * self.value_dim, reads=2.0, flops=2.0)
        yield from context.linear("attn.out", heads * self.value_dim, context.d_model)
        yield from context.all_reduce("attn.all_reduce", context.d_model)

    def _form(self, context: LayerContext, segment: Segment, heads: int) -> _Wide:
        """Where many new tokens run in the expanded form: where that takes no longer (docs/formulas/mla.md).

        A sparse segment of which every position would be chosen is dense where the engine does so. Otherwise engines
        attend to the chosen latents; an ideal kernel may run the expanded form under a mask (V3.2 section 2.3).
        """
        rows = context.rows(segment)
        expanded = [*self._expand(context, segment.batch * self._seen(segment), heads)]
        absorbed = [self._absorb(context, half, rows, heads) for half in ("attn.absorb_q", "attn.absorb_v")]
        expanded.append(self._attend(context, segment, heads, absorbed=False))
        absorbed.append(self._attend(context, segment, heads, absorbed=True))
        took, otherwise = (dense(sum((context.time(op) for op in form), start=0.0)) for form in (expanded, absorbed))
        cheaper = np.less_equal(took, otherwise)
        if self.indexer is None:
            # latents gathered over context-parallel ranks are expanded on each: the crossing is where prompts are long
            return _Wide(segment, _where(cheaper) if context.parallel.cp == 1 else 1.0, 0.0)
        beyond = np.greater(segment.past + segment.new, self.indexer.top_k if context.dense_short else 0)
        return _Wide(segment, _where(cheaper if context.masked else cheaper & ~beyond), _where(beyond))

    def _scores(self, context: LayerContext, segment: Segment) -> Iterator[Op]:
        return iter(()) if self.indexer is None else self.indexer.score(context, segment)

    def _expand(self, context: LayerContext, rows: Num, heads: int) -> Iterator[Op]:
        """Keys and values of every head from the latents of ``rows`` positions."""
        return context.linear("attn.kv_b", self.kv_lora, heads * (self.nope_dim + self.value_dim), rows=rows)

    def _seen(self, segment: Segment) -> Num:
        """Positions that a segment may look at: those whose keys and values are made in the expanded form."""
        return segment.past + segment.new if self.window is None else self.mask.reach(segment.new, segment.past)

    def _mask(self, segment: Segment) -> Mask:
        """What the tokens of a segment attend to in the absorbed form."""
        return self.mask if segment.causal or self.indexer is not None else Mask(kind="full")

    def _project(self, context: LayerContext, heads: int) -> Iterator[Op]:
        """Down projections (whole on every rank), their norms, the query up projection, rotary."""
        if self.q_lora is None:
            yield from context.linear("attn.q", context.d_model, heads * self.key_dim)
            yield from context.linear("attn.kv_a", context.d_model, self.latent_dim)
        else:
            yield from context.linear("attn.qkv_a", context.d_model, self.q_lora + self.latent_dim)
            yield context.normalise("attn.q_a_norm", self.q_lora, style="rms")
            inputs, outputs = _query_head(self, self.q_lora)
            yield from context.linear("attn.q_b", inputs, heads * outputs)
        yield context.normalise("attn.kv_a_norm", self.kv_lora, style="rms")
        if self.rope_norm:
            yield context.normalise("attn.rope_norm", self.rope_dim, style="rms")
        if self.rotary and self.rope_dim:
            yield context.pointwise("attn.rotary", (heads + 1) * self.rope_dim, flops=3.0)
        if self.position_scale:
            yield context.pointwise("attn.position_scale", heads * self.key_dim)

    def _absorb(self, context: LayerContext, name: str, rows: Num, heads: int) -> Op:
        """One half of kv_b applied for each head to the query or to the output (2405.04434 section 2.1.2)."""
        k, n = (self.nope_dim, self.kv_lora) if name.endswith("q") else (self.kv_lora, self.value_dim)
        weight, base = context.precision.stored("weights", "kv_b"), context.precision.base
        return Matmul(
            name=name, ranks=context.ranks, batch=heads, m=rows, k=k, n=n, weight=weight, input=base, output=base
        )

    def _attend(self, context: LayerContext, segment: Segment, heads: int, absorbed: bool) -> Op:
        """Attention of one segment in one form: on the latents themselves, or on the keys and values of every head."""
        cp = context.parallel.cp
        full = Mask(kind="full") if not segment.causal else Mask() if self.window is None else self.mask
        return Attention(
            name="attn.core",
            ranks=context.ranks,
            batch=segment.batch,
            new=segment.new,
            past=segment.past,
            heads=heads,
            kv_heads=1 if absorbed else heads,
            key_dim=self.latent_dim if absorbed else self.key_dim,
            value_dim=self.kv_lora if absorbed else self.value_dim,
            mask=self._mask(segment) if absorbed else full,
            base=context.precision.base,
            kv=context.precision.kv if absorbed else context.precision.base,
            shared_value=absorbed,
            fused=not context.unfused,
            query_shards=cp if segment.wide else 1,
            key_shards=1 if segment.wide else cp,
        )

    def _core(self, context: LayerContext, segment: Segment, heads: int, absorbed: bool) -> Iterator[Op]:
        """Attention of one segment in one form, with the traffic of context parallelism."""
        yield self._attend(context, segment, heads, absorbed)
        cp = context.parallel.cp
        span = context.parallel.tp * cp
        if segment.wide:
            elements = segment.batch * (segment.past + segment.new) * self.latent_dim
            yield from context.collective("attn.gather_kv", "all_gather", elements, cp, span)
        else:
            elements = segment.tokens * heads * (self.kv_lora + 1)
            yield from context.collective("attn.merge", "all_reduce", elements, cp, span)


def _query_head(layer: MlaLayer, rank: int) -> tuple[int, int]:
    """What a query head reads of its latent of ``rank``, and what it gives: a gate with it or not."""
    return (2 * rank, layer.key_dim + layer.value_dim) if layer.gate == "query" else (rank, layer.key_dim)


LAYER = MlaLayer
