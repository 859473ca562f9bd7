"""Minutes of a service in a file, a JSON object a line: written while it is watched, and read again later."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from inferplan.errors import InputFileError
from inferplan.files import announce, reason
from inferplan.traffic.profile import BIN, DAY
from inferplan.watching.counters import Histogram, Span

_VERSION = 1
_HISTOGRAMS = ("ttft", "gap", "tpot", "e2el")
_NUMBERS = ("done", "prompts", "prompt", "output", "cached", "running", "waiting")
_HINT = "a file of inferplan watch --record"


def span_line(span: Span, at: float, anew: int) -> str:
    """A minute as a line. at: its end, in seconds since 1970."""
    said = {
        "version": _VERSION,
        "at": at,
        "seconds": span.seconds,
        "servers": span.servers,
        "anew": anew,
        **{name: getattr(span, name) for name in _NUMBERS},
        "cache": span.cache,
        **{name: _histogram(getattr(span, name)) for name in _HISTOGRAMS},
    }
    return json.dumps(said, separators=(",", ":"))


def _histogram(found: Histogram) -> dict[str, Any]:
    edges = [[None if edge == inf else edge, most] for edge, most in sorted(found.within.items())]
    return {"count": found.count, "total": found.total, "within": edges}


def append_span(path: Path, line: str) -> None:
    """Add a minute to a file, on a line of its own where a run that was killed left the last one unended."""
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read() == b"\n" else f"\n{line}"
        file.write(f"{line}\n".encode())


def read_spans(path: Path, cut: Callable[[str], None] = lambda where: None) -> Iterator[tuple[Span, float, int]]:
    """The minutes of a file, one after another: span, end, servers that began anew. A last line that was cut is left
    out. cut: told of lines that end before their end. Raises ``InputFileError`` that names the line.
    """
    try:
        announce(path)
        with path.open(encoding="utf-8") as lines:
            number, held = 0, ""
            for number, line in enumerate(lines, 1):
                if held and not _cut(held):
                    yield _span(held, f"{path}, line {number - 1}")
                elif held:
                    cut(f"{path}, line {number - 1}")
                held = line
            if held.endswith("\n"):
                yield _span(held, f"{path}, line {number}")
    except OSError as error:
        raise InputFileError(f"cannot read {path}", because=reason(error), hint=_HINT) from None
    except UnicodeDecodeError:
        raise InputFileError(f"cannot read {path}", because="it is not UTF-8 text", hint=_HINT) from None


def _cut(line: str) -> bool:
    """Whether a line begins as a minute and is no JSON: what was being written when the machine or the run stopped."""
    if not line.startswith('{"version":'):
        return False
    try:
        json.loads(line)
    except ValueError:
        return True
    except RecursionError:
        return False
    return False


def _span(line: str, where: str) -> tuple[Span, float, int]:
    try:
        said = json.loads(line)
        if said["version"] != _VERSION:
            raise ValueError(f"version {said['version']!r}")
        figures: dict[str, Any] = {name: _amount(said[name]) for name in _NUMBERS}
        figures |= {name: _read(said[name]) for name in _HISTOGRAMS}
        cache = None if said["cache"] is None else _amount(said["cache"])
        span = Span(seconds=_amount(said["seconds"]), servers=int(_amount(said["servers"])), cache=cache, **figures)
        return span, _amount(said["at"]), int(_amount(said["anew"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputFileError(f"{where} is not a minute of a service", because=what[:200], hint=_HINT) from None


def _read(said: Mapping[str, Any]) -> Histogram:
    within = {inf if edge is None else _amount(edge): _amount(most) for edge, most in said["within"]}
    return Histogram(count=_amount(said["count"]), total=_amount(said["total"]), within=within)


def _amount(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e18:
        raise ValueError(f"{str(value)[:40]!r} is not a number of zero or more")
    return float(value)


@dataclass(kw_only=True)
class DayRates:
    """Requests a second by the time of day, over all days that were watched; UTC. Memory is that of one day."""

    _requests: dict[int, float] = field(default_factory=dict)
    _seconds: dict[int, float] = field(default_factory=dict)

    def add(self, span: Span, at: float) -> None:
        """A minute that ended at ``at``, in seconds since 1970."""
        step = int((at - span.seconds / 2) % DAY // BIN)
        self._requests[step] = self._requests.get(step, 0.0) + span.begun
        self._seconds[step] = self._seconds.get(step, 0.0) + span.seconds

    def csv(self) -> str:
        """The profile that ``inferplan day --profile`` reads: means of five minutes. Steps of which nothing is known
        have the rate of the step before them; the first of the day that of the last. Empty without a minute.
        """
        rates = {step: self._requests[step] / seconds for step, seconds in self._seconds.items() if seconds > 0}
        if not rates:
            return ""
        lines, rate = ["time,rate"], rates[max(rates)]
        for step in range(round(DAY / BIN)):
            rate = rates.get(step, rate)
            lines.append(f"{step * BIN:.0f},{rate:.6g}")
        return "\n".join(lines) + "\n"
