"""Who sends a request once an answer is there: the next turn of a conversation, or the next request of a user."""

from __future__ import annotations

from collections.abc import Iterator

from inferplan.serving.records import Records
from inferplan.traffic.requests import ClosedLoop


class Senders:
    """The requests of a run that wait for answers, and those that begin something of their own."""

    def __init__(self, records: Records, closed: ClosedLoop | None) -> None:
        self.records, self.closed = records, closed
        follows = records.follows or ()
        self.following = {before: request for request, before in enumerate(follows) if before >= 0}
        """The request that continues the conversation of another."""
        self.reacts = closed is not None or bool(self.following)
        """Whether answers bring requests."""
        self.beginning: Iterator[int] = iter(())
        self.limit = len(records.prompt)
        """Requests from here on are not sent."""

    def begin(self, start: int, stop: int) -> list[int]:
        """The requests from ``start`` to ``stop`` that wait for no answer to another of these; of a closed loop those
        of its users' first requests.
        """
        follows = self.records.follows
        first = [request for request in range(start, stop) if follows is None or follows[request] < start]
        self.limit, users = stop, len(first) if self.closed is None else self.closed.concurrency
        self.beginning = iter(first[users:])
        return first[:users]

    def after(self, request: int, time: float) -> float:
        """When the user who sees an answer at ``time`` has something to send, or looks for it."""
        following = self.following.get(request, self.limit)
        return time + self.think(following) if following < self.limit else time

    def next(self, request: int) -> tuple[int, float] | None:
        """What follows an answer, and how much later; ``None`` when its user is done."""
        following = self.following.get(request, self.limit)
        if following < self.limit:
            return following, 0.0
        beginning = next(self.beginning, None)
        return None if beginning is None else (beginning, self.think(beginning))

    def think(self, request: int) -> float:
        """Seconds that a user takes before a request."""
        return 0.0 if self.records.think is None else self.records.think[request]
