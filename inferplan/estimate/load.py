"""A static batch as it is asked for, and the band of factors that a latency carries."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from inferplan.errors import UsageError
from inferplan.features import those
from inferplan.fields import Switch, Whole, ask
from inferplan.units import Num
from inferplan.work.step import Step, decode, recompute


@dataclass(frozen=True, kw_only=True, eq=False)
class StaticLoad:
    """A static batch: ``batch`` requests per replica of ``prompt`` tokens, ``samples`` answers of ``output`` each."""

    batch: Num = 1.0
    prompt: Num = 1024.0
    output: Num = 256.0
    kv_cache: bool = True
    all_logits: bool = False
    """The prefill sends every position through the head, not only the last."""
    media_tokens: Num = 0.0
    """Tokens of ``prompt`` that stand for images, videos and sound."""
    samples: float = 1.0
    """Answers of each prompt, which is computed once (``n`` of the OpenAI API)."""
    before: float = 0.0
    """Tokens of an answer's ``output`` that come before what its reader sees: a thought and the marker of its end."""
    usual: bool = False
    """Nobody asked for this prompt: a model that reads inputs of one length has that one."""

    def __post_init__(self) -> None:
        for name in ("batch", "prompt", "output", "samples"):
            if np.any(np.asarray(getattr(self, name)) < 1):
                raise UsageError(f"--{name} must be 1 or more")
        if self.before and not np.all(np.asarray(self.output) > self.before):
            raise UsageError("a thought leaves no token to the answer", hint="a longer output, of thought and answer")

    @property
    def features(self) -> set[str]:
        """As :mod:`inferplan.features` names them."""
        return those(
            samples=self.samples > 1,
            thoughts=self.before > 0,
            recompute=not self.kv_cache,
            all_logits=self.all_logits,
        )

    def carrying(self, tokens: Num) -> StaticLoad:
        """The same with so many tokens more of media in every prompt."""
        return replace(self, prompt=self.prompt + tokens, media_tokens=self.media_tokens + tokens)

    @property
    def sequences(self) -> Num:
        """Rows of a decode step: an answer each."""
        return self.batch * self.samples

    def describe(self) -> str:
        """The batch of a scalar load, in words."""
        return f"batch {self.batch:.0f}" + (f" x {self.samples:.0f} samples" if self.samples > 1 else "")

    @property
    def context(self) -> Num:
        """Tokens of a sequence at its end."""
        return self.prompt + self.output

    def decode_step(self, past: Num) -> Step:
        return decode(self.sequences, past, self.prompt) if self.kv_cache else recompute(self.batch, past)


@dataclass(frozen=True, kw_only=True)
class BatchAsked:
    """A static batch as options ask for it. prompt: ``None`` where nobody says how long prompts are."""

    batch: int | None = ask("--batch", Whole(), "Sequences per replica.", 1, shown=True)
    prompt: int | None = ask("--prompt", Whole(), "Prompt tokens of a sequence [1024].", None)
    image_tokens: int = ask(
        "--image-tokens",
        Whole(0),
        "Further prompt tokens that stand for images; the time of their encoder is not counted.",
        0,
    )
    output: int = ask("--output", Whole(), "Generated tokens.", 256, shown=True)
    no_kv_cache: bool = ask("--no-kv-cache", Switch(), "Recompute the whole prefix for every token.", False)
    all_logits: bool = ask(
        "--all-logits", Switch(), "The prefill computes logits for every position, not only for the last.", False
    )
    samples: int = 1

    @property
    def load(self) -> StaticLoad:
        """The batch; of one sequence where its size is left open."""
        return StaticLoad(
            batch=float(self.batch or 1),
            usual=self.prompt is None,
            prompt=float((self.prompt or 1024) + self.image_tokens),
            output=float(self.output),
            kv_cache=not self.no_kv_cache,
            all_logits=self.all_logits,
            samples=float(self.samples),
        )


@dataclass(frozen=True, kw_only=True)
class SampledBatch(BatchAsked):
    """The same, of prompts with several answers each."""

    samples: int = ask("--samples", Whole(), "Answers per prompt, which share it (n in the OpenAI API).", 1, shown=True)


@dataclass(frozen=True, kw_only=True)
class OpenBatch(BatchAsked):
    """The same where the size of the batch may be left open."""

    batch: int | None = ask("--batch", Whole(), "Sequences per replica [the most that memory and engine hold].", None)


Band = tuple[float, float]


UNKNOWN_SHARE = 0.02
"""The share of a time that operators without a known error may have before its band is unknown."""


def combine_bands(kernels: Band | None, step: Band | None) -> Band | None:
    """The band of a latency from its kernels' and from what serving adds: independent, so the squares of logs add."""
    if kernels is None or step is None:
        return None
    low, high = widened_at(kernels, step)
    return float(low), float(high)


def widened_at(kernels: tuple[Num, Num], step: Band) -> tuple[Num, Num]:
    """:func:`combine_bands` at each point of a grid of kernels' bands; NaN stays NaN."""
    low = np.hypot(np.log(np.minimum(kernels[0], 1.0)), np.log(min(step[0], 1.0)))
    high = np.hypot(np.log(np.maximum(kernels[1], 1.0)), np.log(max(step[1], 1.0)))
    return np.exp(-low), np.exp(high)
