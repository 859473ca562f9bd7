"""An engine may be advanced in any slices of time: what happens, and what its meters say, is the same."""

from __future__ import annotations

import random
from math import inf

import pytest

from inferplan.devices.engine import Policy
from inferplan.serving.admission import Rules
from inferplan.serving.pipeline import Pipeline
from inferplan.serving.records import Records
from inferplan.serving.replica import Replica
from inferplan.serving.scheduler import Scheduler
from tests.cases import for_each
from tests.serving.test_pipeline import Even, Times, rules

Sent = list[tuple[float, int, int]]


def served(requests: Sent, times: Times, made: Rules, slices: list[float]) -> tuple[Records, Scheduler]:
    """Serve (arrival, prompt, output); requests are known to the engine only when a slice reaches them."""
    records = Records(
        arrival=[r[0] for r in requests], prompt=[r[1] for r in requests], output=[r[2] for r in requests]
    )
    scheduler = Scheduler(made, records, lambda *_: None, lanes=times.stages)
    engine = Replica(times, scheduler) if times.stages == 1 else Pipeline(times, [scheduler])  # type: ignore[arg-type]
    engine.reactive = False
    sent = 0
    for until in [*sorted(slices), inf]:
        while sent < len(requests) and requests[sent][0] < until:
            scheduler.submit(sent, requests[sent][0])
            sent += 1
        engine.advance(until)
    return records, scheduler


@for_each("stages", [1, 2])
def test_the_cache_is_metered_step_by_step(stages: int) -> None:
    """One request of 100 + 301 tokens in a cache of 1,000, every step (a pass of both stages) a second: 100 tokens in
    the first step, then 101, 102, ... 400.
    """
    for slices in ([], [7.5, 7.6, 150.0, 299.0]):
        _, scheduler = served([(0.0, 100, 301)], Even(stages, row=0.0, fixed=1 / stages), rules(capacity=1e3), slices)
        meter = scheduler.meter
        assert meter.busy == pytest.approx(301.0)
        assert meter.kv_peak == pytest.approx(0.4)
        assert meter.kv_seconds == pytest.approx((100 + sum(range(101, 401))) / 1e3, rel=2e-3 if stages > 1 else 1e-9)


def test_a_timeline_shows_how_the_cache_fills() -> None:
    records = Records(arrival=[0.0], prompt=[100], output=[301])
    scheduler = Scheduler(rules(capacity=1e3), records, lambda *_: None)
    scheduler.meter.timeline = []
    engine = Replica(Times(1, row=0.0, fixed=1.0), scheduler)  # type: ignore[arg-type]
    scheduler.submit(0, 0.0)
    engine.advance(inf)
    timeline = scheduler.meter.timeline
    assert sum(entry[2] for entry in timeline) == 301 and sum(entry[1] for entry in timeline) == pytest.approx(301.0)
    for start, duration, steps, _, tokens, _, share in timeline:
        assert share == pytest.approx((100 + (start + duration - 1)) / 1e3)  # a token a second from the first second on
        assert tokens in (0, 100) and steps <= 11
    ends = [start + duration for start, duration, *_ in timeline]
    assert [entry[0] for entry in timeline[1:]] == pytest.approx(ends[:-1])


@for_each("policy", ["vllm", "sglang", "trtllm", "static"])
@for_each(("overlapped", "late"), [(False, False), (True, False), (True, True)])
def test_any_slices_of_time_are_one_run(policy: Policy, overlapped: bool, late: bool) -> None:
    """Arrivals that are sent ahead, or when they come, are seen in the same step."""
    for seed in range(80):
        rng = random.Random(seed)
        requests = sorted(
            (rng.choice([0.0, rng.uniform(0, 100)]), rng.randint(1, 60), rng.randint(1, 40))
            for _ in range(rng.randint(1, 15))
        )
        made = rules(
            policy,
            slots=rng.choice([1, 2, 30]),
            budget=1 << 50 if policy == "static" else rng.choice([40, 200]),
            capacity=10.0**9 if policy == "sglang" else float(rng.choice([120, 10**9])),
            overlapped=overlapped and policy != "static",
            seen_late=late and policy != "static",
            poll_interval=1 if policy == "static" else rng.choice([1, 1, 3, 8]),
        )
        times = Times(stages=1, host=rng.choice([0.0, 0.3]), row=0.02, pair=1e-3, fixed=rng.uniform(0.1, 1.0))
        whole, one = served(requests, times, made, [1e9])
        slices = [rng.uniform(0, 150) for _ in range(rng.randint(1, 60))]
        sliced, other = served(requests, times, made, [*slices, *(arrival for arrival, _, _ in requests)])
        for name in ("admitted", "first", "finish"):
            assert list(getattr(sliced, name)) == pytest.approx(list(getattr(whole, name)), rel=1e-9, nan_ok=True), seed
        for name in ("steps", "busy", "kv_seconds", "kv_peak", "batch_seconds", "decode_tokens"):
            assert getattr(other.meter, name) == pytest.approx(getattr(one.meter, name)), (seed, name)


def test_a_freed_slot_is_taken_by_who_is_there() -> None:
    """One slot, steps of a second, overlapped: the second request came while the first ran, and starts when that is
    done; the first one's last token is seen late, with the next step.
    """
    made = rules(slots=1, overlapped=True, seen_late=True)
    records, _ = served([(0.0, 10, 5), (1.5, 10, 2)], Times(1, row=0.0, fixed=1.0), made, [])
    assert list(records.admitted) == [0.0, 5.0]
    assert records.finish[0] == 6.0
