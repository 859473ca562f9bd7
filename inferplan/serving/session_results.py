"""What a run says of its sessions: how long they take and in what, what they read and write, how many get through."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from inferplan.serving.batch_means import half_width
from inferplan.serving.class_results import figures_of, percentile_beside
from inferplan.serving.records import FINISHED, REJECTED, Records
from inferplan.serving.run_figures import RunFigures
from inferplan.units import Array, BoolArray

TIMES = ("duration", "model", "tools", "thinking")
AMOUNTS = ("calls", "prompt_tokens", "output_tokens")
_NORMAL_95 = 1.96


@dataclass(frozen=True, kw_only=True, eq=False)
class SessionFigures:
    """Sessions in the order in which they began; arrays have one entry for each, times in seconds.

    start: of the first call. duration: until the last answer, or until the user gave up. model: of it, while a call was
    on the way. thinking: while none was and a user had the last word to read; tools: the rest, so that the three add up
    to the duration. calls, prompt_tokens, output_tokens: sent and asked for. cached: of the prompt tokens of admitted
    calls ``admitted``, those found in a prefix cache. finished, cancelled, refused: what became of each. kind: place in
    ``names``. counted: which are in the figures.
    """

    start: Array
    duration: Array
    model: Array
    thinking: Array
    calls: Array
    prompt_tokens: Array
    output_tokens: Array
    admitted: Array
    cached: Array
    finished: BoolArray
    cancelled: BoolArray
    refused: BoolArray
    kind: npt.NDArray[np.int64]
    names: tuple[str, ...]
    counted: BoolArray
    window: tuple[float, float]
    """Seconds between which rates count."""

    @property
    def tools(self) -> Array:
        """Seconds of each session in which it waited for tools alone."""
        return self.duration - self.model - self.thinking

    @cached_property
    def whole(self) -> BoolArray:
        """Those in the figures that finished."""
        return self.finished & self.counted

    @property
    def counts(self) -> dict[str, int]:
        """Of all that began."""
        ended = {name: int(np.sum(getattr(self, name))) for name in ("finished", "cancelled", "refused")}
        return {"begun": len(self.start), **ended}

    @property
    def rate(self) -> float:
        """Sessions a second that finish while rates count."""
        end, (first, last) = self.start + self.duration, self.window
        return float(np.sum(self.finished & (end > first) & (end <= last))) / max(last - first, 1e-12)

    @property
    def in_system(self) -> float:
        """Mean number of sessions under way while rates count."""
        first, last = self.window
        inside = np.minimum(self.start + self.duration, last) - np.maximum(self.start, first)
        return float(np.sum(np.maximum(inside, 0.0))) / max(last - first, 1e-12)

    @property
    def cached_share(self) -> float:
        """Share of the prompt tokens of the sessions in the figures that was found in a prefix cache."""
        tokens = float(np.sum(self.admitted[self.counted]))
        return float(np.sum(self.cached[self.counted])) / tokens if tokens else 0.0

    def percentiles(self, name: str, which: BoolArray | None = None) -> dict[str, float | None]:
        """Mean and percentiles of one of :data:`TIMES` or :data:`AMOUNTS` over finished sessions."""
        return figures_of(getattr(self, name)[self.whole if which is None else self.whole & which])

    def late(self, limit: float) -> BoolArray:
        """Those in the figures that are known not to have kept a limit: refused, finished after it, or given up after
        it. Of those that were given up before it nobody knows.
        """
        found: BoolArray = self.counted & (self.refused | (~self.refused & (self.duration > limit)))
        return found

    def within(self, limit: float) -> float | None:
        """The share that keeps a limit, of those of whom it is known; ``None`` of none."""
        late = self.late(limit)
        kept = int(np.sum(self.whole & ~late))
        return kept / (kept + int(np.sum(late))) if kept or np.any(late) else None

    def at_percentile(self, percentile: float, limit: float = np.inf) -> float:
        """The time that so many percent of the sessions stay within; infinite for those that are refused, or given up
        after a ``limit``. Those that are given up before it are left out.
        """
        lost = int(np.sum(self.late(limit) & ~self.finished))
        return percentile_beside(self.duration[self.whole], percentile, lost)

    def between(self, percentile: float) -> tuple[float, float] | None:
        """Two durations between which the percentile of all sessions lies with 95 % confidence; ``None`` for too few.

        Sessions do not depend on each other much, so the number below the percentile is binomial: of ``n`` in order it
        is the ``floor(n p - 1.96 s)``-th and the ``ceil(n p + 1.96 s) + 1``-th, ``s^2 = n p (1 - p)`` (Le Boudec,
        *Performance Evaluation of Computer and Communication Systems*, 2010, section 2.2.2).
        """
        ordered, share = np.sort(self.duration[self.whole]), percentile / 100
        spread = _NORMAL_95 * sqrt(len(ordered) * share * (1 - share))
        low, high = floor(len(ordered) * share - spread), ceil(len(ordered) * share + spread) + 1
        return (float(ordered[low - 1]), float(ordered[high - 1])) if low >= 1 and high <= len(ordered) else None


def session_figures(result: RunFigures) -> SessionFigures | None:
    """The sessions of a run; ``None`` where its requests are of none."""
    records = result.records
    sessions = records.sessions
    if sessions is None:
        return None
    arrival, finish = np.asarray(records.arrival), np.asarray(records.finish)
    sent = ~np.isnan(arrival)
    begun = np.unique(sessions.of[sent])
    begun = begun[np.argsort(_least(arrival, sessions.of, len(sessions))[begun], kind="stable")]
    status = records.outcome
    start = _least(arrival, sessions.of, len(sessions))[begun]
    end = -_least(np.where(np.isnan(finish), np.nan, -finish), sessions.of, len(sessions))[begun]
    left = np.array([records.left.get(int(session), np.nan) for session in begun])
    cancelled = ~np.isnan(left)
    end = np.where(cancelled, left, np.where(np.isfinite(end), end, start))
    refused = np.bincount(sessions.of, status == REJECTED, minlength=len(sessions))[begun] > 0
    done = np.bincount(sessions.of, status != FINISHED, minlength=len(sessions))[begun] == 0
    model, thinking = _spent(records, len(sessions))

    def total(values: Any) -> Array:
        sums: Array = np.bincount(sessions.of, np.where(sent, values, 0.0), minlength=len(sessions))[begun]
        return sums

    found = np.zeros(len(arrival))
    found[list(records.cached)] = list(records.cached.values())
    prompt, admitted = np.asarray(records.prompt, dtype=np.float64), ~np.isnan(np.asarray(records.admitted))
    stretch = end - start
    return SessionFigures(
        start=start,
        duration=stretch,
        model=model[begun],
        thinking=thinking[begun],
        calls=total(1.0),
        prompt_tokens=total(prompt),
        output_tokens=total(np.asarray(records.output, dtype=np.float64)),
        admitted=total(np.where(admitted, prompt, 0.0)),
        cached=total(found),
        finished=done & ~cancelled,
        cancelled=cancelled,
        refused=refused & ~cancelled,
        kind=sessions.kind[begun],
        names=sessions.names,
        counted=_counted(result, start, stretch),
        window=result.window,
    )


def _least(values: Array, of: npt.NDArray[np.int64], count: int) -> Array:
    """The least of the values of each of ``count`` groups; infinite for those that have none."""
    least = np.full(count, np.inf)
    np.minimum.at(least, of, np.where(np.isnan(values), np.inf, values))
    return least


def _counted(result: RunFigures, start: Array, duration: Array) -> BoolArray:
    """All sessions of a run that is counted whole; else those that began after the fill, and a mean session or more
    before the last that did, a quarter of all at most left out.
    """
    if result.metered is None or not len(start):
        return np.ones(len(start), dtype=bool)
    first, last = result.metered
    late = start > last - float(np.mean(duration))
    if np.sum(late) > len(start) // 4:
        late = np.arange(len(start)) >= len(start) - len(start) // 4
    kept: BoolArray = (start >= first) & ~late
    return kept


def _spent(records: Records, count: int) -> tuple[Array, Array]:
    """Seconds of each session with a call on the way, and with none but a user who reads an answer.

    A gap begins with the last answer that its call waits for, and ends when the call is sent, or the user gives up.
    """
    sessions, follows = records.sessions, records.follows
    assert sessions is not None
    assert follows is not None
    arrival, finish = np.asarray(records.arrival), np.asarray(records.finish)
    until = np.array([records.left.get(session, np.nan) for session in range(count)])[sessions.of]
    ready = np.where(np.asarray(follows) >= 0, finish[np.asarray(follows)], np.nan)
    with np.errstate(invalid="ignore"):  # no number where an answer never came
        np.maximum.at(ready, sessions.joins[:, 0], finish[sessions.joins[:, 1]])
    sent = np.where(np.isnan(arrival), until, arrival)
    busy = ~np.isnan(arrival) & ~np.isnan(finish)
    reads = sessions.by_user & ~np.isnan(ready) & ~np.isnan(sent) & (sent > ready)
    model = _covered(sessions.of[busy], arrival[busy], finish[busy], count)
    either = _covered(
        np.concatenate([sessions.of[busy], sessions.of[reads]]),
        np.concatenate([arrival[busy], ready[reads]]),
        np.concatenate([finish[busy], sent[reads]]),
        count,
    )
    return model, either - model


def _covered(of: npt.NDArray[np.int64], begin: Array, end: Array, count: int) -> Array:
    """Seconds of each of ``count`` groups that its intervals cover, however many do at a time."""
    covered, reached = [0.0] * count, [-np.inf] * count
    order = np.argsort(begin, kind="stable")
    for group, first, last in zip(of[order].tolist(), begin[order].tolist(), end[order].tolist()):
        if last > reached[group]:
            covered[group] += last - max(first, reached[group])
            reached[group] = last
    return np.asarray(covered)


def session_record(figures: SessionFigures | None, limit: float | None) -> dict[str, Any] | None:
    """The record of the sessions of a run under a limit; units are in the keys. ``None`` for requests of none."""
    if figures is None:
        return None
    error = half_width(figures.duration[figures.whole])
    counted = int(np.sum(figures.counted))
    return {
        **figures.counts,
        "in_figures": counted,
        **{f"{name}_s": figures.percentiles(name) for name in TIMES},
        **{name: figures.percentiles(name) for name in AMOUNTS},
        "duration_mean_error_s": error,
        "cached_share": figures.cached_share,
        "sessions_per_h": 3600.0 * figures.rate,
        "in_system_mean": figures.in_system,
        "limit_s": limit,
        "within_limit": None if limit is None else figures.within(limit),
        "kinds": [
            {
                "name": name,
                "begun": int(np.sum(figures.kind == place)),
                "duration_s": figures.percentiles("duration", figures.kind == place),
            }
            for place, name in enumerate(figures.names)
        ],
    }
