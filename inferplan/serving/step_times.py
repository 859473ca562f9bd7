"""Step prices for event loops: the roofline's own prices, put into tables once and read back in a microsecond.

Every entry is the price of an operator that :func:`inferplan.estimate.graph.build` wrote down; nothing is modelled
here. The operators of a step that holds decodes and prompts fall into three groups, found by pricing probe steps and
not by name:

- those that see only the sum of tokens (every matmul): a table over the tokens of the step, exact at every integer;
- those of the head, which see the rows of logits: exact at every integer;
- those of one segment (attention, scans): a table over (batch, context) for decodes, over (prompts, new, past) for
  prompts, with linear interpolation between knots that are 12 to 25 % apart.

``tests/serving/test_step_times.py`` holds the tables to :func:`inferplan.estimate.phase.run_step` within half a
percent.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build
from inferplan.estimate.roofline import price
from inferplan.units import Num
from inferplan.work.ops import Op
from inferplan.work.parallel import split_layers
from inferplan.work.step import WIDE, Segment, Step

Array = npt.NDArray[np.float64]
_DENSE_ROWS = 256
"""Up to this batch every integer is priced; beyond, every 3 %."""
_PROMPTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0)
_ROOM = 2**15
"""Tokens of the largest step that is priced at every integer."""


class Chunk(NamedTuple):
    """Prompts in one step: how many, their new tokens in all, and the query-key pairs of their attention."""

    prompts: int
    tokens: float
    pairs: float


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Which operators of a two-segment step (decode, prompt) see what; indices into one stage's list."""

    shared: tuple[int, ...]
    head: tuple[int, ...]
    decode: tuple[int, ...]
    prompt: tuple[int, ...]


def eager_floor(deployment: Deployment) -> float:
    """Host seconds of a step that holds a prompt: layers launched kernel by kernel (docs/serving.md, host floor).

    Zero where steps are priced at the bare roofline, because nothing else is charged for the host there either.
    """
    model, constants = deployment.model, deployment.engine.serving
    if deployment.calibration.basis == "roofline":
        return 0.0
    experts = any(weight.shard == "experts" for weight, _ in model.weights())
    recurrent = sum(count for cache, count in model.caches() if cache.state)
    per_layer = constants.eager_layer * (constants.eager_moe if experts else 1.0)
    return len(model.sequence) * per_layer + recurrent * constants.eager_linear


_BASE = ((64.0, 3000.0), (2048.0, 512.0))
"""The first probe step: decodes (batch, past) and one prompt (new, past)."""


def group_operators(deployment: Deployment, width: float) -> list[Grouping]:
    """Sort each stage's operators by what they see, from five probe steps that differ in one thing each."""
    decodes, prompt = _BASE
    moved = 32.0 * width  # rows that leave the decodes and join the prompt, whose rows context parallelism divides
    probes = {
        "base": ((decodes, prompt), 9.0),
        "rows": ((decodes, prompt), 17.0),
        "same_sum": (((32.0, 5000.0), (2048.0 + moved * deployment.parallel.cp, 800.0)), 9.0),
        "decodes": (((48.0, 7000.0), prompt), 9.0),
        "prompt": ((decodes, (1500.0, 700.0)), 9.0),
    }
    works = {name: _works(deployment, width, *probe) for name, probe in probes.items()}
    result = []
    for stage in range(deployment.parallel.pp):
        base = works["base"][stage]
        groups: dict[str, list[int]] = {"shared": [], "head": [], "decode": [], "prompt": []}
        for index, work in enumerate(base):
            unchanged = {name for name, stages in works.items() if _close(work, stages[stage][index])}
            if "rows" not in unchanged:
                name = "head"
            elif "same_sum" in unchanged:
                name = "shared"
            else:
                name = "decode" if "prompt" in unchanged else "prompt"
                assert name == "decode" or "decodes" in unchanged, "an operator sees both segments, and not their sum"
            groups[name].append(index)
        result.append(Grouping(**{name: tuple(indices) for name, indices in groups.items()}))
    return result


def _works(
    deployment: Deployment, width: float, load: tuple[tuple[float, float], tuple[float, float]], rows: float
) -> list[list[tuple[float, ...]]]:
    """FLOP, bytes, wire and count of every operator of every stage for a probe step."""
    (batch, behind), (new, past) = load
    segments = (Segment(batch=batch, new=width, past=behind), Segment(batch=1.0, new=new, past=past))
    return [
        [(float(w.flop), float(w.bytes), float(w.wire), float(op.count)) for op in stage.ops for w in (op.work(),)]
        for stage in build(deployment, _for_every_rank(deployment, Step(segments=segments, logits=rows)))
    ]


def _for_every_rank(deployment: Deployment, step: Step) -> Step:
    """The step of one attention rank as that of the replica: all ``dp`` ranks run the same load."""
    dp = deployment.parallel.dp
    segments = tuple(replace(segment, batch=segment.batch * dp) for segment in step.segments)
    return Step(segments=segments, logits=None if step.logits is None else step.logits * dp)


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
    """The tables of one pipeline stage, for one microbatch."""

    shared: list[float]
    """Seconds by tokens of the step."""
    head: list[float]
    """Seconds by sequences that need logits."""
    decode_rows: list[list[float] | None]
    """Seconds of the decode segment by batch and context knot; rows are filled when they are first asked for."""
    batch_knots: list[float]
    decode_grid: Array
    prompt_grid: list[list[list[float]]]
    """Seconds a new token of the prompt segments, by number of prompts, new and past knot."""
    layers: float
    """Fixed seconds of the stage, for its layers."""


@dataclass(kw_only=True, eq=False)
class StepTimes:
    """Seconds of any step of a deployment. ``width`` new tokens for each decode (1; ``k + 1`` when verifying drafts).

    ``drafts``: prices of a draft model and how many such steps it runs ahead of each step.
    Build with :func:`step_times`.
    """

    tables: list[StageTable]
    contexts: list[float]
    new_knots: list[float]
    past_knots: list[float]
    width: int
    host: float
    host_sequence: float
    floor: float
    pipeline: int
    graph_tokens: int = 0
    """Steps of at most so many tokens are replayed from a graph and have no floor."""
    prompt_share: float = 1.0
    """Rows of a matmul for each prompt token: context parallelism divides them."""
    drafts: list[tuple[StepTimes, int]] = field(default_factory=list)
    cache: dict[int, list[float]] = field(default_factory=dict)

    def decode(self, batch: int, context: float) -> float:
        """A step of ``batch`` decodes whose mean context is ``context`` tokens."""
        row = self.cache.get(batch)
        if row is None:
            row = self._decode_row(batch)
        knots = self.contexts
        at = bisect_right(knots, context) - 1
        if at < 0:
            return row[0]
        if at >= len(knots) - 1:
            at = len(knots) - 2
        low = knots[at]
        value = row[at]
        return value + (row[at + 1] - value) * (context - low) / (knots[at + 1] - low)

    def mixed(self, batch: int, context: float, chunk: Chunk) -> float:
        """A step of ``batch`` decodes beside the prompts of ``chunk``."""
        time = self._kernels(batch, context, chunk)
        eager = self.floor and batch * self.width + chunk.tokens > self.graph_tokens
        return float((time**4 + self.floor**4) ** 0.25) if eager else time

    def _kernels(self, batch: int, context: float, chunk: Chunk) -> float:
        """Seconds of a step without the eager floor."""
        sequences = batch + chunk.prompts
        micro = min(self.pipeline, sequences)
        if self.pipeline == 1:
            time = self._stage(self.tables[0], batch, context, chunk)
        else:
            part = Chunk(chunk.prompts, chunk.tokens / micro, chunk.pairs / micro)
            time = max(self._stage(table, batch / micro, context, part, micro) for table in self.tables) * self.pipeline
        time += self.host + self.host_sequence * sequences
        if batch:
            for draft, steps in self.drafts:
                time += steps * draft.decode(batch, context)
        return time

    def _stage(self, table: StageTable, batch: float, context: float, chunk: Chunk, micro: int = 1) -> float:
        tokens = batch * self.width + chunk.tokens * self.prompt_share
        rows = batch * self.width + chunk.prompts / micro
        shared = table.shared
        whole = int(tokens)
        if whole >= len(shared) - 1:
            last = len(shared) - 1
            time = shared[last] + (shared[last] - shared[last // 2]) * (tokens - last) / (last - last // 2)
        elif whole == tokens:
            time = shared[whole]
        else:
            time = shared[whole] + (shared[whole + 1] - shared[whole]) * (tokens - whole)
        head = table.head
        at = int(rows)
        time += head[at] if at < len(head) else head[-1] * rows / (len(head) - 1)
        time += table.layers + self._prompts(table, chunk, micro)
        if batch:
            time += self._segment(table, batch, context)
        return time

    def _segment(self, table: StageTable, batch: float, context: float) -> float:
        """The decode segment's own operators."""
        whole = int(batch)
        row = self._segment_row(table, whole)
        knots = self.contexts
        at = min(max(bisect_right(knots, context) - 1, 0), len(knots) - 2)
        share = (context - knots[at]) / (knots[at + 1] - knots[at])
        value = row[at] + (row[at + 1] - row[at]) * max(share, 0.0)
        if whole != batch:
            above = self._segment_row(table, whole + 1)
            upper = above[at] + (above[at + 1] - above[at]) * max(share, 0.0)
            value += (upper - value) * (batch - whole)
        return value

    def _segment_row(self, table: StageTable, batch: int) -> list[float]:
        rows = table.decode_rows
        if batch < len(rows):
            known = rows[batch]
            if known is not None:
                return known
        else:
            rows.extend([None] * (batch + 1 - len(rows)))
        knots = table.batch_knots
        at = min(max(bisect_right(knots, batch) - 1, 0), len(knots) - 2)
        share = (batch - knots[at]) / (knots[at + 1] - knots[at])
        values = table.decode_grid[at] + (table.decode_grid[at + 1] - table.decode_grid[at]) * share
        row: list[float] = values.tolist()
        rows[batch] = row
        return row

    def _decode_row(self, batch: int) -> list[float]:
        nothing = Chunk(0, 0.0, 0.0)
        row = [self._kernels(batch, context, nothing) for context in self.contexts]
        self.cache[batch] = row
        return row

    def _prompts(self, table: StageTable, chunk: Chunk, micro: int) -> float:
        """The prompt segments' own operators: equal prompts of the same number, tokens and attention work."""
        prompts = chunk.prompts / micro
        if not chunk.tokens:
            return 0.0
        prompts = max(prompts, 1.0)
        new = chunk.tokens / prompts
        past = max(chunk.pairs / chunk.tokens - (new + 1) / 2, 0.0)
        news, pasts = self.new_knots, self.past_knots
        i = min(max(bisect_right(news, new) - 1, 0), len(news) - 2)
        j = min(bisect_right(pasts, past) - 1, len(pasts) - 2)
        x = max((new - news[i]) / (news[i + 1] - news[i]), 0.0)
        y = (past - pasts[j]) / (pasts[j + 1] - pasts[j])
        if prompts == 1.0:
            return _bilinear(table.prompt_grid[0], i, j, x, y) * chunk.tokens
        k = min(bisect_right(_PROMPTS, prompts) - 1, len(_PROMPTS) - 2)
        z = (prompts - _PROMPTS[k]) / (_PROMPTS[k + 1] - _PROMPTS[k])
        low = _bilinear(table.prompt_grid[k], i, j, x, y)
        high = _bilinear(table.prompt_grid[k + 1], i, j, x, y)
        return (low + (high - low) * z) * chunk.tokens


def _bilinear(grid: list[list[float]], i: int, j: int, x: float, y: float) -> float:
    low, high = grid[i], grid[i + 1]
    first = low[j] + (low[j + 1] - low[j]) * y
    return first + (high[j] + (high[j + 1] - high[j]) * y - first) * x


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far the tables go: sequences and tokens of a step, and the longest context."""

    sequences: int
    tokens: int
    context: int


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pricer:
    """Prices chosen operators of one stage for steps of decodes (batch, past) beside prompts (batch, new, past)."""

    deployment: Deployment
    width: float
    stage: int

    def price(
        self, chosen: tuple[int, ...], decode: tuple[Num, Num], prompt: tuple[Num, Num, Num], rows: Num = 1.0
    ) -> Array:
        """Seconds of the operators at the indices ``chosen``."""
        segments = (
            Segment(batch=decode[0], new=self.width, past=decode[1]),
            Segment(batch=prompt[0], new=prompt[1], past=prompt[2]),
        )
        ops = build(self.deployment, _for_every_rank(self.deployment, Step(segments=segments, logits=rows)))[
            self.stage
        ].ops
        return np.asarray(sum((self._one(ops[index]) for index in chosen), start=np.float64(0.0)))

    def _one(self, op: Op) -> Num:
        return price(op, self.deployment.hardware, self.deployment.calibration).total


def step_times(deployment: Deployment, reach: Reach, width: int = 1) -> StepTimes:
    """The tables of a deployment for steps up to ``reach``; with the engine's eager floor unless it is ideal.

    Raises ``MissingFactError`` for an operator that the device cannot run.
    """
    step = deployment.calibration.step
    contexts = _context_knots(deployment, reach.context)
    news = sorted({*map(float, range(1, WIDE + 1)), *_knots(WIDE + 1.0, max(float(reach.tokens), 64.0), 1.12)})
    pasts = [0.0, *_knots(64.0, max(float(reach.context), 128.0), 1.25)]
    layers = split_layers(len(deployment.model.sequence), deployment.parallel.pp)
    tables = [
        _table(
            _Pricer(deployment=deployment, width=float(width), stage=index),
            grouping,
            reach,
            (contexts, news, pasts),
            step.layer * layers[index],
        )
        for index, grouping in enumerate(group_operators(deployment, float(width)))
    ]
    return StepTimes(
        tables=tables,
        contexts=contexts,
        new_knots=news,
        past_knots=pasts,
        width=width,
        host=step.host,
        host_sequence=step.sequence * deployment.parallel.dp,
        floor=eager_floor(deployment),
        graph_tokens=deployment.engine.serving.graph_tokens,
        pipeline=deployment.parallel.pp,
        prompt_share=1.0 / deployment.parallel.cp,
    )


def _context_knots(deployment: Deployment, longest: int) -> list[float]:
    """Geometric knots with every window and chunk among them, where time changes its slope."""
    knots = set(_knots(1.0, max(float(longest), 64.0), 1.12))
    knots |= {float(cache.mask.size) for cache, _ in deployment.model.caches() if 0 < cache.mask.size < longest}
    return sorted(knots)


def _table(
    pricer: _Pricer,
    grouping: Grouping,
    reach: Reach,
    knots: tuple[list[float], list[float], list[float]],
    layers: float,
) -> StageTable:
    contexts, news, pasts = (np.asarray(values) for values in knots)
    width, cp = int(pricer.width), pricer.deployment.parallel.cp
    none, alone = (0.0, 64.0), (0.0, 64.0, 0.0)
    tokens = np.arange(1.0, min(reach.tokens + width * reach.sequences, _ROOM) + 2)
    shared = pricer.price(grouping.shared, none, (1.0, tokens * cp, 0.0))
    rows = np.arange(1.0, width * reach.sequences + 2)
    head = pricer.price(grouping.head, none, (1.0, 64.0, 0.0), rows)
    batches = [float(b) for b in range(1, min(reach.sequences, _DENSE_ROWS) + 1)]
    batches += _knots(float(_DENSE_ROWS), float(max(reach.sequences, _DENSE_ROWS + 1)), 1.03)[1:]
    if len(batches) == 1:
        batches.append(2.0)
    decode = pricer.price(grouping.decode, (np.asarray(batches)[:, None], contexts[None, :]), alone)
    return StageTable(
        shared=[0.0, *np.broadcast_to(shared, tokens.shape).tolist()],
        head=[0.0, *np.broadcast_to(head, rows.shape).tolist()],
        decode_rows=[None] * (len(batches) + 1),
        batch_knots=batches,
        decode_grid=np.broadcast_to(decode, (len(batches), len(contexts))),
        prompt_grid=_prompt_grid(pricer, grouping.prompt, news, pasts),
        layers=layers,
    )


def _prompt_grid(pricer: _Pricer, chosen: tuple[int, ...], news: Array, pasts: Array) -> list[list[list[float]]]:
    """Seconds a new token; narrow and wide chunks are priced apart, because they run different kernels."""
    prompts = np.asarray(_PROMPTS)[:, None, None]
    parts = []
    for new in (news[news <= WIDE], news[news > WIDE]):
        time = pricer.price(chosen, (0.0, 64.0), (prompts, new[None, :, None], pasts[None, None, :]))
        shape = (len(_PROMPTS), len(new), len(pasts))
        parts.append(np.broadcast_to(time, shape) / (prompts * new[None, :, None]))
    grid: list[list[list[float]]] = np.concatenate(parts, axis=1).tolist()
    return grid
