"""What a plan answers to: the space, the load, the limits, how replicas are counted, and prices."""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf

from inferplan.catalog.price_lists import PriceBook
from inferplan.errors import UsageError
from inferplan.planning.adapters import require_both
from inferplan.planning.confidence import MIDDLE
from inferplan.planning.demand import Demand
from inferplan.planning.option import Sizing
from inferplan.planning.space import Space
from inferplan.serving.batch_means import batch_size
from inferplan.traffic.requests import Slo


@dataclass(frozen=True, kw_only=True)
class Question:
    """Everything that a plan answers to.

    Raises ``UsageError`` for a utilisation outside (0, 1], a confidence outside [0.5, 1), for the 100th percentile of
    what has no end, and for an online demand without a limit on latency.
    """

    space: Space
    demand: Demand
    slo: Slo
    sizing: Sizing
    prices: PriceBook

    def __post_init__(self) -> None:
        if not 0 < self.sizing.utilisation <= 1:
            raise UsageError("--utilisation is in (0, 1]")
        if not 0.5 <= self.sizing.confidence < 1:
            raise UsageError("--confidence is in [0.5, 1)", hint="0.5 is the prediction itself, 0.9 its slow end")
        if self.sizing.confidence > MIDDLE and self.space.base.ideal:
            raise UsageError("--confidence needs measured constants", because="--ideal has no known error")
        if isinf(batch_size(self.slo.percentile)) and not self.demand.offline and self.demand.trace is None:
            raise UsageError(
                "no run is long enough to know the slowest of all requests", hint="a --percentile below 100, such as 99"
            )
        require_both(self.space.base.lora, self.demand)
        described = self.space.prefill_redundant or self.space.prefill_two_batches is not None
        if described and (self.demand.offline or self.demand.users is not None):
            raise UsageError(
                "the --prefill-... options describe a pool of its own for prompts, and none is planned for this load",
                because="pools apart are planned for a rate of requests",
                hint="--rate, or leave them out",
            )
        if not self.slo.limits and not self.demand.offline:
            hint = "--ttft 500ms --tpot 40ms, --e2e 2s, or --slo NAME"
            raise UsageError("a plan needs a limit on latency", hint=hint)
