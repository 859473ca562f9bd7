"""Tokens on their way to the ranks of their experts, and partial sums on their way back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from inferplan.work.formats import find_format
from inferplan.work.ops import Direction, Exchange, Op

if TYPE_CHECKING:
    from inferplan.models.layers.base import LayerContext
    from inferplan.models.layers.moe import MoeLayer


def exchange(context: LayerContext, layer: MoeLayer, direction: Direction, width: int) -> Iterator[Op]:
    """Dispatch or combine of vectors of ``width``; nothing without attention data parallelism.

    Each of the ``tp`` ranks that hold the same tokens sends its share of them. Tokens travel in the engine's format for
    the experts' inputs (:class:`inferplan.devices.engine.ExchangeRules`), partial sums in the base format.
    """
    parallel, precision, rules = context.parallel, context.precision, context.exchange
    if parallel.dp == 1:
        return
    name = "expert.gate" if layer.gated else "expert.up"
    inputs = precision.linear_input(precision.stored("experts", name))
    sliced = parallel.expert_tp > 1  # all ranks that share an expert get its tokens, which no low-latency kernel does
    travels = rules.formats.get(inputs.name) if direction == "dispatch" and not sliced else None
    wide = any(segment.wide for segment in context.segments)
    yield Exchange(
        name=f"ffn.{direction}",
        ranks=context.ranks,
        direction=direction,
        mode=rules.prefill if wide or sliced else rules.decode,
        tokens=context.tokens / parallel.tp,
        crowding=layer.crowding(context),
        mean_share=context.mean_share,
        width=width,
        experts=layer.experts,
        top_k=layer.top_k,
        parts=parallel.ep,
        group=parallel.expert_ranks,
        span=parallel.expert_ranks,
        format=find_format(travels) if travels else precision.base,
        groups=layer.groups,
        top_groups=layer.top_groups,
        blocks=rules.blocks,
    )
