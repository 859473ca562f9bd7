"""Multi-head, grouped-query and multi-query attention (1706.03762 section 3.2; GQA 2305.13245; MQA 1911.02150)."""

from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from inferplan.models.layers.base import Cache, LayerContext, SharedHeads, Weight
from inferplan.spec import Field, model_validator
from inferplan.work.formats import find_format
from inferplan.work.ops import Attention, Collective, Copy, Elementwise, Mask, Op
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment


def _style(norm: str | bool) -> str:
    """The kind of a norm; of every sort of RMS norm with weights the same."""
    return norm if norm in ("layer", "plain") and isinstance(norm, str) else "rms"


class AttentionLayer(SharedHeads):
    """``heads`` query heads share ``kv_heads`` keys and values of ``head_dim``.

    One token and layer: ``2*kv_heads*head_dim`` cached elements (``head_dim + value_dim`` where they differ).
    """

    kind: ClassVar[str] = "attention"
    summary: ClassVar[str] = "multi-head, grouped-query or multi-query attention"

    head_dim: int = Field(ge=1)
    value_dim: int | None = None
    """Width of a value head where it is not ``head_dim``."""
    window: int | None = Field(default=None, ge=1)
    """Sliding window: a token sees itself and ``window - 1`` before it; not causal: half of them before, half after."""
    chunk: int | None = Field(default=None, ge=1)
    """Chunked attention: a token sees back to the last multiple of ``chunk`` (Llama 4)."""
    causal: bool = True
    rotary: bool = True
    """Rotary position embedding on queries and keys (2104.09864)."""
    qkv_bias: bool = False
    key_bias: bool = True
    """With ``qkv_bias``: keys have one too (not in Whisper)."""
    out_bias: bool = False
    qk_norm: Literal["none", "plain", "head", "per_head", "full", "layer", "layer_per_head"] = "none"
    """RMS norms on q and k: one weight of ``head_dim`` each, one for each head, or one over the full width; ``layer``:
    layer norms with weight and bias of ``head_dim`` (Persimmon), or ``layer_per_head`` of every head (Chameleon);
    ``plain``: no weight (Muse Spark)."""
    value_norm: bool = False
    sinks: bool = False
    """A learned logit for each head (gpt-oss)."""
    output_gate: bool = False
    """The query projection also gives a gate for the output (Qwen3-Next)."""
    head_gate: bool = False
    """A projection of the input gives one gate a head for the output (LFM3, Laguna)."""
    gate_bias: bool = False
    """A bias a head on the gate of the output (Beam)."""
    out_norm: bool | Literal["layer", "plain"] = False
    """An RMS norm over all heads before the output projection (BitNet), a layer norm (Kosmos-2), or one without weights
    of each head (Muse Spark)."""
    value_from_key: bool = False
    """The key projection is the value too, before norm and rotary: no v of its own (Gemma 4's global layers)."""
    late_values: bool = False
    """Half of each value is that of the token before, of which the last is kept (Zaya)."""
    input_scale: int = Field(default=1, ge=1)
    """q, k and v read this many times the model width (Zamba2's shared block)."""
    shares_cache: bool = False
    """Attends to an earlier layer's keys and values (CLA, 2405.12981): no k and v of its own, no cache."""
    relative_buckets: int = Field(default=0, ge=0)
    """Rows of a table of biases by distance, one column a head, which later layers use too (T5, 1910.10683 2.1)."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.window is not None and self.chunk is not None:
            raise ValueError("window and chunk exclude each other")
        if not self.causal and (self.chunk is not None or (self.window or 1) % 2 == 0):
            raise ValueError("attention that is not causal has no chunks, and a window of an odd number of tokens")
        if self.value_from_key and (self.value_width != self.head_dim or self.qkv_bias):
            raise ValueError("a value that is the key has its width and no bias of its own")
        return self

    @property
    def value_width(self) -> int:
        return self.value_dim or self.head_dim

    @property
    def mask(self) -> Mask:
        if not self.causal:
            return Mask(kind="full") if self.window is None else Mask(kind="band", size=self.window)
        if self.window is not None:
            return Mask(kind="window", size=self.window)
        return Mask(kind="chunk", size=self.chunk) if self.chunk is not None else Mask()

    def weights(self, d_model: int) -> Iterator[Weight]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        value, out = self.kv_heads * self.value_width, self.heads * self.value_width
        q_out = q + (out if self.output_gate else 0)
        inputs = d_model * self.input_scale
        yield Weight(name="q", shape=(q_out, inputs), shard="tp", units=self.heads)
        if not self.shares_cache:
            yield Weight(name="k", shape=(kv, inputs), shard="tp", units=self.kv_heads)
            if not self.value_from_key:
                yield Weight(name="v", shape=(value, inputs), shard="tp", units=self.kv_heads)
        yield Weight(name="o", shape=(d_model, out), shard="tp", units=self.heads)
        if self.qkv_bias:
            yield Weight(name="q.bias", shape=(q_out,), role="base", shard="tp", units=self.heads)
            if not self.shares_cache:
                if self.key_bias:
                    yield Weight(name="k.bias", shape=(kv,), role="base", shard="tp", units=self.kv_heads)
                yield Weight(name="v.bias", shape=(value,), role="base", shard="tp", units=self.kv_heads)
        if self.out_bias:
            yield Weight(name="o.bias", shape=(d_model,), role="base")
        if self.qk_norm not in ("none", "plain"):
            one, vectors = self.head_dim, 2 if self.qk_norm.startswith("layer") else 1
            widths = (q, kv) if self.qk_norm in ("per_head", "full", "layer_per_head") else (one, one)
            yield Weight(name="q_norm", shape=(vectors * widths[0],), role="base")
            if not self.shares_cache:
                yield Weight(name="k_norm", shape=(vectors * widths[1],), role="base")
        if self.relative_buckets:
            table = (self.relative_buckets, self.heads)
            yield Weight(name="relative", shape=table, role="base", shard="tp", units=self.heads)
        if self.sinks:
            yield Weight(name="sinks", shape=(self.heads,), role="base", shard="tp", units=self.heads)
        yield from self._output_parts(d_model)

    def _output_parts(self, d_model: int) -> Iterator[Weight]:
        """What works on the output of the heads before the last projection."""
        if self.head_gate:
            yield Weight(name="head_gate", shape=(self.heads, d_model), shard="tp", units=self.heads)
        if self.gate_bias:
            yield Weight(name="gate.bias", shape=(self.heads,), role="base", shard="tp", units=self.heads)
        if self.out_norm and self.out_norm != "plain":
            width = self.heads * self.value_width * (2 if self.out_norm == "layer" else 1)
            yield Weight(name="out_norm", shape=(width,), role="base", shard="tp", units=self.heads)

    def cache(self) -> Cache:
        if self.shares_cache:
            return Cache()
        late = self.kv_heads * self.value_width // 2 if self.late_values else 0
        return Cache(
            per_token=self.kv_heads * (self.head_dim + self.value_width),
            mask=self.mask,
            units=self.kv_heads,
            state=late,
            state_units=self.kv_heads,
            conv=late,
        )

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        heads, kv = self.rank_heads(parallel)
        return heads * (self.head_dim + self.value_width) + kv * (self.head_dim + self.value_width)

    def ops(self, context: LayerContext) -> Iterator[Op]:
        heads, kv = self.rank_heads(context.parallel)
        ranks, base = context.ranks, context.precision.base
        own = 0 if self.shares_cache else kv
        out = heads * self.value_width
        yield from self._project(context, heads, own)
        tokens = context.tokens
        if self.qk_norm != "none":
            yield from self._normalise(context, heads, own)
        if self.rotary:
            width = (heads + own) * self.head_dim
            yield Elementwise(
                name="attn.rotary", ranks=ranks, fusible=True, tokens=tokens, width=width, base=base, flops=3.0
            )
        if own and context.keeps:
            elements = tokens * own * (self.head_dim + self.value_width)
            yield Copy(
                name="attn.kv_write",
                ranks=ranks,
                fusible=True,
                elements=elements,
                source=base,
                target=context.precision.kv,
            )
        for place, segment in enumerate(context.segments):
            yield from self._core(context, segment, (heads, kv), joined=context.one_kernel and place > 0)
        yield from self._after(context, heads, out)
        yield from self._join(context, out)
        yield from context.all_reduce("attn.all_reduce", context.d_model)

    def _project(self, context: LayerContext, heads: int, own: int) -> Iterator[Op]:
        """Queries of ``heads``, keys and values of ``own``, and gates that come with the queries: one matmul."""
        gate = heads * self.value_width if self.output_gate else 0
        n = heads * self.head_dim + gate + own * self.head_dim
        n += 0 if self.value_from_key else own * self.value_width
        names = ("q",) if not own else ("q", "k") if self.value_from_key else ("q", "k", "v")
        yield from context.linear("attn.qkv", context.d_model * self.input_scale, n, adapted=names)

    def _join(self, context: LayerContext, out: int) -> Iterator[Op]:
        """The ``out`` outputs of the heads of a rank back to the model's width."""
        yield from context.linear("attn.out", out, context.d_model, adapted=("o",))

    def _after(self, context: LayerContext, heads: int, out: int) -> Iterator[Op]:
        """What works on the ``out`` outputs of the heads of one rank: gates, a norm."""
        if self.head_gate:
            yield from context.linear("attn.head_gate", context.d_model, heads)
        if self.output_gate or self.head_gate:
            yield context.pointwise("attn.gate", out, reads=2.0 if self.output_gate else 1.0, flops=2.0)
        if self.out_norm:
            yield context.normalise("attn.out_norm", out, style=_style(self.out_norm))

    def _normalise(self, context: LayerContext, heads: int, own: int) -> Iterator[Op]:
        """Norms of queries and keys; of those over all heads ranks add up the sums of squares in fp32 first."""
        parts = {"qk": heads + own}
        summed = self.qk_norm == "full" and context.parallel.tp > 1
        if self.qk_norm == "full" and context.norms_apart:
            parts = {"q": heads, "k": own} if own else {"q": heads}
        if summed and context.norms_apart:
            for name, number in parts.items():
                width = number * self.head_dim
                yield context.pointwise(f"attn.{name}_norm.sums", 1.0, reads=float(width), flops=2.0 * width)
        if summed:
            yield Collective(
                name="attn.qk_norm.all_reduce",
                ranks=context.ranks,
                pattern="all_reduce",
                elements=context.tokens * (1 if self.shares_cache else 2),
                group=context.parallel.tp,
                span=context.parallel.tp,
                format=find_format("fp32"),
            )
        for name, number in parts.items():
            rows = context.tokens * number
            yield context.normalise(f"attn.{name}_norm", self.head_dim, rows=rows, style=_style(self.qk_norm))

    def _core(self, context: LayerContext, segment: Segment, on_rank: tuple[int, int], joined: bool) -> Iterator[Op]:
        """Attention of one segment, with the traffic of context parallelism.

        Keys and values gathered, or outputs merged. on_rank: query heads and KV heads. joined: within the kernel of the
        segment before it.
        """
        (heads, kv), cp = on_rank, context.parallel.cp
        mask = self.mask if segment.causal else Mask(kind="full")
        yield Attention(
            name="attn.core",
            ranks=context.ranks,
            batch=segment.batch,
            new=segment.new,
            past=segment.past,
            heads=heads,
            kv_heads=kv,
            key_dim=self.head_dim,
            value_dim=self.value_width,
            mask=mask,
            base=context.precision.base,
            kv=context.precision.kv,
            fused=not context.unfused,
            query_shards=cp if segment.wide else 1,
            key_shards=1 if segment.wide else cp,
            joined=joined,
            whole=not context.keeps,
        )
        span = context.parallel.tp * cp
        if segment.wide:
            elements = segment.batch * mask.reach(segment.new, segment.past) * kv * (self.head_dim + self.value_width)
            yield from context.collective("attn.gather_kv", "all_gather", elements, cp, span)
        else:
            elements = segment.tokens * heads * (self.value_width + 1)
            yield from context.collective("attn.merge", "all_reduce", elements, cp, span)


LAYER = AttentionLayer
