"""What somebody who watches a service asks."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

from inferplan.errors import UsageError
from inferplan.fields import Quantity, Text, ask
from inferplan.lists import parse_values
from inferplan.watching.minutes import MINUTE
from inferplan.watching.what_if import MOST, WhatIf

Ending = Literal["limit", "drift"]


def _endings(text: str) -> tuple[Ending, ...]:
    found = tuple(parse_values(text))
    wrong = [one for one in found if one not in get_args(Ending)]
    if wrong or not found:
        raise UsageError(f"--fail-on {(wrong[0] if wrong else text)!r} is no ending", hint="limit, drift, or both")
    return found  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class WatchAsked:
    """How a service is watched. every: seconds between scrapes. window: seconds that one line is of. lasting: seconds
    after which watching ends. what_ifs: changes of the load that are predicted each time. fail_on: what ends it with an
    exit code. Raises ``UsageError`` for spans that do not go together.
    """

    every: float = ask("--every", Quantity("seconds", above=True), "Time between two scrapes.", 10.0, metavar="TIME")
    window: float = ask(
        "--window", Quantity("seconds", above=True), "Time covered by each line.", MINUTE, metavar="TIME"
    )
    lasting: float = ask(
        "--for", Quantity("seconds", above=True), "How long to watch [until Ctrl-C].", inf, metavar="TIME"
    )
    what_ifs: tuple[WhatIf, ...] = ask(
        "--what-if",
        Text(WhatIf.parse),
        "Also predict each line for a changed load: replicas=-1, rate=x1.5, prompt=x2, output=x0.5, hits=0.",
        (),
        metavar="CHANGE",
        several=True,
    )
    fail_on: tuple[Ending, ...] = ask(
        "--fail-on",
        Text(_endings),
        "Stop watching on: limit (a latency is over its limit, exit 3), drift (something changed, exit 6).",
        (),
        metavar="LIST",
    )

    def __post_init__(self) -> None:
        if self.every > self.window:
            raise UsageError(
                f"--every {self.every:g}s is longer than --window {self.window:g}s",
                because="a line needs at least two scrapes",
                hint="--every 10s --window 1min",
            )
        if len(self.what_ifs) > MOST:
            raise UsageError(f"{len(self.what_ifs)} changes are too many at once", hint=f"{MOST} at most")
