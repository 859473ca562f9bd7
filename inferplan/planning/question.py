"""What a plan answers to: the space, the load, the limits, how replicas are counted, and prices."""

from __future__ import annotations

from dataclasses import dataclass

from inferplan.catalog.price_lists import PriceBook
from inferplan.errors import UsageError
from inferplan.planning.demand import Demand
from inferplan.planning.option import Sizing
from inferplan.planning.space import Space
from inferplan.traffic.requests import Slo


@dataclass(frozen=True, kw_only=True)
class Question:
    """Everything that a plan answers to.

    Raises ``UsageError`` for a utilisation outside (0, 1], and for an online demand without a limit on latency.
    """

    space: Space
    demand: Demand
    slo: Slo
    sizing: Sizing
    prices: PriceBook

    def __post_init__(self) -> None:
        if not 0 < self.sizing.utilisation <= 1:
            raise UsageError("--utilisation is in (0, 1]")
        if not self.slo.limits and not self.demand.offline:
            raise UsageError("a plan needs a limit on latency", hint="--ttft 500ms --tpot 40ms, or --slo NAME")
