"""A round of an engine in its steady state: every sequence that decodes gets its next token.

The planning grid and the closed form price their steps here, the simulator's tables by the same operators
(:mod:`inferplan.serving.step_times`). With a pipeline a round holds as many batches as are in flight, each with its own
sequences; where attention ranks share experts, a round ends with the rank that has most to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import Batches, StepTime, price_batches
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.units import Num
from inferplan.work.parallel import split_layers
from inferplan.work.step import Segment, Step


class Decodes(NamedTuple):
    """Sequences of one attention rank that decode, over all its batches in flight, and the tokens behind each."""

    batch: Num
    context: Num


class Prompts(NamedTuple):
    """Prompts of the batch that holds most: how many, and new and cached tokens of each.

    As shares of them, 1 where all are alike: ``fill``, the prompts of the mean batch on the mean rank; ``beside``,
    those of the same batch on the mean rank.
    """

    number: Num
    new: Num
    past: Num
    fill: Num = 1.0
    beside: Num = 1.0


def eager_floors(deployment: Deployment) -> list[float]:
    """Host seconds of each stage of a step that holds a prompt: layers launched kernel by kernel (docs/serving.md).

    Zeros where steps are priced at the bare roofline, because nothing else is charged for the host there either.
    """
    model, constants, pp = deployment.model, deployment.engine.serving, deployment.parallel.pp
    if deployment.calibration.basis == "roofline":
        return [0.0] * pp
    experts = any(weight.shard == "experts" for weight, _ in model.weights())
    per_layer = constants.eager_layer * (constants.eager_moe if experts else 1.0)
    floors, start = [], 0
    for count in split_layers(len(model.sequence), pp):
        layers = model.sequence[start : start + count]
        recurrent = sum(bool(part.cache().state) for layer in layers for part in layer.parts)
        floors.append(count * per_layer + recurrent * constants.eager_linear)
        start += count
    return floors


def coupled_ranks(deployment: Deployment) -> int:
    """Attention ranks that make every step together: all of a replica where they share experts, else each for itself.

    Each such step ends with the slowest rank, and ranks without requests take part (vLLM's data-parallel engines run
    dummy batches until all are done).
    """
    experts = any(weight.shard == "experts" for weight, _ in deployment.model.weights())
    return deployment.parallel.dp if experts else 1


class Holding(NamedTuple):
    """Rounds that hold prompts: their share of all, and what the prompts are (:class:`Prompts`)."""

    share: Num
    number: Num
    each: Num
    fill: Num
    beside: Num
    filled: Num
    """Tokens to compute over the room for them."""

    def prompts(self, new: Num, cached: Num) -> Prompts:
        """The prompts of such a round, where each has ``new`` tokens to compute behind ``cached`` ones.

        A piece has on average half of the other pieces of its prompt behind it.
        """
        return Prompts(self.number, self.each, cached + np.maximum(new - self.each, 0.0) / 2, self.fill, self.beside)


def holding(coming: Num, new: Num, room: Num, groups: tuple[Num, int]) -> Holding:
    """How ``coming`` prompts a round and rank, of ``new`` tokens to compute, fall into batches with ``room`` tokens.

    groups: batches in flight ``m``, and attention ranks that step together ``g``. Arrivals are independent, so a batch
    holds prompts with ``q = 1 - exp(-x/m)``, more where its room spreads them, and a round with ``1 - exp(-x*g)``: one
    batch of one rank is enough to make it long. A batch that holds any has ``x*I/(m*q)`` tokens, no more than its room.
    """
    flight, ranks = groups
    tokens = coming * new / flight
    filled = tokens / room
    batch_share = np.minimum(np.maximum(1.0 - np.exp(-coming / flight), filled), 1.0)
    share = np.minimum(np.maximum(1.0 - np.exp(-coming * ranks), filled), 1.0)
    held = tokens / np.maximum(batch_share, 1e-12)
    number = np.maximum(held / new, 1.0)
    alike = ranks == 1 and bool(np.all(np.asarray(flight) == 1.0))
    each = np.maximum(np.minimum(held / number, room), 1.0)
    fill = 1.0 if alike else batch_share / share
    beside = (1.0 + (ranks - 1) * batch_share) / ranks  # this rank's prompts, and what the others happen to hold
    return Holding(share, number, each, fill, beside, filled)


def mean_round(share: Num, decode: Num, holds: Num, mixed: bool) -> Num:
    """Mean of what a round without prompts and one with them take: seconds, or their squares.

    share: of the rounds that hold prompts. mixed: those hold the decodes too (vLLM, TensorRT-LLM); else prompts run
    between rounds, and the decodes stand still (SGLang).
    """
    return ((1.0 - share) * decode if mixed else decode) + share * holds


def departures(batch: Num, rounds: Num, seconds: Num) -> Num:
    """Requests a second that finish where ``batch`` decode and each takes so many rounds of so many seconds."""
    return batch / (rounds * seconds)


def in_system(rate: Num, ttft: Num, rounds: Num, seconds: Num) -> Num:
    """Requests that wait, compute their prompt or decode: Little's law."""
    return rate * (ttft + rounds * seconds)


@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """One round on one attention rank, and with it on all; at least one of ``decodes`` and ``prompts`` is there."""

    decodes: Decodes | None = None
    prompts: Prompts | None = None
    speculation: Speculation = PLAIN
    flight: Num | None = None
    """Batches in flight, where it is not what the round holds that says so: prompts in steps of their own."""

    def batches_in_flight(self, deployment: Deployment) -> Num:
        """``min(pp, sequences)``: those that decode, or the prompts where nothing does."""
        if self.flight is not None:
            return self.flight
        if deployment.parallel.pp == 1:
            return 1.0
        sequences = self.decodes.batch if self.decodes is not None else self.prompts.number if self.prompts else 1.0
        return np.clip(sequences, 1.0, float(deployment.parallel.pp))

    def price(self, deployment: Deployment) -> StepTime:
        """Wall seconds of the round, by what passes each station; with the engine's eager floor and the drafts."""
        microbatches = self.batches_in_flight(deployment)
        most, even = self._decoding(microbatches)
        fullest = self._step(most, 1.0)
        fill = 1.0 if self.prompts is None else self.prompts.fill
        mean = beside = None
        if deployment.parallel.pp > 1 and (np.any(np.asarray(fill) != 1.0) or np.any(np.asarray(most != even))):
            mean = self._step(even, fill)
        if self.prompts is not None and coupled_ranks(deployment) > 1:
            beside = self._step(most, self.prompts.beside)
        batches = Batches(fullest=fullest, beside=beside, mean=mean, microbatches=microbatches)
        time = price_batches(deployment, batches, "cycle").step_time
        if self.decodes is not None:
            time = self.speculation.with_drafts(time, lambda draft, width: self._draft(draft, width, microbatches))
        floors = eager_floors(deployment) if self.prompts is not None else [0.0]
        if not any(floors):
            return time
        eager = fullest.tokens > deployment.engine.serving.graph_tokens
        return time.at_least([np.where(eager, floor, 0.0) for floor in floors])

    def _decoding(self, microbatches: Num) -> tuple[Num | None, Num | None]:
        """Decodes of the fullest batch in flight, and of the mean one.

        A whole number of sequences falls into whole batches. Others are means over time, of a steady state, and have no
        fullest batch.
        """
        if self.decodes is None:
            return None, None
        batch = self.decodes.batch
        even = batch / microbatches
        if isinstance(microbatches, float) and microbatches == 1.0:
            return even, even
        return np.where(batch == np.rint(batch), np.ceil(even), even), even

    def _step(self, decoding: Num | None, fill: Num) -> Step:
        """A batch of so many decodes, and of so large a share of the fullest batch's prompts."""
        segments = []
        rows: Num = 0.0
        if self.decodes is not None and decoding is not None:
            width = float(self.speculation.width)
            segments.append(Segment(batch=decoding, new=width, past=self.decodes.context))
            rows = decoding * width
        if self.prompts is not None:
            number = self.prompts.number * fill
            segments.append(Segment(batch=number, new=self.prompts.new, past=self.prompts.past))
            rows = rows + number
        return Step(segments=tuple(segments), logits=rows)

    def _draft(self, draft: Deployment, width: float, microbatches: Num) -> StepTime:
        assert self.decodes is not None
        each = self.decodes.batch / microbatches
        segment = Segment(batch=each, new=width, past=self.decodes.context)
        batches = Batches(fullest=Step(segments=(segment,), logits=each * width), microbatches=microbatches)
        return price_batches(draft, batches, "cycle").step_time
