"""Finalists under the simulator: percentiles instead of screening formulas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, sqrt

import numpy as np

from inferplan.errors import InferplanError, NotFiniteError
from inferplan.planning.demand import Demand
from inferplan.planning.option import Option
from inferplan.serving.cluster import Fleet
from inferplan.serving.flags import Flags
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import Options, simulate
from inferplan.traffic.requests import Requests, Slo, Traffic

_FEWEST, _MOST = 600, 3000
"""Requests of one simulation: six times those in the system, between these."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Verified:
    """An option with what the simulator says of it; ``result`` is absent where the simulator cannot run it.

    achieved: latencies at the SLO's percentile, in seconds. slots: sequences that one replica is started with.
    """

    option: Option
    slots: int
    achieved: dict[str, float]
    result: SimulationResult | None = None
    verdict: str = "not simulated"

    @property
    def refused(self) -> str:
        """Why requests could never run, with their share; empty when all could."""
        if self.result is None or not self.result.counts["rejected"]:
            return ""
        share = self.result.counts["rejected"] / self.result.counts["arrived"]
        return f"{share:.1%} of the requests are refused: {'; '.join(self.result.records.refused)}"

    def violations(self, slo: Slo) -> dict[str, float]:
        """Limits that are not met, with the factor by which they are missed; an overloaded run misses without bound."""
        if self.verdict == "overloaded":
            return dict.fromkeys(slo.limits, float("inf"))
        return {
            name: value / slo.limits[name]
            for name, value in self.achieved.items()
            if name in slo.limits and value > slo.limits[name]
        }


def slots_for(option: Option) -> int:
    """Sequences to admit to one replica: those of its capacity and three standard deviations more, in eights."""
    tier = option.deployment.engine.defaults.tier(option.deployment.hardware)
    most = tier.max_sequences * option.deployment.parallel.dp
    wanted = option.concurrency + 3 * sqrt(max(option.concurrency, 1.0))
    return min(ceil(wanted / 8) * 8, most)


def traffic_of(demand: Demand, option: Option, factor: float = 1.0, seed: int = 0) -> tuple[Traffic | Requests, float]:
    """The traffic of one replica (of all of them where pools are apart), and its requests a second or users."""
    share = 1 if option.pools else option.replicas
    if demand.users is not None:
        users = max(ceil(demand.users * factor / share), 1)
        count = int(np.clip(6 * users, _FEWEST, _MOST))
        return demand.traffic(users, count, option.e2el, seed), float(users)
    if demand.trace is not None and demand.trace.arrival is not None:
        return _thinned(demand.trace, share, factor), (demand.rate or 0.0) * factor / share
    rate = (demand.requests_per_second or 0.0) * factor / share
    held = rate * option.e2el
    count = int(np.clip(6 * held, _FEWEST, _MOST))
    return demand.traffic(rate, count, seed=seed), rate


def _thinned(trace: Requests, share: int, factor: float) -> Requests:
    """Every ``share``-th request of a trace, as a round-robin balancer sends them, ``factor`` times as fast."""
    assert trace.arrival is not None
    chosen = slice(0, None, share)
    return replace(
        trace,
        prompt=trace.prompt[chosen],
        output=trace.output[chosen],
        arrival=(trace.arrival[chosen] - trace.arrival[0]) / factor,
        hashes=None if trace.hashes is None else list(trace.hashes)[chosen],
    )


def verify(option: Option, demand: Demand, slo: Slo, factor: float = 1.0) -> Verified:
    """Simulate one replica under its share of the demand; an offline job needs no latencies and is not simulated.

    Raises ``NotFiniteError`` for a price that is no number.
    """
    slots = slots_for(option)
    screened = {name: getattr(option, name) for name in ("ttft", "tpot", "e2el")}
    if demand.offline:
        return Verified(option=option, slots=slots, achieved=screened)
    traffic, _ = traffic_of(demand, option, factor)
    dp = option.deployment.parallel.dp
    flags = Flags(max_num_seqs=ceil(slots / dp), max_num_batched_tokens=option.budget)
    fleet = Fleet(prefill=option.pools[0], decode=option.pools[1]) if option.pools else Fleet()
    options = Options(slo=slo, fleet=fleet, hit_rate=demand.hit_rate, speculation=option.speculation)
    try:
        result = simulate(option.deployment, traffic, flags, options)
    except NotFiniteError:
        raise
    except InferplanError as error:
        return Verified(option=option, slots=slots, achieved=screened, verdict=f"refused: {error.what}")
    achieved = {name: at_percentile(result, name, slo.percentile) for name in ("ttft", "tpot", "e2el")}
    return Verified(option=option, slots=slots, achieved=achieved, result=result, verdict=result.verdict)


def at_percentile(result: SimulationResult, name: str, percentile: float) -> float:
    """A latency at a percentile of the requests; those that were refused or given up are infinitely late."""
    values, counts = getattr(result, name), result.counts
    lost = counts["arrived"] - counts["finished"]
    if not lost:
        return float(np.percentile(values, percentile)) if len(values) else inf
    return float(np.percentile(np.append(values, np.full(lost, inf)), percentile, method="higher"))
