"""What a replica carries of the requests of a day, also where they are of several classes whose mix changes.

One kind of traffic: so many requests a second, by simulation. Several: that of every mix, by simulation, with each
class held to its own limits. Of a day with more mixes than are simulated the rest are taken for the nearest that is:
mixes are chosen farthest first (Gonzalez, Theoretical Computer Science 38, 1985), beginning with the mean of the day.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from inferplan.catalog.assemble import Request
from inferplan.errors import InfeasibleError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.support import lacking, too_few
from inferplan.planning.confidence import AS_PREDICTED, MIDDLE, Slowness, slowness
from inferplan.planning.demand import lengths_of_classes, require_decodes, screened_by
from inferplan.planning.design import Design, alone, best_point, design_at
from inferplan.planning.question import Question
from inferplan.planning.verify import slots_for
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.serving.techniques.tiers import CacheTier
from inferplan.traffic.conversations import Floats, Ints
from inferplan.traffic.profile import Profile
from inferplan.traffic.reasoning import ReasoningLengths
from inferplan.traffic.requests import Slo

MOST_MIXES = 8
"""Mixes that are simulated: each takes some ten runs."""
_ALIKE = 0.01
"""Mixes that differ in less of their requests are one: capacities are only found within 3 %."""
RARE = 0.05
"""A class with a smaller share of a mix is not held to its limits where what a replica carries of the mix is looked
for: a run with enough of it for a percentile is too long. The simulation of the day holds it to them."""


@dataclass(frozen=True, kw_only=True)
class MixCapacity:
    """What a replica carries of a mix. shares: of each class in its requests; none where there are no classes."""

    shares: tuple[float, ...] = ()
    design: Design


@dataclass(frozen=True, kw_only=True)
class DayWork:
    """What replicas carry of a day. load: the replicas that would be busy within the limits, over time. busiest: the
    mix of the step that takes most. apart: the largest share of requests in which a mix of the day differs from the one
    that it is taken for. confidence: at which that is, of the devices; :data:`MIDDLE` as predicted. unkept: why it is
    not that which was asked for.
    """

    mixes: tuple[MixCapacity, ...]
    busiest: MixCapacity
    load: Profile
    apart: float = 0.0
    confidence: float = MIDDLE
    unkept: InfeasibleError | None = None

    @property
    def design(self) -> Design:
        """The replica at the step that takes most; all have its flags."""
        return self.busiest.design

    def seconds(self, requests: int, profile: Profile, span: float) -> float:
        """Seconds of replicas within the limits that so many requests take which came in a span of the profile."""
        return requests * self.load.expected(span) / profile.expected(span)


class ReplicaExtras(NamedTuple):
    """What a replica has beside its deployment. tiers: below the cache of each device. speculation: drafts."""

    tiers: tuple[CacheTier, ...] = ()
    speculation: Speculation = PLAIN


def work_of(
    request: Request,
    deployment: Deployment,
    question: Question,
    profile: Profile,
    extras: ReplicaExtras | None = None,
) -> DayWork:
    """What replicas carry of a profile; it has the rates of each class where the demand has classes. All are started
    with slots for the mix that takes most of them.

    Of devices as slow as the confidence of the question says; where that has no band, or no load is small enough then,
    and nobody insists on it, as predicted. Raises ``InfeasibleError`` where a mix keeps its limits under no load.
    """
    require_decodes(question.demand, deployment.model.encodes, "a day")
    extras = extras or ReplicaExtras()
    *surer, last = question.confidences
    unkept: InfeasibleError | None = None
    for confidence in surer:
        try:
            return _work(request, deployment, question.at(confidence), profile, extras)
        except InfeasibleError as error:
            unkept = error
    return replace(_work(request, deployment, question.at(last), profile, extras), unkept=unkept)


def _slowness(deployment: Deployment, question: Question) -> Slowness:
    """How slow the devices are taken to be. Raises ``InfeasibleError`` where no error is known."""
    confidence = question.sizing.confidence
    found = slowness(deployment, question.demand.prompt.average, question.slo, confidence)
    if found is None:
        lacks = lacking(deployment, ())
        raise InfeasibleError(
            f"no day at a confidence of {confidence:g}: the error of {deployment.describe()} is not known",
            because=too_few(lacks) if lacks else "no error is known of its kernels",
            hint=f"--confidence {MIDDLE:g} (the prediction itself), or a --gpu, division and model that were measured",
        )
    return found


def _work(
    request: Request, deployment: Deployment, question: Question, profile: Profile, extras: ReplicaExtras
) -> DayWork:
    """The same at the confidence of the question."""
    classes, there = question.demand.classes, np.flatnonzero(np.array(profile.rates) > 0)
    shares = profile.shares[there] if classes else np.zeros((len(there), 0))
    chosen, near, apart = spread_mixes(shares, np.array([one.share for one in classes]))
    asked = [_of_mix(question, mix) for mix in shares[chosen]]
    slow = [_slowness(deployment, one) for one in asked]
    options = [
        replace(best_point(request, deployment, one, slowed, extras.speculation), tiers=extras.tiers)
        for one, slowed in zip(asked, slow)
    ]
    loads = [alone(option, one) for option, one in zip(options, asked)]
    slots = max(slots_for(option, one.demand, one.sizing.utilisation) for option, one in zip(options, loads))
    mixes = tuple(
        MixCapacity(shares=tuple(shares[mix].tolist()), design=design_at(replace(option, slots=slots), one))
        for mix, option, one in zip(chosen, options, asked)
    )
    weights = np.zeros(len(profile.rates))
    weights[there] = [1 / mixes[mix].design.rate for mix in near]
    load = profile.weighted(weights)
    busiest = int(np.argmax(np.array(load.rates)[there]))
    sure = MIDDLE if all(one == AS_PREDICTED for one in slow) else question.sizing.confidence
    return DayWork(mixes=mixes, busiest=mixes[near[busiest]], load=load, apart=apart, confidence=sure)


def spread_mixes(shares: Floats, mean: Floats, most: int = MOST_MIXES) -> tuple[list[int], Ints, float]:
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


def _of_mix(question: Question, shares: Floats) -> Question:
    """The question of a mix: the classes that are in it, those that are rare in it without their limits."""
    classes = tuple(
        replace(one, share=float(share), slo=one.slo if share >= RARE else Slo(percentile=one.slo.percentile))
        for one, share in zip(question.demand.classes, shares)
        if share > 0
    )
    if not classes:
        return question
    prompt, output = lengths_of_classes(classes)
    if isinstance(whole := question.demand.output, ReasoningLengths):
        output = replace(whole, answer=output)
    limited = any(one.slo.limits for one in classes)
    return replace(
        question,
        demand=replace(question.demand, classes=classes, prompt=prompt, output=output),
        slo=screened_by(classes) if limited else question.slo,
    )
