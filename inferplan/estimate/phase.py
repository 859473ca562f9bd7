"""The price of one step: the operators of every pipeline stage, and the wall time that they add up to.

This is the only place that knows how long a step takes. A batch passes *stations*, one after another: the host that
schedules it, then each pipeline stage. :class:`StepTime` turns the seconds of the stations into wall time, and whatever
prices a step (estimates, the simulator's tables, the planning grid, the steady state, techniques) goes through it.

With ``pp`` stages an engine keeps up to ``pp`` batches in flight, each with sequences of its own
(docs/formulas/step.md). The worker of each stage prepares a batch for as long as the host does, while the batch is on
its way if it has nothing else to do. Identical batches on stages of ``t_s`` seconds are a permutation flow shop:

    pass   host + sum(t_s)                                  one batch, nothing beside it
    drain  host + sum(t_s) + (m - 1)*(host + max(t_s))      m batches once: the pipeline fills and drains
    cycle  max(host + sum(t_s), m*(host + max(t_s)))        m batches in turn: every sequence advances by one step
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any, Literal

import numpy as np

from inferplan.affine import dense, sum_arrays, take_rows
from inferplan.errors import NotFiniteError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import (
    OVERLAP_PARTS,
    Stage,
    build_rank,
    media_ops,
    overlap_part,
    rank_steps,
    shared_ranks,
)
from inferplan.estimate.load import UNKNOWN_SHARE, Band, StaticLoad
from inferplan.estimate.roofline import Bound, OpCost, price, time_terms
from inferplan.estimate.shared import Shared
from inferplan.terms import Naming, Term, name_term, plain, total
from inferplan.units import Num
from inferplan.work.ops import Exchange, Op, OperatorRun, Place
from inferplan.work.step import Segment, Step, prefill, recompute, stack_steps

Flow = Literal["pass", "drain", "cycle"]


@dataclass(frozen=True, kw_only=True, eq=False)
class StepTime:
    """Wall seconds of a step from the seconds of its batches on each station, the host first.

    fullest: of the batch that holds the most, which goes first. mean: of a batch that holds the mean of them all, so
    that they take ``microbatches`` times as long as it together. With batches of several sizes a drain is exact where
    the slowest stage is the last or all are alike, else a little more than it takes.
    """

    fullest: tuple[Num, ...]
    mean: tuple[Num, ...]
    microbatches: Num = 1.0
    flow: Flow = "pass"

    @cached_property
    def passage(self) -> Num:
        """Seconds of the fullest batch from the host through every stage."""
        return sum(self.fullest[1:], start=self.fullest[0])

    @cached_property
    def _slowest(self) -> list[Num]:
        """For each stage 1 where it is the slowest for the mean batch, else 0; the host's share of it comes first."""
        worst = np.argmax(np.stack(np.broadcast_arrays(*self.mean[1:])), axis=0)
        return [1.0, *(np.where(worst == stage, 1.0, 0.0) for stage in range(len(self.mean) - 1))]

    @cached_property
    def weights(self) -> list[tuple[Num, Num]]:
        """For each station how often its seconds count: those of the fullest batch, and those of the mean one.

        The wall time is their sum, so that whoever explains it, or spreads it over operators, uses these.
        """
        if self.flow == "pass" or len(self.fullest) <= 2:
            return [(1.0, 0.0)] * len(self.fullest)
        slowest = self._slowest
        all_batches = self.microbatches * sum((slow * mean for slow, mean in zip(slowest, self.mean)), start=0.0)
        if self.flow == "cycle":
            full = np.where(all_batches > self.passage, 1.0, 0.0)
            return [(1.0 - full, full * slow * self.microbatches) for slow in slowest]
        own = sum((slow * seconds for slow, seconds in zip(slowest, self.fullest)), start=0.0)
        others = np.where(all_batches > own, 1.0, 0.0)  # the fullest first, then the others at the slowest stage
        return [(1.0 - others * slow, others * slow * self.microbatches) for slow in slowest]

    @cached_property
    def total(self) -> Num:
        """Wall seconds of the step."""
        if self.flow == "pass" or len(self.fullest) <= 2:
            return self.passage
        return sum(
            (most * a + usual * b for (most, usual), a, b in zip(self.weights, self.fullest, self.mean)), start=0.0
        )

    @property
    def interval(self) -> Num:
        """Seconds between two batches like the fullest, with as many in flight as there are stages."""
        stages = len(self.fullest) - 1
        if stages == 1:
            return self.passage
        slowest = self.fullest[1]
        for other in self.fullest[2:]:
            slowest = np.maximum(slowest, other)
        return np.maximum(self.fullest[0] + slowest, self.passage / stages)

    def plus(self, other: StepTime, times: float = 1.0) -> StepTime:
        """The same with the batches of ``other``, so many times, on each station ahead of these."""

        def sums(ours: tuple[Num, ...], theirs: tuple[Num, ...]) -> tuple[Num, ...]:
            return tuple(a + times * b for a, b in zip(ours, theirs, strict=True))

        fullest = sums(self.fullest, other.fullest)
        alike = self.mean is self.fullest and other.mean is other.fullest
        return replace(self, fullest=fullest, mean=fullest if alike else sums(self.mean, other.mean))

    def at_least(self, floors: Sequence[Num]) -> StepTime:
        """The same with the kernels of each stage launched one by one, in ``floors`` seconds (:func:`launch_times`)."""
        fullest = tuple(launch_times(self.fullest, floors))
        return replace(
            self, fullest=fullest, mean=fullest if self.mean is self.fullest else launch_times(self.mean, floors)
        )


def launch_times(stations: Sequence[Num], floors: Sequence[Num]) -> tuple[Num, ...]:
    """Seconds of a batch on each station where every stage needs ``floors`` to launch its kernels one by one.

    A stage of ``t`` seconds then takes ``(t^4 + floor^4)^(1/4)``: launches that its kernels do not hide. A single stage
    is launched by the process that schedules, so that ``t`` is both.
    """
    if len(stations) == 2:
        whole = stations[0] + stations[1]
        factor = _fourth(whole, floors[0]) / whole
        return tuple(seconds * factor for seconds in stations)
    return (stations[0], *(_fourth(seconds, floor) for seconds, floor in zip(stations[1:], floors)))


def _fourth(seconds: Num, floor: Num) -> Num:
    """``(t^4 + floor^4)^(1/4)``; NumPy takes squares and roots at once, other powers take ten times as long."""
    whole: Num = ((seconds**2) ** 2 + (floor**2) ** 2) ** 0.5
    return whole**0.5


def send(free: list[float], start: float, stations: Sequence[float]) -> float:
    """A batch that is ready at ``start`` passes all stations: when it leaves the last, in seconds.

    ``free``: when each station is free, brought up to date. ``leave[s] = max(leave[s - 1], free[s] + host) + t_s``:
    batches never overtake each other (a permutation flow shop; Johnson, Optimal two- and three-stage production
    schedules, 1954), and a stage's worker prepares a batch for ``host`` seconds once it is done with the one before.
    """
    host, clock = stations[0], free[0]
    clock = free[0] = (start if start > clock else clock) + host  # a call of max takes as long as all the rest
    for station in range(1, len(stations)):
        ready = free[station] + host
        clock = free[station] = (ready if ready > clock else clock) + stations[station]
    return clock


def last_leaves(batches: Sequence[Sequence[float]], in_flight: int) -> float:
    """Seconds until the last of ``batches`` has passed the stations in order; each gives its seconds on every station.

    A batch sets out when fewer than ``in_flight`` are on their way.
    """
    free = [-inf] * len(batches[0])
    done: list[float] = []
    for batch in batches:
        done.append(send(free, done[-in_flight] if len(done) >= in_flight else 0.0, batch))
    return done[-1]


@dataclass(frozen=True, kw_only=True, eq=False)
class Phase:
    """The price of one step of a replica: every operator of every pipeline stage, and their sums.

    stages: costs of the batch that holds the most sequences, on the attention rank that holds the most. mean_stages:
    those of the mean batch on the mean rank; the same object where all are alike.
    """

    deployment: Deployment
    stages: tuple[tuple[OpCost, ...], ...]
    mean_stages: tuple[tuple[OpCost, ...], ...]
    layers: tuple[int, ...]
    sequences: tuple[Num, Num]
    """Sequences of the fullest batch on the fullest rank, and of the mean batch on the mean rank."""
    microbatches: Num
    """Batches in flight at once, each with sequences of its own."""
    flow: Flow
    mean_step: Step
    """That of the mean batch on the mean rank."""
    halves: tuple[Num, Num] = (1.0, 1.0)
    """2 where the fullest batch, and the mean one, was cut into halves that overlap."""

    @cached_property
    def stage_times(self) -> list[Num]:
        """Seconds of each stage for the fullest batch."""
        return stage_seconds(self.deployment, self.stages, self.layers, halves=self.halves[0])

    @cached_property
    def mean_stage_times(self) -> list[Num]:
        """Seconds of each stage for the mean batch."""
        if self.mean_stages is self.stages:
            return self.stage_times
        return stage_seconds(self.deployment, self.mean_stages, self.layers, halves=self.halves[1])

    @cached_property
    def step_time(self) -> StepTime:
        """How the seconds of the stations add up."""
        fullest = (host_seconds(self.deployment, self.sequences[0]), *self.stage_times)
        mean = fullest
        if self.mean_stages is not self.stages:
            mean = (host_seconds(self.deployment, self.sequences[1]), *self.mean_stage_times)
        return StepTime(fullest=fullest, mean=mean, microbatches=self.microbatches, flow=self.flow)

    @property
    def host(self) -> Num:
        """Seconds in which the host schedules one batch and keeps its books, outside the kernels."""
        return self.step_time.fullest[0]

    @property
    def time(self) -> Num:
        """Wall seconds of the step."""
        return self.step_time.total

    @property
    def costs(self) -> list[OpCost]:
        """Of every stage, for the fullest batch."""
        return [cost for stage in self.stages for cost in stage]

    @cached_property
    def _even(self) -> tuple[tuple[OpCost, ...], ...]:
        """Costs of the mean batch on a rank that has the mean of the experts' work: all ranks do a multiple of it."""
        deployment = self.deployment
        if deployment.parallel.ep == 1 or deployment.calibration.fused:
            return self.mean_stages
        even = replace(deployment, routing=replace(deployment.routing, even=True))
        return _priced(even, build_rank(even, self.mean_step))

    def _sum(self, quantity: Callable[[OpCost], Num], unit: str, name: Naming = plain) -> Num:
        """A quantity of one run, over all runs on all ranks in all batches."""
        found: dict[str, list[Num]] = defaultdict(list)
        for stage in self._even:
            for cost in stage:
                runs = name(cost.op.count, "runs") * name(cost.op.ranks, "ranks") * name(self.microbatches, "batches")
                found[cost.op.name].append(name(quantity(cost), f"{unit} of a run", unit) * runs)
        return dense(
            total((name(total(runs, "kernels"), operator, unit) for operator, runs in found.items()), "operators")
        )

    @cached_property
    def flop(self) -> Num:
        """FLOP over all ranks of the replica."""
        return self._sum(lambda cost: cost.work.flop, "FLOP")

    @cached_property
    def bytes(self) -> Num:
        """Bytes of device memory traffic over all ranks of the replica."""
        return self._sum(lambda cost: cost.work.bytes, "B")

    @cached_property
    def wire(self) -> Num:
        """Bytes sent over links by all ranks of the replica."""
        return self._sum(lambda cost: cost.work.wire, "B")

    @cached_property
    def resident(self) -> Num:
        """Bytes of weights and state read, over all ranks of the replica."""
        return self._sum(lambda cost: cost.op.resident(), "B")

    @property
    def intensity(self) -> Num:
        """FLOP per byte."""
        return self._intensity()

    def _intensity(self, name: Naming = plain) -> Num:
        return name(self.flop, "flop", "FLOP", ("part", "flop")) / name(self.bytes, "bytes", "B", ("part", "bytes"))

    def by_operator(self) -> dict[str, Num]:
        """Seconds by operator name, which add up to the step's wall time; the host's share last."""
        totals: dict[str, Num] = defaultdict(float)
        weights = _counted(self, self.step_time.weights[1:])
        for (most, usual), costs, means in zip(weights, self.stages, self.mean_stages):
            for cost, mean in zip(costs, means):
                totals[cost.op.name] = totals[cost.op.name] + (most * cost.total + usual * mean.total)
        rest = self._beside_kernels()
        if np.any(rest):
            totals["host"] = rest
        return dict(totals)

    def _weights(self, name: Naming = plain) -> list[tuple[Num, Num]]:
        """How often the seconds of each station count: those of the fullest batch, and those of the mean one."""
        if name is plain:
            return self.step_time.weights
        weights = [(float(np.max(most)), float(np.max(usual))) for most, usual in self.step_time.weights]
        return [(most, name(usual, "batches in turn") if usual else 0.0) for most, usual in weights]

    def _beside_kernels(self, name: Naming = plain) -> Num:
        """Seconds of the step outside its kernels: the host's, and the fixed seconds of the layers."""
        (most, usual), *weights = self._weights(name)
        fullest, mean = (host_seconds(self.deployment, sequences, name) for sequences in self.sequences)
        layers = [(a + b) * layer_seconds(self.deployment, count, name) for (a, b), count in zip(weights, self.layers)]
        return most * fullest + usual * mean + total(layers, "stages")

    def terms(self, number: str) -> Term:
        """One of its numbers with its formula: time, flop, bytes, intensity, mfu, mbu, or an operator of it.

        Raises ``KeyError`` for another.
        """
        units = {"time": "s", "flop": "FLOP", "bytes": "B", "intensity": "FLOP/B", "mfu": "", "mbu": ""}
        made: dict[str, Callable[[], Any]] = {
            "time": lambda: total(
                (name_term(seconds, name, "s", ("part", name)) for name, seconds in self.by_operator().items()),
                "operators",
            ),
            "flop": lambda: self._sum(lambda cost: cost.work.flop, "FLOP", name_term),
            "bytes": lambda: self._sum(lambda cost: cost.work.bytes, "B", name_term),
            "intensity": lambda: self._intensity(name_term),
            "mfu": lambda: self._mfu(name_term),
            "mbu": lambda: self._mbu(name_term),
            "host": lambda: self._beside_kernels(name_term),
        }
        found = made[number]() if number in made else self._operator_terms(number)
        term: Term = name_term(found, number, units.get(number, "s"))
        return term

    def _operator_terms(self, operator: str) -> Any:
        """Seconds of an operator: every run of it in every stage, as often as the stage counts."""
        if operator not in self.by_operator():
            raise KeyError(operator)
        found = []
        weights = _counted(self, self._weights(name_term)[1:], name_term)
        for (most, usual), costs, means in zip(weights, self.stages, self.mean_stages):
            for cost, mean in zip(costs, means):
                if cost.op.name == operator:
                    found.append(most * self._runs(cost) + usual * self._runs(mean))
        return total(found, "kernels")

    def _runs(self, cost: OpCost) -> Num:
        """Seconds of all runs of a kernel, with their terms."""
        one = time_terms(cost.op, *self.deployment.runs_on(cost.op))
        seconds: Num = name_term(one, "one run", "s") * name_term(cost.op.count, "runs")
        return seconds

    def by(self, prefix: str) -> Num:
        """Seconds of the operators whose dotted name begins with ``prefix``."""
        return sum((t for n, t in self.by_operator().items() if n == prefix or n.startswith(f"{prefix}.")), start=0.0)

    def by_bound(self) -> dict[Bound, float]:
        """Seconds of kernels by what binds them (of a grid: summed over it); with the host they are the wall time."""
        totals: dict[Bound, float] = defaultdict(float)
        weights = _counted(self, self.step_time.weights[1:])
        for (most, usual), costs, means in zip(weights, self.stages, self.mean_stages):
            for cost, mean in zip(costs, means):
                totals[cost.bound] += float(np.sum(most * cost.total + usual * mean.total))
        return dict(totals)

    @property
    def bound(self) -> Bound:
        """The resource that binds most of the time."""
        totals = self.by_bound()
        return max(totals, key=lambda name: totals[name])

    def by_basis(self) -> dict[str, float]:
        """The share of kernel time by what its constants rest on."""
        totals: dict[str, float] = defaultdict(float)
        for cost in self.costs:
            totals[cost.basis] += float(np.sum(cost.total))
        whole = sum(totals.values()) or 1.0
        return {basis: time / whole for basis, time in totals.items()}

    @cached_property
    def band(self) -> Band | None:
        """Factors on its time between which 80 % of measurements of its kernels lie; ``None`` when not known.

        The bands of the operators weighted by their time, as if all were off together. Unknown when operators without a
        held-out error take more than :data:`UNKNOWN_SHARE` of it.
        """
        low, high = self._band(lambda cost: float(np.sum(cost.total)))
        return None if np.isnan(low) else (float(low), float(high))

    def bands(self) -> tuple[Num, Num]:
        """:attr:`band` at each point of a grid; NaN where it is not known."""
        return self._band(lambda cost: cost.total)

    def _band(self, seconds: Callable[[OpCost], Num]) -> tuple[Num, Num]:
        whole, known, low, high = 0.0, 0.0, 0.0, 0.0
        for cost in self.costs:
            time: Any = seconds(cost)
            whole = whole + time
            if cost.band is not None:
                known = known + time
                low = low + time * cost.band[0]
                high = high + time * cost.band[1]
        enough = (whole > np.zeros(())) & (known >= (1.0 - UNKNOWN_SHARE) * whole)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(enough, np.divide(low, known), np.nan), np.where(enough, np.divide(high, known), np.nan)

    @property
    def mfu(self) -> Num:
        """Model FLOP utilisation: ``flop/(time*peak*ranks)``."""
        return self._mfu()

    @property
    def mbu(self) -> Num:
        """Model bandwidth utilisation: ``(weights + state read)/(time*bandwidth*ranks)``."""
        return self._mbu()

    def _mfu(self, name: Naming = plain) -> Num:
        math = self.deployment.math
        peak = name(self.deployment.hardware.peak_of(math), "peak", "FLOP/s", ("hardware", "peak", math))
        return name(self.flop, "flop", "FLOP", ("part", "flop")) / self._possible(peak, name)

    def _mbu(self, name: Naming = plain) -> Num:
        field = ("hardware", "memory", "bandwidth")
        bandwidth = name(self.deployment.hardware.memory.bandwidth, "bandwidth", "B/s", field)
        return name(self.resident, "weights and state read", "B") / self._possible(bandwidth, name)

    def _possible(self, rate: Num, name: Naming) -> Num:
        """What all ranks could do in the time of the step at a rate."""
        ranks = name(self.deployment.parallel.ranks, "ranks", "", ("parallel", "ranks"))
        return name(self.time, "time", "s", ("part", "time")) * rate * ranks


def over_ranks(phase: Phase, quantity: Callable[[OpCost], Num], unit: str, name: Naming = plain) -> Num:
    """A quantity of one run of each operator, over all runs on all ranks of the replica in all batches of the step."""
    return phase._sum(quantity, unit, name)


def by_place(phase: Phase) -> dict[Place, Num]:
    """Seconds of kernels by where they run: on the device, on its host, on the link between them."""
    totals: dict[Place, Num] = {"device": 0.0, "host": 0.0, "link": 0.0}
    for cost in phase.costs:
        totals[cost.op.place] = totals[cost.op.place] + cost.total
    return totals


def _counted(phase: Phase, weights: list[tuple[Num, Num]], name: Naming = plain) -> list[tuple[Num, Num]]:
    """How often the seconds of each stage's kernels count, whose station counts as ``weights`` say: of overlapping
    halves what they do not hide."""
    if phase.deployment.two_batches is None:
        return weights

    def seen(costs: Sequence[OpCost], halves: Num) -> Num:
        share = _seen(phase.deployment, ((cost.op, cost.all_runs) for cost in costs), halves)
        return share if name is plain else name(float(np.max(share)), "share that overlapping halves do not hide")

    most, usual = phase.halves
    pairs = zip(weights, phase.stages, phase.mean_stages)
    return [(a * seen(costs, most), b * seen(means, usual) if np.any(b) else b) for (a, b), costs, means in pairs]


def host_seconds(deployment: Deployment, sequences: Num, name: Naming = plain) -> Num:
    """Seconds in which a rank's own scheduler handles a batch of ``sequences``: ``host + sequence*sequences``.

    Each attention rank is an engine process with a scheduler of its own (vLLM ``--data-parallel-size``, SGLang
    ``--enable-dp-attention``), so the sequences are those of one rank.
    """
    step = deployment.step
    each = name(step.sequence, "each sequence", "s", ("step", "sequence")) * name(sequences, "sequences of a batch")
    return name(step.host, "a step", "s", ("step", "host")) + each


def layer_seconds(deployment: Deployment, layers: int, name: Naming = plain) -> Num:
    """Fixed seconds of the layers of a stage, each by the constants of the side that computes it."""
    there = 0 if deployment.offload is None else deployment.offload.layers
    each = name(deployment.calibration.step.layer, "each layer", "s", ("step", "layer"))
    seconds: Num = each * name(layers - there, "layers")
    if deployment.offload is None:
        return seconds
    if there:
        slower = deployment.offload.host.calibration.step.layer
        each = name(slower, "each layer of the host", "s", ("host", "step", "layer"))
        seconds = seconds + each * name(there, "its layers")
    if deployment.offload.waits:
        waits = name(deployment.offload.waits, "each layer of experts there waits", "s", ("host", "own", "waits"))
        seconds = seconds + waits * name(deployment.offload.apart, "layers of experts there")
    return seconds


def stage_seconds(
    deployment: Deployment, stages: Sequence[Sequence[OpCost]], layers: Sequence[int], halves: Num = 1.0
) -> list[Any]:
    """Seconds of one batch on each stage: its kernels, and the fixed seconds of its layers.

    halves: 2 where the batch was cut into two halves that overlap (:class:`Overlap`).

    Raises ``NotFiniteError``, which names the operator, for a price that is not a number.
    """
    known: dict[int, Num] = {}
    seconds: list[Num] = []
    for costs, count in zip(stages, layers):
        if id(costs) not in known:
            priced = ((cost.op, cost.all_runs) for cost in costs)
            known[id(costs)] = kernel_seconds(deployment, costs) * _seen(deployment, priced, halves)
        seconds.append(known[id(costs)] + layer_seconds(deployment, count))
    return seconds


def kernel_seconds(deployment: Deployment, costs: Sequence[OpCost]) -> Num:
    """Seconds of kernels one after another. Raises ``NotFiniteError``, which names the first whose price is none."""
    seconds = dense(sum_arrays(cost.all_runs for cost in costs))
    if not np.all(np.isfinite(seconds)):
        require_finite(deployment, costs)
    return seconds


def _seen(deployment: Deployment, priced: Iterable[tuple[Op, Num]], halves: Num) -> Num:
    """The share of kernel seconds that two halves do not hide behind each other (:class:`Overlap`); 1 of others.
    priced: operators with their seconds."""
    if deployment.two_batches is None:
        return 1.0
    priced = list(priced)
    both = dense(sum_arrays(spent for _, spent in priced))
    parts = [[spent for op, spent in priced if overlap_part(op) == part] for part in OVERLAP_PARTS]
    seconds = (dense(sum_arrays(part)) for part in parts)
    left = overlap_of(deployment, [op for op, _ in priced]).seconds(*seconds)
    share: Num = np.where(halves > 1.0, left / np.maximum(both, 1e-300), 1.0)
    return share


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """How far the computation of one half batch and the exchange of the other hide each other.

    computes: the share of an exchange in which its kernels hold all multiprocessors. shows: the share of the shorter of
    both by which they slow each other. experts_hide: routed experts have an exchange beside them.
    """

    computes: float = 0.0
    shows: float = 0.0
    experts_hide: bool = True

    def slot(self, own: Num, wire: Num) -> Num:
        """Seconds of a computation beside an exchange."""
        return np.maximum(wire, own + self.computes * wire) + self.shows * np.minimum(own, wire)

    def seconds(self, *parts: Num) -> Num:
        """Seconds of two half batches, from those of both in each of ``OVERLAP_PARTS`` of their layers.

        While the rows of one are dispatched the other computes what comes before, then the first what comes after; so
        with the combine, beside which shared experts run. Where experts hide nothing, shared experts and the next
        projections run beside the dispatch, attention beside the combine.
        """
        projections, attention, shared, dispatch, experts, combine, alone = parts
        if not self.experts_hide:
            return self.slot(shared + projections, dispatch) + self.slot(attention, combine) + experts + alone
        before = projections + attention
        beside_dispatch = self.slot(before, dispatch) + self.slot(experts, dispatch)
        beside_combine = self.slot(experts + shared, combine) + self.slot(before + shared, combine)
        return (beside_dispatch + beside_combine) / 2.0 + alone


def overlap_of(deployment: Deployment, ops: Iterable[Op]) -> Overlap:
    """How the halves of a step of these operators overlap; perfectly on an ideal device."""
    modes = {op.mode for op in ops if isinstance(op, Exchange)}
    if deployment.calibration.basis == "roofline" or not modes:
        return Overlap()
    (mode,), rules = modes, deployment.engine.exchange  # dispatch and combine of a step run in one
    return Overlap(
        computes=rules.computes.get(mode, 0.0),
        shows=rules.shows.get(mode, 0.0),
        experts_hide=mode not in rules.experts_apart,
    )


def require_finite(deployment: Deployment, costs: Sequence[OpCost]) -> None:
    """Raise ``NotFiniteError`` for the first operator whose price is no number."""
    for cost in costs:
        if not np.all(np.isfinite(cost.total)):
            raise NotFiniteError(
                f"the price of {cost.op.name} on {deployment.describe()} is not a finite number",
                because=f"{cost.work.flop} FLOP and {cost.work.bytes} bytes came to {cost.total} s",
                hint="this is a defect of inferplan or of the constants: please report the command that shows it",
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Batches:
    """The batches in flight of which one step of a replica is made, each as one attention rank has it.

    fullest: the batch that holds most, on the rank that has most of it. beside: the same batch on the mean rank. mean:
    the mean batch on the mean rank. Without them all ranks, and all batches, are alike. microbatches: how many.
    """

    fullest: Step
    beside: Step | None = None
    mean: Step | None = None
    microbatches: Num = 1.0


def price_batches(deployment: Deployment, batches: Batches, flow: Flow = "pass") -> Phase:
    """Price every operator of the batches of a step; ``flow`` says how they pass the stages."""
    stages = build_rank(deployment, batches.fullest, batches.beside)
    priced = _priced(deployment, stages)
    mean = batches.mean
    of_mean = stages if mean is None else build_rank(deployment, mean)
    return Phase(
        deployment=deployment,
        stages=priced,
        mean_stages=priced if mean is None else _priced(deployment, of_mean),
        layers=tuple(stage.layers for stage in stages),
        sequences=(batches.fullest.sequences, (mean or batches.fullest).sequences),
        microbatches=batches.microbatches,
        flow=flow,
        mean_step=mean or batches.fullest,
        halves=(stages[0].halves, of_mean[0].halves),
    )


def time_batches(deployment: Deployment, batches: Batches, flow: Flow = "pass") -> StepTime:
    """The time of :func:`price_batches`."""
    return time_together([deployment], [batches], flow)[0]


def time_together(
    deployments: Sequence[Deployment], batches: Sequence[Batches], flow: Flow = "pass", shared: Shared | None = None
) -> list[StepTime]:
    """The times of :func:`price_batches` for deployments that differ in their number of stages alone.

    Of grids all their batches, the fullest and the mean ones, are priced as one; what a part of several stages takes
    (:attr:`Stage.parts`) is added up once. shared: what others that were priced before have in common with them.
    """
    shared = shared or Shared()
    steps = [step for each in batches for step in (each.fullest, each.mean) if step is not None]
    whole = _stacked(steps, shared)
    if whole is None:
        return [price_batches(one, each, flow).step_time for one, each in zip(deployments, batches)]
    beside = batches[0].beside
    if len(steps) > 1 and any(each.beside is not None for each in batches):
        others = [step for each in batches for step in (each.beside or each.fullest, each.mean) if step is not None]
        beside = _stacked(others, shared)
    runs, parts = shared.runs_on(deployments[0]), dict[int, Num]()
    times, start = [], 0
    for one, each, stages in zip(deployments, batches, shared_ranks(deployments, whole, beside, shared)):
        own = [step for step in (each.fullest, each.mean) if step is not None]
        chosen, start = slice(start, start + len(own)), start + len(own)
        seconds = _stages_together(one, stages, (runs, parts), chosen if len(steps) > 1 else None)
        stations = [
            (
                host_seconds(one, step.sequences),
                *(stage if len(steps) == 1 else stage[min(row, len(stage) - 1)] for stage in seconds),
            )
            for row, step in enumerate(own)
        ]
        times.append(StepTime(fullest=stations[0], mean=stations[-1], microbatches=each.microbatches, flow=flow))
    return times


def _stacked(steps: list[Step], shared: Shared) -> Step | None:
    """The steps as one; ``None`` where they are no grids."""
    return steps[0] if len(steps) == 1 else shared.of(tuple(steps), "stacked", lambda: stack_steps(steps))


def _stages_together(
    deployment: Deployment,
    stages: list[Stage],
    known: tuple[dict[OperatorRun, Num], dict[int, Num]],
    chosen: slice | None,
) -> list[Any]:
    """:func:`stage_seconds` of the chosen rows, along the first axis, of what is priced together; of all without.

    known: seconds of runs, and of the parts of stages by their ``id``.
    """
    runs, parts = known
    seconds: dict[int, Num] = {}
    for stage in stages:
        if id(stage) in seconds:
            continue
        kernels: Num = 0.0
        for ops, times in stage.parts:
            if id(ops) not in parts:
                parts[id(ops)] = dense(sum_arrays(_run_seconds(deployment, op, runs) for op in ops))
                if not np.all(np.isfinite(parts[id(ops)])):
                    require_finite(deployment, costs_of(deployment, ops, {}))
            kernels = kernels + parts[id(ops)] * times
        if deployment.two_batches is not None:
            priced = [(op, _run_seconds(deployment, op, runs)) for op in stage.ops]
            kernels = kernels * _seen(deployment, priced, stage.halves)
        rows = kernels if chosen is None else take_rows(kernels, chosen)
        seconds[id(stage)] = rows + layer_seconds(deployment, stage.layers)
    return [seconds[id(stage)] for stage in stages]


def _run_seconds(deployment: Deployment, op: Op, runs: dict[OperatorRun, Num]) -> Num:
    """Seconds of all runs of an operator in the step. runs: seconds of each run that is known, to which it adds."""
    run = op.run
    if run not in runs:
        runs[run] = price(op, *deployment.runs_on(op)).spent.total
    return runs[run] * op.count


def _priced(deployment: Deployment, stages: list[Stage]) -> tuple[tuple[OpCost, ...], ...]:
    """The costs of the operators of each stage; a run that several of them make is priced once."""
    runs: dict[OperatorRun, OpCost] = {}
    known = {id(stage): costs_of(deployment, stage.ops, runs) for stage in {id(one): one for one in stages}.values()}
    return tuple(known[id(stage)] for stage in stages)


def costs_of(deployment: Deployment, ops: Sequence[Op], runs: dict[OperatorRun, OpCost]) -> tuple[OpCost, ...]:
    """The costs of operators; a run that is not known is priced and put in ``runs``."""

    def cost(op: Op) -> OpCost:
        run = op.run
        if run not in runs:
            runs[run] = price(op, *deployment.runs_on(op))
            return runs[run]
        return runs[run].of(op)

    return tuple(map(cost, ops))


def run_step(deployment: Deployment, step: Step) -> Phase:
    """One batch of a replica through all pipeline stages, nothing beside it; attention ranks share its sequences."""
    fullest, mean = rank_steps(deployment, step)
    return price_batches(deployment, Batches(fullest=fullest, beside=mean, mean=mean))


def in_batches(deployment: Deployment, batch: Num, step: Callable[[Num], Step]) -> Batches:
    """A replica's ``batch`` sequences as an engine spreads them: over attention ranks, then over batches in flight.

    A rank has at most ``ceil(batch/dp)`` sequences, in ``min(pp, those)`` batches of whole sequences: a prompt is never
    cut here, and an engine keeps no more batches in flight than it has stages. ``step(n)``: that of ``n`` sequences.
    """
    pp, dp = deployment.parallel.pp, deployment.parallel.dp
    if pp == dp == 1:
        return Batches(fullest=step(batch))
    fewest = np.floor(batch / dp) if dp > 1 else batch
    own = np.ceil(batch / dp) if dp > 1 else batch
    microbatches: Num = 1.0 if pp == 1 else np.minimum(float(pp), own)
    fullest = own if pp == 1 else np.ceil(own / microbatches)
    fuller = batch - dp * fewest  # ranks that have one sequence more than the others
    beside = (fuller * fullest + (dp - fuller) * (fewest if pp == 1 else np.ceil(fewest / microbatches))) / dp
    mean = batch / dp / microbatches
    return Batches(
        fullest=step(fullest),
        beside=step(beside) if np.any(beside != fullest) else None,
        mean=step(mean) if np.any(mean != fullest) else None,
        microbatches=microbatches,
    )


def prompt_drain(deployment: Deployment, batch: Num, new: Num, past: Num = 0.0, all_logits: bool = False) -> Phase:
    """The prompts of a whole batch: ``new`` tokens each behind ``past`` cached ones, in batches that fill and drain."""

    def step(sequences: Num) -> Step:
        whole = prefill(sequences, new, past)
        return replace(whole, logits=whole.tokens) if all_logits else whole

    return price_batches(deployment, in_batches(deployment, batch, step), "drain")


def decode_cycle(deployment: Deployment, batch: Num, past: Num, width: Num = 1.0, source: Num | None = None) -> Phase:
    """One decode step of a whole batch, ``width`` new tokens for each sequence, in batches that take turns.

    source: how many of the past tokens an encoder has read, where there is one.
    """

    def step(sequences: Num) -> Step:
        segment = Segment(batch=sequences, new=width, past=past, source=source)
        return Step(segments=(segment,), logits=sequences * width)

    return price_batches(deployment, in_batches(deployment, batch, step), "cycle")


def media_seconds(deployment: Deployment, sets: Num) -> Num:
    """Seconds of the towers' pass by itself over so many sets of what requests carry."""
    costs = [price(op, *deployment.runs_on(op)) for op in media_ops(deployment, sets)]
    require_finite(deployment, costs)
    return sum((cost.total for cost in costs), start=sets * 0.0)


def prefill_phase(deployment: Deployment, load: StaticLoad) -> Phase:
    """The whole batch's prompts."""
    return prompt_drain(deployment, load.batch, load.prompt, 0.0, load.all_logits)


def decode_phase(deployment: Deployment, load: StaticLoad, past: Num) -> Phase:
    """One decode step of the whole batch; without a KV cache everything before it is computed again."""
    if load.kv_cache:
        return decode_cycle(deployment, load.sequences, past, source=load.prompt)
    batches = in_batches(deployment, load.sequences, lambda sequences: recompute(sequences, past))
    return price_batches(deployment, batches, "cycle")
