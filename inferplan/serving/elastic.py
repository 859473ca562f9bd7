"""A cluster whose replicas come and go while it runs.

A replica that is ordered takes requests after a cold start; one that leaves takes no more, and is gone when those that
it has are done. Requests that find no replica wait at the router, in order, until one is ready. Replicas on their way
leave first, then the youngest (kubernetes.io, ReplicaSet, "Scaling a ReplicaSet"). One that is taken away leaves at the
notice, when another is ordered in its place; what it has not done by its end begins anew elsewhere.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from math import inf

import numpy as np

from inferplan.errors import UsageError
from inferplan.serving.apart import Event
from inferplan.serving.autoscaling import Life, Scaling
from inferplan.serving.cluster import SENT, Cluster, Fleet, Kind
from inferplan.serving.records import NAN, Records
from inferplan.serving.replica import Replica
from inferplan.traffic.requests import ClosedLoop

_LOOK, _READY, _HELD, _NOTICE, _CUT = range(SENT + 10, SENT + 15)
"""What may happen beside the events of a cluster: somebody looks whether there are enough replicas; a replica is ready;
a request that waited at the router goes to one; a replica is told that it will be taken away; it is."""


class _Gone(Replica):
    """What is left of an engine that was taken away."""

    def __init__(self, clock: float) -> None:
        self.clock, self.pause = clock, False

    def advance(self, until: float) -> None:
        """Nothing runs any more."""

    def earliest(self) -> float:
        return inf


class Elastic(Cluster):
    """A cluster under a :class:`inferplan.serving.autoscaling.Scaling`."""

    def __init__(
        self,
        fleet: Fleet,
        records: Records,
        closed: ClosedLoop | None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(fleet, records, closed, progress)
        assert fleet.scaling is not None
        self.scaling: Scaling = fleet.scaling
        self.scaler = self.scaling.scaler()
        self.waiting: list[int] = []
        """Requests that have found no replica."""
        self._lives: list[Life] = []
        self.fates = np.random.default_rng(0 if fleet.losses is None else fleet.losses.seed)
        self._coming: deque[int] = deque()
        """Replicas on their way, in order."""

    def build(self, kind: Kind, prompts: Kind | None = None) -> None:
        """Make the engines that are there when the run begins. Raises ``UsageError`` where requests follow answers."""
        if self.senders.reacts:
            raise UsageError("replicas come and go only where arrivals are known ahead", hint="--rate, or a profile")
        super().build(kind, prompts)
        self._kind = kind
        self._lives = [Life(0.0, 0.0)] * self.scaling.first
        self.moves = self.scaling.looks or self.fleet.losses is not None
        if self.moves:
            self.front.blind = False

    @property
    def lives(self) -> list[Life]:
        """Every replica of the run, in the order in which they came."""
        return [
            life if life.left == inf else life._replace(gone=max(life.left, self._last_step(index)))
            for index, life in enumerate(self._lives)
        ]

    def _ranks(self, replica: int) -> range:
        """Which schedulers of the pool are the attention ranks of a replica."""
        ranks = self._kind.deployment.parallel.dp
        return range(replica * ranks, (replica + 1) * ranks)

    def _last_step(self, replica: int) -> float:
        """When the last step of a replica was over, of those that it has run."""
        return max(self.engines[self.engine_of[self.front.pool[rank]]].clock for rank in self._ranks(replica))

    def _run_open(self, jobs: int) -> None:
        if not self.moves:
            super()._run_open(jobs)
            return
        arrival = self.records.arrival
        order = np.argsort(np.asarray(arrival), kind="stable")
        self.known = ((arrival[request], request, SENT) for request in order.tolist())
        self.last = arrival[order[-1]]
        self.events = [(self.scaler.next_look(0.0), -1, _LOOK)]
        for replica in range(len(self._lives)):
            self._doom(replica, 0.0)
        self._run_together()

    def _deliver(self, event: Event) -> int | None:
        time, request, what = event
        if what == _LOOK:
            self._look(time)
            return None
        if what == _READY:
            self._open(time)
            return None
        if what == _NOTICE:
            self._notice(request, time)
            return None
        if what == _CUT:
            self._cut(request, time)
            return None
        if what in (SENT, _HELD) and not self.front.taking:
            if what == SENT:
                self._next_known()
                self.sent += 1
            self.waiting.append(request)
            return None
        return self._submit(request, time) if what == _HELD else super()._deliver(event)

    def _submit(self, request: int, time: float) -> int:
        """A request that waited reaches a replica."""
        scheduler = self.front.pool[self.front.send(request, time)]
        scheduler.submit(request, time)
        return self.engine_of[scheduler]

    def _look(self, time: float) -> None:
        """Order the replicas that are lacking, or let some leave; look again while somebody may still come."""
        there = [index for index, life in enumerate(self._lives) if life.left == inf]
        wanted = self.scaler.wanted(time, len(there), self.front.held(time) + len(self.waiting))
        if wanted > len(there):
            self._order(wanted - len(there), time)
        for index in there[wanted:]:
            self._leave(index, time)
        following = self.scaler.next_look(time)
        if following < inf and (following <= self.scaling.until or time < self.last or self.waiting):
            heapq.heappush(self.events, (following, -1, _LOOK))

    def _order(self, count: int, time: float) -> None:
        ready = time + self.scaling.cold_start
        for _ in range(count):
            self._coming.append(len(self._lives))
            self._lives.append(Life(time, ready))
            self._doom(len(self._lives) - 1, time)
            self.front.add(self.made(self._kind, self._kind.deployment.parallel.dp))
        heapq.heappush(self.events, (ready, -1, _READY))

    def _open(self, time: float) -> None:
        """Replicas that are ready take requests, those first that waited for them."""
        while self._coming and self._lives[self._coming[0]].ready <= time:
            replica = self._coming.popleft()
            if self._lives[replica].left == inf:
                self.front.open(self._ranks(replica))
        if self.front.taking:
            for request in self.waiting:
                heapq.heappush(self.events, (time, request, _HELD))
            self.waiting.clear()

    def _doom(self, replica: int, time: float) -> None:
        """A replica that begins its life at ``time`` will be taken away, if that is while requests still come."""
        if self.fleet.losses is not None:
            notice = time + float(self.fates.exponential(1 / self.fleet.losses.rate))
            if notice < max(self.last, self.scaling.until):
                heapq.heappush(self.events, (notice, replica, _NOTICE))

    def _notice(self, replica: int, time: float) -> None:
        """A replica will be taken away: another takes its place, unless it was to leave anyway."""
        assert self.fleet.losses is not None
        if self._lives[replica].left == inf:
            self._leave(replica, time)
            self._lives[replica] = self._lives[replica]._replace(taken=True)
            self._order(1, time)
        heapq.heappush(self.events, (time + self.fleet.losses.notice, replica, _CUT))

    def _cut(self, replica: int, time: float) -> None:
        """A replica is taken away: what it has begins anew elsewhere, nothing of it seen."""
        ranks, records = self._ranks(replica), self.records
        lost = [request for request, rank in self.front.home.items() if rank in ranks]
        for request in lost:
            self.front.leave(request, time)
            records.admitted[request] = records.first[request] = NAN
            heapq.heappush(self.events, (time, request, _HELD))
        self._lives[replica] = self._lives[replica]._replace(resent=len(lost))
        for engine in {self.engine_of[self.front.pool[rank]] for rank in ranks}:
            self.engines[engine] = _Gone(time if lost else self.engines[engine].clock)

    def _leave(self, replica: int, time: float) -> None:
        life = self._lives[replica]
        self._lives[replica] = life._replace(left=time)
        if life.ready <= time:
            self.front.close(self._ranks(replica))
