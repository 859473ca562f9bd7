"""The options that say what prompts share, as a plan takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferplan.cli.options import Count
from inferplan.errors import UsageError
from inferplan.traffic.conversations import parse_think_time
from inferplan.traffic.requests import SharedPrefix

if TYPE_CHECKING:
    from inferplan.catalog.workloads import WorkloadSpec

SHARED_TEXT: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--shared-prefix",),
        {"type": Count(0), "help": "Tokens at the head of every prompt that are the same, beside those of --prompt."},
    ),
    (("--distinct-prefixes",), {"type": Count(), "help": "How many such texts there are. [1]"}),
    (
        ("--turns",),
        {"type": Count(), "help": "Turns of a conversation, each with all before it as its prompt. [1]"},
    ),
    (
        ("--think-time",),
        {
            "metavar": "TIME",
            "help": "From an answer to the next turn (--turns), or to the user's next request (--users): 30s, "
            "exponential:30s, lognormal:30s:0.8. [0 s]",
        },
    ),
)
TEXT_NAMES = ("shared_prefix", "distinct_prefixes", "turns", "think_time")


def shared_text(values: dict[str, Any], named: WorkloadSpec | None) -> SharedPrefix:
    """What prompts share: that of the workload, of which options replace a part each. Raises ``UsageError``."""
    prefix, think = named.shared_prefix() if named else SharedPrefix(), values["think_time"]
    if values["distinct_prefixes"] and not (
        prefix.tokens if values["shared_prefix"] is None else values["shared_prefix"]
    ):
        raise UsageError("--distinct-prefixes is of texts that prompts begin with", hint="--shared-prefix 1000")
    return SharedPrefix(
        tokens=prefix.tokens if values["shared_prefix"] is None else values["shared_prefix"],
        distinct=values["distinct_prefixes"] or prefix.distinct,
        turns=values["turns"] or prefix.turns,
        think=parse_think_time(think) if think else prefix.think,
    )


def require_used(values: dict[str, Any]) -> None:
    """Raise ``UsageError`` for a think time that an offline job would not heed."""
    if values["deadline"] and values["think_time"]:
        raise UsageError(
            "an offline job knows no think time", because="nobody waits for its answers", hint="leave --think-time out"
        )
