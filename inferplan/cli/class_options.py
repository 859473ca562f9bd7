"""The options of several kinds of traffic, for ``simulate``, ``plan`` and ``day``."""

from __future__ import annotations

from typing import Any

from inferplan.catalog.classes import Mix, load_classes
from inferplan.cli.declared import Declared, with_options
from inferplan.errors import UsageError

CLASSES = Declared(
    "--classes",
    metavar="FILE",
    help="Several kinds of traffic, by name or path: lengths, share, limits, priority and weight of each "
    "(docs/classes.md).",
)
classes_option = with_options([CLASSES])

_SAID = (
    *("workload", "trace", "prompt", "output_tokens", "ttft", "tpot", "e2e", "slo", "percentile", "deadline"),
    *("answer_ttft", "sessions", "session_rate", "session_time", "session_count"),
)
"""What classes say for themselves."""
_UNPLANNED = (
    *("shared_prefix", "distinct_prefixes", "turns", "samples", "cached_prefix"),
    *("thinking_tokens", "thinking_budget", "thinking_end", "cache_tiers"),
)
"""What requests of classes may share or think, where they are simulated one by one."""


def asked_classes(values: dict[str, Any], rated: bool = False, alone: bool = True) -> Mix:
    """The classes that are asked for; none where ``--classes`` is not given. rated: their rates are said elsewhere.
    alone: nothing is known of what their requests share, and of thoughts.

    Raises ``UsageError`` for options that the file speaks for, and for an order of the queue without classes.
    """
    if values["classes"] is None:
        if values["queue"] != "fcfs":
            raise UsageError(
                f"--queue {values['queue']} needs several classes of traffic", hint="--classes FILE, or leave it out"
            )
        return Mix((), None)
    said = (*_SAID, *_UNPLANNED) if alone else _SAID
    given = [name for name in said if values.get(name) not in (None, 0, ())]
    if values.get("length_ratio_min", 1.0) != 1.0:
        given.append("length_ratio_min")
    if given:
        option = given[0].replace("output_tokens", "output").replace("cache_tiers", "cache_tier").replace("_", "-")
        raise UsageError(
            f"--{option} and --classes exclude each other",
            because="each class has lengths and limits of its own" + (", and its requests share nothing" * alone),
            hint="the file of the classes says it, or leave one of them out",
        )
    mix = load_classes(values["classes"], rated)
    beside = [name for name in ("rate", "concurrency", "users") if values.get(name) is not None]
    if mix.rate is not None and beside:
        raise UsageError(
            f"--{beside[0]} {values[beside[0]]:g} beside classes that have rates of their own",
            because=f"they make {mix.rate:g} requests a second",
            hint=f"share: instead of rate: in the file, or no --{beside[0]}",
        )
    return mix
