"""What a plan has to keep, one class each: the cache, the engine's slots, limits on latency, watts, lost replicas.

The search asks each of a candidate and of every point of its grid, the sizing asks each of a run, and where nothing is
left each says why. A new constraint is a class here and its place in :func:`constraints_of`; beside what it is not
planned with is a row of the table of features.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from inferplan.estimate.deployment import Deployment
from inferplan.planning.demand import METRIC_NAMES
from inferplan.planning.grid import LoadGrid
from inferplan.planning.option import OwnedGpus, PlanOption, Sizing
from inferplan.planning.power import PowerBudget
from inferplan.planning.question import Question
from inferplan.planning.survival import smallest_survivor
from inferplan.planning.verify import Verified
from inferplan.traffic.requests import Slo
from inferplan.units import BoolArray

_ANOTHER_RUN = 1.02
"""By so much the mean draw of one run of a load may be above that of another."""


class Constraint:
    """One thing that a plan keeps; as it stands it rules nothing out.

    reason: the name under which what it rules out is counted; counted: the same in words. grows: it may ask for more
    replicas than the load does. looser: what would loosen it, behind other hints; empty where nothing does.
    """

    reason = ""
    counted = ""
    grows = False
    looser = ""

    def unknown(self, deployment: Deployment) -> str:
        """Why nobody can say whether a candidate keeps it; empty where somebody can."""
        return ""

    def points(self, grid: LoadGrid) -> BoolArray | None:
        """Which points of a grid keep it in closed form; ``None`` where that says nothing of it."""
        return None

    def allows(self, option: PlanOption) -> bool:
        """Whether so many replicas keep it, as far as that is known without a run."""
        return True

    def taken(self, option: PlanOption) -> float:
        """How much of it an option takes at least: of what is ruled out, the least is named."""
        return 0.0

    def kept(self, run: Verified) -> bool:
        """Whether a run keeps it, beside the limits on latency."""
        return True

    def grown(self, run: Verified, question: Question) -> Verified | None:
        """The smallest size from that of the run on that keeps it; ``None`` where none does."""
        return run

    def describe(self) -> str:
        """In words, behind the load and its limits: ``"within 30 kW"``; empty where those say it."""
        return ""

    def ruled_out(self, nearest: PlanOption, question: Question) -> tuple[str, str]:
        """Why nothing keeps it, of which ``nearest`` takes least, and a hint."""
        raise NotImplementedError

    def missed(self, run: Verified, question: Question) -> tuple[str, str]:
        """Why a run that keeps the limits on latency does not keep it, and a hint."""
        raise NotImplementedError


class FitsCache(Constraint):
    reason, counted = "memory", "the cache does not hold the requests"

    def points(self, grid: LoadGrid) -> BoolArray:
        return np.asarray(grid.memory_use <= 1)


class WithinSlots(Constraint):
    reason, counted = "slots", "more requests than the engine admits"

    def points(self, grid: LoadGrid) -> BoolArray:
        return np.asarray(grid.concurrency <= grid.slots)


class RoomForPrompts(Constraint):
    reason, counted = "prefill", "the token budget is too small for the prompts"

    def points(self, grid: LoadGrid) -> BoolArray:
        return np.asarray(grid.prefill_use < 1)


class WithinLatency(Constraint):
    """A limit on a latency at the percentile; runs are held to it by class (:meth:`Verified.shares`)."""

    def __init__(self, metric: str, limit: float) -> None:
        self.reason, self.counted, self.limit = metric, OVER_LIMIT[metric], limit

    def points(self, grid: LoadGrid) -> BoolArray:
        return np.asarray(getattr(grid, self.reason) <= self.limit)


OVER_LIMIT = {name: f"{words} is over the limit" for name, words in METRIC_NAMES.items()}
OVER_LIMIT["answer_ttft"] = "the first token of the answer comes after its limit"


class WithinPower(Constraint):
    """No more watts than the budget: of nameplates by their number, of what devices draw by a run."""

    reason, counted = "power", "more watts than the power budget"
    looser = "a larger --power-budget"

    def __init__(self, budget: PowerBudget) -> None:
        self.budget = budget

    def unknown(self, deployment: Deployment) -> str:
        there = deployment.hardware.power is not None
        return "" if there else f"the power of {deployment.hardware.name} is not on file"

    def allows(self, option: PlanOption) -> bool:
        return self.budget.allows(option.kinds)

    def taken(self, option: PlanOption) -> float:
        return self.budget.least(option.kinds)

    def kept(self, run: Verified) -> bool:
        watts = run.watts
        return self.budget.provision == "tdp" or watts is None or watts <= self.budget.watts

    def describe(self) -> str:
        return f"within {self.budget.describe()}"

    def ruled_out(self, nearest: PlanOption, question: Question) -> tuple[str, str]:
        watts, most = self.taken(nearest), replace(self.budget, provision="tdp").least(nearest.kinds)
        takes = "takes" if self.budget.provision == "tdp" else "draws for being on alone"
        because = f"the cheapest that keeps the limits, {_counted(nearest)}, {takes} {watts / 1e3:,.3g} kW"
        return because, f"{_watts_in_words(most)}{_caps(question)}"

    def missed(self, run: Verified, question: Question) -> tuple[str, str]:
        watts = run.watts or 0.0
        because = f"{_counted(run.option)}, which keep the limits, draw {watts / 1e3:,.3g} kW at the load"
        return because, f"{_watts_in_words(_ANOTHER_RUN * watts)}{_caps(question)}"


def _counted(option: PlanOption) -> str:
    return option.deployment.replicated(option.replicas)


def _watts_in_words(watts: float) -> str:
    """The option that asks for so many."""
    return f"--power-budget {np.ceil(watts / 10) / 100:g}kW"


def _caps(question: Question) -> str:
    """What else takes fewer watts."""
    caps = ", or lower caps to try: --power-cap 500W,400W" if not question.space.caps else ", or lower --power-cap"
    return f"{caps}, or looser limits"


class WithinOwned(Constraint):
    """No more GPUs of a kind than there are."""

    reason, counted = "owned", "more GPUs than there are"
    looser = "more GPUs"

    def __init__(self, owned: OwnedGpus) -> None:
        self.owned = owned

    def allows(self, option: PlanOption) -> bool:
        return self.owned.allows(option.kinds)

    def taken(self, option: PlanOption) -> float:
        return self.owned.over(option.kinds)

    def describe(self) -> str:
        return f"on at most {self.owned.describe()}"

    def ruled_out(self, nearest: PlanOption, question: Question) -> tuple[str, str]:
        taken = OwnedGpus.of(nearest.kinds)
        because = f"the cheapest that keep the limits are {taken.describe()}: {_counted(nearest)}"
        return because, f"--gpu {','.join(taken.names)}, or looser limits"


class Survives(Constraint):
    """The limits are kept while replicas are lost, by simulation; sizes are tried until one does."""

    grows = True

    def grown(self, run: Verified, question: Question) -> Verified | None:
        option = run.option
        found = smallest_survivor(option, question, lambda size: option.sized(option.filled(size)))
        return None if found is None else replace(run, option=found[0], survival=found[1])


def constraints_of(slo: Slo, sizing: Sizing) -> list[Constraint]:
    """What a plan keeps, in the order in which points are counted: each under the first that it misses."""
    found: list[Constraint] = [FitsCache(), WithinSlots(), RoomForPrompts()]
    found += [WithinLatency(name, limit) for name, limit in slo.limits.items()]
    found += [] if sizing.power is None else [WithinPower(sizing.power)]
    found += [] if sizing.owned is None else [WithinOwned(sizing.owned)]
    found += [] if sizing.survive is None else [Survives()]
    return found


COUNTED = {
    one.reason: one.counted for one in (FitsCache, WithinSlots, RoomForPrompts, WithinPower, WithinOwned)
} | OVER_LIMIT
"""What is counted of points and sizes, in words."""
