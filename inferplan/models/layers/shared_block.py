"""Zamba2's shared attention block (2411.15242 section 2; Zamba, 2405.16712 eq. 6): one set of weights, many uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.attention import AttentionLayer
from inferplan.models.layers.base import Cache, LayerContext, SharedHeads, Weight
from inferplan.models.layers.mlp import MlpLayer, mlp_ops
from inferplan.spec import Field
from inferplan.work.ops import Op
from inferplan.work.parallel import Parallelism


class SharedBlockLayer(SharedHeads):
    """``linear(mlp(attention([x, embedding])))``: attention reads twice the model width; each use has its adapters.

    The block's own tensors are counted where ``owner`` is set; adapters and the last matrix belong to each use. Each
    use caches ``2*kv_heads*head_dim`` elements a token.
    """

    kind: ClassVar[str] = "shared_block"
    summary: ClassVar[str] = "attention and feed-forward block with shared weights and an adapter for each use"

    head_dim: int = Field(ge=1)
    d_ff: int = Field(ge=1)
    adapter_rank: int = Field(default=0, ge=0)
    """Rank of the adapters; 0 for none (Zamba)."""
    attention_adapters: bool = False
    """Adapters on q, k and v too, not only on the feed-forward."""
    rotary: bool = True
    bias: bool = False
    """Biases of the feed-forward."""
    owner: bool = True
    """The first use of these weights; a later use counts its adapters alone."""

    @property
    def attention(self) -> AttentionLayer:
        return AttentionLayer(
            heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim, rotary=self.rotary, input_scale=2
        )

    @property
    def mlp(self) -> MlpLayer:
        return MlpLayer(d_ff=self.d_ff, bias=self.bias, activation="gelu")

    def weights(self, d_model: int) -> Iterator[Weight]:
        if self.owner:
            yield from self.attention.weights(d_model)
            yield from self.mlp.weights(d_model)
            yield Weight(name="norms", shape=(3 * d_model,), role="base")
        rank = self.adapter_rank
        if rank:
            yield Weight(name="adapter.ffn", shape=(rank, d_model + 2 * self.d_ff))
        if self.attention_adapters:
            for name in ("q", "k", "v"):
                yield Weight(name=f"adapter.{name}", shape=(rank, 4 * d_model))
        yield Weight(name="linear", shape=(d_model, d_model))

    def cache(self) -> Cache:
        return self.attention.cache()

    def check(self, parallel: Parallelism) -> None:
        super().check(parallel)
        self.mlp.check(parallel)

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        attention, mlp = self.attention.live_width(d_model, parallel), self.mlp.live_width(d_model, parallel)
        return 2 * d_model + max(attention, mlp)

    def ops(self, context: LayerContext) -> Iterator[Op]:
        d_model, rank, tp = context.d_model, self.adapter_rank, context.parallel.tp
        yield context.normalise("block.norm", 2 * d_model, style="rms")
        if self.attention_adapters:
            for name in ("q", "k", "v"):
                yield from context.linear(f"block.{name}_adapter_a", 2 * d_model, rank)
                yield from context.linear(f"block.{name}_adapter_b", rank, 2 * d_model // tp)
        yield from self.attention.ops(context)
        yield context.normalise("block.ffn_norm", d_model, style="rms")
        if rank:
            yield from context.linear("block.ffn_adapter_a", d_model, rank)
            yield from context.linear("block.ffn_adapter_b", rank, 2 * self.d_ff // tp)
        yield from mlp_ops(context, "block.ffn", self.d_ff // tp, gated=True)
        yield from context.all_reduce("block.all_reduce", d_model)
        yield from context.linear("block.linear", d_model, d_model)


LAYER = SharedBlockLayer
