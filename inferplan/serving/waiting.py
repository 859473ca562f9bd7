"""The order in which waiting requests are admitted: first come first served, by priority, or fair by what was served.

First come, first served is a ``deque``; the others have its methods as far as the queue of an engine uses them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal

from inferplan.serving.decode_batch import DecodeBatch
from inferplan.serving.records import Records

QueueOrder = Literal["fcfs", "priority", "fair"]
"""fcfs: first come, first served. priority: the lowest number first, in order of arrival within it (vLLM
``--scheduling-policy priority``). fair: the class that was served least for its weight (VTC)."""

INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
"""What a prompt token and an output token count as service, ``w_p`` and ``w_q`` in the experiments of Sheng et al.,
Fairness in Serving Large Language Models, OSDI 2024 (arXiv 2401.00588)."""


class Service:
    """Told what is served to whom; nobody counts it unless the queue is fair."""

    def admit(self, request: int, prompt: int) -> None:
        """A request is admitted for the first time."""

    def write_first(self, request: int) -> None:
        """A prompt is done, and has made a token."""

    def decode(self, request: int, lane: DecodeBatch, change: int) -> None:
        """A request begins to decode in a lane (1), or does so no longer (-1)."""


class Lines:
    """Requests in one line for each priority: the first of the first line that has any goes next."""

    def __init__(self, of: Sequence[int], line_of: Sequence[int]) -> None:
        self.of, self.line_of = of, line_of
        """The class of each request, and the line of each class."""
        self.lines: list[deque[int]] = [deque() for _ in range(max(line_of) + 1)]
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return (request for line in self.lines for request in line)

    def __getitem__(self, place: int) -> int:
        """The request that goes next; ``place`` is 0."""
        return self.lines[self.next()][place]

    def next(self) -> int:
        """The line whose first request goes next."""
        return next(index for index, line in enumerate(self.lines) if line)

    def append(self, request: int) -> None:
        """A request comes."""
        self.lines[self.line_of[self.of[request]]].append(request)
        self.size += 1

    def appendleft(self, request: int) -> None:
        """A request comes back: it is the first of its line."""
        self.lines[self.line_of[self.of[request]]].appendleft(request)
        self.size += 1

    def popleft(self) -> int:
        """The request that goes next leaves."""
        return self.remove_first(self.next())

    def remove_first(self, line: int) -> int:
        """The first request of a line leaves."""
        self.size -= 1
        return self.lines[line].popleft()


class FairLines(Lines):
    """One line for each class; the first request of the class that was served least for its weight goes next.

    Virtual token counters, algorithm 2 of Sheng et al. (OSDI 2024) in its weighted form: a class ``i`` of weight
    ``w_i`` has ``c_i``, which grows by ``w_p/w_i`` for each prompt token when a request is admitted and by ``w_q/w_i``
    for each token that is written; the class of the waiting requests with the least ``c_i`` goes next. Who comes while
    none of its class waits is lifted to the least counter of those that wait, or, where nobody does, to that of the
    class that left the queue last: nobody saves up for a burst. A prompt that is computed again counts once.
    """

    def __init__(self, of: Sequence[int], weights: Sequence[float], each: float) -> None:
        super().__init__(of, range(len(weights)))
        self.weights, self.each = weights, each
        self.counters = [0.0] * len(weights)
        """Service over weight, but for what those have written that decode now: see :meth:`counter`."""
        self.decoding: list[dict[DecodeBatch, int]] = [{} for _ in weights]
        """How many requests of each class decode in each lane; each writes ``each`` tokens a step."""
        self.left_last = 0

    def counter(self, line: int) -> float:
        """Service of a class over its weight so far."""
        steps = sum([count * lane.steps for lane, count in self.decoding[line].items()])
        return self.counters[line] + OUTPUT_WEIGHT * self.each * steps / self.weights[line]

    def next(self) -> int:
        """The line that was served least; of equals the first."""
        return min((index for index, line in enumerate(self.lines) if line), key=self.counter)

    def append(self, request: int) -> None:
        """A request comes; its class is lifted where none of it waits."""
        self._lift(self.of[request])
        super().append(request)

    def appendleft(self, request: int) -> None:
        """A request comes back, likewise."""
        self._lift(self.of[request])
        super().appendleft(request)

    def _lift(self, line: int) -> None:
        if self.lines[line]:
            return
        least = self.counter(self.next() if self.size else self.left_last)
        self.counters[line] += max(least - self.counter(line), 0.0)

    def popleft(self) -> int:
        """The request that goes next leaves."""
        self.left_last = self.next()
        return self.remove_first(self.left_last)

    def admit(self, request: int, prompt: int) -> None:
        """Its prompt is served."""
        line = self.of[request]
        self.counters[line] += INPUT_WEIGHT * prompt / self.weights[line]

    def write_first(self, request: int) -> None:
        """The token is served."""
        line = self.of[request]
        self.counters[line] += OUTPUT_WEIGHT / self.weights[line]

    def decode(self, request: int, lane: DecodeBatch, change: int) -> None:
        """What it writes until it stops is known from the steps of its lane."""
        line = self.of[request]
        self.counters[line] -= change * OUTPUT_WEIGHT * self.each * lane.steps / self.weights[line]
        self.decoding[line][lane] = self.decoding[line].get(lane, 0) + change


def to_send_back(
    running: dict[int, None], here: DecodeBatch, partial: int | None, order: QueueOrder, records: Records
) -> int:
    """Which of the ``running`` requests, in order of admission, is sent back when the cache is full: of those that
    decode ``here`` and the one whose prompt is in pieces the last (vLLM V1), under priorities the last to come of the
    lowest (``v1/core/sched/scheduler.py``: ``max(running, key=(priority, arrival_time))``).
    """
    those = (request for request in reversed(running) if request in here.requests or request == partial)
    of, classes = records.of, records.classes
    if order != "priority" or of is None:
        return next(those)
    return max(those, key=lambda request: (classes[of[request]].priority, records.arrival[request]))


def lines_for(order: QueueOrder, records: Records, each: float) -> Lines | None:
    """The lines of an engine whose requests make ``each`` tokens a step; ``None`` for first come, first served."""
    of, classes = records.of, records.classes
    if order == "fcfs" or of is None:
        return None
    if order == "fair":
        return FairLines(of, [one.weight for one in classes], each)
    levels = sorted({one.priority for one in classes})
    return Lines(of, [levels.index(one.priority) for one in classes])
