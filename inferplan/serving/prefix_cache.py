"""Prefix cache: blocks named by the hash of everything up to them, shared while in use, evicted least recently used.

Blocks that no request uses stay until room is needed, so they take nothing from admission (vLLM's free queue, SGLang's
radix tree). Tiers below the device, if any, keep what it drops (:mod:`inferplan.serving.cache_tiers`).

A name stands for all blocks before it too. Whoever uses a block uses those before it, and the end of a chain is evicted
before its start: of every chain the device has the head, used by as many as its next block or by more. So blocks are
kept in runs, neighbours in a chain that were used alike, and nothing is done block by block.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from inferplan.serving.cache_tiers import Tier

_PIECE = 64
"""Names that are looked for below the device at a time."""


class _Run:
    """``size`` blocks of a chain from ``start`` on, of which ``names`` are the names, with the requests that use them;
    nameless ones have none.
    """

    __slots__ = ("names", "size", "start", "users")

    def __init__(self, names: Sequence[int], start: int, size: int, users: int) -> None:
        self.names, self.start, self.size, self.users = names, start, size, users

    def alike(self, names: Sequence[int], most: int) -> int:
        """How many of these blocks, ``most`` at most, are of the chain ``names``, as the first of them is."""
        own, start, count = self.names, self.start, min(self.size, most)
        if own is names or own[start + count - 1] == names[start + count - 1]:
            return count
        return bisect_left(range(count), True, key=lambda at: own[start + at] != names[start + at])


class PrefixCache:
    """Blocks of ``block`` tokens, with the ``tiers`` below the device, the first of them first."""

    __slots__ = ("block", "idle", "idle_blocks", "named", "runs", "tiers")

    def __init__(self, block: int, tiers: Sequence[Tier] = ()) -> None:
        self.block = block
        self.tiers = tiers
        self.runs: dict[int, _Run] = {}
        """What is on the device, by the name of its first block."""
        self.idle: OrderedDict[_Run, None] = OrderedDict()
        """Runs that no request uses, least recently used first; and of nameless blocks those that were given back
        together, which nobody finds, but which are used up in their turn."""
        self.idle_blocks = self.named = 0

    def _on_device(self, names: Sequence[int], limit: int) -> Iterator[tuple[_Run, int]]:
        """The runs that the first ``limit`` blocks of a chain lie in, and how many of them each has."""
        place, runs = 0, self.runs
        while place < limit and (run := runs.get(names[place])) is not None:
            count = run.alike(names, limit - place)
            yield run, count
            place += count  # where a run goes on with another chain, this one may go on in another run

    def match(self, names: Sequence[int], tokens: int) -> tuple[int, int]:
        """Leading blocks found on the device and, after them, below it; never all of the ``tokens`` of a prompt."""
        limit = min(len(names), (tokens - 1) // self.block)
        device = sum(count for _, count in self._on_device(names, limit))
        below, tiers = device, self.tiers
        while tiers and below < limit:  # names of a file are cut when they are looked at: some at a time
            piece = names[below : min(below + _PIECE, limit)]
            held = next((at for at, name in enumerate(piece) if not any(name in one.held for one in tiers)), len(piece))
            below += held
            if held < len(piece):
                break
        return device, below - device

    def in_use(self, names: Sequence[int], blocks: int) -> int:
        """How many of the first ``blocks``, which are on the device, some request uses."""
        return sum(count for run, count in self._on_device(names, blocks) if run.users)

    def by_tier(self, names: Sequence[int]) -> list[int]:
        """How many of some blocks each tier loads: the first that has one."""
        blocks = [0] * len(self.tiers)
        for name in names:
            for index, tier in enumerate(self.tiers):
                if name in tier.held:
                    blocks[index] += 1
                    break
        return blocks

    def take(self, names: Sequence[int], blocks: int) -> int:
        """Use the first ``blocks``, which were found. Gives how many the request uses, for :meth:`register`."""
        for run, count in list(self._on_device(names, blocks)):
            if count < run.size:
                self._head(run, count).users += 1
                self._wake(0 if run.users else count)
                continue
            if not run.users:
                del self.idle[run]
                self._wake(count)
            run.users += 1
        return blocks

    def _head(self, run: _Run, count: int) -> _Run:
        """The first ``count`` blocks of a run as one of their own; what is left keeps its place among the idle."""
        head = _Run(run.names, run.start, count, run.users)
        self.runs[run.names[run.start]] = head
        run.start, run.size = run.start + count, run.size - count
        self.runs[run.names[run.start]] = run
        return head

    def _wake(self, blocks: int) -> None:
        """So many named blocks are idle no longer."""
        self.idle_blocks -= blocks
        self.named -= blocks

    def register(self, held: int, names: Sequence[int], blocks: int) -> int:
        """The first ``blocks`` of a request are computed: those after the ``held`` ones that it uses can be found from
        now on. Gives how many it uses then.

        Where another request computed the same block meanwhile, this copy and all after it stay private.
        """
        blocks = min(blocks, len(names))
        if blocks <= held or names[held] in self.runs:
            return held
        last = self._last(names, held)
        if last is not None and last.users == 1:  # nobody else uses what is before
            last.names, last.size = names, last.size + blocks - held
        else:
            self.runs[names[held]] = _Run(names, held, blocks - held, 1)
        return blocks

    def _last(self, names: Sequence[int], held: int) -> _Run | None:
        """The run that ends with the ``held`` blocks that a request uses; ``None`` without one."""
        return next((run for run, _ in reversed([*self._on_device(names, held)])), None)

    def release(self, held: int, names: Sequence[int]) -> int:
        """Stop using the ``held`` blocks. Gives how many of them others still use."""
        still = 0
        for run, count in reversed(
            list(self._on_device(names, held))
        ):  # the end of a chain is evicted before its start
            run.users -= 1
            if run.users:
                still += count
            else:
                self.idle[run] = None
                self._wake(-count)
        return still

    def leave(self, blocks: int) -> None:
        """Nameless blocks are given back: room is found in them after all that has been idle for longer."""
        if not self.named and not self.tiers:  # nothing to find, nothing that keeps it: no order to keep
            self.idle.clear()
            self.idle_blocks = 0
            return
        self.idle[_Run((), 0, blocks, 0)] = None
        self.idle_blocks += blocks

    def trim(self, blocks: float) -> None:
        """Evict idle blocks until at most ``blocks`` are left; each tier takes what the one above it drops."""
        most = int(max(blocks, 0.0))  # what others are about to write may be more than there is
        while self.idle_blocks > most:
            run = next(iter(self.idle))
            count = min(run.size, self.idle_blocks - most)
            run.size -= count
            self.idle_blocks -= count
            if not run.size:
                del self.idle[run]
            if not run.names:
                if self.tiers:
                    self._drop(self.tiers[-1].nameless(count))
                continue
            self.named -= count
            if not run.size:
                del self.runs[run.names[run.start]]
            if self.tiers:
                self._drop(run.names[run.start + run.size : run.start + run.size + count])

    def _drop(self, names: Sequence[int]) -> None:
        """Blocks of a chain leave the device, the last of them first."""
        dropped: Sequence[int] = names[::-1]
        for tier in self.tiers:
            dropped = tier.put(dropped)
