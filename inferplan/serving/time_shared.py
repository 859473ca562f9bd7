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
from inferplan.serving.clients import Clients
from inferplan.serving.clock import Clock, Engine, Event
from inferplan.serving.cluster import BEGIN, END
from inferplan.serving.options import Options
from inferplan.serving.records import Metering
from inferplan.serving.result import SimulationResult
from inferplan.serving.scheduler import Scheduler
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
    one. The engine runs a whole step at once when it begins; what its clients see of it waits for its real end, where
    the step is ``slowed`` by others.
    """

    def __init__(self, engine: Engine, scheduler: Scheduler, slowed: bool) -> None:
        self.engine, self.scheduler = engine, scheduler
        self.clients: Clients = scheduler.clients
        self.left: float | None = None
        if slowed:
            self.clients.held = []

    def ready(self) -> float:
        """When its next step can begin: at once, when the next request is there, or never."""
        scheduler, queue = self.scheduler, self.scheduler.queue
        if scheduler.decodes.size or queue.waiting or scheduler.partial is not None or self.clients.unseen:
            return 0.0
        return queue.inbox[0][0] if queue.inbox else inf

    def begin(self, now: float) -> None:
        """Begin a step, if there is one."""
        self.engine.clock = now
        self.engine.advance(nextafter(now, inf))
        self.left = self.engine.clock - now if self.engine.clock > now else None

    def run(self, now: float, until: float) -> float:
        """Have the GPUs alone for as long as there is something to do, up to ``until``. Gives when that was."""
        engine = self.engine
        engine.clock = now
        while self.ready() <= engine.clock < until and engine.step(until):
            pass
        return engine.clock

    def end(self, now: float) -> None:
        """The step ends: the clock is what it is, and clients see its tokens."""
        self.engine.clock = self.scheduler.decodes.token_time = now
        clients = self.clients
        self.left, unseen, held = None, clients.unseen, clients.held
        clients.unseen, clients.held = held or [], None
        clients.show(now)
        clients.unseen, clients.held = unseen, []


class _Sharing(Engine):
    """The engines of one group of GPUs, all resident."""

    def __init__(self, residents: Sequence[_Resident]) -> None:
        super().__init__()
        self.residents = residents

    def earliest(self) -> float:
        if any(one.left is not None for one in self.residents):
            return self.clock
        return max(self.clock, min(one.ready() for one in self.residents))

    def step(self, until: float) -> bool:
        """Up to the next end of a step, or the next request."""
        if self.earliest() >= until:
            return False
        now = self.clock
        for one in self.residents:
            if one.left is None and one.ready() <= now:
                one.begin(now)
        busy = [one for one in self.residents if one.left is not None]
        coming = min((one.ready() for one in self.residents if one.left is None), default=inf)
        if not busy:
            self.clock = max(coming, nextafter(now, inf))
            return True
        pace = 1.0 / len(busy)
        least = min(one.left or 0.0 for one in busy)
        ends = now + least / pace
        self.clock = min(ends, coming) if coming > now else ends
        done = least if self.clock == ends else (self.clock - now) * pace
        for one in busy:
            one.left = (one.left or 0.0) - done
            if one.left <= _ROUNDING * self.clock:
                one.end(self.clock)
        return True


class _Turns(_Sharing):
    """The engines of one group, of which one is awake: the first at the beginning.

    Who is awake goes on for as long as it has requests, and ``keep_alive`` longer; then the one whose first request
    waits longest wakes (exhaustive service, as it is called in polling systems).
    """

    def __init__(self, residents: Sequence[_Resident], swap: Swap) -> None:
        super().__init__(residents)
        self.swap, self.awake = swap, 0

    def step(self, until: float) -> bool:
        """All that who is awake has to do, or the next who wakes."""
        if self.earliest() >= until:
            return False
        one = self.residents[self.awake]
        if one.ready() <= self.clock:
            self.clock = one.run(self.clock, until)
            return True
        waiting = [(other.ready(), place) for place, other in enumerate(self.residents) if place != self.awake]
        first, place = min(waiting, default=(inf, self.awake))
        switch = max(first, self.clock + self.swap.keep_alive)
        if one.ready() <= switch:
            self.clock = one.ready()
        else:
            self.clock = switch + self.swap.seconds(self.awake, place)
            self.awake = place
        return True


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
    clock = Clock()
    for group in range(replicas.pop()):
        engines = ((run.cluster.engines[group], run.cluster.front.pool[group]) for run in runs)
        residents = [_Resident(engine, scheduler, swap is None) for engine, scheduler in engines]
        clock.join(_Sharing(residents) if swap is None else _Turns(residents, swap))
    clock.events = sorted(event for place, run in enumerate(runs) for event in _sent(run, place))

    def mark(event: Event) -> None:
        time, place, what = event
        cluster = runs[place].cluster
        (cluster.metering.begin if what == BEGIN else cluster.metering.end)(time, cluster.meters)

    clock.handlers = {BEGIN: mark, END: mark}
    clock.run_until_quiet(sealed=True)
    for run in runs:
        run.cluster.metering.close(run.cluster.meters)
    return [run.result(run.cluster.meters) for run in runs]


def _sent(run: Prepared, place: int) -> list[Event]:
    """Every request reaches its replica, in turn. Gives the arrivals between which rates and meters count."""
    cluster, pool, arrival = run.cluster, run.cluster.front.pool, run.cluster.records.arrival
    cluster.metering = Metering(cluster.records, run.fill)
    order = np.argsort(np.asarray(arrival), kind="stable").tolist()
    for turn, request in enumerate(order):
        pool[turn % len(pool)].submit(request, arrival[request])
    return [(arrival[order[run.fill]], place, BEGIN), (arrival[order[-1]], place, END)]
