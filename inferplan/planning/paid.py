"""What replicas that come and go cost: their bill over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from inferplan.catalog.bills import Tariff
from inferplan.units import Array

HOUR = 3600.0


class Paid:
    """Replicas that are paid for over a span. ``paid``: times in seconds at which their number changes, and the number
    from each on; the last time is the end of the span. ``tariff``: what a number of them costs per hour.
    """

    if TYPE_CHECKING:
        tariff: Tariff

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
    def cost(self) -> float:
        """What the span costs: at every time the bill of the replicas that are there, whole instances."""
        times, counts = self.paid
        return float(np.dot(np.diff(times), np.asarray(self.tariff.cost(counts.astype(float))))) / HOUR

    def mean_replicas(self, start: float, stop: float) -> float:
        """Replicas that are paid for between two times, on average."""
        times, counts = self.paid
        inside = np.diff(np.clip(times, start, stop))
        return float(np.dot(inside, counts)) / (stop - start)
