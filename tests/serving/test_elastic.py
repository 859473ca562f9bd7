"""Replicas that come and go: the fluid law of a step in the load, constant numbers, the autoscaler's rule by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from inferplan.errors import UsageError
from inferplan.serving.autoscaling import Life, Losses, Reactive, Scaling, Schedule
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.serving.routing import Routing
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import ClosedLoop, OpenLoop, Requests, Traffic, parse_lengths
from tests.cases import for_each
from tests.serving.conftest import deployment

ONE_AT_A_TIME = Flags(max_num_seqs=1)
PROMPT, OUTPUT = 512, 64


def same(arrival: object) -> Requests:
    """Requests of one length at these times."""
    times = np.asarray(arrival, dtype=np.float64)
    return Requests(prompt=np.full(len(times), PROMPT), output=np.full(len(times), OUTPUT), arrival=times)


def run(requests: Requests, scaling: Scaling, routing: Routing = "least-loaded") -> SimulationResult:
    fleet = Fleet(routing=routing, scaling=scaling)
    return simulate(deployment(), requests, ONE_AT_A_TIME, Options(fleet=fleet))


@pytest.fixture(scope="module")
def service() -> float:
    """Seconds that one request takes of a replica with one place: it is a server of constant time."""
    finish = np.asarray(simulate(deployment(), same(np.zeros(10)), ONE_AT_A_TIME).records.finish)
    gaps = np.diff(finish)
    assert gaps == pytest.approx(gaps[0], rel=1e-12)
    return float(gaps[0])


def present(result: SimulationResult, time: float) -> int:
    """Requests that have come and not finished."""
    arrival, finish = np.asarray(result.records.arrival), np.asarray(result.records.finish)
    return int(np.sum(arrival <= time) - np.sum(finish <= time))


@for_each("routing", ["least-loaded", "round-robin"])
def test_a_step_in_the_load_by_the_fluid_law(service: float, routing: Routing) -> None:
    """Load steps from a to b at t0, n replicas of capacity mu, m are ordered: (b - n mu) L wait when they are ready.

    One queue for all then drains in (b - n mu) L/(m mu - b). With a queue each, dealt in turns, the n old ones alone
    have what waits, ``(b - n mu) L/n`` each, and drain at ``mu - b/m``: it takes m/n times as long.
    """
    mu, n, m = 1 / service, 2, 5
    a, b, t0, cold = 1.0 * mu, 4.0 * mu, 400 * service, 400 * service
    arrival = np.concatenate([np.arange(0, t0, 1 / a), np.arange(t0, t0 + 3000 * service, 1 / b)])
    result = run(same(arrival), Schedule(changes=((0.0, n), (t0, m)), cold_start=cold), routing)
    backlog = (b - n * mu) * cold
    assert present(result, t0 + cold) == pytest.approx(backlog, rel=0.01)
    drained = backlog / (m * mu - b) * (1.0 if routing == "least-loaded" else m / n)
    until = t0 + cold + drained
    arrived, finish = np.asarray(result.records.arrival), np.asarray(result.records.finish)
    waited = finish - arrived
    late = arrived[waited > 3 * service]  # the last that came while somebody waited
    assert late.max() == pytest.approx(until, abs=0.01 * drained + 5 * service)
    assert [life.ready for life in result.lives] == [0.0, 0.0, *[t0 + cold] * 3]


def test_a_constant_number_is_the_cluster_to_the_last_bit() -> None:
    recipe = Traffic(
        arrivals=OpenLoop(rate=30.0),
        prompt=parse_lengths("lognormal:512:0.8"),
        output=parse_lengths("64"),
        requests_count=800,
    )
    requests, made = recipe.requests(), deployment()
    fixed = replace(made, parallel=replace(made.parallel, replicas=3))
    unchanging: list[Scaling] = [
        Schedule(changes=((0.0, 3),)),
        Schedule(changes=((0.0, 3),), cold_start=90.0),
        Reactive(target=10.0, first=3, least=3, most=3, cold_start=90.0),
    ]
    for routing in ("round-robin", "least-loaded"):
        plain = simulate(fixed, requests, options=Options(fleet=Fleet(routing=routing)))
        for scaling in unchanging:
            elastic = simulate(made, requests, options=Options(fleet=Fleet(routing=routing, scaling=scaling)))
            for name in ("admitted", "first", "finish"):
                assert np.array_equal(getattr(plain.records, name), getattr(elastic.records, name))
            assert [meter.busy for meter in plain.meters] == [meter.busy for meter in elastic.meters]
            assert elastic.lives == [Life(0.0, 0.0)] * 3


def test_changes_that_change_nothing_are_no_changes() -> None:
    """A timetable of the same number twice is looked at, and is the cluster all the same."""
    recipe = Traffic(
        arrivals=OpenLoop(rate=30.0), prompt=parse_lengths("512"), output=parse_lengths("64"), requests_count=300
    )
    made, requests = deployment(), recipe.requests()
    fixed = replace(made, parallel=replace(made.parallel, replicas=3))
    plain = simulate(fixed, requests, options=Options(fleet=Fleet(routing="least-loaded")))
    looked = simulate(
        made,
        requests,
        options=Options(fleet=Fleet(routing="least-loaded", scaling=Schedule(changes=((0.0, 3), (5.0, 3))))),
    )
    assert np.asarray(looked.records.finish) == pytest.approx(np.asarray(plain.records.finish), rel=1e-6)


def test_replicas_leave_when_nothing_comes_any_more() -> None:
    """Looks go on for 1000 s: the three of the beginning are a wish of time 0, which counts until 90 s."""
    rule = Reactive(target=1.0, first=3, least=1, cold_start=1.0, stabilisation=90.0, until=1000.0)
    lives = run(same([0.0]), rule).lives
    assert [life.left for life in lives] == [inf, 105.0, 105.0]
    busy = run(same([14.9, 14.9, 14.9]), rule).lives  # three at the look at 15 s, which counts until 105 s
    assert [life.left for life in busy] == [inf, 120.0, 120.0]


def test_a_replica_that_leaves_finishes_what_it_has(service: float) -> None:
    """Two replicas with three requests each: the younger leaves in its first, and is gone after three."""
    result = run(same(np.zeros(6)), Schedule(changes=((0.0, 2), (0.5 * service, 1))))
    finish = np.sort(np.asarray(result.records.finish))
    assert finish[-2:] == pytest.approx(finish[:2] + 2 * service, rel=1e-9)
    stays, leaves = result.lives
    assert stays.left == inf
    assert (leaves.left, leaves.gone) == pytest.approx((0.5 * service, finish[-1]), rel=1e-6)


def test_who_leaves_gets_no_more(service: float) -> None:
    """From one replica on, everything queues behind one: ten requests, ten services."""
    result = run(
        same(np.concatenate([[0.0], np.full(10, 10 * service)])), Schedule(changes=((0.0, 2), (5 * service, 1)))
    )
    done = np.sort(np.asarray(result.records.finish))[1:]
    assert done[-1] - done[0] == pytest.approx(9 * service, rel=1e-9)
    assert result.lives[1].gone == pytest.approx(5 * service, rel=1e-9)


def test_from_none_the_first_request_waits_for_a_look_and_a_cold_start(service: float) -> None:
    """A request at 20 s is seen by the look at 30 s; the replica takes it at 30 + 60 s."""
    rule = Reactive(target=4.0, first=0, least=0, cold_start=60.0, stabilisation=120.0)
    alone = simulate(deployment(), same([0.0]), ONE_AT_A_TIME).ttft[0]
    result = run(same([20.0, 1000.0]), rule)
    assert result.ttft[0] == pytest.approx(30.0 + 60.0 - 20.0 + alone, rel=1e-6)
    first, second = result.lives
    assert (first.ordered, first.ready) == (30.0, 90.0)
    # every look from 105 s on wants none, and that of 90 s counts until 210 s
    assert first.left == pytest.approx(225.0)
    assert (second.ordered, second.ready) == (1005.0, 1065.0)
    assert service < 15.0


@for_each(
    ("replicas", "requests", "wanted"),
    [
        (4, 40, 4),  # on the target of 10
        (4, 44, 4),  # ten percent over: within the tolerance
        (4, 45, 5),  # ceil(4 * (45/4)/10)
        (4, 61, 7),
        (2, 200, 6),  # 20 are wanted; the most of twice as many and four more
        (10, 400, 20),  # twice as many
        (0, 1, 1),
        (0, 500, 1),  # from none to one, and on from there
        (4, 500, 8),
    ],
)
def test_the_rule_of_the_autoscaler(replicas: int, requests: int, wanted: int) -> None:
    rule = Reactive(target=10.0, first=1, cold_start=1.0, least=0)
    assert rule.scaler().wanted(15.0, replicas, requests) == wanted


@for_each(
    ("interval", "seen"),
    [
        (5.0, {5: 6, 10: 6, 15: 6, 20: 12, 25: 12, 30: 12, 35: 24, 50: 48, 65: 96, 80: 96}),
        (15.0, {15: 6, 30: 12, 45: 24, 60: 48, 75: 96, 90: 96}),
        (60.0, {60: 6, 120: 12, 180: 24, 240: 48, 300: 96, 360: 96}),
    ],
)
def test_at_most_twice_as_many_or_four_more_in_fifteen_seconds(interval: float, seen: dict[int, int]) -> None:
    """Two replicas where 100 are wanted: 6 and no more until 15 s are over, then 12, ..., however often it looks; 96
    are within the tolerance.
    """
    scaler, replicas, found = Reactive(target=10.0, first=2, cold_start=1.0, interval=interval).scaler(), 2, {}
    for time in np.arange(interval, max(seen) + 1, interval):
        replicas = found[int(time)] = scaler.wanted(float(time), replicas, 1000)
    assert {time: found[time] for time in seen} == seen


def test_what_was_added_and_what_left_in_the_period_counts() -> None:
    """Of 8 three leave, and one comes back 5 s later; 5 s after that at most twice the 8 of the beginning are there."""
    scaler = Reactive(target=10.0, first=8, cold_start=1.0, interval=5.0, stabilisation=0.0).scaler()
    wanted = [
        scaler.wanted(time, *load)
        for time, load in ((5.0, (8, 50)), (10.0, (5, 60)), (15.0, (6, 1000)), (20.0, (16, 1000)))
    ]
    assert wanted == [5, 6, 16, 16]  # at 20 s: 16 - 10 - 1 = 5 were there, of which ten would be the most


def test_fewer_only_when_fewer_were_enough_for_the_window() -> None:
    """Load falls from 80 to 20 at 30 s: a look at 345 s is the first whose last 300 s saw only 20."""
    scaler = Reactive(target=10.0, first=8, cold_start=1.0).scaler()
    seen = {time: scaler.wanted(time, 8, 80 if time <= 30 else 20) for time in range(15, 376, 15)}
    assert {time for time, wanted in seen.items() if wanted == 8} == set(range(15, 331, 15))
    assert seen[345] == 2


def test_an_engine_that_begins_empty_loses_no_replica_at_the_first_look() -> None:
    """15 s after the start of ten there are few requests yet: none leaves before the window is over."""
    scaler = Reactive(target=10.0, first=10, cold_start=1.0).scaler()
    seen = [scaler.wanted(time, 10, 5) for time in range(15, 331, 15)]
    assert seen == [10] * 20 + [1] * 2


def test_a_replica_that_is_taken_away_is_replaced_and_its_request_begins_anew(service: float) -> None:
    """One replica, one request a second that takes 0.29 s; with no notice the one in service at the cut is lost, and is
    done a cold start and a service later: the place of the lost replica is ordered at the notice.
    """
    losses = Losses(rate=1 / 100, notice=0.0, seed=3)
    fleet = Fleet(routing="least-loaded", scaling=Schedule(changes=((0.0, 1),), cold_start=30.0), losses=losses)
    result = simulate(deployment(), same(np.arange(0, 1000, 1.0)), ONE_AT_A_TIME, Options(fleet=fleet))
    assert result.counts["finished"] == 1000
    arrival, finish = np.asarray(result.records.arrival), np.asarray(result.records.finish)
    taken = [life for life in result.lives if life.taken]
    assert 3 <= len(taken) <= 20  # ten are expected
    for life, follower in zip(result.lives, result.lives[1:]):
        assert follower.ordered == life.left
        assert follower.ready == pytest.approx(life.left + 30.0)
        unfinished = int(np.sum((arrival <= life.left) & (finish > life.left)))
        assert life.resent == (unfinished if life.ready < life.left else 0)
    first = result.lives[0]
    waiting = np.flatnonzero((arrival > first.left - service) & (arrival < first.left + 30.0))
    assert finish[waiting[0]] == pytest.approx(first.left + 30.0 + service, rel=1e-6)


def test_a_notice_that_is_long_enough_loses_no_request() -> None:
    """Three replicas, each taken away once in 200 s: 15 in 1000 s; with a minute to finish in nothing begins anew."""
    arrival = np.arange(0, 1000, 0.25)
    counts = []
    for seed in range(20):
        losses = Losses(rate=1 / 200, notice=60.0, seed=seed)
        fleet = Fleet(routing="least-loaded", scaling=Schedule(changes=((0.0, 3),), cold_start=5.0), losses=losses)
        result = simulate(deployment(), same(arrival), ONE_AT_A_TIME, Options(fleet=fleet))
        assert result.counts["finished"] == len(arrival)
        assert sum(life.resent for life in result.lives) == 0
        there = [life for life in result.lives if life.left == inf]
        assert len(there) == 3
        counts.append(sum(life.taken for life in result.lives))
    assert np.mean(counts) == pytest.approx(15.0, abs=5 * np.sqrt(15.0 / 20))


def test_what_cannot_come_and_go() -> None:
    with pytest.raises(UsageError, match="no number of them"):
        Reactive(target=1.0, first=1, least=3, most=2, cold_start=0.0)
    with pytest.raises(UsageError, match="needs a rate of requests"):
        run(same([0.0]).in_loop(ClosedLoop(concurrency=1)), Schedule(changes=((0.0, 1), (1.0, 2))))
