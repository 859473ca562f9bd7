"""Load profiles: requests a second by the time of day, constant from one row to the next.

A file is CSV with the columns ``time`` (seconds, HH:MM or HH:MM:SS), ``rate`` (requests a second) and, if there are
several kinds of traffic, ``class``; every class has rows of its own. Its last row lasts until 24:00. A profile repeats
from its end on: that of a day every day, that of a trace of an hour every hour.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path

import numpy as np

from inferplan.errors import InputFileError, UsageError
from inferplan.files import LARGEST_SPEC, read_text
from inferplan.lists import parse_values
from inferplan.traffic.conversations import Floats, Ints
from inferplan.traffic.requests import ArrivalKind, OpenLoop, Requests
from inferplan.units import parse_number

DAY = 86_400.0
"""Seconds of a day."""
BIN = 300.0
"""Seconds of a step of a profile that is made from a trace."""
_MOST_STEPS = 100_000
_MOST_RATE = 1e6
_COLUMNS = "a CSV with the columns time (0, 3600 or 01:00) and rate (requests/s), and class where there are several"
STEPS_HINT = "00:00=0.1,07:00=0.8: times of the day, requests/s"
_CLOCK = re.compile(r"(\d{1,2}):([0-5]\d)(?::([0-5]\d))?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Requests a second over time: ``rates[i]`` from ``starts[i]`` seconds to the next, the last until ``end``, and
    again from there. classes: kinds of traffic whose rates are added here; of_class: those of each, step by step.

    Raises ``UsageError`` for steps that do not follow each other from 0 on, and for rates that are none.
    """

    name: str
    starts: tuple[float, ...]
    rates: tuple[float, ...]
    end: float = DAY
    classes: tuple[str, ...] = ()
    of_class: tuple[tuple[float, ...], ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        if not self.starts or len(self.starts) != len(self.rates) or len(self.starts) > _MOST_STEPS:
            raise UsageError(f"a profile has 1 to {_MOST_STEPS:,} steps, each with a rate")
        edges = (*self.starts, self.end)
        if self.starts[0] != 0.0:
            because = f"its first step is at {self.starts[0]:g} s"
            raise UsageError("a profile begins at 0", because=because, hint="a step at 00:00, such as 00:00=0.1")
        late = next((after for before, after in pairwise(edges) if not after > before), None)
        if late is not None:
            because = f"the step at {late:g} s is not after the one before it"
            raise UsageError(
                "steps of a profile follow each other", because=because, hint="each step once, by rising time"
            )
        bad = next((rate for rate in self.rates if not 0 <= rate <= _MOST_RATE), None)
        if bad is not None:
            raise UsageError(f"a rate is 0 to {_MOST_RATE:,.0f} requests/s, not {bad:g}", hint=STEPS_HINT)
        if not self.peak > 0:
            because = "all its rates are 0"
            raise UsageError(
                f"profile {self.name} has no requests at all", because=because, hint="a rate above 0 in a step"
            )

    @property
    def peak(self) -> float:
        """The largest rate."""
        return max(self.rates)

    @property
    def mean(self) -> float:
        """Requests a second over a whole period."""
        return float(np.dot(np.diff([*self.starts, self.end]), self.rates)) / self.end

    def scaled(self, peak: float) -> Profile:
        """The same shape with another peak."""
        times = peak / self.peak
        of_class = tuple(tuple(rate * times for rate in rates) for rates in self.of_class)
        return replace(self, rates=tuple(rate * times for rate in self.rates), of_class=of_class)

    def divided(self, names: Sequence[str], shares: Sequence[float]) -> Profile:
        """The same rates, of each class by its share at any time."""
        whole = sum(shares)
        of_class = tuple(tuple(rate * share / whole for rate in self.rates) for share in shares)
        return replace(self, classes=tuple(names), of_class=of_class)

    def ordered(self, names: Sequence[str]) -> Profile:
        """The same with its classes in this order."""
        of_class = tuple(self.of_class[self.classes.index(name)] for name in names)
        return replace(self, classes=tuple(names), of_class=of_class)

    def weighted(self, weights: Sequence[float] | Floats) -> Profile:
        """What the requests of a second amount to, over time, where each counts by the weight of its step."""
        rates = np.array(self.rates) * weights
        return replace(self, rates=tuple(rates.tolist()), classes=(), of_class=())

    def steps(self, until: float) -> Iterator[tuple[float, float]]:
        """(start, rate) of every step that begins before ``until``, in seconds; it repeats as often as that takes."""
        begin = 0.0
        while begin < until:
            yield from ((begin + start, rate) for start, rate in zip(self.starts, self.rates) if begin + start < until)
            begin += self.end

    def most(self, start: float, stop: float) -> float:
        """The largest rate at any time from ``start`` to ``stop``, both included."""
        if stop - start >= self.end:
            return self.peak
        first, last = (int(np.searchsorted(self.starts, time % self.end, "right")) - 1 for time in (start, stop))
        inside = self.rates[first : last + 1] if first <= last and stop // self.end == start // self.end else None
        return max(inside if inside is not None else (*self.rates[first:], *self.rates[: last + 1]))

    def expected(self, until: float) -> float:
        """Mean number of requests before ``until`` seconds."""
        return float(self._summed(until)[1][-1])

    def _summed(self, until: float) -> tuple[Floats, Floats]:
        """The edges of all steps up to ``until``, and the mean number of requests before each."""
        starts, rates = np.array(list(self.steps(until))).T
        edges = np.append(starts, until)
        return edges, np.append(0.0, np.cumsum(np.diff(edges) * rates))

    def arrivals(self, until: float, kind: ArrivalKind = "poisson", burstiness: float = 1.0, seed: int = 0) -> Floats:
        """Times of requests before ``until``, in seconds: those of a stream of rate 1, of which each is at the time by
        which so many are expected (inversion of the cumulative rate; E. Cinlar, Introduction to Stochastic Processes,
        1975). Poisson arrivals stay Poisson with the rates of the profile.
        """
        return self.placed(until, kind, burstiness, seed)[0]

    def placed(self, until: float, kind: ArrivalKind, burstiness: float, seed: int) -> tuple[Floats, Ints]:
        """:meth:`arrivals`, with the step of the profile that each is in."""
        edges, expected = self._summed(until)
        total, stream = float(expected[-1]), OpenLoop(rate=1.0, kind=kind, burstiness=burstiness)
        count = int(total + 10 * np.sqrt(total / min(burstiness, 1.0)) + 100)
        while True:
            ordinal = stream.sample(np.random.default_rng(seed), count)
            if ordinal[-1] >= total:
                break
            count *= 2
        ordinal = ordinal[ordinal < total]
        step = np.searchsorted(expected, ordinal, "right") - 1
        rate = np.diff(expected) / np.diff(edges)
        times: Floats = edges[step] + (ordinal - expected[step]) / rate[step]
        return times, step % len(self.starts)

    def shares_until(self, until: float) -> list[float]:
        """The share of each class in all requests that are expected before ``until`` seconds."""
        edges = self._summed(until)[0]
        step = np.arange(len(edges) - 1) % len(self.starts)
        expected = np.array(self.of_class)[:, step] @ np.diff(edges)
        return list((expected / max(float(np.sum(expected)), 1e-300)).tolist())

    @property
    def shares(self) -> Floats:
        """The share of each class in the requests of each step, ``(steps, classes)``; 0 where none come."""
        of_class = np.array(self.of_class).T
        shares: Floats = of_class / np.maximum(np.sum(of_class, axis=1, keepdims=True), 1e-300)
        return shares


def profile_of(trace: Requests, name: str = "trace") -> Profile:
    """The rates of a trace in steps of five minutes; what is left at its end, if less than half a step, belongs to the
    last. It ends, and repeats, one mean gap behind the last request. Raises ``UsageError`` without arrival times.
    """
    if trace.arrival is None or len(trace) < 2 or not trace.arrival[-1] > trace.arrival[0]:
        raise UsageError("rates are those of a trace with two arrival times or more", hint="a trace that lasts longer")
    arrival = trace.arrival - trace.arrival[0] if trace.arrival[0] else trace.arrival
    end = float(arrival[-1]) * len(trace) / (len(trace) - 1)
    if end > _MOST_STEPS * BIN:
        raise UsageError(
            f"{name} lasts {end / DAY:,.3g} days",
            because=f"{_MOST_STEPS * BIN / DAY:,.0f} are the most",
            hint="a part of it, or mend its times",
        )
    edges = [*np.arange(max(round(end / BIN), 1)) * BIN, end]
    counts, _ = np.histogram(arrival, bins=edges)
    rates = counts / np.diff(edges)
    return Profile(name=name, starts=tuple(map(float, edges[:-1])), rates=tuple(map(float, rates)), end=end)


def read_profile(path: Path) -> Profile:
    """The profile of a CSV file. Raises ``InputFileError`` that names the line."""
    try:
        rows = _rows(path)
    except InputFileError as error:
        raise InputFileError(error.what, because=error.because, hint=error.hint or _COLUMNS) from None
    if not rows:
        raise InputFileError(f"{path} is empty", hint=_COLUMNS)
    columns = [cell.strip().lower() for cell in rows[0][1]]
    if sorted(columns) not in (["rate", "time"], ["class", "rate", "time"]):
        other = [column for column in columns if column not in ("time", "rate", "class")]
        because = f"unknown columns: {', '.join(other)}" if other else f"its first line is {','.join(columns)[:80]!r}"
        raise InputFileError(f"{path} is not a load profile", because=because, hint=_COLUMNS)
    classes: dict[str, list[tuple[float, float]]] = {}
    for line, row in rows[1:]:
        if len(row) != len(columns):
            raise bad_line(path, line, f"has {len(row)} columns where {len(columns)} are needed")
        cell = dict(zip(columns, (text.strip() for text in row)))
        if cell.get("class") == "":
            raise bad_line(path, line, "class is empty")
        steps = classes.setdefault(cell.get("class", ""), [])
        time, rate = _time(path, line, cell["time"]), _rate(path, line, cell["rate"])
        if not steps and time:
            raise bad_line(path, line, f"the first time is {cell['time']}, not 0: a day begins at 00:00")
        if steps and time <= steps[-1][0]:
            raise bad_line(path, line, f"time {cell['time']} is not after the one before it")
        steps.append((time, rate))
    if not classes:
        raise InputFileError(f"{path} has no rows", hint=_COLUMNS)
    starts = sorted({time for steps in classes.values() for time, _ in steps})
    held = np.array([_held(steps, starts) for steps in classes.values()])
    try:
        return Profile(
            name=path.stem,
            starts=tuple(starts),
            rates=tuple(np.sum(held, axis=0).tolist()),
            classes=tuple(classes) if "class" in columns else (),
            of_class=tuple(map(tuple, held.tolist())) if "class" in columns else (),
            source=str(path),
        )
    except UsageError as error:
        raise InputFileError(f"{path} is not a load profile", because=error.what, hint=_COLUMNS) from None


def stated_profile(text: str) -> Profile:
    """The profile of a text such as ``00:00=0.1,07:00=0.8``: requests a second from each time of the day on.

    Raises ``UsageError`` for what is none.
    """
    starts, rates = [], []
    for part in parse_values(text):
        time, equals, rate = (word.strip() for word in part.partition("="))
        because = f"{time!r:.20} is no time of a day" if equals else "it has no rate"
        try:
            starts.append(_seconds(time))
            if not 0 <= starts[-1] < DAY:
                raise ValueError(time)
            because = f"{rate!r:.20} is no number of requests/s" if equals else because
            rates.append(parse_number(rate))
        except ValueError:
            raise UsageError(f"{part!r:.40} is no step of a profile", because=because, hint=STEPS_HINT) from None
    return Profile(name="as stated", starts=tuple(starts), rates=tuple(rates))


def read_steps(path: Path, column: str, unit: str) -> tuple[tuple[float, float], ...]:
    """Seconds of a day and what holds from each on, from a CSV with the columns time and ``column``, in ``unit``.

    Raises ``InputFileError``, with the line, for what is no such file: times rise from 0, values are 0 or more.
    """
    needed = f"a CSV with the columns time (0, 3600 or 01:00) and {column} ({unit})"
    found: list[tuple[float, float]] = []
    for line, cell in pairs_of(path, ("time", column), "has no steps of a day", needed, least=1):
        time = _time(path, line, cell["time"])
        if time <= found[-1][0] if found else time > 0:
            raise bad_line(path, line, f"time {cell['time']} is not {'after the one before it' if found else '0'}")
        try:
            value = parse_number(cell[column])
        except ValueError:
            raise bad_line(path, line, f"{column} is {cell[column]!r:.40}, not a number ({unit})") from None
        if not 0 <= value < inf:
            raise bad_line(path, line, f"{column} is {cell[column]}, not 0 or more ({unit})")
        found.append((time, value))
    return tuple(found)


def require_classes(profile: Profile, names: Sequence[str], path: Path) -> None:
    """Raise ``InputFileError`` where a profile, or log, of a file has other classes than these, or lacks some."""
    for name in profile.classes:
        if name not in names:
            with path.open(encoding="utf-8-sig", newline="") as file:
                line = next(line for line, row in enumerate(csv.reader(file), 1) if name in map(str.strip, row))
            raise bad_line(path, line, f"no class is named {name!r}; there are {', '.join(names)}")
    if lacking := [name for name in names if name not in profile.classes]:
        raise InputFileError(
            f"{path} has no rate of class {lacking[0]!r}", hint="rows of it, or leave the class out of --classes"
        )


def pairs_of(
    path: Path, names: tuple[str, str], wrong: str, needed: str, least: int = 0
) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file of two columns, by their names, in any order, with the number of their line.

    Raises ``InputFileError``, of what is ``wrong`` and ``needed``, for other columns and fewer rows than ``least``, and
    with the line for a row of more or fewer cells.
    """
    rows = _rows(path)
    columns = [cell.strip().lower() for cell in rows[0][1]] if rows else []
    if sorted(columns) != sorted(names) or len(rows) <= least:
        because = f"its first line is {','.join(columns)[:80]!r}" if columns else "it is empty"
        raise InputFileError(f"{path} {wrong}", because=because, hint=needed)
    for line, row in rows[1:]:
        if len(row) != 2:
            raise bad_line(path, line, f"has {len(row)} columns where 2 are needed")
        yield line, dict(zip(columns, (text.strip() for text in row)))


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """The rows of a CSV file that hold anything, with the number of their line."""
    lines = read_text(path, LARGEST_SPEC).splitlines()
    return [(number, row) for number, row in enumerate(csv.reader(lines), 1) if any(cell.strip() for cell in row)]


def _held(steps: Sequence[tuple[float, float]], starts: Sequence[float]) -> Floats:
    """The rate of a class at each of the times."""
    times, rates = np.array(steps).T
    held: Floats = rates[np.searchsorted(times, starts, "right") - 1]
    return held


def bad_line(path: Path, line: int, reason: str) -> InputFileError:
    """The error of a line of a file."""
    return InputFileError(f"{path}:{line}: {reason}")


def _seconds(text: str) -> float:
    """Seconds since midnight. Raises ``ValueError`` for what is no time."""
    clock = _CLOCK.fullmatch(text)
    hours, minutes, rest = (int(part or 0) for part in clock.groups()) if clock is not None else (0, 0, 0)
    return parse_number(text) if clock is None else 3600.0 * hours + 60.0 * minutes + rest


def _time(path: Path, line: int, text: str) -> float:
    """Seconds since midnight."""
    try:
        seconds = _seconds(text)
    except ValueError:
        raise bad_line(path, line, f"time is {text!r:.40}, neither seconds nor HH:MM") from None
    if not 0 <= seconds < DAY:
        raise bad_line(path, line, f"time {text} is not within a day, from 0 to 86399 s or 23:59")
    return float(seconds)


def _rate(path: Path, line: int, text: str) -> float:
    try:
        rate = parse_number(text)
    except ValueError:
        raise bad_line(path, line, f"rate is {text!r:.40}, not a number of requests per second") from None
    if not isfinite(rate) or not 0 <= rate <= _MOST_RATE:
        raise bad_line(path, line, f"rate is {text}, not 0 to {_MOST_RATE:,.0f} requests/s")
    return rate
