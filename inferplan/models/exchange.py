"""Tokens on their way to the ranks of their experts, and partial sums on their way back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from inferplan.models.layers.base import LayerContext
from inferplan.units import Num
from inferplan.work.formats import Format, find_format
from inferplan.work.ops import Collective, Direction, Exchange, Meeting, Op

_COLLECTIVES = {"gather": ("all_gather", "reduce_scatter"), "all_reduce": ("all_reduce", "all_reduce")}
"""What carries tokens to every rank, and their sums back."""


class RoutedExperts(Protocol):
    """The experts of a layer, of which each token reaches ``top_k``, as far as an exchange knows them."""

    @property
    def gated(self) -> bool: ...
    @property
    def experts(self) -> int: ...
    @property
    def top_k(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def top_groups(self) -> int: ...
    def crowding(self, context: LayerContext) -> Num: ...


def meeting(context: LayerContext, layer: RoutedExperts, direction: Direction) -> tuple[Meeting, Format]:
    """How tokens and experts meet in a step under attention data parallelism, and in which format vectors travel."""
    parallel, precision, rules = context.parallel, context.precision, context.exchange
    name = "expert.gate" if layer.gated else "expert.up"
    inputs = precision.linear_input(precision.stored("experts", name))
    sliced = parallel.expert_tp > 1  # all ranks that share an expert get its tokens, which no low-latency kernel does
    wide = any(segment.wide for segment in context.segments)
    how = rules.prefill if wide or (sliced and rules.decode not in _COLLECTIVES) else rules.decode
    chosen = direction == "dispatch" and (how in _COLLECTIVES or not sliced)
    travels = rules.formats.get(inputs.name) if chosen else None
    return how, find_format(travels) if travels else precision.base


def exchange(context: LayerContext, layer: RoutedExperts, direction: Direction, width: int) -> Iterator[Op]:
    """Dispatch or combine of vectors of ``width``; nothing without attention data parallelism.

    Each of the ``tp`` ranks that hold the same tokens sends its share of them. Tokens travel in the engine's format for
    the experts' inputs (:class:`inferplan.work.exchange.ExchangeRules`), partial sums in the base format. Where every
    rank gets all tokens, a collective is of as many as there are, not of the fullest rank's times ranks (SGLang:
    ``all_gatherv`` and ``reduce_scatterv`` of nvfp4 tokens, all-reduces of others where a step holds prompts).
    """
    parallel = context.parallel
    if parallel.dp == 1:
        return
    how, sent = meeting(context, layer, direction)
    match how:  # a type checker sees here which modes are left
        case "gather" | "all_reduce":
            yield Collective(
                name=f"ffn.{direction}",
                ranks=context.ranks,
                pattern=_COLLECTIVES[how][direction == "combine"],
                elements=context.stage_tokens * width,
                group=parallel.expert_ranks,
                span=parallel.expert_ranks,
                format=sent,
            )
            return
    yield Exchange(
        name=f"ffn.{direction}",
        ranks=context.ranks,
        direction=direction,
        mode=how,
        tokens=context.tokens / parallel.tp,
        crowding=layer.crowding(context),
        mean_share=context.mean_share,
        width=width,
        experts=layer.experts,
        top_k=layer.top_k,
        parts=parallel.ep,
        group=parallel.expert_ranks,
        span=parallel.expert_ranks,
        format=sent,
        groups=layer.groups,
        top_groups=layer.top_groups,
        blocks=context.exchange.blocks,
    )
