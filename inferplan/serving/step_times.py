"""Step times for event loops: the roofline's own prices, put into tables once and read back in a microsecond.

Every entry is the price of an operator that :func:`inferplan.estimate.graph.build_rank` wrote down; nothing is modelled
here. The operators of a step that holds decodes and prompts fall into groups, found by pricing probe steps and not by
name:

- those that see only the sum of rows (every matmul): a table over the rows of the step, exact at every integer;
- experts under attention data parallelism, which see the rows of all ranks: a table of their own, as exact;
- the exchange with those experts, which lasts until the fullest rank has sent and the busiest one received: two tables;
- those of the head, which see the rows of logits: exact at every integer;
- those of one segment (attention, scans): a table over (batch, context) for decodes, over (prompts, new, past) for
  prompts, with linear interpolation between knots that are 12 to 25 % apart.

Layers may write down other operators for prompts of few new tokens (latent attention does), so there are two sets of
tables where that is so. ``tests/serving/test_step_times.py`` holds them to :mod:`inferplan.estimate.phase`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from math import inf
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import OVERLAP_PARTS, Stage, build_rank, overlap_part
from inferplan.estimate.phase import Overlap, costs_of, launch_times, layer_seconds, overlap_of, require_finite
from inferplan.estimate.roofline import OpCost, price
from inferplan.serving.launches import eager_floors
from inferplan.units import Array, Num
from inferplan.work.ops import Attention, Exchange, Op, OperatorRun
from inferplan.work.step import WIDE, Segment, Step

T = TypeVar("T")
PromptGrid = list[list[list[float]]]
_Place = tuple[int, float, int, int, float, float]
"""Between which entries of such a grid, and how far from the first of them: by prompts; by new and past tokens."""
Lines = list[tuple[float, float]]
"""Seconds over contexts, a line from knot to knot: its seconds at context 0, and its slope. The first entry is for
contexts below the first knot, which take the seconds of that; beyond the last knot the last line goes on."""
DENSE_ROWS = 256
"""Up to this batch every integer is priced; beyond, every 3 %."""
_PROMPTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0)
_NOBODY = 1e-6
"""Rows of the mean rank over those of one that is as good as alone."""
_ROOM = 2**15
"""Tokens of the largest step that is priced at every integer."""


class Chunk(NamedTuple):
    """Prompts in one step: how many, their new tokens in all, and the query-key pairs of their attention."""

    prompts: int
    tokens: float
    pairs: float
    completed: Sequence[int] = ()
    """Requests whose prompt is in the cache when the step is over."""
    partial: int | None = None
    """The request that has a piece of its prompt in the step, and more to come."""


NO_PROMPTS = Chunk(0, 0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Which operators of a step of two segments (decodes, prompts) see what; indices into one stage's list."""

    shared: tuple[int, ...] = ()
    """See the sum of the rows of both segments."""
    experts: tuple[int, ...] = ()
    """See the rows of all attention ranks."""
    exchanges: tuple[int, ...] = ()
    """See the rows of this rank and those of all."""
    head: tuple[int, ...] = ()
    decode: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    """Of the operators that are not the prompts' own, with their kernels: the same names have the same prices."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Probe:
    """A step of one rank: decodes (batch, past), prompts (batch, new, past), logits, and the rows of other ranks."""

    decode: tuple[Num, Num] = (64.0, 3000.0)
    prompt: tuple[Num, Num, Num] = (1.0, 2048.0, 512.0)
    rows: Num = 9.0
    beside: Num = 1.0
    """Rows of the mean rank over those of this one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pricer:
    """Builds and prices steps of decodes beside prompts, none of them empty; ``width`` tokens for each decode.

    source: tokens behind each decode that an encoder has read, where there is one.
    """

    deployment: Deployment
    width: float
    source: float | None = None

    def build(self, probe: _Probe) -> list[Stage]:
        """The operators of every stage."""

        def step(share: Num) -> Step:
            decode = Segment(batch=probe.decode[0] * share, new=self.width, past=probe.decode[1], source=self.source)
            prompt = Segment(batch=probe.prompt[0] * share, new=probe.prompt[1], past=probe.prompt[2], media=True)
            return Step(segments=(decode, prompt), logits=probe.rows)

        alike = isinstance(probe.beside, float) and probe.beside == 1.0
        return build_rank(self.deployment, step(1.0), None if alike else step(probe.beside), alternatives=True)

    def seconds(self, chosen: list[tuple[int, ...]], probe: _Probe) -> list[Array]:
        """Seconds of the operators at the indices ``chosen`` of each stage; stages that are alike are priced once."""
        known: dict[int, Array] = {}
        runs: dict[OperatorRun, OpCost] = {}
        result = []
        for stage, indices in zip(self.build(probe), chosen):
            if id(stage) not in known:
                costs = costs_of(self.deployment, [stage.ops[i] for i in indices], runs)
                total = np.asarray(sum((cost.total for cost in costs), start=np.float64(0.0)))
                if not np.all(np.isfinite(total)):
                    require_finite(self.deployment, costs)
                known[id(stage)] = total
            result.append(known[id(stage)])
        return result


_FLAGS = ("tiers", "scheduler", "block_size", "memory_fraction")
"""Defaults of an engine that its flags change: they say what is in a step and what the memory holds, not what a step
takes."""
_COMPARED_APART = {"model", "hardware", "calibration", "parallel", "engine"}


def steps_alike(one: Deployment, other: Deployment) -> bool:
    """Whether the same step takes the same on both: they differ in flags of the engine and in the number of replicas,
    or in nothing. What is large has to be the same object."""
    if one.model is not other.model or one.hardware is not other.hardware or one.calibration is not other.calibration:
        return False
    names = [part.name for part in fields(Deployment) if part.name not in _COMPARED_APART]
    if any(getattr(one, name) != getattr(other, name) for name in names):
        return False
    if one.parallel != replace(other.parallel, replicas=one.parallel.replicas):
        return False
    flags = {name: getattr(other.engine.defaults, name) for name in _FLAGS}
    defaults = one.engine.defaults.model_copy(update=flags)
    return one.engine is other.engine or one.engine.model_copy(update={"defaults": defaults}) == other.engine


class Kept(Generic[T]):
    """What was worked out last, ``most`` times, from a deployment and something beside it."""

    def __init__(self, most: int) -> None:
        self.entries: deque[tuple[Deployment, object, T]] = deque(maxlen=most)

    def get(self, deployment: Deployment, beside: object, make: Callable[[], T]) -> T:
        """What is known of a deployment whose :func:`steps_alike`, else what is made now."""
        for other, known, found in list(self.entries):
            if known == beside and steps_alike(other, deployment):
                return found
        found = make()
        self.entries.append((deployment, beside, found))
        return found


_GROUPED = Kept[list[Grouping]](64)


def group_operators(
    deployment: Deployment, width: float, new: float = 2048.0, counts: Callable[[Op], bool] | None = None
) -> list[Grouping]:
    """Sort each stage's operators by what they see, from probe steps that differ in one thing each.

    new: tokens of the probe's prompt: more or fewer than ``WIDE``, where layers write down other operators. counts:
    which operators are sorted; all of them without.
    """
    pricer = _Pricer(deployment=deployment, width=width)
    base = _Probe(prompt=(1.0, new, 512.0))
    wide = new > WIDE
    moved = 32.0 * width * (deployment.parallel.cp if wide else 1)  # rows that leave the decodes and join the prompts
    probes = {
        "base": base,
        "rows": replace(base, rows=17.0),
        "beside": replace(base, beside=0.5),
        "same_sum": replace(base, decode=(32.0, 5000.0), prompt=(1.0 + moved / new, new, 800.0)),
        "decodes": replace(base, decode=(48.0, 7000.0)),
        "prompt": replace(base, prompt=(2.0, new - 3.0, 700.0)),
    }
    if deployment.parallel.dp == 1:
        del probes["beside"]
    built = {name: pricer.build(probe) for name, probe in probes.items()}
    works = {name: _works(stages) for name, stages in built.items()}
    result = []
    for stage in range(deployment.parallel.pp):
        kinds = ("shared", "experts", "exchanges", "head", "decode", "prompt")
        groups: dict[str, list[int]] = {kind: [] for kind in kinds}
        for index, work in enumerate(works["base"][stage]):
            if counts is not None and not counts(built["base"][stage].ops[index]):
                continue
            unchanged = {name for name, stages in works.items() if _close(work, stages[stage][index])}
            here = built["base"][stage].ops[index].place == "device"  # elsewhere the rows of all say what runs
            if here and not all(stages[stage][index][-1] for stages in works.values()):
                name = "prompt"  # a form that latent attention takes for some prompts and not for others
            elif "rows" not in unchanged:
                name = "head"
            elif "beside" in probes and "beside" not in unchanged:
                name = "exchanges" if isinstance(built["base"][stage].ops[index], Exchange) else "experts"
            elif "same_sum" in unchanged:
                name = "shared"
            else:
                name = "decode" if "prompt" in unchanged else "prompt"
                assert name == "decode" or "decodes" in unchanged, "an operator sees both segments, and not their sum"
            groups[name].append(index)
        ops = built["base"][stage].ops
        names = tuple(f"{op.name} {op.kernel}" for index, op in enumerate(ops) if index not in groups["prompt"])
        result.append(Grouping(**{name: tuple(indices) for name, indices in groups.items()}, names=names))
    return result


def _works(stages: list[Stage]) -> list[list[tuple[float, ...]]]:
    """FLOP, bytes, wire and count of every operator of every stage."""
    return [
        [(float(w.flop), float(w.bytes), float(w.wire), float(op.count)) for op in stage.ops for w in (op.work(),)]
        for stage in stages
    ]


def _close(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    return all(abs(a - b) <= 1e-9 * max(abs(a), abs(b)) for a, b in zip(first, second))


def _knots(start: float, stop: float, ratio: float) -> list[float]:
    """Whole numbers from ``start`` to ``stop`` in steps of ``ratio``, each at least one apart."""
    values = [start]
    while values[-1] < stop:
        values.append(float(min(max(values[-1] + 1, np.ceil(values[-1] * ratio)), stop)))
    return values


@dataclass(kw_only=True, eq=False)
class StageTable:
    """The tables of one pipeline stage, for one batch that passes it."""

    shared: list[float]
    """Seconds by rows of the step."""
    experts: list[float]
    """Seconds by rows that the mean attention rank brings to the experts, with an exchange that waits for who receives
    most."""
    exchanges: tuple[list[float], list[float]]
    """Seconds of an exchange by rows of the mean rank until who receives most is done; by rows of a rank until it has
    sent."""
    head: list[float]
    """Seconds by sequences that need logits."""
    batch_knots: list[float]
    decode_grid: Array
    prompt_grid: PromptGrid
    """Seconds of the prompt segments, by number of prompts, new and past knot."""
    layers: float
    """Fixed seconds of the stage, for its layers."""
    launch: tuple[float, float] = (0.0, 0.0)
    """Seconds more of narrow prompts, and of wide ones, where no decodes are beside them whose kernels they join."""
    cut: list[StageTable] = field(default_factory=list)
    """Parts of two halves of the batch (:data:`inferplan.estimate.graph.OVERLAP_PARTS`), where the engine overlaps
    those."""
    alone: dict[float, float] = field(default_factory=dict)
    """Seconds of the prompt segment of one whole prompt by its tokens, filled when they are first asked for."""
    segments: dict[int, Lines] = field(default_factory=dict)
    """Seconds of the decode segment by batch, filled when they are first asked for."""
    passes: dict[int, Lines] = field(default_factory=dict)
    """Seconds of a step that only decodes, without the experts, by batch, filled the same way."""


class StepPrice:
    """Seconds of the steps of one engine, or of one of its batches in flight. Who changes a price has to say no more
    than what the stations take."""

    host: float
    """Seconds of the host in every step."""
    host_sequence: float
    """Seconds of the host for each sequence of a step."""

    def stations(
        self, batch: float, context: float, chunk: Chunk = NO_PROMPTS, beside: float | None = None
    ) -> list[float]:
        """Seconds of a batch of decodes with a mean context, and of the prompts of ``chunk``, on each station: the
        host, then every stage. beside: rows that the mean attention rank brings to the experts, where ranks hold
        different batches.
        """
        raise NotImplementedError

    @property
    def verification(self) -> StepPrice:
        """The same steps without the passes of drafts; itself where there are none."""
        return self

    def decode(self, batch: int, context: float) -> float:
        """A step of ``batch`` decodes whose mean context is ``context`` tokens, through all stages."""
        return sum(self.stations(batch, context))

    def mixed(self, batch: int, context: float, chunk: Chunk) -> float:
        """A step of ``batch`` decodes beside the prompts of ``chunk``, through all stages."""
        return sum(self.stations(batch, context, chunk))

    def behind(self, batch: int, chunk: Chunk = NO_PROMPTS) -> float:
        """Seconds for which the host is busy with a batch after it has sent it on."""
        return 0.0


@dataclass(kw_only=True, eq=False)
class StepTimes(StepPrice):
    """Seconds of any batch of one attention rank of a deployment. Build with :func:`step_times`.

    ``width`` new tokens for each decode (1; ``k + 1`` when verifying drafts). ``drafts``: tables of a draft model and
    how many such steps it runs ahead of each step.
    """

    narrow: list[StageTable]
    """Of steps whose prompts, if there are any, are no longer than ``WIDE`` tokens each."""
    wide: list[StageTable]
    contexts: list[float]
    new_knots: list[float]
    past_knots: list[float]
    width: int
    host: float
    host_sequence: float
    floors: list[float]
    """Seconds in which the kernels of each stage are launched one by one, in steps that hold prompts."""
    graph_floors: list[float] = field(default_factory=lambda: [0.0])
    """The same of steps whose kernels are replayed from graphs: of the layers that these leave out."""
    graph_tokens: int = 0
    """Steps of at most so many tokens are replayed from graphs."""
    prompt_share: float = 1.0
    """Rows of a matmul for each token of a wide prompt: context parallelism divides them."""
    cut_from: tuple[int, int] = (0, 0)
    """Rows from which a step that decodes, and one with wide prompts, is cut into two halves."""
    overlap: tuple[Overlap, Overlap] = (Overlap(), Overlap())
    """How the halves of such steps hide each other."""
    drafts: list[tuple[StepTimes, int]] = field(default_factory=list)
    cache: dict[int, Lines] = field(default_factory=dict)
    """Seconds of a step that only decodes, through all stages, by batch."""
    staged: dict[int, list[Lines]] | None = None
    """The lines of all stages at each line of the contexts, by batch; ``None`` for stages cut or with experts apart."""
    segment: tuple[float, float, int] = (inf, -inf, 0)
    """From which context to which the last one asked for is on which line."""
    undrafted: StepTimes | None = field(default=None, repr=False)
    """The same without drafts, once somebody asks."""
    native: list[object] = field(default_factory=list, init=False, repr=False)
    """The tables as :mod:`inferplan.serving.plain_native` reads them, first, once it has."""

    @property
    def verification(self) -> StepTimes:
        if not self.drafts:
            return self
        if self.undrafted is None:
            self.undrafted = replace(self, drafts=[], cache={})
        return self.undrafted

    def decode(self, batch: int, context: float) -> float:
        lines = self.cache.get(batch) or self.decode_lines(batch)
        low, high, at = self.segment
        base, slope = lines[at if low <= context < high else self.line_at(context)]
        return base + slope * context

    def line_at(self, context: float) -> int:
        """Which line a context is on: that of the context before, often."""
        at, knots = bisect_right(self.contexts, context), self.contexts
        self.segment = knots[at - 1] if at else -inf, knots[at] if at < len(knots) else inf, at
        return at

    def mixed(self, batch: int, context: float, chunk: Chunk) -> float:
        prompts, tokens, pairs = chunk.prompts, chunk.tokens, chunk.pairs
        if not tokens or not self.simple:
            return sum(self.stations(batch, context, chunk))
        return self.with_prompts(batch, context, prompts, tokens, pairs)

    def with_prompts(self, batch: int, context: float, prompts: int, tokens: float, pairs: float) -> float:
        """:meth:`mixed` where it is ``simple``, in one piece."""
        wide = tokens > WIDE * prompts
        table = self.wide[0] if wide else self.narrow[0]
        shared, head, last = table.shared, table.head, batch * self.width + prompts
        rows = last - prompts + (tokens * self.prompt_share if wide else tokens)
        row = int(rows)
        seconds = table.layers + (shared[row] if rows == row < len(shared) - 1 else _read(shared, rows))
        seconds += head[last] if last < len(head) else _whole(head, last)
        if prompts == 1 and pairs + pairs == tokens * (tokens + 1):
            seconds += table.alone.get(tokens) or self._alone(table, tokens)
        else:
            seconds += self._prompts(table, prompts, tokens, pairs)
        if batch:
            lines = table.segments.get(batch) or self._segment_lines(table, batch)
            low, high, at = self.segment
            base, slope = lines[at if low <= context < high else self.line_at(context)]
            seconds += base + slope * context
        else:
            seconds += table.launch[wide]
        time = self.host + self.host_sequence * (batch + prompts) + seconds
        floor = (self.floors if batch * self.width + tokens > self.graph_tokens else self.graph_floors)[0]
        return float((time**4 + floor**4) ** 0.25) if floor else time

    def _alone(self, table: StageTable, tokens: float) -> float:
        """The prompt segment of one whole prompt."""
        seconds = table.alone[tokens] = self._prompts(table, 1, tokens, tokens * (tokens + 1) / 2)
        return seconds

    def launches(self, tokens: float) -> list[float]:
        """Seconds in which the kernels of each stage are launched, in a step of so many tokens with a prompt in it."""
        return self.floors if tokens > self.graph_tokens else self.graph_floors

    @cached_property
    def simple(self) -> bool:
        """Whether there is one stage, not cut into halves, without drafts or experts that see other ranks."""
        plain = not any(table.experts or table.cut for table in (*self.wide, *self.narrow))
        return plain and len(self.wide) == 1 and not self.drafts

    def staged_with_prompts(self, batch: int, context: float, chunk: Chunk) -> list[float]:
        """:meth:`stations` of a step that holds prompts where there is ``staged`` and no draft, in one piece."""
        prompts, tokens, pairs, _, _ = chunk
        wide, last = tokens > WIDE * prompts, batch * self.width + prompts
        rows = last - prompts + (tokens * self.prompt_share if wide else tokens)
        row, before, seconds = int(rows), None, 0.0
        place = (
            None if prompts == 1 and pairs + pairs == tokens * (tokens + 1) else _place(self, prompts, tokens, pairs)
        )
        low, high, at = self.segment
        at = at if low <= context < high else self.line_at(context)
        times = [self.host + self.host_sequence * (batch + prompts)]
        for table in self.wide if wide else self.narrow:
            if table is not before:
                shared, head, before = table.shared, table.head, table
                seconds = table.layers + (shared[row] if rows == row < len(shared) - 1 else _read(shared, rows))
                seconds += head[last] if last < len(head) else _whole(head, last)
                if place is None:
                    seconds += table.alone.get(tokens) or self._alone(table, tokens)
                else:
                    seconds += _at_place(table.prompt_grid, place)
                if batch:
                    base, slope = (table.segments.get(batch) or self._segment_lines(table, batch))[at]
                    seconds += base + slope * context
                else:
                    seconds += table.launch[wide]
            times.append(seconds)
        floors = self.launches(batch * self.width + tokens)
        return [float(one) for one in launch_times(times, floors)] if any(floors) else times

    def stations(
        self, batch: float, context: float, chunk: Chunk = NO_PROMPTS, beside: float | None = None
    ) -> list[float]:
        if not chunk.tokens and batch and not self.drafts:
            return self._pass(int(batch), context, beside)
        wide, rows = chunk.tokens > WIDE * chunk.prompts, self.rows(batch, chunk)
        brought = rows if beside is None else beside
        times = [self.host + self.host_sequence * (batch + chunk.prompts)]
        known: dict[int, float] = {}
        for table in self.wide if wide else self.narrow:
            seconds = known.get(id(table))
            if seconds is None:
                seconds = known[id(table)] = self._stage(table, (batch, context), chunk, (rows, brought))
            times.append(seconds)
        for number, (draft, steps) in enumerate(self.drafts):
            own = NO_PROMPTS if number else chunk  # the first step of the draft computes the prompts too
            if batch or own.tokens:
                host, *made = draft.stations(batch, context, own)
                times[0] += steps * host
                for station, seconds in enumerate(made, len(times) - len(made)):  # one stage: beside the last
                    times[station] += steps * seconds
        floors = self.launches(batch * self.width + chunk.tokens)
        if chunk.tokens and any(floors):
            twice = any(self.cut_from) and rows >= self.cut_from[wide]  # each half's kernels
            floors = [2.0 * floor for floor in floors] if twice else floors
            times = [float(seconds) for seconds in launch_times(times, floors)]
        return times

    def rows(self, batch: float, chunk: Chunk = NO_PROMPTS) -> float:
        """Rows that a rank with this batch multiplies, and brings to the experts."""
        wide = chunk.tokens > WIDE * chunk.prompts
        return batch * self.width + chunk.tokens * (self.prompt_share if wide else 1.0)

    def _stage(self, table: StageTable, decodes: tuple[float, float], chunk: Chunk, rows: tuple[float, float]) -> float:
        """Seconds of one stage; ``rows`` of this rank, and of the mean one."""
        batch, context = decodes
        if table.cut and rows[0] >= self.cut_from[chunk.tokens > WIDE * chunk.prompts]:
            parts = [self._stage(part, decodes, chunk, rows) for part in table.cut]
            return table.layers + float(self.overlap[chunk.tokens > WIDE * chunk.prompts].seconds(*parts))
        shared, head, last = table.shared, table.head, int(batch * self.width + chunk.prompts)
        time = table.layers + _read(shared, rows[0]) + (head[last] if last < len(head) else _whole(head, last))
        if table.experts:
            time += _experts(table, *rows)
        if chunk.tokens:
            time += self._prompts(table, chunk.prompts, chunk.tokens, chunk.pairs)
        if batch:
            lines = table.segments.get(int(batch)) or self._segment_lines(table, int(batch))
            low, high, at = self.segment
            base, slope = lines[at if low <= context < high else self.line_at(context)]
            time += base + slope * context
        elif chunk.tokens:
            time += table.launch[chunk.tokens > WIDE * chunk.prompts]
        return time

    def _pass(self, batch: int, context: float, beside: float | None) -> list[float]:
        """Seconds on each station of a step that only decodes."""
        at = bisect_right(self.contexts, context)
        times = [self.host + self.host_sequence * batch]
        if self.staged is not None:
            lines = self.staged.get(batch)
            if lines is None:
                stages = [table.passes.get(batch) or self._pass_lines(table, batch) for table in self.narrow]
                lines = self.staged[batch] = [list(line) for line in zip(*stages)]
            return times + [base + slope * context for base, slope in lines[at]]
        for table in self.narrow:
            if table.cut:
                rows = batch * self.width
                times.append(
                    self._stage(table, (batch, context), NO_PROMPTS, (rows, rows if beside is None else beside))
                )
                continue
            base, slope = (table.passes.get(batch) or self._pass_lines(table, batch))[at]
            time = base + slope * context
            if table.experts:
                rows = batch * self.width
                time += _experts(table, rows, rows if beside is None else beside)
            times.append(time)
        return times

    def _segment_lines(self, table: StageTable, batch: int) -> Lines:
        """The decode segment's own operators."""
        knots = table.batch_knots
        at = min(max(bisect_right(knots, batch) - 1, 0), len(knots) - 2)
        share = (batch - knots[at]) / (knots[at + 1] - knots[at])
        values = table.decode_grid[at] + (table.decode_grid[at + 1] - table.decode_grid[at]) * share
        lines = table.segments[batch] = _lines(self.contexts, values.tolist())
        return lines

    def _pass_lines(self, table: StageTable, batch: int) -> Lines:
        """A whole stage of a step that only decodes, without the experts."""
        rows = batch * self.width
        fixed = table.layers + _read(table.shared, rows) + _whole(table.head, rows)
        found = table.segments.get(batch) or self._segment_lines(table, batch)
        lines = table.passes[batch] = [(base + fixed, slope) for base, slope in found]
        return lines

    def decode_lines(self, batch: int) -> Lines:
        """Seconds of a step that only decodes, through all stages, over contexts; made when first asked for."""
        if self.drafts or any(self.cut_from):
            values = [sum(self.stations(batch, context)) for context in self.contexts]
        else:  # the same sums, for all contexts at once
            values = [self.host + self.host_sequence * batch] * len(self.contexts)
            for table in self.narrow:
                experts = _read(table.experts, batch * self.width) if table.experts else 0.0
                lines = (table.passes.get(batch) or self._pass_lines(table, batch))[1:]
                values = [
                    value + (base + slope * context + experts)
                    for value, (base, slope), context in zip(values, lines, self.contexts)
                ]
        lines = self.cache[batch] = _lines(self.contexts, values)
        return lines

    def _prompts(self, table: StageTable, number: int, tokens: float, pairs: float) -> float:
        """The prompt segments' own operators: equal prompts of the same number, tokens and attention work."""
        return _at_place(table.prompt_grid, _place(self, number, tokens, pairs))


def slowest(of: StepTimes, decodes: Sequence[tuple[int, float]], beside: float) -> list[float]:
    """The longest :meth:`StepTimes.stations` of ranks that only decode, each of a batch and its mean context, to the
    same last bit; without drafts and stages that are cut into halves.
    """
    contexts = of.contexts
    where = [(batch, context, bisect_right(contexts, context)) for batch, context in decodes]
    times = [of.host + of.host_sequence * max([batch for batch, _ in decodes])]
    for table in of.narrow:
        passes, longest, (received, sent) = table.passes, -inf, table.exchanges
        brought = _read(table.experts, beside) if table.experts else 0.0  # :func:`_experts` of each rank
        there = _read(received, beside) if table.experts and sent else 0.0
        for batch, context, at in where:
            base, slope = (passes.get(batch) or of._pass_lines(table, batch))[at]
            time, rows = base + slope * context, batch * of.width
            if table.experts:
                time += brought + max(_read(sent, rows) - there, 0.0) if rows > beside and sent else brought
            if time > longest:  # noqa: PLR1730 (a call takes five times as long)
                longest = time
        times.append(longest)
    return times


def _lines(knots: list[float], values: list[float]) -> Lines:
    """The lines between values at knots."""
    slopes = [(right - left) / (stop - start) for left, right, start, stop in zip(values, values[1:], knots, knots[1:])]
    lines = [(value - slope * knot, slope) for value, slope, knot in zip(values, slopes, knots)]
    return [(values[0], 0.0), *lines, lines[-1]]


def _experts(table: StageTable, rows: float, brought: float) -> float:
    """Seconds of the experts and their exchange for a rank of ``rows`` where the mean rank brings ``brought``."""
    seconds = _read(table.experts, brought)
    received, sent = table.exchanges
    return seconds + max(_read(sent, rows) - _read(received, brought), 0.0) if rows > brought and sent else seconds


def _whole(table: list[float], rows: int) -> float:
    """A table by whole rows, beyond its end in proportion."""
    return table[rows] if rows < len(table) else table[-1] * rows / (len(table) - 1)


def _read(table: list[float], rows: float) -> float:
    """A table by whole rows, between them and beyond its end along a line."""
    whole = int(rows)
    if whole >= len(table) - 1:
        last = len(table) - 1
        return table[last] + (table[last] - table[last // 2]) * (rows - last) / (last - last // 2)
    if whole == rows:
        return table[whole]
    return table[whole] + (table[whole + 1] - table[whole]) * (rows - whole)


def _place(of: StepTimes, number: int, tokens: float, pairs: float) -> _Place:
    """Where prompts lie in every grid."""
    prompts = float(number)
    new = tokens / prompts
    past = max(pairs / tokens - (new + 1) / 2, 0.0)
    news, pasts = of.new_knots, of.past_knots
    i = bisect_right(news, new, 1, len(news) - 1) - 1
    if news[i] <= WIDE < news[i + 1]:  # no line leads from the kernels of narrow prompts to those of wide ones
        i = i - 1 if new <= WIDE else i + 1
    j = bisect_right(pasts, past, 1, len(pasts) - 1) - 1
    x = (new - news[i]) / (news[i + 1] - news[i])
    y = (past - pasts[j]) / (pasts[j + 1] - pasts[j])
    if prompts == 1.0:
        return 0, 0.0, i, j, x, y
    k = min(bisect_right(_PROMPTS, prompts) - 1, len(_PROMPTS) - 2)
    return k, (prompts - _PROMPTS[k]) / (_PROMPTS[k + 1] - _PROMPTS[k]), i, j, x, y


def _at_place(grid: PromptGrid, place: _Place) -> float:
    k, z, i, j, x, y = place
    low = _bilinear(grid[k], i, j, x, y)
    return low + (_bilinear(grid[k + 1], i, j, x, y) - low) * z if k or z else low


def _bilinear(grid: list[list[float]], i: int, j: int, x: float, y: float) -> float:
    low, high = grid[i], grid[i + 1]
    first = low[j] + (low[j + 1] - low[j]) * y
    return first + (high[j] + (high[j + 1] - high[j]) * y - first) * x


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far the tables go: sequences and tokens of a batch of one attention rank, and the longest context.

    source: tokens behind a decode that an encoder has read, on average.
    """

    sequences: int
    tokens: int
    context: int
    source: float | None = None


class PromptPrices(NamedTuple):
    """Seconds of the prompt segments of a stage beside decodes, and what their launch takes where there are none."""

    grid: PromptGrid
    launch: tuple[float, float]
    """Of narrow prompts, and of wide ones."""


class _Knots(NamedTuple):
    contexts: Array
    new: Array
    past: Array


def _from_zero(seconds: Array, least: float) -> Array:
    """Seconds at ``least``, 1, 2, ... rows as a table from 0 rows on, whose first line passes that at ``least``."""
    table = seconds.copy()
    table[0] = seconds[1] - (seconds[1] - seconds[0]) / (1.0 - least)
    return table


def step_times(deployment: Deployment, reach: Reach, width: int = 1) -> StepTimes:
    """The tables of a deployment for steps up to ``reach``; with the engine's eager floor unless it is ideal.

    Raises ``MissingFactError`` for an operator that the device cannot run, ``NotFiniteError`` for a price that is no
    number.
    """
    if deployment.lora is not None and not deployment.lora.in_step:
        raise UsageError("steps with LoRA adapters have times for each number of them", hint="--loras and --lora-skew")
    if deployment.media is not None:  # towers are timed for each request by itself
        deployment = replace(deployment, media=None)
    step = deployment.step
    contexts = _context_knots(deployment, reach.context)
    news = sorted({*map(float, range(1, WIDE + 1)), *_knots(WIDE + 1.0, max(float(reach.tokens), 64.0), 1.12)})
    pasts = [0.0, *_knots(64.0, max(float(reach.context), 128.0), 1.25)]
    knots = _Knots(*(np.asarray(values) for values in (contexts, news, pasts)))
    if deployment.two_batches is None:
        narrow, wide = _stage_tables(deployment, reach, width, knots)
    else:
        narrow, wide = _cut_tables(deployment, reach, width, knots)
    return StepTimes(
        staged=None if any(table.cut or table.experts for table in narrow) else {},
        narrow=narrow,
        wide=wide,
        contexts=contexts,
        new_knots=news,
        past_knots=pasts,
        width=width,
        host=step.host,
        host_sequence=step.sequence,
        floors=eager_floors(deployment),
        graph_floors=eager_floors(deployment, replayed=True),
        graph_tokens=deployment.engine.serving.graph_tokens,
        prompt_share=1.0 / deployment.parallel.cp,
        cut_from=deployment.two_batches or (0, 0),
        overlap=_overlap(deployment),
    )


def _overlap(deployment: Deployment) -> tuple[Overlap, Overlap]:
    """How halves overlap in steps with narrow prompts or none, and with wide ones."""
    if deployment.two_batches is None:
        return Overlap(), Overlap()
    pricer = _Pricer(deployment=deployment, width=1.0)
    narrow, wide = (pricer.build(_Probe(prompt=(1.0, new, 0.0))) for new in (float(WIDE), 2048.0))
    return overlap_of(deployment, narrow[0].ops), overlap_of(deployment, wide[0].ops)


def _stage_tables(
    deployment: Deployment, reach: Reach, width: int, knots: _Knots, counts: Callable[[Op], bool] | None = None
) -> tuple[list[StageTable], list[StageTable]]:
    """The tables of every stage for narrow prompts and for wide ones; of the operators that count, or of all."""
    pricer = _Pricer(deployment=deployment, width=float(width), source=reach.source)
    builder = _TableBuilder(pricer, reach, knots)
    few, many = (
        _GROUPED.get(deployment, (width, new), partial(group_operators, deployment, float(width), new))
        if counts is None
        else group_operators(deployment, float(width), new, counts)
        for new in (float(WIDE), 2048.0)
    )
    prompts = builder.prompts(few, many)
    wide = builder.tables(many, prompts, 64.0)
    alike = [(a.names, a.shared, a.decode) for a in few] == [(b.names, b.shared, b.decode) for b in many]
    alike = alike and not deployment.parallel.redundant  # prompts crowd copies of experts more than decodes do
    return wide if alike else builder.tables(few, prompts, float(WIDE)), wide


def _cut_tables(
    deployment: Deployment, reach: Reach, width: int, knots: _Knots
) -> tuple[list[StageTable], list[StageTable]]:
    """The tables of whole steps, which have those of steps in two halves beside them: computation and wire apart."""

    def cut(*least: int) -> Deployment:
        defaults = deployment.engine.defaults
        wide = defaults.wide.model_copy(update={"two_batches": least or None})
        update = {"wide": wide, "two_batch_overlap": bool(least)}
        engine = deployment.engine.model_copy(update={"defaults": defaults.model_copy(update=update)})
        return replace(deployment, engine=engine)

    whole = _stage_tables(cut(), reach, width, knots)
    for number, name in enumerate(OVERLAP_PARTS):
        part = _stage_tables(cut(0, 0), reach, width, knots, partial(_is_part, name))
        for tables, halves in zip(whole, part):
            for table, half in zip(tables, halves):
                if len(table.cut) == number:  # stages that are alike share a table
                    half.layers = 0.0
                    table.cut.append(half)
    return whole


def _is_part(name: str, op: Op) -> bool:
    return overlap_part(op) == name


def _context_knots(deployment: Deployment, longest: int) -> list[float]:
    """Geometric knots with every window and chunk among them, where time changes its slope."""
    knots = set(_knots(1.0, max(float(longest), 64.0), 1.12))
    bends = {cache.mask.size for cache, _ in deployment.model.caches()}
    if deployment.model.encoder is not None and deployment.model.encoder.frames is not None:
        bends.add(deployment.model.encoder.frames)
    knots |= {float(size) for size in bends if 0 < size < longest}
    return sorted(knots)


class _TableBuilder(NamedTuple):
    """What the tables of a deployment are made from."""

    pricer: _Pricer
    reach: Reach
    knots: _Knots

    def tables(self, groupings: list[Grouping], prompts: list[PromptPrices], new: float) -> list[StageTable]:
        """The tables of every stage, stages that are alike sharing one; ``new`` tokens in a prompt that stands by."""
        pricer, reach, width = self.pricer, self.reach, int(self.pricer.width)
        parallel = pricer.deployment.parallel
        cp = parallel.cp if new > WIDE else 1
        rows = np.arange(1.0, min(reach.tokens + width * reach.sequences, _ROOM) + 2)
        half = _Probe(decode=(rows / 2 / width, 64.0), prompt=(rows / 2 * cp / new, new, 0.0))
        shared = pricer.seconds([group.shared for group in groupings], half)
        base = _Probe(decode=(1.0, 64.0), prompt=(1.0, new, 0.0))
        experts = self._experts(groupings, rows, (new, cp))
        logits = np.arange(1.0, width * reach.sequences + 2)
        head = pricer.seconds([group.head for group in groupings], replace(base, rows=logits))
        batches = [float(b) for b in range(1, min(reach.sequences, DENSE_ROWS) + 1)]
        batches += _knots(float(DENSE_ROWS), float(max(reach.sequences, DENSE_ROWS + 1)), 1.03)[1:]
        if len(batches) == 1:
            batches.append(2.0)
        decodes = replace(base, decode=(np.asarray(batches)[:, None], self.knots.contexts[None, :]))
        decode = pricer.seconds([group.decode for group in groupings], decodes)
        stages = pricer.build(base)
        tables: dict[int, StageTable] = {}
        for index, stage in enumerate(stages):
            if id(stage) in tables:
                continue
            tables[id(stage)] = StageTable(
                shared=[0.0, *np.broadcast_to(shared[index], rows.shape).tolist()],
                experts=(experts[0][index] + experts[1][index]).tolist() if experts else [],
                exchanges=(experts[1][index].tolist(), experts[2][index].tolist()) if experts else ([], []),
                head=[0.0, *np.broadcast_to(head[index], logits.shape).tolist()],
                batch_knots=batches,
                decode_grid=np.broadcast_to(decode[index], (len(batches), len(self.knots.contexts))),
                prompt_grid=prompts[index].grid,
                layers=float(layer_seconds(pricer.deployment, stage.layers)),
                launch=prompts[index].launch,
            )
        return [tables[id(stage)] for stage in stages]

    def _experts(self, groupings: list[Grouping], rows: Array, prompt: tuple[float, int]) -> list[list[Array]]:
        """Seconds, from 0 rows on, of the experts of every stage by rows of the mean attention rank, of their exchange
        where all ranks are alike, and of it where this one sends and the others nothing; empty without experts.

        prompt: tokens of the one that stands by, and ranks that share its rows.
        """
        if not any(group.experts or group.exchanges for group in groupings):
            return []
        pricer, (new, share), width = self.pricer, prompt, self.pricer.width
        least = min(width / pricer.deployment.parallel.dp, 0.5)  # one sequence on one rank, nothing on the others
        brought = np.concatenate([[least], rows])
        base = _Probe(decode=(1.0, 64.0), prompt=(1.0, new, 0.0), beside=brought / (width + new / share))
        alike = _Probe(decode=(brought / 2 / width, 64.0), prompt=(brought / 2 * share / new, new, 0.0))
        exchanges = [group.exchanges for group in groupings]
        priced = (
            pricer.seconds([group.experts for group in groupings], base),
            pricer.seconds(exchanges, alike),
            pricer.seconds(exchanges, replace(alike, beside=_NOBODY)),
        )
        return [[_from_zero(np.broadcast_to(one, brought.shape), least) for one in every] for every in priced]

    def prompts(self, few: list[Grouping], many: list[Grouping]) -> list[PromptPrices]:
        """Seconds of prompts of every stage; narrow and wide ones run different kernels and are priced apart."""
        count = np.asarray(_PROMPTS)[:, None, None]
        news, pasts = self.knots.new, self.knots.past
        parts: list[list[Array]] = []
        for groupings, new in ((few, news[news <= WIDE]), (many, news[news > WIDE])):
            probe = _Probe(decode=(1.0, 64.0), prompt=(count, new[None, :, None], pasts[None, None, :]))
            shape = (len(_PROMPTS), len(new), len(pasts))
            times = self.pricer.seconds([group.prompt for group in groupings], probe)
            parts.append([np.broadcast_to(seconds, shape) for seconds in times])
        grids = [np.concatenate([low, high], axis=1).tolist() for low, high in zip(*parts)]
        launches = zip(self._launches(few, float(WIDE)), self._launches(many, 2048.0))
        return [PromptPrices(grid, launch) for grid, launch in zip(grids, launches)]

    def _launches(self, groupings: list[Grouping], new: float) -> list[float]:
        """Seconds to launch by itself what runs in the kernels of the decodes beside it, for every stage."""
        deployment = self.pricer.deployment
        stages = self.pricer.build(_Probe(prompt=(1.0, new, 0.0)))

        return [
            sum([_own_launch(deployment, stage.ops[i]) for i in group.prompt])
            for stage, group in zip(stages, groupings)
        ]


def _own_launch(deployment: Deployment, op: Op) -> float:
    """What the launch of an operator takes beyond that of one which joins another's kernels."""
    if not (isinstance(op, Attention) and op.joined):
        return 0.0
    joined, alone = (price(kernel, *deployment.runs_on(op)) for kernel in (op, replace(op, joined=False)))
    return float(np.max(alone.total - joined.total))
