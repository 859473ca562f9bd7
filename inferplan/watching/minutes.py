"""A service minute by minute: scrapes in, what was seen and what should have been out. Memory is that of a few minutes.

Times are seconds of whatever clock the scrapes are stamped with; a minute is :attr:`Scrapes.length` of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from inferplan.watching.counters import Counters, Histogram, Span
from inferplan.watching.drift import WINDOW, Drift, Event
from inferplan.watching.twin import AS_MODELLED, LATENCIES, Latency, Load, Pace, Predicted, Room, Twin
from inferplan.watching.what_if import WhatIf

MINUTE = 60.0
_SILENT = 2
"""Scrapes in a row that a server does not answer until it counts as lost."""
_LEAST_LOAD = 1e-3
"""Requests a second below which nothing is predicted."""


class Limit(NamedTuple):
    """A latency beside its limit, in seconds. seen: over the last minutes, ``None`` where the server does not say."""

    name: Latency
    limit: float
    seen: float | None

    @property
    def broken(self) -> bool:
        return self.seen is not None and self.seen > self.limit


@dataclass(frozen=True, kw_only=True)
class Minute:
    """One minute of a service.

    number: from 1 on. at: its end, in seconds of the clock. span: what the servers did. load: what that was, ``None``
    where nothing came. predicted: what the load should bring. as_seen: the same of servers of the pace of
    their first minutes. pace: that at present; of these are ``room``, how much load is left, and ``what_ifs``,
    predictions for what was asked. limits: of the last minutes. events: what changed. now: what is off at present.
    """

    number: int
    at: float
    span: Span
    load: Load | None = None
    predicted: Predicted | None = None
    as_seen: Predicted | None = None
    pace: Pace = AS_MODELLED
    room: Room | None = None
    limits: tuple[Limit, ...] = ()
    events: tuple[Event, ...] = ()
    now: tuple[str, ...] = ()
    what_ifs: tuple[tuple[WhatIf, Predicted], ...] = ()


@dataclass(kw_only=True, eq=False)
class Minutes:
    """Turns spans of a service into minutes. what_ifs: what is asked of each of them."""

    twin: Twin
    drift: Drift
    what_ifs: Sequence[WhatIf] = ()
    _number: int = 0
    _recent: deque[Span] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _over: dict[str, int] = field(default_factory=dict)
    """Minutes in a row in which a latency was over its limit; below zero those in which it was not."""
    _broken: set[str] = field(default_factory=set)

    def add(self, span: Span, at: float, anew: int = 0) -> Minute:
        """What a minute says. anew: servers that began anew in it."""
        self._number += 1
        self._recent.append(span)
        load = self._load(span)
        predicted = None if load is None else self.twin.predict(load)
        events = list(self.drift.minute(self._number, span, predicted, anew))
        limits = tuple(self._limits())
        events += self._crossed(limits)
        pace, present = self.drift.pace, self.drift.pace_now
        found = Minute(
            number=self._number, at=at, span=span, load=load, predicted=predicted, pace=present, limits=limits,
            events=tuple(events), now=(*self.drift.now, *sorted(self._broken)),
        )  # fmt: skip
        if load is None:
            return found
        asked = [(one, one.of(load)) for one in self.what_ifs]
        return replace(
            found,
            as_seen=self.twin.predict(load, pace),
            room=self.twin.room(load, present),
            what_ifs=tuple((one, self.twin.predict(changed, present)) for one, changed in asked if changed is not None),
        )

    def _load(self, span: Span) -> Load | None:
        """The load of a minute; ``None`` where too little came to say."""
        prompt, output = span.prompt_tokens, span.output_tokens
        if span.rate < _LEAST_LOAD or prompt is None or output is None or not span.servers:
            return None
        return Load(rate=span.rate, prompt=prompt, output=output, hits=span.hits or 0.0, servers=span.servers)

    def _limits(self) -> Iterator[Limit]:
        slo = self.twin.slo
        for name in LATENCIES:
            if name in slo.limits:
                seen = Histogram()
                for span in self._recent:
                    seen = seen.plus(getattr(span, name))
                yield Limit(name, slo.limits[name], seen.percentile(slo.percentile))

    def _crossed(self, limits: Sequence[Limit]) -> Iterator[Event]:
        """Limits that are broken for some minutes, or kept again for as many."""
        for one in limits:
            if one.seen is None:
                continue
            run = self._over.get(one.name, 0)
            self._over[one.name] = run = (max(run, 0) + 1) if one.broken else (min(run, 0) - 1)
            if abs(run) >= WINDOW and one.broken != (one.name in self._broken):
                (self._broken.add if one.broken else self._broken.discard)(one.name)
                yield Event(minute=self._number, cause=one.name, value=one.seen, held=one.limit, back=not one.broken)


@dataclass(kw_only=True, eq=False)
class Scrapes:
    """Puts the scrapes of several servers together to spans of ``length`` seconds."""

    servers: Sequence[str]
    length: float = MINUTE
    _first: dict[str, Counters] = field(default_factory=dict)
    """Of each server the counters with which its part of the present minute begins."""
    _last: dict[str, Counters] = field(default_factory=dict)
    _silent: dict[str, int] = field(default_factory=dict)
    _before: list[Span] = field(default_factory=list)
    """What servers did in this minute before they began anew."""
    _anew: int = 0
    _began: float | None = None

    def add(self, at: float, found: Mapping[str, Counters | None]) -> tuple[Span, int] | None:
        """Scrapes of one moment, ``None`` where a server did not answer. At the end of a minute its span, and how many
        servers began anew in it.
        """
        for name in self.servers:
            self._one(name, found.get(name))
        if self._began is None:
            self._began = at
        if at - self._began < self.length:
            return None
        there = [name for name in self.servers if self._silent.get(name, 0) < _SILENT and name in self._last]
        pairs = [(self._first[name], self._last[name]) for name in there]
        gone = [(self._first[name], self._last[name]) for name in self._last if name not in there]
        span = Span.between(at - self._began, pairs)
        for other in (*self._before, *([Span.between(0.0, gone)] if gone else [])):
            span = span.plus(replace(other, running=0.0, waiting=0.0))
        anew = self._anew
        for name in [name for name in self._last if name not in there]:
            del self._last[name], self._first[name]
        self._first, self._before, self._anew, self._began = dict(self._last), [], 0, at
        return span, anew

    def _one(self, name: str, now: Counters | None) -> None:
        """One scrape of a server."""
        if now is None:
            self._silent[name] = self._silent.get(name, 0) + 1
            return
        self._silent[name] = 0
        before = self._last.get(name)
        if before is not None and now.falls(before):
            self._before.append(Span.between(0.0, [(self._first[name], before)]))
            self._anew += 1
            self._first[name] = now
        self._first.setdefault(name, now)
        self._last[name] = now
