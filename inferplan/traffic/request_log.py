"""A day out of many: when requests came, over days, as the rates of one day, by the clock.

A log is a CSV with the column ``timestamp`` (:mod:`inferplan.traffic.moments`) and, if there are several kinds of
traffic, ``class``.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from inferplan.errors import InputFileError, UsageError
from inferplan.files import announce
from inferplan.traffic.conversations import Floats, Ints
from inferplan.traffic.moments import Kind, Moment, moment_of, require_alike
from inferplan.traffic.profile import BIN, DAY, Profile, bad_line, pairs_of
from inferplan.units import MOST, parse_number

_DIGITS = 6
"""Of a number of replicas."""


class Log(NamedTuple):
    """When requests came. seconds: in order, from some midnight. of: the class of each, by its place; none of all."""

    seconds: Floats
    of: Ints
    classes: tuple[str, ...] = ()


def read_log(path: Path) -> Log | None:
    """The times of a log; ``None`` for a file with other columns. Raises ``InputFileError`` that names the line."""
    try:
        announce(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            columns = [cell.strip().lower() for cell in next(rows, [])]
            if sorted(columns) not in (["timestamp"], ["class", "timestamp"]):
                return None
            at, moments, names = columns.index("timestamp"), list[Moment](), []
            for row in rows:
                if len(row) != len(columns):
                    if row:
                        raise bad_line(path, rows.line_num, f"has {len(row)} columns where {len(columns)} are needed")
                    continue
                moments.append(moment_of(path, rows.line_num, row[at].strip()))
                names.append("" if len(row) == 1 else row[1 - at].strip())
    except OSError as error:
        raise InputFileError(f"cannot read {path}", because=error.strerror or str(error)) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputFileError(f"cannot read {path}", because=str(error)) from None
    require_alike(path, {one.kind for one in moments})
    times = np.array([one.seconds for one in moments])
    order = np.argsort(times, kind="stable")
    kinds = tuple(dict.fromkeys(names)) if len(columns) == 2 else ()
    of = np.array([kinds.index(name) for name in names]) if kinds else np.zeros(len(times), dtype=np.int64)
    return Log(times[order], of[order], kinds)


def read_replicas(path: Path, began: float, dated: bool) -> tuple[tuple[float, int], ...]:
    """(seconds, replicas that took requests from then on), of a CSV with the columns ``timestamp``, on the clock of a
    log whose first request is at ``began``, and ``replicas``; the first is at 0, rows without a change are left out.

    Raises ``InputFileError``, with the line, for another file, for times of another kind than those of the log, and
    where nothing is said of the time of the first request.
    """
    needed = "a CSV with the columns timestamp (as in the log) and replicas"
    found: list[tuple[float, int]] = []
    kinds = set[Kind]()
    for line, cell in pairs_of(path, ("timestamp", "replicas"), "does not say how many replicas there were", needed):
        time = moment_of(path, line, cell["timestamp"])
        seconds = time.seconds - began
        if time.dated is not dated:
            kind = "dates and times" if dated else "seconds"
            raise bad_line(path, line, f"timestamp is {cell['timestamp']!r:.40}; the log has {kind}")
        kinds.add(time.kind._replace(bare=False))  # the log has told
        require_alike(path, kinds)
        if found and seconds <= found[-1][0]:
            raise bad_line(path, line, f"timestamp {cell['timestamp']} is not after the one before it")
        if not (cell["replicas"].isascii() and cell["replicas"].isdecimal()) or len(cell["replicas"]) > _DIGITS:
            raise bad_line(
                path, line, f"replicas is {cell['replicas']!r:.40}, not 0, 1, 2, ... of {_DIGITS} digits at most"
            )
        found.append((seconds, int(cell["replicas"])))
    if not found or found[0][0] > 0:
        late = f"its first row is {found[0][0]:,.6g} s after it" if found else "it has no rows"
        raise InputFileError(f"{path} has no replicas at the first request of the log", because=late)
    if not any(count for _, count in found):
        raise InputFileError(f"{path} has no replicas", because="0 stands in every row")
    if found[-1][0] > MOST:
        raise InputFileError(f"{path} ends {found[-1][0]:.3g} s after the log begins")
    first = [count for seconds, count in found if seconds <= 0][-1]
    changes = [(0.0, first), *((seconds, count) for seconds, count in found if seconds > 0)]
    return tuple(one for before, one in zip([(0.0, -1), *changes], changes) if one[1] != before[1])


def fold_days(log: Log, name: str, percentile: float | None = None, source: str = "") -> Profile:
    """One day with the rates of many, in steps of five minutes: of each step, and class, the mean over the days, or a
    percentile of them (interpolated linearly). Of the first and the last day only whole steps count.

    Raises ``UsageError`` where some step of the day is in no day whole.
    """
    steps, kinds = round(DAY / BIN), max(len(log.classes), 1)
    if not len(log.seconds):
        raise UsageError(f"{name} has no requests")
    begin, end = int(np.ceil(log.seconds[0] / BIN)), int(np.floor(log.seconds[-1] / BIN))  # whole steps, end excluded
    if end - begin < steps:
        raise UsageError(
            f"{name} is no whole day",
            because=f"it lasts {(log.seconds[-1] - log.seconds[0]) / 3600:.3g} h",
            hint="a longer log, or --profile with rates by the hour",
        )
    inside = np.floor(log.seconds / BIN).astype(np.int64) - begin
    kept = (inside >= 0) & (inside < end - begin)
    counts = np.bincount(inside[kept] * kinds + log.of[kept], minlength=(end - begin) * kinds)
    days = -(-(end - begin) // steps)
    padded = np.full((days * steps, kinds), np.nan)
    padded[: end - begin] = counts.reshape(-1, kinds)
    by_day = np.roll(padded.reshape(days, steps, kinds), begin % steps, axis=1)  # a step of a day is in one column
    found = np.nanmean(by_day, axis=0) if percentile is None else np.nanpercentile(by_day, percentile, axis=0)
    rates = found / BIN
    return Profile(
        name=name,
        starts=tuple((np.arange(steps) * BIN).tolist()),
        rates=tuple(np.sum(rates, axis=1).tolist()),
        classes=log.classes,
        of_class=tuple(map(tuple, rates.T.tolist())) if log.classes else (),
        source=source,
    )


def way_of(text: str) -> float | None:
    """The percentile of ``p95``; ``None`` for ``mean``. Raises ``UsageError`` for anything else."""
    if text == "mean":
        return None
    try:
        percentile = parse_number(text.removeprefix("p"))
    except ValueError:
        percentile = -1.0
    if not text.startswith("p") or not 0 <= percentile <= 100:
        raise UsageError(f"--fold {text} is no way to make one day of many", hint="--fold mean, or --fold p95")
    return percentile
