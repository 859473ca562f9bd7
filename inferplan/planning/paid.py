"""What replicas that come and go cost: their bill over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from inferplan.catalog.bills import Tariff
from inferplan.serving.techniques.tiers import CacheTier
from inferplan.units import Array

HOUR = 3600.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Paid:
    """Replicas that are paid for over ``span`` seconds. ``paid``: times at which their number changes, and the number
    from each on; the last time is the end of the span. tariff: what a number of them costs per hour. ranks: devices of
    each, which pay for ``tiers`` of their own for as long; a shared tier is there all the time.
    """

    span: float
    tariff: Tariff
    ranks: int = 1
    tiers: tuple[CacheTier, ...] = ()

    if TYPE_CHECKING:

        @property
        def paid(self) -> tuple[Array, Array]: ...

    @property
    def peak(self) -> int:
        """The most replicas that are paid for at once."""
        return int(np.max(self.paid[1]))

    @property
    def replica_hours(self) -> float:
        """Hours of replicas that are paid for, in the span."""
        times, counts = self.paid
        return float(np.dot(np.diff(times), counts)) / HOUR

    @property
    def device_hours(self) -> float:
        """The same of their devices."""
        return self.replica_hours * self.ranks

    @property
    def cost(self) -> float:
        """What the span costs: at every time the bill of the replicas that are there, whole instances; and tiers."""
        times, counts = self.paid
        devices = float(np.dot(np.diff(times), np.asarray(self.tariff.cost(counts.astype(float))))) / HOUR
        return devices + (self.tier_cost or 0.0)

    @property
    def tier_cost(self) -> float | None:
        """What tiers cost in the span, as far as they have prices; ``None`` where none has."""
        hours = self.span / HOUR
        costs = [tier.cost(self.device_hours / hours) for tier in self.tiers]
        known = [cost * hours for cost in costs if cost is not None]
        return sum(known) if known else None

    def mean_replicas(self, start: float, stop: float) -> float:
        """Replicas that are paid for between two times, on average."""
        times, counts = self.paid
        inside = np.diff(np.clip(times, start, stop))
        return float(np.dot(inside, counts)) / (stop - start)
