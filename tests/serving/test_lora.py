"""LoRA under load: slots as an LRU cache, loads, who may overtake, and what a step costs."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.engine import EngineFlags
from inferplan.errors import MissingFactError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import run_step
from inferplan.estimate.run import estimate
from inferplan.serving.adapter_times import around
from inferplan.serving.flags import Flags
from inferplan.serving.launches import eager_floors
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult, record_of
from inferplan.serving.simulator import simulate
from inferplan.traffic.popularity import Popularity
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, Requests, SharedPrefix, Slo, Traffic, TrafficClass
from inferplan.work.adapters import LoraAsked
from inferplan.work.parallel import Parallelism
from inferplan.work.step import decode
from tests.cases import for_each

LOADED = 32 * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)) * 2
"""Bytes of an adapter of rank 16 on all matrices of Llama 3.1 8B, in bf16."""
RATE = 25e9


def served(slots: int = 8, **changes: Any) -> Deployment:
    given = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "lora": LoraAsked(rank=16, slots=slots)}
    return assemble(Request(**(given | changes)))


def run(deployment: Deployment, traffic: Traffic | Requests, **options: Any) -> SimulationResult:
    return simulate(deployment, traffic, Flags(), Options(lora_bandwidth=RATE, **options))


def traffic(adapters: Popularity | None, users: int = 1, count: int = 400, **more: Any) -> Traffic:
    short = {"prompt": Lengths(mean=16), "output": Lengths(mean=2)}
    return Traffic(arrivals=ClosedLoop(concurrency=users), requests_count=count, adapters=adapters, **(short | more))


def named(adapters: list[int], arrival: list[float], output: int = 2, prompt: int = 64) -> Requests:
    count = len(adapters)
    return Requests(
        prompt=np.full(count, prompt),
        output=np.full(count, output),
        arrival=np.asarray(arrival, dtype=float),
        adapters=np.asarray(adapters),
    )


def replay(adapters: list[int], slots: int) -> int:
    """Hits of an LRU cache that is asked for one adapter after another."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for adapter in adapters:
        hits += adapter in cache
        cache[adapter] = None
        cache.move_to_end(adapter)
        if len(cache) > slots:
            cache.popitem(last=False)
    return hits


@for_each(("count", "skew", "slots"), [(100, 1.0, 8), (100, 0.0, 8), (1000, 1.5, 16), (5, 0.7, 4)])
def test_hits_of_one_user_are_those_of_an_lru_replay(count: int, skew: float, slots: int) -> None:
    asked = traffic(Popularity(count=count, skew=skew), count=3000)
    drawn = asked.requests().adapters
    assert drawn is not None
    found = record_of(run(served(slots), asked))["adapters"]
    hits = replay(drawn.tolist(), slots)
    assert (found["found"], found["loaded"]) == (hits, 3000 - hits)
    assert found["hit_rate"] == pytest.approx(hits / 3000, abs=1e-3)
    assert found["load_total_s"] == pytest.approx((3000 - hits) * LOADED / RATE)


def test_hits_follow_the_approximation_of_che() -> None:
    """Che et al. 2002: adapter i is found with a chance of 1 - exp(-p_i t), t such that these add up to the slots."""
    popularity, slots = Popularity(count=200, skew=0.9), 24
    low, high = 0.0, 1e6
    for _ in range(100):
        time = (low + high) / 2
        full = np.sum(1 - np.exp(-popularity.chances * time)) > slots
        low, high = (low, time) if full else (time, high)
    expected = float(np.sum(popularity.chances * (1 - np.exp(-popularity.chances * time))))
    found = record_of(run(served(slots), traffic(popularity, count=20_000)))["adapters"]
    assert found["hit_rate"] == pytest.approx(expected, abs=0.01)


def test_one_slot_is_hit_when_the_same_adapter_comes_twice() -> None:
    """Shares of 6/11, 3/11 and 2/11: the sum of their squares, 49/121."""
    found = record_of(run(served(1), traffic(Popularity(count=3, skew=1.0), count=20_000)))["adapters"]
    assert found["hit_rate"] == pytest.approx(49 / 121, abs=0.01)


def test_popularity_is_a_power_of_the_rank() -> None:
    drawn = Popularity(count=50, skew=1.2).draw(200_000, seed=3)
    weights = [rank**-1.2 for rank in range(1, 51)]
    for rank in (0, 1, 7, 49):
        chance = weights[rank] / sum(weights)
        assert np.mean(drawn == rank) == pytest.approx(chance, abs=5 * (chance / 200_000) ** 0.5)


@for_each("users", [1, 16])
def test_each_is_loaded_once_where_there_is_room_for_all(users: int) -> None:
    found = record_of(run(served(8), traffic(Popularity(count=8, skew=0.5), users=users)))["adapters"]
    assert (found["loaded"], found["found"]) == (8, 392)
    open_loop = Traffic(
        arrivals=OpenLoop(rate=20.0),
        prompt=Lengths(mean=16),
        output=Lengths(mean=2),
        requests_count=2000,
        adapters=Popularity(count=8, skew=0.5),
    )
    assert record_of(run(served(8), open_loop, trim=True))["adapters"]["hit_rate"] == 1.0


@for_each("tp", [1, 4])
def test_a_miss_takes_its_bytes_over_the_link(tp: int) -> None:
    """Requests that never meet: the second adapter is loaded, its first token comes that much later."""
    columns = (4096 + 4096 // tp) + 2 * (4096 + 1024 // tp) + 2 * (4096 + 14336 // tp)
    rows = (4096 // tp + 4096) + (14336 // tp + 4096)
    seconds = 32 * 16 * (columns + rows) * 2 / RATE
    ttft = run(served(1, parallel=Parallelism(tp=tp)), named([0, 0, 1, 1, 0], [0.0, 5.0, 10.0, 15.0, 20.0])).ttft
    assert ttft[[0, 2, 4]] - ttft[[1, 3, 3]] == pytest.approx(seconds, rel=1e-6)
    assert ttft[1] == pytest.approx(ttft[3], rel=1e-9)


def test_who_has_no_slot_waits_and_others_pass() -> None:
    """One slot: the third request has the adapter of the first and overtakes the second, which waits for both."""
    records = run(served(1), named([0, 1, 0], [0.0, 0.2, 0.4], output=100)).records
    assert records.admitted[2] < records.finish[0] < records.finish[2]
    assert records.admitted[1] > max(records.finish[0], records.finish[2]) - 0.05
    both = run(served(2), named([0, 1, 0], [0.0, 0.2, 0.4], output=100)).records
    assert both.admitted[1] < 0.4


def test_no_more_adapters_run_at_once_than_there_are_slots() -> None:
    asked = traffic(
        Popularity(count=50, skew=0.5), users=64, count=640, output=Lengths(mean=40, spread=0.5, kind="uniform")
    )
    result = run(served(6), asked)
    records, drawn = result.records, asked.requests().adapters
    assert drawn is not None
    for now in np.asarray(records.first)[::7]:  # all of these decode at that moment
        running = {
            adapter
            for adapter, first, finish in zip(drawn.tolist(), records.first, records.finish)
            if first <= now < finish - 0.05
        }
        assert len(running) <= 6
    assert set(records.status) == {1} or not np.any(np.isnan(records.finish))


def test_every_admission_is_found_or_loaded_also_after_a_preemption() -> None:
    tight = served(8, gpu="l4", flags=EngineFlags(memory_fraction=0.94, token_budget=512), quant="fp8")
    asked = traffic(
        Popularity(count=20, skew=1.0), users=200, count=400, prompt=Lengths(mean=600), output=Lengths(mean=400)
    )
    result = run(tight, asked)
    found = record_of(result)["adapters"]
    assert result.preemptions > 0
    assert found["found"] + found["loaded"] == 400 + result.preemptions


@for_each("batch", [1, 8])
def test_steps_cost_what_the_estimate_says(batch: int) -> None:
    """As many users as slots, each with an adapter of its own, from the same moment on."""
    asked = named(list(range(batch)), [0.0] * batch, output=200, prompt=512)
    result = run(served(batch), asked)
    load = StaticLoad(batch=float(batch), prompt=512.0, output=200.0)
    assert np.mean(result.tpot) == pytest.approx(float(estimate(served(batch), load).tpot), rel=0.01)


def test_between_tabulated_numbers_of_adapters_a_line_is_enough() -> None:
    tabulated = [0]
    while tabulated[-1] < 64:
        tabulated.append(around(tabulated[-1] + 1, 64)[1])
    assert tabulated == [*range(17), *range(18, 33, 2), *range(36, 65, 4)]
    assert [around(count, 10) for count in (5, 10)] == [(5, 5), (10, 10)]
    assert [around(count, 19) for count in (17, 18, 19)] == [(16, 18), (18, 18), (19, 19)]

    def seconds(count: int) -> float:
        lora = LoraAsked(rank=64, slots=64, active=count)
        return float(run_step(served(lora=lora), decode(64.0, 1000.0, 1000.0)).time)

    for low, high in pairwise(tabulated[16:]):
        middle = (low + high) // 2
        line = seconds(low) + (seconds(high) - seconds(low)) * (middle - low) / (high - low)
        assert line == pytest.approx(seconds(middle), rel=1e-3)


def test_a_prefix_is_found_by_requests_of_the_same_adapter() -> None:
    shared = {"prefix": SharedPrefix(tokens=1024), "prompt": Lengths(mean=64), "count": 200}
    one = run(served(4), traffic(Popularity(count=1, skew=0.0), **shared))
    four = run(served(4), traffic(Popularity(count=4, skew=0.0), **shared))
    assert one.hit_rate == pytest.approx(199 / 200 * 1024 / 1088, rel=1e-6)
    assert four.hit_rate == pytest.approx(196 / 200 * 1024 / 1088, rel=1e-6)


def test_turns_and_samples_keep_their_adapter() -> None:
    turns = traffic(Popularity(count=1000, skew=0.0), users=4, count=80, prefix=SharedPrefix(turns=4)).requests()
    assert turns.adapters is not None and turns.follows is not None
    later = turns.follows >= 0
    assert np.array_equal(turns.adapters[later], turns.adapters[turns.follows[later]])
    samples = traffic(Popularity(count=1000, skew=0.0), count=20, samples=4).requests()
    assert samples.adapters is not None
    assert all(len(set(group)) == 1 for group in samples.adapters.reshape(-1, 4).tolist())


@for_each(
    ("changes", "options", "said"),
    [
        ({"lora": LoraAsked()}, {}, "the deployment has none"),
        ({"lora": LoraAsked(rank=16, slots=4, active=2)}, {}, "--active-loras is counted"),
        ({}, {"jobs": 2}, "--jobs"),
    ],
)
def test_what_is_not_simulated_is_refused(changes: dict[str, Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run(served(**changes), traffic(Popularity(count=4, skew=1.0)), **options)


def test_both_halves_are_needed_and_the_link() -> None:
    with pytest.raises(UsageError, match="the popularity of adapters"):
        run(served(), traffic(None))
    asked = traffic(Popularity(count=4, skew=1.0))
    with pytest.raises(MissingFactError, match="from the host to b200-hgx"):
        simulate(served(gpu="b200-hgx"), asked, Flags(), Options())
    found = simulate(served(gpu="l40s"), asked, Flags(), Options())  # PCIe 4.0 x16, 31 GB/s on file
    assert record_of(found)["adapters"]["load_s"] == pytest.approx(LOADED / 31e9)
    with pytest.raises(UsageError, match="--lora-skew"):
        Popularity(count=4, skew=-1.0)


def test_which_adapter_says_nothing_of_the_class() -> None:
    """Two classes and two adapters by halves, independent: a quarter of the requests has the second of both."""
    halves = [
        TrafficClass(name=name, share=0.5, prompt=Lengths(mean=16), output=Lengths(mean=2), slo=Slo()) for name in "ab"
    ]
    load = Traffic(
        arrivals=OpenLoop(rate=1.0),
        prompt=Lengths(mean=16),
        output=Lengths(mean=2),
        requests_count=40_000,
        classes=tuple(halves),
        adapters=Popularity(count=2, skew=0.0),
    )
    made = load.requests()
    assert made.adapters is not None and made.of is not None
    assert np.mean((made.adapters == 1) & (made.of == 1)) == pytest.approx(0.25, abs=0.01)


def test_more_tenants_are_never_faster_and_the_report_says_what_the_times_rest_on() -> None:
    """The same load with one adapter, with four and with sixteen, all in their slots."""
    rates = []
    for tenants in (1, 4, 16):
        load = Traffic(
            arrivals=ClosedLoop(concurrency=16),
            requests_count=120,
            prompt=Lengths(mean=64),
            output=Lengths(mean=32),
            adapters=Popularity(count=tenants, skew=0.0),
        )
        found = run(served(slots=16), load)
        rates.append(found.request_rate)
    assert rates == sorted(rates, reverse=True)
    assert any("no adapter kernel was measured" in note for note in found.conditions["model_notes"])


def test_the_first_engine_of_vllm_launches_the_kernels_of_adapters_from_python_in_every_prompt() -> None:
    """32 layers of 2.6 ms (the mean of 105/32 ms, vLLM issue 11436, and 154/80 ms, issue 13204) under a prompt of 64
    tokens, whose kernels take less; without adapters 32 of 25/32 ms."""
    first = {"engine": "vllm@0.6.4", "gpu": "a100-80gb-sxm"}
    with_one = served(slots=1, **first)
    assert eager_floors(with_one) == pytest.approx([32 * 2.6e-3])
    assert eager_floors(served(lora=LoraAsked(), **first)) == pytest.approx([32 * 0.78e-3])
    assert eager_floors(served(slots=1)) == eager_floors(served(lora=LoraAsked()))
    found = simulate(with_one, named([0], [0.0], output=1), Flags(), Options(lora_bandwidth=1e15))
    assert float(np.max(found.ttft)) == pytest.approx(32 * 2.6e-3, rel=0.01)
