"""Pipelines and lockstep ranks: hand-computed flow shops, an independent replay, and laws."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.engine import Policy
from inferplan.devices.engine import SchedulerDefaults as Defaults
from inferplan.errors import InfeasibleError
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.serving.admission import Rules
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.flow_shop import FlowShop, Passage
from inferplan.serving.options import Options
from inferplan.serving.pipeline import Pipeline
from inferplan.serving.records import Records
from inferplan.serving.replica import Replica
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.simulator import simulate
from inferplan.serving.step_times import NO_PROMPTS, Chunk
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, Requests, Traffic
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.serving.conftest import deployment
from tests.serving.pipeline_replay import Engine, Piece, Served, replay
from tests.serving.plain_time import BATCHING


@dataclass
class Times:
    """Stands in for step tables: seconds on each station are linear in what a batch holds."""

    stages: int
    host: float = 0.0
    host_sequence: float = 0.0
    row: float = 1.0
    """Seconds for each row of a batch on each stage."""
    pair: float = 0.0
    experts: float = 0.0
    """Seconds on each stage for each row that the mean rank brings."""
    fixed: float = 0.0
    width: int = 1

    def rows(self, batch: float, chunk: Chunk = NO_PROMPTS) -> float:
        return batch + chunk.tokens

    def stations(
        self, batch: float, context: float, chunk: Chunk = NO_PROMPTS, beside: float | None = None
    ) -> list[float]:
        rows = self.rows(batch, chunk)
        stage = self.fixed + self.row * rows + self.pair * chunk.pairs
        stage += self.experts * (rows if beside is None else beside)
        skew = [1.0 + 0.1 * index for index in range(self.stages)]  # stages are not alike
        return [self.host + self.host_sequence * (batch + chunk.prompts), *(stage * factor for factor in skew)]

    def decode(self, batch: int, context: float) -> float:
        return sum(self.stations(batch, context))

    def mixed(self, batch: int, context: float, chunk: Chunk) -> float:
        return sum(self.stations(batch, context, chunk))


@dataclass
class Even(Times):
    """All stages alike."""

    def stations(
        self, batch: float, context: float, chunk: Chunk = NO_PROMPTS, beside: float | None = None
    ) -> list[float]:
        host, first, *rest = super().stations(batch, context, chunk, beside)
        return [host, first, *(first for _ in rest)]


def rules(policy: Policy = "vllm", **more: object) -> Rules:
    given: dict[str, object] = {
        "slots": 1000,
        "budget": 1000,
        "longest": 10**6,
        "capacity": 1e9,
        "scheduler": Defaults(
            admission={"vllm": "prompt", "sglang": "ratio", "trtllm": "reserve"}.get(policy, "prompt")
        ),
    }
    return Rules(policy=policy, batching=BATCHING[policy], **{**given, **more})  # type: ignore[arg-type]


def serve(
    requests: list[tuple[float, int, int]],
    times: Times,
    rules: Rules,
    ranks: list[int] | None = None,
    plain: bool = False,
) -> tuple[Records, list[Scheduler]]:
    """Serve (arrival, prompt, output) on one replica; ``ranks`` says on which rank each."""
    records = Records(
        arrival=[r[0] for r in requests], prompt=[r[1] for r in requests], output=[r[2] for r in requests]
    )
    ranks = ranks or [0] * len(requests)
    schedulers = [Scheduler(rules, records, lambda *_: None, lanes=times.stages) for _ in range(max(ranks) + 1)]
    engine = Replica(times, schedulers[0]) if plain else Pipeline(times, schedulers)  # type: ignore[arg-type]
    for request, (arrival, _, _) in enumerate(requests):
        schedulers[ranks[request]].submit(request, arrival)
    engine.advance(inf)
    return records, schedulers


# --- by hand --------------------------------------------------------------------------------------------------------


def test_a_prompt_alone_passes_every_stage() -> None:
    # host 1 s, two stages of 1 s a token each: 1 + 2 x 10; then one token a pass, 1 + 2 x 1
    records, _ = serve([(5.0, 10, 3)], Even(2, host=1.0), rules())
    assert list(records.first) == [26.0] and list(records.finish) == [32.0]


def test_pieces_of_a_prompt_follow_each_other_through_the_stages() -> None:
    # 30 tokens in three pieces of 10 on two stages of 10 s a piece: 0-10-20, 10-20-30, 20-30-40, not 60
    records, _ = serve([(0.0, 30, 1)], Even(2), rules(budget=10))
    assert list(records.first) == [40.0]
    # TensorRT-LLM schedules no request in flight: one piece after another
    records, _ = serve([(0.0, 30, 1)], Even(2), rules("trtllm", budget=10))
    assert list(records.first) == [60.0]


def test_the_worker_of_each_stage_prepares_a_batch() -> None:
    # host 1 s, pieces of 10 on two stages. The first: host 0-1, 1-11, 11-21. The second: host 1-2; the worker of
    # stage 1 is done at 11 and ready at 12: 12-22; that of stage 2 at 22: 22-32
    records, _ = serve([(0.0, 20, 1)], Even(2, host=1.0), rules(budget=10))
    assert list(records.first) == [32.0]


def test_two_batches_share_the_stages() -> None:
    # budget 10: two prompts of 10, a batch each; lane 1 passes stages 0-10-20, lane 2 10-20-30.
    # Lane 1 decodes at 20 on stage 1, which lane 2 has left: 21; stage 2 is busy until 30: 31.
    # Lane 2 starts at 30, stage 1 is free: 31, stage 2: 32.
    records, _ = serve([(0.0, 10, 2), (0.0, 10, 2)], Even(2), rules(budget=10))
    assert list(records.first) == [20.0, 30.0]
    assert list(records.finish) == [31.0, 32.0]


def test_decoding_lanes_keep_every_stage_busy() -> None:
    # two lanes of one request each, stages of 1 s: each lane has a token every max(pass 2, stage 2 x 1) = 2 s,
    # so 2 requests make a token a second; one lane of both would take 2 x 2 s for two tokens
    records, _ = serve([(0.0, 10, 101), (0.0, 10, 101)], Even(2), rules(budget=10))
    assert records.finish[0] - records.first[0] == pytest.approx(11 + 99 * 2)
    together, _ = serve([(0.0, 5, 101), (0.0, 5, 101)], Even(2), rules(budget=10))
    assert together.finish[0] - together.first[0] == pytest.approx(100 * 4)


def test_an_arrival_waits_for_the_batch_in_flight() -> None:
    # the only lane decodes, 2 s a pass from 20 on; an arrival at 23 is seen when it is back, at 24, and joins it:
    # 11 rows on two stages
    records, _ = serve([(0.0, 10, 9), (23.0, 10, 1)], Even(2), rules())
    assert list(records.first) == [20.0, 24.0 + 22.0]
    assert records.finish[0] == 46.0 + 5 * 2.0  # tokens at 20, 22, 24, 46, and five more


def test_sglang_gives_each_lane_its_share_of_the_slots() -> None:
    # four slots on two stages: two requests a lane, though the budget would take all four at once
    _, (scheduler,) = serve([(0.0, 10, 50)] * 4, Even(2), rules("sglang", slots=4))
    assert [lane.steps for lane in scheduler.lanes] == [49, 49]
    _, (scheduler,) = serve([(0.0, 10, 50)] * 4, Even(2), rules("vllm", slots=4))
    assert [lane.steps for lane in scheduler.lanes] == [49, 0]


def test_a_static_batch_is_spread_over_the_stages() -> None:
    # four prompts of 10 on two stages: two a lane; 0-20-40 and 20-40-60
    records, (scheduler,) = serve([(0.0, 10, 5)] * 4, Even(2), rules("static", budget=1 << 50))
    assert list(records.first) == [40.0, 40.0, 60.0, 60.0]
    assert [lane.steps for lane in scheduler.lanes] == [4, 4]


def test_ranks_that_share_experts_wait_for_the_slowest() -> None:
    # rank 0 decodes from 10 on, 1 s a token; rank 1 has a prompt of 50 at 12.5, seen at 13: both are done at 63
    records, _ = serve([(0.0, 10, 6), (12.5, 50, 2)], Even(1), rules(), ranks=[0, 1])
    assert list(records.first) == [10.0, 63.0]
    assert list(records.finish) == [10.0 + 3 + 50 + 1, 64.0]


def test_experts_take_the_rows_of_all_ranks() -> None:
    # rank 0 brings 30 rows, rank 1 10: experts 20 s, beside 30 s of rank 0's own; then one row each: 1 + 1
    records, _ = serve([(0.0, 30, 2), (0.0, 10, 2)], Even(1, experts=1.0), rules(), ranks=[0, 1])
    assert list(records.first) == [50.0, 50.0] and list(records.finish) == [52.0, 52.0]
    # a rank without requests takes part: the mean rank brings half of the rows
    records, _ = serve([(0.0, 30, 2)], Even(1, experts=1.0), rules(), ranks=[0])
    assert list(records.first) == [60.0]
    alone, _ = serve([(0.0, 30, 2), (1e9, 1, 1)], Even(1, experts=1.0), rules(), ranks=[0, 1])
    assert alone.first[0] == 45.0


def test_cycles_repeat_once_they_are_alike() -> None:
    # two lanes, stations 0 / 3 / 1: every lane is back after max(pass 4, station 3 + 3) = 6 s
    shop = FlowShop(3)
    back = [shop.send(0.0, Passage((0.0, 3.0, 1.0))), shop.send(0.0, Passage((0.0, 3.0, 1.0)))]
    assert back == [4.0, 7.0]
    found = list(shop.cycles(back, [Passage((0.0, 3.0, 1.0))] * 2, 100, inf))
    assert sum(count for count, _ in found) == 100 and len(found) < 6
    # stage 1 has worked without a pause since 0: 202 batches of 3 s, and the last passes stage 2 as well
    assert found[-1][1] == pytest.approx([201 * 3 + 1, 202 * 3 + 1])
    # lane 2 comes at 20: the first cycle takes lane 1 from 4 to 27 and lane 2 from 24 to 30, those after it 6 s each;
    # stage 1 works without a pause from 20 on: 201 batches of 3 s
    shop = FlowShop(3)
    back = [shop.send(0.0, Passage((0.0, 3.0, 1.0))), shop.send(20.0, Passage((0.0, 3.0, 1.0)))]
    found = list(shop.cycles(back, [Passage((0.0, 3.0, 1.0))] * 2, 100, inf))
    assert found[0] == (1, [27.0, 30.0])
    assert found[-1][1] == pytest.approx([20 + 200 * 3 + 1, 20 + 201 * 3 + 1])
    # none is sent at or after the bound
    shop = FlowShop(2)
    back = [shop.send(0.0, Passage((0.0, 2.0)))]
    assert [sum(count for count, _ in shop.cycles(back, [Passage((0.0, 2.0))], 100, bound)) for bound in (7.0,)] == [3]
    assert shop.free == [6.0, 8.0]


# --- against the replay ---------------------------------------------------------------------------------------------

SEEDS = range(150)


@for_each("stages, ranks", [(2, 1), (4, 1), (1, 2), (1, 4), (2, 2)])
@for_each("policy", ["vllm", "trtllm"])
def test_every_request_agrees_with_the_replay(stages: int, ranks: int, policy: Policy) -> None:
    preempted = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        count = rng.randint(1, 25)
        tight = policy == "vllm" and rng.random() < 0.5
        longest = rng.choice([5, 60])
        requests = sorted(
            (rng.choice([0.0, rng.uniform(0, 300)]), rng.randint(1, longest), rng.randint(1, 40)) for _ in range(count)
        )
        homes = [rng.randrange(ranks) for _ in requests]
        homes[0] = ranks - 1
        slots = rng.choice([2, 4, 30])
        budget = rng.choice([slots + 1, 40, 200])
        capacity = rng.randint(101, 200) if tight else 10**9
        times = Times(
            stages=stages,
            host=rng.choice([0.0, 0.3, 5.0]),
            host_sequence=rng.choice([0.0, 0.01]),
            row=rng.choice([0.0, 0.02]),
            pair=rng.choice([0.0, 1e-3]),
            experts=rng.choice([0.0, 0.05]),
            fixed=rng.uniform(0.1, 1.0),
        )
        scheduler = Defaults(admission="prompt")
        records, schedulers = serve(
            requests,
            times,
            rules(policy, slots=slots, budget=budget, capacity=float(capacity), scheduler=scheduler),
            homes,
        )
        served = [Served(*request, rank) for request, rank in zip(requests, homes)]

        def stations(parts: list[tuple[int, list[Piece]]], times: Times = times) -> list[float]:
            rows = [decodes + sum(new for new, _ in pieces) for decodes, pieces in parts]
            own = [
                times.fixed
                + times.row * count
                + times.pair * sum(new * past + new * (new + 1) / 2 for new, past in pieces)
                + times.experts * sum(rows) / len(rows)
                for count, (_, pieces) in zip(rows, parts)
                if count
            ]
            host = max(times.host + times.host_sequence * (decodes + len(pieces)) for decodes, pieces in parts)
            return [host, *(max(own) * (1 + 0.1 * stage) for stage in range(times.stages))]

        engine = Engine(stages, ranks, slots, budget, capacity, strict=policy == "trtllm")
        replay(served, engine, stations)
        assert records.first == pytest.approx([r.first for r in served], rel=1e-9), seed
        assert records.finish == pytest.approx([r.finish for r in served], rel=1e-9), seed
        assert [records.preempted.get(i, 0) for i in range(count)] == [r.preempted for r in served], seed
        if not times.host and not records.preempted:  # from its first token to its last a request is always in a batch
            decoding = sum(scheduler.meter.batch_seconds for scheduler in schedulers)
            assert decoding == pytest.approx(sum(records.finish) - sum(records.first)), seed
        preempted += sum(r.preempted for r in served)
    assert (preempted > 20) == (policy == "vllm")


@for_each("policy", ["vllm", "sglang", "trtllm", "static"])
@for_each(("overlapped", "late"), [(False, False), (True, False), (True, True)])
def test_one_rank_on_one_stage_is_a_plain_replica(policy: Policy, overlapped: bool, late: bool) -> None:
    """Two event loops, one engine: request by request, and in what they meter.

    Left out is what the plain loop looks at once in a run of steps only: polling, batch wait, the ratio of SGLang, and
    arrivals that an overlapped scheduler has no slot for.
    """
    for seed in range(60):
        rng = random.Random(seed)
        requests = sorted(
            (rng.choice([0.0, rng.uniform(0, 300)]), rng.randint(1, 60), rng.randint(1, 40))
            for _ in range(rng.randint(1, 25))
        )
        made = rules(
            policy,
            slots=30 if overlapped else rng.choice([2, 4, 30]),
            budget=1 << 50 if policy == "static" else rng.choice([40, 200]),
            capacity=10.0**9 if policy == "sglang" else float(rng.choice([120, 10**9])),
            overlapped=overlapped and policy != "static",
            seen_late=late and policy != "static",
            timeout=rng.choice([inf, 60.0]),
        )
        times = Times(stages=1, host=rng.choice([0.0, 0.3]), row=0.02, pair=1e-3, fixed=rng.uniform(0.1, 1.0))
        (plain, (one,)), (piped, (other,)) = (serve(requests, times, made, plain=way) for way in (True, False))
        for name in ("admitted", "first", "finish"):
            assert getattr(piped, name) == pytest.approx(getattr(plain, name), rel=1e-9, nan_ok=True), (seed, name)
        assert bytes(piped.status) == bytes(plain.status) and piped.preempted == plain.preempted
        for name in ("steps", "prompt_steps", "prompt_tokens", "busy", "decode_tokens", "batch_seconds"):
            assert getattr(other.meter, name) == pytest.approx(getattr(one.meter, name)), (seed, name)
        weights = sum(plain.gap_weights)
        assert sum(piped.gap_weights) == pytest.approx(weights)
        gaps = [float(np.dot(records.gaps, records.gap_weights)) for records in (plain, piped)]
        assert gaps[1] == pytest.approx(gaps[0])


# --- deployments ----------------------------------------------------------------------------------------------------


def test_a_busier_pipeline_never_brings_a_prompt_sooner() -> None:
    """A prompt of 8,000 tokens on a 70B model in two and four stages: its pass through all stages at the least."""
    for stages in (1, 2, 4):
        served = deployment("llama-3.1-70b", "h100-sxm", quant="fp8", parallel=Parallelism(tp=2, pp=stages))
        alone = Requests(prompt=np.array([8000]), output=np.array([2]), arrival=np.array([1.0]))
        first = float(simulate(served, alone).ttft[0])
        assert first == pytest.approx(0.367, rel=0.003)  # one pass: 8,000 tokens through 70B weights on two devices
        for neighbours in (1, 3, 12):
            requests = Requests(
                prompt=np.array([16] * neighbours + [8000]),
                output=np.array([400] * neighbours + [2]),
                arrival=np.array([0.0] * neighbours + [1.0]),
            )
            assert float(simulate(served, requests).ttft[-1]) >= first


@settings(max_examples=25, deadline=None)
@given(
    engine=st.sampled_from(["vllm", "sglang", "trtllm"]),
    stages=st.sampled_from([1, 2, 4, 8]),
    prompt=st.integers(1, 20_000),
    neighbours=st.integers(1, 40),
    budget=st.sampled_from([512, 2048, 8192]),
    ideal=st.booleans(),
)
def test_a_neighbour_never_lowers_a_time_to_first_token(
    engine: str, stages: int, prompt: int, neighbours: int, budget: int, ideal: bool
) -> None:
    """Prompts of one piece and of many."""
    served = deployment(engine=engine, ideal=ideal, parallel=Parallelism(pp=stages))
    flags = Flags(max_num_batched_tokens=budget, chunked_prefill=True)
    times = {}
    for count in (0, neighbours):
        requests = Requests(
            prompt=np.array([40] * count + [prompt]),
            output=np.array([300] * count + [2]),
            arrival=np.array([0.0] * count + [0.2]),
        )
        times[count] = float(simulate(served, requests, flags).ttft[-1])
    assert times[neighbours] >= times[0] * (1 - 1e-9)


@for_each("engine", ["vllm", "sglang", "trtllm", "none"])
def test_one_request_alone_takes_its_passes(engine: str) -> None:
    served = deployment(engine=engine, parallel=Parallelism(pp=2))
    run = simulate(served, Requests(prompt=np.array([1024]), output=np.array([256]), arrival=np.array([0.0])))
    alone = estimate(served, StaticLoad(batch=1.0, prompt=1024.0, output=256.0))
    assert float(run.ttft[0]) == pytest.approx(float(alone.ttft), rel=1e-3)
    assert float(run.tpot[0]) == pytest.approx(float(alone.tpot), rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(
    engine=st.sampled_from(["vllm", "sglang", "trtllm", "none"]),
    parallel=st.sampled_from([Parallelism(pp=2), Parallelism(pp=4), Parallelism(dp=2), Parallelism(pp=2, dp=2)]),
    users=st.integers(1, 40),
    prompt=st.integers(2, 6000),
    output=st.integers(2, 400),
    slots=st.integers(1, 64),
    rate=st.one_of(st.none(), st.floats(0.5, 100)),
    ideal=st.booleans(),
)
def test_nothing_is_lost_and_work_is_conserved(
    engine: str,
    parallel: Parallelism,
    users: int,
    prompt: int,
    output: int,
    slots: int,
    rate: float | None,
    ideal: bool,
) -> None:
    served = deployment("olmoe-1b-7b-0924", "l4", ideal=ideal, engine=engine, parallel=parallel)
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=users) if rate is None else OpenLoop(rate=rate),
        prompt=Lengths(kind="uniform", mean=prompt, spread=0.5),
        output=Lengths(kind="uniform", mean=output, spread=0.5),
        requests_count=60,
    )
    flags = Flags(max_num_seqs=slots, max_num_batched_tokens=1024, max_model_len=9500)
    try:
        run = simulate(served, traffic, flags, Options(timeline=True))
    except InfeasibleError:
        return
    counts = run.counts
    assert counts["arrived"] == 60 and counts["waiting"] == 0
    done = np.frombuffer(bytes(run.records.status), dtype=np.uint8) == 1
    prompts, outputs = np.asarray(run.records.prompt)[done], np.asarray(run.records.output)[done]
    computed = sum(meter.prompt_tokens for meter in run.meters)
    if not run.preemptions:
        assert computed == pytest.approx(prompts.sum())
        if engine != "none":
            assert sum(meter.decode_tokens for meter in run.meters) == pytest.approx((outputs - 1).sum())
    else:
        assert computed > prompts.sum()
    assert sum(run.records.gap_weights) == pytest.approx((outputs - 1).sum())
    if not run.conditions["seen_late"] or parallel.pp > 1:
        gaps = float(np.dot(run.records.gaps, run.records.gap_weights))
        assert gaps == pytest.approx(float((run.e2el - run.ttft).sum()), rel=1e-6, abs=1e-9)
    assert np.all(run.ttft > 0)
    assert run.kv_use["peak"] <= 1.0 + 1e-9
    if done.all():  # Little's law
        assert run.in_system == pytest.approx(run.request_rate * float(run.e2el.mean()), rel=1e-6)
    for meter in run.meters:
        assert meter.timeline is not None
        assert sum(entry[1] for entry in meter.timeline) == pytest.approx(meter.busy)
        assert sum(entry[2] for entry in meter.timeline) == meter.steps


def test_four_stages_serve_almost_four_times_the_users() -> None:
    """64 users a stage in place of 64: each lane's stages take a quarter of the weights and of the cache to read."""
    rates = {}
    for stages in (1, 4):
        traffic = Traffic(
            arrivals=ClosedLoop(concurrency=64 * stages),
            prompt=Lengths(mean=512),
            output=Lengths(kind="uniform", mean=256, spread=0.5),
            requests_count=640 * stages,
        )
        served = deployment("llama-3.1-8b", parallel=Parallelism(pp=stages))
        rates[stages] = simulate(served, traffic, Flags(max_num_batched_tokens=2048)).output_rate
    assert 2.5 < rates[4] / rates[1] < 4.0  # never more; lanes are not filled evenly


def test_ranks_step_together_only_where_they_share_experts() -> None:
    dense = deployment("llama-3.1-8b", parallel=Parallelism(dp=2))
    shared = deployment("olmoe-1b-7b-0924", parallel=Parallelism(dp=2))
    assert (dense.coupled_ranks, shared.coupled_ranks) == (1, 2)
    assert deployment("olmoe-1b-7b-0924").coupled_ranks == 1
    requests = Requests(
        prompt=np.array([16, 3000]), output=np.array([200, 2]), arrival=np.array([0.0, 0.05])
    )  # round-robin: the decode on rank 0, the prompt on rank 1
    for served, waits in ((dense, False), (shared, True)):
        both = simulate(served, requests)
        alone = simulate(served, requests.head(1))
        late = float(both.e2el[0] - alone.e2el[0])
        assert late == pytest.approx(float(both.ttft[1]), rel=0.2) if waits else late == 0.0


def test_fleets_of_pipelines_and_of_lockstep_ranks() -> None:
    traffic = Traffic(
        arrivals=OpenLoop(rate=20.0), prompt=Lengths(mean=512), output=Lengths(mean=64), requests_count=200
    )
    for parallel in (Parallelism(pp=2, replicas=2), Parallelism(dp=2, replicas=2)):
        for fleet in (
            Fleet(),
            Fleet(routing="least-loaded"),
            Fleet(routing="prefix-aware"),
            Fleet(prefill=1, decode=2),
        ):
            own = replace(parallel, replicas=1) if fleet.disaggregated else parallel  # pools have numbers of their own
            served = deployment("olmoe-1b-7b-0924", "h100-sxm", parallel=own)
            run = simulate(served, traffic, options=Options(fleet=fleet))
            assert run.counts["finished"] == 200
            assert sum(meter.decode_tokens for meter in run.meters) == 200 * 63
            loop = simulate(served, replace(traffic, arrivals=ClosedLoop(concurrency=12)), options=Options(fleet=fleet))
            assert loop.counts["finished"] == 200


@for_each(
    ("model", "gpu", "degrees", "loop"),
    [
        ("gpt-oss-20b", "b200-hgx", {"dp": 2, "ep": 2, "replicas": 2}, (3, 20)),
        ("llama-3.1-8b", "b200-hgx", {"pp": 2, "replicas": 3}, (2, 40)),
        ("olmoe-1b-7b-0924", "l4", {"dp": 2, "ep": 2}, (2, 60)),
    ],
)
def test_a_pause_between_two_batches_loses_nobody(
    model: str, gpu: str, degrees: dict[str, int], loop: tuple[int, int]
) -> None:
    """A client's next request may come just when a batch is back and its lane rests: that lane still has work."""
    deployment = assemble(Request(model=model, gpu=gpu, ideal=True, parallel=Parallelism(**degrees)))
    users, count = loop
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=users), prompt=Lengths(mean=17), output=Lengths(mean=50), requests_count=count
    )
    assert simulate(deployment, traffic).counts["finished"] == count
