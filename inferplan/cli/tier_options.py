"""The option that states the cache tiers below the device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from inferplan.errors import UsageError
from inferplan.units import parse_quantity

if TYPE_CHECKING:
    from inferplan.serving.techniques.tiers import CacheTier, TierPrice

_FORM = "NAME:CAPACITY:BANDWIDTH[:LATENCY][:PRICE][:shared]"
SIZES_FORM = "NAME:SIZES:BANDWIDTH[:LATENCY][:PRICE][:shared]"
_PRICE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([A-Z]{3})/(GB|TB)-(hour|month)", re.ASCII)


cache_tier_option = click.option(
    "--cache-tier",
    "cache_tiers",
    metavar=_FORM,
    multiple=True,
    help="A tier for what the device's cache drops, repeated from the nearest down: host:200GB:50GB/s, "
    "ssd:2TB:6GB/s:100us:0.1USD/GB-month, store:20TB:10GB/s:1ms:shared. Of each device; a shared one is one for all "
    "replicas.",
)


def tiers_of(texts: Sequence[str]) -> tuple[CacheTier, ...]:
    """The tiers, the nearest first. Raises ``UsageError`` that names the one that is none."""
    several = [text for text in texts if "," in text.rpartition("/")[0]]
    if several:
        raise UsageError(f"--cache-tier {several[0]} has several sizes", hint="one here, or inferplan plan for several")
    return tuple(map(_tier, texts))


def sizes_of(text: str) -> list[CacheTier]:
    """One tier in each of its sizes, of which 0 is none at all: ``host:0,256GB,1TB:50GB/s``."""
    name, _, rest = text.partition(":")
    sizes, _, more = rest.partition(":")
    return [_tier(f"{name}:{'0B' if size.strip() == '0' else size}:{more}") for size in sizes.split(",")]


def _tier(text: str) -> CacheTier:
    from inferplan.serving.techniques.tiers import CacheTier

    name, *parts = text.split(":")
    shared = parts[-1:] == ["shared"]
    parts = parts[: len(parts) - shared]
    price = _price(name, parts.pop()) if len(parts) > 2 and "-" in parts[-1] else None
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or not 2 <= len(parts) <= 3:
        raise UsageError(f"--cache-tier {text!r} is not {_FORM}", hint="ssd:2TB:6GB/s:100us")
    try:
        found = [parse_quantity(part, unit) for part, unit in zip(parts, ("bytes", "bytes/s", "seconds"))]
    except ValueError as error:
        raise UsageError(f"--cache-tier {name}: {error}") from None
    latency = found[2] if len(found) == 3 else 0.0
    return CacheTier(name=name, capacity=found[0], bandwidth=found[1], latency=latency, shared=shared, price=price)


def _price(name: str, text: str) -> TierPrice:
    """``0.1USD/GB-month``."""
    from inferplan.answers.cost import HOURS_PER_MONTH
    from inferplan.serving.techniques.tiers import TierPrice

    match = _PRICE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--cache-tier {name}: {text!r} is no price of what is kept",
            hint="3USD/GB-month, 0.004USD/GB-hour, 80EUR/TB-month",
        )
    number, currency, size, time = match.groups()
    units = {"GB": 1.0, "TB": 1e3, "hour": 1.0, "month": HOURS_PER_MONTH}
    return TierPrice(float(number) / (units[size] * units[time]), currency)
