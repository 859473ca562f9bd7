"""Thoughts before an answer, and what they do not go with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from inferplan.errors import UsageError
from inferplan.fields import made_if_asked
from inferplan.traffic.reasoning import ThoughtsAsked

if TYPE_CHECKING:
    from inferplan.traffic.reasoning import ReasoningLengths
    from inferplan.traffic.requests import Lengths


def thinking(answer: Lengths, values: Mapping[str, Any], ratio_min: float = 1.0) -> Lengths:
    """What is written for a request whose ``answer`` is as long: it, or a thought and it where one is asked for."""
    asked = made_if_asked(ThoughtsAsked, values)
    return answer if asked is None else asked.before(answer, ratio_min)


def thoughts_of(values: Mapping[str, Any]) -> ReasoningLengths | None:
    """The thoughts before answers whose lengths are said elsewhere; ``None`` where nobody thinks."""
    from inferplan.traffic.requests import Lengths

    asked = made_if_asked(ThoughtsAsked, values)
    return None if asked is None else asked.before(Lengths())


def refuse_thinking(values: Mapping[str, Any], beside: str, because: str) -> None:
    """Raise ``UsageError`` for thoughts beside what says everything of requests, or knows nothing of them."""
    given = [name for name in ("tokens", "budget", "end") if values.get(f"thinking_{name}") is not None]
    if given:
        raise UsageError(
            f"--thinking-{given[0]} and {beside} exclude each other", because=because, hint="leave one of them out"
        )
