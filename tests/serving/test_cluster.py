"""Routers see their engines as they are when a request comes; engines apart are the same in any number of processes."""

from __future__ import annotations

import concurrent.futures
import json
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from math import inf
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.serving.cluster_run import Ahead
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.pipeline import Pipeline
from inferplan.serving.replica import Replica
from inferplan.serving.result import SimulationResult
from inferplan.serving.routing import Router, Routing
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import ClosedLoop, OpenLoop, SharedPrefix, Traffic, parse_lengths
from inferplan.work.parallel import Parallelism
from tests.cases import for_each

Homes = dict[tuple[int, int], int]
"""Scheduler by (size of its pool, request)."""

_WAYS: tuple[Routing, ...] = ("round-robin", "least-loaded", "prefix-aware")


def served(**parallel: int) -> Deployment:
    return assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", parallel=Parallelism(**parallel)))


def traffic(rate: float, count: int = 400, **more: SharedPrefix) -> Traffic:
    lengths = {"prompt": parse_lengths("lognormal:1024:0.8"), "output": parse_lengths("lognormal:64:0.8")}
    return Traffic(arrivals=OpenLoop(rate=rate), requests_count=count, **lengths, **more)


def routed(
    monkeypatch: pytest.MonkeyPatch, run: Traffic, fleet: Fleet, replicas: int
) -> tuple[SimulationResult, Homes]:
    """A run, and where its router sent each request."""
    homes: Homes = {}
    send = Router.send

    def noted(router: Router, request: int, time: float) -> int:
        homes[len(router.pool), request] = send(router, request, time)
        return homes[len(router.pool), request]

    monkeypatch.setattr(Router, "send", noted)
    return simulate(served(replicas=replicas), run, None, Options(fleet=fleet)), homes


@for_each("routing", ["least-loaded", "cache-aware"])
def test_the_least_loaded_engine_is_that_of_the_records(routing: Routing) -> None:
    """Requests that came before and have not finished, counted from the times of the whole run."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        run, homes = routed(monkeypatch, traffic(60.0), Fleet(routing=routing), 5)
    arrival, finish = np.asarray(run.records.arrival), np.asarray(run.records.finish)
    home = np.array([homes[5, request] for request in range(len(arrival))])
    loads = []
    for request, time in enumerate(arrival):
        there = finish[:request] > time
        loads.append(np.bincount(home[:request][there], minlength=5))
        assert home[request] == int(np.argmin(loads[-1])), request
    assert np.max(loads) > 5  # there was something to choose


def test_prefix_aware_without_prefixes_is_the_shortest_queue_of_the_records() -> None:
    """Prompt tokens sent before and not admitted yet, then requests that have not finished."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        run, homes = routed(monkeypatch, traffic(100.0), Fleet(routing="prefix-aware"), 3)
    records, chosen = run.records, [homes[3, request] for request in range(400)]
    waited = 0
    for request, time in enumerate(records.arrival):
        ahead = [[0, 0, index] for index in range(3)]
        for before in range(request):
            if not records.admitted[before] < time:
                ahead[chosen[before]][0] += records.prompt[before]
            if records.finish[before] > time:
                ahead[chosen[before]][1] += 1
        assert chosen[request] == min(ahead)[2], request
        waited += min(ahead)[0] > 0
    assert waited > 20


@for_each(
    "loads, found, chosen",
    [
        ((10, 5, 0), (310, 0, 0), 0),  # 0.31 of the prompt is more than 0.3
        ((10, 5, 0), (300, 0, 0), 2),  # no more than 0.3: the idle one
        ((10, 5, 0), (310, 320, 0), 1),
        ((10, 5, 0), (400, 400, 0), 1),  # as much in both: the one with fewer requests
        ((7, 7, 7), (0, 0, 0), 0),
        ((64, 5, 0), (900, 0, 0), 0),  # 64 requests apart are not more than 64
        ((65, 5, 0), (900, 0, 0), 2),  # 65 are
        ((202, 140, 135), (900, 0, 0), 0),  # 67 apart, but 202 is no more than 1.5 x 135 = 202.5
        ((203, 140, 135), (900, 0, 0), 2),
        ((90, 5, None), (900, 0, 0), 1),  # the third takes no requests
        ((9, 5, None), (0, 0, 900), 1),
    ],
)
def test_cache_aware_routing_by_hand(loads: tuple[int | None, ...], found: tuple[int, ...], chosen: int) -> None:
    """Prompts of 1,000 tokens, by the rule and the defaults of the SGLang gateway."""
    pool: Any = [
        SimpleNamespace(
            cache=SimpleNamespace(block=10, match=lambda names, tokens, of=of: (of // 10 - 2, 2 if of else 0)),
            admitted=SimpleNamespace(hashes=[(1, 2, 3)]),
        )
        for of in found
    ]
    for one, of in zip(pool, found):
        if not of:
            one.cache.match = lambda names, tokens: (0, 0)
    records: Any = SimpleNamespace(prompt=[1000], hashes=[(1, 2, 3)], samples=1, follows=None)
    router = Router("cache-aware", pool, records)
    for index, load in enumerate(loads):
        if load is None:
            router.close(range(index, index + 1))
        router.loads[index] = load or 0
    assert router.send(0, 0.0) == chosen


def test_a_shared_prefix_draws_requests_to_where_it_is() -> None:
    # one text of 512 tokens each for eight groups of users: an engine computes it once, and then less than others
    run = traffic(20.0, prefix=SharedPrefix(tokens=512, distinct=8))
    aware, turns = (
        simulate(served(replicas=4), run, None, Options(fleet=Fleet(routing=way)))
        for way in ("prefix-aware", "round-robin")
    )
    assert aware.hit_rate > turns.hit_rate


def test_engines_that_go_step_by_step_in_order_of_time_agree() -> None:
    """An engine is not asked how long it can go on alone: the one that is behind makes its next step.

    Runs of steps are priced at their mean context, in tables of lines between knots, so times agree to 1e-5 only.
    """
    lengths = {"prompt": parse_lengths("lognormal:1024:0.8"), "output": parse_lengths("lognormal:64:0.8")}
    users = Traffic(arrivals=ClosedLoop(concurrency=30, burst=False, ramp=1.0), requests_count=200, **lengths)
    stages = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", parallel=Parallelism(pp=2, replicas=3)))
    cases = [(served(replicas=3), way, Fleet(routing=name)) for way in (users, traffic(60.0, 200)) for name in _WAYS]
    cases += [(served(), users, Fleet(routing=name, prefill=2, decode=3)) for name in _WAYS]
    cases += [(served(), traffic(30.0, 200), Fleet(routing="least-loaded", prefill=2, decode=3))]
    cases += [(stages, traffic(40.0, 200), Fleet(routing="least-loaded"))]

    def behind(engine: Replica | Pipeline) -> float:
        if isinstance(engine, Replica):
            queue, clients = engine.scheduler.queue, engine.scheduler.clients
            busy = engine.scheduler.decodes.size or queue.waiting or engine.scheduler.partial is not None
            arrival = queue.inbox[0][0] if queue.inbox else inf
            return engine.clock if busy or clients.unseen else max(engine.clock, arrival)
        if engine.waits:
            return max(engine.clock, engine.flying[0].back)
        busy = engine.flying or engine.ranks.busy or engine.ranks.unseen
        return engine.clock if busy else max(engine.clock, engine.ranks.next_arrival())

    for deployment, run, fleet in cases:
        with pytest.MonkeyPatch.context() as monkeypatch:
            jumping = simulate(deployment, run, None, Options(fleet=fleet))
            for kind in (Replica, Pipeline):
                monkeypatch.setattr(kind, "earliest", behind)
            stepping = simulate(deployment, run, None, Options(fleet=fleet))
        for name in ("arrival", "first", "finish"):
            times = (getattr(way.records, name) for way in (stepping, jumping))
            assert next(times) == pytest.approx(next(times), rel=1e-5), (name, fleet)


def test_answers_bring_the_next_requests_in_order_of_time() -> None:
    users = Traffic(
        arrivals=ClosedLoop(concurrency=12), prompt=parse_lengths("512"), output=parse_lengths("lognormal:32:0.8")
    )
    for way in _WAYS:
        run = simulate(served(replicas=3), users, None, Options(fleet=Fleet(routing=way)))
        finish = np.sort(run.records.finish)
        assert run.arrival[12:].tolist() == finish[: len(finish) - 12].tolist()


@for_each("fleet", [Fleet(), Fleet(prefill=2, decode=3)])
def test_any_number_of_processes_gives_the_same_figures(fleet: Fleet) -> None:
    run = traffic(40.0, prefix=SharedPrefix(tokens=256, distinct=20))
    seen: list[int] = []
    one, two = (
        simulate(served(replicas=1 if fleet.prefill else 3), run, None, Options(fleet=fleet, jobs=jobs, progress=watch))
        for jobs, watch in ((1, None), (2, seen.append))
    )
    assert json.dumps(one.to_dict()) == json.dumps(two.to_dict())
    for name in ("arrival", "admitted", "first", "finish", "status", "gaps", "gap_weights", "cached"):
        assert getattr(one.records, name) == getattr(two.records, name), name
    assert seen[-1] == 400


def test_runs_in_two_threads_each_divide_their_own_work(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Barrier(2)

    class Together(ProcessPoolExecutor):
        """No process begins before both runs have prepared theirs."""

        def __init__(self, *args: Any, **named: Any) -> None:
            both.wait(timeout=60)
            super().__init__(*args, **named)

    runs, deployment = (traffic(20.0, 60), traffic(40.0, 90)), served(replicas=2)
    alone = [simulate(deployment, run).records.finish for run in runs]
    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", Together)
    with ThreadPoolExecutor(2) as threads:
        results = threads.map(lambda run: simulate(deployment, run, None, Options(jobs=2)), runs)
        assert [result.records.finish for result in results] == alone


def test_a_watcher_that_stops_a_divided_run_is_not_taken_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    watchers: list[Any] = []
    run = Ahead.run

    def watched(ahead: Ahead, *args: Any) -> None:
        try:
            run(ahead, *args)
        finally:
            watchers.append(ahead.cluster.progress)

    def stop(done: int) -> None:
        raise InterruptedError

    monkeypatch.setattr(Ahead, "run", watched)
    with pytest.raises(InterruptedError):
        simulate(served(replicas=2), traffic(20.0, 60), None, Options(jobs=2, progress=stop))
    assert watchers == [stop]


@for_each(
    ("routing", "arrivals", "turns", "because"),
    [
        ("least-loaded", OpenLoop(rate=4.0), 1, "least-loaded routing looks at all"),
        ("prefix-aware", OpenLoop(rate=4.0), 1, "prefix-aware routing looks at all"),
        ("round-robin", ClosedLoop(concurrency=4), 1, "follow answers"),
        ("sticky", OpenLoop(rate=4.0), 2, "follow answers"),
    ],
)
def test_processes_for_replicas_that_something_connects_are_refused(
    routing: Routing, arrivals: OpenLoop | ClosedLoop, turns: int, because: str
) -> None:
    load = replace(traffic(4.0, 40, prefix=SharedPrefix(turns=turns)), arrivals=arrivals)
    with pytest.raises(UsageError, match="--jobs 8 cannot divide") as refused:
        simulate(served(replicas=3), load, None, Options(fleet=Fleet(routing=routing), jobs=8))
    assert because in str(refused.value.because)


def test_no_processes_are_refused() -> None:
    with pytest.raises(UsageError, match="--jobs must be 1 or more, not 0"):
        Options(jobs=0)


def test_arrivals_that_are_not_in_order_are_served_in_order() -> None:
    requests = traffic(5.0, 40).requests()
    assert requests.arrival is not None
    turned = type(requests)(prompt=requests.prompt[::-1], output=requests.output[::-1], arrival=requests.arrival[::-1])
    plain, other = (simulate(served(), each) for each in (requests, turned))
    assert other.records.finish.tolist() == plain.records.finish.tolist()[::-1]
    assert max(plain.records.finish) < inf


def test_an_engine_shares_requests_out_over_its_own_ranks() -> None:
    """Two replicas in turn, of two ranks each: even shares first, then fewest prompt tokens (TensorRT-LLM)."""
    records = SimpleNamespace(samples=1, prompt=[100, 90, 50, 60, 70, 80, 90], follows=None)
    router = Router("round-robin", [None] * 4, records, shared=2)  # type: ignore[list-item, arg-type]
    assert [router.send(request, 0.0) for request in range(4)] == [0, 2, 1, 3]
    router.leave(0, 1.0)
    assert router.send(4, 1.0) == 0  # the rank that lost one
    assert router.send(5, 1.0) == 3  # both have one: 60 tokens are fewer than 90
    router.leave(2, 2.0)
    router.leave(4, 2.5)
    assert router.send(6, 2.2) == 1  # the other one is still there
    long = SimpleNamespace(samples=1, prompt=[1000, 10, 10, 5], follows=None)
    one = Router("round-robin", [None] * 2, long, shared=2)  # type: ignore[list-item, arg-type]
    assert [one.send(request, 0.0) for request in range(4)] == [0, 1, 1, 0]  # two are rank 1's even share


@for_each("routing", ["round-robin", "least-loaded"])
@for_each("loop", [OpenLoop(rate=6.0), ClosedLoop(concurrency=12)])
def test_answers_of_a_prompt_are_of_one_replica(routing: Routing, loop: OpenLoop | ClosedLoop) -> None:
    """Three answers of 1024 tokens: two find all of the prompt but its last page, whatever the replicas are."""
    lengths = {"prompt": parse_lengths("1024"), "output": parse_lengths("32")}
    asked = Traffic(arrivals=loop, requests_count=60, samples=3, **lengths)
    run = simulate(served(replicas=3), asked, options=Options(fleet=Fleet(routing=routing)))
    assert run.hit_rate == pytest.approx(2 / 3 * 1008 / 1024, rel=1e-9)
    assert len(run.meters) == 3 and all(meter.prompt_tokens for meter in run.meters)
