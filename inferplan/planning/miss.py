"""What a plan is expected to cost: its bill, and the chance that it misses a limit times what a miss costs.

    expected = cost + chance * miss

It is shown beside a plan, and decides between plans where ``--miss-cost`` states ``miss``.

A plan is sized for devices that are slower than predicted by the factor of its confidence, with room to spare
(``utilisation``), so it may keep its limits on devices that are slower still. ``held`` is the largest of
:data:`CONFIDENCES` at which simulation keeps them under the load itself. Each metric is slower than the quantile at
``held`` with a chance of ``1 - held``, and nobody has measured how often both are at once: ``chance`` is the sum over
the metrics, which is at least that of their union (Boole's inequality). ``miss`` is what an hour costs more with the
replicas that carry the load on slower devices (:func:`repaired_at`), or ``--miss-cost``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from inferplan.planning.confidence import MIDDLE, Slowness, metrics_of, slowness
from inferplan.planning.option import PlanOption
from inferplan.planning.question import Question
from inferplan.planning.verify import TOO_SHORT, Verified

Run = Callable[[PlanOption], Verified]
CONFIDENCES = (0.8, 0.9, 0.95, 0.99)
"""At which it is tried whether a plan still keeps its limits, without headroom."""
REPAIRED = 0.95
"""Devices as slow as this share of measurements allow are what a miss is repaired for, at the least."""


@dataclass(frozen=True, kw_only=True)
class Miss:
    """The risk of a plan. held: the largest confidence at which the limits are kept under the load itself, as far as it
    was tried. metrics: whose errors decide whether they are kept. cost: of an hour in which a limit is missed.
    """

    held: float
    metrics: frozenset[str]
    cost: float

    @property
    def chance(self) -> float:
        """That a limit is missed, at most: that one of the metrics is slower than at ``held``."""
        return min(len(self.metrics) * (1.0 - self.held), 1.0)

    @property
    def expected(self) -> float:
        """What misses cost an hour on average."""
        return self.chance * self.cost


def miss_of(option: PlanOption, question: Question, run: Run) -> Miss | None:
    """The risk of an option that keeps its limits at the confidence of a question. run: simulates it under the load.

    ``None`` where no error is known, and for a job, which nobody waits for. Where no run is long enough to tell, the
    limits are not known to be kept.
    """
    if question.demand.offline or option.cost is None or slow_at(option, question, REPAIRED) is None:
        return None
    held = question.sizing.confidence
    for confidence in CONFIDENCES:
        slow = slow_at(option, question, confidence)
        if confidence <= held or slow is None:
            continue
        seen = run(replace(option, slow=slow))
        if seen.verdict == TOO_SHORT or not seen.meets(question.slo):
            break
        held = confidence
    stated = question.sizing.miss_cost
    cost = _repair(option, question) if stated is None else stated
    return Miss(held=held, metrics=frozenset(metrics_of(question.slo)), cost=cost)


def slow_at(option: PlanOption, question: Question, confidence: float) -> Slowness | None:
    """How slow the devices of an option may be at a confidence; ``None`` where no error is known."""
    return slowness(option.deployment, question.demand.prompt.average, question.slo, confidence, option.forms)


def repaired_at(confidence: float) -> float:
    """The confidence for which a miss of a plan is repaired: :data:`REPAIRED`, and above 0.9 the middle of the devices
    that are slower than planned for. A repair for devices that the plan is sized for would be none."""
    return max(REPAIRED, (1.0 + confidence) / 2)


def _repair(option: PlanOption, question: Question) -> float:
    """What an hour costs more with so many more replicas as devices of :func:`repaired_at` are slower."""
    slowest = slow_at(option, question, repaired_at(question.sizing.confidence))
    assert slowest is not None
    slower = max(slowest.step * slowest.first / (option.slow.step * option.slow.first), 1.0)
    free = replace(option, limits=())  # what may be bought is not asked: it is what would be needed
    pools = None if option.pools is None else (ceil(option.pools[0] * slower), ceil(option.pools[1] * slower))
    larger = free.sized(ceil(option.replicas * slower) if pools is None else sum(pools), pools)
    return max((larger.cost or 0.0) - (option.cost or 0.0), 0.0)


def least_expected(finalists: Sequence[Verified], question: Question, run: Run) -> Verified | None:
    """The cheapest finalist; where the cost of a miss is stated that which is expected to cost least, misses included,
    of equals the first. finalists: by rising cost.

    Where it is derived the bill decides: a search for the least bill does not see all that may be expected to cost
    less, so that more GPUs to choose from would raise the bill. Of stated misses one of which nothing is known comes
    after all others: the cheapest where that is so of all, as at the prediction itself.
    """
    if question.sizing.miss_cost is None:
        return next(iter(finalists), None)
    best, least = None, (True, inf)
    for one in finalists:
        cost = one.option.cost or 0.0
        if (False, cost) >= least:
            break  # misses cost no less than nothing
        risk = None if question.sizing.confidence == MIDDLE else miss_of(one.option, question, run)
        expected = (True, cost) if risk is None else (False, cost + risk.expected)
        if expected < least:
            best, least = one, expected
    return best
