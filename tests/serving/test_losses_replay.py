"""Replicas that are taken away or fail, against a replay that knows only queues: every finish, every life.

A replica with one place is a server of constant time. The replay is written from docs/day.md ("Spot") and
docs/failures.md, with lists and a heap; of the simulator it knows the order in which lives are drawn.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import inf

import numpy as np
import pytest

from inferplan.serving.autoscaling import Losses, Schedule
from inferplan.serving.failures import Failure, Failures
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.outages import Outages
from inferplan.serving.simulator import simulate
from tests.cases import for_each
from tests.serving.conftest import deployment
from tests.serving.test_elastic import ONE_AT_A_TIME, same

COLD = 30.0


@dataclass
class Server:
    """One replica: when it was ordered, is ready, takes no more, is gone; its requests, the first being served."""

    ordered: float
    ready: float
    left: float = inf
    gone: float = inf
    queue: list[int] = field(default_factory=list)
    resent: int = 0
    run: int = 0


class Replay:
    """Requests at given times on servers that are lost; each goes to the ready one with the fewest requests."""

    def __init__(self, arrivals: list[float], service: float, replicas: int) -> None:
        self.service, self.finish = service, [inf] * len(arrivals)
        self.servers = [Server(0.0, 0.0) for _ in range(replicas)]
        self.waiting: list[int] = []
        self.events: list[tuple[float, int, str, int, int]] = []
        self.count = 0
        for request, time in enumerate(arrivals):
            self.plan(time, "sent", request)

    def plan(self, time: float, what: str, whom: int, run: int = 0) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, what, whom, run))

    def order(self, time: float) -> Server:
        self.servers.append(Server(time, time + COLD))
        self.plan(time + COLD, "ready", len(self.servers) - 1)
        return self.servers[-1]

    def send(self, request: int, time: float) -> None:
        there = [(len(one.queue), place) for place, one in enumerate(self.servers) if one.ready <= time < one.left]
        if not there:
            self.waiting.append(request)
            return
        place = min(there)[1]
        self.servers[place].queue.append(request)
        if len(self.servers[place].queue) == 1:
            self.begin(place, time)

    def begin(self, place: int, time: float) -> None:
        self.plan(time + self.service, "done", place, self.servers[place].run)

    def leave(self, place: int, time: float) -> None:
        self.servers[place].left = time

    def cut(self, place: int, time: float) -> None:
        """All that it has begins anew elsewhere."""
        server = self.servers[place]
        lost, server.queue, server.gone, server.resent = server.queue, [], time, len(server.queue)
        server.run += 1  # what it was doing is never done
        for request in sorted(lost):
            self.send(request, time)

    def step(self, event: tuple[float, int, str, int, int]) -> None:
        time, _, what, whom, run = event
        if what == "sent":
            self.send(whom, time)
        elif what == "ready":
            waiting, self.waiting = sorted(self.waiting), []  # by when they were first sent
            for request in waiting:
                self.send(request, time)
        elif what == "done" and self.servers[whom].run == run:
            server = self.servers[whom]
            self.finish[server.queue.pop(0)] = time
            if server.queue:
                self.begin(whom, time)

    def go(self) -> None:
        while self.events:
            self.step(heapq.heappop(self.events))


class SpotReplay(Replay):
    """Each server is told that it will be taken away after an exponential life, and is, ``notice`` later."""

    def __init__(self, arrivals: list[float], service: float, replicas: int, losses: Losses) -> None:
        super().__init__(arrivals, service, replicas)
        self.losses, self.last, self.fates = losses, max(arrivals), np.random.default_rng(losses.seed)
        for place in range(replicas):
            self.doom(place, 0.0)

    def doom(self, place: int, time: float) -> None:
        told = time + float(self.fates.exponential(1 / self.losses.rate))
        if told < self.last:
            self.plan(told, "told", place)

    def step(self, event: tuple[float, int, str, int, int]) -> None:
        time, _, what, whom, _ = event
        if what == "told":
            self.leave(whom, time)
            self.order(time)
            self.doom(len(self.servers) - 1, time)
            self.plan(time + self.losses.notice, "taken", whom)
        elif what == "taken":
            self.cut(whom, time)
        else:
            super().step(event)


class FailureReplay(Replay):
    """The first servers fail at a time, and others are ordered at once."""

    def __init__(self, arrivals: list[float], service: float, replicas: int, at: float, lost: int) -> None:
        super().__init__(arrivals, service, replicas)
        self.lost = lost
        self.plan(at, "fail", 0)

    def step(self, event: tuple[float, int, str, int, int]) -> None:
        time, _, what, _, _ = event
        if what == "fail":
            for place in range(self.lost):
                self.leave(place, time)
            for _ in range(self.lost):
                self.order(time)
            anew = []
            for place in range(self.lost):
                server = self.servers[place]
                anew += server.queue
                server.queue, server.gone, server.resent, server.run = [], time, len(server.queue), server.run + 1
            for request in sorted(anew):
                self.send(request, time)
        else:
            super().step(event)


@pytest.fixture(scope="module")
def service() -> float:
    finish = np.asarray(simulate(deployment(), same(np.zeros(10)), ONE_AT_A_TIME).records.finish)
    return float(np.diff(finish)[0])


def poisson(seed: int, count: int, rate: float) -> list[float]:
    found: list[float] = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count)).tolist()
    return found


@for_each(("seed", "notice"), [(seed, notice) for seed in range(4) for notice in (0.0, 0.4, 20.0)])
def test_spot_is_that_of_a_replay(service: float, seed: int, notice: float) -> None:
    """Three replicas at a load of 0.7 of them, each told after 30 s on average: a dozen or more are taken away."""
    arrivals = poisson(seed, 2500, 0.7 * 3 / service)
    losses = Losses(rate=1 / 30, notice=notice, seed=seed)
    fleet = Fleet(routing="least-loaded", scaling=Schedule(changes=((0.0, 3),), cold_start=COLD), losses=losses)
    found = simulate(deployment(), same(arrivals), ONE_AT_A_TIME, Options(fleet=fleet))
    replay = SpotReplay(arrivals, service, 3, losses)
    replay.go()
    assert np.asarray(found.records.finish) == pytest.approx(np.array(replay.finish), rel=1e-9)
    assert [life.ordered for life in found.lives] == pytest.approx([one.ordered for one in replay.servers])
    assert [life.left for life in found.lives] == pytest.approx([one.left for one in replay.servers])
    assert [life.resent for life in found.lives] == [one.resent for one in replay.servers]
    assert sum(life.taken for life in found.lives) > 10
    assert notice == 20.0 or sum(life.resent for life in found.lives) > 10


@for_each("seed", range(3))
def test_a_loss_that_a_fleet_survives_is_that_of_a_replay(service: float, seed: int) -> None:
    """Two of five at 0.5 of their load: what those see that arrive until the two are back, as `--survive` asks."""
    arrivals, at = poisson(seed, 1200, 0.5 * 5 / service), 20.0
    fleet = Fleet(
        routing="least-loaded",
        scaling=Schedule(changes=((0.0, 5),), cold_start=COLD),
        failures=Failures(at=(Failure(at=at, replicas=2),)),
    )
    seen = Outages(simulate(deployment(), same(arrivals), ONE_AT_A_TIME, Options(fleet=fleet)))
    replay = FailureReplay(arrivals, service, 5, at, 2)
    replay.go()
    came, finish = np.array(arrivals), np.array(replay.finish)
    meanwhile = (came >= at) & (came < at + COLD)
    mine = (seen.arrival >= at) & (seen.arrival < at + COLD)
    assert seen.latencies["e2el"][mine] == pytest.approx((finish - came)[meanwhile], rel=1e-9)
    assert int(np.sum(meanwhile)) > 100
