"""The one graph builder: a deployment and a step become the operators that each pipeline stage runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from math import ceil, inf

import numpy as np

from inferplan.affine import affine, dense
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.encoder_decoder import decoder_context, encoder_ops
from inferplan.estimate.layers import add_op, layer_ops
from inferplan.estimate.roofline import price
from inferplan.estimate.shared import Shared
from inferplan.estimate.stage_memory import StageMemory, streamed_layers
from inferplan.models.convolution import convolution_ops
from inferplan.models.layers import LayerContext
from inferplan.models.spec import LayerGroup, count_distinct, residual_blocks
from inferplan.units import Num
from inferplan.work.ops import (
    Attention,
    Conv,
    Elementwise,
    Exchange,
    Gather,
    GroupedMatmul,
    IndexSelect,
    LongConv,
    Mask,
    Matmul,
    Op,
    Scan,
)
from inferplan.work.parallel import split_layers
from inferplan.work.step import Step, prefill


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """The operators of one pipeline stage for one microbatch, and how many layers it holds.

    parts: operators that run one after another, and how often all of them do: those of a layer for each layer like it.
    Stages share what they have in common. halves: 2 where the batch was cut into two halves that overlap, each with
    half of its sequences; the operators are those of one half, run so many times.
    """

    parts: tuple[tuple[tuple[Op, ...], Num], ...]
    layers: int
    halves: Num = 1.0

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """The operators, each with the number of its runs in the stage."""
        return tuple(op.repeated(times) for ops, times in self.parts for op in ops)


def build(deployment: Deployment, step: Step) -> list[Stage]:
    """Every stage's operators for a step of the whole replica, as one rank of the stage runs them.

    Attention data parallelism divides the batch: the rank that has most gets ``ceil(batch/dp)`` sequences.
    """
    return build_rank(deployment, *rank_steps(deployment, step))


def rank_steps(deployment: Deployment, step: Step) -> tuple[Step, Step | None]:
    """A replica's step as the fullest attention rank has it, and as the mean one; ``None`` where all are alike."""
    dp = deployment.parallel.dp
    if dp == 1:
        return step, None

    def share(divide: Callable[[Num], Num]) -> Step:
        segments = tuple(replace(segment, batch=divide(segment.batch)) for segment in step.segments)
        return Step(segments=segments, logits=None if step.logits is None else divide(step.logits))

    fullest, mean = share(lambda count: np.ceil(count / dp)), share(lambda count: count / dp)
    alike = all(np.all(a.batch == b.batch) for a, b in zip(fullest.segments, mean.segments))
    return fullest, None if alike else mean


def build_rank(deployment: Deployment, step: Step, mean: Step | None = None, alternatives: bool = False) -> list[Stage]:
    """Every stage's operators for a step of one attention rank.

    mean: the step of the mean rank, where ranks differ; experts work on the tokens of all. Stages that hold the same
    layers share their operators. With ideal constants the epilogues that a perfect kernel would fuse are left out.
    alternatives: with the operators that only other loads of these kinds of segments run, so often as not at all.
    Raises ``ValueError`` for a segment without sequences or tokens: what is not there has no price.
    """
    return build_ranks([deployment], step, mean, alternatives)[0]


def build_ranks(
    deployments: Sequence[Deployment], step: Step, mean: Step | None = None, alternatives: bool = False
) -> list[list[Stage]]:
    """:func:`build_rank` of deployments that differ in their number of stages alone, which share their operators."""
    first = deployments[0]
    return _built(deployments, step, mean, replace(_context(first, step, mean), alternatives=alternatives))


def shared_ranks(deployments: Sequence[Deployment], step: Step, mean: Step | None, shared: Shared) -> list[list[Stage]]:
    """:func:`build_ranks`, or what was built for others whose layers see the same: on another device, as a rule."""
    first = deployments[0]
    model = first.model
    apart = model.encoder, first.media, first.offload, first.streamed, first.two_batches, first.filters, first.lora
    if any(part is not None for part in apart):
        return build_ranks(deployments, step, mean)
    device, rows = _Device(first), step.tokens if first.parallel.cp == 1 else None
    context = replace(_context(first, step, mean), time=device, peaks=device, own_rows=rows)
    beside = tuple(one.parallel.pp for one in deployments), first.calibration.fused, first.precision
    known = shared.of((model, step, mean), beside, list[tuple[LayerContext, list[list[Stage]]]])
    for other, built in known:
        if all(getattr(other, name) == getattr(context, name) for name in _SEEN):
            return built
    built = _built(deployments, step, mean, context)
    if not device.asked:
        known.append((context, built))
    return built


class _Device:
    """Seconds and arithmetic of a deployment's device, with a note whether a layer asked for any."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment, self.asked = deployment, False

    def __call__(self, op: Op) -> Num:
        self.asked = True
        return _seconds(self.deployment, op)

    def __contains__(self, math: object) -> bool:
        self.asked = True
        return math in self.deployment.hardware.peak


_SEEN = tuple(field.name for field in fields(LayerContext) if field.name not in ("time", "peaks", "own_rows"))
"""What a layer sees of its deployment and of a step, but for what some ask of its device."""


def _built(
    deployments: Sequence[Deployment], step: Step, mean: Step | None, context: LayerContext
) -> list[list[Stage]]:
    """The stages of :func:`build_ranks`, of which the layers see the context of the first."""
    for segment in step.segments:
        if np.any(np.asarray(segment.batch) <= 0) or np.any(np.asarray(segment.new) <= 0):
            raise ValueError(f"a segment of {segment.batch} sequences with {segment.new} new tokens is empty")
    first, alternatives = deployments[0], context.alternatives
    halves = halves_of(first, step)
    if np.any(halves > 1.0):
        step, mean = _part(step, halves), None if mean is None else _part(mean, halves)
        context = replace(_context(first, step, mean), alternatives=alternatives)
    encoder = first.model.encoder
    read: tuple[Op, ...] = ()
    if encoder is not None:
        read = tuple(encoder_ops(context, encoder, step))
        context = decoder_context(context, encoder, step)
    written: dict[tuple[str, int], tuple[Op, ...]] = {}
    if first.offload is not None:
        there = replace(_context(first.offload.host, step, mean), alternatives=alternatives)
        return [[_on_both_sides(first, context, there, step)]]
    before = *_media(first, context, step), *read, *_embedding(first, context)
    ends = _run(first, before), _run(first, _head(first, context, step))
    stages = [_stages(one, context, ends, written) for one in deployments]
    return stages if np.all(halves == 1.0) else [[_run_twice(stage, halves) for stage in own] for own in stages]


def halves_of(deployment: Deployment, step: Step) -> Num:
    """Into how many overlapping parts the step of a rank is cut: two from so many tokens on, else one."""
    if deployment.two_batches is None:
        return 1.0
    tokens: Num = step.tokens
    enough = np.where(tokens >= deployment.two_batches[any(one.wide for one in step.segments)], 2.0, 1.0)
    return float(enough) if enough.ndim == 0 else enough


OVERLAP_PARTS = ("projections", "attention", "shared", "dispatch", "experts", "combine", "alone")
"""Parts of a layer between which two half batches change places. projections: what comes before attention itself.
alone: what no other half's rows travel beside (embedding, dense layers, head)."""


_AFTER = ("core", "absorb_v", "out", "gate", "all_reduce", "unrotate", "o_a", "o_b")


def overlap_part(op: Op) -> str:
    """Which of :data:`OVERLAP_PARTS` an operator belongs to."""
    if isinstance(op, Exchange):
        return op.direction
    block, _, name = op.name.partition(".")
    inner = name.partition(".")[0]
    if block == "ffn":
        return {"expert": "experts", "shared": "shared", "router": "attention"}.get(inner, "alone")
    if block == "attn":
        return "attention" if inner in _AFTER else "projections"
    return "alone" if block in ("embedding", "final_norm", "head", "sampling") else "attention"


def _part(step: Step, parts: Num) -> Step:
    """One of so many parts of a step, with as large a share of every segment."""
    segments = tuple(replace(segment, batch=segment.batch / parts) for segment in step.segments)
    return Step(segments=segments, logits=None if step.logits is None else step.logits / parts)


def _run_twice(stage: Stage, halves: Num) -> Stage:
    return replace(stage, parts=tuple((ops, times * halves) for ops, times in stage.parts), halves=halves)


def _run(deployment: Deployment, ops: Iterable[Op]) -> tuple[Op, ...]:
    """The operators that run by themselves: not those that an ideal kernel runs with another."""
    return tuple(op for op in ops if not (op.fusible and deployment.calibration.fused))


def _stages(
    deployment: Deployment,
    context: LayerContext,
    ends: tuple[tuple[Op, ...], tuple[Op, ...]],
    written: dict[tuple[str, int], tuple[Op, ...]],
) -> list[Stage]:
    """The stages of one deployment. ends: operators before the first layer, and after the last. written: those of each
    kind of layer, by its ``id``, and of each message between stages, by its streams; stages share them."""
    model, parallel = deployment.model, deployment.parallel
    embedding, head = ends
    stages: list[Stage] = []
    middle: dict[int, Stage] = {}
    for index, layers in enumerate(model.stages(parallel.pp)):
        inside = 0 < index < parallel.pp - 1
        if inside and id(layers) in middle:
            stages.append(middle[id(layers)])
            continue
        parts: list[tuple[tuple[Op, ...], Num]] = [(embedding, 1)] if index == 0 else []
        if deployment.streamed is None:
            parts += [(_layer(deployment, layer, context, written), count) for layer, count in layers]
        else:
            parts.append((tuple(_streamed(deployment, index, context, written)), 1))
        if index == parallel.pp - 1:
            parts.append((head, 1))
        else:
            streams = model.hyper_streams + residual_blocks(one for one, _ in layers)
            if ("send", streams) not in written:
                written["send", streams] = _run(deployment, _send(context, streams))
            parts.append((written["send", streams], 1))
        stages.append(Stage(parts=tuple(parts), layers=sum(count for _, count in layers)))
        if inside:
            middle[id(layers)] = stages[-1]
    return stages


def _context(deployment: Deployment, step: Step, mean: Step | None) -> LayerContext:
    return LayerContext(
        d_model=deployment.model.d_model,
        precision=deployment.running,
        parallel=deployment.parallel,
        segments=step.segments,
        mean_segments=None if mean is None else mean.segments,
        norm=deployment.model.norm,
        unfused=deployment.unfused_attention,
        routing=replace(deployment.routing, even=True) if deployment.calibration.fused else deployment.routing,
        masked=deployment.calibration.fused,
        norms_apart=deployment.engine.defaults.norms_apart,
        dense_short=deployment.calibration.fused or deployment.engine.defaults.dense_short_prompts,
        peaks=frozenset(deployment.hardware.peak),
        time=partial(_seconds, deployment),
        exchange=deployment.engine.exchange.on(deployment.hardware, deployment.parallel.expert_ranks),
        one_kernel=deployment.parallel.cp == 1
        and deployment.engine.attention.joined(deployment.hardware, deployment.precision.kv.name),
        keeps=not deployment.model.encodes,
        adapters=deployment.lora if deployment.lora is not None and deployment.lora.active else None,
    )


def _seconds(deployment: Deployment, op: Op) -> Num:
    """What an operator takes in a step; nothing where an ideal kernel runs it with another."""
    if op.fusible and deployment.calibration.fused:
        return 0.0
    return price(op, *deployment.runs_on(op)).all_runs


def _media(deployment: Deployment, context: LayerContext, step: Step) -> Iterator[Op]:
    """The towers' pass over what comes with the prompts of the step."""
    tokens: Num = sum((segment.tokens for segment in step.segments if segment.media), start=0.0)
    if deployment.media is not None and np.any(tokens):
        yield from deployment.media.ops(deployment.media.sets(tokens), context)


def media_ops(deployment: Deployment, sets: Num) -> list[Op]:
    """The towers' pass by itself over so many sets of what requests carry; empty where they carry text alone."""
    if deployment.media is None:
        return []
    ops = deployment.media.ops(sets, _context(deployment, prefill(1.0, 1.0), None))
    return [op for op in ops if not (op.fusible and deployment.calibration.fused)]


def _embedding(deployment: Deployment, context: LayerContext) -> Iterator[Op]:
    model, precision = deployment.model, deployment.precision
    if model.bare:
        yield from model.input_ops(context)
        return
    if model.ends.convolutions:
        yield from convolution_ops(model.ends.convolutions, context, context.tokens)
    else:
        yield Gather(
            name="embedding",
            ranks=context.ranks,
            tokens=context.tokens,
            width=model.table_width,
            table=precision.embedding,
            output=precision.base,
        )
    if model.positions:
        yield add_op("positions", context, model.d_model)
    for name in model.ends.tables:
        yield add_op(name, context, model.table_width)
    if model.embedding_norm:
        yield context.normalise("embedding_norm", model.table_width)
    yield from context.all_reduce("embedding.all_reduce", model.table_width)
    yield from model.input_ops(context)


def _layer(
    deployment: Deployment, layer: LayerGroup, context: LayerContext, written: dict[tuple[str, int], tuple[Op, ...]]
) -> tuple[Op, ...]:
    """The operators of one layer. written: see :func:`_stages`."""
    if ("layer", id(layer)) not in written:
        written["layer", id(layer)] = _run(deployment, layer_ops(layer, context))
    return written["layer", id(layer)]


def _layers(layers: list[tuple[LayerGroup, int]], context: LayerContext) -> Iterator[Op]:
    """The operators of layers, of each kind so many."""
    return (op.repeated(count) for layer, count in layers for op in layer_ops(layer, context))


def _streamed(
    deployment: Deployment, index: int, context: LayerContext, written: dict[tuple[str, int], tuple[Op, ...]]
) -> Iterator[Op]:
    """The operators of a stage's layers of which the first read weights from the host's memory."""
    sequence, counts = deployment.model.sequence, split_layers(len(deployment.model.sequence), deployment.parallel.pp)
    start = sum(counts[:index])
    held = sequence[start : start + counts[index]]
    stage = StageMemory(deployment=deployment, layers=held, start=start, first=False, last=False)
    by_share: dict[float, list[LayerGroup]] = {}
    for layer, _, share in streamed_layers(stage):
        by_share.setdefault(share, []).append(layer)
    for share, layers in by_share.items():
        for kind, count in count_distinct(layers):
            for op in _layer(deployment, kind, context, written):
                one = op.repeated(count)
                yield one.reading(share) if isinstance(op, (Matmul, GroupedMatmul)) else one


def _on_both_sides(deployment: Deployment, here: LayerContext, there: LayerContext, step: Step) -> Stage:
    """The operators of a device and of its host, and what crosses their link at each change of side.

    The host has the embedding, the first layers and, where the device has nothing at all, the head; ``here`` and
    ``there`` are the step as the device and the host compute it, each in the formats of its own arithmetic.
    """
    offload = deployment.offload
    assert offload is not None  # the caller has looked
    sequence, host = deployment.model.sequence, offload.host
    split = max(offload.layers, offload.experts)
    ops = [op.at("host") for op in _embedding(host, there)]
    whole = count_distinct(sequence[: offload.layers])
    theirs = _Written(there, lambda context: [op.at("host") for op in _layers(whole, context)])
    ops += _on_either(deployment, theirs, _Written(here, lambda context: list(_layers(whole, context))))
    if not offload.head:
        model = deployment.model
        residuals = model.hyper_streams + residual_blocks(sequence[: offload.layers])
        elements = here.tokens * (here.d_model * residuals)
        ops += [op.at("link") for op in here.collective("offload.hidden", "send", elements, 2)]
    for layer, count in count_distinct(sequence[offload.layers : split]):
        ops += [op.repeated(count) for op in _experts_apart(deployment, layer, here, there)]
    ops += _layers(count_distinct(sequence[split:]), here)
    ops += [op.at("host") for op in _head(host, there, step)] if offload.head else _head(deployment, here, step)
    fused = {"device": deployment.calibration.fused, "host": host.calibration.fused}
    ops = [op for op in ops if not (op.fusible and fused.get(op.place))]
    return Stage(parts=((tuple(ops), 1),), layers=len(sequence))


def _experts_apart(deployment: Deployment, layer: LayerGroup, here: LayerContext, there: LayerContext) -> Iterator[Op]:
    """A layer on the device whose routed experts the host computes: its rows go there and their sums come back."""
    yield from (op for op in layer_ops(layer, here) if overlap_part(op) != "experts")

    def experts(context: LayerContext) -> list[Op]:
        return [op for op in layer_ops(layer, context) if overlap_part(op) == "experts"]

    def apart(context: LayerContext) -> list[Op]:
        routed = [op.at("host") for op in experts(context)]
        width = next((op.k for op in routed if isinstance(op, GroupedMatmul)), 0)
        sent, back = (
            [op.at("link") for op in here.collective(f"offload.{way}_experts", "send", context.tokens * width, 2)]
            for way in ("to", "from")
        )
        return [*sent, *routed, *back] if width else []

    yield from _on_either(deployment, _Written(there, apart), _Written(here, experts))


@dataclass(frozen=True)
class _Written:
    """Operators of one side, and how they are written down for other rows than those of the step."""

    context: LayerContext
    write: Callable[[LayerContext], list[Op]]

    def batches(self, deployment: Deployment) -> Iterator[tuple[Op, Num, Num]]:
        """The operators in each physical batch, their rows there, and how many such batches.

        llama.cpp takes the rows of a step in batches of ``n_ubatch`` and what remains. What sees single sequences, as
        attention does, is taken as one batch.
        """
        defaults, tokens = deployment.engine.defaults, dense(self.context.tokens)
        most = inf if defaults.host_weights is None else float(max(defaults.windows.tokens, 1))
        full = np.floor(tokens / most)
        rest = tokens - full * most if np.any(full) else tokens
        sizes = ((np.minimum(tokens, most), full), (np.where(rest > 0.0, rest, 1.0), np.sign(rest)))
        contexts = [
            (replace(self.context, own_rows=rows), times) for rows, runs in sizes for times in self.context.runs(runs)
        ]
        written = [self.write(context) for context, _ in contexts]
        longer = self.write(replace(self.context, own_rows=tokens + 1.0))
        for index, op in enumerate(self.write(self.context)):
            if _same_work(op, longer[index]):
                yield op, _rows_of(op, self.context), 1.0
                continue
            for (context, times), ops in zip(contexts, written):
                yield ops[index], _rows_of(ops[index], context), times


def _same_work(one: Op, other: Op) -> bool:
    a, b = one.work(), other.work()
    return bool(np.all(dense(a.bytes) == dense(b.bytes)) and np.all(dense(a.wire) == dense(b.wire)))


def _on_either(deployment: Deployment, theirs: _Written, ours: _Written) -> Iterator[Op]:
    """Operators whose weights lie on the host: ``theirs`` on the host, or ``ours`` on the device and the copies there.

    llama.cpp copies what so many rows need to the device, for each of its physical batches anew; the cache of such
    layers is taken to be copied once a step. A copy hides behind nothing.
    """
    rule, here = deployment.engine.defaults.host_weights, ours.context
    least = inf if rule is None else rule.rows
    for op, rows, times in theirs.batches(deployment):
        stays = times * np.where(rows < least, 1.0, 0.0)
        if here.alternatives or np.any(stays):
            yield op.repeated(stays)
    for op, rows, times in ours.batches(deployment):
        goes = times * np.where(rows >= least, 1.0, 0.0)
        if not (here.alternatives or np.any(goes)):
            continue
        size = op.resident()
        if np.any(size):
            sent = here.collective(f"{op.name}.copy", "send", size / here.precision.base.width, 2)
            yield from (one.at("link").repeated(op.count * goes) for one in sent)
        yield op.repeated(goes)


def _rows_of(op: Op, context: LayerContext) -> Num:
    """Rows that an operator has by itself: those of its sequences, where it sees only some of the step's."""
    if isinstance(op, (Attention, IndexSelect, Scan, Conv, LongConv)):
        return dense(op.batch) * dense(op.new)
    return dense(op.m) if isinstance(op, Matmul) else dense(context.tokens)


def _head(deployment: Deployment, context: LayerContext, step: Step) -> Iterator[Op]:
    model, parallel, precision = deployment.model, deployment.parallel, deployment.precision
    if model.bare:
        yield from model.ends.ops(context, affine(step.logit_rows), affine(step.logit_rows))
        return
    yield from model.output_ops(context)
    if model.final_norm:
        yield context.normalise("final_norm", model.d_model)
    rows = affine(step.logit_rows)
    tokens = context.tokens if model.encodes else rows
    yield from model.ends.ops(context, rows, tokens)
    if not model.predicts:
        return
    tokens = tokens * model.ends.parts
    yield Matmul(
        name="head",
        ranks=context.ranks,
        m=tokens,
        k=model.table_width,
        n=ceil(model.vocab / parallel.tp),
        weight=precision.embedding if model.tied else precision.head,
        input=precision.base,
        output=precision.base,
    )
    yield from context.collective("head.gather", "all_gather", tokens * model.vocab, parallel.tp)
    if model.encodes:
        return
    yield Elementwise(
        name="sampling",
        ranks=context.ranks,
        fusible=True,
        tokens=rows,
        width=model.vocab,
        base=precision.base,
        flops=5.0,
    )
    if deployment.filters is not None:
        yield from deployment.filters.ops(dense(rows), model.vocab, context.ranks)


def _send(context: LayerContext, streams: int) -> Iterator[Op]:
    elements = context.tokens * (context.d_model * streams)
    return context.collective("pipeline.send", "send", elements, 2, 2 * context.ranks)


def masks(stages: list[Stage]) -> set[Mask]:
    """The masks of attention and of indexers in a graph: where time stops being linear in the context."""
    return {op.mask for stage in stages for op in stage.ops if isinstance(op, (Attention, IndexSelect))}
