"""Speculative decoding: a draft proposes ``length`` tokens, the model verifies them in one step of ``length + 1``.

With acceptance ``a`` for each drafted token, independent of the others (Leviathan et al., 2211.17192):

- tokens a verification, chain of ``g``: ``E = (1 - a^(g + 1))/(1 - a)`` (eq. 1), the bonus token included;
- speed-up where a verification costs one step and a draft step ``c`` of it: ``E/(g*c + 1)`` (theorem 3.8);
- operations: ``(1 - a)*(g*c' + g + 1)/(1 - a^(g + 1))`` times as many, c' the draft's share (theorem 3.11).

Engines report the mean acceptance *length* ``E`` instead of ``a`` (vLLM: tokens a verification, 1 and the accepted
drafts); :meth:`Speculation.of_length` solves eq. 1 for the ``a`` that gives it.

Acceptance often falls with the position. As a curve ``a1, a2, ...``, each the chance that a drafted token is accepted
once those before it were, a verification yields ``1 + a1 + a1*a2 + ...``; a constant curve is eq. 1 again.

A tree tries ``branches`` candidates at each depth, so a depth is passed with ``1 - (1 - a)^branches`` and the step
verifies ``branches*length + 1`` tokens (candidates drawn independently; a real tree reaches no more).

Here nothing is assumed about the cost: the verification is priced as a step of that width, and the draft as a model of
its own, so the gain shrinks as the batch grows and is a loss where verifying costs as much as the tokens it saves. A
round of drafts is what engines run (vLLM ``v1/spec_decode/eagle.py``, ``propose``; TensorRT-LLM's "MTP Eagle"; SGLang's
``draft_extend_after_decode``):

- one pass over every token of the verification before it, ``length + 1`` for each request (engines pad rejected ones),
  beside the prompts of the step, which the draft computes too because it attends to them: the first drafted token;
- ``length - 1`` passes of a token each, one after another: the others. A block draft makes all in one more pass of
  ``length + 1`` tokens instead (DFlash, 2602.06036: the last token and a mask for each drafted one).

Texts differ in how much of the drafts is accepted, and a text stays what it is: a request whose text the draft guesses
well is done sooner, by the same factor at any length. Where a share ``p`` of all texts is worse, the odds that a token
is accepted are those of the mean times ``(p/(1 - p))**texts``; ``texts`` is fitted (``configs/acceptance.yaml``).
Engines report tokens over verifications: the mean of ``1/E`` over texts, by which no mean moves.

With prompts of 65,536 tokens and 2 requests a rank of 16 H200, rounds of two and three drafts were measured to make a
step of DeepSeek-V3 14.3 and 20.3 ms longer (lmsys.org, 2025-07-17: 51.0, 81.5 and 82.0 tokens/s a rank, at 2.18 and
2.44 tokens a verification); ``python -m tests.benchmarks.compare_speculation`` prints what they add here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import StepTime, decode_cycle, prompt_drain
from inferplan.estimate.resting import PARTS, Resting
from inferplan.units import Array, Num

_HALVINGS = 60
_TEXTS = 1000
"""Texts over which the mean of their paces is taken."""


def expected_tokens(acceptance: Num, length: Num) -> Num:
    """Tokens a verification of a chain yields on average: ``(1 - a^(g+1))/(1 - a)``; ``g + 1`` at ``a = 1``."""
    a = np.asarray(acceptance, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens: Num = np.where(a < 1.0, (1.0 - a ** (length + 1.0)) / (1.0 - a), length + 1.0)
    return float(tokens) if np.ndim(tokens) == 0 else tokens


def speedup(acceptance: Num, length: Num, cost: Num) -> Num:
    """Wall-time improvement when a verification costs one step and a draft step ``cost`` of it (theorem 3.8)."""
    return expected_tokens(acceptance, length) / (length * cost + 1.0)


def operations(acceptance: Num, length: Num, draft: Num) -> Num:
    """How many times the arithmetic operations, with a draft that needs ``draft`` of the model's (theorem 3.11)."""
    return (length * draft + length + 1.0) / expected_tokens(acceptance, length)


def acceptance_of(tokens: float, length: int) -> float:
    """The acceptance at which a chain of ``length`` yields so many tokens a verification: eq. 1, solved by halving.

    Raises ``UsageError`` outside [1, length + 1], which is all that a verification can yield.
    """
    if not 1.0 <= tokens <= length + 1.0:
        raise UsageError(
            f"a mean acceptance length of {tokens:g} with {length} drafted tokens cannot be",
            because=f"a verification yields 1 to {length + 1} tokens, the one of the model itself among them",
        )
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, float(length)) < tokens else (low, middle)
    return high


class Pass(NamedTuple):
    """Passes of a draft: of which model, how many tokens each request has in one, and how many follow each other."""

    model: Deployment
    width: int
    times: int


MOST_DRAFTED = 1024
"""The most tokens that are drafted at once, and candidates of each."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Speculation:
    """How drafts are made and checked.

    length: drafted tokens in depth, 0 for none. acceptance: chance that a drafted token is accepted, one number or one
    for each position given those before it. branches: candidates at each depth. draft: the model that drafts, on the
    same devices, with all of its weights and its cache; ``None`` for drafts that cost nothing. first, later: what of it
    runs in the first pass of a round and in the others, where that is not all of it. block: it drafts all tokens in one
    pass after the first. basis: where the acceptance is from, in words. texts: how far texts differ in it; 0 where
    nobody measured it, and all accept alike.

    Raises ``UsageError`` for a curve that is not of ``length`` positions, and a chance outside [0, 1].
    """

    length: int = 0
    acceptance: float | tuple[float, ...] = 0.0
    branches: int = 1
    draft: Deployment | None = None
    first: Deployment | None = None
    later: Deployment | None = None
    block: bool = False
    basis: str = ""
    texts: float = 0.0

    def __post_init__(self) -> None:
        if self.length < 0 or self.branches < 1:
            raise UsageError("speculation needs 0 or more drafted tokens and 1 or more branches")
        if max(self.length, self.branches) > MOST_DRAFTED:
            raise UsageError(
                f"{max(self.length, self.branches):,} drafted tokens or branches are more than any draft has",
                hint=f"--draft-tokens and --draft-branches of {MOST_DRAFTED:,} at most",
            )
        curve = self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,)
        if isinstance(self.acceptance, tuple) and len(curve) != self.length:
            raise UsageError(
                f"an acceptance of {len(curve)} positions does not go with {self.length} drafted tokens",
                hint=f"--draft-tokens {len(curve)}, or one chance for all positions",
            )
        for chance in curve:
            if not 0 <= chance <= 1:
                raise UsageError(f"an acceptance rate is in [0, 1], not {chance:g}")

    @property
    def part(self) -> Resting:
        """What its price rests on."""
        return PARTS["speculation"].on("formula" if self.basis in ("", "given") else "published")

    @classmethod
    def of_length(cls, tokens: float, length: int, branches: int = 1, draft: Deployment | None = None) -> Speculation:
        """Drafts of which an engine reports ``tokens`` a verification on average. Raises ``UsageError``.

        Of a tree it is the chance to pass a depth that follows; each of its candidates has the share of it.
        """
        passed = acceptance_of(tokens, length)
        each = 1.0 - (1.0 - passed) ** (1.0 / branches)
        return cls(length=length, acceptance=each, branches=branches, draft=draft)

    def beside(self, served: Deployment) -> Speculation:
        """The same drafts on the devices of ``served``, where those are others than the draft is on (a pool's own).

        A draft that is not divided into stages stays whole, on the last of them.
        """
        draft, parallel = self.draft, served.parallel
        if draft is None:
            return self
        own = draft.parallel
        if draft.hardware.name == served.hardware.name and (own.tp, own.dp) == (parallel.tp, parallel.dp):
            return self
        parallel = parallel if own.pp > 1 else replace(parallel, pp=1)
        parallel = parallel if draft.model.has_experts else replace(parallel, ep=1, redundant=0)
        changes: dict[str, Any] = {"hardware": served.hardware, "parallel": parallel, "calibration": served.calibration}
        moved = {id(part): replace(part, **changes) for part in (draft, self.first, self.later) if part is not None}
        first, later = (None if part is None else moved[id(part)] for part in (self.first, self.later))
        return replace(self, draft=moved[id(draft)], first=first, later=later)

    @property
    def width(self) -> int:
        """Tokens that a step computes for each request."""
        return 1 + self.length * self.branches

    @property
    def curve(self) -> tuple[float, ...]:
        """The chance that each position is accepted, given those before it."""
        return self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,) * self.length

    @cached_property
    def tokens(self) -> float:
        """Tokens that a step yields for each request, on average."""
        return float(1.0 + np.sum(np.cumprod(self._passed)))

    def paces(self, count: int, seed: int) -> Array | None:
        """Seconds a token of each of ``count`` requests over those of their mean, which is 1; ``None`` where all are
        alike. Of texts that are evenly apart, in an order that ``seed`` draws: of the ninth of its streams, for a load
        draws from those before it.
        """
        if not self.texts or not self.length:
            return None
        paces = self._of_texts((np.arange(count) + 0.5) / count)
        return np.random.default_rng((seed, 9)).permutation(paces / np.mean(paces))

    def pace(self, percentile: float) -> float:
        """Seconds a token of the request that this percentage is faster than, over those of the mean."""
        if not self.texts or not self.length:
            return 1.0
        mean = float(np.mean(self._of_texts((np.arange(_TEXTS) + 0.5) / _TEXTS)))
        return float(self._of_texts(np.asarray(1.0 - percentile / 100))) / mean

    def _of_texts(self, worse: Array) -> Array:
        """Verifications a token of texts, by the share of texts that are worse."""
        odds = (worse / (1.0 - worse)) ** self.texts
        chances = self._passed[:, None] * np.atleast_1d(odds)
        chances = chances / (1.0 - self._passed[:, None] + chances)
        steps: Array = 1.0 / (1.0 + np.sum(np.cumprod(chances, axis=0), axis=0)).reshape(np.shape(worse))
        return steps

    @property
    def _passed(self) -> Array:
        """The chance that each depth is passed, given those before it."""
        return 1.0 - (1.0 - np.asarray(self.curve, dtype=np.float64)) ** self.branches

    @property
    def accepted(self) -> str:
        """The acceptance in words: ``"acceptance 0.7"``, ``"acceptance 0.8, 0.6, 0.4 by position"``."""
        if isinstance(self.acceptance, tuple):
            return f"acceptance {', '.join(f'{chance:.3g}' for chance in self.acceptance)} by position"
        return f"acceptance {self.acceptance:.3g}"

    @property
    def passes(self) -> list[Pass]:
        """The passes of a round of drafts; the prompts of a step are in the first. None where drafts cost nothing."""
        if self.draft is None or not self.length:
            return []
        made = Pass(self.first or self.draft, self.length + 1, 1)
        if self.block:
            return [made, Pass(self.later or self.draft, self.length + 1, 1)]
        rest = Pass(self.later or self.draft, self.branches, self.length - 1)
        return [made, rest] if rest.times else [made]

    @property
    def extending(self) -> Speculation:
        """What the draft computes of each request in the first pass of a round: the tokens of a verification."""
        return Speculation(length=self.length)

    def with_drafts(
        self,
        step: StepTime,
        first: Callable[[Deployment], StepTime],
        later: Callable[[Deployment, float], StepTime] | None = None,
    ) -> StepTime:
        """A step of the model with the round of drafts ahead of it.

        ``first(draft)``: the draft's first pass, with :attr:`extending` of each request and the prompts of the step.
        ``later(draft, width)``: another, of ``width`` tokens each; ``None`` where nothing decodes.
        """
        for number, (model, width, times) in enumerate(self.passes):
            if number and later is None:
                break
            made = later(model, float(width)) if number and later is not None else first(model)
            step = step.plus(_passed(made, len(step.fullest), not one_graph(model)), times)
        return step


def one_graph(draft: Deployment) -> bool:
    """Whether the passes of a draft are launched with the step, so that the host does nothing between them."""
    return bool(draft.engine.drafts_in_one_graph)


def _passed(made: StepTime, stations: int, host: bool) -> StepTime:
    """A pass of a draft as a part of a step, with what it takes on the ``host`` or without.

    One that is not divided into stages is beside the last of a pipeline: the hidden state is there.
    """

    def placed(times: tuple[Num, ...]) -> tuple[Num, ...]:
        return (times[0] if host else 0.0, *[0.0] * (stations - len(times)), *times[1:])

    fullest = placed(made.fullest)
    return replace(made, fullest=fullest, mean=fullest if made.mean is made.fullest else placed(made.mean))


PLAIN = Speculation()
"""No speculation: one token a step."""


MOST_DRAFTED = 1024
"""The most tokens that are drafted at once, and candidates of each."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SpeculationGain:
    """Speculation on a static batch: seconds, and how they compare with plain decoding."""

    plain: Num
    """Seconds a token without drafts."""
    verify: Num
    """Seconds of a verification alone."""
    draft: Num
    """What the drafts before it add to it."""
    tokens: float

    @property
    def tpot(self) -> Num:
        return (self.verify + self.draft) / self.tokens

    @property
    def speedup(self) -> Num:
        """Below 1 speculation loses."""
        return self.plain / self.tpot


def step_with_drafts(deployment: Deployment, speculation: Speculation, batch: Num, context: Num) -> StepTime:
    """A decode step of a whole batch with ``context`` tokens behind each: its drafts, and their verification."""
    verify = decode_cycle(deployment, batch, context, float(speculation.width)).step_time

    def step(draft: Deployment, width: float = float(speculation.extending.width)) -> StepTime:
        return decode_cycle(draft, batch, context, width).step_time

    return speculation.with_drafts(verify, step, step)


def prompt_with_drafts(
    deployment: Deployment, speculation: Speculation, batch: Num, new: Num, past: Num = 0.0
) -> StepTime:
    """The prefill of a whole batch, ``new`` tokens each behind ``past`` cached ones, by the model and its draft."""

    def drain(one: Deployment) -> StepTime:
        return prompt_drain(one, batch, new, past).step_time

    return speculation.with_drafts(drain(deployment), drain)


def speculate(deployment: Deployment, speculation: Speculation, batch: Num, context: Num) -> SpeculationGain:
    """What ``speculation`` does to a decode of ``batch`` requests with ``context`` tokens behind them."""
    batch = np.asarray(batch, dtype=np.float64)
    verify = decode_cycle(deployment, batch, context, float(speculation.width)).step_time
    whole = step_with_drafts(deployment, speculation, batch, context)
    return SpeculationGain(
        plain=decode_cycle(deployment, batch, context).time,
        verify=verify.total,
        draft=whole.total - verify.total,
        tokens=speculation.tokens,
    )


def break_even(deployment: Deployment, speculation: Speculation, context: Num, largest: int = 4096) -> int | None:
    """The smallest batch at which speculation loses; ``None`` when it gains up to ``largest``."""
    batches = np.unique(np.rint(np.geomspace(1, largest, 400)))
    losing = np.asarray(speculate(deployment, speculation, batches, context).speedup) < 1.0
    return int(batches[int(np.argmax(losing))]) if np.any(losing) else None
