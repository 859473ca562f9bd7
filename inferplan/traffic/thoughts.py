"""Thoughts before an answer as they are asked for: their lengths, and budgets that cut them (docs/reasoning.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from inferplan.errors import UsageError
from inferplan.fields import Text, Topic, Whole, ask, declared_keys, first_given, need
from inferplan.lists import parse_counts, parse_values

MARKER = 1
"""Tokens that end a thought: ``</think>`` is one token of Qwen3's vocabulary, 151668 (its model card)."""


@dataclass(frozen=True, kw_only=True)
class ThoughtsAsked:
    """Thoughts as they are asked for. tokens: a distribution of lengths as text. budget, end: of
    :class:`inferplan.traffic.reasoning.ReasoningLengths`."""

    topic: ClassVar = Topic("thoughts", "there are no thoughts", "--thinking-tokens lognormal:4k:0.8")
    tokens: str = field(
        metadata=need(
            "--thinking-tokens",
            Text(),
            "Tokens of thought before the answer; --output then counts only the answer: 4k, lognormal:4k:0.8, ...",
            metavar="LENGTHS",
        )
    )
    budget: int | None = ask("--thinking-budget", Whole(), "Most tokens per thought, which is cut there.", None)
    end: int = ask(
        "--thinking-end",
        Whole(),
        "Tokens that the engine writes when it cuts a thought, end marker included. [1]",
        MARKER,
    )


def refuse_thoughts_of_trace(values: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for options of thoughts beside a trace."""
    if option := first_given(values, declared_keys(ThoughtsAsked)):
        why = "a trace does not state which output tokens are thoughts"
        raise UsageError(f"{option} and --trace exclude each other", because=why, hint="leave one of them out")


NO_BUDGET = "none"
"""The word for a thought that nothing cuts."""


def parse_budgets(text: str) -> tuple[int | None, ...]:
    """Budgets of thought: counts, or ``none`` for no end. Raises ``UsageError`` for what is no count."""
    words = parse_values(text)
    found = [None if word == NO_BUDGET else parse_counts(word, "--thinking-budget", 1)[0] for word in words]
    return tuple(dict.fromkeys(found))
