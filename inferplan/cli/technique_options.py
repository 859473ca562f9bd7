"""Options of serving techniques, shared by ``estimate`` and ``simulate``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from inferplan.catalog.assemble import Request, assemble
from inferplan.cli.options import Count
from inferplan.errors import UsageError
from inferplan.units import parse_quantity

if TYPE_CHECKING:
    from inferplan.serving.techniques.offload import HostTier
    from inferplan.serving.techniques.speculation import Speculation


def quantity(text: str | None, dimension: str, option: str) -> float | None:
    """A quantity with its unit. Raises ``UsageError`` that names the option."""
    try:
        return None if text is None else parse_quantity(text, dimension)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def option_group(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, in the order in which help shows them."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


technique_options = option_group(
    click.option("--draft-model", metavar="MODEL", help="Speculative decoding: the model that drafts."),
    click.option(
        "--draft-tokens", type=Count(0), default=0, help="Tokens drafted in sequence: the depth of the draft."
    ),
    click.option(
        "--draft-branches", type=Count(), default=1, help="Candidates at each depth: more than 1 is a tree. [1]"
    ),
    click.option("--acceptance", type=float, help="Chance that a drafted token is accepted."),
    click.option("--prefix-hit-rate", type=float, default=0.0, help="Share of every prompt found in the cache. [0]"),
    click.option(
        "--kv-offload", metavar="SIZE", help="Host memory for each device, for cache that is evicted from the device."
    ),
    click.option("--offload-bandwidth", metavar="RATE", help="Of the link to it, such as 64GB/s."),
)


def speculation_of(values: dict[str, Any], request: Request) -> Speculation:
    """The speculation that ``--draft-...`` and ``--acceptance`` describe; none without ``--draft-tokens``."""
    from inferplan.serving.techniques.speculation import PLAIN, Speculation

    if not values["draft_tokens"]:
        if values["draft_model"] or values["acceptance"] is not None:
            raise UsageError("speculative decoding needs --draft-tokens", hint="--draft-tokens 4 --acceptance 0.7")
        return PLAIN
    if values["acceptance"] is None:
        raise UsageError("speculative decoding needs --acceptance", hint="0.5 to 0.9 is usual for a good draft")
    draft = assemble(replace(request, model=values["draft_model"])) if values["draft_model"] else None
    return Speculation(
        length=values["draft_tokens"], acceptance=values["acceptance"], branches=values["draft_branches"], draft=draft
    )


def host_of(values: dict[str, Any]) -> HostTier | None:
    """The host memory behind ``--kv-offload``; ``None`` without it."""
    from inferplan.serving.techniques.offload import HostTier

    if (values["kv_offload"] is None) != (values["offload_bandwidth"] is None):
        raise UsageError("KV offload needs both --kv-offload and --offload-bandwidth", hint="100GB and 64GB/s")
    capacity = quantity(values["kv_offload"], "bytes", "--kv-offload")
    bandwidth = quantity(values["offload_bandwidth"], "bytes/s", "--offload-bandwidth")
    return None if capacity is None or bandwidth is None else HostTier(capacity=capacity, bandwidth=bandwidth)
