"""Cache tiers below the device, as a user states them: host memory, SSD, a store that replicas share.

Capacity and bandwidth are those of one device, as ``--hicache-size`` of SGLang is of each rank; a shared store has one
capacity for all, in which a token lies once. Each device loads its own part of a prompt over its own way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.serving.cache_tiers import Tier
from inferplan.serving.run_figures import RunFigures
from inferplan.serving.techniques.offload import bytes_per_token
from inferplan.traffic.block_names import FileNames, OfAdapters, names_at
from inferplan.traffic.requests import Requests
from inferplan.traffic.reuse import hit_curve
from inferplan.units import HOURS_PER_MONTH, parse_quantity
from inferplan.work.parallel import Parallelism

Served = tuple[Deployment, Deployment | None]
"""A deployment and what drafts beside it, whose cache is kept with the model's."""


GIGA = 1e9
FORM = "NAME:CAPACITY:BANDWIDTH[:LATENCY][:PRICE][:shared]"
_PRICE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([A-Z]{3})/(GB|TB)-(hour|month)", re.ASCII)
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
"""Of what a cache without end finds, those whose capacity a curve of hit rates is shown at."""


class TierPrice(NamedTuple):
    """What a gigabyte (1e9 bytes) that is kept for an hour costs."""

    per_gb_hour: float
    currency: str


@dataclass(frozen=True, kw_only=True)
class CacheTier:
    """``capacity`` bytes from which a device reads ``bandwidth`` bytes a second, ``latency`` seconds after it asks.

    shared: one for all replicas. layered: what is loaded comes layer by layer while the step computes. price: ``None``
    where nobody says what it costs.
    """

    name: str
    capacity: float
    bandwidth: float
    latency: float = 0.0
    shared: bool = False
    layered: bool = True
    price: TierPrice | None = None

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

    def kept_by(self, devices: float) -> float:
        """Bytes of it that so many devices, on average, pay for: each its own, a shared one once."""
        return self.capacity if self.shared else self.capacity * devices

    def cost(self, devices: float) -> float | None:
        """What it costs an hour beside so many devices; ``None`` without a price."""
        return None if self.price is None else self.price.per_gb_hour * self.kept_by(devices) / GIGA

    def stated(self) -> dict[str, Any]:
        """As it is asked for; units are in the keys."""
        return {
            "name": self.name,
            "capacity_bytes": self.capacity,
            "bandwidth_bytes_per_s": self.bandwidth,
            "latency_s": self.latency,
            "shared": self.shared,
            "price_per_gb_hour": None if self.price is None else self.price.per_gb_hour,
            "currency": None if self.price is None else self.price.currency,
        }

    def describe(self, served: Served, devices: int) -> dict[str, Any]:
        """What its figures follow from, beside so many devices."""
        return {
            **self.stated(),
            "capacity_tokens": self.blocks(served, 1),
            "token_bytes": loaded_bytes(served),
            "cost_per_hour": self.cost(devices),
        }


def parse_tier(text: str) -> CacheTier:
    """``ssd:2TB:6GB/s:100us:0.1USD/GB-month``. Raises ``UsageError`` for what is no tier."""
    if "," in text.rpartition("/")[0]:
        raise UsageError(f"--cache-tier {text} has several sizes", hint="one here, or inferplan plan for several")
    return _tier(text)


def parse_sizes(text: str) -> list[CacheTier]:
    """One tier in each of its sizes, of which 0 is none at all: ``host:0,256GB,1TB:50GB/s``."""
    name, _, rest = text.partition(":")
    sizes, _, more = rest.partition(":")
    return [_tier(f"{name}:{'0B' if size.strip() == '0' else size}:{more}") for size in sizes.split(",")]


def _tier(text: str) -> CacheTier:
    name, *parts = text.split(":")
    shared = parts[-1:] == ["shared"]
    parts = parts[: len(parts) - shared]
    price = _price(name, parts.pop()) if len(parts) > 2 and "-" in parts[-1] else None
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or not 2 <= len(parts) <= 3:
        raise UsageError(f"--cache-tier {text!r} is not {FORM}", hint="ssd:2TB:6GB/s:100us")
    try:
        found = [parse_quantity(part, unit) for part, unit in zip(parts, ("bytes", "bytes/s", "seconds"))]
    except ValueError as error:
        raise UsageError(f"--cache-tier {name}: {error}") from None
    latency = found[2] if len(found) == 3 else 0.0
    return CacheTier(name=name, capacity=found[0], bandwidth=found[1], latency=latency, shared=shared, price=price)


def _price(name: str, text: str) -> TierPrice:
    """``0.1USD/GB-month``."""
    match = _PRICE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--cache-tier {name}: {text!r} is not a price of storage",
            hint="3USD/GB-month, 0.004USD/GB-hour, 80EUR/TB-month",
        )
    number, currency, size, time = match.groups()
    units = {"GB": 1.0, "TB": 1e3, "hour": 1.0, "month": HOURS_PER_MONTH}
    return TierPrice(float(number) / (units[size] * units[time]), currency)


def loaded_bytes(served: Sequence[Deployment | None]) -> float:
    """Bytes of cache that the fullest device loads for a token."""
    return sum(bytes_per_token(one) for one in served if one is not None)


def chains_of(tiers: Sequence[CacheTier], served: Served, block: int) -> Callable[[], list[Tier]]:
    """Makes the tiers of each engine; shared ones are the same for all."""
    shared = {tier.name: tier.made(served, block) for tier in tiers if tier.shared}
    return lambda: [shared[tier.name] if tier.shared else tier.made(served, block) for tier in tiers]


def require_tiers(tiers: Sequence[CacheTier]) -> None:
    """Raise ``UsageError`` for tiers that are no chain."""
    names = [tier.name for tier in tiers]
    if len(set(names)) < len(names) or "device" in names:
        raise UsageError("each cache tier has a name of its own", because="device is the cache of the device itself")
    if [tier.shared for tier in tiers] != sorted(tier.shared for tier in tiers):
        raise UsageError("a tier of one replica lies below a shared one", hint="shared tiers last")


def require_currency(tiers: Iterable[CacheTier], own: str) -> None:
    """Raise ``UsageError`` for prices in another currency than that of the GPUs."""
    currencies = {tier.price.currency for tier in tiers if tier.price is not None} - {own}
    if currencies:
        raise UsageError(
            f"the price of a cache tier is in {', '.join(sorted(currencies))} and those of GPUs are in {own}",
            hint=f"a price in {own}, or --currency {min(currencies)}",
        )


def nothing_shared(beside: str = "") -> UsageError:
    """The error for tiers that can find nothing. beside: what else says so."""
    return UsageError(
        f"cache tiers keep text that prompts share, and these share none{beside}",
        hint="--turns 8 --think-time exponential:60s, --shared-prefix 1000, or --trace with hashes",
    )


def tier_records(result: RunFigures) -> list[dict[str, Any]] | None:
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


def curve_records(result: RunFigures, served: Served, block: int) -> list[dict[str, Any]]:
    """What one LRU cache would find of the requests of a run, in the order in which they came, at a few sizes
    (:data:`SHARES`); of the prompts that count. Who was refused, or gave up in the queue, is in no cache. Bytes are of
    one device of a replica, ``block`` tokens have one name; those of a file are cut anew, for a run has finer ones.

    Raises ``UsageError`` where prompts share no text.
    """
    records = result.records
    arrival = np.asarray(records.arrival)
    order = np.argsort(arrival, kind="stable")
    order = order[~np.isnan(np.asarray(records.admitted)[order])]
    counted = np.zeros(len(arrival), dtype=bool)
    counted[result.counted] = True
    names = records.hashes
    if isinstance(names, (FileNames, OfAdapters)):
        names = names.cut(block)
    came = Requests(
        prompt=np.asarray(records.prompt)[order],
        output=np.asarray(records.output)[order],
        hashes=None if names is None else names_at(names, order.tolist()),
        hash_block=block,
    )
    curve, each = hit_curve(came, counted[order]), loaded_bytes(served)
    sizes = [curve.tokens_for(share) for share in SHARES]
    return [
        {"capacity_tokens": tokens, "capacity_bytes": tokens * each, "hit_rate": curve.hit_rate(tokens)}
        for tokens in sizes
    ]


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
