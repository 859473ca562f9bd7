"""Outputs of a reasoning model: a thought, the marker that ends it, and the answer that users read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from inferplan.errors import UsageError
from inferplan.fields import question_if_asked
from inferplan.traffic.clipped import (
    gamma_above,
    gamma_moments,
    lognormal_above,
    lognormal_moments,
    normal_above,
    normal_moments,
)
from inferplan.traffic.conversations import Ints
from inferplan.traffic.requests import LengthKind, Lengths, parse_lengths
from inferplan.traffic.thoughts import MARKER, ThoughtsAsked


@dataclass(frozen=True, kw_only=True)
class ReasoningLengths(Lengths):
    """Tokens that a reasoning model writes for a request: ``min(thought, budget)``, the end of it, then ``answer``.

    thought: tokens that it thinks where nobody stops it, without the marker that ends it. budget: the most of them
    (``thinking_token_budget`` of vLLM's ``SamplingParams``); ``None`` for no end. end: tokens that the engine forces
    where it cuts a thought, the marker among them (``reasoning_end_str`` of vLLM's ``ReasoningConfig``).

    Thought and answer of a request are independent. Raises ``UsageError`` for a budget or an end below 1, and for an
    end that nothing forces.
    """

    kind: LengthKind = "reasoning"
    thought: Lengths = field(kw_only=True)
    answer: Lengths = field(kw_only=True)
    budget: int | None = None
    end: int = MARKER

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget is not None and self.budget < 1:
            raise UsageError(f"--thinking-budget must be 1 or more, not {self.budget}")
        if self.end < MARKER:
            raise UsageError(f"--thinking-end must be {MARKER} or more, not {self.end}")
        if self.budget is None and self.end != MARKER:
            raise UsageError(
                "--thinking-end needs a --thinking-budget, which is missing",
                hint="--thinking-budget 4k as well, or leave it out",
            )

    def sample_parts(self, rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
        """``count`` whole outputs, and of each the tokens before the first of its answer.

        The thoughts and answers of a seed are the same under every budget, which only cuts them.
        """
        thought, answer = self.thought.sample(rng, count), self.answer.sample(rng, count)
        before = self._before(thought)
        return before + answer, before

    def thoughts(self, rng: np.random.Generator, count: int) -> Ints:
        """Of ``count`` requests the tokens before the first of an answer, whatever its length is."""
        return self._before(self.thought.sample(rng, count))

    def _before(self, thought: Ints) -> Ints:
        """The tokens before the first of an answer behind thoughts that nobody stops."""
        if self.budget is None:
            return thought + MARKER
        return np.where(thought > self.budget, self.budget + self.end, thought + MARKER)

    def sample(self, rng: np.random.Generator, count: int) -> Ints:
        """``count`` whole outputs."""
        return self.sample_parts(rng, count)[0]

    @property
    def cut_share(self) -> float:
        """The share of requests whose thought the budget cuts: of draws, which are whole, so those above ``budget +
        1/2``.
        """
        return 0.0 if self.budget is None else _above(self.thought, self.budget)

    @property
    def before(self) -> tuple[float, float]:
        """Mean and variance of the tokens before the first of the answer, as :attr:`Lengths.average` counts them.

        With ``t = min(X, budget)``, a share ``p`` cut and ``f`` tokens forced beyond the marker, they are ``E[t] + 1 +
        f p`` and ``Var[t] + f^2 p (1 - p) + 2 f p (budget - E[t])``.
        """
        if self.budget is None:
            return self.thought.average + MARKER, self.thought.variance
        mean, square = _cut(self.thought, self.budget)
        share, forced = self.cut_share, self.end - MARKER
        variance = max(square - mean**2, 0.0) + forced**2 * share * (1 - share)
        return mean + MARKER + forced * share, variance + 2 * forced * share * (self.budget - mean)

    @property
    def mean_before(self) -> float:
        """The mean of those tokens, as a whole number: what a static batch has."""
        return float(round(self.before[0]))

    def said(self) -> str:
        """The thoughts of a batch in words."""
        cut = "" if self.budget is None else f"; a budget of {self.budget:,} cuts {self.cut_share:.2%} of the thoughts"
        return f"every request of the batch writes {self.mean_before:,.0f} tokens before its answer, the mean{cut}"

    def before_quantile(self, share: float) -> float:
        """The tokens before an answer that a ``share`` of the requests does not exceed, of a sample of 4,096."""
        return float(np.quantile(self.sample_parts(np.random.default_rng(0), 4096)[1], share))

    @property
    def _moments(self) -> tuple[float, float]:
        """Mean and mean square of independent parts."""
        mean, variance = self.before
        whole = mean + self.answer.average
        return whole, variance + self.answer.variance + whole**2

    def describe(self) -> dict[str, float | None]:
        """What a budget does to thoughts, by the keys of JSON."""
        mean, _ = self.before
        return {"budget_tokens": self.budget, "cut_share": self.cut_share, "before_answer_tokens_mean": mean}

    def under(self, budget: int | None) -> ReasoningLengths:
        """The same requests with another budget; without one nothing is forced at its end."""
        return replace(self, budget=budget, end=MARKER if budget is None else self.end)


def outputs_of(asked: ThoughtsAsked, answer: Lengths, ratio_min: float = 1.0) -> ReasoningLengths:
    """What is written for a request whose answer is as long; ratio_min: of plain lengths, as their parser takes."""
    thought = parse_lengths(asked.tokens, ratio_min)
    return ReasoningLengths(thought=thought, answer=answer, budget=asked.budget, end=asked.end)


def written_for(answer: Lengths, values: Mapping[str, Any], ratio_min: float = 1.0) -> Lengths:
    """What is written for a request whose answer is as long: it, or a thought and it where options ask for one."""
    thoughts = question_if_asked(ThoughtsAsked, values)
    return answer if thoughts is None else outputs_of(thoughts, answer, ratio_min)


def before_answer(lengths: Lengths, share: float) -> float:
    """Tokens before the first of an answer that a ``share`` of requests does not exceed; 0 without thoughts."""
    return lengths.before_quantile(share) if isinstance(lengths, ReasoningLengths) else 0.0


def _cut(lengths: Lengths, most: int) -> tuple[float, float]:
    """Mean and mean square of draws that are cut to ``most``."""
    mean, deviation = lengths.mean, lengths.spread * lengths.mean
    least = most if lengths.most is None else min(most, lengths.most)
    if lengths.kind in ("uniform", "empirical"):
        values: Any = np.minimum(_values(lengths), most)
        return float(np.mean(values)), float(np.mean(values**2))
    if lengths.kind == "fixed" or not deviation:
        return min(mean, most), min(mean, most) ** 2
    if lengths.kind == "normal":
        return normal_moments(mean, deviation, least)
    return (lognormal_moments if lengths.kind == "lognormal" else gamma_moments)(mean, lengths.spread, least)


def _above(lengths: Lengths, most: int) -> float:
    """The share of draws of more than ``most`` tokens."""
    mean, deviation = lengths.mean, lengths.spread * lengths.mean
    if lengths.most is not None and lengths.most <= most:
        return 0.0
    if lengths.kind in ("uniform", "empirical"):
        return float(np.mean(_values(lengths) > most))
    if lengths.kind == "fixed" or not deviation:
        return float(round(mean) > most)
    if lengths.kind == "normal":
        return normal_above(mean, deviation, most + 0.5)
    return (lognormal_above if lengths.kind == "lognormal" else gamma_above)(mean, lengths.spread, most + 0.5)


_EIGHTHS = 8
"""Into which :func:`above_at_most` portions the tokens of a sum."""


def above_at_most(lengths: Iterable[Lengths], tokens: int) -> float:
    """A share that the sums of independent lengths above ``tokens`` do not exceed, without a draw.

    A sum above ``tokens`` has a part above its portion of them, however they are portioned out: the shares of the parts
    add up to a bound (Boole's inequality), of which this is the least over portions in eighths.
    """
    parts = [part for one in lengths for part in _parts(one)]
    fixed = [part for part in parts if part.kind == "fixed"]
    left, drawn = tokens - sum(round(part.mean) for part in fixed), [part for part in parts if part.kind != "fixed"]
    if left < 0 or not drawn:
        return float(left < 0)
    portions = (one for one in product(range(1, _EIGHTHS), repeat=len(drawn) - 1) if sum(one) < _EIGHTHS)
    return min(
        sum(_above(part, left * eighths // _EIGHTHS) for part, eighths in zip(drawn, (*one, _EIGHTHS - sum(one))))
        for one in portions
    )


def _parts(lengths: Lengths) -> list[Lengths]:
    """Plain lengths that together are no shorter."""
    if isinstance(lengths, ReasoningLengths):
        return [lengths.thought, Lengths(mean=float(lengths.end)), lengths.answer]
    return [lengths]


def _values(lengths: Lengths) -> Any:
    """All lengths that are drawn alike."""
    if lengths.kind == "empirical":
        return np.asarray(lengths.values, dtype=np.float64)
    first = max(1.0, float(np.floor(lengths.spread * lengths.mean)))
    return np.arange(first, np.floor(lengths.mean) + 1)
