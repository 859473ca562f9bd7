"""Which cache tiers a plan tries: every combination of their sizes, and none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from inferplan.errors import UsageError
from inferplan.planning.demand import Demand
from inferplan.serving.techniques.tiers import CacheTier, nothing_shared

Chain = tuple[CacheTier, ...]
"""Tiers from the nearest down."""
MOST_CHAINS = 16
"""Each is searched on its own."""


def chains_of_sizes(tiers: Sequence[Sequence[CacheTier]]) -> tuple[Chain, ...]:
    """Every combination of the sizes of each tier, without those of nothing; the chain of no tier is left out.

    Raises ``UsageError`` for more than :data:`MOST_CHAINS`, and where every size is nothing.
    """
    found = dict.fromkeys(tuple(tier for tier in chain if tier.capacity) for chain in product(*tiers))
    chains = tuple(chain for chain in found if chain)
    if tiers and not chains:
        raise UsageError("every size of the cache tiers is nothing", hint="host:0,256GB:50GB/s, or leave them out")
    if len(chains) > MOST_CHAINS:
        raise UsageError(
            f"{len(chains)} combinations of cache tiers are more than a plan tries",
            because=f"each has a plan of its own; {MOST_CHAINS} are the most",
            hint="fewer sizes",
        )
    return chains


def require_shared_text(demand: Demand) -> None:
    """Raise ``UsageError`` where cache tiers would find nothing, or nothing says what they find."""
    if demand.offline:
        raise UsageError("an offline job is not simulated, so nothing says what cache tiers find", hint="--rate")
    known = demand.own is not None or demand.sessions is not None
    if not known and (demand.trace is None or demand.trace.hashes is None):
        raise nothing_shared(" beside a given hit rate" if demand.cached else "")
