"""A plan: the cheapest deployment whose simulated percentiles meet the limits, and what stands behind the choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from inferplan.estimate.deployment import Deployment
from inferplan.planning.finalists import simulate_finalists, without_unmeasured
from inferplan.planning.infeasible import infeasible
from inferplan.planning.option import Option, replicas_needed
from inferplan.planning.question import Question
from inferplan.planning.search import SearchResult, conditions, nearest_miss, point, search
from inferplan.planning.verify import Verified, verify
from inferplan.table import frame

if TYPE_CHECKING:
    import pandas as pd

_MAX_GROWTH_STEPS = 200
"""Batches tried in search of the bottleneck, each 3 % larger than the one before."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """The answer. ``alternatives``: other finalists that meet the limits, cheapest first, the plan left out."""

    question: Question
    best: Verified
    alternatives: list[Verified]
    searched: SearchResult

    @property
    def option(self) -> Option:
        """The chosen point with its replicas."""
        return self.best.option

    @property
    def deployment(self) -> Deployment:
        """The chosen deployment with all its replicas, spare ones too."""
        option = self.option
        parallel = replace(option.deployment.parallel, replicas=option.replicas + option.spare)
        return replace(option.deployment, parallel=parallel)

    @property
    def rate(self) -> float:
        """Requests a second that are served."""
        demand = self.question.demand
        if demand.requests is not None and self.option.hours is not None:
            return demand.requests / (self.option.hours * 3600)
        if demand.requests_per_second is not None:
            return demand.requests_per_second
        return (demand.users or 0) / self.option.e2el if self.best.result is None else self._measured_rate

    @property
    def _measured_rate(self) -> float:
        assert self.best.result is not None
        return self.best.result.request_rate * self.option.replicas

    @cached_property
    def binding(self) -> str:
        """What stops one replica from taking more: the first limit to break when its batch grows."""
        option, question = self.option, self.question
        if option.pools:
            return "ttft" if "ttft" in question.slo.limits else "tpot"
        batch = option.batch
        for _ in range(_MAX_GROWTH_STEPS):
            batch = max(batch + 1, round(batch * 1.03))
            grid = point(
                option.deployment, question.demand, question.slo.percentile, batch, option.budget, option.speculation
            )
            broken = next((name for name, kept in conditions(grid, question.slo).items() if not kept.all()), None)
            if broken is not None:
                return broken
        return "slots"

    @cached_property
    def cheaper(self) -> Option | None:
        """The option that costs less and misses the limits by least."""
        question = self.question
        return nearest_miss(self.searched, question.demand, question.slo, question.sizing, self.option.cost)

    @cached_property
    def cheaper_verified(self) -> Verified | None:
        """That option with what the simulator says of it: the closed form may call a miss narrow that is not."""
        return None if self.cheaper is None else verify(self.cheaper, self.question.demand, self.question.slo)

    def cheapest(self, drafted: bool) -> Verified | None:
        """The cheapest finalist that meets the limits with speculation, or without it."""
        finalists = [self.best, *self.alternatives]
        return next((v for v in finalists if bool(v.option.speculation.length) == drafted), None)

    @cached_property
    def bands(self) -> dict[str, tuple[float, float]]:
        """By limited metric, the factors between which 80 % of held-out rows lie; a metric without one is left out."""
        result = self.best.result
        if result is None:
            return {}
        found = {name: result.band(name) for name in self.question.slo.limits}
        return {name: band for name, band in found.items() if band is not None}

    @property
    def holds_at_the_far_end(self) -> bool | None:
        """Whether the limits still hold when every latency is at the slow end of its band; ``None`` without bands."""
        limits = self.question.slo.limits
        if set(self.bands) != set(limits):
            return None
        return all(self.best.achieved[name] * self.bands[name][1] <= limit for name, limit in limits.items())

    @cached_property
    def sensitivity(self) -> list[dict[str, Any]]:
        """The same replicas under more and less load, simulated; and how many replicas each load would need."""
        demand, slo = self.question.demand, self.question.slo
        rows = []
        for factor in (0.8, 1.1, 1.25, 1.5):
            checked = verify(self.option, demand, slo, factor)
            rows.append(
                {
                    "load": factor,
                    **{f"{name}_s": checked.achieved[name] for name in slo.limits},
                    "meets": not checked.violations(slo) and checked.verdict != "overloaded",
                    "verdict": checked.verdict,
                    "replicas_needed": replicas_needed(self.option, demand, self.question.sizing, factor),
                }
            )
        return rows

    def to_frame(self) -> pd.DataFrame:
        """The plan and its alternatives, one row each."""
        return frame([row(verified) for verified in [self.best, *self.alternatives]])


def row(verified: Verified) -> dict[str, Any]:
    """One finalist as a flat record."""
    option = verified.option
    parallel = option.deployment.parallel
    return {
        "gpu": option.deployment.hardware.name,
        "devices": option.devices,
        "replicas": option.replicas,
        "spare": option.spare,
        "precision": option.deployment.precision.describe(),
        "tp": parallel.tp,
        "pp": parallel.pp,
        "ep": parallel.ep,
        "dp": parallel.dp,
        "engine": option.deployment.engine.describe(),
        "prefill_replicas": option.pools[0] if option.pools else None,
        "decode_replicas": option.pools[1] if option.pools else None,
        "token_budget": option.budget,
        "max_num_seqs": verified.slots,
        "ttft_s": verified.achieved["ttft"],
        "tpot_s": verified.achieved["tpot"],
        "e2el_s": verified.achieved["e2el"],
        "verdict": verified.verdict,
        "capacity_requests_per_s": option.rate,
        "output_tokens_per_s_per_device": option.per_device,
        "output_tokens_per_s_per_user": option.per_user,
        "cost": option.cost,
        "currency": option.tariff.currency if option.tariff else None,
        "hours": option.hours,
        "draft_tokens": option.speculation.length or None,
        "calibration": option.deployment.calibration.name,
    }


def plan(question: Question) -> Plan:
    """Search, then simulate the cheapest finalists until no cheaper one is left.

    Raises ``InfeasibleError`` with the nearest miss when nothing meets the limits.
    """
    searched = search(question.space, question.demand, question.slo, question.sizing, question.prices)
    searched = without_unmeasured(searched)
    if not searched.options:
        raise infeasible(question, searched)
    passed: list[Verified] = []
    failed: list[Verified] = []
    for drafted in (False, True):  # each way of decoding has finalists of its own, so that the two can be compared
        options = [option for option in searched.options if bool(option.speculation.length) == drafted]
        kept, missed = simulate_finalists(options, question)
        passed, failed = passed + kept, failed + missed
    if not passed:
        raise infeasible(question, searched, failed)
    passed.sort(key=lambda v: (v.option.cost, v.option.devices, v.option.pools is not None, v.achieved["e2el"]))
    return Plan(question=question, best=passed[0], alternatives=passed[1:], searched=searched)
