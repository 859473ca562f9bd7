"""Prefix cache: blocks named by the hash of everything up to them, shared while in use, evicted least recently used.

Blocks that no request uses stay until room is needed, so they take nothing from admission (vLLM's free queue, SGLang's
radix tree). Tiers below the device, if any, keep what it drops (:mod:`inferplan.serving.cache_tiers`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from inferplan.serving.cache_tiers import Tier

_NAMELESS = 1 << 80
"""Keys of idle blocks without a name count up from here, where no name is."""


class PrefixCache:
    """Blocks of ``block`` tokens, with the ``tiers`` below the device, the first of them first."""

    __slots__ = ("block", "idle", "idle_blocks", "left", "named", "tiers", "users")

    def __init__(self, block: int, tiers: Sequence[Tier] = ()) -> None:
        self.block = block
        self.tiers = tiers
        self.users: dict[int, int] = {}
        """Requests that use each block on the device; 0 for idle ones."""
        self.idle: OrderedDict[int, int] = OrderedDict()
        """Blocks that no request uses, least recently used first: 1 for each name; and how many nameless ones were
        given back together, which nobody finds, but which are used up in their turn."""
        self.idle_blocks = self.named = self.left = 0

    def match(self, names: Sequence[int], tokens: int) -> tuple[int, int]:
        """Leading blocks found on the device and, after them, below it; never all of the ``tokens`` of a prompt."""
        limit = min(len(names), (tokens - 1) // self.block)
        device = 0
        users, tiers = self.users, self.tiers
        while device < limit and names[device] in users:
            device += 1
        below = device
        while below < limit and (names[below] in users or any(names[below] in tier.held for tier in tiers)):
            below += 1
        return device, below - device

    def by_tier(self, names: Sequence[int]) -> list[int]:
        """How many of some blocks each tier loads: the first that has one."""
        blocks = [0] * len(self.tiers)
        for name in names:
            for index, tier in enumerate(self.tiers):
                if name in tier.held:
                    blocks[index] += 1
                    break
        return blocks

    def take(self, names: Sequence[int]) -> list[int]:
        """Use blocks that were found. Gives the list of those that the request uses, for :meth:`register`."""
        users = self.users
        for name in names:
            if not users[name]:
                del self.idle[name]
                self.idle_blocks -= 1
                self.named -= 1
            users[name] += 1
        return list(names)

    def register(self, held: list[int], names: Sequence[int], blocks: int) -> None:
        """The first ``blocks`` of a request are computed: those after the ones that it uses can be found from now on.

        Where another request computed the same block meanwhile, this copy and all after it stay private.
        """
        users = self.users
        for index in range(len(held), min(blocks, len(names))):
            name = names[index]
            if name in users:
                return
            users[name] = 1
            held.append(name)

    def release(self, held: Sequence[int]) -> int:
        """Stop using blocks. Gives how many of them others still use."""
        still = 0
        users = self.users
        for name in reversed(held):  # the end of a chain is evicted before its start
            count = users[name] - 1
            users[name] = count
            if count:
                still += 1
            else:
                self.idle[name] = 1
                self.idle_blocks += 1
                self.named += 1
        return still

    def leave(self, blocks: int) -> None:
        """Nameless blocks are given back: room is found in them after all that has been idle for longer."""
        if not self.named:  # nothing to find: no order to keep
            self.idle.clear()
            self.idle_blocks = 0
            return
        self.left += 1
        self.idle[_NAMELESS + self.left] = blocks
        self.idle_blocks += blocks

    def trim(self, blocks: float) -> None:
        """Evict idle blocks until at most ``blocks`` are left; each tier takes what the one above it drops."""
        blocks = max(blocks, 0.0)  # what others are about to write may be more than there is
        while self.idle_blocks > blocks:
            name, count = self.idle.popitem(last=False)
            self.idle_blocks -= count
            if name not in self.users:
                if self.idle_blocks < int(blocks):
                    self.idle[name] = int(blocks) - self.idle_blocks
                    self.idle.move_to_end(name, last=False)
                    self.idle_blocks = int(blocks)
                continue
            del self.users[name]
            self.named -= 1
            dropped: int | None = name
            for tier in self.tiers:
                if dropped is None:
                    break
                dropped = tier.put(dropped)
