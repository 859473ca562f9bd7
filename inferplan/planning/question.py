"""What a plan answers to: the space, the load, the limits, how replicas are counted, and prices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isinf

from inferplan.catalog.price_lists import PriceBook
from inferplan.errors import UsageError
from inferplan.planning.adapters import require_both
from inferplan.planning.chains import Chain, require_shared_text
from inferplan.planning.confidence import MIDDLE
from inferplan.planning.demand import Demand
from inferplan.planning.masks import require_plannable
from inferplan.planning.option import Sizing
from inferplan.planning.space import Space
from inferplan.serving.batch_means import batch_size
from inferplan.serving.routing import Routing
from inferplan.serving.techniques.tiers import require_tiers
from inferplan.traffic.reasoning import ReasoningLengths
from inferplan.traffic.requests import Slo


@dataclass(frozen=True, kw_only=True)
class Question:
    """Everything that a plan answers to. budgets: of thought, where several are compared (``None`` for no end).

    Raises ``UsageError`` for a utilisation outside (0, 1], a confidence outside [0.5, 1), for the 100th percentile of
    what has no end, for an online demand without a limit on latency, and for a limit on the answer behind a thought
    where nobody thinks.
    """

    space: Space
    demand: Demand
    slo: Slo
    sizing: Sizing
    prices: PriceBook
    budgets: tuple[int | None, ...] = ()
    chains: tuple[Chain, ...] = ()
    """Chains of cache tiers, each of which is planned for beside none."""
    routing: Routing | None = None
    """Which replica gets a request; ``None``: one after another, with later turns where the first went. Others than
    that are simulated with all replicas together."""

    def each_budget(self) -> list[Question]:
        """The question under each of its budgets of thought; itself alone where none are compared."""
        output = self.demand.output
        if not self.budgets or not isinstance(output, ReasoningLengths):
            return [self]
        each = (replace(self.demand, output=output.under(budget)) for budget in self.budgets)
        return [replace(self, demand=demand, budgets=()) for demand in each]

    def __post_init__(self) -> None:
        self._require_tiers()
        self._require_routing()
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
        if self.budgets and not isinstance(self.demand.output, ReasoningLengths):
            raise UsageError(
                "several budgets of thought are not compared for calls of sessions",
                because="these are drawn with their thoughts",
                hint="one --thinking-budget",
            )
        require_both(self.space.base.lora, self.demand)
        require_plannable(self.space, self.demand)
        described = self.space.prefill_redundant or self.space.prefill_two_batches is not None
        if described and (self.demand.offline or self.demand.users is not None):
            raise UsageError(
                "the --prefill-... options describe a pool of its own for prompts, and none is planned for this load",
                because="pools apart are planned for a rate of requests",
                hint="--rate, or leave them out",
            )
        if self.slo.answer_ttft is not None and not isinstance(self.demand.output, ReasoningLengths):
            raise UsageError(
                "--answer-ttft limits the first token after a thought, and nobody thinks",
                hint="--thinking-tokens lognormal:4k:0.8 as well, or --ttft",
            )
        if self.sizing.power is not None and self.sizing.power.provision == "mean":
            self._one_simulated_pool()
        if self.sizing.survive is not None:
            self._require_survivable()
        if not self.slo.limits and not self.demand.offline:
            hint = "--ttft 500ms --tpot 40ms, --e2e 2s, or --slo NAME"
            raise UsageError("a plan needs a limit on latency", hint=hint)

    def _one_simulated_pool(self) -> None:
        """Raise ``UsageError`` where nobody knows what devices draw on average."""
        beside = [("pools apart", self.space.disaggregate), ("drafts", bool(self.space.drafting))]
        beside.append(("an offline job", self.demand.offline))
        beside.append(("structured decoding", self.demand.structured is not None))
        if found := [name for name, there in beside if there]:
            raise UsageError(
                f"--provision mean with {' and '.join(found)} is not known here",
                because="what devices draw comes from the simulation of one pool",
                hint="--provision tdp" + (", or --aggregated" if found == ["pools apart"] else ""),
            )

    def _require_survivable(self) -> None:
        """Raise ``UsageError`` where what a plan shall survive is not simulated."""
        beside = [("an offline job", self.demand.offline), ("a trace", self.demand.trace is not None)]
        beside += [("pools apart", self.space.disaggregate), ("--spare", self.sizing.spare > 0)]
        if found := [name for name, there in beside if there]:
            raise UsageError(
                f"--survive and {found[0]} are not planned together",
                because="replicas of one pool are cut under a steady load, and as many bought as that takes",
                hint="--rate or --users, in one pool (--aggregated), without --spare",
            )

    def _require_tiers(self) -> None:
        """Raise ``UsageError`` for tiers that are no chain, in another currency, or where nothing is kept in them."""
        if not self.chains:
            return
        require_shared_text(self.demand)
        if self.budgets:
            raise UsageError("cache tiers are planned for one budget of thought", hint="one --thinking-budget")
        for chain in self.chains:
            require_tiers(chain)
        if self.space.disaggregate:
            raise UsageError("cache tiers are planned beside replicas that compute and decode", hint="--aggregated")
        own = self.prices.currency
        currencies = {tier.price.currency for chain in self.chains for tier in chain if tier.price is not None} - {own}
        if currencies:
            raise UsageError(
                f"the price of a cache tier is in {', '.join(sorted(currencies))} and those of GPUs are in {own}",
                hint=f"a price in {own}, or --currency {min(currencies)}",
            )

    def _require_routing(self) -> None:
        """Raise ``UsageError`` for a routing where nothing is simulated that it would change."""
        if self.routing is None:
            return
        if self.sizing.survive is not None:
            raise UsageError("--survive has a router of its own: --routing says nothing of it", hint="leave it out")
        if self.demand.offline:
            raise UsageError("an offline job is not simulated: --routing says nothing of it", hint="leave it out")
        if self.space.disaggregate:
            raise UsageError("--routing is planned for replicas that compute and decode", hint="--aggregated")
        if self.routing == "sticky" and self.demand.prefix.turns == 1:
            raise UsageError("sticky routing needs conversations", hint="--turns 4, or --routing prefix-aware")
