"""Attention residuals by blocks of layers (2603.15031; Kimi-K3, 2607.24653 section 2.2 eq. 8-10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from inferplan.models.layers.base import FeedForward, LayerContext, Weight
from inferplan.spec import Field
from inferplan.work.ops import Elementwise, Op
from inferplan.work.parallel import Parallelism


class AttentionResidualLayer(FeedForward):
    """``h = sum_i softmax_i(q . norm(v_i)) v_i`` in place of the residual ahead of each of the two parts of a layer.

    v are the sums of the parts of each finished block of layers, the embedding first, and the sum of the block that is
    not finished. A token mixes its own alone.
    """

    kind: ClassVar[str] = "attention_residual"
    summary: ClassVar[str] = "each part reads a softmax mixture of the sums of earlier blocks of layers"
    residual: ClassVar[bool] = False

    blocks: int = Field(ge=1)
    """Finished blocks that its feed-forward reads."""
    finishes: bool = False
    """The layer is the first of its block: the block before it is finished between its two mixtures."""

    @property
    def residuals_kept(self) -> int:
        return self.blocks

    def weights(self, d_model: int) -> Iterator[Weight]:
        yield from mixture_weights("residual", d_model, 2)

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return float(d_model)  # a mixture; what it mixes outlives the layer (models.spec.residual_blocks)

    def ops(self, context: LayerContext) -> Iterator[Op]:
        before = self.blocks - self.finishes
        if before:  # the first layer has the embedding alone
            yield mix(context, "residual.mix", before + 1)
        if self.finishes:
            yield context.pointwise("residual.store", context.d_model)
        yield mix(context, "residual.mix", self.blocks + 1)


def mixture_weights(name: str, d_model: int, sites: int) -> Iterator[Weight]:
    """The norm of what is mixed and the query that weighs it, for each of ``sites`` mixtures."""
    yield Weight(name=f"{name}.norm", shape=(sites, d_model), role="base")
    yield Weight(name=f"{name}.query", shape=(sites, d_model), role="base")


def mix(context: LayerContext, name: str, sources: int) -> Op:
    """One mixture: a kernel that reads each source once (SGLang ``attn_residual.py``, vLLM ``attn_res.py``).

    Of each source a square sum, a product with norm and query, which are one vector, and its share of the sum. Nothing
    keeps the sources on the chip from part to part: it is no epilogue.
    """
    return Elementwise(
        name=name,
        ranks=context.ranks,
        tokens=context.tokens,
        width=context.d_model,
        base=context.precision.base,
        reads=float(sources),
        flops=6.0 * sources,
    )


LAYER = AttentionResidualLayer
