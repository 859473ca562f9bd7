"""The most load that the GPUs there are, or a cost per hour, carry within the limits.

Of each structure as many replicas as may be had are taken; the closed form says which carry most, and simulation how
much that is (:func:`inferplan.planning.sizing.capacity`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from inferplan.planning.amount import amount_of, carried_in_closed_form, is_whole, most_replicas, with_amount
from inferplan.planning.finalists import options_at, too_long_alone, without_unmeasured
from inferplan.planning.option import PlanOption
from inferplan.planning.question import Question
from inferplan.planning.search import SearchResult, searched_again
from inferplan.planning.sizing import Simulations, capacity

_MOST_TRIED = 4
"""Structures that are simulated."""
_USUAL, _WORTH = 0.85, 1.03
"""Of the load in closed form the share that simulation mostly finds, or more; a structure is simulated where that
share, or the best so far, would make it carry so many times as much as the best."""
_FEW = 1e-3
"""Requests, or sessions, per second that one replica of anything carries."""


class Runner(NamedTuple):
    """What another GPU carries within the same bound. share: of the load in closed form that simulation makes of the
    best one, by which this one's is multiplied; ``None`` where it was simulated itself."""

    option: PlanOption
    amount: float
    share: float | None = None


class Carried(NamedTuple):
    """What is carried. confidence: that the limits are kept with. amount: in the unit of the question
    (:mod:`inferplan.planning.amount`), each replica at its share ``--utilisation``."""

    confidence: float
    amount: float
    others: tuple[Runner, ...] = ()
    """The most of each GPU, the best one's too, the most first; without those on which simulation finds no load."""


def most_carried(question: Question, searched: SearchResult) -> Carried | None:
    """The most that is carried at the confidence of a question, or, where nothing is and nobody insists on it, by the
    prediction itself; ``None`` where no load is small enough for the limits. searched: under any load."""
    few = with_amount(question, 1.0 if is_whole(question.demand) else _FEW)
    searched = carried_again(searched, few)
    for confidence in question.confidences:
        found = _carried(options_at(searched, few, confidence), question.at(confidence))
        if found is not None:
            return found
    return None


def carried_again(searched: SearchResult, question: Question) -> SearchResult:
    """A search under another load, without what a search leaves out of a plan for it."""
    return without_unmeasured(searched_again(searched, question.stream))


def _carried(options: list[PlanOption], question: Question) -> Carried | None:
    sized = sorted(_sized(options, question), key=lambda pair: -pair[0])
    best, share = Carried(question.sizing.confidence, 0.0), _USUAL
    seen, of_best = dict[str, Runner](), _USUAL
    for amount, option in sized[:_MOST_TRIED]:
        if best.amount and amount * share <= best.amount * _WORTH:
            break
        carried = _simulated(option, with_amount(question, amount))
        if carried > best.amount:
            best, of_best = best._replace(amount=carried), carried / amount
        share, own = max(share, carried / amount), Runner(option, carried)
        seen[_gpu(option)] = max(own, seen.get(_gpu(option), own), key=lambda one: one.amount)
    for amount, option in sized:
        seen.setdefault(_gpu(option), Runner(option, amount * of_best, of_best))
    others = sorted((one for one in seen.values() if one.amount), key=lambda one: -one.amount)
    return best._replace(others=tuple(others)) if best.amount else None


def _gpu(option: PlanOption) -> str:
    return option.deployment.hardware.name


def _sized(options: list[PlanOption], question: Question) -> Iterator[tuple[float, PlanOption]]:
    """Each option with as many replicas as may be had, and what they are given in closed form."""
    for option in options:
        count = most_replicas(option, question)
        if count and option.pools is None and not too_long_alone(option, question):
            yield carried_in_closed_form(option, count, question), option.sized(count)


def _simulated(option: PlanOption, question: Question) -> float:
    """What a fleet is given, by simulation, near the load of a question."""
    simulations = Simulations(most=0)
    found = capacity(lambda factor: simulations.long(option, question, factor), question)
    return found.factor * amount_of(question.demand) * question.sizing.utilisation
