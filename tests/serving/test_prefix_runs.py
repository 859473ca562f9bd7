"""The prefix cache against one that keeps each block by itself, with requests that come, grow and go at random."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from inferplan.serving.cache_tiers import Tier
from inferplan.serving.prefix_cache import PrefixCache

BLOCK = 4


class ByBlock:
    """Each block with its users; idle ones by when they were used last, the end of a chain before its start."""

    def __init__(self) -> None:
        self.users: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.nameless = 0
        self.dropped: list[int] = []

    def found(self, names: Sequence[int], tokens: int) -> int:
        limit = min(len(names), (tokens - 1) // BLOCK)
        return next((place for place in range(limit) if names[place] not in self.users), limit)

    def take(self, names: Sequence[int]) -> list[int]:
        for name in names:
            self.idle.pop(name, None)
            self.users[name] += 1
        return list(names)

    def register(self, held: list[int], names: Sequence[int], blocks: int) -> None:
        for name in names[len(held) : blocks]:
            if name in self.users:
                return
            self.users[name] = 1
            held.append(name)

    def release(self, held: list[int]) -> int:
        for name in reversed(held):
            self.users[name] -= 1
            if not self.users[name]:
                self.idle[name] = None
        return sum(self.users[name] > 0 for name in held)

    def leave(self, blocks: int) -> None:
        for _ in range(blocks):
            self.nameless -= 1
            self.idle[self.nameless] = None

    def trim(self, blocks: int) -> None:
        while len(self.idle) > blocks:
            name, _ = self.idle.popitem(last=False)
            if name in self.users:
                del self.users[name]
                self.dropped.append(name)


def chains(draw: np.random.Generator) -> list[tuple[int, ...]]:
    """Texts that begin alike and part, each name told by all before it."""
    made: list[tuple[int, ...]] = [()]
    fresh = iter(range(1, 10_000))
    for _ in range(12):
        stem = made[draw.integers(len(made))]
        kept = stem[: draw.integers(len(stem) + 1)]
        made.append(kept + tuple(next(fresh) for _ in range(draw.integers(1, 9))))
    return made[1:]


def test_runs_of_blocks_are_the_blocks() -> None:
    for seed in range(60):
        draw = np.random.default_rng(seed)
        texts, wanted = chains(draw), ByBlock()
        below = Tier(10_000, 0.0)
        cache = PrefixCache(BLOCK, [below])
        running: dict[int, tuple[tuple[int, ...], list[int], int]] = {}
        for request in range(150):
            what = draw.integers(4)
            if what < 2:
                names = texts[draw.integers(len(texts))]
                names = names[: draw.integers(1, len(names) + 1)]
                tokens = len(names) * BLOCK + int(draw.integers(BLOCK))
                found = wanted.found(names, tokens)
                assert cache.match(names, tokens)[0] == found, (seed, request)
                assert cache.in_use(names, found) == sum(wanted.users[name] > 0 for name in names[:found])
                running[request] = names, wanted.take(names[:found]), cache.take(names, found)
            elif what == 2 and running:
                key = list(running)[draw.integers(len(running))]
                names, own, held = running[key]
                blocks = int(draw.integers(len(names) + 1))
                wanted.register(own, names, blocks)
                held = cache.register(held, names, blocks)
                assert held == len(own), (seed, request)
                running[key] = names, own, held
            elif running:
                names, own, held = running.pop(list(running)[draw.integers(len(running))])
                assert cache.release(held, names) == wanted.release(own), (seed, request)
                if draw.random() < 0.3 and cache.named:
                    cache.leave(2)
                    wanted.leave(2)
                most = int(draw.integers(40))
                cache.trim(most)
                wanted.trim(most)
            assert cache.idle_blocks == len(wanted.idle), (seed, request)
        named = [name for name in below.held if name > 0]  # nameless blocks lie there, too, and nothing finds them
        assert named == list(OrderedDict.fromkeys(reversed(wanted.dropped)))[::-1], seed


def test_a_tier_takes_many_blocks_as_it_takes_one_after_another() -> None:
    for seed in range(200):
        draw = np.random.default_rng(seed)
        many, single = Tier(int(draw.integers(0, 12)), 0.0), Tier(0, 0.0)
        single.blocks = many.blocks
        for _ in range(20):
            names = draw.permutation(20)[: draw.integers(1, 8)].tolist()
            dropped = [name for one in names for name in single.put([one])]
            assert list(many.put(names)) == dropped, seed
            assert list(many.held) == list(single.held), seed
