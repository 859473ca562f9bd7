"""Engines of several models that are resident on the same GPUs and share their time (docs/several-models.md).

Processes on one GPU take turns by time slices. Slices are taken to be short beside a step, so that each of ``k``
engines that have a step under way proceeds at ``1/k`` of its pace alone: processor sharing of steps. The whole time of
a step is taken to need the GPU, and a switch to take none. Or one model at a time is awake, and has them for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nextafter

import numpy as np

from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.serving.clients import Clients, Token
from inferplan.serving.options import Options
from inferplan.serving.records import Metering
from inferplan.serving.replica import Replica
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import Prepared, prepare
from inferplan.traffic.requests import Requests, Slo


@dataclass(frozen=True, kw_only=True)
class Swap:
    """Models of which one at a time has its weights on the GPUs; the others sleep. keep_alive: seconds that one which
    has nothing to do stays awake although others wait. sleep, wake: seconds of each model, in their order. overhead: of
    a switch beyond those.
    """

    keep_alive: float
    sleep: tuple[float, ...]
    wake: tuple[float, ...]
    overhead: float

    def seconds(self, gone: int, come: int) -> float:
        """One model goes to sleep, and another wakes."""
        return self.sleep[gone] + self.wake[come] + self.overhead


_ROUNDING = 1e-12
"""Of the clock: a step with so little left has ended."""


class _Resident:
    """One engine on shared GPUs. left: seconds of its step that are still to be done, at full pace; ``None`` without
    one. The engine runs a whole step at once when it begins; what its clients see of it waits for its real end.
    """

    def __init__(self, engine: Replica, metering: Metering, window: tuple[float, float]) -> None:
        self.engine, self.metering = engine, metering
        self.clients: Clients = engine.scheduler.clients
        self.left: float | None = None
        self.held: list[tuple[int, Token]] = []
        self.marks = [(window[0], metering.begin), (window[1], metering.end)]
        self.clients.show = self._hold  # type: ignore[method-assign]  # of this engine alone

    def _hold(self, time: float) -> None:
        """Clients see these tokens when the step ends."""
        self.held += self.clients.unseen
        self.clients.unseen = []

    def ready(self) -> float:
        """When its next step can begin: at once, when the next request is there, or never."""
        scheduler = self.engine.scheduler
        queue = scheduler.queue
        if scheduler.decodes.size or queue.waiting or scheduler.partial is not None or self.clients.unseen:
            return 0.0
        return queue.inbox[0][0] if queue.inbox else inf

    def begin(self, now: float) -> None:
        """Begin a step, if there is one."""
        while self.marks and self.marks[0][0] <= now:
            time, mark = self.marks.pop(0)
            mark(time, [self.engine.scheduler.meter])
        self.engine.clock = now
        Replica.advance(self.engine, nextafter(now, inf))
        self.left = self.engine.clock - now if self.engine.clock > now else None

    def end(self, now: float) -> None:
        """The step ends: the clock is what it is, and clients see its tokens."""
        self.engine.clock = self.engine.scheduler.decodes.token_time = now
        self.left, unseen = None, self.clients.unseen
        self.clients.unseen, self.held = self.held, []
        Clients.show(self.clients, now)
        self.clients.unseen = unseen


def _share(residents: Sequence[_Resident]) -> None:
    """Run the engines of one group of GPUs until all is quiet."""
    now = 0.0
    while True:
        for one in residents:
            if one.left is None and one.ready() <= now:
                one.begin(now)
        busy = [one for one in residents if one.left is not None]
        coming = min((one.ready() for one in residents if one.left is None), default=inf)
        if not busy:
            if coming == inf:
                return
            now = max(coming, nextafter(now, inf))
            continue
        pace = 1.0 / len(busy)
        least = min(one.left or 0.0 for one in busy)
        ends = now + least / pace
        reached = min(ends, coming) if coming > now else ends
        done = least if reached == ends else (reached - now) * pace
        now = reached
        for one in busy:
            one.left = (one.left or 0.0) - done
            if one.left <= _ROUNDING * now:
                one.end(now)


def _take_turns(residents: Sequence[_Resident], swap: Swap) -> None:
    """Run engines of which one is awake until all is quiet: the first at the beginning.

    Who is awake goes on for as long as it has requests, and ``keep_alive`` longer; then the one whose first request
    waits longest wakes (exhaustive service, as it is called in polling systems).
    """
    now, awake = 0.0, 0
    while True:
        one = residents[awake]
        if one.ready() <= now:
            one.begin(now)
            if one.left is not None:
                now += one.left
                one.end(now)
            continue
        waiting = [(other.ready(), place) for place, other in enumerate(residents) if place != awake]
        first, place = min(waiting, default=(inf, awake))
        switch = max(first, now + swap.keep_alive)
        if one.ready() <= switch:
            if one.ready() == inf:
                return
            now = one.ready()
            continue
        now = switch + swap.seconds(awake, place)
        awake = place


def require_shareable(deployments: Sequence[Deployment], resident: bool = True) -> None:
    """Raise ``UsageError`` for models that cannot share GPUs, or are not simulated there. resident: all at once."""
    first, fractions = deployments[0], [one.engine.defaults.memory_fraction for one in deployments]
    for one in deployments:
        if one.parallel.pp * one.parallel.dp * one.parallel.cp > 1:
            raise UsageError(
                "models that share GPUs have replicas of one stage and one rank of attention", hint="tp alone"
            )
        if (one.hardware.name, one.parallel.tp) != (first.hardware.name, first.parallel.tp):
            raise UsageError(
                f"{one.describe()} cannot share the GPUs of {first.describe()}",
                because="models that share GPUs run on as many of the same kind",
                hint="the same gpu and tp for both",
            )
    unknown = any(fraction is None for fraction in fractions)
    if resident and (unknown or sum(fraction or 0.0 for fraction in fractions) > 1 + _ROUNDING):
        listed = " + ".join("?" if fraction is None else f"{fraction:g}" for fraction in fractions)
        raise UsageError(
            f"models that share GPUs take {listed} of their memory, which is more than all of it",
            because="each engine sets its share aside when it starts",
            hint="gpu_memory_utilization of each, 0.95 together",
        )


def simulate_shared(
    members: Sequence[tuple[Deployment, Requests, Slo]], swap: Swap | None = None
) -> list[SimulationResult]:
    """Simulate models that share GPUs by time: of each its deployment with its replicas, which are as many for all, its
    requests with arrival times, and its limits. swap: of models of which one at a time is awake; ``None``: all are
    resident.

    Replica ``i`` of every model stands on the same GPUs; requests of a model go to its replicas in turn. Of each run
    the first quarter, and what runs empty at the end, are in no figure; gaps between tokens are not known. Raises
    ``UsageError`` for models that cannot share (:func:`require_shareable`), and what
    :func:`inferplan.serving.simulator.simulate` does.
    """
    require_shareable([deployment for deployment, _, _ in members], swap is None)
    runs = [prepare(one, requests, options=Options(slo=slo, trim=True)) for one, requests, slo in members]
    replicas = {run.deployment.parallel.replicas for run in runs}
    if len(replicas) > 1:
        raise UsageError("models that share GPUs have as many replicas each", hint="replicas: of the first alone")
    for run in runs:
        _sent(run)
    for group in range(replicas.pop()):
        residents = [_resident(run, group) for run in runs]
        if swap is None:
            _share(residents)
        else:
            _take_turns(residents, swap)
    return [run.result(run.cluster.meters) for run in runs]


def _window(run: Prepared) -> tuple[float, float]:
    """Between which arrivals rates and meters count."""
    arrival = np.sort(np.asarray(run.cluster.records.arrival))
    return float(arrival[run.fill]), float(arrival[-1])


def _sent(run: Prepared) -> None:
    """Every request reaches its replica, in turn."""
    cluster, pool = run.cluster, run.cluster.front.pool
    cluster.metering = Metering(cluster.records, run.fill)
    cluster.metering.span = list(_window(run))
    arrival = cluster.records.arrival
    for turn, request in enumerate(np.argsort(np.asarray(arrival), kind="stable").tolist()):
        pool[turn % len(pool)].submit(request, arrival[request])


def _resident(run: Prepared, group: int) -> _Resident:
    engine = run.cluster.engines[group]
    assert isinstance(engine, Replica)
    return _Resident(engine, Metering(run.cluster.records, run.fill), _window(run))
