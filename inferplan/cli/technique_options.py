"""Options of serving techniques, shared by ``estimate`` and ``simulate``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from inferplan.catalog.assemble import Request
from inferplan.cli.options import Count
from inferplan.errors import UsageError
from inferplan.units import parse_quantity

if TYPE_CHECKING:
    from inferplan.serving.techniques.applied import Techniques
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


DRAFT_OPTIONS: dict[str, dict[str, Any]] = {
    "--draft-model": {
        "metavar": "MODEL",
        "help": "Speculative decoding: the model that drafts; mtp for the model's own prediction module, free for "
        "drafts that cost nothing (n-grams).",
    },
    "--draft-tokens": {"type": Count(0), "help": "Tokens drafted in sequence: the depth of the draft."},
    "--draft-branches": {
        "type": Count(),
        "default": 1,
        "help": "Candidates at each depth: more than 1 is a tree. [1]",
    },
    "--acceptance": {"type": float, "help": "Chance that a drafted token is accepted."},
    "--acceptance-length": {
        "type": float,
        "metavar": "TOKENS",
        "help": "Instead: tokens a verification yields on average, as engines report it (1 and the accepted drafts).",
    },
}
"""Speculative decoding, for every command that prices it."""
technique_options = option_group(
    *(click.option(name, **keywords) for name, keywords in DRAFT_OPTIONS.items()),
    click.option("--prefix-hit-rate", type=float, default=0.0, help="Share of every prompt found in the cache. [0]"),
    click.option(
        "--kv-offload", metavar="SIZE", help="Host memory for each device, for cache that is evicted from the device."
    ),
    click.option("--offload-bandwidth", metavar="RATE", help="Of the link to it, such as 64GB/s."),
)


@dataclass(frozen=True)
class Drafts:
    """Speculative decoding as the options state it; ``model`` is ``None`` for drafts that cost nothing."""

    model: str | None
    length: int
    acceptance: float
    branches: int


def draft_of(values: dict[str, Any]) -> Drafts | None:
    """What ``--draft-...`` and ``--acceptance`` describe, or ``None``. Raises ``UsageError`` for half of it."""
    from inferplan.serving.techniques.speculation import Speculation

    model, length, branches = values["draft_model"], values["draft_tokens"], values["draft_branches"]
    acceptance, tokens = values["acceptance"], values["acceptance_length"]
    if not length:
        if model or acceptance is not None or tokens is not None:
            raise UsageError("speculative decoding needs --draft-tokens", hint="--draft-tokens 4 --acceptance 0.7")
        return None
    if (acceptance is None) == (tokens is None):
        raise UsageError(
            "speculative decoding needs --acceptance or --acceptance-length, and one of them only",
            hint="--acceptance 0.5 to 0.9 is usual for a good draft; engines log the mean acceptance length",
        )
    if model is None:
        raise UsageError(
            "--draft-tokens without a draft model",
            because="a draft costs weights, cache and time",
            hint="--draft-model MODEL, --draft-model mtp, or --draft-model free where drafts cost nothing (n-grams)",
        )
    if tokens is not None:
        acceptance = Speculation.of_length(tokens, length, branches).acceptance
    return Drafts(None if model == "free" else model, length, acceptance, branches)


def speculation_of(values: dict[str, Any], request: Request) -> Speculation:
    """The speculation that the options describe, on the devices of ``request``; none without ``--draft-tokens``."""
    from inferplan.catalog.drafts import draft_beside
    from inferplan.serving.techniques.speculation import PLAIN, Speculation

    asked = draft_of(values)
    if asked is None:
        return PLAIN
    draft = None if asked.model is None else draft_beside(request, asked.model, request.parallel)
    return Speculation(length=asked.length, acceptance=asked.acceptance, branches=asked.branches, draft=draft)


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
