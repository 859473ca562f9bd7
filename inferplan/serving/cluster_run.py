"""One run of a cluster: clients send, the router chooses, caches move between pools, answers come."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from inferplan.compiled import state
from inferplan.errors import UsageError
from inferplan.serving.admission import Rules
from inferplan.serving.clock import Engine, Event
from inferplan.serving.cluster import AHEAD, ANSWERED, BEGIN, CACHED, END, PAUSE, SENT, THOUGHT, Cluster
from inferplan.serving.fleet import Fleet
from inferplan.serving.plain_replica import PlainReplica
from inferplan.serving.records import CANCELLED, Excerpt, Meter, Metering, Records
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.senders import Senders

if TYPE_CHECKING:
    from inferplan.serving.plain_native import Plain

_ASIDE = 1 << 14
"""Requests that are sent until what became of those before need not be at hand."""
_BLOCK = 1 << 16
"""Requests that engines are sent at once, at most: on their way they take more memory than their records."""


class Incoming(NamedTuple):
    """What a pool is sent, in order of time: each to the next scheduler in turn."""

    requests: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]
    computed: bool = False
    """The pool only decodes: it is the cache of a request that comes."""


def _some_refused(rules: Rules, records: Records, requests: npt.NDArray[np.int64] | None) -> bool:
    """Whether some of these may be too long to run at all; ``None``: of all."""
    prompt, output = np.asarray(records.prompt), np.asarray(records.output)
    parts = [slice(at, at + _BLOCK) for at in range(0, len(prompt), _BLOCK)] if requests is None else [requests]
    longest = [(int(np.max(prompt[part])), int(np.max(prompt[part] + output[part]))) for part in parts]
    return any(rules.refusal(*one) for one in longest)


def _native(engine: Engine) -> Plain | None:
    """What runs an engine in C, where it is plain and that is compiled."""
    return engine.native if isinstance(engine, PlainReplica) else None


class _PausedError(Exception):
    """A run is paused."""


class Served(NamedTuple):
    """What some engines have done, in another process."""

    records: Excerpt
    meters: list[Meter]
    moved: list[Event]
    done: int


class Ahead:
    """Engines that nothing connects: what each is sent is known ahead, so it comes many requests at a time.

    Arrivals are known and go round robin. Where pools are apart, those who compute prompts run to their end, then those
    who decode, with the caches that they were sent. With ``jobs`` neighbours among the engines are simulated in a
    process of their own, to the same last bit. marks: when the meters begin to count, and stop, if they do not count
    all the time.
    """

    def __init__(self, cluster: Cluster, marks: list[Event]) -> None:
        self.cluster, self.marks = cluster, marks

    def run(self, order: npt.NDArray[np.int64] | range, jobs: int) -> None:
        """Send the requests in this order and run until all is quiet, in so many processes."""
        cluster = self.cluster
        if not cluster.back.pool:
            self._only_count()
        cluster.moved = []
        arrival = np.asarray(cluster.records.arrival)
        self._serve(Incoming(np.asarray(order), arrival if isinstance(order, range) else arrival[order]), jobs)
        if cluster.moved:
            times, requests, _ = zip(*sorted(cluster.moved))
            self._serve(Incoming(np.asarray(requests), np.asarray(times), True), jobs)

    def _only_count(self) -> None:
        """Nobody waits for an answer, or asks where it came from."""
        for scheduler in self.cluster.front.pool:
            scheduler.clients.notify = self.cluster.count

    def _serve(self, incoming: Incoming, jobs: int) -> None:
        """Each engine of a pool serves what it is sent; in several processes, of neighbours."""
        cluster = self.cluster
        pool = (cluster.back if incoming.computed else cluster.front).pool
        engines = list(dict.fromkeys(cluster.engine_of[scheduler] for scheduler in pool))
        if min(jobs, len(engines)) == 1:
            self.serve_on(engines, incoming)
            return
        from concurrent.futures import ProcessPoolExecutor  # some 10 ms of every start, needed by few
        from multiprocessing import get_start_method

        if get_start_method() != "fork" and state() == "in use":
            raise _compiled(jobs)
        progress, cluster.progress = cluster.progress, None
        shares = [share.tolist() for share in np.array_split(engines, min(jobs, len(engines)))]
        try:  # a forked process inherits what it begins with: it need not travel
            with ProcessPoolExecutor(len(shares), initializer=_begin, initargs=(self, incoming)) as executor:
                for share, served in zip(shares, executor.map(_serve_elsewhere, shares)):
                    self._take(share, served)
                    if progress is not None:
                        progress(cluster.done)
        finally:
            cluster.progress = progress

    def _take(self, engines: list[int], served: Served) -> None:
        """What another process has done with some engines becomes part of the run."""
        cluster = self.cluster
        cluster.records.merge(served.records)
        assert cluster.moved is not None
        cluster.moved += served.moved
        for scheduler, meter in zip(self._schedulers(engines), served.meters):
            scheduler.meter = meter
        cluster.done += served.done

    def _schedulers(self, engines: list[int]) -> list[Scheduler]:
        """Those of some engines, in order."""
        return [scheduler for scheduler, engine in self.cluster.engine_of.items() if engine in engines]

    def serve_on(self, engines: list[int], incoming: Incoming) -> None:
        """Some engines of a pool serve what is theirs of what comes to it, to the end."""
        self._set_out(engines, incoming)
        self.cluster.run_until_quiet(sealed=True)
        self.metering.close(self.meters)

    def in_parts(self, order: npt.NDArray[np.int64], pauses: list[Event]) -> Iterator[None]:
        """The requests in this order, of one pool, with these pauses; the last part goes on until all is quiet."""
        cluster = self.cluster
        self._only_count()
        self._set_out([*range(len(cluster.engines))], Incoming(order, np.array(cluster.records.arrival)[order]))
        cluster.handlers[PAUSE] = self._pause
        cluster.events = sorted([*cluster.events, *pauses])
        for _ in pauses:
            with contextlib.suppress(_PausedError):
                cluster.run_until_quiet(sealed=True)
            yield
        cluster.run_until_quiet(sealed=True)
        self.metering.close(self.meters)
        yield

    def _pause(self, event: Event) -> None:
        """The engines are brought up to this moment, and the loop of events is left; begun again, it goes on."""
        for index in self.engines:
            self.cluster.advance(index, event[0])
        raise _PausedError

    def _set_out(self, engines: list[int], incoming: Incoming) -> None:
        """Nothing is sent yet, and the meters have not begun."""
        self.engines, self.incoming, self.sent = set(engines), incoming, 0
        self.meters = [scheduler.meter for scheduler in self._schedulers(engines)]
        self.metering = Metering(self.cluster.records, 0)
        self.cluster.handlers |= {BEGIN: self._mark, END: self._mark, AHEAD: self._send}
        self.cluster.events = sorted([*self.marks, (float(incoming.times[0]), 0, AHEAD)])

    def _mark(self, event: Event) -> None:
        """The meters begin to count, or stop; their engines are brought up to it."""
        for index in self.engines:
            self.cluster.advance(index, event[0])
        (self.metering.begin if event[2] == BEGIN else self.metering.end)(event[0], self.meters)

    def _send(self, event: Event) -> None:
        """What comes before anything else does reaches its engines, as much of it as they are sent at once."""
        cluster, (requests, times, computed) = self.cluster, self.incoming
        coming = cluster.events[0][0] if cluster.events else inf
        first = self.sent
        self.sent = stop = min(int(np.searchsorted(times, coming)), first + _BLOCK)
        turns, engines = self._turns(np.arange(first, stop))
        order = np.argsort(engines, kind="stable")
        for mine in np.split(order, np.flatnonzero(np.diff(engines[order])) + 1) if stop > first else ():
            index = int(engines[mine[0]])
            if index in self.engines:
                self._send_to(index, turns[mine], Incoming(requests[first + mine], times[first + mine], computed))
                cluster.touch(index)
        cluster.records.put_aside()
        if stop < len(times):  # behind what limits it, so that no engine stops before what comes to another
            heapq.heappush(cluster.events, (min(float(times[stop]), coming), 0, AHEAD))

    def _turns(self, places: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Of places in what is sent: the scheduler of the pool that gets each, and its engine."""
        cluster, computed = self.cluster, self.incoming.computed
        pool = (cluster.back if computed else cluster.front).pool
        each = 1 if computed else cluster.records.samples  # all answers of a prompt go to one
        turns = places // each % len(pool)
        return turns, np.array([cluster.engine_of[scheduler] for scheduler in pool])[turns]

    def requests_of(self, engines: list[int]) -> npt.NDArray[np.int64]:
        """What some engines are sent."""
        requests = self.incoming.requests
        found: npt.NDArray[np.int64] = requests[np.isin(self._turns(np.arange(len(requests)))[1], engines)]
        return found

    def _send_to(self, index: int, turns: npt.NDArray[np.int64], what: Incoming) -> None:
        """One engine is sent requests, in order of time. turns: to which scheduler of the pool each goes."""
        cluster = self.cluster
        router = cluster.back if what.computed else cluster.front
        rules = router.pool[turns[0]].rules
        if (
            not cluster.back.pool
            and np.all(turns == turns[0])
            and not _some_refused(rules, cluster.records, what.requests)
        ):
            native = _native(cluster.engines[index])
            if native is not None:
                native.submit_all(what.requests, what.times)
            else:
                router.pool[turns[0]].queue.submit_all(what.requests.tolist(), what.times.tolist())
            return
        for turn, request, time in zip(turns.tolist(), what.requests.tolist(), what.times.tolist()):
            if cluster.back.pool:
                router.home[request] = turn
            if not what.computed:
                router.pool[turn].submit(request, time)
                continue
            if rules.handoff:  # it depends on who decodes
                cluster.advance(index, time)
            cluster.receive(router.pool[turn], request, time)


_mine: list[tuple[Ahead, Incoming]] = []
"""Of a process that serves a share: the whole that is divided. Always empty in the process that divides it, where
several threads may each have a run.
"""


def _begin(ahead: Ahead, incoming: Incoming) -> None:
    """The beginning of a process: its copy of what is divided."""
    _mine[:] = [(ahead, incoming)]


def _serve_elsewhere(engines: list[int]) -> Served:
    """The work of a process."""
    ahead, incoming = _mine[0]
    cluster = ahead.cluster
    records, done = cluster.records, cluster.done
    records.refused.clear()
    del records.gaps[:], records.gap_weights[:]
    cluster.moved = []
    ahead.serve_on(engines, incoming)
    return Served(records.excerpt(ahead.requests_of(engines)), ahead.meters, cluster.moved, cluster.done - done)


def _connected(jobs: int, fleet: Fleet, senders: Senders) -> UsageError:
    """What an engine does changes what another is sent or finds."""
    if senders.reacts:
        because = "requests that follow answers connect them"
    elif fleet.failures is not None:
        because = "what a replica loses goes to another"
    else:
        because = f"{fleet.routing} routing looks at all of them before each request"
    return UsageError(
        f"--jobs {jobs} cannot divide these replicas among processes",
        because=because,
        hint="leave --jobs out; it is for arrivals known ahead (--rate, --trace) that are sent round robin",
    )


def _compiled(jobs: int) -> UsageError:
    """Engines in machine code cannot be sent to another process, which has to have them."""
    return UsageError(
        f"--jobs {jobs} cannot divide a compiled event loop among processes on this system",
        because="its processes are not forked",
        hint="INFERPLAN_COMPILED=0 in the environment, or --jobs 1",
    )


def _by_time(arrival: npt.NDArray[np.float64]) -> npt.NDArray[np.int64] | range:
    """The requests in order of time, those of the same moment as they stand."""
    if all(np.all(part[1:] >= part[:-1]) for part in _blocks(arrival, 1)):
        return range(len(arrival))
    return np.argsort(arrival, kind="stable")


def _one_by_one(order: npt.NDArray[np.int64]) -> Iterator[int]:
    """The entries as numbers of Python, which take four times the memory."""
    return (request for part in _blocks(order) for request in part.tolist())


def _blocks(whole: npt.NDArray[Any], more: int = 0) -> Iterator[npt.NDArray[Any]]:
    """An array in blocks, each with so many entries ``more`` of the next."""
    return (whole[first : first + _BLOCK + more] for first in range(0, len(whole), _BLOCK))


class ClusterRun(Cluster):
    """What happens between the engines of a run: clients send, the router chooses, caches move, answers come.

    starts: when each user of a closed loop who thinks has something to send for the first time, in seconds; all
    requests are then sent in the order in which users are done thinking, and the load ends with the last of them.
    """

    starts: Sequence[float] = ()
    paces: Sequence[npt.NDArray[np.float64] | None] = ()
    """Those of the records on each kind of replica, where they are not alike."""

    def run(self, warmup: int = 0, fill: int = 0, jobs: int = 1) -> list[Meter]:
        """Send every request and run until all is quiet; engines that nothing connects in ``jobs`` processes.

        In a closed loop the first ``warmup`` requests are waited for before the rest is sent, and leave no trace in the
        meters; ``fill`` requests are sent and not waited for, and the meters begin after them. Raises ``UsageError``
        for ``jobs`` where something connects the engines.
        """
        if jobs > 1 and not self._one_way:
            raise _connected(jobs, self.fleet, self.senders)
        handlers = {SENT: self.sends, CACHED: self._cached, ANSWERED: self._answered, THOUGHT: self._thought}
        self.handlers = {**handlers, BEGIN: self._marks, END: self._marks, **self.handlers}
        total = len(self.records.prompt)
        self.metering = Metering(self.records, warmup + fill if fill else 0)
        if self.closed is None:
            self._run_open(jobs)
        elif 0 < warmup < total:
            self._phase(0, warmup)
            now = max(engine.clock for engine in self.engines)
            del self.records.gaps[:], self.records.gap_weights[:]
            for engine in self.engines:
                engine.restart(now)
            for meter in self.meters:
                meter.timeline = [] if self.timeline else None
            self._phase(warmup, total)
        else:
            self._phase(0, total)
        self.metering.close(self.meters)
        if self.member:
            went, count = self.front.went, len(self.records.prompt)
            self.records.served_by = [self.member[went[request]] if request in went else -1 for request in range(count)]
            self._set_paces()
        if self.senders.following:
            self.records.in_order()
        return self.meters

    def _set_paces(self) -> None:
        """Each request has the pace that its text has beside the drafts of the replica that got it."""
        if all(paces is None for paces in self.paces):
            return
        by, whole = np.asarray(self.records.served_by), np.ones(len(self.records.prompt))
        for member, paces in enumerate(self.paces):
            if paces is not None:
                whole[by == member] = paces[by == member]
        self.records.paces = whole

    def in_parts(self, fill: int, looks: Sequence[int]) -> Iterator[list[Meter]]:
        """:meth:`run` of an open loop on engines that nothing connects, all of one pool: the meters when each of so
        many requests have come, and when all are done. The meters only count for the whole.
        """
        assert self._one_way and self.closed is None and not self.back.pool
        arrival = np.asarray(self.records.arrival)
        order = np.argsort(arrival, kind="stable")
        marks = [(float(arrival[order[fill]]), -1, BEGIN), (float(arrival[order[-1]]), -1, END)] if fill else []
        pauses = [(float(arrival[order[look - 1]]), -1, PAUSE) for look in looks]
        self.metering = Metering(self.records, fill)
        for _ in Ahead(self, marks).in_parts(order, pauses):
            self.metering.span = [time for time, _, _ in marks] or self.metering.span
            yield self.meters

    @property
    def _one_way(self) -> bool:
        """Nothing that an engine does changes what another is sent or finds, but for caches from front to back."""
        if self.senders.reacts or self.shares or any(process.connects for process in self.processes):
            return False
        return self.front.blind and self.back.blind

    def _run_open(self, jobs: int) -> None:
        """Arrivals are known ahead, but for those that follow answers."""
        arrival, fill = self.records.arrival, self.metering.fill
        order = _by_time(np.asarray(arrival))
        marks = [(arrival[order[fill]], -1, BEGIN), (arrival[order[-1]], -1, END)] if fill else []
        if self._one_way:
            Ahead(self, marks).run(order, jobs)
            self.metering.span = [time for time, _, _ in marks] or self.metering.span
            return
        starts: Iterable[int] = order if isinstance(order, range) else _one_by_one(order)
        if self.senders.reacts:
            first = set(self.senders.begin(0, len(arrival)))
            starts = [request for request in starts if request in first]
            marks = [(arrival[starts[-1]], -1, END)]  # what comes later only continues
        elif self._serves_natively(None if isinstance(order, range) else order, marks):
            return
        self.known = ((arrival[request], request, SENT) for request in starts)
        self._run_together(marks)

    def _serves_natively(self, order: npt.NDArray[np.int64] | None, marks: list[Event]) -> bool:
        """Plain replicas behind a simple router run in C, where that is compiled, those too that come and go: whether
        they did."""
        front, records = self.front, self.records
        plain = [native for native in map(_native, self.engines) if native is not None]
        if not plain or len(plain) < len(self.engines) or self.shares or self.back.pool:
            return False
        if any(process.watches for process in self.processes):
            return False
        if not front.simple or _some_refused(front.pool[0].rules, records, order):
            return False
        from inferplan.serving.plain_native import serve

        self.events = sorted(event for process in self.processes for event in process.planned())
        by_loads, times = front.routing == "least-loaded", np.asarray(records.arrival)
        sent = b"" if order is None else np.ascontiguousarray(order, np.int64)
        serve(self, by_loads, sent, times if order is None else times[order], sorted(marks), self._marks)
        for scheduler in front.pool:
            scheduler.clients.notify = self.notify
        return True

    def _phase(self, start: int, stop: int) -> None:
        """Users of a closed loop send requests ``start`` to ``stop`` until all is quiet."""
        assert self.closed is not None
        first = self.senders.begin(start, stop)
        ramp = 0.0 if self.closed.burst else self.closed.ramp or 0.0
        now = max(engine.clock for engine in self.engines)
        if self.starts:
            self.senders.beginning = iter(range(start, stop))
            self._run_together([(now + after, -1, THOUGHT) for after in self.starts])
            return
        starts = [(now + ramp * user / len(first), request, SENT) for user, request in enumerate(first)]
        self._run_together(starts, alone=not ramp and self.records.think is None)

    def _run_together(self, events: list[Event], alone: bool = False) -> None:
        """Run these events, and what each process plans. alone: one engine brings all that happens."""
        planned = [event for process in self.processes for event in process.planned()]
        self.events = sorted([*events, *planned])
        self._next_known()
        if alone and not planned and len(self.engines) == len(self.front.pool) == 1:
            self.run_alone()
        else:  # with a ramp or a think time, an arrival submitted early would overtake those before it
            self.run_until_quiet(sealed=not (self.senders.reacts or self.back.pool or self.shares))

    def _next_known(self) -> None:
        """The next of the arrivals known ahead joins the events."""
        arrival = next(self.known, None)
        if arrival is not None:
            heapq.heappush(self.events, arrival)

    # --- what happens -----------------------------------------------------------------------------------------------

    def _cached(self, event: Event) -> None:
        """The cache of a request arrives where it decodes."""
        time, request, _ = event
        if self.records.status[request] == CANCELLED:  # its user has given up meanwhile
            return
        scheduler = self.back.pool[self.back.send(request, time)]
        self.receive(scheduler, request, time)
        self.touch(self.engine_of[scheduler])

    def _answered(self, event: Event) -> None:
        """A user has an answer, and sends what follows it, if there is anything."""
        time, request, _ = event
        if self.starts:
            heapq.heappush(self.events, (time + self.senders.think(request), -1, THOUGHT))
            return
        following = self.senders.next(request)
        if following is None:
            if self.closed is not None:
                self._mark(time, False)
            return
        request, later = following
        if later:
            heapq.heappush(self.events, (time + later, request, SENT))
        else:
            self.sends((time, request, SENT))

    def _thought(self, event: Event) -> None:
        """A user has thought, and sends the next request of the load, if there is one."""
        request = next(self.senders.beginning, None)
        if request is None:
            self._mark(event[0], False)
        else:
            self.sends((event[0], request, SENT))

    def sends(self, event: Event) -> None:
        """A client sends a request: it reaches the engine that the router chooses."""
        time, request, _ = event
        if self.senders.reacts and self.sent == self.metering.fill > 0:
            self._mark(time, True)
        self.sent += 1
        if not self.sent % _ASIDE:
            self.records.put_aside()
        if self.closed is None and self.senders.reacts and self.sent == self.senders.limit:
            self._mark(time, False)
        self._next_known()
        if self.records.arrival[request] != time:  # a column that is known ahead is only read
            self.records.arrival[request] = time
        self.submit(request, time)

    def submit(self, request: int, time: float) -> None:
        """A request reaches the engine that the router chooses, or waits for one."""
        if not self.front.taking:
            self.waiting.append(request)
            return
        scheduler = self.front.pool[self.front.send(request, time)]
        scheduler.submit(request, time)
        self.touch(self.engine_of[scheduler])

    def _marks(self, event: Event) -> None:
        """The meters begin to count, or stop."""
        self._mark(event[0], event[2] == BEGIN)

    def _mark(self, time: float, begin: bool) -> None:
        """The meters begin to count, or stop, if they do not count all the time; all engines are brought up to it."""
        if not self.senders.limit > self.metering.fill > 0 or self.metering.ended:
            return
        if not begin and self.sent <= self.metering.fill:  # nothing counts yet
            return
        for index in range(len(self.engines)):
            self.advance(index, time)
        (self.metering.begin if begin else self.metering.end)(time, self.meters)

    def notify(self, request: int, time: float, finished: bool) -> None:
        """A client has seen the end of a request, or its prompt is done and its cache can leave."""
        rank = self.front.home.get(request, -1)
        home = (self.back if request in self.back.home else self.front).leave(request, time)
        if not finished:
            assert self.links is not None
            self.front.pool[home].meter.wait("link", max(self.links.free[home] - time, 0.0))
            there = self.links.send(home, request, self.records.prompt[request], time)
            heapq.heappush(self.events if self.moved is None else self.moved, (there, request, CACHED))
            return
        self.count(request, time, finished)
        if self.senders.reacts:
            heapq.heappush(self.events, (self.senders.after(request, time), request, ANSWERED))
            if self.running is not None:
                self.running.pause = True
        for process in self.processes:
            process.ended(request, time, rank)
