"""How many bytes a rank sends on each level of a network of nested domains: nothing here knows a device or a model.

A group of ranks that spans levels is described by ``sizes``, innermost first: how many ranks share a domain of the
first level, how many of those domains share one of the second, and so on; their product is the group. One level is a
flat group. Domains that a group fills unevenly count as filled evenly, which no division beats.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import comb, floor, prod
from operator import mul


def route(pattern: str, sizes: Sequence[float], reduces: Sequence[bool]) -> tuple[float, ...]:
    """Bytes that a rank sends on each level, for each byte of the message, when every level carries the least it can.

    all-reduce: reduce-scatter inside, all-reduce of what is left between the same shards of all domains (each over its
    own rail), all-gather inside: ``2(n_l - 1)/n_l`` of ``1/(n_0...n_(l-1))`` on level l, at most once that where the
    switch of the level adds (``reduces``). all-gather and reduce-scatter: half of it. all-to-all: the ranks that share
    a domain of level l but none below, of the group. send: everything on the widest level. Hierarchical collectives:
    Cho et al., BlueConnect (SysML 2019), section 3; a lower bound, since the ranks of a domain together must send and
    receive that much.
    """
    inside = [1.0, *accumulate(sizes, mul)]  # ranks below each level
    group = inside[-1]
    if group <= 1.0:
        return (0.0,) * len(sizes)
    if pattern == "send":
        return (*(0.0 for _ in sizes[1:]), 1.0)
    if pattern == "all_to_all":
        return tuple((above - below) / group for below, above in pairwise(inside))
    shares = [(size - 1) / size / below for size, below in zip(sizes, inside)]
    if pattern != "all_reduce":
        return tuple(shares)
    return tuple(
        min(1.0 / below, 2.0 * share) if adds else 2.0 * share for share, below, adds in zip(shares, inside, reduces)
    )


def chance_missed(experts: float, top_k: int, held: float) -> float:
    """The chance that none of ``top_k`` of ``experts``, drawn without replacement, is among ``held`` of them.

    ``C(experts - held, top_k)/C(experts, top_k)`` as a product, so that ``held`` need not be whole.
    """
    return prod(max(experts - held - i, 0.0) / (experts - i) for i in range(top_k))


def chance_reached(experts: int, top_k: int, share: float, groups: int = 1, top_groups: int = 1) -> float:
    """The chance that a token has an expert in a part of the network that holds ``share`` of them, popular alike.

    With ``groups``, a token's experts come from ``top_groups`` of so many equal groups (DeepSeek-V3, 2412.19437,
    section 2.1.2): how many of the part's groups are among them is hypergeometric. Between whole groups it is
    interpolated.
    """
    if groups == top_groups:
        return 1.0 - chance_missed(experts, top_k, experts * share)
    held, each = share * groups, experts / groups
    allowed = each * top_groups
    if held < 1.0:
        return top_groups / groups * (1.0 - chance_missed(allowed, top_k, each * held))

    def of(whole: int) -> float:
        chances = [
            comb(whole, chosen)
            * comb(groups - whole, top_groups - chosen)
            * chance_missed(allowed, top_k, chosen * each)
            for chosen in range(min(whole, top_groups) + 1)
        ]
        return 1.0 - sum(chances) / comb(groups, top_groups)

    below = floor(held)
    return of(below) if held == below else of(below) * (below + 1 - held) + of(below + 1) * (held - below)
