"""Several engines behind a router, and pools that compute prompts apart from decoding; the clock they share."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

import numpy as np

from inferplan.devices.hardware import Link
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.memory import Footprint
from inferplan.serving.admission import Rules
from inferplan.serving.pipeline import Pipeline
from inferplan.serving.prefix_cache import PrefixCache
from inferplan.serving.records import Meter, Metering, Records
from inferplan.serving.replica import Replica
from inferplan.serving.rounds import coupled_ranks
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.step_times import StepTimes
from inferplan.traffic.requests import ClosedLoop
from inferplan.units import Num

Routing = Literal["round-robin", "least-loaded", "prefix-aware"]
"""round-robin: one after another. least-loaded: fewest requests in the engine. prefix-aware: fewest prompt tokens to
compute before and with the request, those found in the engine's prefix cache not counted."""
_BEGIN, _END = -1, -2
"""Events that are no request: the meters begin to count, and stop."""
_MOMENT = 1e-9
"""Seconds by which engines pass an event, so that rounding cannot keep it ahead of them."""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """How many engines there are and how requests find one.

    prefill, decode: with both, that many replicas compute prompts and that many decode; the cache of a request moves
    over ``kv_link``, a link of the hardware by name. Without, all ``--replicas`` do both.
    """

    routing: Routing = "round-robin"
    prefill: int = 0
    decode: int = 0
    kv_link: str | None = None

    def __post_init__(self) -> None:
        if (self.prefill > 0) != (self.decode > 0) or self.prefill < 0:
            raise UsageError("disaggregated pools need at least one prefill and one decode replica")

    @property
    def disaggregated(self) -> bool:
        return self.prefill > 0

    def engines(self, deployment: Deployment) -> int:
        """Engines that requests are spread over: replicas times attention data-parallel ranks."""
        replicas = self.prefill + self.decode if self.disaggregated else deployment.parallel.replicas
        return replicas * deployment.parallel.dp


def find_link(deployment: Deployment, name: str | None) -> Link:
    """The one link of the hardware whose name begins so; the widest of all for ``None``. Raises ``UsageError``."""
    links = deployment.hardware.links
    if name is None:
        return deployment.hardware.link(2**31)
    chosen = [link for link in links if link.name.lower().startswith(name.lower())]
    if len(chosen) != 1:
        known = ", ".join(link.name for link in links) or "none"
        raise UsageError(f"{deployment.hardware.name} has no link named {name!r}", hint=f"--kv-link one of: {known}")
    return chosen[0]


def transfer_time(deployment: Deployment, link: Link, tokens: Num) -> Num:
    """Seconds to move the cache of ``tokens``: every rank sends its share over its own link, ``bytes/bandwidth``."""
    footprint = Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0)
    largest: Num = np.maximum.reduce([np.asarray(stage.state(tokens)) for stage in footprint.stages])
    seconds = largest / link.bandwidth
    return seconds if np.ndim(tokens) else float(seconds)


class Cluster:
    """The engines of a run and the events between them."""

    def __init__(
        self,
        fleet: Fleet,
        records: Records,
        closed: ClosedLoop | None,
        turns: int = 1,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.fleet, self.records, self.closed, self.turns, self.progress = fleet, records, closed, turns, progress
        self.engines: list[Replica | Pipeline] = []
        """What keeps time: each runs on its own."""
        self.front: list[Scheduler] = []
        """Who takes new requests."""
        self.back: list[Scheduler] = []
        """Who only decodes, where pools are apart."""
        self.events: list[tuple[float, int, bool]] = []
        """Heap of (time, request, whether it is its cache that arrives)."""
        self.next_request = self.limit = self.done = 0
        self.turns_taken = {False: 0, True: 0}
        """Requests sent so far in turn to the front (false), and to the back."""
        self.home: dict[int, int] = {}
        """Which scheduler of the front has a request, where its cache leaves from there."""
        self.link_free: list[float] = []
        """When the link of each scheduler of the front has sent what it was given."""
        self.moves: dict[int, float] = {}
        """Seconds to move the cache of a prompt, by its tokens, where pools are apart."""
        self.metering = Metering(records, 0)

    def build(
        self, deployment: Deployment, times: StepTimes, rules: Rules, cache: Callable[[], PrefixCache | None]
    ) -> None:
        """Make the engines of a deployment."""
        fleet, parallel = self.fleet, deployment.parallel
        together = coupled_ranks(deployment)

        def pool(ranks: int, rules: Rules, cache: Callable[[], PrefixCache | None]) -> list[Scheduler]:
            made = [
                Scheduler(rules, self.records, self.notify, cache(), times.width, parallel.pp) for _ in range(ranks)
            ]
            for first in range(0, ranks, together):
                group = made[first : first + together]
                plain = len(group) == parallel.pp == 1
                self.engines.append(Replica(times, group[0]) if plain else Pipeline(times, group))
            return made

        if not fleet.disaggregated:
            self.front = pool(fleet.engines(deployment), rules, cache)
        else:
            link = find_link(deployment, fleet.kv_link)
            lengths = np.unique(np.asarray(self.records.prompt, dtype=np.float64))
            seconds = np.broadcast_to(transfer_time(deployment, link, lengths), lengths.shape)
            self.moves = dict(zip(map(int, lengths), map(float, seconds)))
            prompts_only = replace(rules, scheduler=rules.scheduler.model_copy(update={"admission": "prompt"}))
            self.front = pool(fleet.prefill * parallel.dp, prompts_only, cache)
            self.back = pool(fleet.decode * parallel.dp, rules, lambda: None)
            self.link_free = [0.0] * len(self.front)
            for scheduler in self.front:
                scheduler.handoff = True
        for engine in self.engines:
            engine.reactive = not self._one_way

    @property
    def _one_way(self) -> bool:
        """Nothing that an engine does changes what another is sent, but for the caches that go from front to back."""
        single = len(self.front) == 1 and len(self.back) <= 1
        return self.closed is None and (single or self.fleet.routing == "round-robin")

    @property
    def meters(self) -> list[Meter]:
        """One for each scheduler, those that compute prompts first."""
        return [scheduler.meter for scheduler in (*self.front, *self.back)]

    def run(self, warmup: int = 0, fill: int = 0) -> list[Meter]:
        """Send every request and run until all is quiet.

        In a closed loop the first ``warmup`` requests are waited for before the rest is sent, and leave no trace in the
        meters; ``fill`` requests are sent and not waited for, and the meters begin after them.
        """
        total = len(self.records.prompt)
        self.metering = Metering(self.records, warmup + fill if fill else 0)
        if self.closed is not None and 0 < warmup < total:
            self._phase(0, warmup)
            now = max(engine.clock for engine in self.engines)
            del self.records.gaps[:], self.records.gap_weights[:]
            for engine in self.engines:
                engine.restart(now)
            for meter in self.meters:
                meter.timeline = None if meter.timeline is None else []
            self._phase(warmup, total)
        else:
            self._phase(0, total)
        self.metering.close(self.meters)
        return self.meters

    def _phase(self, start: int, stop: int) -> None:
        """Send requests ``start`` to ``stop`` and run until all is quiet."""
        arrival, alone, ramp = self.records.arrival, len(self.front) == 1 and not self.back, 0.0
        if self.closed is not None:
            users = min(self.closed.concurrency, stop - start)
            ramp = 0.0 if self.closed.burst else self.closed.ramp
            now = max(engine.clock for engine in self.engines)
            self.next_request, self.limit = start + users, stop
            self.events = [(now + ramp * user / users, start + user, False) for user in range(users)]
        elif self._one_way:
            self._run_one_way(start, stop)
            return
        else:
            self.events = [(arrival[request], request, False) for request in range(start, stop)]
            if self.metering.fill:
                self.events += [(arrival[self.metering.fill], _BEGIN, False), (arrival[stop - 1], _END, False)]
        heapq.heapify(self.events)
        if alone and not ramp:  # with a ramp, an arrival submitted early would overtake those before it
            self._run_alone()
        else:
            self._run_together()

    def _run_alone(self) -> None:
        """One engine: an arrival is submitted as soon as it is known."""
        engine, events = self.engines[0], self.events
        while True:
            while events:
                self._deliver(*heapq.heappop(events))
            engine.advance(inf)
            if not events:
                return

    def _run_one_way(self, start: int, stop: int) -> None:
        """Every arrival is known ahead: the front runs to its end, then the back with the caches that it was sent."""
        arrival = self.records.arrival
        fill = self.metering.fill
        begin, end = (arrival[fill], arrival[stop - 1]) if fill else (inf, inf)
        self._feed(self.front, [(arrival[request], request, False) for request in range(start, stop)], (begin, end))
        caches, self.events = sorted(self.events), []
        self._feed(self.back, caches, (begin, end))

    def _feed(self, pool: list[Scheduler], events: list[tuple[float, int, bool]], metered: tuple[float, float]) -> None:
        """Deliver events in order of time, and run to their end; the meters of ``pool`` count between two times."""
        sent = 0
        for mark, until in ((_BEGIN, metered[0]), (_END, metered[1]), (0, inf)):
            while sent < len(events) and events[sent][0] < until:
                self._deliver(*events[sent])
                sent += 1
            for engine in self.engines:
                engine.advance(until)
            if until < inf:
                self._mark(mark, until, pool)

    def _mark(self, mark: int, time: float, pool: list[Scheduler]) -> None:
        """The meters of ``pool`` begin to count, or stop."""
        act = self.metering.begin if mark == _BEGIN else self.metering.end
        act(time, [scheduler.meter for scheduler in pool])

    def _run_together(self) -> None:
        """Several engines: each advances to the next event that it depends on, or that others may, and no further."""
        engines, events = self.engines, self.events
        due = [engine.earliest() for engine in engines]
        while True:
            first, coming = min(due), events[0][0] if events else inf
            if coming == first == inf:
                return
            if coming <= first:
                for engine in engines:
                    engine.advance(coming)
                while events and events[0][0] <= coming:
                    self._deliver(*heapq.heappop(events))
                due = [engine.earliest() for engine in engines]
            else:
                index = due.index(first)
                engines[index].advance(first * (1 + 1e-12) + _MOMENT)
                due[index] = engines[index].earliest()

    def _deliver(self, time: float, request: int, cached: bool) -> None:
        if request < 0:
            self._mark(request, time, [*self.front, *self.back])
            return
        if self.closed is not None and request == self.metering.fill > 0 and not cached:
            self._mark(_BEGIN, time, [*self.front, *self.back])
        pool = self.back if cached else self.front
        index = self._route(pool, request)
        if cached:
            pool[index].receive(request, time)
            return
        self.records.arrival[request] = time
        if self.back:
            self.home[request] = index
        pool[index].submit(request, time)

    def _route(self, pool: list[Scheduler], request: int) -> int:
        """Which of ``pool`` gets a request."""
        if len(pool) == 1:
            return 0
        if self.fleet.routing == "round-robin":
            turn = self.turns_taken[pool is self.back]
            self.turns_taken[pool is self.back] = turn + 1
            return turn % len(pool)
        if self.fleet.routing == "least-loaded":
            return min(range(len(pool)), key=lambda index: (pool[index].queue.outstanding, index))
        return min(
            range(len(pool)), key=lambda index: (self._work_ahead(pool[index], request), pool[index].queue.outstanding)
        )

    def _work_ahead(self, scheduler: Scheduler, request: int) -> int:
        """Prompt tokens to compute before a request and with it."""
        prompt, hashes = self.records.prompt[request], self.records.hashes
        if scheduler.cache is None or hashes is None:
            return scheduler.queue.queued_tokens + prompt
        device, host = scheduler.cache.match(hashes[request], prompt)
        return scheduler.queue.queued_tokens + prompt - (device + host) * scheduler.cache.block

    def notify(self, request: int, time: float, finished: bool) -> None:
        """A client has seen the end of a request, or its prompt is done and its cache can leave."""
        if not finished:
            home = self.home.pop(request)
            self.front[home].meter.wait("link", max(self.link_free[home] - time, 0.0))
            self.link_free[home] = max(time, self.link_free[home]) + self.moves[self.records.prompt[request]]
            heapq.heappush(self.events, (self.link_free[home], request, True))
            return
        self.done += 1
        if self.progress is not None and self.done % 64 == 0:
            self.progress(self.done)
        if self.closed is None:
            return
        if self.turns > 1:
            following = request + self.closed.concurrency
        else:
            following = self.next_request
            self.next_request += 1
        if following < self.limit:
            heapq.heappush(self.events, (time, following, False))
            self.engines[0].pause = True
        elif self.limit > self.metering.fill > 0 and not self.metering.ended:
            self._mark(_END, time, [*self.front, *self.back])
