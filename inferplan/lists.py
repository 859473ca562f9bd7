"""Lists as a line of text writes them: names, counts, ranges of counts."""

from __future__ import annotations

import re

from inferplan.errors import UsageError
from inferplan.units import parse_count

MOST_LISTED = 10_000_000
"""Counts of the longest list."""
_RANGE = re.compile(r"(?P<first>[\d.]+[kKM]?i?)-(?P<last>[\d.]+[kKM]?i?)(?:(?P<how>[+*])(?P<step>[\d.]+[kKM]?i?))?")


def parse_values(text: str) -> list[str]:
    """A comma list of names."""
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_counts(text: str, option: str = "", most: int = MOST_LISTED) -> list[int]:
    """Counts as ``1,2,8k``, ranges as ``1-8``, ``128-1024+128`` (add) or ``1-256*2`` (multiply).

    Raises ``UsageError``, which names the option, for what is neither, and for more than ``most`` of them.
    """
    try:
        return _counts(text, most)
    except UsageError as error:
        raise UsageError(f"{option}: {error.what}" if option else error.what, error.because, error.hint) from None


def _counts(text: str, most: int) -> list[int]:
    counts: list[int] = []
    for part in parse_values(text):
        match = _RANGE.fullmatch(part)
        try:
            if match is None:
                counts.append(parse_count(part))
                continue
            value, last = parse_count(match["first"]), parse_count(match["last"])
            step = parse_count(match["step"]) if match["step"] else 1
        except ValueError as error:
            raise UsageError(str(error), hint="1,2,8k or 1-8 or 128-1024+128 or 1-256*2") from None
        multiply = match["how"] == "*"
        if value < 1 or step < (2 if multiply else 1):
            raise UsageError(f"{part!r} does not end", hint="1-8, 128-1024+128, 1-256*2")
        if not multiply and (last - value) // step >= most:
            raise UsageError(
                f"{part!r} holds {(last - value) // step + 1:,} counts",
                because=f"{most:,} are the most here",
                hint="a wider step, such as 1-1M*2",
            )
        while value <= last:
            counts.append(value)
            value = value * step if multiply else value + step
    if not counts or min(counts) < 1:
        raise UsageError(f"{text!r} holds no counts", hint="1,2,8k or 1-8 or 128-1024+128 or 1-256*2")
    return list(dict.fromkeys(counts))


def parse_copies(text: str) -> tuple[int, ...]:
    """Counts of :func:`parse_counts`, and 0."""
    parts = parse_values(text)
    counts = parse_counts(",".join(part for part in parts if part != "0")) if set(parts) != {"0"} else []
    return tuple(dict.fromkeys([*([0] if "0" in parts else []), *counts]))
