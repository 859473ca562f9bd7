"""Seconds until the first token under load, in closed form: what takes them, term by term.

A request waits for a place in the batch (the caller says how long: users queue, adapters have slots), passes the front
end, waits for the rest of the step that runs, for the step that is composed already, and for prompts before its own;
then its own prompt passes through the stages in one or more pieces, and clients may see the token a step later:

    front end     latency + front_request + front_token*prompt
    running step  at random times the one that runs is a long one: what is left of it is E[T^2]/(2 E[T]) on average, the
                  mean residual life (Kleinrock, Queueing Systems, volume 1, chapter 5.2); with pp batches in flight a
                  step ends pp times as often. Under a cadence of prompts T is the time between two steps that may hold
                  some (:class:`inferplan.serving.rounds.Openings`). Only a request that comes while something runs
                  waits for it
    next step     where a step is composed while the one before it runs, a request joins one later
    queue         a prompt in pieces keeps the first stage for ``line`` seconds: the wait of an M/D/1 queue of those
                  (:mod:`inferplan.serving.techniques.queueing`), in the share of rounds that hold prompts
    own prompt    passage + (pieces - 1)*interval
    seen late     the next step, where clients see what a step has made when that is done

The running step is met with a chance. Of requests that know nothing of each other, ``B`` of which run on average, none
runs with ``exp(-B)`` (the number in M/G/infinity is Poisson; arrivals see time averages: Wolff, Operations Research 30,
1982). Of ``N`` users a user meets what the others do (the arrival theorem: Sevcik and Mitrani, J. ACM 28, 1981).

At a percentile the request comes when a long step has just begun, and behind the tail of the queue for the room in the
steps. Everything broadcasts: the steady state of users is one array of it, a planner's grid another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from inferplan.estimate.deployment import Deployment
from inferplan.serving.rounds import LoadedRounds, mean_round, overlaps, seen_late
from inferplan.serving.techniques.queueing import mean_wait, tail_wait
from inferplan.units import BoolArray, Num

BUSIEST = 0.98
"""Rounds that hold prompts more often than that count as this: an M/D/1 queue at 1 has no mean wait."""
_FULLEST = 0.999
"""The same of the room in the steps, for the tail of the wait; what is fuller is ruled out by other conditions."""


class FrontEnd(NamedTuple):
    """Seconds in front of the engine. latency: of client and server. work: tokeniser and server, by prompt tokens."""

    latency: Num
    work: Num

    @property
    def seconds(self) -> Num:
        return self.latency + self.work


def front_end(deployment: Deployment, prompt: Num) -> FrontEnd:
    """What a prompt of so many tokens takes in front of the engine; nothing at the bare roofline."""
    if deployment.calibration.basis == "roofline":
        return FrontEnd(0.0, 0.0)
    serving = deployment.engine.serving
    return FrontEnd(serving.latency, serving.front_request + serving.front_token * prompt)


class Company(NamedTuple):
    """What an arriving request meets. running: the chance that a step is in progress. ahead: the most prompts that can
    be before its own."""

    running: Num = 1.0
    ahead: Num = np.inf


def open_company(batch: Num, ranks: int) -> Company:
    """Of requests that know nothing of each other, where ``batch`` decode on each of so many ranks that step
    together."""
    return Company(running=1.0 - np.exp(-batch * ranks))


def user_company(batch: Num, admitted: Num, ranks: int) -> Company:
    """Of users, ``admitted`` on each of so many ranks that step together, of whom ``batch`` decode."""
    together = admitted * ranks
    others = batch * ranks * np.maximum(1.0 - 1.0 / np.maximum(together, 1e-9), 0.0)
    return Company(running=np.minimum(others, 1.0), ahead=np.maximum(admitted - 1.0, 0.0))


@dataclass(frozen=True, kw_only=True, eq=False)
class FirstTokenTerms:
    """Seconds of each term from arrival, or from admission where a request waits for a place, to the first token."""

    front_end: Num
    running_step: Num
    next_step: Num
    queue: Num
    own_prompt: Num
    seen_late: Num

    @property
    def before(self) -> Num:
        """Until the first step of its own."""
        return self.front_end + self.running_step + self.next_step + self.queue

    @property
    def own(self) -> Num:
        """From there until the first token is seen."""
        return self.own_prompt + self.seen_late

    @property
    def total(self) -> Num:
        return self.before + self.own


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptPath:
    """An engine in its steady state as an arriving prompt finds it.

    front_end: seconds in front of it. round: of the mean round; residual: of the rest of the one that runs, on average,
    and of those behind it that may hold no prompt. line: seconds for which a prompt keeps the next one waiting. own:
    seconds of its pieces through all stages. queued: whether prompts wait for others before them, as those in pieces
    do. busy: the share of rounds that hold prompts. filled: prompt tokens over the room for them. last: seconds of the
    round before one that may hold prompts, where that is not the mean one. apart: seconds of the rounds between pieces
    of a prompt while others decode.
    """

    deployment: Deployment
    front_end: Num
    round: Num
    residual: Num
    line: Num
    own: Num
    queued: BoolArray | bool
    busy: Num
    filled: Num
    last: Num | None = None
    apart: Num = 0.0

    def mean(self, company: Company) -> FirstTokenTerms:
        """The mean of each term for a request that meets so much company."""
        busy = np.minimum(self.busy, BUSIEST)
        queue = np.where(self.queued, mean_wait(self.line, busy) * busy, 0.0)
        if np.any(np.isfinite(company.ahead)):
            queue = np.minimum(queue, company.ahead * self.line / 2)
        return self._terms(company, self.residual * company.running, queue)

    def _terms(self, company: Company, running_step: Num, queue: Num) -> FirstTokenTerms:
        last = self.round if self.last is None else self.last
        return FirstTokenTerms(
            front_end=self.front_end,
            running_step=running_step,
            next_step=last * company.running if overlaps(self.deployment) else 0.0,
            queue=queue,
            own_prompt=self.own + self.apart * company.running,
            seen_late=self.round if seen_late(self.deployment) else 0.0,
        )

    def slow(self, running: Num, beyond: float) -> FirstTokenTerms:
        """The terms of the request that a share ``beyond`` of all is slower than. running: seconds of the step that it
        finds in progress, of which as much is left as of the others was over."""
        return self._terms(Company(), running, tail_wait(self.line, np.clip(self.filled, 0.0, _FULLEST), beyond))


def prompt_path(deployment: Deployment, rounds: LoadedRounds, prompt: Num) -> PromptPath:
    """The path of prompts of so many tokens, known ones too, through the rounds of a rank under load."""
    mixed = deployment.engine.batching.mixed
    decode, own, share, pieces = rounds.decode.total, rounds.own.total, rounds.held.share, rounds.pieces
    mean, openings = mean_round(share, decode, own, mixed), rounds.openings(deployment)
    kept = openings.kept * decode
    waiting = 0.0 if deployment.cadence.yields else kept  # a prompt that has to wait for another ends the waiting
    return PromptPath(
        deployment=deployment,
        front_end=front_end(deployment, prompt).seconds,
        round=mean,
        residual=openings.residual / deployment.parallel.pp,
        line=pieces * (rounds.own.interval + waiting),
        own=rounds.own.passage + (pieces - 1.0) * rounds.own.interval,
        queued=pieces > 1,
        busy=share,
        filled=rounds.held.filled,
        last=decode if openings.kept else None,
        apart=(pieces - 1.0) * kept,
    )
