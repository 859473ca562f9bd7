"""A round of an engine in its steady state: every sequence that decodes gets its next token.

The planning grid and the closed form price their steps here, the simulator's tables by the same operators
(:mod:`inferplan.serving.step_times`). With a pipeline a round holds as many batches as are in flight, each with its own
sequences; where attention ranks share experts, a round ends with the rank that has most to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from inferplan.devices.cadence import NO_CADENCE, Cadence
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import Batches, StepTime, time_batches, time_together
from inferplan.estimate.shared import Shared
from inferplan.serving.launches import launch_floors
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.units import Num
from inferplan.work.step import Segment, Step


class Decodes(NamedTuple):
    """Sequences of one attention rank that decode, over all its batches in flight, and the tokens behind each.

    source: how many of those an encoder has read, where there is one.
    """

    batch: Num
    context: Num
    source: Num | None = None


class HeldPrompts(NamedTuple):
    """Prompts of the batch that holds most: how many, and new and cached tokens of each.

    As shares of them, 1 where all are alike: ``fill``, the prompts of the mean batch on the mean rank; ``beside``,
    those of the same batch on the mean rank.
    """

    number: Num
    new: Num
    past: Num
    fill: Num = 1.0
    beside: Num = 1.0


def overlaps(deployment: Deployment) -> bool:
    """Whether a step is composed while the one before it runs, so that arrivals join one step late.

    Not in a pipeline, where composing a batch hides behind the others in flight anyway, nor on an ideal device.
    """
    ideal, pp = deployment.calibration.basis == "roofline", deployment.parallel.pp
    return deployment.engine.serving.overlapped and not ideal and pp == 1


def seen_late(deployment: Deployment) -> bool:
    """Whether clients see what a step has made when the next one is done, rather than when it is itself."""
    return overlaps(deployment) and deployment.engine.serving.seen_late


class Holding(NamedTuple):
    """Rounds that hold prompts: their share of all, and what the prompts are (:class:`HeldPrompts`)."""

    share: Num
    number: Num
    each: Num
    fill: Num
    beside: Num
    filled: Num
    """Tokens to compute over the room for them."""

    def prompts(self, new: Num, cached: Num) -> HeldPrompts:
        """The prompts of such a round, where each has ``new`` tokens to compute behind ``cached`` ones.

        A piece has on average half of the other pieces of its prompt behind it.
        """
        return HeldPrompts(
            self.number, self.each, cached + np.maximum(new - self.each, 0.0) / 2, self.fill, self.beside
        )


class _Shares(NamedTuple):
    """Of all rounds those in which any rank holds prompts, and those in which one rank does; the chance that another
    rank holds some where one does; tokens to compute over the room for them."""

    any: Num
    one: Num
    others: Num
    filled: Num


def _shares_behind_gaps(coming: Num, filled: Num, ranks: int, cadence: Cadence, mixed: bool) -> _Shares:
    """Where ``gap`` rounds that only decode follow one with prompts of any rank.

    Prompts come independently, ``X`` a round to all ranks, and those of ``w`` rounds may start together: of ``gap``,
    and of the one with prompts where it decodes too. Where none came then, the first to come starts at once. From one
    round with prompts to the next are ``w + exp(-X*w)/(1 - exp(-X))`` on average (a renewal process; one more round for
    each in which none comes). What has no room in one waits for the next, or, where that ends the waiting, no longer.
    """
    window, every = cadence.gap + mixed, coming * ranks
    came, none = 1.0 - np.exp(-every), np.exp(-every * window)
    share = 1.0 / (window + none / np.maximum(came, 1e-300))
    others = 1.0 - np.exp(-coming * window) + none * (1.0 - np.exp(-coming)) / np.maximum(came, 1e-300)
    most = 1.0 if cadence.yields else 1.0 / window
    one = np.minimum(np.maximum(share * others, filled), most)
    return _Shares(np.maximum(share, one), one, others, filled / most)


def _shares_on_grid(coming: Num, filled: Num, ranks: int, grid: int) -> _Shares:
    """Where every ``grid``-th round may hold prompts, on all ranks the same; a rank that has more of them than such
    rounds have room for does not wait until it has none."""
    one = np.minimum(np.maximum((1.0 - np.exp(-coming * grid)) / grid, filled), 1.0)
    inside, outside = np.minimum(one * grid, 1.0), np.maximum(one * grid - 1.0, 0.0) / (grid - 1)
    share = (1.0 - (1.0 - inside) ** ranks) / grid + (1.0 - 1.0 / grid) * (1.0 - (1.0 - outside) ** ranks)
    others = (inside**2 + (grid - 1) * outside**2) / grid / np.maximum(one, 1e-300)
    return _Shares(share, one, others, filled)


def holding(
    coming: Num, new: Num, room: Num, groups: tuple[Num, int], cadence: Cadence = NO_CADENCE, mixed: bool = True
) -> Holding:
    """How ``coming`` prompts a round and rank, of ``new`` tokens to compute, fall into batches with ``room`` tokens.

    groups: batches in flight ``m``, and attention ranks that step together ``g``. Arrivals are independent, so a batch
    holds prompts with ``q = 1 - exp(-x/m)``, a round of one rank with ``r = 1 - exp(-x)``, both more where the room
    spreads prompts in pieces, and a round of all ranks with ``1 - (1 - r)^g``: one batch of one rank is enough to make
    it long. A batch that holds any has ``x*I/(m*q)`` tokens, no more than its room. A cadence keeps prompts out of most
    rounds, and then one batch is in flight; mixed: rounds with prompts decode too.
    """
    flight, ranks = groups
    tokens = coming * new / flight
    filled = tokens / room
    if cadence.grid > 1:
        share, batch_share, others, filled = _shares_on_grid(coming, filled, ranks, cadence.grid)
    elif cadence.gap:
        share, batch_share, others, filled = _shares_behind_gaps(coming, filled, ranks, cadence, mixed)
    else:
        batch_share = others = np.minimum(np.maximum(1.0 - np.exp(-coming / flight), filled), 1.0)
        one = np.minimum(np.maximum(1.0 - np.exp(-coming), filled), 1.0)  # of the rounds, on one rank
        share = one if ranks == 1 else 1.0 - (1.0 - one) ** ranks
    held = tokens / np.maximum(batch_share, 1e-12)
    number = np.maximum(held / new, 1.0)
    alike = ranks == 1 and bool(np.all(np.asarray(flight) == 1.0))
    each = np.maximum(np.minimum(np.minimum(held, new), room), 1.0)  # held/number, whole where the prompt is
    fill = 1.0 if alike else batch_share / share
    beside = (1.0 + (ranks - 1) * others) / ranks  # this rank's prompts, and what the others happen to hold
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
    prompts: HeldPrompts | None = None
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
        return price_rounds([deployment], [self])[0]

    def batches(self, deployment: Deployment) -> Batches:
        """The batches in flight that the round is made of."""
        microbatches = self.batches_in_flight(deployment)
        most, even = self._decoding(microbatches)
        fullest = self._step(most, 1.0)
        fill = 1.0 if self.prompts is None else self.prompts.fill
        mean = beside = None
        if deployment.parallel.pp > 1 and (np.any(np.asarray(fill) != 1.0) or np.any(np.asarray(most != even))):
            mean = self._step(even, fill)
        if self.prompts is not None and deployment.coupled_ranks > 1:
            beside = self._step(most, self.prompts.beside)
        return Batches(fullest=fullest, beside=beside, mean=mean, microbatches=microbatches)

    def served(self, deployment: Deployment, batches: Batches, time: StepTime) -> StepTime:
        """The ``time`` of its batches with the drafts and the engine's eager floor."""
        if self.speculation.draft is not None:
            own = replace(self, speculation=self.speculation.extending, flight=batches.microbatches)
            later = None if self.decodes is None else self._later_draft(batches.microbatches)
            time = self.speculation.with_drafts(time, own.price, later)
        floors = launch_floors(deployment, batches.fullest) if self.prompts is not None else []
        return time.at_least(floors) if floors else time

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
            source = self.decodes.source
            segments.append(Segment(batch=decoding, new=width, past=self.decodes.context, source=source))
            rows = decoding * width
        if self.prompts is not None:
            number = self.prompts.number * fill
            segments.append(Segment(batch=number, new=self.prompts.new, past=self.prompts.past, media=True))
            rows = rows + number
        return Step(segments=tuple(segments), logits=rows)

    def _later_draft(self, microbatches: Num) -> Callable[[Deployment, float], StepTime]:
        """Prices the draft's steps after its first one, which hold the decodes alone."""
        assert self.decodes is not None
        each, context = self.decodes.batch / microbatches, self.decodes.context

        def price(draft: Deployment, width: float) -> StepTime:
            step = Step(segments=(Segment(batch=each, new=width, past=context),), logits=each * width)
            return time_batches(draft, Batches(fullest=step, microbatches=microbatches), "cycle")

        return price


def price_rounds(
    deployments: Sequence[Deployment], rounds: Sequence[Round], shared: Shared | None = None
) -> list[StepTime]:
    """:meth:`Round.price` of a round on each of several deployments that differ in their number of stages alone."""
    shared = shared or Shared()
    batches = [
        shared.of(
            (one,), ("batches", deployment.parallel.pp, deployment.coupled_ranks), partial(one.batches, deployment)
        )
        for one, deployment in zip(rounds, deployments, strict=True)
    ]
    times = time_together(deployments, batches, "cycle", shared)
    priced = zip(rounds, deployments, batches, times)
    return [one.served(deployment, made, time) for one, deployment, made, time in priced]


class PromptLoad(NamedTuple):
    """What a rank is asked for in every round: ``coming`` prompts, each of ``new`` tokens behind ``cached`` ones."""

    coming: Num
    new: Num
    cached: Num


class Openings(NamedTuple):
    """The times from one step that may hold prompts to the next, by whether it holds some: seconds, and how many of
    them there are for each round.

    Without a cadence these are the steps themselves. kept: rounds in each that only decode and may hold none.
    """

    long: Num
    longs: Num
    short: Num
    shorts: Num
    kept: int

    @property
    def residual(self) -> Num:
        """Mean seconds to the next from any moment: the mean residual life of the time in which it lies."""
        squares = self.shorts * self.short**2 + self.longs * self.long**2
        return squares / (2 * (self.shorts * self.short + self.longs * self.long))

    @property
    def in_long(self) -> Num:
        """The share of the time that lies in those with prompts."""
        return self.longs * self.long / (self.shorts * self.short + self.longs * self.long)


class LoadedRounds(NamedTuple):
    """Rounds of decodes alone, and those that hold prompts (alone in their step where the policy does not mix)."""

    decode: StepTime
    own: StepTime
    held: Holding
    room: Num
    """Tokens that a batch has for prompts."""
    pieces: Num
    """Batches that one prompt takes: the last piece is as long as what is left."""

    def openings(self, deployment: Deployment) -> Openings:
        """When prompts may start."""
        mixed, cadence = deployment.engine.batching.mixed, deployment.cadence
        decode, own, share = self.decode.total, self.own.total, self.held.share
        if cadence.grid > 1:
            long, apart = own + (cadence.grid - 1) * decode, 1.0 / cadence.grid
            often = np.minimum(share, apart)
            return Openings(long, often, cadence.grid * decode, apart - often, cadence.grid - 1)
        window = cadence.gap + mixed
        if not cadence.gap:
            return Openings(own, share, decode, 1.0 - share * window, 0)
        between = np.minimum(1.0 / np.maximum(share, 1e-300), window) - mixed  # fewer where a backlog ends the waiting
        return Openings(own + between * decode, share, decode, np.maximum(1.0 - share * window, 0.0), cadence.gap)


def loaded_rounds(
    deployment: Deployment, decodes: Decodes, load: PromptLoad, budget: Num, speculation: Speculation = PLAIN
) -> LoadedRounds:
    """The rounds of a rank under load, by the policy of the engine; everything broadcasts.

    budget: tokens of a batch. None of the steps holds a segment that is empty.
    """
    return loaded_together([deployment], Round(decodes=decodes, speculation=speculation), load, budget)[0]


def loaded_together(
    deployments: Sequence[Deployment],
    alone: Round,
    load: PromptLoad,
    budget: Num,
    shared: Shared | None = None,
) -> list[LoadedRounds]:
    """:func:`loaded_rounds` of deployments that differ in their number of stages alone. alone: a round of decodes.
    shared: what others that were priced before have in common with them."""
    shared = shared or Shared()
    made = [
        shared.of(
            (alone, load, budget), _policy(deployment), partial(round_with_prompts, deployment, alone, load, budget)
        )
        for deployment in deployments
    ]
    priced = zip(
        price_rounds(deployments, [alone] * len(made), shared),
        price_rounds(deployments, [own for own, _, _ in made], shared),
        made,
    )
    return [
        LoadedRounds(decode, own, held, room, np.maximum(load.new / room, 1.0))
        for decode, own, (_, held, room) in priced
    ]


def _policy(deployment: Deployment) -> tuple[int, int, Cadence, bool, bool]:
    """What :func:`round_with_prompts` asks of a deployment."""
    parallel, engine = deployment.parallel, deployment.engine
    mixed, pieces = engine.batching.mixed, engine.defaults.scheduler.chunked_prefill
    return parallel.pp, deployment.coupled_ranks, deployment.cadence, mixed, pieces


def round_with_prompts(
    deployment: Deployment, alone: Round, load: PromptLoad, budget: Num
) -> tuple[Round, Holding, Num]:
    """The round that holds prompts, what it holds of them, and the tokens that a batch has for them."""
    assert alone.decodes is not None
    mixed, width = deployment.engine.batching.mixed, alone.speculation.width
    flight = alone.batches_in_flight(deployment)
    room = np.maximum(budget - (alone.decodes.batch / flight * width if mixed else 0.0), 1.0)
    if not deployment.engine.defaults.scheduler.chunked_prefill:
        room = np.maximum(np.floor(room / load.new), 1.0) * load.new
    held = holding(load.coming, load.new, room, (flight, deployment.coupled_ranks), deployment.cadence, mixed)
    prompts = held.prompts(load.new, load.cached)
    return replace(alone, decodes=alone.decodes if mixed else None, prompts=prompts, flight=flight), held, room
