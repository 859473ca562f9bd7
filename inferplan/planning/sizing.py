"""How many replicas a structure needs, and what one of them carries: by bisection in simulation, down as well as up.

A size is right when it keeps the limits under ``1/utilisation`` times the load: that is what giving a replica a share
of its capacity means. Whole boxes are bought, so that sizes which fill their boxes are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, exp, inf, log
from typing import Any, NamedTuple

import numpy as np

from inferplan.planning.confidence import slow_grid
from inferplan.planning.constraints import Constraint, constraints_of
from inferplan.planning.option import PlanOption, figures_at
from inferplan.planning.question import Question
from inferplan.planning.search import point
from inferplan.planning.verify import SHOWN, Verified, beyond_doubt, seen_longer, surely_kept, together, verify
from inferplan.serving.batch_means import RunPrecision
from inferplan.serving.result import SimulationResult
from inferplan.traffic.requests import Slo

CAPACITY_TOLERANCE = 0.03
"""Capacities are found as close as this."""
_BRACKET, _BESIDE = 1.12, 0.15
"""Of two loads no further apart, whose worst latencies lie within that share of the limit, one below and one above,
the load between is read off a power law: where latency is ``1/(1 - load)``, it is off by less than a percent, and a
latency that bends upwards puts it too low."""
_MOST_FITTED = 6
"""Loads after which the rest are tried in the middle."""
_MOST_CAPACITY = 16.0
"""Times its load beyond which the capacity of a fleet is not looked for."""

_FAR = 1.5
"""Where a guess misses a limit by more, the largest size is tried first: if it misses too, none will do."""
_NARROW = 1.3
"""A limit that is missed by less may be kept with another token budget. Where not to try is a choice: it saves time."""
BUDGETS = (512, 2048, 8192)
"""Token budgets that are tried then, where the question names none."""
_FAR_OFF = 2.0
"""Nor is a budget tried that misses a limit by more in closed form: such runs are long, because little ever leaves."""
_HOPELESS, _HOPELESS_TPOT = 1.1, 1.03
"""Nor is a budget tried that would miss a limit by more, if it is as much better or worse as at another size, or as the
closed form sees it. Of 36 budgets that were tried for TPOT in six plans (2026-11-29) one kept it, in a short run alone.
The closed form put 27 of them above 1.03 times the limit, and was off by 1.3 % in the median."""
_HARDLY = 0.01
"""Where requests wait for those that decode for less than this share of TTFT, more decodes would hardly change it."""
NEARLY_ALONE = 0.1
"""With as many replicas as keep each busy for so small a share of the time, more of them help no request."""
MOST_GROWTH = 8
"""Sizes tried beyond one that kept the limits at its inflated load and misses them in the long run."""


Simulated = dict[tuple[Hashable, ...], Verified]
"""Runs by what was simulated: the structure first."""


class OutOfSimulations(Exception):
    """An option takes more simulations to size than there are."""


@dataclass(kw_only=True, eq=False)
class Simulations:
    """Counts simulations, and says when there have been enough.

    known: what was simulated before. doubted:
    the closed form's guess of an option before missed a limit by far, so that guesses are worth little.
    """

    most: int
    done: int = 0
    doubted: bool = False
    known: Simulated = field(default_factory=dict)

    @property
    def left(self) -> bool:
        return self.done < self.most

    def of(self, option: PlanOption, question: Question, factor: float) -> Verified:
        """One simulation, or what is known of it. Raises ``OutOfSimulations``."""
        key = (*self._key(option), factor)
        if key not in self.known:
            if not self.left:
                raise OutOfSimulations
            self.done += 1
            self.known[key] = self._run(option, question, factor)
        return self.known[key]

    def longer(
        self, seen: Verified, question: Question, factor: float, precision: RunPrecision | None = None
    ) -> Verified:
        """The same, of a longer run where the miss of a limit is within the error of the one that was ``seen``; of one
        that sized, or of a long one with its ``precision``.
        """
        longer = seen_longer(seen, question, factor) if self.left else seen
        if longer is not seen:
            self.done += 1
            key = (*self._key(seen.option), factor)
            self.known[key if precision is None else (*key, precision)] = longer
        return longer

    def known_of(self, option: PlanOption, factor: float) -> Verified | None:
        """What a run that sized has said of an option, if there was one."""
        return self.known.get((*self._key(option), factor))

    def _run(
        self, option: PlanOption, question: Question, factor: float, precision: RunPrecision | None = None
    ) -> Verified:
        """One run, as long as others of its structure had to be."""
        like = self._structure(option)
        growth = max((one.growth for key, one in self.known.items() if key[: len(like)] == like), default=1.0)
        return verify(option, question, factor, precision, growth)

    def long(
        self, option: PlanOption, question: Question, factor: float = 1.0, precision: RunPrecision = SHOWN
    ) -> Verified:
        """The same in a run that is long enough for its percentile, which is not counted."""
        key = (*self._key(option), factor)
        seen, long = self.known_of(option, factor), (*key, precision)
        if long not in self.known:
            if precision is SHOWN:
                known = seen if seen is not None and seen.holds(SHOWN.fewest, question.slo) else None
                known = seen.rest.whole if known is None and seen is not None and seen.rest is not None else known
            else:
                shown, precision = self.known.get((*key, SHOWN)), replace(precision, percentile=question.slo.percentile)
                known, precision = (None, precision) if shown is None else shown.longer(precision)
            self.known[long] = known or self._run(option, question, factor, precision)
        return self.known[long]

    def _structure(self, option: PlanOption) -> tuple[Hashable, ...]:
        """What an option runs on, whatever its size and its load."""
        prompts = None if option.prompts is None else id(option.prompts.deployment), option.prompt_budget
        return id(option.deployment), prompts, option.speculation.length, option.slow, option.tiers, not option.pools

    def _key(self, option: PlanOption) -> tuple[Hashable, ...]:
        """What tells one simulation from another."""
        structure = self._structure(option)
        point = option.batch, option.budget, option.concurrency, option.e2el
        return (*structure, *point, option.replicas, option.pools)


@dataclass(kw_only=True, eq=False)
class Sizer:
    """Sizes one option. ``trials``: what was simulated at the load to be sized for, by size. points: see
    :func:`with_budget`."""

    option: PlanOption
    question: Question
    simulations: Simulations
    trials: dict[tuple[int, tuple[int, int] | None], Verified] = field(default_factory=dict)
    budgets: dict[int, float] = field(default_factory=dict)
    """By how much the worst latency under a token budget was seen to exceed that under the first one."""
    points: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    unkept: Verified | None = None
    """A size that keeps the limits on latency and not the others that runs are held to."""

    def trial(self, replicas: int, pools: tuple[int, int] | None = None) -> Verified:
        """So many replicas under ``1/utilisation`` times the load."""
        key = (replicas, pools)
        if key not in self.trials:
            self.trials[key] = self._tried(self.option.sized(replicas, pools))
        return self.trials[key]

    def _tried(self, sized: PlanOption) -> Verified:
        """One size, with other token budgets where it misses a limit by little: the closed form's choice is a guess.

        A part of a run errs low, so of what keeps the limits with a doubt the whole is seen; budgets are told apart by
        parts alone.
        """
        tried, slo = self._simulated(sized), self.question.slo
        if tried.meets(slo):
            return beyond_doubt(tried, slo)
        over = tried.violations(slo)
        worst = max(over.values(), default=1.0)
        if sized.pools or not 1.0 < worst < _NARROW:
            return tried
        hopeless = _HOPELESS_TPOT if over.get("tpot") == worst else _HOPELESS
        own = self.budgets.setdefault(sized.budget, 1.0)
        for budget in self.question.space.budgets or BUDGETS:
            if budget == sized.budget or worst * self.budgets.get(budget, 0.0) / own > hopeless:
                continue
            if tried.largest_step <= min(budget, sized.budget - 1):  # neither is ever full: it would be the same run
                continue
            there = with_budget(sized, self.question, budget, self.points)
            screened = _screened(there, self.question)
            if screened and (screened > _FAR_OFF or worst * screened / _screened(sized, self.question) > hopeless):
                continue
            other = self._simulated(there)
            self.budgets[budget] = own * max(other.shares(slo).values()) / worst
            other = beyond_doubt(other, slo) if other.meets(slo) else other
            if self.meets(other):
                self.option = with_budget(self.option, self.question, budget, self.points)  # first at other sizes
                return other
        return self.simulations.longer(tried, self.question, 1 / self.question.sizing.utilisation)

    def _simulated(self, sized: PlanOption) -> Verified:
        return self.simulations.of(sized, self.question, 1 / self.question.sizing.utilisation)

    def meets(self, trial: Verified, names: set[str] | None = None) -> bool:
        """Whether a trial keeps the limits, or those of ``names``."""
        slo = self.question.slo
        if names is not None:
            kept = {name: limit for name, limit in slo.limits.items() if name in names}
            slo = Slo(percentile=slo.percentile, **kept)
        return trial.meets(slo)

    def fewest(self, below: float, missed: int = 0) -> PlanOption | None:
        """The smallest size that keeps the limits and costs less than ``below``; ``None`` without one. missed: so many
        replicas are known to miss them.
        """
        if self.question.demand.offline:
            return self.option if (self.option.cost or 0.0) < below else None
        if self.option.pools is not None:
            return self._fewest_in_pools(below)
        option, simulations = self.option, self.simulations
        most = self._affordable(max(4 * option.replicas + 2, self._nearly_alone), below)
        guess = min(max(option.replicas, missed + 1), most)
        if most <= missed:
            return None
        size = None
        if simulations.doubted or not option.screened:
            size = search_smallest(self._holds, missed, most, self._between) if self._holds(most) else None
        elif not self._by_far(guess):
            size = least(self._holds, guess, most, self._between, missed, self._beyond)
        else:
            simulations.doubted = True
            if guess < most and self._holds(most):
                size = search_smallest(self._holds, guess, most, self._between)
        return None if size is None else self._filled(size).option

    @property
    def _nearly_alone(self) -> int:
        """For classes as many replicas as hold requests for so little of the time that more help nobody; else 0.

        What the closed form guesses for classes says little: it sees their mix under the loosest of the limits, and one
        class may wait for the prompts of another.
        """
        if not self.question.demand.classes or together(self.option, self.question):
            return 0
        load = (self.question.demand.requests_per_second or 0.0) / self.question.sizing.utilisation
        return ceil(load * self.option.e2el / NEARLY_ALONE)

    def confirmed(self, sized: PlanOption, below: float = inf, precision: RunPrecision = SHOWN) -> Verified | None:
        """A size under the load, where it also keeps the limits at ``1/utilisation`` times it in a run that is long
        enough for its percentile. One that does not is a size larger, for as long as that costs less than ``below``.
        """
        question = self.question
        for _ in range(MOST_GROWTH):
            if (sized.cost or 0.0) >= below:
                break
            seen = self._sure(sized)
            if seen.meets(question.slo):
                seen = self.simulations.long(sized, question, precision=precision)
                if seen.meets(question.slo):
                    if all(one.kept(seen) for one in self.constraints):
                        return seen
                    self.unkept = seen  # a larger size takes more
                    return None
            self.trials[sized.replicas, sized.pools] = seen
            sized = next_size(sized)
        return None

    def _sure(self, sized: PlanOption) -> Verified:
        """A size at ``1/utilisation`` times the load in a long run, or in a short one that leaves no doubt."""
        factor = 1 / self.question.sizing.utilisation
        short = self.simulations.known_of(sized, factor) if self.question.demand.trace is None else None
        if short is not None and surely_kept(short, self.question.slo):
            return short  # of a trace the whole fleet is seen at last
        seen = self.simulations.long(sized, self.question, factor)
        return self.simulations.longer(seen, self.question, factor, SHOWN)

    @cached_property
    def constraints(self) -> list[Constraint]:
        """What runs are held to beside the limits on latency."""
        return constraints_of(self.question.slo, self.question.sizing)

    @property
    def grows(self) -> bool:
        """Whether a constraint may ask for more replicas than the load does."""
        return any(one.grows for one in self.constraints)

    def grown(self, kept: Verified, below: float = inf) -> Verified | None:
        """The smallest size, from one that keeps the limits on, that keeps what asks for more replicas than the load
        does; ``None`` where none does for less than ``below``.
        """
        for one in self.constraints:
            if one.grows:
                larger = one.grown(kept, self.question)
                if larger is None or (larger.option.cost or 0.0) >= below:
                    return None
                kept = replace(self.simulations.long(larger.option, self.question), survival=larger.survival)
        return kept if all(one.kept(kept) for one in self.constraints) else None

    def _filled(self, size: int) -> Verified:
        """At least so many replicas: as many as the same bill holds."""
        return self.trial(self.option.filled(size))

    def _holds(self, size: int) -> bool:
        return self.meets(self._filled(size))

    def _between(self, low: int, high: int) -> int:
        """The least size that keeps every limit, between two as :func:`_by_law` has it."""
        return self._guess(self._filled(high), high, middle(low, high))

    def _beyond(self, low: int, most: int) -> int:
        """The same beyond a size that misses a limit; that size where nothing is known."""
        return self._guess(self._filled(low), most, low)

    def _guess(self, seen: Verified, most: int, otherwise: int) -> int:
        """The same of sizes with the token budget of one that was seen, and no larger than ``most``."""
        law = _by_law(self.trials, self.question.slo, seen.option.budget)
        return otherwise if law is None else ceil(exp(min(law.at, log(most))) - 1e-9)

    def _by_far(self, size: int) -> bool:
        """Whether a guess misses a limit by so much that it has to be seen first whether any size will do."""
        trial = self._filled(size)
        return not self.meets(trial) and max(trial.violations(self.question.slo).values(), default=1.0) > _FAR

    def _fewest_in_pools(self, below: float) -> PlanOption | None:
        """Pools that keep every limit for less than ``below``, then fewer for prompts, then fewer that decode.

        What a trial lacks is the pool that its requests wait for. Sizes that the closed form rules out, however wrong
        it is, are not simulated.
        """
        option, step = self.option, [1, 1]
        assert option.pools is not None
        size, short = list(option.pools), [least - 1 for least in option.least]  # short: so few are known not to do
        most = [4 * each + 2 for each in size]
        while True:
            if not self._paid(size, short, below):
                return None
            lacking = self.lacking(self._trial_of(size[0], size[1]))
            if not any(lacking):
                break
            for pool in (0, 1):
                if lacking[pool]:
                    short[pool] = max(short[pool], size[pool])
                    size[pool], step[pool] = min(size[pool] + step[pool], most[pool]), 2 * step[pool]
            if short[0] >= most[0] or short[1] >= most[1]:
                return None
        prefill, decode = size
        first = (
            least(lambda few: few > short[0] and self.meets(self._trial_of(few, decode)), prefill, prefill) or prefill
        )
        second = least(lambda few: few > short[1] and self.meets(self._trial_of(first, few)), decode, decode) or decode
        return option.sized(first + second, (first, second))

    def _trial_of(self, prefill: int, decode: int) -> Verified:
        return self.trial(prefill + decode, (prefill, decode))

    def _paid(self, size: list[int], short: list[int], below: float) -> bool:
        """Lower ``size``, of two pools, until it costs less than ``below``: by turns the one that is further above what
        is known not to do. Whether that can be.
        """
        while (self.option.sized(sum(size), (size[0], size[1])).cost or 0.0) >= below:
            slack = [(each - least - 1) / each for each, least in zip(size, short)]
            if max(slack) <= 0:
                return False
            size[slack.index(max(slack))] -= 1
        return True

    def lacking(self, seen: Verified) -> tuple[bool, bool]:
        """Whether pools apart are short of replicas for prompts, and of those that decode; neither if all is kept."""
        slo = self.question.slo
        if self.meets(seen):
            return False, False
        over, waits = seen.violations(slo), waits_for_decodes(seen)
        prefill = not waits and (seen.verdict == "overloaded" or "ttft" in over)
        return prefill, waits or not prefill or (seen.verdict != "overloaded" and "tpot" in over)

    @property
    def missed(self) -> int:
        """The largest size of one pool that was seen to miss the limits; 0 without one."""
        missed = (size for (size, pools), seen in self.trials.items() if pools is None and not self.meets(seen))
        return max(missed, default=0)

    def cheaper(self, cost: float) -> int:
        """The largest size of one pool that costs less."""
        return 0 if self.option.pools is not None else self._affordable(4 * self.option.replicas + 2, cost)

    def _affordable(self, most: int, below: float) -> int:
        """The largest size up to ``most`` that costs less than ``below``, and that there is power for."""
        sized = self.option.sized
        if (sized(most).cost or 0.0) < below:
            return most
        return search_smallest(lambda size: (sized(size).cost or 0.0) >= below, 0, most) - 1


def _by_law(trials: dict[tuple[int, tuple[int, int] | None], Verified], slo: Slo, same: int) -> PowerLaw | None:
    """The size at which the worst latency is at its limit, if it is a power of the size: through the two sizes seen so
    far that come closest to the limit, of those with the ``same`` token budget and no queue that grows; or through one,
    in proportion to the load of a replica. ``None`` where nothing is known, or more replicas are not faster.
    """
    shared = {
        size: log(max(trial.shares(slo).values()))
        for (size, _), trial in trials.items()
        if trial.option.budget == same and trial.verdict != "overloaded"
    }
    seen = [(share, log(size)) for size, share in shared.items() if share < inf]
    if len(seen) == 1:
        seen += [(share - 1.0, size + 1.0) for share, size in seen]
    law = power_law(seen)
    return None if law is None or law.slope >= 0.0 else law


def _screened(option: PlanOption, question: Question) -> float:
    """The worst latency over its limit, in closed form; 0 where that rules nothing out."""
    limits = question.stream.ruling.slo.limits
    return max((float(getattr(option, name)) / limit for name, limit in limits.items()), default=0.0)


def waits_for_decodes(seen: Verified) -> bool:
    """Whether requests of pools apart wait for those that decode (:data:`_HARDLY`), or it is not known."""
    result = seen.result
    if result is None:
        return True
    waited = sum(sum(meter.waited.values()) for meter in result.meters[result.prompt_pool[0] :])
    return waited > _HARDLY * float(np.sum(result.ttft))


def next_size(option: PlanOption) -> PlanOption:
    """The next size: one replica more, or as many as capacities are known to; of pools apart one more in each."""
    if option.pools is None:
        return option.sized(option.filled(ceil(option.replicas * (1 + CAPACITY_TOLERANCE))))
    return option.sized(option.replicas + 2, (option.pools[0] + 1, option.pools[1] + 1))


def with_budget(
    option: PlanOption, question: Question, budget: int, known: dict[tuple[int, int], dict[str, Any]]
) -> PlanOption:
    """The same batch under another token budget, in closed form. known: what that changes, by batch and budget: the
    same at every size."""
    key = option.batch, budget
    if key not in known:
        grid = point(option.deployment, question.demand, question.slo.percentile, *key, option.speculation)
        known[key] = figures_at(slow_grid(grid, option.slow, question.slo.percentile), (0, 0))
    return replace(option, **known[key])


def middle(low: int, high: int) -> int:
    """Where to look next between a size that does not hold and one that does."""
    return (low + high) // 2


def least(
    holds: Callable[[int], bool],
    guess: int,
    most: int,
    between: Callable[[int, int], int] = middle,
    low: int = 0,
    beyond: Callable[[int, int], int] = min,
) -> int | None:
    """The smallest number above ``low``, which does not hold, and up to ``most`` that does, if larger ones do as well;
    ``None`` when ``most`` does not.

    between, beyond: guesses from two numbers, and from one that does not hold and ``most``.
    """
    if most <= low:
        return None
    size, step = min(max(guess, low + 1), most), 1
    if holds(size):
        high = size
        while high > low + 1:
            size, step = max(high - step, low + 1), 2 * step
            if not holds(size):
                return search_smallest(holds, size, high, between)
            high = size
        return high
    while size < most:
        low, size, step = size, min(max(size + step, beyond(size, most)), most), 2 * step
        if holds(size):
            return search_smallest(holds, low, size, between)
    return None


def search_smallest(
    holds: Callable[[int], bool], low: int, high: int, between: Callable[[int, int], int] = middle
) -> int:
    """The smallest number that holds, above ``low``, which does not, and up to ``high``, which does.

    between: a guess from two such numbers. Where two guesses in a row leave more than half, the next is the middle.
    """
    slow = 0
    while high - low > 1:
        wide, size = high - low, middle(low, high) if slow == 2 else between(low, high)
        size = min(max(size, low + 1), high - 1)
        low, high = (low, size) if holds(size) else (size, high)
        slow = 0 if 2 * (high - low) <= wide + 1 else slow + 1
    return high


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What a fleet carries.

    factor: times the load, within :data:`CAPACITY_TOLERANCE`. broken: the limit that breaks first beyond it.
    """

    factor: float
    broken: str
    open: bool = False
    """Whether the fleet still kept the limits at the largest load that was tried."""


def capacity(at: Callable[[float], Verified], question: Question) -> Capacity:
    """The largest load, as a multiple of the demand, under which a sized fleet keeps the limits.

    at: the fleet under so many times the demand, simulated.
    """
    low, high, factor, broken, growth = 0.0, inf, 1 / question.sizing.utilisation, "", 1.2
    shares: dict[float, float] = {}
    while high / max(low, 1e-9) > 1 + CAPACITY_TOLERANCE:
        checked = at(factor)
        found = checked.shares(question.slo)
        if checked.verdict != "overloaded" and found:
            shares[factor] = max(found.values())
        if checked.meets(question.slo):
            low = factor
        else:
            high, broken = factor, breaks_first(checked, question)
        if low > _MOST_CAPACITY:
            return Capacity(factor=low, broken="", open=True)
        if high < 0.05:
            break
        if high == inf:  # a fleet with far more than its load, or that no load breaks, is not climbed step by step
            factor, growth = min(_beyond(low, growth, shares), 1.01 * _MOST_CAPACITY), growth**2
        elif low == 0.0:
            factor = high / 1.3
        else:
            between = _between_loads(low, high, shares)
            if between is not None and _told_between(low, between, high, shares):
                return Capacity(factor=between, broken=broken)
            factor = _next_load(low, high, between if len(shares) < _MOST_FITTED else None)
    return Capacity(factor=low, broken=broken)


def _beyond(low: float, growth: float, shares: dict[float, float]) -> float:
    """The next load to try above the largest that was: ``growth`` times it, or where the worst latency breaks its limit
    sooner than that if it goes on as a power of the load, so far beyond that what is left is interpolated.
    """
    law = power_law([(log(share), log(load)) for load, share in shares.items() if share > 0])
    if law is None or law.slope <= 0.0:
        return growth * low
    at = exp(min(law.at, 700.0))  # a latency that hardly rises breaks its limit beyond what a float holds
    return float(min(growth * low, max(at, low) * _BRACKET**0.5))


def _between_loads(low: float, high: float, shares: dict[float, float]) -> float | None:
    """The load between two at which the worst latency is at its limit, if it is a power of the load; ``None`` where a
    queue grows, or it does not rise through the limit. shares: the worst latency over its limit, by load.
    """
    if not shares.get(low, inf) <= 1.0 < shares.get(high, 0.0) < inf:
        return None
    law = power_law([(log(shares[load]), log(load)) for load in (low, high) if shares[load] > 0])
    return None if law is None else exp(law.at)


def _told_between(low: float, between: float, high: float, shares: dict[float, float]) -> bool:
    """Whether the load between two is known: next to one of them, or the two are near each other and the limit."""
    if min(between / low, high / between) <= 1 + CAPACITY_TOLERANCE / 2:
        return True
    beside = max(abs(log(shares[low])), abs(log(shares[high]))) <= log(1 + _BESIDE)
    return beside and high / low <= _BRACKET * (1 + 1e-9)


def _next_load(low: float, high: float, between: float | None) -> float:
    """The next load to try: near ``between``, so that what is left on both sides is no wider than is interpolated,
    or at least on the side where the answer is thought to lie; the middle where nothing is known.
    """
    middle_load, margin = (low * high) ** 0.5, 1 + CAPACITY_TOLERANCE / 2
    if between is None:
        return float(middle_load)
    if high / low <= _BRACKET**2:
        return float(min(max(between, high / _BRACKET), low * _BRACKET))
    guess = between * _BRACKET**0.5 if between < middle_load else between / _BRACKET**0.5
    return float(min(max(guess, low * margin), high / margin))


class PowerLaw(NamedTuple):
    """A size, or load, as a power of the worst latency. at: the logarithm of that at which it is at its limit."""

    at: float
    slope: float


def power_law(seen: list[tuple[float, float]]) -> PowerLaw | None:
    """Through the two of (logarithm of latency over limit, logarithm of size) that come closest to the limit; ``None``
    for fewer than two, and for two that are equally slow.
    """
    if len(seen) < 2:
        return None
    (first, near), (second, far) = sorted(seen, key=lambda point: abs(point[0]))[:2]
    if first == second:
        return None
    slope = (far - near) / (second - first)
    return PowerLaw(at=near - first * slope, slope=slope)


def waited_for(result: SimulationResult) -> str:
    """What most requests of an overloaded run waited for."""
    waits = {reason: count for meter in result.meters for reason, count in meter.blocked_by.items()}
    reasons = {"slots": "slots", "cache": "memory", "adapters": "adapters"}
    return reasons.get(max(waits, key=lambda reason: waits[reason]), "prefill") if waits else "prefill"


def breaks_first(checked: Verified, question: Question) -> str:
    """The limit that is missed by most, or what requests waited for where the run was overloaded."""
    over = checked.shares(question.slo)
    if checked.verdict == "overloaded" and checked.result is not None:
        return waited_for(checked.result)
    return max(over, key=lambda name: over[name]) if over else "prefill"
