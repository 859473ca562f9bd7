"""Prefix cache: blocks named by the hash of everything up to them, shared while in use, evicted least recently used.

Blocks that no request uses stay until room is needed, so they take nothing from admission (vLLM's free queue, SGLang's
radix tree). A second tier in host memory, if any, keeps what the device drops
(:mod:`inferplan.serving.techniques.offload`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Blocks of ``block`` tokens; ``host_blocks`` more fit in the tier below."""

    __slots__ = ("block", "host", "host_blocks", "idle", "users")

    def __init__(self, block: int, host_blocks: int = 0) -> None:
        self.block = block
        self.host_blocks = host_blocks
        self.users: dict[int, int] = {}
        """Requests that use each block on the device; 0 for idle ones."""
        self.idle: OrderedDict[int, None] = OrderedDict()
        """Blocks that no request uses, least recently used first."""
        self.host: OrderedDict[int, None] = OrderedDict()

    def match(self, hashes: Sequence[int], tokens: int) -> tuple[int, int]:
        """Leading blocks found on the device and, after them, on the host; never all of the ``tokens`` of a prompt."""
        limit = min(len(hashes), (tokens - 1) // self.block)
        device = 0
        users = self.users
        while device < limit and hashes[device] in users:
            device += 1
        host = device
        while host < limit and (hashes[host] in self.host or hashes[host] in users):
            host += 1
        return device, host - device

    def take(self, hashes: Sequence[int], found: int) -> list[int]:
        """Use the first ``found`` blocks and register the rest. Gives the blocks that the request now uses."""
        held: list[int] = []
        users = self.users
        for index, name in enumerate(hashes):
            count = users.get(name)
            if count is None:
                users[name] = 1
            elif index >= found:
                continue  # another request computed it meanwhile: this copy stays private
            else:
                users[name] = count + 1
                if not count:
                    del self.idle[name]
            held.append(name)
        return held

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
                self.idle[name] = None
        return still

    def trim(self, blocks: float) -> None:
        """Evict idle blocks until at most ``blocks`` are left; the host tier takes them as far as it has room."""
        while len(self.idle) > blocks:
            name, _ = self.idle.popitem(last=False)
            del self.users[name]
            if self.host_blocks:
                self.host[name] = None
                self.host.move_to_end(name)
                if len(self.host) > self.host_blocks:
                    self.host.popitem(last=False)
