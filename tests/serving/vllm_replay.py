"""A slow replay of vLLM V1's scheduler, block by block and step by step: an oracle for the simulator.

Written from vLLM's ``v1/core/sched/scheduler.py`` and ``v1/core/block_pool.py``, not from the simulator: no runs of
steps, no totals that are kept up to date. Each step

- gives the running requests their next tokens, oldest first, and each the blocks for them; where no block is left, the
  request admitted last loses all it has, goes to the head of the queue, and nothing is admitted in that step;
- then admits from the queue while tokens and slots are left: the head must find room for all its known tokens, takes
  blocks for those of this step, and finds its leading blocks by name, all but the last known token at most;
- names every block that it fills, those of generated tokens too, unless another holds a block of that name.

Blocks that nobody uses are taken nameless ones first, then those unused for longest, a request's last before its first.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

Price = Callable[[list[int], list[tuple[int, int]]], float]
"""Seconds of a step: tokens behind each decoding request, and (new, past) of each piece of a prompt."""


@dataclass(eq=False)
class Request:
    """Seconds, tokens; ``names`` of the blocks of prompt and output, as far as any can be found again."""

    arrival: float
    prompt: int
    output: int
    names: Sequence[Hashable] = ()
    first: float = math.nan
    finish: float = math.nan
    hits: int = 0
    """Tokens found when it was first admitted."""
    preempted: int = 0
    made: int = 0
    cached: int = 0
    decodes: bool = False
    """All it knows but the last token is cached, and was computed with it."""
    private: int = 0
    """Blocks that only it knows."""
    named: list[Hashable] = field(default_factory=list)
    """Blocks at its head that others may find."""

    @property
    def known(self) -> int:
        return self.prompt + self.made


class Pool:
    """Blocks by name with their users, those without any in the order in which they were given back."""

    def __init__(self, blocks: int) -> None:
        self.nameless = blocks
        self.users: dict[Hashable, int] = {}
        self.unused: dict[Hashable, None] = {}

    def left(self, but: Sequence[Hashable] = ()) -> int:
        return self.nameless + len(self.unused) - sum(1 for name in but if not self.users[name])

    def take(self, count: int) -> None:
        while self.nameless < count:
            oldest = next(iter(self.unused))
            del self.users[oldest], self.unused[oldest]
            self.nameless += 1
        self.nameless -= count

    def use(self, name: Hashable) -> None:
        if not self.users[name]:
            del self.unused[name]
        self.users[name] += 1

    def give_back(self, request: Request) -> None:
        self.nameless += request.private
        for name in reversed(request.named):
            self.users[name] -= 1
            if not self.users[name]:
                self.unused[name] = None
        request.private, request.cached, request.named, request.decodes = 0, 0, [], False


def replay(
    requests: Sequence[Request],
    price: Price,
    *,
    slots: int,
    budget: int,
    blocks: int,
    block_size: int = 16,
    chunked: bool = True,
    answered: Callable[[int, float], Request | None] | None = None,
) -> tuple[Sequence[Request], int]:
    """Serve the requests, which are sorted by arrival and fit the cache alone; gives them and the number of steps.

    answered: what the user who sees the answer to a request, by its number, at a time sends next; one of ``requests``,
    whose arrival it has set (before, it was NaN).
    """
    number = {id(one): index for index, one in enumerate(requests)}
    inbox = [one for one in requests if not math.isnan(one.arrival)]
    waiting, running, pool = list[Request](), list[Request](), Pool(blocks)
    now, steps = 0.0, 0
    while inbox or waiting or running:
        while inbox and inbox[0].arrival <= now:
            waiting.append(inbox.pop(0))
        if not waiting and not running:
            now = inbox[0].arrival
            continue
        part, short = _continue(running, waiting, pool, budget, block_size)
        left = budget - sum(new for _, new in part)
        while not short and waiting and left > 0 and len(running) < slots:
            head = waiting[0]
            found = _found(head, pool, block_size)
            new = head.known - len(found) * block_size
            if new > left and not chunked:
                break
            if math.ceil(head.known / block_size) - len(found) > pool.left(found):
                break
            new = min(new, left)
            for name in found:
                pool.use(name)
            head.named, head.cached = found, len(found) * block_size
            if not head.preempted:
                head.hits = head.cached
            _grow(head, new, pool, block_size)
            running.append(waiting.pop(0))
            part.append((head, new))
            left -= new
        decodes = [one.cached - new for one, new in part if one.decodes]
        pieces = [(new, one.cached - new) for one, new in part if not one.decodes]
        now += price(decodes, pieces)
        steps += 1
        for one, _ in part:
            if one.cached < one.known:
                continue
            one.made += 1
            one.decodes = True
            one.first = now if one.made == 1 else one.first
            if one.made == one.output:
                one.finish = now
                running.remove(one)
                pool.give_back(one)
                following = None if answered is None else answered(number[id(one)], now)
                if following is not None:
                    bisect.insort(inbox, following, key=lambda one: one.arrival)
    return requests, steps


def _continue(
    running: list[Request], waiting: list[Request], pool: Pool, budget: int, block: int
) -> tuple[list[tuple[Request, int]], bool]:
    """The next tokens of the running requests; and whether one was sent back for want of a block."""
    part: list[tuple[Request, int]] = []
    short = False
    for one in list(running):
        new = min(one.known - one.cached, budget - sum(new for _, new in part))
        if one not in running or new < 1:
            continue
        while one in running and math.ceil((one.cached + new) / block) - _blocks(one) > pool.left():
            last = running.pop()
            pool.give_back(last)
            last.preempted += 1
            waiting.insert(0, last)
            short = True
        if one in running:
            _grow(one, new, pool, block)
            part.append((one, new))
    return part, short


def _blocks(one: Request) -> int:
    return one.private + len(one.named)


def _grow(one: Request, new: int, pool: Pool, block: int) -> None:
    """``new`` tokens more in the cache, in blocks of their own; full ones get their names."""
    count = math.ceil((one.cached + new) / block) - _blocks(one)
    pool.take(count)
    one.private += count
    one.cached += new
    while len(one.named) < min(one.cached // block, len(one.names)) and one.names[len(one.named)] not in pool.users:
        name = one.names[len(one.named)]
        pool.users[name] = 1
        one.named.append(name)
        one.private -= 1


def _found(one: Request, pool: Pool, block: int) -> list[Hashable]:
    """The leading blocks that are there."""
    found: list[Hashable] = []
    for name in one.names[: (one.known - 1) // block]:
        if name not in pool.users:
            break
        found.append(name)
    return found
