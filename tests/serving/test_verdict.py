"""Verdicts: flows made by hand, and loads whose long-run truth is known."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from inferplan.devices.engine import ServingConstants
from inferplan.estimate.deployment import Deployment
from inferplan.serving.batch_means import RunPrecision
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.records import FINISHED, REJECTED, TIMED_OUT, Meter, Records
from inferplan.serving.result import SimulationResult
from inferplan.serving.run_length import capacity_rate, simulate_load, simulate_steady
from inferplan.serving.simulator import simulate
from inferplan.serving.verdict import Flow, capacity_band, flow_of, load_of_capacity, near_capacity
from inferplan.traffic.conversations import ThinkTime, parse_think_time
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, Requests, SharedPrefix, Traffic, parse_lengths
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.serving.conftest import deployment


def flow(
    arrival: Sequence[float] | np.ndarray,  # type: ignore[type-arg]
    wait: Sequence[float] | np.ndarray,  # type: ignore[type-arg]
    service: float | np.ndarray,  # type: ignore[type-arg]
    status: int = FINISHED,
    share: float = 1.0,
    **more: object,
) -> SimulationResult:
    """A run made by hand: request i comes, waits, is served; a ``share`` of them, from the first, with a ``status``."""
    arrival, wait = np.asarray(arrival, dtype=float), np.asarray(wait, dtype=float)
    count = len(arrival)
    records = Records(arrival=arrival.tolist(), prompt=[100] * count, output=[10] * count)
    records.admitted[:] = type(records.admitted)("d", (arrival + wait).tolist())
    records.first[:] = type(records.first)("d", (arrival + wait + np.asarray(service) / 10).tolist())
    records.finish[:] = type(records.finish)("d", (arrival + wait + np.asarray(service)).tolist())
    records.status[:] = bytes([FINISHED] * count)
    some = int(count * share) if status != FINISHED else 0
    records.status[:some] = bytes([status] * some)
    meter = Meter()
    meter.wait("slots", float(np.sum(wait)))
    return SimulationResult(records=records, meters=[meter], closed=False, **more)  # type: ignore[arg-type]


SECONDS = np.arange(2000.0)


def test_what_leaves_four_in_five_of_what_comes_is_an_overload() -> None:
    run = flow(SECONDS, SECONDS / 4, 10.0)  # one comes each second, one leaves each second and a quarter
    found = flow_of(run)
    assert found is not None
    assert found.arriving == pytest.approx(1.0, rel=1e-3) and found.leaving == pytest.approx(0.8, rel=0.01)
    assert found.growth == pytest.approx(0.2, abs=0.01) and found.later_growth == pytest.approx(0.2, abs=0.01)
    assert run.verdict == "overloaded"


def test_a_steady_flow_is_stable_and_one_that_queues_is_saturated() -> None:
    assert flow(SECONDS, np.zeros(2000), 10.0).verdict == "stable"
    assert flow(SECONDS, np.full(2000, 30.0), 10.0).verdict == "saturated"


def test_a_system_that_fills_without_a_queue_is_not_overloaded() -> None:
    """Requests take longer as the batch grows, for as long as the run lasts; nobody waits."""
    run = flow(SECONDS, np.zeros(2000), 10 + SECONDS / 4)
    found = flow_of(run)
    assert found is not None and found.growth == pytest.approx(0.2, abs=0.02)
    assert run.verdict == "stable"


def test_requests_that_leave_in_crowds_are_no_overload() -> None:
    for crowd in (100, 500):  # all of a hundred leave at once
        ends = np.ceil((SECONDS + 10) / crowd) * crowd
        assert flow(SECONDS, ends - SECONDS - 10, 10.0).verdict == "saturated"


def test_chance_at_full_load_is_no_overload() -> None:
    """A queue at 97 % of what it can serve wanders; it is called an overload in one of a thousand runs."""
    for seed in range(40):
        arrival = np.cumsum(np.random.default_rng(seed).exponential(1.0, 5000))
        free, wait = 0.0, []
        for time in arrival:
            wait.append(max(free - time, 0.0))
            free = max(free, time) + 0.97
        assert flow(arrival, wait, 0.97).verdict != "overloaded"


def test_a_run_shorter_than_five_requests_is_too_short() -> None:
    assert flow(np.arange(40.0), np.zeros(40), 10.0).verdict == "too short to tell"
    assert flow(np.arange(60.0), np.zeros(60), 10.0).verdict == "stable"
    assert flow(np.arange(19.0), np.zeros(19), 0.1).verdict == "too short to tell"  # nineteen say nothing of a trend
    assert flow(np.zeros(60), np.zeros(60), 10.0).verdict == "too short to tell"  # nor does a crowd


def test_a_run_of_conversations_holds_five_of_them_until_the_last_one_begins() -> None:
    """Two turns of 10 s and 30 s between them take 50 s; second turns come 40 s after the first."""
    begin = np.arange(400.0)
    arrival = np.concatenate([begin, begin + 40])
    order = np.argsort(arrival, kind="stable")
    follows = np.concatenate([np.full(400, -1), np.argsort(order)[:400]])[order]
    for begun, verdict in ((400, "stable"), (200, "too short to tell")):
        kept = np.isin(order % 400, np.arange(begun))
        run = flow(arrival[order][kept], np.zeros(2 * begun), 10.0)
        run.records.follows = array(
            "q", (np.cumsum(kept) - 1)[follows][kept] * (follows[kept] >= 0) - (follows[kept] < 0)
        )
        run.records.think = array("d", [30.0] * (2 * begun))
        found = flow_of(run)
        assert found is not None and found.lifetimes == pytest.approx((begun - 1) / 50)
        assert found.arrivals == begun + begun - 40  # first turns, and second ones until the last first one
        assert run.verdict == verdict


def test_users_who_do_not_get_through_their_conversations() -> None:
    """Forty turns of eight users: 640 requests are two conversations each; a burst counts one as a client does."""
    for burst, requests, verdict in (
        (False, 80, "too short to tell"),
        (False, 639, "too short to tell"),
        (False, 640, "stable"),
        (True, 319, "too short to tell"),
        (True, 320, "stable"),
    ):
        traffic = {"arrivals": {"concurrency": 8, "burst": burst}, "prefix": {"turns": 40}}
        run = flow(np.arange(float(requests)), np.zeros(requests), 10.0, conditions={"traffic": traffic})
        assert replace(run, closed=True).verdict == verdict


def test_rejections_and_clients_that_give_up() -> None:
    assert flow(SECONDS, np.zeros(2000), 10.0, REJECTED, 0.001).verdict == "rejecting"
    assert flow(SECONDS, np.zeros(2000), 10.0, REJECTED, 1.0).verdict == "rejecting"
    assert flow(SECONDS, np.zeros(2000), 10.0, TIMED_OUT, 0.05).verdict == "stable"
    assert flow(SECONDS, np.zeros(2000), 10.0, TIMED_OUT, 0.2).verdict == "overloaded"
    for share, verdict in ((0.05, "stable"), (0.2, "overloaded")):  # nothing grows where users wait for answers
        assert replace(flow(SECONDS, np.zeros(2000), 10.0, TIMED_OUT, share), closed=True).verdict == verdict


def test_near_capacity_by_hand() -> None:
    traffic = {"traffic": {"arrivals": {"rate": 8.0}, "samples": 2}}
    run = flow(SECONDS, np.zeros(2000), 10.0, capacity_rate=20.0, conditions=traffic, bands={"tpot": (0.9, 1.25)})
    assert load_of_capacity(run) == pytest.approx(0.8)  # two completions of each
    assert capacity_band(run) == pytest.approx((0.8, 1 / 0.9))  # the error of the steps, turned over
    assert capacity_band(replace(run, bands={"tpot": (0.5, 1.25)})) == pytest.approx((0.8, 2.0))
    assert capacity_band(replace(run, bands={"tpot": (1.1, 1.25)})) == pytest.approx((0.8, 1.0))
    assert capacity_band(replace(run, bands={})) == (1.0, 1.0)
    assert near_capacity(replace(run, capacity_rate=19.9)) and not near_capacity(replace(run, capacity_rate=20.1))
    assert near_capacity(replace(run, capacity_rate=16 * 0.91)) and not near_capacity(replace(run, capacity_rate=14.3))
    assert near_capacity(replace(run, capacity_rate=None)) is None


def test_the_second_half_is_ten_batches() -> None:
    """Student's t for ten batches is 2.262, for twenty 2.093: growth of 2.2 errors in the second half may be chance."""
    flow = Flow(
        arrivals=1000,
        arriving=1.0,
        leaving=0.9,
        growth=0.1,
        error=0.01,
        later_growth=0.11,
        later_error=0.05,
        queue=100.0,
        lifetimes=50.0,
    )
    assert not flow.grows and replace(flow, later_error=0.048).grows


# --- loads whose truth is a long run --------------------------------------------------------------------------------


def served(model: str, tp: int = 1, replicas: int = 1, quant: str | None = None, gpu: str = "h100-sxm") -> Deployment:
    """With constants of its own and no host effects: what a long run found does not move with those on file."""
    parallel = Parallelism(tp=tp, replicas=replicas)
    made = deployment(model, gpu, ideal=False, quant=quant, parallel=parallel)
    return replace(made, engine=made.engine.model_copy(update={"serving": ServingConstants()}))


def open_loop(rate: float, prompt: str, output: str) -> Traffic:
    return Traffic(arrivals=OpenLoop(rate=rate), prompt=parse_lengths(prompt), output=parse_lengths(output))


@for_each(
    ("model", "tp", "replicas", "quant", "rate", "lengths", "leaving"),
    [
        ("llama-3.1-70b", 4, 64, "fp8", 1000.0, ("1024", "512"), 622.0),
        ("llama-3.1-70b", 4, 1, "fp8", 12.0, ("1024", "512"), 9.4),
        ("llama-3.1-8b", 1, 1, None, 26.0, ("1024", "256"), 19.1),
        ("llama-3.1-8b", 1, 1, None, 24.0, ("lognormal:1024:0.8", "lognormal:256:0.8"), 19.1),
    ],
)
def test_loads_that_were_called_stable(
    model: str, tp: int, replicas: int, quant: str | None, rate: float, lengths: tuple[str, str], leaving: float
) -> None:
    """20,000 to 200,000 requests: ``leaving`` is what left a second."""
    most = RunPrecision(most=max(40_000, 1250 * replicas))
    run = simulate_steady(served(model, tp, replicas, quant), open_loop(rate, *lengths), precision=most)  # type: ignore[arg-type]
    assert run.verdict == "overloaded" and run.ttft.size and run.percentiles("ttft_s")["p95"] is None
    assert run.interval("ttft", 95) is None
    if replicas < 64:  # with 1,250 requests for each of 64 replicas the first are hardly done
        assert run.request_rate == pytest.approx(leaving, rel=0.06)


def test_a_stable_load_is_quoted_as_in_a_long_run() -> None:
    """20,000 requests, three times: TPOT 19.2 ms on average."""
    run = simulate_steady(served("llama-3.1-70b", 4, 8, "fp8"), open_loop(40.0, "1024", "512"))  # type: ignore[arg-type]
    assert run.verdict == "stable" and run.converged
    assert float(np.mean(run.tpot)) == pytest.approx(19.2e-3, rel=0.03)
    assert run.request_rate == pytest.approx(40.0, rel=0.02)


def test_capacity_is_what_an_overload_lets_through() -> None:
    traffic = open_loop(1.0, "512", "128")
    one = served("llama-3.1-8b", gpu="l40s", quant="fp8")
    rate = capacity_rate(one, traffic)  # type: ignore[arg-type]
    over = simulate_steady(one, replace(traffic, arrivals=OpenLoop(rate=30.0)))  # type: ignore[arg-type]
    assert rate is not None and rate == pytest.approx(over.request_rate, rel=0.03)
    four = served("llama-3.1-8b", replicas=4, gpu="l40s", quant="fp8")
    assert capacity_rate(four, traffic) == pytest.approx(4 * rate)  # type: ignore[arg-type]
    assert capacity_rate(one, open_loop(1.0, "10M", "8")) is None  # type: ignore[arg-type]


@for_each("lengths", [("1024", "512"), ("512", "256")])
def test_capacity_does_not_depend_on_where_a_wave_is_cut(
    lengths: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of equal length leave in waves of some 300 to 700. Of 24,000 sent at once the middle half is the truth:
    counted between two departures, it is off by a wave at most, 2 to 4 % of so many.
    """
    one, traffic = served("llama-3.1-70b", 4, quant="fp8"), open_loop(1.0, *lengths)
    requests = replace(traffic, requests_count=24_000).requests()
    finish = np.sort(simulate(one, replace(requests, arrival=np.zeros(24_000))).records.finish)  # type: ignore[arg-type]
    truth = 12_000 / (finish[18_000] - finish[6_000])
    for fewest in (3000, 6500, 7000):
        monkeypatch.setattr("inferplan.serving.run_length._FEWEST_FOR_CAPACITY", fewest)
        assert capacity_rate(one, traffic) == pytest.approx(truth, rel=0.025)  # type: ignore[arg-type]


def test_a_load_beyond_capacity_is_served_until_a_queue_forms() -> None:
    """4 % more than leaves behind a queue, evenly spaced: without one nobody is preempted and as many leave as come.
    Behind 1,000 requests at once every fourth is computed again, fewer leave, and the queue stays.
    """
    one, traffic = served("llama-3.1-70b", 4, quant="fp8"), open_loop(1.0, "1024", "512")
    rate = capacity_rate(one, traffic)  # type: ignore[arg-type]
    assert rate is not None
    even, lengths = np.arange(6000) / (1.04 * rate), {"prompt": np.full(6000, 1024), "output": np.full(6000, 512)}
    calm = simulate(one, Requests(arrival=even, **lengths))  # type: ignore[arg-type]
    queued = simulate(one, Requests(arrival=np.maximum(even - even[1000], 0.0), **lengths))  # type: ignore[arg-type]
    assert calm.preemptions == 0 and queued.preemptions > 500
    for run, expected in ((calm, 1.04 * rate), (queued, rate)):
        finish = np.sort(run.records.finish)
        assert 2500 / (finish[4500] - finish[2000]) == pytest.approx(expected, rel=0.02)
    assert queued.end - even[-1] + even[1000] > 3 * (calm.end - even[-1])  # the last of them waited too


def test_capacity_does_not_wait_for_thoughts() -> None:
    """Turns follow their answers, but who thinks leaves the devices to others: as many leave, however long it takes."""
    talk = open_loop(4.0, "200", "400")
    rates = []
    for think in ("0s", "30s", "exponential:300s"):
        prefix = SharedPrefix(turns=4, think=parse_think_time(think))
        rates.append(capacity_rate(served("llama-3.1-8b"), replace(talk, prefix=prefix)))  # type: ignore[arg-type]
    assert rates[0] is not None and rates[1:] == pytest.approx([rates[0]] * 2, rel=0.02)
    # an overload of conversations whose users think for 300 s: between its fill and its drain as many leave
    run = simulate(
        served("llama-3.1-8b"),  # type: ignore[arg-type]
        replace(talk, arrivals=OpenLoop(rate=40.0), prefix=prefix, requests_count=16_000),
    )
    finish = np.sort(run.records.finish)
    assert 8000 / (finish[12_000] - finish[4_000]) == pytest.approx(rates[0], rel=0.08)


def test_capacity_keeps_to_the_budget_of_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counting(deployment: object, requests: Requests, *rest: object) -> SimulationResult:
        sizes.append(len(requests))
        return simulate(deployment, requests, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("inferplan.serving.run_length.simulate", counting)
    capacity_rate(served("llama-3.1-8b"), open_loop(1.0, "32", "64"), precision=RunPrecision(fewest=100, most=1200))  # type: ignore[arg-type]
    assert sizes == [1200]


def test_a_load_that_nothing_of_can_run_is_rejecting() -> None:
    """A prompt longer than a step's budget where prompts are not cut; a trace with one absurd prompt."""
    traffic = open_loop(2.0, "20000", "200")
    run = simulate_load(deployment("llama-3.1-70b", "b200-hgx", engine="trtllm"), traffic, None, Options(trim=True))
    assert run.verdict == "rejecting" and run.counts["finished"] == 0
    trace = Requests(prompt=np.array([10**9]), output=np.array([1]), arrival=np.array([0.0]))
    assert simulate(deployment(), trace).verdict == "rejecting"


def batch(count: int, prompt: int, output: int) -> Requests:
    """Requests that come at once."""
    return Requests(prompt=np.full(count, prompt), output=np.full(count, output), arrival=np.zeros(count))


def test_waiting_for_the_token_budget_is_waiting() -> None:
    """Prompts of 8192 tokens come faster than their steps pass, for a while: a trace that queues and recovers."""
    one = deployment()
    alone = float(simulate(one, batch(1, 8192, 1)).e2el[0])
    arrival = np.concatenate([np.arange(200) * alone / 2, 200 * alone + np.arange(20) * 5 * alone])
    trace = Requests(prompt=np.full(220, 8192), output=np.full(220, 1), arrival=arrival)
    run = simulate(one, trace, Flags(max_num_batched_tokens=8192))
    assert run.verdict == "saturated" and max(run.meters[0].waited, key=run.meters[0].waited.__getitem__) == "budget"


def test_seconds_of_waiting_by_hand() -> None:
    """Three requests at once for one slot: the second waits for one, the third for two."""
    one = deployment()
    alone = float(simulate(one, batch(1, 512, 64)).e2el[0])
    run = simulate(one, batch(3, 512, 64), Flags(max_num_seqs=1))
    waited = run.meters[0].waited
    assert set(waited) == {"slots"}
    assert waited["slots"] == pytest.approx(3 * alone, rel=0.02)
    assert run.to_dict()["queue"]["waited_for_s"]["slots"] == pytest.approx(alone, rel=0.02)


# --- closed loops -----------------------------------------------------------------------------------------------------


def test_users_come_over_the_time_of_a_request_and_the_first_round_is_not_counted() -> None:
    """Spread users of equal lengths find the server as one alone does. Of a burst two prompts of 4,096 fit a step of
    8,192, so the first round takes 16 such steps: 8.5 of them on average, 17 times one prompt; and the pairs stay.
    """
    one = served("llama-3.1-70b", 4, quant="fp8")
    loop = Traffic(
        arrivals=ClosedLoop(concurrency=32, burst=False, ramp=None),
        prompt=Lengths(mean=4096),
        output=Lengths(mean=512),
        requests_count=640,
    )
    spread = simulate_load(one, loop, None, Options(trim=True))  # type: ignore[arg-type]
    crowd = simulate_load(one, replace(loop, arrivals=ClosedLoop(concurrency=32)), None, Options(trim=True))  # type: ignore[arg-type]
    alone = float(np.mean(simulate(one, replace(loop, arrivals=ClosedLoop(concurrency=1), requests_count=3)).ttft))  # type: ignore[arg-type]
    assert float(np.mean(spread.ttft)) == pytest.approx(alone, rel=0.05)
    first = np.asarray(crowd.records.first)[:32] - np.asarray(crowd.records.arrival)[:32]
    assert float(np.mean(first)) == pytest.approx(17 * alone, rel=0.05)
    assert float(np.mean(crowd.ttft)) > 2 * alone
    assert (spread.warmup, spread.cooldown, len(spread.ttft)) == (32, 32, 576)
    assert (crowd.warmup, crowd.cooldown, len(crowd.ttft)) == (0, 0, 640)  # what such a client reports
    ramp = spread.conditions["traffic"]["arrivals"]["ramp"]
    starts = np.asarray(spread.records.arrival)[:32]
    assert starts == pytest.approx(ramp * np.arange(32) / 32)
    assert ramp == pytest.approx(float(np.mean(spread.e2el)), rel=0.2)


def test_a_single_user_has_neither_fill_nor_drain() -> None:
    loop = Traffic(arrivals=ClosedLoop(concurrency=1), prompt=Lengths(mean=64), output=Lengths(mean=8))
    run = simulate(deployment(), loop, None, Options(trim=True))
    assert len(run.ttft) == 10


def test_users_in_conversations_begin_over_the_cycle_of_one() -> None:
    """Two conversations of each user fill the system, the last one empties it; all turns are in between."""
    loop = Traffic(
        arrivals=ClosedLoop(concurrency=4, burst=False, ramp=None),
        prompt=Lengths(mean=500),
        output=Lengths(mean=20),
        prefix=SharedPrefix(turns=5, think=ThinkTime(mean=2.0)),
    )
    run = simulate_load(deployment(), loop, None, Options(trim=True))
    assert (len(run.records.prompt), run.warmup, run.cooldown) == (200, 40, 20)
    ramp, lap = run.conditions["traffic"]["arrivals"]["ramp"], 5 * (float(np.mean(run.e2el)) + 2.0)
    assert ramp == pytest.approx(lap, rel=0.02)
    prompts = np.asarray(run.records.prompt)[run.counted]
    shares = np.bincount(prompts // 500)[1:] / len(prompts)  # turn n: n prompts of 500, n - 1 answers of 20
    assert shares == pytest.approx(0.2, abs=0.03) and run.verdict == "stable"
    assert simulate_load(deployment(), replace(loop, requests_count=39), None, Options(trim=True)).verdict == (
        "too short to tell"
    )
