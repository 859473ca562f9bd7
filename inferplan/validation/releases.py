"""Which engine release a measured row ran: its version or image tag, else the newest one before its day."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import date

from inferplan.catalog.calibrations import release_dates
from inferplan.devices.releases import release_order

_TAGGED = re.compile(r"(?<!\d)(20\d\d)(\d\d)(\d\d)(?!\d)")
_PLAIN = re.compile(r"(20\d\d)-(\d\d)-(\d\d)")
_NUMBER = re.compile(r"v?(\d+(?:\.\d+)+(?:rc\d+)?(?:\.?post\d+)?)")


def release_of(engine: str, facts: Mapping[str, str]) -> tuple[str | None, tuple[str, ...]]:
    """The release of ``engine`` behind a row, and a note where its day alone tells; ``None`` where nothing does.

    A version is taken as stated. Names without one (``nightly-dev-20260216``) and rows without either are of the newest
    release that was out on the day of the tag, else on the ``date`` of the row.
    """
    stated = (facts.get("engine_version") or "").strip()
    number = _NUMBER.match(stated)
    if number is not None and release_order(number[1]) is not None:
        return number[1], ()
    days = _TAGGED.search(stated) or _PLAIN.match((facts.get("date") or "").strip())
    dates = release_dates().get(engine)
    if days is None or dates is None:
        return None, ()
    with suppress(ValueError):
        day = date(*(int(part) for part in days.groups()))
        release = dates.before(day)
        if release is not None:
            return release, (f"{day}: {engine} {release} was the newest release",)
    return None, ()
