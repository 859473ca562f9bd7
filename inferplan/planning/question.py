"""What a plan answers to: the space, the load, the limits, how replicas are counted, and prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, isinf

from inferplan.answers.cost import ApiPrice
from inferplan.catalog.assemble import load_engine
from inferplan.catalog.files import load_hardware, load_model
from inferplan.catalog.price_lists import PriceBook
from inferplan.catalog.workloads import BorrowedLimit
from inferplan.errors import UsageError
from inferplan.estimate.structured import mask_filling
from inferplan.features import require_together, those
from inferplan.fields import Text, ask
from inferplan.planning.adapters import require_both
from inferplan.planning.confidence import MIDDLE
from inferplan.planning.demand import Demand
from inferplan.planning.option import Sizing, Stream
from inferplan.planning.space import Space
from inferplan.serving.batch_means import batch_size
from inferplan.serving.routing import Routing
from inferplan.serving.techniques.tiers import (
    FORM,
    CacheTier,
    nothing_shared,
    parse_sizes,
    require_currency,
    require_tiers,
)
from inferplan.traffic.reasoning import ReasoningLengths
from inferplan.traffic.requests import Slo

Chain = tuple[CacheTier, ...]
"""Cache tiers from the nearest down."""
MOST_CHAINS = 16
"""Each is searched on its own."""


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
    most: bool = False
    """The load is the most that is carried by the GPUs there are, or for a cost per hour, whatever the demand says."""
    borrowed: BorrowedLimit | None = None
    """The limit on TTFT, where it was made for other prompts."""
    api: ApiPrice | None = None
    """What an API charges, beside which the bill is shown."""

    @property
    def stream(self) -> Stream:
        """The load, its limits, and how replicas are counted."""
        return Stream(self.demand, self.slo, self.sizing)

    def at(self, confidence: float) -> Question:
        """The same question at another confidence."""
        return replace(self, sizing=replace(self.sizing, confidence=confidence))

    @property
    def confidences(self) -> list[float]:
        """Those at which it is answered, one after another until one has an answer."""
        own = self.sizing.confidence
        return list(dict.fromkeys([own, own if self.sizing.insists else MIDDLE]))

    def with_owned_counted(self) -> Question:
        """The same, in hours of GPUs where all are owned and no list has a price of any
        (:meth:`inferplan.catalog.price_lists.PriceBook.counting`) and nothing else that costs money is asked for."""
        money = (self.sizing.miss_cost, self.sizing.max_cost, self.api)
        if not self._all_owned or self.chains or any(one is not None for one in money):
            return self
        names = [load_hardware(gpu).name for gpu in self.space.gpus]
        return replace(self, prices=self.prices.counting(names))

    @property
    def _all_owned(self) -> bool:
        """Whether it is known how many GPUs there are of each kind that may be used."""
        if self.sizing.owned is None:
            return False
        counts = self.sizing.owned.counts
        return {load_hardware(gpu).name for gpu in self.space.gpus} <= {load_hardware(gpu).name for gpu in counts}

    def each_budget(self) -> list[Question]:
        """The question under each of its budgets of thought; itself alone where none are compared."""
        output = self.demand.output
        if not self.budgets or not isinstance(output, ReasoningLengths):
            return [self]
        each = (replace(self.demand, output=output.under(budget)) for budget in self.budgets)
        return [replace(self, demand=demand, budgets=()) for demand in each]

    @property
    def features(self) -> set[str]:
        """As :mod:`inferplan.features` names them."""
        sizing, power = self.sizing, self.sizing.power
        own = those(
            budgets=bool(self.budgets),
            tiers=bool(self.chains),
            shared_tiers=any(tier.shared for chain in self.chains for tier in chain),
            routing=self.routing is not None,
            failures=sizing.survive is not None,
            spare=sizing.spare > 0,
            power_budget=power is not None,
            mean_power=power is not None and power.provision == "mean",
            confidence=sizing.insists and sizing.confidence > MIDDLE,
            miss_cost=sizing.miss_cost is not None,
        )
        return own | self.space.features | self.demand.features

    @property
    def bounded(self) -> bool:
        """Whether what there is, or what may be spent, bounds the load that can be carried."""
        return self.sizing.max_cost is not None or self._all_owned

    @property
    def bound(self) -> str:
        """That in words: ``"2 x l40s"``, ``"20.00 USD/h"``, or both."""
        sizing = self.sizing
        money = [] if sizing.max_cost is None else [f"{sizing.max_cost:,.2f} {self.prices.currency}/h"]
        return " and ".join([*([] if sizing.owned is None else [sizing.owned.describe()]), *money])

    def __post_init__(self) -> None:
        require_together("plan", self.features)
        self._require_tiers()
        if self.most:
            self._require_bound()
        if self.routing == "sticky" and self.demand.prefix.turns == 1:
            raise UsageError("sticky routing needs conversations", hint="--turns 4, or --routing prefix-aware")
        if not 0 < self.sizing.utilisation <= 1:
            raise UsageError("--utilisation is in (0, 1]")
        if not 0.5 <= self.sizing.confidence < 1:
            raise UsageError("--confidence is in [0.5, 1)", hint="0.5 is the prediction itself, 0.9 its slow end")
        if self.api is not None:
            self.prices.require_currency("--api-price", self.api.currency)
        if self.sizing.miss_cost is not None and not 0 <= self.sizing.miss_cost < inf:
            raise UsageError("--miss-cost is a cost per hour, 0 or more", hint="--miss-cost 50")
        if isinf(batch_size(self.slo.percentile)) and not self.demand.offline and self.demand.trace is None:
            raise UsageError(
                "no run is long enough to know the slowest of all requests", hint="a --percentile below 100, such as 99"
            )
        require_both(self.space.base.lora, self.demand)
        if self.demand.structured is not None:
            for engine in self.space.engines:
                self.demand.structured.each(mask_filling(load_engine(engine)))
        if self.slo.answer_ttft is not None and not isinstance(self.demand.output, ReasoningLengths):
            raise UsageError(
                "--answer-ttft limits the first token after a thought, and there are no thoughts",
                hint="--thinking-tokens lognormal:4k:0.8 as well, or --ttft",
            )
        if not self.slo.limits and not self.demand.offline:
            encodes = load_model(self.space.base.model).encodes
            hint = "--e2e 200ms" if encodes else "--ttft 500ms --tpot 40ms, --e2e 2s, or --slo NAME"
            raise UsageError("a plan needs a limit on latency", hint=hint)

    def _require_bound(self) -> None:
        """Raise ``UsageError`` where the most load has no bound, or is not of a kind that grows."""
        if not self.bounded:
            raise UsageError(
                "the most has no bound",
                because="more GPUs serve more; nothing says how many there are, or what may be spent",
                hint="--gpu 2x-h100, or --max-cost 20 (per hour)",
            )
        if self.budgets:
            raise UsageError("the most is found for one --thinking-budget", hint="one --thinking-budget")

    def _require_tiers(self) -> None:
        """Raise ``UsageError`` for tiers that are no chain, in another currency, or where nothing is kept in them, or
        nothing says what they find."""
        if not self.chains:
            return
        demand = self.demand
        if demand.offline:
            raise UsageError("an offline job is not simulated, so the hits of cache tiers are not known", hint="--rate")
        known = demand.own is not None or demand.sessions is not None
        if not known and (demand.trace is None or demand.trace.hashes is None):
            raise nothing_shared(" with a given hit rate" if demand.cached else "")
        for chain in self.chains:
            require_tiers(chain)
        require_currency([tier for chain in self.chains for tier in chain], self.prices.currency)


@dataclass(frozen=True, kw_only=True)
class TiersTried:
    """Cache tiers as a plan is asked to try them: each in its sizes, from the nearest down."""

    sizes: tuple[list[CacheTier], ...] = ask(
        "--cache-tier",
        Text(parse_sizes),
        "A tier for entries that the devices' caches drop, as in simulate, in one size or several: "
        "host:64GB,1TB:50GB/s. Each size is compared with no tier, without separate pools; the answer states its "
        "value.",
        (),
        metavar=FORM.replace("CAPACITY", "SIZES"),
        several=True,
    )


def chains_of_sizes(tiers: Sequence[Sequence[CacheTier]]) -> tuple[Chain, ...]:
    """Every combination of the sizes of each tier, without those of nothing; the chain of no tier is left out.

    Raises ``UsageError`` for more than :data:`MOST_CHAINS`, and where every size is nothing.
    """
    found = dict.fromkeys(tuple(tier for tier in chain if tier.capacity) for chain in product(*tiers))
    chains = tuple(chain for chain in found if chain)
    if tiers and not chains:
        raise UsageError("every size of the cache tiers is 0", hint="host:0,256GB:50GB/s, or leave them out")
    if len(chains) > MOST_CHAINS:
        raise UsageError(
            f"{len(chains)} combinations of cache tiers are more than a plan tries",
            because=f"each has a plan of its own; {MOST_CHAINS} are the most",
            hint="fewer sizes",
        )
    return chains
