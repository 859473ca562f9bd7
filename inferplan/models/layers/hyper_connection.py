"""Manifold-constrained hyper-connections (mHC; DeepSeek-V4, section 2.2; hyper-connections, 2409.19606)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from inferplan.models.layers.base import FeedForward, LayerContext, Weight
from inferplan.spec import Field
from inferplan.work.ops import HYPER, Elementwise, Op
from inferplan.work.parallel import Parallelism

_SITES = 2
"""Parts of a layer that have a connection each."""


class HyperConnectionLayer(FeedForward):
    """``x' = C^T x + b y``, ``y = part(a x)`` over ``streams`` residual streams x, at each of the two parts of
    a layer, mixer and feed-forward.

    a, b and C are linear in the normalised streams of a token; Sinkhorn's iterations make C doubly stochastic.
    """

    kind: ClassVar[str] = "hyper_connection"
    summary: ClassVar[str] = "residual streams mixed by doubly stochastic matrices"

    streams: int = Field(ge=2)
    iterations: int = Field(default=20, ge=1)
    """Of Sinkhorn and Knopp's normalisation of rows and columns."""
    carried: bool = True
    """The streams are mixed by C; without it they are carried as they are, and only a and b are learned (Hy4)."""

    @property
    def coefficients(self) -> int:
        """Numbers that mix the streams of a token at one site."""
        return (2 + (self.streams if self.carried else 0)) * self.streams

    def weights(self, d_model: int) -> Iterator[Weight]:
        shape = (_SITES, self.coefficients, self.streams * d_model)
        yield Weight(name="hyper.mix", shape=shape, role="base")
        yield Weight(name="hyper.base", shape=(_SITES, self.coefficients), role="base")
        yield Weight(name="hyper.scale", shape=(_SITES, 3 if self.carried else 2), role="base")

    def live_width(self, d_model: int, parallel: Parallelism) -> float:
        return float(self.streams * d_model)

    def ops(self, context: LayerContext) -> Iterator[Op]:
        for op in self._site(context):
            yield op.repeated(_SITES)

    def _site(self, context: LayerContext) -> Iterator[Op]:
        """Coefficients, the streams collapsed into the part's input, and its output spread over them.

        The norm is one factor a token, which the product's kernel applies; Sinkhorn's iterations are in the collapse.
        Nothing keeps the streams on the chip while the part runs: the last operator is no epilogue of another.
        """
        n, width = self.streams, context.d_model
        yield from context.linear("hyper.mix", n * width, self.coefficients, role="base")
        normalised = n * n * (3.0 + 2.0 * (2 * self.iterations - 1)) / width if self.carried else 0.0
        collapse, spread = HYPER
        collapsed = context.pointwise("hyper.collapse", width, reads=float(n), flops=2.0 * n - 1.0 + normalised)
        yield replace(collapsed, form=collapse)
        yield Elementwise(
            name="hyper.expand",
            ranks=context.ranks,
            tokens=context.tokens,
            width=n * width,
            base=context.precision.base,
            reads=1.0 + 1.0 / n,
            flops=2.0 * n + 1.0 if self.carried else 2.0,
            form=spread,
        )


def join_weights(d_model: int, streams: int, learned: bool) -> Iterator[Weight]:
    """What sums the streams up after the last layer; nothing for one, and for their mean."""
    if streams > 1 and learned:
        yield Weight(name="hyper_head.mix", shape=(streams, streams * d_model), role="base")
        yield Weight(name="hyper_head.base", shape=(streams + 1,), role="base")


def join_ops(context: LayerContext, streams: int, learned: bool) -> Iterator[Op]:
    """The sum of the streams of each token, by coefficients that are linear in them, or their mean; nothing for one."""
    if streams > 1:
        width = context.d_model
        if learned:
            yield from context.linear("hyper_head.mix", streams * width, streams, role="base")
        yield context.pointwise("hyper_head.collapse", width, reads=float(streams), flops=2.0 * streams - 1.0)


LAYER = HyperConnectionLayer
