"""Attention ranks that share experts and hold prompts back for each other, so as to compute them in the same steps.

A prompt on one rank makes a step long for all of them. SGLang's ``PrefillDelayer`` lets none start while some ranks
have one and others none, nor while the fullest rank has fewer free slots than the largest batch of prompts of late; for
so many steps at most. ATOM's lets none start, nor go on, before every rank has one and those that wait fill a step,
unless they have grown no more for some steps, or a cache is nearly full. Where nobody decodes nobody waits: SGLang's
idle passes take no time, ATOM lets go at once. Both are as of servers that have run before: the first prompts of all
are let through at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from inferplan.devices.cadence import DelayRule

_ATTEMPTS = 16
"""Batches of prompts of which SGLang remembers the largest (``SGLANG_PREFILL_DELAYER_MAX_PREFILL_BS_WINDOW_SIZE``)."""


class RankState(NamedTuple):
    """What a rank tells the others before a step.

    ready: it has a prompt that could start, or goes on. waiting: prompts in its queue. pending: tokens to compute of
    those, and of the one that goes on, no more than a step's budget. partial: one goes on. decoding: requests that
    decode. used: share of its cache.
    """

    ready: bool
    waiting: int
    pending: int
    partial: bool
    decoding: int
    used: float


class PromptDelay:
    """What the ranks of a replica remember from step to step. slots, budget: of one rank."""

    def __init__(self, rule: DelayRule, ranks: int, slots: int, budget: int) -> None:
        self.rule, self.slots, self.budget = rule, slots, budget
        self.held = 0
        """Steps for which prompts have been held back."""
        self.stalled = 0
        """Of those the last in which no prompt came."""
        self.pending = -1
        """Tokens that waited in the step before; -1: nobody waited."""
        self.sizes: list[deque[int]] = [deque(maxlen=_ATTEMPTS) for _ in range(ranks)]
        """Prompts of the last batches that each rank computed, or was not let."""

    def reset(self) -> None:
        """Nobody waits for another any more."""
        self.held = self.stalled = 0
        self.pending = -1

    def holds(self, states: Sequence[RankState]) -> bool:
        """Whether no prompt starts in the step that is composed."""
        waits = False
        if any(state.ready for state in states) and any(state.decoding for state in states):
            waits = self.held < self.rule.most and self._waits(states)
        if waits:
            self.held += 1
        else:
            self.reset()
        return waits

    def _waits(self, states: Sequence[RankState]) -> bool:
        """Whether prompts wait for other ranks, or for each other."""
        fills, aligned = self.rule.fills, all(state.ready for state in states)
        if fills is None:
            largest = max([max(sizes, default=0) for sizes in self.sizes])
            return not aligned or self.slots - max([state.decoding for state in states]) < largest
        if any(state.ready and state.used >= fills.full for state in states):
            return False
        if self.held >= fills.partial and any(state.partial for state in states):
            return False
        if not aligned:
            return True
        pending = sum([state.pending for state in states])
        if pending >= fills.target * len(states) * self.budget:
            return False
        self.stalled = self.stalled + 1 if pending <= self.pending else 0
        self.pending = pending
        return self.stalled < fills.stall

    def observe(self, states: Sequence[RankState], prompts: Sequence[int]) -> None:
        """A step is composed of so many prompts of each rank; of one that was not let as many as it might have had."""
        for state, count, sizes in zip(states, prompts, self.sizes):
            if state.ready:
                sizes.append(count or min(max(state.waiting, 1), max(self.slots - state.decoding, 1)))
