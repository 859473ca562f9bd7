"""What a replica carries where the network takes a part of the limits, what it draws, and how a fleet of them runs.

The same search, simulation and prices of steps as :mod:`inferplan.planning.day`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
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
from inferplan.planning.space import Space
from inferplan.planning.verify import SHOWN, Verified, slots_for, verify
from inferplan.regions.file import ServiceSpec
from inferplan.serving.class_results import METRICS
from inferplan.steps import Steps
from inferplan.traffic.requests import Slo, parse_lengths
from inferplan.units import format_time

_ALIKE = 1.05
"""Capacities are known to 3 %: those that differ by less than this are one, the least of them."""


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
    """Replicas of a service on one kind of machine.

    designs: by delay, what one carries; text for a delay with which no load keeps the limits, which says why.
    """

    service: ServiceSpec
    request: Request
    prices: PriceBook
    designs: dict[float, Design | str] = field(default_factory=dict)

    @property
    def slo(self) -> Slo:
        """As users see it."""
        one = self.service
        return Slo(ttft=one.ttft, tpot=one.tpot, e2el=one.e2e, percentile=one.percentile)

    def question(self, delay: float) -> Question:
        """What is left of the limits behind the network."""
        one, slo = self.service, self.slo
        left = {name: limit - delay for name, limit in self._behind.items()}
        return Question(
            space=Space(base=self.request, gpus=(self.request.gpu,), disaggregate=False),
            demand=Demand(prompt=parse_lengths(one.prompt), output=parse_lengths(one.output), rate=1.0),
            slo=replace(slo, **left),
            sizing=Sizing(utilisation=one.utilisation),
            prices=self.prices,
        )

    def size(self, delays: Iterable[float], steps: Steps) -> None:
        """Find what a replica carries at each of these delays, a step each. Raises as
        :func:`inferplan.planning.design.design_at`, but for limits that are too short."""
        deployment = assemble(self.request)
        require_together("day", deployment.features | {"elastic"})
        points: dict[float, PlanOption] = {}
        for delay in sorted(set(delays)):
            found = self._point(deployment, delay)
            if isinstance(found, str):
                self.designs[delay] = found
                steps.step()
            else:
                points[delay] = found
        if points:
            self._simulated(points, steps)

    def _point(self, deployment: Deployment, delay: float) -> PlanOption | str:
        if all(limit > delay for limit in self._behind.values()):
            with suppress(InfeasibleError):
                return best_point(self.request, deployment, self.question(delay))
        return self._closed(delay)

    @property
    def _behind(self) -> dict[str, float]:
        """The limits that the network takes a part of."""
        return {name: limit for name, limit in self.slo.limits.items() if name != "tpot"}

    def _closed(self, delay: float) -> str:
        """Why nobody is served at a delay; without network it is the limits alone."""
        if not self._behind:
            return "no load keeps the limit on TPOT"
        name, limit = min(self._behind.items(), key=lambda one: one[1])
        left = format_time(limit - delay, 3) if limit > delay else "nothing"
        return f"the network leaves {left} of the limit on {METRIC_NAMES[name]}: no load keeps the limits"

    def _simulated(self, points: dict[float, PlanOption], steps: Steps) -> None:
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
                except InfeasibleError:
                    self.designs[delay] = self._closed(delay)
                steps.step()
            return self.designs[delay]

        def between(low: int, high: int) -> None:
            first, last = at(low), at(high)
            if high - low < 2:
                return
            if isinstance(first, Design) and isinstance(last, Design) and first.rate == last.rate:
                self.designs.update((order[place], first) for place in range(low + 1, high))
                steps.at(steps.done + high - low - 1)
                return
            middle = (low + high) // 2
            between(low, middle)
            between(middle, high)

        between(0, len(order) - 1)

    def rate(self, delay: float) -> float:
        """Requests a second that a replica is given: its share of what it carries with the network this far away."""
        own = min(one.rate for known, one in self.designs.items() if known <= delay and isinstance(one, Design))
        alike: list[float] = []
        for rate in sorted({one.rate for one in self.designs.values() if isinstance(one, Design)}, reverse=True):
            if alike and rate < alike[0] / _ALIKE:
                if own >= alike[-1]:
                    break
                alike = []
            alike.append(rate)
        return alike[-1] * self.service.utilisation

    @property
    def nearest(self) -> Design:
        """The replica that serves the nearest users."""
        return next(one for _, one in sorted(self.designs.items()) if isinstance(one, Design))

    def run(self, replicas: int, load: float) -> Verified:
        """One of so many replicas that are fed in turn, simulated as in a plan. load: of all, requests a second."""
        question = self.question(0.0)
        question = replace(question, demand=replace(question.demand, rate=load))
        return verify(self.nearest.option.sized(replicas), question, precision=SHOWN)

    def seen(self, replicas: int, load: float) -> Seen:
        """What the server sees of such a run."""
        found = self.run(replicas, load)
        ttft, tpot, e2el = (found.achieved[name] for name in METRICS)
        return Seen(ttft, tpot, e2el, found.verdict)

    def draw(self) -> Draw:
        """From a run of one replica at the load that it is given, of the devices alone. Raises ``MissingFactError``
        without a TDP."""
        deployment = self.nearest.deployment
        standing = standing_watts(deployment.hardware) * deployment.parallel.ranks
        result = self.run(1, self.nearest.rate * self.service.utilisation).result
        found = None if result is None else run_energy(deployment, result)
        if found is None or result is None:
            return Draw(standing * 3600 / JOULES_PER_KWH, 0.0)
        requests = result.request_rate * found.seconds
        return Draw(
            standing * 3600 / JOULES_PER_KWH, (found.joules - standing * found.seconds) / requests / JOULES_PER_KWH
        )
