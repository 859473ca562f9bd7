"""The requests of one engine that decode together, and when each is done."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from math import ceil
from typing import Any

Decoding = tuple[int, float, int]
"""One request of the batch: steps that the batch had made when it entered, tokens in its cache then, and output tokens
that it had still to write."""


class DecodeBatch:
    """Requests that make one step together, each ``tokens_per_step`` tokens in it.

    ``static``: a place in the batch stays taken until the last request of the batch is done.
    ``interleaved``: other requests have steps between two of this batch (prompts alone, other lanes), so the time
    between tokens is measured from token to token; otherwise it is the time of a step. ``page``: tokens of a block of
    the cache, where contexts are whole numbers.
    """

    def __init__(self, tokens_per_step: float, static: bool, interleaved: bool, page: int = 1) -> None:
        self.tokens_per_step, self.static, self.interleaved, self.page = tokens_per_step, static, interleaved, page
        self.size = 0
        """Places in the batch: the requests that decode, under a static policy also those that are done already."""
        self.context = 0.0
        """Tokens behind all places together."""
        self.steps = 0
        self.block = page * tokens_per_step
        """Tokens of cache that a request takes at a time."""
        self.phases = [0] * page
        """Requests by their context less the steps made, modulo the page: who needs a new block in which step."""
        self.requests: dict[int, Decoding] = {}
        self.ends: list[tuple[int, int]] = []
        """Heap of (last step, request); of a thought (step that makes the first token of the answer, ``~request``)."""
        self.thinking = 0
        """Requests that have yet to make the first token of their answer."""
        self.answering: list[int] = []
        """Requests that have made the first token of their answer, until somebody is told."""
        self.joined: dict[int, float] = {}
        """When those that have decoded nothing yet got their first token (``interleaved`` only)."""
        self.token_time = 0.0
        """When the batch made its last tokens."""

    def enter(self, request: int, context: float, output: int, time: float, until_answer: int = 0) -> None:
        """A request with ``context`` tokens in its cache joins; it has ``output`` tokens to write, of which the first
        of its answer is number ``until_answer``, if it has yet to come.
        """
        each = self.tokens_per_step
        last = self.steps + (output if each == 1.0 else ceil(output / each))
        self.size += 1
        self.context += context
        self.phases[int(context - self.steps) % self.page] += 1
        self.requests[request] = (self.steps, context, output)
        heapq.heappush(self.ends, (last, request))
        if until_answer:
            self.thinking += 1
            heapq.heappush(self.ends, (self.steps + ceil(until_answer / each), ~request))
        if self.interleaved:
            self.joined[request] = time

    def steps_left(self) -> int:
        """Steps until the next request is done, or with its thought. The batch must hold one."""
        return self.ends[0][0] - self.steps

    def crossing(self, later: int) -> int:
        """Requests that need a new block in the step after ``later`` others."""
        return self.phases[-(self.steps + later) % self.page]

    def taken(self, steps: int) -> float:
        """Tokens of cache that the next ``steps`` steps take, in whole blocks."""
        page, phases = self.page, self.phases
        if steps == 1:
            return phases[-self.steps % page] * self.block
        cycles, rest = divmod(steps, page)
        blocks = cycles * self.size
        if rest:
            first = -self.steps % page + 1
            blocks += sum(phases[max(first - rest, 0) : first])
            if rest > first:
                blocks += sum(phases[first - rest :])
        return blocks * self.block

    def make(self, start: float, steps: int, price: float, gaps: array[Any], weights: array[Any]) -> float:
        """Run ``steps`` steps from ``start`` on, ``price`` seconds each: gives the tokens of cache that they take.

        The time between tokens goes to ``gaps``, the number of tokens that came so to ``weights``. The first gap has
        what came in between. Most calls of an interleaved batch are for one step whose tokens are there at ``start``,
        at a price of 0.
        """
        each, alive = self.tokens_per_step, len(self.requests)
        taken = self.phases[-self.steps % self.page] * self.block if steps == 1 else self.taken(steps)
        self.steps += steps
        self.context += steps * self.size * each
        if self.interleaved:
            if start > self.token_time:
                others = alive
                if self.joined:
                    for joined in self.joined.values():
                        gaps.append((start - joined + price) / each)
                        weights.append(each)
                    others -= len(self.joined)
                gaps.append((start - self.token_time + price) / each)
                weights.append(others * each if others > 0 else 0.0)
                steps -= 1
            self.joined.clear()
        if steps:
            gaps.append(price / each)
            weights.append(steps * alive * each)
        return taken

    def done(self) -> list[tuple[int, float, float]]:
        """Take out the requests that are done, and note those that are done with their thoughts.

        Gives each request, the tokens in its cache, and by how many tokens it has overshot its output (a last step may
        make more tokens than are asked for).
        """
        heap, steps, requests = self.ends, self.steps, self.requests
        left: list[tuple[int, float, float]] = []
        while heap and heap[0][0] <= steps:
            _, request = heapq.heappop(heap)
            if request < 0:
                self.thinking -= 1
                self.answering.append(~request)
                continue
            entry, context, output = requests.pop(request)
            written = (steps - entry) * self.tokens_per_step
            if not self.static:
                self.size -= 1
                self.context -= context + written
                self.phases[int(context - entry) % self.page] -= 1
            left.append((request, context + written, written - output))
        if self.static and not requests:
            self.size, self.context, self.phases = 0, 0.0, [0] * self.page
        return left

    def remove(self, request: int) -> tuple[float, float]:
        """Take out a preempted request: the tokens in its cache, and the output tokens that it has still to write."""
        entry, context, output = self.requests.pop(request)
        ends = len(self.ends)
        self.ends = [end for end in self.ends if end[1] not in (request, ~request)]
        self.thinking -= ends - len(self.ends) - 1
        heapq.heapify(self.ends)
        self.joined.pop(request, None)
        written = (self.steps - entry) * self.tokens_per_step
        self.size -= 1
        self.context -= context + written
        self.phases[int(context - entry) % self.page] -= 1
        return context + written, output - written


def steps_within(lanes: Sequence[DecodeBatch], room: float) -> int:
    """Steps that each lane can make before they take more than ``room`` tokens of cache; one of them must decode."""
    page, block = lanes[0].page, lanes[0].block
    size = sum(lane.size for lane in lanes)
    cycles = int(room // (size * block))
    room -= cycles * size * block
    for step in range(page):
        room -= sum(lane.crossing(step) for lane in lanes) * block
        if room < 0:
            return cycles * page + step
    return (cycles + 1) * page
