"""Which engine of a pool gets a request."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from inferplan.serving.records import Records
from inferplan.serving.scheduler import Scheduler

Routing = Literal["round-robin", "least-loaded", "prefix-aware", "cache-aware", "sticky"]
"""round-robin: one after another. least-loaded: fewest requests in the engine. prefix-aware: fewest prompt tokens to
compute before and with the request, those found in the engine's prefix cache not counted. cache-aware: where most of
the prompt is found, or the fewest requests are (:meth:`Router._cached_or_idle`). sticky: conversations one after
another, and every later turn where the one before it went; all calls of a session, its sub-agents' too, go where its
first went."""

_CACHE_THRESHOLD, _BALANCE_ABS, _BALANCE_REL = 0.3, 64, 1.5
"""Of cache-aware routing: the share of a prompt above which a cache decides; the difference and the ratio of the most
to the fewest requests in an engine above which caches do not count: the defaults of ``sglang_router`` and of the vLLM
router (``--cache-threshold``, ``--balance-abs-threshold``, ``--balance-rel-threshold`` of ``router_args.py``)."""


class Router:
    """Sends requests to the schedulers of one pool, by what can be seen of them at that time.

    An engine may have been simulated further than the request that is sent: what has left it only later is still in it.
    """

    def __init__(
        self,
        routing: Routing,
        pool: list[Scheduler],
        records: Records,
        shared: int = 1,
        weights: Sequence[float] | None = None,
    ) -> None:
        self.routing, self.pool, self.records, self.shared = routing, pool, records, shared
        """shared: so many in a row are ranks of one replica, whose engine chooses among them (``tokens``)."""
        in_turns = routing in ("round-robin", "sticky")
        self.blind = len(pool) <= 1 or (in_turns and shared == 1 and weights is None)
        """Whether the state of the engines does not matter: requests, or conversations, go to one after another."""
        self.taking = list(range(len(pool) // shared))
        """Replicas that take requests, in turn: those that are there and do not leave."""
        self._closed: set[int] = set()
        """Schedulers of replicas that take no more."""
        self.loads = [0] * len(pool)
        """Requests in each engine at the time of the last request sent."""
        self.tokens = [0] * len(pool)
        """Prompt tokens of those requests."""
        self.turns_taken = 0
        self.weights = weights
        """The share of the turns that each engine takes, by proportion; ``None``: all the same."""
        self._turns = list(_first_turns(weights or ()))
        """Heap of (when the next turn is due, engine): every ``1/weight``, those of equal weight evenly apart."""
        heapq.heapify(self._turns)
        self.went: dict[int, int] = {}
        """Which engine each request went to, where they differ."""
        self.home: dict[int, int] = {}
        """Which scheduler has a request, where that matters."""
        self._of_prompt: dict[int, int] = {}
        """Which scheduler has the last prompt of which there are several answers, by the first of them."""
        self._conversations: dict[int, int] = {}
        """Which scheduler had the last request of each conversation that may go on; of sessions by session."""
        alike = weights is None and shared == records.samples == 1
        self.simple = routing not in ("prefix-aware", "cache-aware") and alike
        """Whether turns, or how many requests each engine has, alone say where one goes that follows none."""
        self._by_load = [(0, index) for index in range(len(pool))]
        """Heap of (load, scheduler); an entry whose load has changed since no longer counts."""
        self._leaving: list[tuple[float, int, int]] = []
        """Heap of (time, scheduler, prompt tokens) of requests that leave."""

    def add(self, schedulers: list[Scheduler]) -> None:
        """The ranks of a replica join the pool; it takes no requests until it is opened."""
        self.pool += schedulers
        self.loads += [0] * len(schedulers)
        self.tokens += [0] * len(schedulers)
        self._closed.update(range(len(self.pool) - len(schedulers), len(self.pool)))

    def open(self, schedulers: range) -> None:
        """The ranks of a replica take requests from now on."""
        self._closed.difference_update(schedulers)
        self.taking += range(schedulers.start // self.shared, schedulers.stop // self.shared)
        for index in schedulers:
            heapq.heappush(self._by_load, (self.loads[index], index))

    def close(self, schedulers: range) -> None:
        """The ranks of a replica take no more requests; those that they have go on."""
        self._closed.update(schedulers)
        gone = range(schedulers.start // self.shared, schedulers.stop // self.shared)
        self.taking = [replica for replica in self.taking if replica not in gone]

    def held(self, time: float) -> int:
        """Requests in the replicas that take more, at ``time``."""
        self._see(time)
        return sum(self.loads) - sum(self.loads[index] for index in self._closed)

    def send(self, request: int, time: float) -> int:
        """The scheduler that gets a request sent at ``time``; requests must be sent in order of time."""
        if not self.blind:
            self._see(time)
        index = self._of_prompt.get(request - request % self.records.samples, -1)
        if index < 0 or index in self._closed:
            index = self._chosen(request)
            self._keep_together(request, index)
        if not self.blind:
            self._count(index, 1, self.records.prompt[request])
        self.home[request] = index
        if self.weights is not None:
            self.went[request] = index
        return index

    def _chosen(self, request: int) -> int:
        """The scheduler that the rule of the router names."""
        if self.routing in ("round-robin", "sticky"):
            return self._in_turn(request)
        if self.routing == "cache-aware":
            return self._cached_or_idle(request)
        return self._least_loaded() if self.routing == "least-loaded" else self._least_work(request)

    def _keep_together(self, request: int, index: int) -> None:
        """All answers of a prompt are asked for in one call, which one server gets; later turns of each are its own."""
        follows, samples = self.records.follows, self.records.samples
        if samples > 1 and (follows is None or follows[request] < 0):
            self._of_prompt = {request - request % samples: index}

    def _next(self) -> int:
        """The replica whose turn it is; by weight the engine whose turn is due first (stride scheduling, Waldspurger
        and Weihl 1995)."""
        if self.weights is None:
            self.turns_taken += 1
            return self.taking[(self.turns_taken - 1) % len(self.taking)]
        due, index = self._turns[0]
        heapq.heapreplace(self._turns, (due + 1 / self.weights[index], index))
        return index

    def _in_turn(self, request: int) -> int:
        """The next replica, or with ``sticky`` that of the conversation, and the rank that its engine chooses."""
        follows = self.records.follows if self.routing == "sticky" else None
        sessions = None if follows is None else self.records.sessions
        before = None
        if sessions is not None:
            before = self._conversations.get(int(sessions.of[request]))
        elif follows is not None:
            before = self._conversations.pop(follows[request], None)
        if before is not None and before * self.shared in self._closed:
            before = None
        replica = self._next() if before is None else before
        if follows is not None:
            self._conversations[request if sessions is None else int(sessions.of[request])] = replica
        return replica if self.shared == 1 else self._fewest_tokens(replica * self.shared)

    def _fewest_tokens(self, first: int) -> int:
        """Of the ranks of a replica with fewer requests than their even share, or than the rank that has most, the one
        with the fewest prompt tokens (TensorRT-LLM ``_balance_requests_across_ranks``).
        """
        ranks = range(first, first + self.shared)
        loads = self.loads[first : first + self.shared]
        most = max(-(-(sum(loads) + 1) // self.shared), *loads)
        return min(
            (rank for rank in ranks if self.loads[rank] < most),
            key=lambda rank: (self.tokens[rank], self.loads[rank]),
        )

    def leave(self, request: int, time: float) -> int:
        """A request leaves its engine at ``time``, refused ones at once: gives the scheduler that had it."""
        index = self.home.pop(request, 0)  # nobody asks where it was, where nothing connects the engines
        if not self.blind:
            heapq.heappush(self._leaving, (time, index, self.records.prompt[request]))
        return index

    def _see(self, time: float) -> None:
        leaving = self._leaving
        while leaving and leaving[0][0] <= time:
            _, index, tokens = heapq.heappop(leaving)
            self._count(index, -1, -tokens)

    def _count(self, index: int, change: int, tokens: int) -> None:
        self.loads[index] += change
        self.tokens[index] += tokens
        if self.routing == "least-loaded":
            heapq.heappush(self._by_load, (self.loads[index], index))

    def _least_loaded(self) -> int:
        loads, heap = self.loads, self._by_load
        while loads[heap[0][1]] != heap[0][0] or heap[0][1] in self._closed:
            heapq.heappop(heap)
        return heap[0][1]

    def _cached_or_idle(self, request: int) -> int:
        """Cache-aware: the engine that finds most of the prompt, if that is more than a share of it; the one with the
        fewest requests, if no engine finds so much, or one has far more requests than another (SGLang,
        ``sgl-model-gateway/src/policies/cache_aware.rs`` at 053b63f; earlier ones, and the vLLM router 0.1.15, send
        what no cache has to the engine with the smallest record). Of equals the one with the fewest requests.

        That router guesses at caches from the prompts that it sent; here an engine's cache is what it is, as where
        engines report it by events.
        """
        prompt, loads = self.records.prompt[request], self.loads
        there = [index for index in range(len(self.pool)) if index not in self._closed]
        idle = min(there, key=lambda index: loads[index])
        least, most = loads[idle], max([loads[index] for index in there])
        if most - least > _BALANCE_ABS and most > _BALANCE_REL * least:
            return idle
        found = {index: self._found(index, request) for index in there}
        best = max(found.values())
        if best <= _CACHE_THRESHOLD * prompt:
            return idle
        return min([index for index in there if found[index] == best], key=lambda index: loads[index])

    def _found(self, index: int, request: int) -> int:
        """Tokens of a prompt that an engine's cache has, in its own pages."""
        cache, hashes = self.pool[index].cache, self.pool[index].admitted.hashes
        if cache is None or hashes is None:
            return 0
        return sum(cache.match(hashes[request], self.records.prompt[request])) * cache.block

    def _least_work(self, request: int) -> int:
        """Prefix-aware: the fewest prompt tokens to compute before a request and with it, then the fewest requests."""
        prompt, loads, hashes = self.records.prompt[request], self.loads, None
        names: Sequence[int] = ()
        best, least = 0, (1 << 62, 0)
        for index, scheduler in enumerate(self.pool):
            if index in self._closed:
                continue
            if hashes is not scheduler.admitted.hashes:  # of one kind after another, in its pages
                hashes = scheduler.admitted.hashes
                names = () if hashes is None else hashes[request]
            work, cache = scheduler.queue.queued_tokens, scheduler.cache
            if names and cache is not None:
                if work - prompt >= least[0]:  # even if all of it were found
                    continue
                work -= sum(cache.match(names, prompt)) * cache.block
            if (work, loads[index]) < least:
                best, least = index, (work, loads[index])
        return best


def _first_turns(weights: Sequence[float]) -> Iterator[tuple[float, int]]:
    """When each engine has its first turn: of ``n`` with the weight ``w`` the ``j``-th after ``(j + 1/2)/(n w)``.

    Were theirs due together, as many requests would go past one of other weight in a row, and come to it in bursts.
    """
    number, seen = Counter(weights), Counter[float]()
    for index, weight in enumerate(weights):
        yield (seen[weight] + 0.5) / (number[weight] * weight), index
        seen[weight] += 1
