"""What the clients of one engine get to see: tokens, ends, refusals."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from inferplan.serving.admission import Rules
from inferplan.serving.records import FINISHED, REJECTED, TIMED_OUT, Records
from inferplan.serving.request_queue import RequestQueue

ALONE = "more than the cache holds, even alone"
"""Why a request is refused that the queue had taken."""


class Token(Enum):
    """Which token of a request a step has made."""

    FIRST = 1
    LAST = 2
    HANDOFF = 3
    """The first one, by an engine that only computes prompts: another one makes the rest."""
    ANSWER = 4
    """The first one after a thought."""


FIRST, LAST, HANDOFF, ANSWER = Token  # a member of the module is found five times as fast as one of the class


def nobody(request: int, tokens: int, time: float) -> None:
    """Nobody wants to know."""


class Clients:
    """Writes down when clients see what, and notifies whoever sends requests.

    ``notify(request, time, finished)`` is called when a client sees the end of a request, and with ``finished`` false
    when a prompt is done and its cache can leave for another engine.
    """

    def __init__(
        self, rules: Rules, records: Records, queue: RequestQueue, notify: Callable[[int, float, bool], None]
    ) -> None:
        self.rules, self.records, self.queue, self.notify = rules, records, queue, notify
        self.unseen: list[tuple[int, Token]] = []
        """Tokens made and not yet seen by a client."""
        self.goes_on: Callable[[int, int, float], object] = nobody
        """Told when another piece of a prompt begins: the request, its tokens that are computed, the time."""
        self.answers = True
        """Whether a client sees a first token that another pool decodes after, or made, without waiting for a step: as
        soon as it is made, and as soon as the cache has its place."""
        self.held: list[tuple[int, Token]] | None = None
        """Tokens that are shown and not seen until their step ends, where others slow it; ``None``: nobody does."""

    def show(self, time: float) -> None:
        """Clients see the tokens made so far at ``time``."""
        if self.held is not None:
            self.held += self.unseen
            self.unseen = []
            return
        records = self.records
        begun, unseen = records.first, self.unseen
        self.unseen = []
        for request, token in unseen:
            if begun[request] != begun[request] and (self.answers or token is not HANDOFF):
                begun[request] = time
            if token is FIRST:
                continue
            if token is LAST:
                records.finish[request] = time
                late = time - records.arrival[request] > self.rules.timeout
                records.status[request] = TIMED_OUT if late else FINISHED
            elif token is ANSWER:
                if records.answered[request] != records.answered[request]:
                    records.answered[request] = time
                continue
            self.notify(request, time, token is LAST)

    def until_answer(self, request: int, left: int) -> int:
        """Tokens up to the first of an answer of a request with ``left`` more to write; 0 where it is there, or nobody
        thinks. It may come with the prompt: of a request that was sent back, whose cache is computed again.
        """
        until = self.records.until_answer(request, left)
        if until == 0:
            self.unseen.append((request, ANSWER))
        return until or 0

    def answered(self, requests: list[int]) -> None:
        """These have made the first tokens of their answers; empties the list."""
        if requests:
            self.unseen += [(request, ANSWER) for request in requests]
            requests.clear()

    def begin(self, request: int, now: float) -> None:
        """A request whose prompt was computed elsewhere has a place: its client sees the first token if it has not."""
        first = self.records.first
        if first[request] == first[request]:
            return
        if self.answers:
            first[request] = now
        else:
            self.unseen.append((request, FIRST))

    def refuse(self, request: int, time: float, reason: str) -> None:
        """A request that can never run, at the door."""
        records = self.records
        records.status[request] = REJECTED
        records.refused[reason] = records.refused.get(reason, 0) + 1
        self.notify(request, time, True)

    def refuse_first(self, now: float) -> None:
        """The first request of the queue does not fit even alone."""
        request = self.queue.waiting[0]
        self.queue.take()
        self.records.status[request] = REJECTED
        self.records.refused[ALONE] = self.records.refused.get(ALONE, 0) + 1
        self.notify(request, now, True)

    def drop_expired(self, now: float) -> None:
        """The clients at the head of the queue who have waited too long give up."""
        for request in self.queue.expired(now):
            self.records.status[request] = TIMED_OUT
            self.records.finish[request] = self.records.arrival[request] + self.rules.timeout
            self.notify(request, now, True)
