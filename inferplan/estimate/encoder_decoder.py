"""What a step is to an encoder-decoder: the pass of the encoder over prompts, and the rows of the decoder.

A request's tokens are those that the encoder reads, its prompt, and those that the decoder writes. A prompt goes
through the encoder whole; with it the decoder takes its start token. Each further step is one row of the decoder, which
attends to what it has written and to the encoder's output (docs/encoder-decoders.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from inferplan.estimate.layers import layer_ops
from inferplan.models.convolution import convolution_ops
from inferplan.models.layers import LayerContext
from inferplan.models.spec import EncoderStack
from inferplan.units import Num
from inferplan.work.formats import Precision
from inferplan.work.ops import Gather, Op
from inferplan.work.step import Segment, Step


def decoder_context(context: LayerContext, encoder: EncoderStack, step: Step) -> LayerContext:
    """The decoder's part of a step: one row a sequence, behind what it has written."""
    segments = tuple(_decoded(segment, encoder) for segment in step.segments)
    return replace(context, segments=segments, own_rows=step.logit_rows, one_kernel=False)


def _decoded(segment: Segment, encoder: EncoderStack) -> Segment:
    """A segment of requests as the decoder has it: the start token, or one token behind that and what follows it."""
    if segment.media:
        source = _positions(segment, encoder)
        return replace(segment, new=1.0, past=0.0, source=source)
    source = segment.past if segment.source is None else segment.source
    source = np.minimum(source if encoder.frames is None else float(encoder.frames), segment.past)
    return replace(segment, new=1.0, past=segment.past - source + 1.0, source=source)


def _positions(segment: Segment, encoder: EncoderStack) -> Num:
    """Positions of the encoder that a prompt fills."""
    return segment.new if encoder.frames is None else float(encoder.frames)


def encoder_ops(context: LayerContext, encoder: EncoderStack, step: Step) -> Iterator[Op]:
    """The operators of the encoder over the prompts of a step, of which nothing is kept; none without prompts."""
    segments = tuple(_read(segment, encoder) for segment in step.segments if segment.media)
    if not segments:
        return
    context = replace(
        context,
        d_model=encoder.d_model,
        norm=encoder.norm,
        segments=segments,
        keeps=False,
        one_kernel=False,
        precision=_own_formats(context.precision),
    )
    ops = [*_input(context, encoder)]
    for layer, count in encoder.distinct:
        ops += [op.repeated(count) for op in layer_ops(layer, context)]
    if encoder.final_norm:
        ops.append(context.normalise("final_norm", encoder.d_model))
    if encoder.projected is not None:
        ops += context.linear("output.projection", encoder.d_model, encoder.projected, role="base")
    yield from (replace(op, name=f"encoder.{op.name}") for op in ops)


def _read(segment: Segment, encoder: EncoderStack) -> Segment:
    """Prompts as the encoder has them: every position sees all.

    Prompts of several lengths stand for as many of the mean length with the pairs of a causal mask,
    ``new*(past + (new + 1)/2)`` each, so that ``past`` is not 0: those of the full one are ``new*(new + 2*past)``.
    """
    past = 2.0 * segment.past if encoder.frames is None else 0.0
    return Segment(batch=segment.batch, new=_positions(segment, encoder), past=past, causal=False)


def _own_formats(precision: Precision) -> Precision:
    """The formats of the encoder's tensors, by their own names."""
    every = ((name.partition("encoder."), stored, layers) for name, stored, layers in precision.exceptions)
    return replace(precision, exceptions=tuple((name[2], stored, layers) for name, stored, layers in every if name[1]))


def _input(context: LayerContext, encoder: EncoderStack) -> Iterator[Op]:
    """What runs ahead of the encoder's layers: an embedding, or convolutions over sound."""
    ranks, base, tokens = context.ranks, context.precision.base, context.tokens
    if encoder.embedding != "none":
        table = context.precision.embedding
        yield Gather(name="embedding", ranks=ranks, tokens=tokens, width=encoder.d_model, table=table, output=base)
        yield from context.all_reduce("embedding.all_reduce", encoder.d_model)
    yield from convolution_ops(encoder.convolutions, context, tokens)
    if encoder.positions:
        yield context.pointwise("positions", encoder.d_model, reads=2.0)
    if encoder.embedding_norm:
        yield context.normalise("embedding_norm", encoder.d_model)
