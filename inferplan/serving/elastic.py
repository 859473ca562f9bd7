"""Replicas that come and go on the clock of a cluster.

A replica that is ordered takes requests after a cold start; one that leaves takes no more, and is gone when those that
it has are done. Requests that find no replica wait at the router, in order, until one is ready. Replicas on their way
leave first, then the youngest (kubernetes.io, ReplicaSet, "Scaling a ReplicaSet"). One that is taken away leaves at the
notice, when another is ordered in its place; what it has not done by its end begins anew elsewhere. One that fails is
cut at that moment, or drained first, and is back after a cold start, with an empty cache.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from math import inf

import numpy as np

from inferplan.serving.autoscaling import Life, Scaling
from inferplan.serving.clock import Engine, Event
from inferplan.serving.cluster import ANSWERED, CACHED, SENT, THOUGHT, EngineKind
from inferplan.serving.cluster_run import ClusterRun
from inferplan.serving.failures import Outage
from inferplan.serving.records import FINISHED, NAN, WAITING

_LOOK, _READY, _HELD, _NOTICE, _CUT, _FAIL, _DRAINED = range(SENT + 10, SENT + 17)
"""What may happen beside the events of a cluster: somebody looks whether there are enough replicas; a replica is ready;
a request that waited at the router goes to one; a replica is told that it will be taken away; it is; some fail; one
that was drained has nothing left to do."""
_OF_REQUESTS = frozenset((SENT, ANSWERED, THOUGHT, CACHED, _HELD))
"""What happens to requests, or brings them."""


class _Gone(Engine):
    """What is left of an engine that was taken away."""

    def __init__(self, clock: float) -> None:
        super().__init__()
        self.clock = clock

    def step(self, until: float) -> bool:
        """Nothing runs any more."""
        return False

    def earliest(self) -> float:
        return inf


def _told(handler: Callable[[int, float], object]) -> Callable[[Event], None]:
    """The handler of an event that reaches no engine: of whom, and when."""

    def handle(event: Event) -> None:
        handler(event[1], event[0])

    return handle


class ElasticReplicas:
    """The replicas of a cluster under a :class:`inferplan.serving.autoscaling.Scaling`."""

    def __init__(self, cluster: ClusterRun) -> None:
        fleet = self.fleet = cluster.fleet
        assert fleet.scaling is not None
        self.cluster, self.records = cluster, cluster.records
        self.scaling: Scaling = fleet.scaling
        self.scaler = self.scaling.scaler()
        self._lives: list[Life] = []
        self.fates = np.random.default_rng(0 if fleet.losses is None else fleet.losses.seed)
        self._coming: deque[int] = deque()
        """Replicas on their way, in order."""
        self.outages: list[Outage] = []
        self._places: list[int] = []
        """Where each replica stands; one that is ordered for another takes its place."""
        self._draining: dict[int, tuple[int, int]] = {}
        """Of replicas that fail and are drained first: requests that they still have, and the outage."""
        self._seen: deque[tuple[float, int, int]] = deque()
        """When clients saw the end of the last requests, these, and the ranks that had them: an engine finishes a step
        that it has begun, and may be lost within it."""
        self.connects = fleet.changes or fleet.failures is not None
        self.watches = fleet.losses is not None or fleet.failures is not None
        handlers: dict[int, Callable[[int, float], object]] = {
            _LOOK: self._look,
            _READY: self._open,
            _NOTICE: self._notice,
            _CUT: self._cut,
            _FAIL: self._fail,
            _DRAINED: self._restart,
        }
        cluster.add(self, {what: _told(handler) for what, handler in handlers.items()})
        cluster.handlers[_HELD] = self._held

    def start(self, kind: EngineKind) -> None:
        """The engines are there that the run begins with."""
        self._kind = kind
        self._lives = [Life(0.0, 0.0)] * self.scaling.first
        self._places = list(range(self.scaling.first))
        if self.connects:
            self.cluster.front.blind = False

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
        cluster = self.cluster
        return max(cluster.engines[cluster.engine_of[cluster.front.pool[rank]]].clock for rank in self._ranks(replica))

    def planned(self) -> list[Event]:
        """Looks, and replicas that will be lost."""
        if not self.connects:
            return []
        self.last = inf if self.cluster.senders.reacts else float(np.max(self.records.arrival))
        planned = [(look, -1, _LOOK) for look in (self.scaler.next_look(0.0),) if look < inf]
        planned += [event for replica in range(len(self._lives)) for event in self._doom(replica, 0.0)]
        failures = () if self.fleet.failures is None else self.fleet.failures.at
        return planned + [(failure.at, place, _FAIL) for place, failure in enumerate(failures)]

    def _held(self, event: Event) -> None:
        """A request that waited at the router, or lost its replica, goes to one, unless its user has given up."""
        time, request, _ = event
        if self.records.status[request] == WAITING:
            self.cluster.submit(request, time)

    def _look(self, _: int, time: float) -> None:
        """Order the replicas that are lacking, or let some leave; look again while somebody may still come. Those that
        are drained to restart count as on their way."""
        there, back = [index for index, life in enumerate(self._lives) if life.left == inf], len(self._draining)
        requests = self.cluster.front.held(time) + len(self.cluster.waiting)
        wanted = max(self.scaler.wanted(time, len(there) + back, requests) - back, 0)
        if wanted > len(there):
            self._order(self._free(wanted - len(there)), time)
        for index in there[wanted:]:
            self._leave(index, time)
        following = self.scaler.next_look(time)
        if following < inf and (following <= self.scaling.until or self._may_come(time) or self.cluster.waiting):
            heapq.heappush(self.cluster.events, (following, -1, _LOOK))

    def _may_come(self, time: float) -> bool:
        """Whether requests may still come after ``time``: those that are known ahead, or that answers bring."""
        cluster = self.cluster
        if not cluster.senders.reacts:
            return time < self.last
        return bool(cluster.front.home) or any(what in _OF_REQUESTS for _, _, what in cluster.events)

    def _free(self, count: int) -> list[int]:
        """The first places at which no replica stands."""
        there = {self._places[index] for index, life in enumerate(self._lives) if life.left == inf}
        there |= {self._places[index] for index in self._draining}
        free: list[int] = []
        place = 0
        while len(free) < count:  # compiled, a generator is a list at once: one without an end fills the memory
            if place not in there:
                free.append(place)
            place += 1
        return free

    def _order(self, places: Iterable[int], time: float) -> float:
        """Order replicas for some places: gives when they are ready."""
        ready = time + self.scaling.cold_start
        for place in places:
            self._coming.append(len(self._lives))
            self._places.append(place)
            self._lives.append(Life(time, ready))
            for doom in self._doom(len(self._lives) - 1, time):
                heapq.heappush(self.cluster.events, doom)
            self.cluster.front.add(self.cluster.made(self._kind, self._kind.deployment.parallel.dp))
        heapq.heappush(self.cluster.events, (ready, -1, _READY))
        return ready

    def _open(self, _: int, time: float) -> None:
        """Replicas that are ready take requests, those first that waited for them."""
        while self._coming and self._lives[self._coming[0]].ready <= time:
            replica = self._coming.popleft()
            if self._lives[replica].left == inf:
                self.cluster.front.open(self._ranks(replica))
        if self.cluster.front.taking:
            for request in self.cluster.waiting:
                heapq.heappush(self.cluster.events, (time, request, _HELD))
            self.cluster.waiting.clear()

    def _doom(self, replica: int, time: float) -> list[Event]:
        """A replica that begins its life at ``time`` will be taken away, if that is while requests still come."""
        if self.fleet.losses is None:
            return []
        notice = time + float(self.fates.exponential(1 / self.fleet.losses.rate))
        return [(notice, replica, _NOTICE)] if notice < max(self.last, self.scaling.until) else []

    def _notice(self, replica: int, time: float) -> None:
        """A replica will be taken away: another takes its place, unless it was to leave anyway."""
        assert self.fleet.losses is not None
        if time > self.scaling.until and not self._may_come(time) and not self.cluster.waiting:
            return
        if self._lives[replica].left == inf:
            self._leave(replica, time)
            self._lives[replica] = self._lives[replica]._replace(taken=True)
            self._order([self._places[replica]], time)
        heapq.heappush(self.cluster.events, (time + self.fleet.losses.notice, replica, _CUT))

    def _fail(self, place: int, time: float) -> None:
        """Some of the replicas that take requests are lost, or drained to be."""
        assert self.fleet.failures is not None
        failure = self.fleet.failures.at[place]
        there = [index for index, life in enumerate(self._lives) if life.left == inf and life.ready <= time]
        lost = there[: failure.replicas]
        if failure.node and there:
            each = self.fleet.failures.per_node or 1
            lost = [index for index in there if self._places[index] // each == self._places[there[0]] // each]
        self.outages.append(Outage(time, time, tuple(lost), 0))
        for replica in lost:
            self._leave(replica, time)
        if self.fleet.failures.mode == "cut":
            anew = sum([self._cut(replica, time) for replica in lost])
            back = self._order([self._places[replica] for replica in lost], time) if lost else time
            self.outages[-1] = self.outages[-1]._replace(back=back, anew=anew)
            return
        for replica in lost:
            ranks = self._ranks(replica)
            left = [seen for seen, _, rank in self._seen if rank in ranks]
            has = sum(rank in ranks for rank in self.cluster.front.home.values())
            self._draining[replica] = has, len(self.outages) - 1
            if not has:
                heapq.heappush(self.cluster.events, (max([time, *left]), replica, _DRAINED))

    def _restart(self, replica: int, time: float) -> None:
        """A replica that was drained has nothing left to do."""
        _, place = self._draining.pop(replica)
        back = self._order([self._places[replica]], time)
        self.outages[place] = self.outages[place]._replace(back=max(self.outages[place].back, back))

    def ended(self, request: int, time: float, rank: int) -> None:
        """A request is done: the replica that had it may be drained now."""
        if not self.watches:
            return
        self._seen.append((time, request, rank))
        while self._seen and self._seen[0][0] <= self.cluster.now:
            self._seen.popleft()
        replica = rank // self._kind.deployment.parallel.dp
        if replica in self._draining:
            left, place = self._draining[replica]
            self._draining[replica] = left - 1, place
            if left == 1:
                heapq.heappush(self.cluster.events, (time, replica, _DRAINED))

    def _cut(self, replica: int, time: float) -> int:
        """A replica is taken away: what it has begins anew elsewhere, nothing of it seen. Gives how many do."""
        ranks, records = self._ranks(replica), self.records
        ahead = [(seen, request) for seen, request, rank in self._seen if rank in ranks and seen > time]
        unmade = [request for seen, request in ahead if self._unmake(request, seen)]
        lost = [request for request, rank in self.cluster.front.home.items() if rank in ranks]
        for request in lost:
            self.cluster.front.leave(request, time)
        for request in lost + unmade:
            records.begin_anew(request)
            heapq.heappush(self.cluster.events, (time, request, _HELD))
        lost += unmade
        self._lives[replica] = self._lives[replica]._replace(resent=len(lost))
        for engine in {self.cluster.engine_of[self.cluster.front.pool[rank]] for rank in ranks}:
            self.cluster.engines[engine] = _Gone(time if lost else self.cluster.engines[engine].clock)
        return len(lost)

    def _unmake(self, request: int, seen: float) -> bool:
        """The end of a request lies behind the moment at which its replica is lost: it is none. Whether it was one."""
        records = self.records
        if records.status[request] != FINISHED:
            return False
        if self.cluster.senders.reacts:
            self.cluster.events.remove((self.cluster.senders.after(request, seen), request, ANSWERED))
            heapq.heapify(self.cluster.events)
        records.status[request], records.finish[request] = WAITING, NAN
        self.cluster.done -= 1
        return True

    def _leave(self, replica: int, time: float) -> None:
        life = self._lives[replica]
        self._lives[replica] = life._replace(left=time)
        if life.ready <= time:
            self.cluster.front.close(self._ranks(replica))
