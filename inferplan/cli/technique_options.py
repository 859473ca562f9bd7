"""Options of serving techniques, shared by ``estimate`` and ``simulate``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from inferplan.catalog.assemble import Request
from inferplan.cli.draft_options import draft_options, speculation_of
from inferplan.cli.options import Finite
from inferplan.errors import UsageError
from inferplan.units import parse_quantity

if TYPE_CHECKING:
    from inferplan.serving.techniques.applied import Techniques
    from inferplan.serving.techniques.offload import HostTier
    from inferplan.traffic.requests import Slo


def quantity(text: str | None, dimension: str, option: str) -> float | None:
    """A quantity with its unit. Raises ``UsageError`` that names the option."""
    try:
        return None if text is None else parse_quantity(text, dimension)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def limited(base: Slo, values: Mapping[str, Any]) -> Slo:
    """``base`` with the limits of ``--ttft``, ``--tpot``, ``--e2e`` and, where a command has them, ``--answer-ttft``,
    ``--percentile`` and ``--session-time``.
    """
    limits = {
        "ttft": quantity(values["ttft"], "seconds", "--ttft"),
        "tpot": quantity(values["tpot"], "seconds", "--tpot"),
        "e2el": quantity(values["e2e"], "seconds", "--e2e"),
        "answer_ttft": quantity(values.get("answer_ttft"), "seconds", "--answer-ttft"),
        "percentile": values.get("percentile"),
        "session": quantity(values.get("session_time"), "seconds", "--session-time"),
    }
    return replace(base, **{name: limit for name, limit in limits.items() if limit is not None})


def option_group(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, in the order in which help shows them."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


technique_options = option_group(
    *(click.option(*names, **keywords) for names, keywords in draft_options()),
    click.option("--prefix-hit-rate", type=Finite(), default=0.0, help="Share of every prompt found in the cache. [0]"),
    click.option(
        "--kv-offload", metavar="SIZE", help="Host memory for each device, for cache that is evicted from the device."
    ),
    click.option("--offload-bandwidth", metavar="RATE", help="Of the link to it, such as 64GB/s."),
)


def techniques_of(values: dict[str, Any], request: Request) -> Techniques:
    """What is asked for beside a static batch: speculation, a hit rate, a chunk, a host tier."""
    from inferplan.serving.techniques.applied import Techniques

    return Techniques(
        speculation=speculation_of(values, request),
        hit_rate=values["prefix_hit_rate"],
        chunk=values["chunk"],
        host=host_of(values),
    )


def host_of(values: dict[str, Any]) -> HostTier | None:
    """The host memory behind ``--kv-offload``; ``None`` without it."""
    from inferplan.serving.techniques.offload import HostTier

    if (values["kv_offload"] is None) != (values["offload_bandwidth"] is None):
        raise UsageError("KV offload needs both --kv-offload and --offload-bandwidth", hint="100GB and 64GB/s")
    capacity = quantity(values["kv_offload"], "bytes", "--kv-offload")
    bandwidth = quantity(values["offload_bandwidth"], "bytes/s", "--offload-bandwidth")
    return None if capacity is None or bandwidth is None else HostTier(capacity=capacity, bandwidth=bandwidth)
