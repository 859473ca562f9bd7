"""Tiers below the device's prefix cache, as they fill and empty in a run, and steps that wait for what they load.

What a tier drops goes to the one below it (``write_back`` of SGLang's HiCache: data is written to the next level only
when it is evicted from the upper one, docs/advanced_features/hicache_design.md). What is loaded up leaves its copy
where it was (``host_value`` of ``srt/mem_cache/hiradix_cache.py`` there; vLLM's tiers copy too, its pull request
40020). A tier forgets what came to it longest ago.
"""

from __future__ import annotations

from collections import OrderedDict


class Tier:
    """One tier: ``blocks`` fit; a load takes ``latency`` seconds, and ``token_time`` for each token.

    layered: loads run beside the step, layer by layer; else the step waits for them.
    """

    __slots__ = ("blocks", "held", "latency", "layered", "token_time")

    def __init__(self, blocks: int, token_time: float, latency: float = 0.0, layered: bool = True) -> None:
        self.blocks, self.token_time, self.latency, self.layered = blocks, token_time, latency, layered
        self.held: OrderedDict[int, None] = OrderedDict()
        """Names of its blocks, the one that came longest ago first."""

    def put(self, name: int) -> int | None:
        """A block comes from above. Gives the one that is dropped for it, if any: itself where nothing fits."""
        self.held[name] = None
        self.held.move_to_end(name)
        return self.held.popitem(last=False)[0] if len(self.held) > self.blocks else None


def beside_loads(compute: float, load: float, layers: int) -> float:
    """Seconds of a step of ``layers`` alike that computes for ``compute`` while its cache loads layer by layer.

    A layer is computed when it has been loaded and the one before it is computed: a flow shop of two machines and ``n``
    equal jobs, ``max(load, compute) + min(load, compute)/n`` (Johnson, Naval Research Logistics Quarterly 1, 1954).
    HiCache loads layer N+1 while it computes layer N; so does CachedAttention (arXiv 2403.19708, section 3.2).
    """
    return max(load, compute) + min(load, compute) / layers
