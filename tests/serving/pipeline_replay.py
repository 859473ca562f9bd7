"""A slow replay of engines with several batches in flight, request by request and step by step: an oracle for the
simulator's pipelines and lockstep ranks.

Written from vLLM's ``EngineCore.step_with_batch_queue`` and ``Scheduler.schedule``, not from the simulator: no lanes,
no runs of steps, no totals that are kept up to date. A request is scheduled when it is not in flight; the rest of a
prompt may be scheduled while an earlier piece is in flight, except under ``strict`` (TensorRT-LLM).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Piece = tuple[int, int]
"""New tokens of a prompt and those before them."""
Stations = Callable[[list[tuple[int, list[Piece]]]], list[float]]
"""Seconds on the host and on each stage of a batch, given decodes and prompt pieces of every rank."""


@dataclass
class Served:
    """A request: when it arrives, its tokens, on which rank; then what happened to it."""

    arrival: float
    prompt: int
    output: int
    rank: int = 0
    computed: int = 0
    made: int = 0
    reserved: int = 0
    flying: int = 0
    """Batches in flight that hold a piece of it."""
    first: float = math.nan
    finish: float = math.nan
    preempted: int = 0
    decoding: bool = False
    """Its prompt is in the cache (and what it had made, after a preemption)."""

    @property
    def known(self) -> int:
        return self.prompt + self.made


@dataclass(frozen=True)
class Engine:
    """Stages and attention ranks; requests and tokens of a batch, tokens of the cache of each rank."""

    stages: int
    ranks: int
    slots: int
    budget: int
    capacity: float
    strict: bool = False


def replay(requests: Sequence[Served], engine: Engine, stations: Stations) -> int:
    """Serve the requests, which are sorted by arrival; gives the number of batches sent."""
    now, free, sent = 0.0, [0.0] * (engine.stages + 1), 0
    inbox = list(requests)
    waiting: list[list[Served]] = [[] for _ in range(engine.ranks)]
    running: list[list[Served]] = [[] for _ in range(engine.ranks)]
    flying: list[tuple[float, list[tuple[Served, int]]]] = []
    while inbox or flying or any(waiting) or any(running):
        while inbox and inbox[0].arrival <= now:
            request = inbox.pop(0)
            waiting[request.rank].append(request)
        parts = [_schedule(engine, waiting[rank], running[rank]) for rank in range(engine.ranks)]
        if any(parts):
            rows = [
                (
                    sum(1 for r, _ in part if r.decoding),
                    [(new, r.computed) for r, new in part if not r.decoding],
                )
                for part in parts
            ]
            time = now
            host, *stages = stations(rows)
            for station, seconds in enumerate((host, *stages)):
                prepared = free[station] + (host if station else 0.0)  # by the worker of the stage
                time = max(time, prepared) + seconds
                free[station] = time
            batch = [pair for part in parts for pair in part]
            for request, new in batch:
                request.computed += new
                request.flying += 1
                request.reserved = max(request.reserved, request.computed)
            flying.append((time, batch))
            now, sent = free[0], sent + 1
            if len(flying) < engine.stages and flying[0][0] > now:
                continue
        if not flying:
            now = inbox[0].arrival
            continue
        time, batch = flying.pop(0)
        now = max(now, time)
        for request, _ in batch:
            request.flying -= 1
            if request.computed == request.known and not request.flying:
                request.made += 1
                request.decoding = True
                request.first = time if math.isnan(request.first) else request.first
                if request.made == request.output:
                    request.finish = time
                    running[request.rank].remove(request)
    return sent


def _schedule(engine: Engine, waiting: list[Served], running: list[Served]) -> list[tuple[Served, int]]:
    """The tokens that one rank puts into the next batch."""
    part: list[tuple[Served, int]] = []

    def used() -> int:
        return sum(r.reserved for r in running)

    def ready() -> list[Served]:
        return [r for r in running if r.decoding and not r.flying]

    short = False
    while ready() and len(running) > 1 and used() + len(ready()) > engine.capacity:
        victim = [r for r in running if (r.decoding and not r.flying) or (not r.decoding and r.computed < r.known)][-1]
        running.remove(victim)
        victim.computed, victim.reserved, victim.decoding = 0, 0, False
        victim.preempted += 1
        waiting.insert(0, victim)
        short = True
    part += [(r, 1) for r in ready()]
    budget = engine.budget - len(part)
    started = [r for r in running if not r.decoding and r.computed < r.known]
    unfinished = False
    for request in started:
        new = 0 if engine.strict and request.flying else min(request.known - request.computed, max(budget, 1))
        if not engine.strict and len(running) > 1 and new > engine.capacity - used() - len(ready()):
            running.remove(request)
            request.computed, request.reserved, request.preempted = 0, 0, request.preempted + 1
            waiting.insert(0, request)
            return part
        request.reserved = request.computed + new
        if new:
            part.append((request, new))
            budget -= new
        unfinished = unfinished or request.computed + new < request.known
    growth = sum(1 for r in running if r.decoding)
    while waiting and budget > 0 and not unfinished and not short and len(running) < engine.slots:
        request = waiting[0]
        if running and request.known > engine.capacity - used() - growth:
            break
        waiting.pop(0)
        running.append(request)
        new = min(request.known, budget)
        request.reserved = new
        part.append((request, new))
        budget -= new
        unfinished = new < request.known
    return part
