"""Cache tiers below the device, as a user states them: host memory, SSD, a store that replicas share.

Capacity and bandwidth are those of one device, as ``--hicache-size`` of SGLang is of each rank; a shared store has one
capacity for all, in which a token lies once. Each device loads its own part of a prompt over its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.serving.cache_tiers import Tier
from inferplan.serving.techniques.offload import bytes_per_token
from inferplan.work.parallel import Parallelism

if TYPE_CHECKING:
    from inferplan.serving.result import SimulationResult
    from inferplan.serving.simulator import Options

Served = tuple[Deployment, Deployment | None]
"""A deployment and what drafts beside it, whose cache is kept with the model's."""


@dataclass(frozen=True, kw_only=True)
class CacheTier:
    """``capacity`` bytes from which a device reads ``bandwidth`` bytes a second, ``latency`` seconds after it asks.

    shared: one for all replicas. layered: what is loaded comes layer by layer while the step computes.
    """

    name: str
    capacity: float
    bandwidth: float
    latency: float = 0.0
    shared: bool = False
    layered: bool = True

    def __post_init__(self) -> None:
        if not self.capacity >= 0 or not self.bandwidth > 0 or not self.latency >= 0:
            raise UsageError(f"cache tier {self.name}: a bandwidth is above zero, nothing else below it")

    def kept_bytes(self, served: Served) -> float:
        """Bytes of its capacity that a token takes."""
        if not self.shared:
            return loaded_bytes(served)
        return loaded_bytes(tuple(one and replace(one, parallel=Parallelism()) for one in served))

    def blocks(self, served: Served, block: int) -> int:
        """Blocks of ``block`` tokens that fit."""
        return int(self.capacity // max(self.kept_bytes(served) * block, 1e-9))

    def made(self, served: Served, block: int) -> Tier:
        """The tier, empty."""
        token_time = loaded_bytes(served) / self.bandwidth
        return Tier(self.blocks(served, block), token_time, self.latency, self.layered)

    def describe(self, served: Served) -> dict[str, Any]:
        """What its figures follow from."""
        return {
            "name": self.name,
            "capacity_bytes": self.capacity,
            "capacity_tokens": self.blocks(served, 1),
            "bandwidth_bytes_per_s": self.bandwidth,
            "latency_s": self.latency,
            "shared": self.shared,
            "token_bytes": loaded_bytes(served),
        }


def loaded_bytes(served: Sequence[Deployment | None]) -> float:
    """Bytes of cache that the fullest device loads for a token."""
    return sum(bytes_per_token(one) for one in served if one is not None)


def chains_of(tiers: Sequence[CacheTier], served: Served, block: int) -> Callable[[], list[Tier]]:
    """Makes the tiers of each engine; shared ones are the same for all."""
    shared = {tier.name: tier.made(served, block) for tier in tiers if tier.shared}
    return lambda: [shared[tier.name] if tier.shared else tier.made(served, block) for tier in tiers]


def require_tiers(options: Options) -> None:
    """Raise ``UsageError`` for tiers that are no chain, or beside what says the same in another way."""
    tiers, names = options.tiers, [tier.name for tier in options.tiers]
    if not tiers:
        return
    if options.host is not None:
        raise UsageError("--kv-offload is a cache tier too", hint="--cache-tier host:100GB:50GB/s in its place")
    if options.hit_rate:
        raise UsageError(
            "--cache-tier beside a given hit rate, which does not say where the hits lie",
            because="a --workload may bring one",
            hint="requests that share text: --trace with hashes, --turns, --shared-prefix",
        )
    if len(set(names)) < len(names) or "device" in names:
        raise UsageError("each cache tier has a name of its own", because="device is the cache of the device itself")
    if [tier.shared for tier in tiers] != sorted(tier.shared for tier in tiers):
        raise UsageError("a tier of one replica lies below a shared one", hint="shared tiers last")
    if tiers[-1].shared and options.jobs > 1:
        raise UsageError("a shared cache tier connects the replicas: --jobs cannot divide them", hint="leave it out")


def tier_records(result: SimulationResult) -> list[dict[str, Any]] | None:
    """What came from the device's cache and from each tier below it; ``None`` without tiers.

    Loads are those of the first admission of each request that counts; bytes, those of one device.
    """
    tiers = result.conditions["cache_tiers"]
    if tiers is None:
        return None
    counted = range(len(result.records.prompt))[result.counted]
    loaded = [tokens for request, tokens in result.records.loaded.items() if request in counted]
    hits, prompts = result.records.hits(result.counted)
    device = {"name": "device", "hit_tokens": hits - sum(map(sum, loaded))}
    below = [_loads(tier, [tokens[index] for tokens in loaded if tokens[index]]) for index, tier in enumerate(tiers)]
    return [{**one, "hit_rate": one["hit_tokens"] / prompts if prompts else 0.0} for one in (device, *below)]


def _loads(tier: dict[str, Any], loads: list[int]) -> dict[str, Any]:
    """The loads from one tier, each of so many tokens: ``latency + tokens * bytes/bandwidth``."""
    tokens = sum(loads)
    moved = tokens * tier["token_bytes"]
    seconds = len(loads) * tier["latency_s"] + moved / tier["bandwidth_bytes_per_s"]
    return {
        **tier,
        "hit_tokens": tokens,
        "loads": len(loads),
        "loaded_bytes": moved,
        "load_mean_s": seconds / len(loads) if loads else None,
    }
