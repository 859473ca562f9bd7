"""What changed: each minute's signals against what they are held to, and the cause by its name.

A signal drifts when its mean over the last minutes is off by more than its tolerance, and by more than three standard
errors of what was counted; it is back when it is off by less than half the tolerance. Steps are held to their own first
minutes, as the model has an error of its own: :attr:`Drift.pace` says what that is. So are hits, of which a plan says
nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean
from typing import Literal

from inferplan.watching.counters import Span
from inferplan.watching.twin import AS_MODELLED, Pace, Predicted

Cause = Literal["load", "prompts", "answers", "hits", "steps", "replicas", "restart", "ttft", "tpot", "e2el"]
"""What an event is of: what a service has to do, how it does it, or a latency that crossed its limit."""
OFF = {"load": 0.15, "prompts": 0.25, "answers": 0.25, "hits": 0.10, "steps": 0.20}
"""By how much a signal is off that drifts: a share of what it is held to; of hits, points of a hundred."""
_ERRORS = 3.0
_SPREAD_OF_HITS = 0.5
"""The largest standard deviation that the hits of a prompt, which are between none and all of it, can have."""
WINDOW = 3
"""Minutes that are judged together."""
FIRST = 10
"""Minutes from which is read what the plan does not say: how slow steps are, and hits."""
_FEWEST = 30
"""Requests of a minute from which its steps and hits are read."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something changed, or is as it was again. minute: when, in minutes since the start. value: of the signal;
    held: what it is held to. back: it is as it should be again."""

    minute: int
    cause: Cause
    value: float
    held: float
    back: bool = False

    @property
    def times(self) -> float:
        """The value over what it is held to; infinity where that is nothing."""
        return self.value / self.held if self.held else float("inf")


@dataclass(kw_only=True)
class Signal:
    """One figure of each minute, with the weight of its mean. held: ``None`` until the first minutes have said it."""

    cause: Cause
    held: float | None
    spread: float = 1.0
    """Standard deviation of one of what is counted, over its mean; of arrivals that of a Poisson stream."""
    only_more: bool = False
    """Whether less of it is no drift."""
    only_less: bool = False
    points: bool = False
    """Whether it is a share, whose difference counts."""
    drifts: bool = False
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    first: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Of the last minutes, each by its weight."""
        return sum(value * count for value, count in self.recent) / sum(count for _, count in self.recent)

    def add(self, minute: int, value: float | None, count: float) -> Event | None:
        """A minute's value, the mean of so many; what that changes."""
        if value is None or count <= 0:
            return None
        if self.held is None:
            self.first.append(value)
            if len(self.first) >= FIRST:
                self.held, self.first = fmean(self.first), []
            return None
        self.recent.append((value, count))
        weight, mean = sum(count for _, count in self.recent), self.mean
        off = mean - self.held
        if (self.only_more and off < 0) or (self.only_less and off > 0):
            off = 0.0
        scale = 1.0 if self.points else self.held
        most = OFF[self.cause] * scale
        error = self.spread * scale / sqrt(weight)
        if not self.drifts and abs(off) > max(most, _ERRORS * error):
            self.drifts = True
        elif self.drifts and abs(off) < most / 2 and len(self.recent) == WINDOW:
            self.drifts = False
        else:
            return None
        return Event(minute=minute, cause=self.cause, value=mean, held=self.held, back=not self.drifts)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What a service was planned for. rate: requests a second, ``None`` where that follows from how fast it answers.
    prompt, output: mean tokens; with the standard deviation over the mean of each."""

    rate: float | None
    prompt: float
    output: float
    prompt_spread: float
    output_spread: float
    servers: int


@dataclass(kw_only=True)
class Drift:
    """The signals of a service."""

    planned: Planned
    _signals: dict[str, Signal] = field(init=False)
    _late: Signal = field(init=False)
    """Of its first minutes: how late first tokens come."""
    _lost: int = 0

    def __post_init__(self) -> None:
        planned = self.planned
        self._signals = {
            "load": Signal(cause="load", held=planned.rate, only_more=True),
            "prompts": Signal(cause="prompts", held=planned.prompt, spread=planned.prompt_spread),
            "answers": Signal(cause="answers", held=planned.output, spread=planned.output_spread),
            "hits": Signal(cause="hits", held=None, spread=_SPREAD_OF_HITS, only_less=True, points=True),
            "steps": Signal(cause="steps", held=None, spread=0.0),
        }
        self._late = Signal(cause="steps", held=None)

    @property
    def pace(self) -> Pace:
        """That of the first minutes; the model's until they are over."""
        step, late = self._signals["steps"].held, self._late.held
        return AS_MODELLED if step is None or late is None else Pace(step, late / step)

    @property
    def pace_now(self) -> Pace:
        """The same at present, where steps have changed."""
        steps = self._signals["steps"]
        return self.pace._replace(step=steps.mean) if steps.drifts else self.pace

    @property
    def now(self) -> list[Cause]:
        """What is off at present."""
        found: list[Cause] = [one.cause for one in self._signals.values() if one.drifts]
        return [*found, "replicas"] if self._lost else found

    def minute(self, number: int, span: Span, predicted: Predicted | None, anew: int) -> Iterator[Event]:
        """What a minute changes. predicted: under its load by servers as the model has them. anew: servers that began
        anew in it."""
        servers = self.planned.servers
        lost = servers - span.servers
        if lost != self._lost:
            self._lost = max(lost, 0)
            yield Event(minute=number, cause="replicas", value=span.servers, held=servers, back=lost <= 0)
        if anew:
            yield Event(minute=number, cause="restart", value=anew, held=0)
        steps = None
        if predicted is not None and predicted.gap and span.gap.mean and span.begun >= _FEWEST:
            steps = span.gap.mean / predicted.gap
            if self._late.held is None and predicted.ttft and span.ttft.mean:
                self._late.add(number, span.ttft.mean / predicted.ttft, span.begun)
        hits = span.hits if span.begun >= _FEWEST else None
        values: dict[str, tuple[float | None, float]] = {
            "load": (span.rate, span.begun),
            "prompts": (span.prompt_tokens, span.prompts),
            "answers": (span.output_tokens, span.done),
            "hits": (hits, span.prompts),
            "steps": (steps, span.begun),
        }
        for name, (value, count) in values.items():
            event = self._signals[name].add(number, value, count)
            if event is not None:
                yield event
