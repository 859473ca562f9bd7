"""Cache tiers in a plan: what they cost beside the GPUs, and what they are worth.

Each chain of tiers has a plan of its own, and none has one too. A tier is worth the GPUs that its plan does without;
the price at which it costs as much is its break-even price (docs/tiers.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from inferplan.planning.option import PlanOption
from inferplan.planning.question import Chain
from inferplan.planning.search import option_order
from inferplan.planning.verify import Verified
from inferplan.serving.techniques.tiers import GIGA, CacheTier, tier_records


def beside(options: Iterable[PlanOption], chain: Chain) -> list[PlanOption]:
    """Options with a chain of tiers beside their GPUs, and its bill; in the order of :func:`option_order`.

    The tiers of one replica are in the least that a structure may cost.
    """
    if not chain:
        return list(options)
    found = []
    for option in options:
        tiered = replace(option, tiers=chain)
        least = tiered.tier_bill(tiered.deployment.parallel.ranks)
        found.append(replace(tiered, bound=option.bound + least).sized(option.replicas, option.pools))
    return sorted(found, key=option_order)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tiered:
    """The cheapest plan beside one chain of tiers; ``best`` is ``None`` where nothing keeps the limits."""

    chain: Chain
    best: Verified | None

    @property
    def priced(self) -> bool:
        """Whether every tier has a price."""
        return all(tier.price is not None for tier in self.chain)

    @property
    def gpu_cost(self) -> float | None:
        """What an hour of the GPUs costs."""
        return None if self.best is None or self.best.option.cost is None else self.best.option.gpu_cost

    @property
    def tier_cost(self) -> float | None:
        """What an hour of the tiers costs; ``None`` where one has no price, or there is no plan."""
        return self.best.option.tier_cost if self.best is not None and self.priced else None

    @property
    def hit_rates(self) -> dict[str, float]:
        """The share of the prompt tokens that come from the device's cache and from each tier."""
        result = None if self.best is None else self.best.result
        if result is None:
            return {}
        records = tier_records(result)
        return {"device": result.hit_rate} if records is None else {one["name"]: one["hit_rate"] for one in records}

    def saved(self, without: Tiered) -> float | None:
        """What the GPUs cost less an hour than without tiers: what the tiers are worth; ``None`` without both plans."""
        here, there = self.gpu_cost, without.gpu_cost
        return None if here is None or there is None else there - here

    def gigabytes(self, tier: CacheTier) -> float:
        """Gigabytes of a tier that are paid for."""
        return 0.0 if self.best is None else tier.kept_by(self.best.option.devices) / GIGA

    def break_even(self, tier: CacheTier, without: Tiered) -> float | None:
        """The price of a gigabyte for an hour at which the plan costs what it costs without tiers.

        ``(saved - what the other tiers cost) / gigabytes``; ``None`` where another tier has no price, or a plan is not.
        """
        saved = self.saved(without)
        if saved is None or self.best is None:
            return None
        others = [other.cost(self.best.option.devices) for other in self.chain if other is not tier]
        known = [cost for cost in others if cost is not None]
        return (saved - sum(known)) / self.gigabytes(tier) if len(known) == len(others) else None


def cheapest(sides: Sequence[Tiered]) -> Tiered | None:
    """The side whose plan costs least, of those whose tiers have prices; of equals the first. Where no such plan keeps
    the limits, that of the others with the least cost of GPUs; ``None`` without any.
    """
    found = [side for side in sides if side.best is not None]
    priced = [side for side in found if side.priced]
    return min(priced or found, key=lambda side: (side.best and side.best.option.cost) or 0.0, default=None)
