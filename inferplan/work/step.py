"""Load: what is asked of a model in one forward step. The only arrays in the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from inferplan.units import Num

WIDE = 16
"""More new tokens a sequence than this and a segment is shaped like a prefill: split over queries, not keys."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """``batch`` sequences, each with ``new`` tokens to process and ``past`` tokens already cached.

    Prefill is ``new = S, past = P``; decode ``new = 1``; speculative verification ``new = k + 1``; a chunk
    ``new = chunk``; a diffusion block ``new = block`` with ``causal = False``. Values broadcast against each other.
    media: its tokens are of prompts, whose share of the images, videos and sound that requests carry is encoded with
    them, and which the encoder of an encoder-decoder reads. source: how many of the past tokens an encoder has read;
    ``None`` for all of them.
    """

    batch: Num
    new: Num
    past: Num
    causal: bool = True
    media: bool = False
    source: Num | None = None

    @cached_property
    def tokens(self) -> Num:
        """New tokens over the whole segment."""
        return self.batch * self.new

    @cached_property
    def wide(self) -> bool:
        """Shaped like a prefill (many new tokens a sequence) rather than like a decode."""
        return bool(np.max(self.new) > WIDE)


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One forward pass: segments that share every matmul, each with its own attention.

    logits: rows that go through the head; ``None`` means one per sequence (the last token).
    """

    segments: tuple[Segment, ...]
    logits: Num | None = None

    @cached_property
    def tokens(self) -> Num:
        return sum((segment.tokens for segment in self.segments), start=0.0)

    @cached_property
    def sequences(self) -> Num:
        return sum((segment.batch for segment in self.segments), start=0.0)

    @property
    def logit_rows(self) -> Num:
        return self.sequences if self.logits is None else self.logits


def stack_steps(steps: Sequence[Step]) -> Step | None:
    """Steps of the same segments as one, along a first axis of its own; ``None`` where they are no grids.

    What all of them agree on has length 1 along it, or stays the single number that it is.
    """
    names = ("batch", "new", "past", "source")
    every = list(zip(*(s.segments for s in steps)))
    fields = [[_known(one, name) for one in alike] for alike in every for name in names]
    fields.append([step.logit_rows for step in steps])
    depth = max(np.ndim(value) for values in fields for value in values)
    if not depth:
        return None

    def along(values: list[Num]) -> Num:
        one = values[0]
        if all(value is one or (np.ndim(value) == np.ndim(one) == 0 and value == one) for value in values):
            return one if np.ndim(one) == 0 else np.reshape(one, (1,) * (depth + 1 - np.ndim(one)) + np.shape(one))
        shape = np.broadcast_shapes((1,) * depth, *map(np.shape, values))
        return np.stack([np.broadcast_to(value, shape) for value in values])

    *of_segments, rows = map(along, fields)
    fourths = zip(steps[0].segments, *(of_segments[first::4] for first in range(4)))
    segments = (replace(one, **dict(zip(names, values))) for one, *values in fourths)
    return Step(segments=tuple(segments), logits=rows)


def _known(segment: Segment, name: str) -> Num:
    """A number of a segment; all of the past where nobody says how much of it an encoder has read."""
    value = getattr(segment, name)
    return segment.past if value is None else value


def prefill(batch: Num, prompt: Num, past: Num = 0.0) -> Step:
    """The whole prompt of every sequence in one pass."""
    return Step(segments=(Segment(batch=batch, new=prompt, past=past, media=True),))


def decode(batch: Num, past: Num, source: Num | None = None) -> Step:
    """One new token for every sequence; ``source`` of the past tokens are what an encoder has read."""
    return Step(segments=(Segment(batch=batch, new=1.0, past=past, source=source),))


def recompute(batch: Num, past: Num) -> Step:
    """One new token without a KV cache: the whole prefix is computed again."""
    return Step(segments=(Segment(batch=batch, new=past + 1.0, past=0.0),))
