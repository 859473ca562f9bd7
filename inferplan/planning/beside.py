"""What stands beside a plan: the cheapest of some other options, and the cost at each confidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import NamedTuple

from inferplan.planning.confidence import MIDDLE
from inferplan.planning.finalists import ALIKE, Bounds, is_measured, options_at, too_long_alone
from inferplan.planning.forms import settled
from inferplan.planning.miss import slow_at
from inferplan.planning.option import PlanOption
from inferplan.planning.question import Question
from inferplan.planning.search import SearchResult, cheapest_of_each_structure
from inferplan.planning.sizing import OutOfSimulations, Simulated, Simulations, Sizer
from inferplan.planning.tiering import beside

STEPS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""The confidences of the curve."""
MOST_OF_A_STEP = 20
"""Short simulations that look for one step of the curve, ..."""
MOST_UNKNOWN = 6
"""... and for a plan whose error is not known: a line beside the plan, not a second plan. Of eight plans (2026-11-29)
each found in ten simulations what it found in the first five."""


class Step(NamedTuple):
    """One confidence of the curve. option: what keeps the limits there; ``None`` where nothing does. exact: whether
    everything that may cost less was simulated."""

    confidence: float
    option: PlanOption | None
    exact: bool = True

    @property
    def cost(self) -> float:
        """The bill; infinity where nothing keeps the limits."""
        return inf if self.option is None else self.option.cost or 0.0


def _at(option: PlanOption | None, question: Question) -> PlanOption | None:
    """An option on devices that are as slow as the confidence of a question says."""
    slow = None if option is None else slow_at(option, question, question.sizing.confidence)
    return option if option is None or slow is None else replace(option, slow=slow)


class Curve:
    """The least cost at each confidence, from the plans that are known at some of them.

    More confidence never costs less, and what keeps the limits at one keeps them at every lower one: so each step lies
    between its neighbours, and between two that cost the same nothing is simulated. Nor is what costs less than a lower
    step, or was seen to miss the limits at one.
    """

    def __init__(self, searched: SearchResult, question: Question, known: Simulated) -> None:
        self._searched, self._question, self._known = searched, question, known
        self._missed: dict[int, int] = {}
        """Replicas of a deployment, by its ``id``, that missed the limits at a lower confidence."""

    def steps(self, plans: Iterable[Step]) -> list[Step]:
        """The whole curve, from the least confidence on. plans: steps that are known."""
        found = {step.confidence: step for step in plans}
        for confidence in STEPS:
            if confidence not in found:
                found[confidence] = self._between(confidence, found)
        return [found[confidence] for confidence in sorted(found)]

    def _between(self, confidence: float, found: dict[float, Step]) -> Step:
        """A step between those that are known below and above it."""
        lower = [step for one, step in found.items() if one < confidence]
        upper = [step for one, step in found.items() if one > confidence]
        question = self._question.at(confidence)
        least = max((step.cost for step in lower), default=0.0)
        above = min(upper, key=lambda step: step.confidence, default=Step(1.0, None))
        if least == inf or (above.option is not None and above.cost <= least * (1 + ALIKE)):
            return Step(confidence, _at(above.option, question))
        chain = next((step.option.tiers for step in found.values() if step.option is not None), ())
        options = beside(options_at(self._searched, question, confidence), chain)
        if confidence == MIDDLE:
            options = [option for option in options if is_measured(option, question)]
        known = max(lower, key=lambda step: step.confidence, default=above).option
        options.sort(key=lambda option: known is None or option.deployment is not known.deployment)  # may do here too
        simple, less_simple = settled(options)
        step = self._sized(simple, question, Bounds(least, above.cost), above)
        nothing = step.option is None and step.exact and less_simple
        return self._sized(options, question, Bounds(least), above) if nothing else step

    def _sized(self, options: list[PlanOption], question: Question, bounds: Bounds, above: Step) -> Step:
        """The cheapest size that short runs find; what keeps the limits above where nothing costs less."""
        confidence, best, below = question.sizing.confidence, _at(above.option, question), bounds.below
        simulations = Simulations(most=MOST_OF_A_STEP, known=self._known)
        for option in cheapest_of_each_structure(options):
            if below <= bounds.least * (1 + ALIKE):
                break
            if option.bound >= below or too_long_alone(option, question):
                continue
            sizer, here = Sizer(option=option, question=question, simulations=simulations), id(option.deployment)
            missed = max(self._missed.get(here, 0), sizer.cheaper(bounds.least * (1 - ALIKE)))
            try:
                sized = sizer.fewest(below, missed)
            except OutOfSimulations:
                return Step(confidence, best, exact=False)
            self._missed[here] = max(self._missed.get(here, 0), sizer.missed)
            if sized is not None:
                best, below = sized, (sized.cost or 0.0) * (1 - ALIKE)
        return Step(confidence, best)
