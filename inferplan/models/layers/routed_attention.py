"""Mixture of attention heads (2210.05144), as JetMoE has it (2404.07413): ``docs/formulas/routed_attention.md``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Self

from pydantic import Field, model_validator

from inferplan.models.layers.attention import AttentionLayer
from inferplan.models.layers.base import LayerContext, Weight
from inferplan.work.ops import GroupedMatmul, Op
from inferplan.work.parallel import Parallelism, require_divides
from inferplan.work.routing import distinct_experts


class RoutedAttentionLayer(AttentionLayer):
    """``top_k`` of ``experts`` pairs of query and output projections a token, over keys and values that all share.

    Each chosen expert brings ``kv_heads`` query heads, so ``heads`` is ``top_k*kv_heads``. Every rank has the slices of
    all experts that its heads need.
    """

    kind: ClassVar[str] = "routed_attention"
    summary: ClassVar[str] = "attention whose query and output projections are experts"

    experts: int = Field(ge=1)
    top_k: int = Field(ge=1)

    @model_validator(mode="after")
    def _routed(self) -> Self:
        if self.top_k > self.experts or self.heads != self.top_k * self.kv_heads:
            raise ValueError(f"{self.top_k} of {self.experts} experts have {self.kv_heads} query heads each")
        if self.output_gate or self.head_gate or self.shares_cache or self.input_scale != 1 or self.qkv_bias:
            raise ValueError("experts of queries are known without gates, biases of queries and shared caches")
        return self

    def weights(self, d_model: int) -> Iterator[Weight]:
        width = self.kv_heads * self.head_dim
        shapes = {"q": (self.experts, width, d_model), "o": (self.experts, d_model, width)}
        for weight in super().weights(d_model):
            if weight.name in shapes:
                own = replace(weight, shape=shapes[weight.name], role="experts", active=self.top_k / self.experts)
                yield replace(own, units=self.kv_heads)
            else:
                yield weight
        yield Weight(name="router", shape=(self.experts, d_model), role="base")

    def check(self, parallel: Parallelism) -> None:
        require_divides("tp", parallel.tp, self.kv_heads, "KV heads, and query heads of an expert")

    def _project(self, context: LayerContext, heads: int, own: int) -> Iterator[Op]:
        """The router, the queries of the chosen experts, and the keys and values of every token."""
        yield from context.linear("attn.router", context.d_model, self.experts, role="base")
        yield from self._chosen(context, "q", context.d_model, own * self.head_dim)
        yield from context.linear("attn.kv", context.d_model, own * (self.head_dim + self.value_width))

    def _join(self, context: LayerContext, out: int) -> Iterator[Op]:
        """The outputs of the chosen experts, and their sum."""
        yield from self._chosen(context, "o", out // self.top_k, context.d_model)
        yield context.pointwise("attn.combine", context.d_model, reads=float(self.top_k), flops=2.0 * self.top_k)

    def _chosen(self, context: LayerContext, name: str, k: int, n: int) -> Iterator[Op]:
        weight = context.precision.stored("experts", name)
        source, rows = context.precision.linear_input(weight), context.tokens * self.top_k
        if source != context.precision.base:
            yield context.quantise(f"attn.{name}.quantise", rows * k, source)
        yield GroupedMatmul(
            name=f"attn.{name}",
            ranks=context.ranks,
            m=rows,
            k=k,
            n=n,
            experts=self.experts,
            touched=distinct_experts(self.experts, self.top_k, context.tokens, context.routing.skew_of(None)),
            weight=weight,
            input=source,
            output=context.precision.base,
        )


LAYER = RoutedAttentionLayer
