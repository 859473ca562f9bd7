"""Times of logs: dates and times (ISO 8601), or seconds; one rule for every file with a column ``timestamp``.

A date and time with an offset is taken to UTC, one without is as it is. Seconds are 0 or more, since 1970 or any
midnight. All times of a file are of one kind, and lie before the year 3000.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from inferplan.errors import InputFileError
from inferplan.traffic.profile import bad_line
from inferplan.units import parse_number

_LAST = datetime(3000, 1, 1, tzinfo=UTC).timestamp()
"""Seconds beyond which a number is no time in seconds: those of today in milliseconds are thirty times as many."""


class Moment(NamedTuple):
    """A time as a file has it. dated: it is a date and time, else seconds. zoned: at a known place on earth."""

    seconds: float
    dated: bool = False
    zoned: bool = False

    @property
    def kind(self) -> tuple[bool, bool]:
        """What all times of a file have to have in common: ``dated`` and ``zoned``."""
        return self.dated, self.zoned


def moment_of(path: Path, line: int, text: str) -> Moment:
    """A time. Raises ``InputFileError`` with the line for text that is none."""
    try:
        seconds = parse_number(text)
    except ValueError:
        try:
            date = datetime.fromisoformat(text)
        except ValueError:
            raise bad_line(path, line, f"timestamp is {text!r:.40}, neither a date and time nor seconds") from None
        zoned = date.tzinfo is not None
        seconds = (date if zoned else date.replace(tzinfo=UTC)).timestamp()
        if not 0 <= seconds < _LAST:
            raise bad_line(path, line, f"timestamp is {text:.40}, not of the years 1970 to 2999") from None
        return Moment(seconds, True, zoned)
    if not isfinite(seconds) or seconds < 0:
        raise bad_line(path, line, f"timestamp is {text}, not 0 seconds or more")
    if seconds >= _LAST:
        raise bad_line(path, line, f"timestamp is {text:.40}, seconds after the year 2999: milliseconds?")
    return Moment(seconds)


def require_alike(path: Path, kinds: Collection[tuple[bool, bool]]) -> bool:
    """Whether the times of a file, of these kinds, are dates. Raises ``InputFileError`` where there are several."""
    if len({dated for dated, _ in kinds}) > 1:
        raise InputFileError(f"{path}: some times are dates and some are seconds", hint="the same for all")
    if len(kinds) > 1:
        raise InputFileError(f"{path}: some times have an offset and some have none", hint="the same for all")
    return any(dated for dated, _ in kinds)
