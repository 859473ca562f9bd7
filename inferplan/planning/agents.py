"""Sessions of agents as a demand: what the closed form sees of them, and the sessions that one replica gets.

All calls of a session go to one replica (``sticky``), so a replica of ``n`` gets every ``n``-th session, whole.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np

from inferplan.errors import UsageError
from inferplan.planning.demand import Demand, drawn_lengths, found_again
from inferplan.traffic.block_names import names_at
from inferplan.traffic.requests import OpenLoop, Requests
from inferplan.traffic.sessions import SAMPLE_SESSIONS, SessionTraffic

_DURATIONS = 8.0
"""Times of a mean session in which sessions begin in a run: three quarters are counted, and a verdict takes five."""


def demand_of_sessions(traffic: SessionTraffic) -> Demand:
    """The demand of sessions that begin in an open loop: calls a second, lengths of prompts and outputs, and what a
    prefix cache that forgets nothing finds of a mean prompt.
    """
    assert isinstance(traffic.arrivals, OpenLoop)
    rate = traffic.arrivals.rate * calls_of(traffic)
    return Demand(**_lengths(_sample(traffic)), rate=rate, sessions=traffic, chat=True)


def demand_of_agents(trace: Requests) -> Demand:
    """The demand of a trace of agents whose sessions have times at which they begin. Raises ``UsageError`` without a
    rate."""
    starts = np.zeros(0) if trace.arrival is None else trace.arrival[~np.isnan(trace.arrival)]
    if trace.arrival is None:
        raise UsageError("the sessions of this trace have no times at which they begin", hint="--session-rate 0.2/s")
    span = float(np.max(starts) - np.min(starts)) if len(starts) else 0.0
    if span <= 0:
        raise UsageError("a plan needs a trace of two sessions or more that begin at different times")
    return Demand(**_lengths(trace), rate=len(trace) * (1 - 1 / len(starts)) / span, trace=trace, chat=True)


def calls_of(traffic: SessionTraffic) -> float:
    """Calls of a mean session."""
    return len(_sample(traffic)) / SAMPLE_SESSIONS


@lru_cache(maxsize=4)
def _sample(traffic: SessionTraffic) -> Requests:
    return replace(traffic, sessions_count=SAMPLE_SESSIONS).requests()


def _lengths(requests: Requests) -> dict[str, Any]:
    """Whole prompts, outputs, and the tokens of a prompt that a cache which forgets nothing finds on average."""
    lengths = {"prompt": drawn_lengths(requests.prompt), "output": drawn_lengths(requests.output)}
    return {**lengths, "cached": found_again(requests)}


@lru_cache(maxsize=256)
def session_seconds(traffic: SessionTraffic, request: float) -> float:
    """Mean seconds of a session whose calls take ``request`` each: the longest way through its calls and gaps."""
    sample = _sample(traffic)
    sessions, follows, gaps = sample.sessions, sample.follows, sample.think
    assert sessions is not None
    assert follows is not None
    assert gaps is not None
    waits: dict[int, list[int]] = {}
    for call, other in sessions.joins.tolist():
        waits.setdefault(call, []).append(other)
    end: list[float] = []
    for call, (before, gap) in enumerate(zip(follows.tolist(), gaps.tolist())):
        ready = end[before] if before >= 0 else 0.0
        if call in waits:
            ready = max(ready, *(end[other] for other in waits[call]))
        end.append(ready + gap + request)
    last = np.zeros(len(sessions))
    np.maximum.at(last, sessions.of, np.array(end))
    return float(np.mean(np.minimum(last, sessions.patience)))


def sessions_of(traffic: SessionTraffic, rate: float, fewest: int, request: float) -> Requests:
    """At least ``fewest`` calls of sessions that make ``rate`` calls a second, over many times of one session; a call
    takes about ``request`` seconds."""
    calls = calls_of(traffic)
    assert isinstance(traffic.arrivals, OpenLoop)
    begin = rate / calls
    count = ceil(max(fewest / calls, _DURATIONS * begin * session_seconds(traffic, float(f"{request:.2g}"))))
    loop = replace(traffic.arrivals, rate=begin, exact=True)
    return replace(traffic, arrivals=loop, sessions_count=count).requests()


def every(trace: Requests, share: int, factor: float) -> Requests:
    """Every ``share``-th session of a trace, which begin ``factor`` times as fast one after another."""
    sessions, arrival = trace.sessions, trace.arrival
    assert sessions is not None
    assert arrival is not None
    order = np.argsort(np.argsort(arrival[~np.isnan(arrival)], kind="stable"))
    chosen = order % share == 0
    which = np.flatnonzero(chosen[sessions.of])
    place = np.full(len(trace), -1)
    place[which] = np.arange(len(which))
    joins = place[sessions.joins[np.isin(sessions.joins[:, 0], which)]]
    assert trace.follows is not None
    assert trace.think is not None
    assert trace.hashes is not None
    before = trace.follows[which]
    mine = replace(
        sessions,
        of=(np.cumsum(chosen) - 1)[sessions.of[which]],
        joins=joins,
        by_user=sessions.by_user[which],
        patience=sessions.patience[chosen],
        kind=sessions.kind[chosen],
        earliest=None if sessions.earliest is None else sessions.earliest[which],
    )
    return replace(
        trace,
        prompt=trace.prompt[which],
        output=trace.output[which],
        arrival=(arrival[which] - np.nanmin(arrival)) / factor,
        hashes=names_at(trace.hashes, which.tolist()),
        follows=np.where(before >= 0, place[before], -1),
        think=trace.think[which],
        sessions=mine,
    )


def in_time_of(requests: Requests, slower: float) -> Requests:
    """Sessions as devices see them that are simulated in their own time, in which ``slower`` seconds are one: gaps and
    patience are as much shorter."""
    sessions = requests.sessions
    if sessions is None or slower == 1.0:
        return requests
    earliest = None if sessions.earliest is None else sessions.earliest / slower
    timed = replace(sessions, patience=sessions.patience / slower, earliest=earliest)
    return replace(requests, think=None if requests.think is None else requests.think / slower, sessions=timed)
