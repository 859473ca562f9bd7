"""How much of a load's prompts a cache of any size finds: stack distances of its blocks, all sizes in one pass.

A cache that forgets what was used longest ago holds the top of one list, whatever its size: the blocks in the order of
their last use. A block is found by every cache that is as large as its place in that list, its stack distance
(Mattson, Gecsei, Slutz and Traiger, Evaluation techniques for storage hierarchies, IBM Systems Journal 9(2), 1970).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from inferplan.errors import UsageError
from inferplan.traffic.conversations import Ints
from inferplan.traffic.requests import Requests
from inferplan.units import BoolArray

_ANSWER = 1 << 90
"""Names of the blocks of answers that nobody looks for go down from minus this, where no name is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HitCurve:
    """What one LRU cache finds of a load, by its size.

    block: tokens of a block. distances: of every block that is looked for and was there before, the blocks that a cache
    has to hold to have it still, sorted. prompt_tokens: of all prompts that count.
    """

    block: int
    distances: Ints
    prompt_tokens: int

    def found(self, tokens: float) -> int:
        """Prompt tokens that a cache of so many tokens finds."""
        return self.block * int(np.searchsorted(self.distances, tokens // self.block, side="right"))

    def hit_rate(self, tokens: float) -> float:
        """Their share of all prompt tokens."""
        return self.found(tokens) / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def most(self) -> float:
        """The hit rate of a cache that forgets nothing."""
        return self.block * len(self.distances) / self.prompt_tokens if self.prompt_tokens else 0.0

    def tokens_for(self, share: float) -> int:
        """Tokens of the smallest cache that finds a share, in (0, 1], of what one without end finds; 0 for nothing."""
        if not len(self.distances):
            return 0
        place = int(np.ceil(share * len(self.distances) - 1e-9)) - 1
        return self.block * int(self.distances[max(place, 0)])


def hit_curve(requests: Requests, counted: BoolArray | None = None) -> HitCurve:
    """The curve of requests one after another, in the order in which they are here, at one cache.

    Blocks of a prompt are used from its end to its start, so that a cache drops the end of a text before its start, as
    engines do; the blocks of its answer before them. All of a prompt but its last token is looked for. counted: whether
    the prompt of each counts, or only fills the cache; ``None`` for all. Raises ``UsageError`` where prompts share no
    text.
    """
    if requests.hashes is None:
        raise UsageError(
            "prompts that share no text are found in no cache",
            hint="requests that share text: --turns, --shared-prefix, or --trace with hashes",
        )
    block, counts = requests.hash_block, np.ones(len(requests), dtype=bool) if counted is None else counted
    names: list[int] = []
    sizes, before, looked = np.zeros(len(requests), dtype=np.int64), list[Ints](), list[BoolArray]()
    lengths = zip(requests.prompt.tolist(), requests.output.tolist())
    for index, used in enumerate(_used(requests.hashes, lengths, block)):
        sizes[index] = len(used)
        names += used
        before.append(np.arange(len(used)))
    for index, (size, prompt) in enumerate(zip(sizes.tolist(), requests.prompt.tolist())):
        asked = min((prompt - 1) // block, len(requests.hashes[index])) if counts[index] else 0
        looked.append(np.arange(size) >= size - asked)
    distances = _distances(_last_use(names), np.concatenate([np.zeros(0, np.int64), *before]))
    kept = distances[np.concatenate([np.zeros(0, bool), *looked]).astype(bool) & (distances > 0)]
    return HitCurve(block=block, distances=np.sort(kept), prompt_tokens=int(np.sum(requests.prompt[counts])))


def _used(hashes: Sequence[Sequence[int]], lengths: Iterator[tuple[int, int]], block: int) -> Iterator[list[int]]:
    """The full blocks of each request in the order of their use; an answer's last token is never computed."""
    answers = 0
    for names, (prompt, output) in zip(hashes, lengths):
        full = (prompt + output - 1) // block
        own = range(answers, answers + max(full - len(names), 0))
        answers = own.stop
        yield [*(-_ANSWER - one for one in own), *reversed(names[:full])]


def _last_use(names: Sequence[int]) -> Ints:
    """The place of the last use of each name before this one; -1 for none."""
    last: dict[int, int] = {}
    found = np.full(len(names), -1, dtype=np.int64)
    for place, name in enumerate(names):
        found[place] = last.get(name, -1)
        last[name] = place
    return found


def _distances(last: Ints, before: Ints) -> Ints:
    """The stack distance of each use when its request comes; 0 for what was not there before.

    Between two uses of a block at ``p`` and ``i`` lie ``i - p - 1`` others, of which those are repetitions whose own
    last use is behind ``p``. before: uses of the same request ahead of each: they end a text that it goes on from, so
    that they lay below it, or nowhere, when the request came.
    """
    places = np.arange(len(last))
    return np.where(last >= 0, places - last - _greater_before(last) - before, 0)


def _greater_before(values: Ints) -> Ints:
    """How many of the values before each are greater: by the bits of their ranks from the highest down, where those
    with the same higher bits stand together in their order.
    """
    rank = np.empty(len(values), dtype=np.int64)
    rank[np.argsort(values, kind="stable")] = np.arange(len(values))
    greater, order = np.zeros(len(values), dtype=np.int64), np.arange(len(values))
    for bit in reversed(range(len(values).bit_length())):
        ranked = rank[order]
        high, one = ranked >> (bit + 1), (ranked >> bit) & 1
        ones = np.cumsum(one) - one
        ones -= ones[np.searchsorted(high, high)]
        greater[order] += np.where(one == 0, ones, 0)
        order = order[np.argsort(ranked >> bit, kind="stable")]
    return greater
