"""Conversations: turns that follow each other's answers after a think time, and the blocks that their prompts share."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np
import numpy.typing as npt

from inferplan.errors import UsageError
from inferplan.units import parse_number, parse_quantity

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
NAME_ROOM = 1 << 24
"""Names that each text has for its blocks."""
LONGEST_THINK = 30 * 86400.0
"""The longest mean think time [s]: 30 days. The bound is ours: a longer gap within a session is taken for a slip."""


@dataclass(frozen=True, kw_only=True)
class ThinkTime:
    """Seconds between an answer and the next request of the user who reads it.

    constant: ``mean``. exponential: of that mean. lognormal: of standard deviation ``spread*mean``. Raises
    ``UsageError`` for a mean above :data:`LONGEST_THINK`, and for what is negative or not finite.
    """

    kind: Literal["constant", "exponential", "lognormal"] = "constant"
    mean: float = 0.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.mean <= LONGEST_THINK:
            raise UsageError(
                f"a think time is 0 s or more and at most 30 days, not {self.mean:g} s",
                because="a longer gap between two requests of a session is no think time",
            )
        if not 0 <= self.spread < inf:
            raise UsageError(f"the spread of a think time is 0 or more and finite, not {self.spread:g}")

    def sample(self, rng: np.random.Generator, count: int) -> Floats:
        """``count`` think times in seconds; a constant one draws nothing."""
        if self.kind == "exponential":
            return rng.exponential(self.mean, count)
        if self.kind == "lognormal" and self.spread and self.mean:
            variance = np.logaddexp(0.0, 2 * np.log(self.spread))  # log(1 + spread**2), which does not overflow
            return rng.lognormal(np.log(self.mean) - variance / 2, np.sqrt(variance), count)
        return np.full(count, self.mean)


def parse_think_time(text: str) -> ThinkTime:
    """``30s``, ``exponential:30s``, ``lognormal:30s:0.8`` (standard deviation over mean). Raises ``UsageError``."""
    kind, _, rest = text.strip().rpartition(":") if text.count(":") < 2 else text.strip().partition(":")
    mean, _, spread = rest.partition(":")
    if kind not in ("", "exponential", "lognormal") or (kind == "lognormal") != bool(spread):
        raise UsageError(f"{text!r} is not a think time", hint="30s, exponential:30s, lognormal:30s:0.8")
    try:
        seconds, deviation = parse_quantity(mean, "seconds"), parse_number(spread or "0")
    except ValueError as error:
        raise UsageError(f"--think-time: {error}", hint="30s, exponential:30s, lognormal:30s:0.8") from None
    return ThinkTime(kind=kind or "constant", mean=seconds, spread=deviation)  # type: ignore[arg-type]  # checked above


def turns_of(count: int, turns: int, users: int | None) -> tuple[Ints, Ints, Ints]:
    """The conversation of each of ``count`` prompts, its turn there, and the prompt before it (-1 for a first one).

    With ``users`` that many conversations run side by side, a turn of each before the next; without, conversations
    come one after another.
    """
    index = np.arange(count)
    if users is None:
        conversation, turn = np.divmod(index, turns)
        return conversation, turn, np.where(turn > 0, index - 1, -1)
    order, user = np.divmod(index, users)
    turn = order % turns
    return (order // turns) * users + user, turn, np.where(turn > 0, index - users, -1)


def block_names(text: int, shared: int, own: tuple[int, int, int], tokens: int, block: int) -> tuple[int, ...]:
    """Names of the full blocks of ``tokens`` tokens: ``shared`` ones of a text that others have too (names below zero),
    then those of a conversation.

    own: the number of the conversation, that of the one with the same first prompt (itself, if there is none), and the
    tokens up to the end of that prompt.
    """
    number, twin, first = own
    common, alike, full = shared // block, first // block, tokens // block
    names = [-(text * NAME_ROOM + index + 1) for index in range(min(common, full))]
    names += range((twin + 1) * NAME_ROOM + common, (twin + 1) * NAME_ROOM + min(alike, full))
    names += range((number + 1) * NAME_ROOM + max(alike, common), (number + 1) * NAME_ROOM + full)
    return tuple(names)


def own_names(request: int, first: int, full: int) -> range:
    """Names of the blocks ``first`` to ``full`` of a request, which no other has."""
    start = (1 << 60) + request * NAME_ROOM
    return range(start + first, start + full)
