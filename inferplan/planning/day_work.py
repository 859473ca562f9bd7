"""What a replica carries of the requests of a day, also where they are of several classes whose mix changes.

One kind of traffic: so many requests a second, by simulation. Several: that of every mix, by simulation, with each
class held to its own limits. Of a day with more mixes than are simulated the rest are taken for the nearest that is:
mixes are chosen farthest first (Gonzalez, Theoretical Computer Science 38, 1985), beginning with the mean of the day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from inferplan.catalog.assemble import Request
from inferplan.estimate.deployment import Deployment
from inferplan.planning.demand import mixed, screened_by
from inferplan.planning.option import Option
from inferplan.planning.question import Question
from inferplan.planning.replica import MOST_LOADS, Replica, best_point, carried_by, never, replica_of
from inferplan.planning.sizing import Simulations
from inferplan.planning.verify import slots_for
from inferplan.traffic.conversations import Floats, Ints
from inferplan.traffic.profile import Profile
from inferplan.traffic.requests import Slo, TrafficClass

MOST_MIXES = 8
"""Mixes that are simulated: each takes some ten runs."""
_ALIKE = 0.01
"""Mixes that differ in less of their requests are one: capacities are only found within 3 %."""
RARE = 0.05
"""A class with a smaller share of a mix is not held to its limits where what a replica carries of the mix is looked
for: a run with enough of it for a percentile is too long. The simulation of the day holds it to them."""


@dataclass(frozen=True, kw_only=True)
class Mix:
    """What a replica carries of a mix. shares: of each class in its requests; none where there are no classes."""

    shares: tuple[float, ...] = ()
    replica: Replica


@dataclass(frozen=True, kw_only=True)
class Work:
    """What replicas carry of a day. load: the replicas that would be busy within the limits, over time. busiest: the
    mix of the step that takes most. apart: the largest share of requests in which a mix of the day differs from the one
    that it is taken for.
    """

    mixes: tuple[Mix, ...]
    busiest: Mix
    load: Profile
    apart: float = 0.0

    @property
    def replica(self) -> Replica:
        """That of the step that takes most; all have its flags."""
        return self.busiest.replica

    def seconds(self, requests: int, profile: Profile, span: float) -> float:
        """Seconds of replicas within the limits that so many requests take which came in a span of the profile."""
        return requests * self.load.expected(span) / profile.expected(span)


def work_of(request: Request, deployment: Deployment, question: Question, profile: Profile) -> Work:
    """What replicas carry of a profile; it has the rates of each class where the demand has classes.

    Raises ``InfeasibleError`` where a mix keeps its limits under no load.
    """
    if not question.demand.classes:
        mix = Mix(replica=replica_of(request, deployment, question))
        return Work(mixes=(mix,), busiest=mix, load=profile.weighted(np.full(len(profile.rates), 1 / mix.replica.rate)))
    shares = profile.shares
    there = np.flatnonzero(np.sum(shares, axis=1) > 0)
    mean = np.array([one.share for one in question.demand.classes])
    chosen, near, apart = spread(shares[there], mean)
    sizer = _Sizer(request, deployment, question)
    sizer.slots = max(sizer.slots_of(shares[there[mix]]) for mix in chosen)
    mixes = tuple(
        Mix(shares=tuple(shares[there[mix]].tolist()), replica=sizer.carried(shares[there[mix]])) for mix in chosen
    )
    weights = np.zeros(len(shares))
    weights[there] = [1 / mixes[mix].replica.rate for mix in near]
    load = profile.weighted(weights)
    busiest = int(np.argmax(np.array(load.rates)[there]))
    return Work(mixes=mixes, busiest=mixes[near[busiest]], load=load, apart=apart)


def spread(shares: Floats, mean: Floats, most: int = MOST_MIXES) -> tuple[list[int], Ints, float]:
    """Some of the mixes, ``(mixes, classes)``, so that none is far from all of them: the one nearest to the mean, then
    again and again the one that is farthest from those chosen, until there are ``most``, or the rest are alike.

    Returns the places of those, which of them is nearest to each mix, and how far the farthest is: the share of its
    requests that would have to be of another class.
    """

    def away(mix: Floats) -> Floats:
        found: Floats = np.sum(np.abs(shares - mix), axis=1) / 2
        return found

    chosen = [int(np.argmin(away(mean)))]
    distances = [away(shares[chosen[0]])]
    while len(chosen) < most and float(np.max(np.min(distances, axis=0))) > _ALIKE:
        chosen.append(int(np.argmax(np.min(distances, axis=0))))
        distances.append(away(shares[chosen[-1]]))
    return chosen, np.argmin(distances, axis=0), float(np.max(np.min(distances, axis=0)))


class _Sizer:
    """Finds what one replica carries of mixes. slots: sequences that it is started with, for every mix."""

    def __init__(self, request: Request, deployment: Deployment, question: Question) -> None:
        self.request, self.deployment, self.question = request, deployment, question
        self.slots: int | None = None

    def slots_of(self, shares: Sequence[float] | Floats) -> int:
        """Sequences of a replica that is given its share of what the closed form says that it carries of a mix."""
        asked, option = self._asked(shares)
        return slots_for(option, asked.demand, asked.sizing.utilisation)

    def carried(self, shares: Sequence[float] | Floats) -> Replica:
        """What a replica carries of a mix. Raises ``InfeasibleError`` where no load is small enough."""
        asked, option = self._asked(shares)
        found = carried_by(replace(option, slots=self.slots), asked, Simulations(most=MOST_LOADS))
        if not found.rate:
            raise never(asked, self.deployment)
        return found

    def _asked(self, shares: Sequence[float] | Floats) -> tuple[Question, Option]:
        """The question of a mix under the load that one replica is given, in closed form, and that point."""
        question, classes = self.question, _of_mix(self.question.demand.classes, shares)
        prompt, output = mixed(classes)
        demand = replace(question.demand, classes=classes, prompt=prompt, output=output)
        limited = any(one.slo.limits for one in classes)
        asked = replace(question, demand=demand, slo=screened_by(classes) if limited else question.slo)
        option = best_point(self.request, self.deployment, asked)
        load = replace(demand, rate=option.rate * question.sizing.utilisation)
        return replace(asked, demand=load), option


def _of_mix(classes: Sequence[TrafficClass], shares: Sequence[float] | Floats) -> tuple[TrafficClass, ...]:
    """The classes of a mix; those that are rare in it without their limits."""
    return tuple(
        replace(one, share=float(share), slo=one.slo if share >= RARE else Slo(percentile=one.slo.percentile))
        for one, share in zip(classes, shares)
        if share > 0
    )
