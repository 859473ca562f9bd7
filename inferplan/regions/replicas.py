"""What a replica carries where the network takes a part of the limits, what it draws, and how a fleet of them runs.

The same search, simulation and prices of steps as :mod:`inferplan.planning.day`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from inferplan.answers.energy import JOULES_PER_KWH
from inferplan.answers.power import run_energy
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.power import standing_watts
from inferplan.catalog.price_lists import PriceBook
from inferplan.errors import InfeasibleError
from inferplan.estimate.deployment import Deployment
from inferplan.features import require_together
from inferplan.planning.demand import METRIC_NAMES, Demand
from inferplan.planning.design import Design, alone, best_point, design_at
from inferplan.planning.option import PlanOption, Sizing
from inferplan.planning.question import Question
from inferplan.planning.sizing import CAPACITY_TOLERANCE
from inferplan.planning.space import Space
from inferplan.planning.verify import options_of, slots_for
from inferplan.regions.file import ServiceSpec
from inferplan.serving.batch_means import RunPrecision
from inferplan.serving.class_results import METRICS, at_percentile
from inferplan.serving.fleet import Fleet
from inferplan.serving.result import SimulationResult
from inferplan.serving.run_length import simulate_steady
from inferplan.traffic.requests import Slo, parse_lengths
from inferplan.units import format_time

_SURE = RunPrecision(tolerance=0.05, fewest=4_000)
"""Of the run of a fleet."""


class Draw(NamedTuple):
    """kWh that a replica takes: standing for an hour, whatever it does; and for each request."""

    standing: float
    request: float


class Seen(NamedTuple):
    """Latencies of a run at the percentile, in seconds, as the server sees them; infinite where a queue grows."""

    ttft: float
    tpot: float
    e2el: float
    verdict: str


@dataclass(frozen=True, eq=False)
class Replicas:
    """Replicas of a service on one kind of machine. told: called as each is sized.

    designs: by delay, what one carries; text for a delay with which no load keeps the limits, which says why.
    """

    service: ServiceSpec
    request: Request
    prices: PriceBook
    told: Callable[[], None]
    designs: dict[float, Design | str] = field(default_factory=dict)

    @property
    def slo(self) -> Slo:
        """As users see it."""
        one = self.service
        return Slo(ttft=one.ttft, tpot=one.tpot, e2el=one.e2e, percentile=one.percentile)

    def question(self, delay: float) -> Question:
        """What is left of the limits behind the network."""
        one, slo = self.service, self.slo
        left = {name: limit - delay for name, limit in slo.limits.items() if name != "tpot"}
        return Question(
            space=Space(base=self.request, gpus=(self.request.gpu,), disaggregate=False),
            demand=Demand(prompt=parse_lengths(one.prompt), output=parse_lengths(one.output), rate=1.0),
            slo=replace(slo, **left),
            sizing=Sizing(utilisation=one.utilisation),
            prices=self.prices,
        )

    def size(self, delays: Iterable[float]) -> None:
        """Find what a replica carries at each of these delays. Raises as :func:`inferplan.planning.design.design_at`,
        but for limits that are too short."""
        deployment = assemble(self.request)
        require_together("day", deployment.features | {"elastic"})
        points: dict[float, PlanOption] = {}
        for delay in sorted(set(delays)):
            found = self._point(deployment, delay)
            if isinstance(found, str):
                self.designs[delay] = found
            else:
                points[delay] = found
        if points:
            self._simulated(points)

    def _point(self, deployment: Deployment, delay: float) -> PlanOption | str:
        short = [name for name, limit in self.slo.limits.items() if name != "tpot" and limit <= delay]
        if short:
            return f"the network takes {format_time(delay, 3)}, all of the limit on {METRIC_NAMES[short[0]]}"
        try:
            return best_point(self.request, deployment, self.question(delay))
        except InfeasibleError as error:
            return f"the network takes {format_time(delay, 3)}, and {error.because}"

    def _simulated(self, points: dict[float, PlanOption]) -> None:
        """All with the slots of the one that takes most; delays between two with which a replica carries the same carry
        that too, because a longer one never carries more."""
        slots = max(
            slots_for(point, alone(point, self.question(delay)).demand, self.service.utilisation)
            for delay, point in points.items()
        )
        order = sorted(points)

        def at(place: int) -> Design | str:
            delay = order[place]
            if delay not in self.designs:
                try:
                    self.designs[delay] = design_at(replace(points[delay], slots=slots), self.question(delay))
                except InfeasibleError as error:
                    self.designs[delay] = f"the network takes {format_time(delay, 3)}, and {error.because}"
                self.told()
            return self.designs[delay]

        def between(low: int, high: int) -> None:
            first, last = at(low), at(high)
            if high - low < 2:
                return
            if isinstance(first, Design) and isinstance(last, Design) and first.rate == last.rate:
                self.designs.update((order[place], first) for place in range(low + 1, high))
                return
            middle = (low + high) // 2
            between(low, middle)
            between(middle, high)

        between(0, len(order) - 1)

    def rate(self, delay: float) -> float:
        """Requests a second that a replica is given: its share of what it carries with the network this far away.

        Capacities are known to 3 %: those that differ by less are one, the least of them.
        """
        own = min(one.rate for known, one in self.designs.items() if known <= delay and isinstance(one, Design))
        alike: list[float] = []
        for rate in sorted({one.rate for one in self.designs.values() if isinstance(one, Design)}, reverse=True):
            if alike and rate < alike[0] / (1 + CAPACITY_TOLERANCE):
                if own >= alike[-1]:
                    break
                alike = []
            alike.append(rate)
        return alike[-1] * self.service.utilisation

    @property
    def nearest(self) -> Design:
        """The replica that serves the nearest users."""
        return next(one for _, one in sorted(self.designs.items()) if isinstance(one, Design))

    def run(self, replicas: int, load: float) -> SimulationResult:
        """So many replicas fed in turn, as :func:`inferplan.planning.design.carried_by` sizes them, under a load, requests a second, for as long as it takes to be sure."""
        design = self.nearest
        question = self.question(0.0)
        deployment = replace(
            design.deployment, parallel=replace(design.deployment.parallel, replicas=replicas)
        )
        options = options_of(design.option, question, Fleet(routing="round-robin"))
        precision = replace(_SURE, percentile=self.service.percentile)
        return simulate_steady(deployment, question.demand.traffic(load, 1), design.flags, options, precision)

    def seen(self, replicas: int, load: float) -> Seen:
        """What the server sees of such a run."""
        result = self.run(replicas, load)
        ttft, tpot, e2el = (at_percentile(result, name, self.service.percentile) for name in METRICS)
        return Seen(ttft, tpot, e2el, str(result.verdict))

    def draw(self) -> Draw:
        """From a run of one replica at the load that it is given, of the devices alone. Raises ``MissingFactError``
        without a TDP."""
        deployment = self.nearest.deployment
        standing = standing_watts(deployment.hardware) * deployment.parallel.ranks
        result = self.run(1, self.nearest.rate * self.service.utilisation)
        found = run_energy(deployment, result)
        if found is None:
            return Draw(standing * 3600 / JOULES_PER_KWH, 0.0)
        requests = result.request_rate * found.seconds
        return Draw(
            standing * 3600 / JOULES_PER_KWH, (found.joules - standing * found.seconds) / requests / JOULES_PER_KWH
        )
