"""Engines that nothing connects: each serves its turns of what is sent, one after another or in several processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from inferplan.serving.pipeline import Pipeline
from inferplan.serving.plain_replica import PlainReplica
from inferplan.serving.records import Excerpt, Meter, Metering, Records
from inferplan.serving.replica import Replica
from inferplan.serving.routing import Router
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.step_price import Lane, Modifiers, modified
from inferplan.serving.step_times import StepTimes

Event = tuple[float, int, int]
"""When, to which request (below 0: none), and what."""

_BLOCK = 1 << 16
"""Requests that an engine is sent at once, if it has more: on their way they take more memory than their records."""


class Incoming(NamedTuple):
    """What a pool of engines that nothing connects is sent, in order of time: each to the next scheduler in turn."""

    requests: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]
    computed: bool
    """The pool only decodes: it is the cache of a request that comes."""
    window: tuple[float, float] | None
    """Between which seconds the meters count, if not all the time."""


class Served(NamedTuple):
    """What some engines have done, in another process."""

    records: Excerpt
    meters: list[Meter]
    events: list[Event]
    done: int


def _serve_elsewhere(cluster: Apart, incoming: Incoming, engines: list[int]) -> Served:
    """The work of a process: ``cluster`` is its copy."""
    cluster.records.refused.clear()
    del cluster.records.gaps[:], cluster.records.gap_weights[:], cluster.events[:]
    done = cluster.done
    requests = np.concatenate([cluster.serve_on(engine, incoming) for engine in engines])
    meters = [scheduler.meter for scheduler in cluster.schedulers(engines)]
    return Served(cluster.records.excerpt(requests), meters, cluster.events, cluster.done - done)


def _engine(group: list[Scheduler], times: StepTimes, modifiers: Modifiers) -> Replica | Pipeline:
    """What keeps the time of schedulers that step together."""
    first = group[0]
    if len(group) > 1 or len(first.lanes) > 1:
        prices = [[modified(times, modifiers, Lane(one, lane)) for lane in range(len(one.lanes))] for one in group]
        return Pipeline(times, group, prices)
    return Replica(modified(times, modifiers, Lane(first)), first) if modifiers else PlainReplica(times, first)


class Apart:
    """The engines of a run, and what they have done."""

    def __init__(self, records: Records, nobody: Router, progress: Callable[[int], None] | None) -> None:
        self.records, self.progress = records, progress
        self.engines: list[Replica | Pipeline] = []
        """What keeps time: each runs on its own; those of the front first."""
        self.front = self.back = nobody
        """Who takes new requests, and who only decodes where pools are apart."""
        self.engine_of: dict[Scheduler, int] = {}
        self.events: list[Event] = []
        """A heap; of the arrivals known ahead it holds the next."""
        self.done = 0
        self.shares = False
        """Whether what one engine drops another may find."""
        self.metering = Metering(records, 0)

    @property
    def meters(self) -> list[Meter]:
        """One for each scheduler, those that compute prompts first."""
        return [scheduler.meter for scheduler in (*self.front.pool, *self.back.pool)]

    def planned(self) -> list[Event]:
        """What happens whatever is sent: nothing, of replicas that are there all the time."""
        return []

    def keep_time(self, schedulers: list[Scheduler], prices: tuple[StepTimes, Modifiers], together: int) -> None:
        """Make the engines of these schedulers, of which so many in a row step together. prices: the times of their
        steps, and what changes those."""
        for first in range(0, len(schedulers), together):
            group = schedulers[first : first + together]
            self.engine_of.update(dict.fromkeys(group, len(self.engines)))
            self.engines.append(_engine(group, *prices))

    def serve(self, incoming: Incoming, jobs: int) -> None:
        """Each engine of a pool serves what it is sent; in several processes, of neighbours."""
        pool = (self.back if incoming.computed else self.front).pool
        engines = list(dict.fromkeys(self.engine_of[scheduler] for scheduler in pool))
        if min(jobs, len(engines)) == 1:
            for engine in engines:
                self.serve_on(engine, incoming)
            return
        from concurrent.futures import ProcessPoolExecutor  # some 10 ms of every start, needed by few

        progress, self.progress = self.progress, None
        shares = [share.tolist() for share in np.array_split(engines, min(jobs, len(engines)))]
        with ProcessPoolExecutor(len(shares)) as executor:
            for share, served in zip(shares, executor.map(partial(_serve_elsewhere, self, incoming), shares)):
                self.records.merge(served.records)
                self.events += served.events
                for scheduler, meter in zip(self.schedulers(share), served.meters):
                    scheduler.meter = meter
                self.done += served.done
                if progress is not None:
                    progress(self.done)
        self.progress = progress

    def count(self, request: int, time: float, finished: bool) -> None:
        """A request is done: what is left to say to the clients of engines that nothing connects."""
        self.done += 1
        if self.progress is not None and self.done % 64 == 0:
            self.progress(self.done)

    def schedulers(self, engines: list[int]) -> list[Scheduler]:
        """Those of some engines, in order."""
        return [scheduler for scheduler, engine in self.engine_of.items() if engine in engines]

    def serve_on(self, engine: int, incoming: Incoming) -> npt.NDArray[np.int64]:
        """One engine serves its turns of what comes to its pool, to the end: gives the requests."""
        router = self.back if incoming.computed else self.front
        size = len(router.pool)
        turns = [turn for turn, scheduler in enumerate(router.pool) if self.engine_of[scheduler] == engine]
        each = 1 if incoming.computed else self.records.samples  # all answers of a prompt go to one
        starts = [turn * each + answer for turn in turns for answer in range(each)]
        mine = np.sort(np.concatenate([np.arange(start, len(incoming.requests), size * each) for start in starts]))
        requests: npt.NDArray[np.int64] = incoming.requests[mine]
        times, metering = incoming.times[mine], Metering(self.records, self.metering.fill)
        meters, sent = [router.pool[turn].meter for turn in turns], 0
        at_once = 1 if incoming.computed and router.pool[0].rules.handoff else _BLOCK  # it depends on who decodes
        begin, end = incoming.window or (inf, inf)
        for until, mark in ((begin, metering.begin), (end, metering.end), (inf, None)):
            stop = int(np.searchsorted(times, until))
            while sent < stop:
                block = slice(sent, min(sent + at_once, stop))
                self._send(router, incoming.computed, (mine[block] // each % size, requests[block], times[block]))
                sent = block.stop
                self.engines[engine].advance(float(times[sent]) if sent < stop else until)
            self.engines[engine].advance(until)
            if mark is not None and until < inf:
                mark(until, meters)
        metering.close(meters)
        return requests

    def _send(self, router: Router, computed: bool, what: tuple[npt.NDArray[Any], ...]) -> None:
        """Send requests, in order of time; ``what``: to which scheduler of a pool each goes, the request, and when."""
        turns, requests, times = what
        scheduler = router.pool[turns[0]]
        if not self.back.pool and np.all(turns == turns[0]):
            prompt, output = (np.asarray(of)[requests] for of in (self.records.prompt, self.records.output))
            if not scheduler.rules.refusal(int(np.max(prompt)), int(np.max(prompt + output))):  # none is refused
                scheduler.queue.submit_all(requests.tolist(), times.tolist())
                return
        for turn, request, time in zip(turns.tolist(), requests.tolist(), times.tolist()):
            if self.back.pool:
                router.home[request] = turn
            scheduler = router.pool[turn]
            if computed:
                self.receive(scheduler, request, time)
            else:
                scheduler.submit(request, time)

    def receive(self, scheduler: Scheduler, request: int, time: float) -> None:
        """The cache of a request has come: it waits for so many steps of those that decode there now; ranks that step
        together take those of the fullest.
        """
        steps, engine = scheduler.rules.handoff, self.engines[self.engine_of[scheduler]]
        if steps:
            together = engine.ranks.schedulers if isinstance(engine, Pipeline) else [scheduler]
            fullest = max(together, key=lambda one: one.decodes.size)
            lane = fullest.decodes
            context = lane.context / lane.size if lane.size else float(self.records.prompt[request])
            time += steps * engine.price_of(fullest).decode(max(lane.size, 1), context)
        scheduler.receive(request, time)
