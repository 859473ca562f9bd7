"""Tiers below the device's prefix cache, as they fill and empty in a run, and steps that wait for what they load.

What a tier drops goes to the one below it (``write_back`` of SGLang's HiCache: data is written to the next level only
when it is evicted from the upper one, docs/advanced_features/hicache_design.md). What is loaded up leaves its copy
where it was (``host_value`` of ``srt/mem_cache/hiradix_cache.py`` there; vLLM's tiers copy too, its pull request
40020). A tier forgets what came to it longest ago. Blocks of answers come as those of prompts do: SGLang inserts the
whole request into the tree that it writes down (hiradix_cache.py, cache_finished_req of radix_cache.py), vLLM stores
all full blocks of num_computed_tokens (v1/offloading, _get_reqs_to_store), TensorRT-LLM those of the whole sequence
(kvCacheManager.cpp, storeBlocksForReuse). LMCache leaves them out, but for save_decode_cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

_NAMELESS = 1 << 91
"""Names of blocks that have none go down from minus this, where no other name is."""


class Tier:
    """One tier: ``blocks`` fit; a load takes ``latency`` seconds, and ``token_time`` for each token.

    layered: loads run beside the step, layer by layer; else the step waits for them.
    """

    __slots__ = ("blocks", "came_nameless", "held", "latency", "layered", "token_time")

    def __init__(self, blocks: int, token_time: float, latency: float = 0.0, layered: bool = True) -> None:
        self.blocks, self.token_time, self.latency, self.layered = blocks, token_time, latency, layered
        self.held: OrderedDict[int, None] = OrderedDict()
        """Names of its blocks, the one that came longest ago first."""
        self.came_nameless = 0

    def nameless(self, blocks: int) -> range:
        """Names that nobody looks for, of so many blocks: answers that no prompt brings again take room, too."""
        first = -_NAMELESS - self.came_nameless
        self.came_nameless += blocks
        return range(first, first - blocks, -1)

    def put(self, names: Sequence[int]) -> Sequence[int]:
        """Blocks come from above, one after another. Gives those that are dropped for them: themselves where nothing
        fits.
        """
        held, most = self.held, self.blocks
        first = list(islice(held, max(len(held) + len(names) - most, 0)))
        if len(names) > most or not set(names).isdisjoint(first):  # one may be dropped before it comes again
            return self._put_one_by_one(names)
        for name in held.keys() & names:
            del held[name]
        held.update(dict.fromkeys(names))
        dropped = first[: max(len(held) - most, 0)]
        for name in dropped:
            del held[name]
        return dropped

    def _put_one_by_one(self, names: Sequence[int]) -> list[int]:
        held, dropped = self.held, []
        for name in names:
            held[name] = None
            held.move_to_end(name)
            if len(held) > self.blocks:
                dropped.append(held.popitem(last=False)[0])
        return dropped


def beside_loads(compute: float, load: float, layers: int) -> float:
    """Seconds of a step of ``layers`` alike that computes for ``compute`` while its cache loads layer by layer.

    A layer is computed when it has been loaded and the one before it is computed: a flow shop of two machines and ``n``
    equal jobs, ``max(load, compute) + min(load, compute)/n`` (Johnson, Naval Research Logistics Quarterly 1, 1954).
    HiCache loads layer N+1 while it computes layer N; so does CachedAttention (arXiv 2403.19708, section 3.2).
    """
    return max(load, compute) + min(load, compute) / layers
