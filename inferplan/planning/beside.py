"""What stands beside a plan: the cheapest of some other options, and the cost at each confidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import NamedTuple

from inferplan.planning.confidence import MIDDLE
from inferplan.planning.finalists import Finalists, is_measured, options_at, size_one, too_long_alone
from inferplan.planning.forms import settled
from inferplan.planning.miss import slow_at
from inferplan.planning.option import PlanOption
from inferplan.planning.question import Question
from inferplan.planning.search import SearchResult, cheapest_of_each_structure
from inferplan.planning.sizing import OutOfSimulations, Simulated, Simulations, Sizer
from inferplan.planning.tiering import beside
from inferplan.planning.verify import Verified

STEPS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""The confidences of the curve."""
MOST_BESIDE = 30
"""Short simulations that look for one of the plans beside the plan, ..."""
MOST_OF_A_STEP = 20
"""... for one step of the curve, ..."""
MOST_UNKNOWN = 10
"""... and for one whose error is not known: a line beside the plan, not a second plan."""
_ALIKE = 1e-9


class Bounds(NamedTuple):
    """Between which costs an option is looked for: none costs less than ``least``; it has to cost less than
    ``below``."""

    least: float = 0.0
    below: float = inf


def cheapest_within(
    options: Iterable[PlanOption],
    question: Question,
    bounds: Bounds,
    known: Simulated,
    most: int = MOST_BESIDE,
) -> Verified | None:
    """The cheapest of some options that keeps the limits in runs of the length that is shown; ``None`` without one that
    costs less than ``bounds.below``, or where simulations run out before one is found.
    """
    found, below = Finalists(), bounds.below
    simulations = Simulations(most=most, known=known)
    for option in cheapest_of_each_structure(list(options)):
        if below <= bounds.least * (1 + _ALIKE) or not simulations.left:
            break
        if option.bound >= below or too_long_alone(option, question):
            continue
        if size_one(option, question, below, (found, simulations)) and found.cheapest is not None:
            below = (found.cheapest.option.cost or 0.0) * (1 - _ALIKE)
    return found.cheapest


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
    between its neighbours, and between two that cost the same nothing is simulated.
    """

    def __init__(self, searched: SearchResult, question: Question, known: Simulated) -> None:
        self._searched, self._question, self._known = searched, question, known

    def steps(self, plans: Iterable[Step]) -> list[Step]:
        """The whole curve. plans: steps that are known, of which one has the confidence of the question."""
        found = {step.confidence: step for step in plans}
        own = self._question.sizing.confidence
        down = sorted((one for one in STEPS if one < own), reverse=True)
        for confidence in (*down, *(one for one in STEPS if one > own)):
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
        if least == inf or (above.option is not None and above.cost <= least * (1 + _ALIKE)):
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
            if below <= bounds.least * (1 + _ALIKE):
                break
            if option.bound >= below or too_long_alone(option, question):
                continue
            try:
                sized = Sizer(option=option, question=question, simulations=simulations).fewest(below)
            except OutOfSimulations:
                return Step(confidence, best, exact=False)
            if sized is not None:
                best, below = sized, (sized.cost or 0.0) * (1 - _ALIKE)
        return Step(confidence, best)
