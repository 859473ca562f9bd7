"""The options of a model that thinks before it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from inferplan.cli.options import Count
from inferplan.cli.technique_options import option_group
from inferplan.errors import UsageError

if TYPE_CHECKING:
    from inferplan.traffic.reasoning import ReasoningLengths
    from inferplan.traffic.requests import Lengths

NO_BUDGET = "none"
Declared = tuple[tuple[str, ...], dict[str, Any]]
TOKENS: Declared = (
    ("--thinking-tokens",),
    {
        "metavar": "LENGTHS",
        "help": "Tokens of thought before the answer, which --output is then: 4k, lognormal:4k:0.8, ...",
    },
)
END: Declared = (
    ("--thinking-end",),
    {
        "type": Count(),
        "help": "Tokens that the engine writes where it cuts a thought, the marker of its end among them. [1]",
    },
)
BUDGET: Declared = (("--thinking-budget",), {"type": Count(), "help": "Most tokens of a thought, which is cut there."})
BUDGETS: Declared = (
    ("--thinking-budget",),
    {
        "metavar": "COUNTS",
        "help": "Most tokens of a thought, which is cut there; of several, 1k,4k,none, what each costs.",
    },
)
LIMIT: Declared = (("--answer-ttft",), {"metavar": "TIME", "help": "Limit on the first token after the thought."})

reasoning_options = option_group(*(click.option(*names, **keywords) for names, keywords in (TOKENS, BUDGET, END)))
"""Thoughts with one budget."""


def thinking(answer: Lengths, values: Mapping[str, Any], ratio_min: float = 1.0) -> Lengths:
    """What is written for a request whose ``answer`` is as long: it, or a thought and it where one is asked for.

    Raises ``UsageError`` for options of thoughts that nobody has.
    """
    text, budget, end = (values[f"thinking_{name}"] for name in ("tokens", "budget", "end"))
    if text is None:
        require_none(values)
        return answer
    from inferplan.traffic.reasoning import MARKER, ReasoningLengths
    from inferplan.traffic.requests import parse_lengths

    thought = parse_lengths(text, ratio_min)
    return ReasoningLengths(thought=thought, answer=answer, budget=budget, end=MARKER if end is None else end)


def mean_thinking(answer: float, values: dict[str, Any]) -> ReasoningLengths | None:
    """What the mean request of a static batch thinks before ``answer`` tokens; ``None`` where nobody does. Takes its
    options out of ``values``.
    """
    given = {name: values.pop(name) for name in ("thinking_tokens", "thinking_budget", "thinking_end")}
    if given["thinking_tokens"] is None:
        require_none(given)
        return None
    from inferplan.traffic.reasoning import ReasoningLengths
    from inferplan.traffic.requests import Lengths

    found = thinking(Lengths(mean=answer), given)
    assert isinstance(found, ReasoningLengths)
    return found


def budgets_of(text: str | None) -> tuple[int | None, ...]:
    """The budgets that ``--thinking-budget`` names: counts, or ``none`` for no end; none of them where it is absent.

    Raises ``UsageError`` for what is no count.
    """
    from inferplan.answers.sweep import parse_counts

    given = [word.strip() for word in (text or "").split(",") if word.strip()]
    found = [None if word == NO_BUDGET else parse_counts(word, "--thinking-budget", 1)[0] for word in given]
    return tuple(dict.fromkeys(found))


def require_none(values: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` where an option says something of thoughts and there are none."""
    given = [name for name in ("thinking_budget", "thinking_end") if values.get(name) is not None]
    if given:
        raise UsageError(
            f"--{given[0].replace('_', '-')} without thoughts",
            because="how much a model thinks before it answers depends on it and on what it is asked",
            hint="--thinking-tokens lognormal:4k:0.8 as well, or leave it out",
        )


def refuse_thinking(values: Mapping[str, Any], beside: str, because: str) -> None:
    """Raise ``UsageError`` for thoughts beside what says everything of requests, or knows nothing of them."""
    given = [name for name in ("tokens", "budget", "end") if values.get(f"thinking_{name}") is not None]
    if given:
        raise UsageError(
            f"--thinking-{given[0]} and {beside} exclude each other", because=because, hint="leave one of them out"
        )
