"""The cheapest options in simulation: branch and bound over structures, each sized by simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from inferplan.estimate.bands import mostly_transferred
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.support import DRAFTS
from inferplan.planning.confidence import MIDDLE, SAFE, Slowness, slow_grid, slowness
from inferplan.planning.forms import forms_in, outranked, settled
from inferplan.planning.grid import prompt_alone
from inferplan.planning.miss import least_expected
from inferplan.planning.option import PlanOption, PricedGrid
from inferplan.planning.question import Question
from inferplan.planning.search import SearchResult, cheapest_of_each_structure, cheapest_point, option_order
from inferplan.planning.sizing import BUDGETS, MOST_GROWTH, OutOfSimulations, Simulated, Simulations, Sizer, next_size
from inferplan.planning.space import Rejections
from inferplan.planning.verify import QUOTED, SHOWN, Verified, beyond_doubt, verify
from inferplan.steps import Steps
from inferplan.units import Array

MAX_SIMULATIONS = 60
"""More are not run in one search for the cheapest (with and without drafts, at each confidence); the plan says so where
they were not enough."""
MAX_ALTERNATIVES = 3
"""Other GPUs that are shown beside the plan."""
MAX_SIMULATIONS_OF_ONE = 12
"""Short simulations that look for the cheapest option on one of them."""
MOST_BESIDE = 30
"""... and for one of the plans beside the plan."""
ALIKE = 1e-9
"""Costs no further apart are the same."""
MAX_COST_RATIO = 3.0
"""An option on another GPU that costs more than so many times the plan is not shown."""


_NEAREST = 3
"""Options that are simulated to say how near the nearest miss is."""


@dataclass(kw_only=True, eq=False)
class Finalists:
    """What simulation made of the options. passed: sized, and within the limits in runs that are long enough for their
    percentile; failed: the nearest trial of others.

    unseen: options that might be cheaper and were not simulated, because there were too many. outranked: the cheapest
    of each form that a simpler one outranked in closed form, as that has it.
    """

    passed: list[Verified] = field(default_factory=list)
    failed: list[Verified] = field(default_factory=list)
    unseen: int = 0
    outranked: list[PlanOption] = field(default_factory=list)

    @property
    def unbeaten(self) -> list[Verified]:
        """Those that no simpler one outranks (:mod:`inferplan.planning.forms`), the cheapest first."""
        lost = {one.place for one in outranked([verified.option for verified in self.passed])}
        return sorted((one for place, one in enumerate(self.passed) if place not in lost), key=by_cost)

    @property
    def cheapest(self) -> Verified | None:
        return next(iter(self.unbeaten), None)

    def add(self, other: Finalists) -> None:
        """Those of other options, too."""
        self.passed += other.passed
        self.failed += other.failed
        self.unseen += other.unseen
        self.outranked += other.outranked


def by_cost(verified: Verified) -> tuple[float, bool, int, tuple[bool, float, bool], int, float]:
    """Order of finalists: cost, then what is simpler to run (no pools, no stages), then the checkpoint's own format
    before narrower ones, then devices, then speed."""
    option = verified.option
    simpler = option.pools is not None, option.deployment.parallel.pp, option.narrowness, option.devices
    return option.cost or 0.0, *simpler, verified.achieved["e2el"]


def without_unmeasured(searched: SearchResult) -> SearchResult:
    """Without the options on constants that nobody measured on that device or one of its maker, where others have them.

    At the bare roofline, or with another maker's constants, a device looks better than it is.
    """
    measured = [option for option in searched.options if not carried_over(option)]
    bare = [option for option in searched.options if carried_over(option)]
    if not measured or not bare:
        return searched
    names = sorted({deployment.hardware.name for option in bare for deployment in unmeasured_deployments(option)})
    rejections = Rejections(counts=searched.rejections.counts.copy(), examples=dict(searched.rejections.examples))
    rejections.add("unmeasured", len(bare), ", ".join(names))
    return searched._replace(options=measured, rejections=rejections)


def carried_over(option: PlanOption) -> bool:
    """Whether nothing of the maker of one of the option's devices was measured."""
    return bool(unmeasured_deployments(option))


def unmeasured_deployments(option: PlanOption) -> list[Deployment]:
    """The deployments of an option on devices of whose makers nothing was measured."""
    found = []
    for deployment, _ in option.kinds:
        calibration = deployment.calibration
        foreign = bool(calibration.vendors) and deployment.hardware.vendor not in calibration.vendors
        found += [deployment] if calibration.basis == "roofline" or foreign else []
    return found


def is_measured(option: PlanOption, question: Question) -> bool:
    """Whether measurements of its kind stand behind the limited latencies of an option."""
    prompt = question.demand.prompt.average
    known = slowness(option.deployment, prompt, question.slo, SAFE, option.forms)
    return not option.lacking and known is not None


def on_transferred(option: PlanOption, question: Question) -> bool:
    """Whether most of a step of an option rests on constants that were carried over from other devices."""
    prompt = question.demand.prompt.average
    return any(mostly_transferred(deployment, prompt) for deployment, _ in option.kinds)


def simulate_finalists(
    options: list[PlanOption], question: Question, known: Simulated, steps: Steps | None = None, others: bool = False
) -> Finalists:
    """The cheapest option in simulation; options: in the order of :func:`option_order`. Each way of decoding, with
    drafts and without, has finalists of its own, so that the two can be compared.

    known: simulations so far, which grow. steps: one for each candidate that is decided. others: also the cheapest on
    each of the next cheapest GPUs.
    """
    found, steps = Finalists(), steps or Steps()
    for drafted in (False, True):
        side = [option for option in options if bool(option.speculation.length) == drafted]
        simple, less_simple = settled(side)
        alike = _decoding_alike(simple, question, known, steps, others)
        if not alike.passed and less_simple:  # the simpler ones keep no limits in runs
            alike = _decoding_alike(side, question, known, steps, others)
        else:
            first = alike.cheapest
            again, still = settled(side, 0.0 if first is None else first.option.cost or 0.0)
            if len(again) > len(simple):  # twins of pools cost more than in closed form
                less_simple, alike = still, _decoding_alike(again, question, known, steps, others)
            dearest_first = sorted(less_simple, key=lambda option: -inf if option.cost is None else -option.cost)
            alike.outranked = [*{forms_in(option): option for option in dearest_first}.values()]
        found.add(alike)
    return found


def _decoding_alike(
    options: list[PlanOption], question: Question, known: Simulated, steps: Steps, others: bool
) -> Finalists:
    """The finalists of one way of decoding."""
    found, structures = Finalists(), list(cheapest_of_each_structure(options))
    simulations = Simulations(most=MAX_SIMULATIONS, known=known)
    entries = [
        SizedStructure(sizer=Sizer(option=option, question=question, simulations=simulations)) for option in structures
    ]
    steps.more(len(entries))
    first = cheapest_so_far(entries, steps)
    while first is not None and not first.confirm():
        first = cheapest_so_far(entries)
    found.passed += [entry.kept for entry in entries if entry.kept is not None]
    best = found.cheapest
    below = inf if best is None else best.option.cost or inf
    found.unseen = sum(entry.unseen and entry.sizer.option.bound < below for entry in entries)
    if best is None:
        found.failed += [miss for entry in entries if (miss := _nearest_trial(entry.sizer)) is not None]
        found.failed += _nearest([entry.sizer.option for entry in entries if entry.too_long], question)
    if others and found.cheapest is not None:
        _add_other_gpus(structures, question, found, known, steps)
    return found


@dataclass(kw_only=True, eq=False)
class SizedStructure:
    """A structure in the search for the cheapest. sized: the smallest size that keeps the limits, of those that no long
    run has shown to miss them; kept: that size in long runs that it keeps them in; none_below: nothing that costs less
    keeps them; grown: sizes that long runs have shown to miss them; unseen: simulations ran out.
    """

    sizer: Sizer
    sized: PlanOption | None = None
    kept: Verified | None = None
    none_below: float = 0.0
    grown: int = 0
    unseen: bool = False

    @cached_property
    def too_long(self) -> bool:
        """Whether its long prompts are too slow alone, so that no size will do."""
        return too_long_alone(self.sizer.option, self.sizer.question)

    def sized_cost(self, below: float) -> float:
        """What its size costs, which short runs find where they have not yet; infinity for ``below`` and more."""
        sizer = self.sizer
        if self.sized is None and self.none_below < below and sizer.option.bound < below and not self.too_long:
            try:
                self.unseen = not sizer.simulations.left
                self.sized = None if self.unseen else sizer.fewest(below)
            except OutOfSimulations:
                self.unseen = True
            self.none_below = below
        cost = inf if self.sized is None else self.sized.cost or 0.0
        return cost if cost < below else inf

    def confirm(self) -> bool:
        """Try whether the size keeps the limits in long runs too; if not it is a size larger, some times."""
        assert self.sized is not None
        if self.kept is None:
            self.kept = self.sizer.confirmed(self.sized, (self.sized.cost or 0.0) * (1 + 1e-9) + 1e-9)
            if self.kept is not None and self.sizer.grows:
                return self._grow(self.kept)
        if self.kept is None:
            self.grown += 1
            self.sized = next_size(self.sized) if self.grown < MOST_GROWTH else None
            self.none_below = inf
        return self.kept is not None

    def _grow(self, kept: Verified) -> bool:
        """Grow the size that keeps the limits until it keeps every constraint; whether it costs no more then, so that
        it still is what was asked about.
        """
        before, self.kept = kept.option.cost or 0.0, self.sizer.grown(kept)
        self.sized, self.none_below = None if self.kept is None else self.kept.option, inf
        return self.kept is not None and (self.kept.option.cost or 0.0) <= before * (1 + 1e-9)


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
    costs less than ``bounds.below``, or where simulations run out before one is found. Long runs are made of what costs
    least in short ones alone.
    """
    simulations = Simulations(most=most, known=known)
    entries = [
        SizedStructure(sizer=Sizer(option=option, question=question, simulations=simulations))
        for option in cheapest_of_each_structure(list(options))
    ]
    while (first := _cheapest_sized(entries, bounds)) is not None and not first.confirm():
        pass  # a size larger, or another
    return None if first is None else first.kept


def _cheapest_sized(entries: list[SizedStructure], bounds: Bounds) -> SizedStructure | None:
    """The entry whose size costs least within bounds, of those that no simpler one outranks; ``None`` without one."""
    best, below, sized = None, bounds.below, list[SizedStructure]()
    for entry in entries:
        if below <= bounds.least * (1 + ALIKE):
            break
        if entry.sized_cost(below) < below:
            sized.append(entry)
            lost = {one.place for one in outranked([one.sized for one in sized if one.sized is not None])}
            left = [one for place, one in enumerate(sized) if place not in lost]
            best = min(left, key=lambda one: one.sized_cost(inf))
            below = best.sized_cost(inf) * (1 - ALIKE)
    return best


def cheapest_so_far(entries: list[SizedStructure], steps: Steps | None = None) -> SizedStructure | None:
    """The entry whose size costs least; of equals the first, one pool before two, the checkpoint's own format before
    narrower ones. One that is sized here is put to a long run at once, so that others are not held to a price that
    nobody can offer. steps: one for each entry.
    """
    sized = [entry for entry in entries if entry.sized is not None]
    best = min(sized, key=lambda entry: entry.sized_cost(inf), default=None)
    for entry in entries:
        below = inf
        if best is not None and best.sized is not None:
            simpler = _simplicity(entry.sizer.option) < _simplicity(best.sized)
            below = (best.sized.cost or inf) * (1 + (1e-9 if simpler else -1e-9))
        if entry.sized_cost(below) < below and (entry.grown or entry.confirm() or entry.sized_cost(below) < below):
            best = entry
        if steps is not None:
            steps.step()
    return best


def _simplicity(option: PlanOption) -> tuple[bool, tuple[bool, float, bool]]:
    """What of two options that cost the same is preferred, the smaller first."""
    return option.pools is not None, option.narrowness


def _nearest_trial(sizer: Sizer) -> Verified | None:
    """A size that keeps the limits on latency alone; of those that miss one of these that which misses least."""
    if sizer.unkept is not None:
        return sizer.unkept
    slo = sizer.question.slo
    missed = [trial for trial in sizer.trials.values() if not trial.meets(slo)]
    return min(missed, key=lambda trial: max(trial.violations(slo).values(), default=inf), default=None)


def _nearest(options: list[PlanOption], question: Question) -> list[Verified]:
    """The fastest of those whose long prompts are too slow alone, with room to spare: how near the nearest miss is."""
    fastest = sorted(options, key=lambda option: option.ttft)[:_NEAREST]
    roomy = [option.sized(option.filled(2 * option.replicas)) for option in fastest if option.pools is None]
    return [verify(option, question, precision=SHOWN) for option in roomy]


def too_long_alone(option: PlanOption, question: Question) -> bool:
    """Whether a long prompt alone on an idle replica takes longer than the limit on TTFT, whatever the token budget.

    A share of the prompts is as long as the percentile's or longer, and none of them is faster than that.
    """
    demand = question.demand
    if question.slo.ttft is None or demand.own is not None or demand.trace is not None:
        return False
    found, own = 1.0 - demand.cached / demand.prompt.average, option.prompt_budget or option.budget
    budgets = np.array([float(budget) for budget in {*(question.space.budgets or BUDGETS), own}])
    held = [(one.prompt, one.slo) for one in demand.classes] or [(demand.prompt, question.slo)]
    return any(
        slo.ttft is not None and _alone(option, budgets, prompt.quantile(slo.percentile / 100), found) > slo.ttft
        for prompt, slo in held
    )


def _alone(option: PlanOption, budgets: Array, prompt: float, found: float) -> float:
    """Seconds of a prompt on an idle replica with the best of some budgets; a share ``found`` of it is to be computed.

    Of the devices that compute prompts, as slow as the option takes them to be.
    """
    prompts = option.prompts or option
    alone, _ = prompt_alone(prompts.deployment, budgets, prompt * found, prompt * (1.0 - found))
    return float(np.min(alone)) * option.slow.step * option.slow.first


def run_under_load(question: Question, known: Simulated) -> Callable[[PlanOption], Verified]:
    """Simulates options under the load itself, without headroom, in short runs where these leave no doubt; or what is
    known of them.
    """
    return lambda option: beyond_doubt(Simulations(most=1, known=known).of(option, question, 1.0), question.slo)


def kept_in_the_long_run(found: Finalists, question: Question, known: Simulated) -> Verified | None:
    """The one that is expected to cost least (:mod:`inferplan.planning.miss`) and keeps the limits in a run long
    enough to quote from, and in a long one at ``1/utilisation`` times the load, where a short one may have left no
    doubt and been wrong; ``found`` is left with the others. One that does not is a size larger, and then has to be the
    cheapest still.
    """
    simulations = Simulations(most=0, known=known)
    while (best := least_expected(found.unbeaten, question, run_under_load(question, known))) is not None:
        found.passed.remove(best)
        checked = simulations.long(best.option, question, precision=QUOTED)
        if checked.sound(question.slo):
            sized = simulations.long(best.option, question, 1 / question.sizing.utilisation)
            if sized.meets(question.slo):
                return replace(checked, survival=best.survival)
            checked = sized
        found.failed.append(checked)
        if checked.verdict == "rejecting":
            continue  # no size of it runs what is refused
        sizer = Sizer(option=best.option, question=question, simulations=simulations)
        grown = sizer.confirmed(next_size(best.option)) if len(found.failed) < MAX_SIMULATIONS else None
        grown = None if grown is None else sizer.grown(grown)
        found.passed += [] if grown is None else [grown]
    return None


def _add_other_gpus(
    structures: list[PlanOption], question: Question, found: Finalists, known: Simulated, steps: Steps
) -> None:
    """The cheapest option in one pool that keeps the limits on each of the next cheapest GPUs, as far as so few runs
    tell."""
    best = found.cheapest
    assert best is not None
    bounds = Bounds(below=MAX_COST_RATIO * (best.option.cost or inf))
    shown = {verified.option.deployment.hardware.name for verified in found.passed}
    others: dict[str, list[PlanOption]] = {}
    for option in structures:
        if option.pools is None and option.deployment.hardware.name not in shown:
            others.setdefault(option.deployment.hardware.name, []).append(option)
    left = MAX_ALTERNATIVES + 1 - len(shown)
    steps.more(len(others))
    for options in others.values():
        steps.step()
        if left <= 0:
            continue
        kept = cheapest_within(options, question, bounds, known, MAX_SIMULATIONS_OF_ONE)
        if kept is not None:
            found.passed.append(kept)
            left -= 1


def slowed_grids(
    searched: SearchResult, question: Question, confidence: float
) -> Iterator[tuple[PricedGrid, Slowness]]:
    """The grids with a price whose error is known, for devices as slow as measurements allow at ``confidence``."""
    for request, grid, tariff in searched.grids:
        forms = (DRAFTS,) if grid.speculation.length else ()
        slow = slowness(grid.deployment, question.demand.prompt.average, question.slo, confidence, forms)
        if tariff is not None and slow is not None:
            yield PricedGrid(request, slow_grid(grid, slow, question.slo.percentile), tariff), slow


def options_at(searched: SearchResult, question: Question, confidence: float) -> list[PlanOption]:
    """The options of a search for devices as slow as measurements allow at ``confidence``, in order.

    Beyond the prediction itself structures whose error nobody knows, and pools apart, are left out.
    """
    if confidence == MIDDLE:
        return searched.options
    options = []
    # what is too slow in one pool as predicted is too slow here
    able = {id(option.deployment) for option in searched.options if option.pools is None}
    grids = [priced for priced in searched.grids if id(priced.grid.deployment) in able]
    for priced, slow in slowed_grids(searched._replace(grids=grids), question, confidence):
        option = cheapest_point(priced, question.stream)
        if option is not None and option.bound < inf and not carried_over(option):
            options.append(replace(option, slow=slow))
    return sorted(options, key=option_order)
