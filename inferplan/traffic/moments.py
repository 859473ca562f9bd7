"""Times of logs: dates and times (ISO 8601), or seconds; one rule for every file with a column ``timestamp``.

A date and time with an offset is taken to UTC, one without is as it is. Seconds are 0 or more, since 1970 or any
midnight. All times of a file are of one kind, and lie before the year 3000. Where each time could be a date without
dashes (20260504), nobody can tell whether they are seconds: such a file is refused.
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


_BARE = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
"""A date without dashes, alone or with a time, by its number of digits."""


class Kind(NamedTuple):
    """What all times of a file have to have in common. dated: a date and time, else seconds. zoned: at a known place on
    earth. bare: the digits of seconds are those of a date too."""

    dated: bool
    zoned: bool
    bare: bool


class Moment(NamedTuple):
    """A time as a file has it."""

    seconds: float
    dated: bool = False
    zoned: bool = False
    bare: bool = False

    @property
    def kind(self) -> Kind:
        """Which of the kinds of :class:`Kind` it is."""
        return Kind(self.dated, self.zoned, self.bare)


def moment_of(path: Path, line: int, text: str) -> Moment:
    """A time. Raises ``InputFileError`` with the line for text that is none."""
    try:
        seconds = parse_number(text.replace("_", "?"))  # Python takes 2026_05_04 for a number
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
    bare = _is_bare_date(text)
    if seconds >= _LAST:
        if bare:
            raise bad_line(path, line, f"timestamp is {text:.40}, a date and time without signs: 2026-05-04T10:15:00")
        raise bad_line(path, line, f"timestamp is {text:.40}, seconds after the year 2999: milliseconds?")
    return Moment(seconds, bare=bare)


def _is_bare_date(text: str) -> bool:
    """Whether the digits are those of a date from 1970 to 2999 too."""
    if len(text) not in _BARE or not (text.isascii() and text.isdecimal()) or not "1970" <= text[:4] < "3000":
        return False
    try:
        datetime.strptime(text, _BARE[len(text)])
    except ValueError:
        return False
    return True


def require_alike(path: Path, kinds: Collection[Kind]) -> bool:
    """Whether the times of a file, of these kinds, are dates. Raises ``InputFileError`` where there are several, and
    where nobody can tell."""
    if len({one.dated for one in kinds}) > 1:
        raise InputFileError(f"{path}: some times are dates and some are seconds", hint="the same for all")
    if len({one.zoned for one in kinds}) > 1:
        raise InputFileError(f"{path}: some times have an offset and some have none", hint="the same for all")
    if kinds and all(one.bare for one in kinds):
        raise InputFileError(
            f"{path}: each timestamp is a date without dashes, or seconds",
            because="20260504 is the 4th of May, and 20,260,504 seconds are 234 days",
            hint="2026-05-04 for a date; 20260504.0 for seconds, or a column arrival_s",
        )
    return any(one.dated for one in kinds)
