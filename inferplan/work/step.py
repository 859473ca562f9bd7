"""Load: what is asked of a model in one forward step. The only arrays in the input."""

from __future__ import annotations

from dataclasses import dataclass
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
    """

    batch: Num
    new: Num
    past: Num
    causal: bool = True

    @property
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

    @property
    def tokens(self) -> Num:
        return sum((segment.tokens for segment in self.segments), start=0.0)

    @property
    def sequences(self) -> Num:
        return sum((segment.batch for segment in self.segments), start=0.0)

    @property
    def logit_rows(self) -> Num:
        return self.sequences if self.logits is None else self.logits


def prefill(batch: Num, prompt: Num, past: Num = 0.0) -> Step:
    """The whole prompt of every sequence in one pass."""
    return Step(segments=(Segment(batch=batch, new=prompt, past=past),))


def decode(batch: Num, past: Num) -> Step:
    """One new token for every sequence."""
    return Step(segments=(Segment(batch=batch, new=1.0, past=past),))


def recompute(batch: Num, past: Num) -> Step:
    """One new token without a KV cache: the whole prefix is computed again."""
    return Step(segments=(Segment(batch=batch, new=past + 1.0, past=0.0),))
