"""How sure figures are, against queues with known answers; how long a run is; what fill and drain leave behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.serving import run_length
from inferplan.serving.batch_means import (
    RunPrecision,
    batch_size,
    half_width,
    halves_agree,
    percentiles_in_turn,
    student_95,
)
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.serving.run_length import capacity_rate, simulate_steady
from inferplan.serving.simulator import simulate
from inferplan.traffic.conversations import ThinkTime
from inferplan.traffic.requests import MOST_REQUESTS, ClosedLoop, Lengths, OpenLoop, Requests, SharedPrefix, Traffic
from tests.cases import for_each
from tests.serving.conftest import deployment
from tests.serving.test_queueing import exact_wait


def m_d_1_waits(load: float, runs: int, customers: int, seed: int) -> np.ndarray:  # type: ignore[type-arg]
    """Waits in services by Lindley's recursion, one row a run, from an empty queue."""
    gaps = np.random.default_rng(seed).exponential(1 / load, (runs, customers))
    waits = np.zeros((runs, customers))
    for i in range(1, customers):
        waits[:, i] = np.maximum(waits[:, i - 1] + 1 - gaps[:, i], 0)
    return waits


def test_the_interval_covers_the_exact_answers_of_a_queue() -> None:
    """Pollaczek and Khinchine's mean and Erlang's 95th percentile, in at least 90 of 100 runs (nominally 95)."""
    load, runs = 0.7, 200
    waits = m_d_1_waits(load, runs, 20_000, seed=3)[:, 2000:]
    mean, p95 = load / (2 * (1 - load)), exact_wait(load, 0.05)
    covered = np.zeros(2)
    for run in waits:
        for at, (value, exact, percentile) in enumerate(
            [(np.mean(run), mean, None), (np.percentile(run, 95), p95, 95.0)]
        ):
            error = half_width(run, percentile)
            assert error is not None and 0 < error < 0.4 * exact
            covered[at] += abs(value - exact) <= error
    assert np.all(covered >= 0.9 * runs) and np.all(covered < runs)


def test_batch_means_by_hand() -> None:
    """Twenty batches of ten, whose means are 0 and 1 by turns: spread sqrt(20/4/19), over sqrt(20), times 2.093."""
    values = np.repeat(np.arange(20) % 2, 10).astype(float)
    assert half_width(values) == pytest.approx(2.093 * (20 * 0.25 / 19) ** 0.5 / 20**0.5)
    assert half_width(values[:199]) is None


def test_parts_in_turn_are_even_and_the_longer_ones_come_first() -> None:
    """1 2 3, 4 5, 6 7: the medians in the middle, the 75th percentiles half and three quarters of the way up."""
    values = np.arange(1.0, 8.0)
    assert percentiles_in_turn(values, 3, 50.0).tolist() == [2.0, 4.5, 6.5]
    assert percentiles_in_turn(values, 3, 75.0).tolist() == [2.5, 4.75, 6.75]
    assert percentiles_in_turn(values[:6], 2, 50.0).tolist() == [2.0, 5.0]


def exponentials(rng: np.random.Generator, count: int, likeness: float) -> np.ndarray:  # type: ignore[type-arg]
    """Exponential values of mean 1 in a row, of which those ``n`` apart correlate by ``likeness**n`` (Gaver and Lewis's
    EAR(1)): each is the one before times that, and with the odds left a new draw on top.
    """
    values = rng.exponential(1, count)
    if likeness:
        fresh = np.where(rng.random(count) >= likeness, values, 0.0)
        for index in range(1, count):
            values[index] = likeness * values[index - 1] + fresh[index]
    return values


@for_each("likeness", [0.0, 0.8])
@for_each(("percentile", "fewest", "more"), [(50, 200, 1000), (90, 500, 3000), (95, 1000, 4000), (99, 5000, 12_000)])
def test_intervals_of_every_percentile_cover_it(percentile: float, fewest: int, more: int, likeness: float) -> None:
    """Percentile p of an exponential is -ln(1 - p/100). 89 of 100 intervals hold it from the fewest values on that have
    one (nominally 95; 200 runs put 3 standard errors of that at 5 points); with fewer there is none.
    """
    rng, runs, exact = np.random.default_rng(7), 200, -np.log(1 - percentile / 100)
    assert half_width(exponentials(rng, fewest - 1, likeness), percentile) is None
    counts = (more,) if likeness else (fewest, more)  # in five short batches the likeness of neighbours is not seen
    for count in counts:
        covered = 0
        for _ in range(runs):
            values = exponentials(rng, count, likeness)
            error = half_width(values, percentile)
            assert error is not None
            covered += abs(float(np.percentile(values, percentile)) - exact) <= error
        assert 0.89 * runs <= covered < runs


def test_values_that_batches_take() -> None:
    """Ten beyond the figure of each: 1/20 of 200, 1/100 of 1,000; Student's t from a table of his quantiles."""
    assert [batch_size(percentile) for percentile in (None, 50, 5, 95, 99)] == [10, 20, 200, 200, 1000]
    assert batch_size(100) == np.inf and half_width(np.linspace(0, 1, 10**5), 100.0) is None
    assert [student_95(count) for count in (5, 10, 11, 16, 20)] == [2.776, 2.262, 2.228, 2.131, 2.093]
    # seven batches of 200, whose 95th percentiles are 0, 1, 0, 1, 0, 1, 0
    values = np.repeat(np.arange(7) % 2, 200).astype(float)
    assert half_width(values, 95.0) == pytest.approx(2.447 * (12 / 7 / 6) ** 0.5 / 7**0.5)


def test_a_run_is_long_enough_for_its_percentile() -> None:
    """Eight batches of a thousand for the 99th percentile, after a quarter that fills: one run, and no more."""
    traffic = Traffic(arrivals=OpenLoop(rate=30.0), prompt=Lengths(mean=64), output=Lengths(mean=4))
    first = simulate_steady(deployment(), traffic, precision=RunPrecision(tolerance=0.9, percentile=99, fewest=1))
    assert first.converged and len(first.records.prompt) == 10_667
    short = simulate_steady(deployment(), traffic, precision=RunPrecision(tolerance=0.9, percentile=99, most=6000))
    assert not short.converged and short.interval("ttft", 99) is None and short.interval("ttft", 95) is not None
    with pytest.raises(UsageError, match="a percentile is in"):
        RunPrecision(percentile=101)


def test_halves_that_drift_do_not_agree() -> None:
    noise = np.random.default_rng(1).normal(1.0, 0.1, 4000)
    assert halves_agree(noise, 95.0, 0.03)
    assert not halves_agree(noise * np.linspace(1.0, 1.5, 4000), 95.0, 0.03)


def one_slot(load: float, precision: RunPrecision) -> tuple[SimulationResult, float]:
    """One slot, which is M/D/1, at a share of its capacity; and the seconds of a prompt alone."""
    served = deployment()
    fixed = {"prompt": Lengths(mean=2048), "output": Lengths(mean=1)}
    alone = simulate(served, Traffic(arrivals=ClosedLoop(concurrency=1), requests_count=1, **fixed))  # type: ignore[arg-type]
    service = float(alone.e2el[0])
    traffic = Traffic(arrivals=OpenLoop(rate=load / service), seed=5, **fixed)  # type: ignore[arg-type]
    return simulate_steady(served, traffic, Flags(max_num_seqs=1), precision=precision), service


@for_each("load", [0.3, 0.5])
def test_a_steady_run_meets_the_exact_queue(load: float) -> None:
    """One slot is M/D/1: p95 of TTFT is the exact wait and one prompt, within the tolerance and a bit for chance."""
    run, service = one_slot(load, RunPrecision(tolerance=0.05))
    exact = service * (1 + exact_wait(load, 0.05))
    low, high = run.interval("ttft", 95) or (0.0, 0.0)
    assert run.converged and (high - low) / 2 < 0.055 * exact
    assert float(np.percentile(run.ttft, 95)) == pytest.approx(exact, rel=0.05)


def test_length_follows_the_precision_and_the_budget() -> None:
    traffic = Traffic(arrivals=OpenLoop(rate=30.0), prompt=Lengths(mean=512), output=Lengths(mean=64))
    rough = simulate_steady(deployment(), traffic, precision=RunPrecision(tolerance=0.2, percentile=50, fewest=400))
    fine = simulate_steady(deployment(), traffic, precision=RunPrecision(tolerance=0.03))
    assert rough.converged and fine.converged and len(rough.records.prompt) < len(fine.records.prompt) / 3
    short = simulate_steady(deployment(), traffic, precision=RunPrecision(tolerance=0.001, most=3000))
    assert short.converged is False and len(short.records.prompt) == 3000
    assert short.to_dict()["run"]["converged"] is False
    with pytest.raises(UsageError, match="closed loop"):
        simulate_steady(deployment(), replace(traffic, arrivals=ClosedLoop(concurrency=2)))
    with pytest.raises(UsageError, match="tolerance"):
        RunPrecision(tolerance=0.0)


def test_a_run_near_capacity_ends_where_more_would_not_settle_it() -> None:
    """At 97 % of an M/D/1 queue's capacity neighbours stay alike for thousands of requests: the errors of some 30,000
    are many times the 2 % asked for, and too small at that. The interval says so.
    """
    near, _ = one_slot(0.97, RunPrecision())
    assert near.converged is False and 30_000 <= len(near.records.prompt) < 100_000
    low, high = near.interval("ttft", 95) or (0.0, 0.0)
    assert (high - low) / 2 > 2**0.5 * 0.02 * float(np.percentile(near.ttft, 95))


def test_what_is_counted_without_fill_and_drain() -> None:
    """One request each 100 ms, all alike: in the window the rate is ten a second, and Little's law gives the number."""
    traffic = Traffic(arrivals=OpenLoop(rate=10.0, kind="constant"), prompt=Lengths(mean=512), output=Lengths(mean=200))
    whole, middle = (
        simulate(deployment(), replace(traffic, requests_count=80), None, Options(trim=trim)) for trim in (False, True)
    )
    assert middle.warmup == 20 and middle.window == (pytest.approx(2.0), pytest.approx(7.9))
    time = float(np.mean(middle.e2el))
    assert middle.cooldown == int(time * 10) + 1  # those of the last request's time
    assert middle.request_rate == pytest.approx(10.0, rel=0.02)
    assert middle.in_system == pytest.approx(10 * time, rel=0.02)
    # the fill and the drain are idle time to rates, and small batches to meters
    assert middle.mean_batch == pytest.approx(10 * float(np.mean(middle.e2el - middle.ttft)), rel=0.02)
    assert whole.request_rate < 0.92 * 10.0 and whole.mean_batch < 0.95 * middle.mean_batch


def test_conversations_are_counted_while_as_many_begin_as_end() -> None:
    """Four turns with half a minute between: four requests per second come, all turns alike, and four leave."""
    traffic = Traffic(
        arrivals=OpenLoop(rate=4.0),
        prompt=Lengths(mean=200),
        output=Lengths(mean=50),
        prefix=SharedPrefix(turns=4, think=ThinkTime(kind="exponential", mean=30.0)),
    )
    run = simulate_steady(deployment(), traffic)
    arrival, begins = np.asarray(run.records.arrival), run.records.begins
    assert run.converged and run.request_rate == pytest.approx(4.0, rel=0.03)
    start, end = run.window
    assert end == pytest.approx(float(np.max(arrival[begins]))) and arrival[begins][0] + 90 < start < end - 10 * 90
    assert float(np.max(run.arrival)) <= end
    assert float(np.mean(begins[run.counted])) == pytest.approx(0.25, abs=0.02)


def test_thinking_beyond_the_run_counts_what_there_is() -> None:
    """The last conversation begins before the fill is over: meters still have an end, and nothing is concluded."""
    traffic = Traffic(
        arrivals=OpenLoop(rate=100.0),
        prompt=Lengths(mean=200),
        output=Lengths(mean=5),
        prefix=SharedPrefix(turns=8, think=ThinkTime(mean=1000.0)),
        requests_count=400,
    )
    run = simulate(deployment(), traffic, None, Options(trim=True))
    assert run.window[1] == pytest.approx(float(np.max(np.asarray(run.records.arrival)))) and run.window[0] > 900
    assert run.verdict == "too short to tell"


def test_a_load_of_which_nothing_runs_does_not_converge() -> None:
    traffic = Traffic(arrivals=OpenLoop(rate=1.0), prompt=Lengths(mean=1_000_000), output=Lengths(mean=2))
    run = simulate_steady(deployment(), traffic)
    assert run.verdict == "rejecting" and run.converged is None and len(run.records.prompt) == 20


def test_arrivals_that_keep_their_rate_are_still_random() -> None:
    rng = np.random.default_rng(0)
    exact = OpenLoop(rate=5.0, exact=True).sample(rng, 8000)
    for quarter in range(1, 5):
        assert exact[2000 * quarter - 1] == pytest.approx(400.0 * quarter)
    gaps = np.diff(exact)
    assert float(np.std(gaps) / np.mean(gaps)) == pytest.approx(1.0, abs=0.05)
    assert len(OpenLoop(rate=5.0, exact=True).sample(rng, 2)) == 2


def test_loads_that_no_clock_and_no_memory_holds() -> None:
    with pytest.raises(UsageError, match="out of range"):
        OpenLoop(rate=1e-300)
    with pytest.raises(UsageError, match="more than a run can hold"):
        Traffic(arrivals=ClosedLoop(concurrency=10**9), prompt=Lengths(), output=Lengths()).requests()
    with pytest.raises(UsageError, match="more than a run can hold"):
        Traffic(arrivals=OpenLoop(rate=1), prompt=Lengths(), output=Lengths(), requests_count=MOST_REQUESTS + 1).count


def test_the_capacity_of_pools_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas that decode carry twice what one does, and a few thousand requests tell."""
    traffic = Traffic(arrivals=OpenLoop(rate=1.0), prompt=Lengths(mean=256), output=Lengths(mean=128))
    sent: list[int] = []

    def counted(served: Deployment, requests: Requests, *more: Any) -> SimulationResult:
        sent.append(len(requests))
        return simulate(served, requests, *more)

    monkeypatch.setattr(run_length, "simulate", counted)

    def rate(decode: int) -> float:
        options = Options(fleet=Fleet(prefill=2, decode=decode))
        found = capacity_rate(deployment(), traffic, Flags(max_num_seqs=16), options)
        assert found is not None
        return found

    assert rate(2) == pytest.approx(2 * rate(1), rel=0.05)
    assert max(sent) < 20_000
