"""Replicas that fail: the fluid law of a backlog, a replay of queues by hand, conservation, what is looked at."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from inferplan.errors import UsageError
from inferplan.serving.autoscaling import Life, Losses, Reactive, Schedule
from inferplan.serving.failures import Failure, FailureMode, Failures, Outage, replicas_on_a_node
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.outages import Outages, anew_late, at_percentile_of, simulate_failures
from inferplan.serving.records import FINISHED, Records
from inferplan.serving.result import SimulationResult
from inferplan.serving.routing import Routing
from inferplan.serving.simulator import simulate
from inferplan.traffic.conversations import parse_think_time
from inferplan.traffic.requests import ClosedLoop, OpenLoop, Requests, SharedPrefix, Slo, Traffic, parse_lengths
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.serving.conftest import deployment

ONE_AT_A_TIME = Flags(max_num_seqs=1)


def same(arrival: object) -> Requests:
    """Requests of one length at these times."""
    times = np.asarray(arrival, dtype=np.float64)
    return Requests(prompt=np.full(len(times), 512), output=np.full(len(times), 64), arrival=times)


def fleet(
    replicas: int,
    *at: float | Failure,
    restart: float,
    mode: FailureMode = "cut",
    routing: Routing = "least-loaded",
    per_node: int | None = None,
) -> Fleet:
    """Replicas of which one fails at each time."""
    failures = tuple(one if isinstance(one, Failure) else Failure(at=one) for one in at)
    return Fleet(
        routing=routing,
        scaling=Schedule(changes=((0.0, replicas),), cold_start=restart),
        failures=Failures(at=failures, mode=mode, per_node=per_node),
    )


def run(
    requests: Requests | Traffic, of: Fleet, flags: Flags | None = ONE_AT_A_TIME, **more: object
) -> SimulationResult:
    return simulate(deployment(), requests, flags, Options(fleet=of, **more))  # type: ignore[arg-type]


def finishes(result: SimulationResult) -> np.ndarray:
    return np.asarray(result.records.finish)


def seconds_of_a_request() -> float:
    """Seconds that one request takes of a replica with one place: it is a server of constant time."""
    gaps = np.diff(np.asarray(simulate(deployment(), same(np.zeros(10)), ONE_AT_A_TIME).records.finish))
    assert gaps == pytest.approx(gaps[0], rel=1e-12)
    return float(gaps[0])


@pytest.fixture(scope="module")
def service() -> float:
    return seconds_of_a_request()


@pytest.mark.parametrize(("routing", "slow"), [("least-loaded", 1.0), ("round-robin", 4 / 3)])
def test_a_backlog_by_the_fluid_law(service: float, routing: Routing, slow: float) -> None:
    """N = 4 replicas of rate mu under a load of 3.5 mu, one lost for L = 400 services: (3.5 - 3) mu L = 200 wait when
    it is back, and are gone after another 200/(4 - 3.5) = 400 services. Dealt in turns the three others alone have what
    waits, 200/3 each, and work it off at mu - 3.5 mu/4: after 533 services.
    """
    mu, whole = 1 / service, 400 * service
    load = 3.5 * mu
    arrival = np.arange(0, 3000 * service, 1 / load)
    seen = Outages(run(same(arrival), fleet(4, whole, restart=whole, routing=routing)))
    (episode,) = seen.episodes
    assert seen.level == pytest.approx(3.5, rel=0.01)
    assert episode.peak - seen.level == pytest.approx((load - 3 * mu) * whole, rel=0.01)
    assert episode.back - episode.at == pytest.approx(whole, rel=1e-9)
    assert episode.over - episode.at == pytest.approx(whole + slow * 200 / (4 - 3.5) * service, rel=0.01)
    assert seen.recovered


def replay(arrival: np.ndarray, service: float, replicas: int, at: list[float], restart: float) -> dict[int, float]:
    """When each request is done by single servers fed in turn, of which the first that is up is lost at each time: what
    it has, begun or not, is dealt anew in order; another takes its place at the end of the round after ``restart``.
    """
    events = [(float(time), 2, request) for request, time in enumerate(arrival)]
    events += [(time, 0, -1) for time in at] + [(time + restart, 1, -1) for time in at]
    servers: list[deque[tuple[int, float]]] = [deque() for _ in range(replicas)]
    taking, turn, done = list(range(replicas)), 0, {}

    def deal(request: int, now: float) -> None:
        nonlocal turn
        queue = servers[taking[turn % len(taking)]]
        turn += 1
        queue.append((request, max(queue[-1][1] if queue else 0.0, now) + service))

    for now, what, request in sorted(events):
        if what == 2:
            deal(request, now)
        elif what == 1:
            servers.append(deque())
            taking.append(len(servers) - 1)
        else:
            lost = taking.pop(0)
            anew = sorted(one for one, end in servers[lost] if end > now)
            servers[lost] = deque((one, end) for one, end in servers[lost] if end <= now)
            for one in anew:
                deal(one, now)
    for queue in servers:
        done.update(queue)
    return done


@for_each("seed", range(6))
def test_every_finish_is_that_of_a_replay(service: float, seed: int) -> None:
    """Poisson arrivals, single servers, four failures at random moments: to the last digit, and who begins anew."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(service / 2.6, 900))
    at = (30 * service + np.cumsum(rng.uniform(12 * service, 60 * service, 4))).tolist()  # two are missing at most
    result = run(same(arrival), fleet(3, *at, restart=20 * service, routing="round-robin"))
    alone = float(finishes(simulate(deployment(), same([0.0]), ONE_AT_A_TIME))[0])
    done = replay(arrival, service, 3, at, 20 * service)
    expected = np.array([done[request] for request in range(900)]) + alone - service
    assert finishes(result) == pytest.approx(expected, rel=1e-9)
    assert result.records.anew and sum(one.anew for one in result.outages) == sum(result.records.anew.values())


def test_what_is_lost_begins_anew_behind_what_waits_elsewhere(service: float) -> None:
    """Two servers with two requests each; one is cut in its first: the other does 1, 3, then 0 and 2 anew."""
    result = run(same(np.zeros(4)), fleet(2, 0.5 * service, restart=100 * service))
    first = finishes(result)[1]
    assert finishes(result) == pytest.approx(first + service * np.array([2, 0, 3, 1]), rel=1e-9)
    assert result.records.anew == {0: 1, 2: 1}
    (outage,) = result.outages
    assert (outage.lost, outage.anew) == ((0,), 2)
    assert (outage.at, outage.back) == pytest.approx((0.5 * service, 100.5 * service))
    lost, stays, back = result.lives
    assert (lost.left, lost.resent, stays.left, back.ordered) == (outage.at, 2, inf, outage.at)
    assert np.asarray(result.records.first)[0] > 2 * service  # its client saw nothing of the first try that counts


def test_a_request_in_its_last_step_is_lost_too(service: float) -> None:
    """A cut a thousandth of a service before the end: a step that has begun does not end."""
    result = run(same([0.0, 0.0]), fleet(2, 0.999 * service, restart=100.0))
    assert finishes(result) == pytest.approx(finishes(result)[1] + service * np.array([1, 0]), rel=1e-9)
    assert result.counts["finished"] == 2 and result.records.anew == {0: 1}


def test_users_send_on_only_when_their_answer_is_there(service: float) -> None:
    """Two users with four requests in all, a server each; the first is lost in its last step: it is done anew behind
    the second user's next, and the second user sends the fourth.
    """
    loop = Traffic(
        arrivals=ClosedLoop(concurrency=2, burst=True),
        prompt=parse_lengths("512"),
        output=parse_lengths("64"),
        requests_count=4,
    )
    result = run(loop, fleet(2, 0.999 * service, restart=1000.0))
    first = min(finishes(result))
    sent = [0.0, 0.0, first, first + service]
    assert np.sort(np.asarray(result.records.arrival)) == pytest.approx(sent, rel=1e-6)
    assert np.sort(finishes(result)) == pytest.approx(first + service * np.arange(4), rel=1e-6)
    assert result.counts["finished"] == 4 and result.records.anew == {0: 1}


def test_what_is_drained_loses_nothing_and_restarts_when_it_is_empty(service: float) -> None:
    """Three requests each: the first replica is done after three, and back a restart later."""
    result = run(same(np.zeros(6)), fleet(2, 0.5 * service, restart=50 * service, mode="drain"))
    assert not result.records.anew
    assert finishes(result).max() == pytest.approx(finishes(result).min() + 2 * service, rel=1e-9)
    (outage,) = result.outages
    assert outage.back == pytest.approx(finishes(result).max() + 50 * service, rel=1e-9)
    idle = run(same([0.0]), fleet(1, 10 * service, restart=5 * service, mode="drain"))
    assert idle.outages[0].back == pytest.approx(15 * service)
    within = run(same([0.0]), fleet(1, 0.999 * service, restart=5 * service, mode="drain"))
    assert within.outages[0].back == pytest.approx(finishes(within)[0] + 5 * service, rel=1e-9)


def test_an_idle_replica_that_fails_changes_only_the_routing(service: float) -> None:
    arrival = np.arange(0, 40) * 2 * service
    without = simulate(deployment(), same(arrival), ONE_AT_A_TIME)
    result = run(same(arrival), fleet(2, 20 * 2 * service - 0.5 * service, restart=1000.0))
    assert not result.records.anew
    assert finishes(result) == pytest.approx(finishes(without), rel=1e-9)
    assert [meter.decode_tokens for meter in result.meters] == [20 * 63, 20 * 63, 0]


def test_with_replicas_to_spare_nobody_is_late_but_those_in_flight(service: float) -> None:
    """A load of 0.4 of one replica on eight: never are seven full, with one of them lost or not."""
    arrival = np.cumsum(np.random.default_rng(1).exponential(service / 0.4, 500))
    plain = deployment()
    fixed = replace(plain, parallel=replace(plain.parallel, replicas=8))
    without = simulate(fixed, same(arrival), ONE_AT_A_TIME, Options(fleet=Fleet(routing="least-loaded")))
    result = run(same(arrival), fleet(8, 300 * service, restart=300 * service))
    those = np.array([one for one in range(500) if one not in result.records.anew])
    assert finishes(result)[those] == pytest.approx(finishes(without)[those], rel=1e-9)


@for_each("mode", ["cut", "drain"])
@for_each("kind", ["open", "least", "users", "sticky", "prefix-aware", "ranks"])
def test_every_request_finishes_once(kind: str, mode: FailureMode) -> None:
    """Ten failures in a busy run of every kind: all that was sent finishes; who began anew was there at a failure."""
    routing: dict[str, Routing] = {"least": "least-loaded", "sticky": "sticky", "prefix-aware": "prefix-aware"}
    recipe = Traffic(
        arrivals=ClosedLoop(concurrency=60) if kind == "users" else OpenLoop(rate=60.0),
        prompt=parse_lengths("lognormal:512:0.8"),
        output=parse_lengths("uniform:64:0.9"),
        requests_count=900,
        prefix=SharedPrefix(turns=3, think=parse_think_time("300ms"))
        if kind in ("sticky", "prefix-aware")
        else SharedPrefix(),
    )
    at = [Failure(at=0.7 * place + 1.0, replicas=1 + place % 2) for place in range(10)]
    of = fleet(3, *at, restart=0.5, mode=mode, routing=routing.get(kind, "round-robin"))
    made = deployment("qwen3-30b-a3b", parallel=Parallelism(dp=2, ep=2)) if kind == "ranks" else deployment()
    result = simulate(made, recipe, None, Options(fleet=of))
    records = result.records
    assert result.counts["finished"] == len(records.prompt) == result.counts["arrived"]
    assert bytes(records.status) == bytes([FINISHED]) * len(records.prompt)
    arrival, first, finish = (np.asarray(column) for column in (records.arrival, records.first, records.finish))
    assert np.all(arrival < first) and np.all(first <= finish)
    assert sum(outage.anew for outage in result.outages) == sum(records.anew.values())
    assert (mode == "cut") == bool(records.anew)
    moments = [outage.at for outage in result.outages]
    for request in records.anew:
        assert any(arrival[request] <= at <= first[request] for at in moments)
    written = sum(meter.decode_tokens for meter in result.meters)
    needed = float(np.sum(np.asarray(records.output) - 1))
    assert written >= needed if mode == "cut" else written == pytest.approx(needed, rel=1e-9)


def test_who_stands_on_a_node() -> None:
    """Six replicas, four to a node. The first node fails; then the second, with two; then the first again."""
    node = [Failure(at=at, node=True) for at in (10.0, 20.0, 40.0)]
    result = run(same(np.arange(0, 60, 0.5)), fleet(6, *node, restart=5.0, per_node=4))
    assert [outage.lost for outage in result.outages] == [(0, 1, 2, 3), (4, 5), (6, 7, 8, 9)]
    assert [replicas_on_a_node(*of) for of in ((1, 8), (3, 8), (8, 8), (16, 8))] == [8, 2, 1, 1]
    several = run(same(np.arange(0, 60, 0.5)), fleet(3, Failure(at=10.0, replicas=5), restart=5.0))
    assert several.outages[0].lost == (0, 1, 2)


def test_a_replica_that_is_back_has_an_empty_prefix_cache() -> None:
    """One text of 512 tokens before every prompt: found by all but the first, and the first after the failure."""
    recipe = Traffic(
        arrivals=OpenLoop(rate=1.0, kind="constant"),
        prompt=parse_lengths("64"),
        output=parse_lengths("8"),
        requests_count=20,
        prefix=SharedPrefix(tokens=512),
    )
    result = run(recipe, fleet(1, 9.5, restart=0.2), Flags(prefix_caching=True))
    assert sorted(set(range(20)) - set(result.records.cached)) == [0, 10]


def test_a_failed_replica_is_replaced_beside_an_autoscaler() -> None:
    """A rule that keeps three keeps three: what fails counts as on its way."""
    for mode in ("cut", "drain"):
        rule = Reactive(target=100.0, first=3, least=3, most=4, cold_start=20.0, interval=5.0, until=100.0)
        of = Fleet(routing="least-loaded", scaling=rule, failures=Failures(at=(Failure(at=31.0),), mode=mode))
        result = run(same(np.arange(0, 100, 0.2)), of)
        assert [life.left for life in result.lives] == [31.0, inf, inf, inf]
        assert result.lives[3].ready == pytest.approx(51.0, abs=1.0)


def looked_at() -> Outages:
    """Ten requests per second apart from 0 on; a failure at 4 s, back at 6 s; those of 4 to 6 s take 3 s, others 0.5 s;
    that of 3.9 s starts again."""
    arrival = np.array([0.0, 1, 2, 3, 3.9, 5, 6, 7, 8, 9])
    long = np.array([0.5, 0.5, 0.5, 0.5, 3.1, 3, 3, 0.5, 0.5, 0.5])
    records = Records(arrival=arrival, prompt=[8] * 10, output=[11] * 10)
    for request in range(10):
        records.first[request] = arrival[request] + 0.1 * long[request]
        records.finish[request] = arrival[request] + long[request]
    records.status = bytearray([FINISHED] * 10)
    records.anew = {4: 1}
    result = SimulationResult(
        records=records,
        meters=(),
        closed=False,
        slo=Slo(ttft=0.2, percentile=50.0),
        lives=[Life(0.0, 0.0, 4.0, 4.0), Life(0.0, 0.0), Life(4.0, 6.0)],
        outages=[Outage(4.0, 6.0, (0,), 1)],
    )
    return Outages(result)


def test_stretches_by_hand() -> None:
    """From 1 to 4 s three requests are in the fleet for half a second each, and one for 0.1 s: 1.6/3 on average. It is
    as before when none is in it, and from 3.9 s until the last request comes at 9 s one always is: not recovered.
    """
    seen = looked_at()
    assert seen.before == (1.0, 4.0)
    assert seen.level == pytest.approx(1.6 / 3)
    assert not seen.recovered
    before, missing, worked = seen.stretches[:3]
    assert (before.arrived, before.within, before.anew, before.most, before.replicas) == (4, 0.75, 1, 1, 2.0)
    assert before.latencies == pytest.approx({"ttft": 0.05, "tpot": 0.045, "e2el": 0.5})
    assert (missing.start, missing.stop, missing.arrived, missing.within, missing.replicas) == (4.0, 6.0, 1, 0.0, 1.0)
    assert missing.latencies == pytest.approx({"ttft": 0.3, "tpot": 0.27, "e2el": 3.0})
    assert (worked.arrived, worked.most, worked.replicas) == (4, 3, 2.0)
    assert worked.within == 0.75
    assert seen.in_fleet(4.0, 6.0) == (pytest.approx((2 + 1) / 2), 2)  # that of 3.9 s, and that of 5 s
    assert anew_late(seen) == (1, 1)
    bins = seen.bins(100)
    assert bins[0].start == 2.0 and bins[0].stop - bins[0].start == 0.5
    assert [one.start for one in bins].count(4.0) == 1


def test_the_peak_is_before_all_replicas_are_back_too() -> None:
    """Three come just after the failure at 4 s and are done at 5.5 s, half a second before all replicas are back; then
    one at a time. One of them has a single token: no time between tokens that could miss a limit of 0.2 s."""
    arrival = np.array([0.0, 1, 2, 3, 4.1, 4.2, 4.3, 7, 8, 9])
    finish = np.array([0.5, 1.5, 2.5, 3.5, 5.5, 5.5, 5.5, 7.5, 8.5, 9.5])
    records = Records(arrival=arrival, prompt=[8] * 10, output=[*[3] * 6, 1, *[3] * 3])
    for request in range(10):
        records.first[request], records.finish[request] = arrival[request] + 0.1, finish[request]
    records.first[6] = 5.5
    records.status = bytearray([FINISHED] * 10)
    seen = Outages(replace(looked_at().result, records=records, slo=Slo(tpot=0.3, percentile=50.0)))
    (episode,) = seen.episodes
    assert (episode.at, episode.back, episode.over, episode.peak) == (4.0, 6.0, 6.0, 3)
    # (5.5 - 4.2)/2 and (5.5 - 4.3)/2 s a token miss, 0.4/2 s and no token at all do not
    assert list(np.flatnonzero(~seen.within)) == [4, 5]


def test_a_percentile_beside_requests_that_never_finish() -> None:
    """Of 1, 2, 3 s and one that never ends the median is between 2 and 3 s; who has no such latency does not count."""
    times = np.array([3.0, np.inf, 1.0, np.nan, 2.0])
    assert at_percentile_of(times, 50.0) == 2.5
    assert at_percentile_of(times, 75.0) == np.inf
    assert np.isnan(at_percentile_of(times[3:4], 50.0))


def test_a_load_that_changes_is_compared_with_the_time_before_each_failure() -> None:
    """From 3 to 4 s the fleet has 0.5 + 0.1 requests on average, in the last second before the failure."""
    seen = Outages(looked_at().result, recent=1.0)
    assert seen.episodes[0].level == pytest.approx(0.6)
    assert looked_at().episodes[0].level == pytest.approx(1.6 / 3)


def test_thoughts_count_until_the_first_token_of_the_answer() -> None:
    """Every answer begins 2 s after its request was sent."""
    seen = looked_at()
    seen.result.records.thinking([4] * 10)
    for request in range(10):
        seen.result.records.answered[request] = seen.arrival[request] + 2.0
    assert Outages(seen.result).latencies["answer_ttft"] == pytest.approx(np.full(10, 2.0))
    assert "answer_ttft" not in looked_at().latencies


def test_an_episode_takes_in_a_failure_before_the_backlog_is_gone(service: float) -> None:
    arrival = np.arange(0, 3000 * service, service / 3.5)
    of = fleet(4, 400 * service, 700 * service, restart=200 * service)
    (episode,) = Outages(run(same(arrival), of)).episodes  # the first alone: 100 wait, gone after 200 more: at 800
    assert len(episode.outages) == 2
    apart = fleet(4, 400 * service, 1000 * service, restart=200 * service)
    first, second = Outages(run(same(arrival), apart)).episodes
    assert first.over - first.at == pytest.approx(400 * service, rel=0.01)
    assert second.over - second.at == pytest.approx(400 * service, rel=0.01)


def test_a_run_goes_on_until_the_backlog_is_gone(service: float) -> None:
    """A load of 0.95 of two servers: after 30 services with one, 27 wait, and are gone after 270 more."""
    recipe = Traffic(
        arrivals=OpenLoop(rate=1.9 / service, kind="constant"),
        prompt=parse_lengths("512"),
        output=parse_lengths("64"),
    )
    options = Options(fleet=fleet(2, 40 * service, restart=30 * service), trim=True)
    seen = Outages(simulate_failures(deployment(), recipe, ONE_AT_A_TIME, options))
    assert seen.recovered
    assert seen.episodes[0].over - 40 * service == pytest.approx(300 * service, rel=0.05)
    with pytest.raises(UsageError, match="before the failure"):
        simulate_failures(deployment(), replace(recipe, requests_count=50), ONE_AT_A_TIME, options)


def test_what_does_not_fail() -> None:
    one = Failures(at=(Failure(at=1.0),))
    schedule = Schedule(changes=((0.0, 2),), cold_start=1.0)
    with pytest.raises(UsageError, match="time to restart"):
        Fleet(failures=one)
    with pytest.raises(UsageError, match="sticky routing needs conversations"):
        run(
            same([0.0, 1.0]),
            Fleet(failures=one, scaling=schedule, losses=Losses(rate=1.0, notice=0.0), routing="sticky"),
        )
    with pytest.raises(UsageError, match="number of replicas on it"):
        Failures(at=(Failure(at=1.0, node=True),))
    with pytest.raises(UsageError, match="in order of time"):
        Failures(at=(Failure(at=2.0), Failure(at=1.0)))
    with pytest.raises(UsageError, match="whole run"):
        run(same([0.0, 1.0]), fleet(2, 0.5, restart=1.0), warmup=1)
    with pytest.raises(UsageError, match="what a replica loses"):
        run(same([0.0, 1.0]), fleet(2, 0.5, restart=1.0, routing="round-robin"), jobs=2)
