"""A plan: the cheapest deployment whose simulated percentiles meet the limits, and what stands behind the choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.catalog.price_lists import PriceBook
from inferplan.errors import InfeasibleError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.planning.demand import Demand, percentile_of
from inferplan.planning.search import Found, Option, Sizing, nearest_miss, point, ranked, search
from inferplan.planning.space import Space
from inferplan.planning.verify import Verified, verify
from inferplan.table import frame
from inferplan.traffic.requests import Slo
from inferplan.units import format_time

if TYPE_CHECKING:
    import pandas as pd

NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "end-to-end latency"}
REASONS = {
    "impossible": "cannot be divided so, or the device lacks the arithmetic or a fact",
    "weights": "the weights do not fit",
    "memory": "the cache does not hold the requests",
    "slots": "more requests than the engine admits",
    "prefill": "steps have no room for the prompts",
    "ttft": "TTFT is over the limit",
    "tpot": "TPOT is over the limit",
    "e2el": "end-to-end latency is over the limit",
    "disaggregated": "no pair of pools meets the limits",
    "drafts": "the draft model cannot be divided so (tried without it)",
    "unmeasured": "no constants on file: at the bare roofline they would look better than they are",
}
_OPTIONS = {"e2el": "e2e"}
"""Options whose name is not that of the metric they limit."""
_EACH = 4
"""Finalists of one device that are kept."""
_SIMULATIONS = 48
_DEAREST = 4.0
"""An alternative that costs more than so many times the cheapest is none."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """Everything that a plan answers to."""

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """The answer. ``alternatives``: other finalists that meet the limits, cheapest first, the plan left out."""

    question: Question
    best: Verified
    alternatives: list[Verified]
    found: Found

    @property
    def option(self) -> Option:
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
        for _ in range(200):
            batch = max(batch + 1, round(batch * 1.03))
            found = point(
                option.deployment, question.demand, question.slo.percentile, batch, option.budget, option.speculation
            )
            checks = [
                ("memory", float(found.memory_use[0, 0]) <= 1),
                ("slots", float(found.concurrency[0, 0]) <= found.slots),
                ("prefill", float(found.prefill_use[0, 0]) < 1),
                *((n, float(getattr(found, n)[0, 0]) <= limit) for n, limit in question.slo.limits.items()),
            ]
            broken = [name for name, holds in checks if not holds]
            if broken:
                return broken[0]
        return "slots"

    @cached_property
    def cheaper(self) -> Option | None:
        """The option that costs less and misses the limits by least."""
        question = self.question
        return nearest_miss(self.found, question.demand, question.slo, question.sizing, self.option.cost)

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
                    "replicas_needed": self._replicas_at(factor),
                }
            )
        return rows

    def _replicas_at(self, factor: float) -> int:
        option, demand, sizing = self.option, self.question.demand, self.question.sizing
        per = option.concurrency if demand.users is not None else option.rate
        whole = demand.users if demand.users is not None else (demand.requests_per_second or 0.0)
        return max(int(np.ceil(whole * factor / (per * sizing.utilisation) - 1e-9)), 1)

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
        "currency": option.tag.currency if option.tag else None,
        "hours": option.hours,
        "draft_tokens": option.speculation.length or None,
        "calibration": option.deployment.calibration.name,
    }


def plan(question: Question) -> Plan:
    """Search, then simulate the cheapest finalists until no cheaper one is left.

    Raises ``InfeasibleError`` with the nearest miss when nothing meets the limits.
    """
    found = _measured(search(question.space, question.demand, question.slo, question.sizing, question.prices))
    if not found.options:
        raise _infeasible(question, found)
    passed: list[Verified] = []
    failed: list[Verified] = []
    for drafted in (False, True):  # each way of decoding has finalists of its own, so that the two can be compared
        options = [option for option in found.options if bool(option.speculation.length) == drafted]
        kept, missed = _simulated(options, question)
        passed, failed = passed + kept, failed + missed
    if not passed:
        raise _infeasible(question, found, failed)
    passed.sort(key=lambda v: (v.option.cost, v.option.devices, v.option.pools is not None, v.achieved["e2el"]))
    return Plan(question=question, best=passed[0], alternatives=passed[1:], found=found)


def _simulated(options: list[Option], question: Question) -> tuple[list[Verified], list[Verified]]:
    """The cheapest options of each device that meet the limits in simulation, and those that do not."""
    passed: list[Verified] = []
    failed: list[Verified] = []
    runs = 0
    for option in ranked(options):
        cheapest = min((v.option.cost or np.inf for v in passed), default=np.inf)
        same = sum(v.option.deployment.hardware.name == option.deployment.hardware.name for v in passed)
        if same >= _EACH or (same and (option.cost or 0.0) > cheapest):
            continue  # this device is already represented, and nothing cheaper can come
        limit = cheapest if same else _DEAREST * cheapest
        if runs >= _SIMULATIONS or (option.cost or 0.0) > limit:
            break
        trial: Option | None = option
        before = np.inf
        while trial is not None and runs < _SIMULATIONS:
            checked = verify(trial, question.demand, question.slo)
            runs += 1
            if not checked.violations(question.slo) and not checked.verdict.startswith(("overloaded", "refused")):
                passed.append(checked)
                break
            failed.append(checked)
            violations = checked.violations(question.slo)
            worst = max(violations.values(), default=np.inf)
            if checked.refused and not np.isfinite(worst):
                break  # requests that can never run need something else than more replicas
            if trial.pools and np.isfinite(before) and worst > 0.99 * before:
                break  # a larger pool did not help: single prompts take too long, not the queue
            before = worst
            trial = _one_more(trial, question, limit, violations)
    return passed, failed


def _measured(found: Found) -> Found:
    """Without the options that are priced at the bare roofline, where others have constants: the two do not compare."""
    measured = [o for o in found.options if o.deployment.calibration.basis != "roofline"]
    if not measured or len(measured) == len(found.options):
        return found
    bare = [o for o in found.options if o.deployment.calibration.basis == "roofline"]
    names = sorted({o.deployment.hardware.name for o in bare})
    found.rejections.add("unmeasured", len(bare), ", ".join(names))
    return found._replace(options=measured)


def _one_more(option: Option, question: Question, cheapest: float, violations: dict[str, float]) -> Option | None:
    """The same with more replicas, of the pool that misses its limit; ``None`` when it is no longer the cheapest."""
    if option.cost is None or option.tag is None:
        return None
    pools = option.pools
    if pools is None:
        replicas = option.replicas + max(1, round(option.replicas * 0.08))
    else:
        late = bool({"ttft", "e2el"} & violations.keys()) or not violations
        slow = "tpot" in violations or not violations
        more = [max(1, round(size * 0.08)) if grows else 0 for size, grows in zip(pools, (late, slow))]
        pools = (pools[0] + more[0], pools[1] + more[1])
        replicas = sum(pools)
    cost = (replicas + option.spare) * option.deployment.parallel.ranks * option.tag.per_hour * (option.hours or 1.0)
    grown = replicas > 1.6 * max(_first_replicas(option, question), 1) + 2
    if cost >= cheapest or grown:
        return None
    return replace(option, replicas=replicas, cost=cost, pools=pools)


def _first_replicas(option: Option, question: Question) -> int:
    per = option.concurrency if question.demand.users is not None else option.rate
    whole = question.demand.users or question.demand.requests_per_second or 0.0
    return int(np.ceil(whole / (per * question.sizing.utilisation)))


def _infeasible(question: Question, found: Found, failed: list[Verified] | None = None) -> InfeasibleError:
    slo = question.slo
    asked = ", ".join(f"{NAMES[n]} {percentile_of(slo)} < {format_time(v, 3)}" for n, v in slo.limits.items())
    what = f"no plan serves {question.space.base.model} with {question.demand.describe()}" + (
        f" under {asked}" if asked else ""
    )
    counts = ", ".join(f"{count:,} {REASONS[reason]}" for reason, count in found.rejections.counts.most_common(4))
    miss = nearest_miss(found, question.demand, slo, question.sizing)
    if failed:
        nearest = min(failed, key=lambda v: max(v.violations(slo).values(), default=1.0))
        factor = nearest.violations(slo)
        return InfeasibleError(
            what,
            because=nearest.refused
            or f"the simulated {percentile_of(slo)} of {nearest.option.deployment.describe()} is over",
            hint=_relaxation(slo, factor)
            if np.isfinite(max(factor.values(), default=np.inf))
            else "a larger --most, a lower --utilisation, or another --gpu",
        )
    if miss is None:
        if found.grids and all(entry.tag is None for entry in found.grids):
            names = sorted({entry.grid.deployment.hardware.name for entry in found.grids})
            price = f"--price {names[0]}=2.49 (yours, for a device hour), or another --prices"
            return InfeasibleError(what, because=f"no price on file of {', '.join(names)}", hint=price)
        wider = f"a larger --most than {question.space.most}, a narrower --quant, or another --gpu"
        example = found.rejections.examples.get("impossible")
        counts += f"; such as: {example}" if example and not found.grids else ""
        return InfeasibleError(what, because=counts or "no candidate exists", hint=wider)
    cost = "" if miss.cost is None or miss.tag is None else f", {miss.cost:,.2f} {miss.tag.currency}/h"
    checked = verify(miss, question.demand, slo)  # the closed form may call a miss narrow that is not
    factors = checked.violations(slo)
    times, how = (checked.achieved, "simulated ") if checked.result is not None else ({}, "")
    if not factors or not np.isfinite([*factors.values(), *times.values()]).all():
        factors, times, how = miss.violations(slo), {}, ""
    ttft, tpot = times.get("ttft", miss.ttft), times.get("tpot", miss.tpot)
    return InfeasibleError(
        what,
        because=f"of {found.evaluated:,} candidates: {counts}; nearest: {miss.replicas} x {miss.deployment.describe()} "
        f"({how}TTFT {format_time(ttft, 3)}, TPOT {format_time(tpot, 3)}{cost})",
        hint=_relaxation(slo, factors),
    )


def _relaxation(slo: Slo, factors: dict[str, float]) -> str:
    """The limits, as options, that would have been met; a little above, so that rounding does not break them again."""
    texts = (
        (name, format_time(slo.limits[name] * factor * 1.005, 3).replace(" ", "")) for name, factor in factors.items()
    )
    return "relax to " + ", ".join(f"--{_OPTIONS.get(name, name)} {text}" for name, text in texts)
