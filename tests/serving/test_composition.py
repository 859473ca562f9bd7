"""Features that compose: what two of them do to a step, a pipeline, a session, computed by hand; and laws.

The device of ``plain_time``: one second a step and a tenth for each token in it, so that a mask of 3 s is 3 s.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from inferplan.answers.power import RunEnergy, run_energy
from inferplan.catalog.assemble import Request, assemble, load_engine
from inferplan.catalog.power import power_shares
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.draw import step_joules
from inferplan.estimate.phase import run_step
from inferplan.estimate.structured import MaskedSteps, MaskRows, Structured
from inferplan.serving.adapter_slots import AdapterPool, AdapterSlots
from inferplan.serving.autoscaling import Schedule
from inferplan.serving.failures import Failure, FailureMode, Failures
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.records import Meter, Records
from inferplan.serving.result import SimulationResult
from inferplan.serving.scheduler import Scheduler
from inferplan.serving.simulator import prepare, simulate
from inferplan.serving.step_price import Lane, StepModifier, price_with_modifiers
from inferplan.serving.step_times import Chunk
from inferplan.serving.techniques.speculation import PLAIN, Speculation
from inferplan.serving.techniques.tiers import CacheTier
from inferplan.traffic.conversations import ThinkTime
from inferplan.traffic.popularity import Popularity
from inferplan.traffic.reasoning import ReasoningLengths
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, Requests, SharedPrefix, Traffic, TrafficClass
from inferplan.traffic.sessions import Agent, NextCall, SessionKind, SessionTraffic
from inferplan.work.adapters import LoraAsked
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment, Step
from tests.serving.plain_time import CLOSE, plain, requests
from tests.serving.test_sessions import NEVER, figures, given

LOADED = 32 * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)) * 2
"""Bytes of an adapter of rank 16 on all matrices of Llama 3.1 8B, in bf16."""
MASK = 3.0
"""Seconds of a mask: longer than the forward pass of a few tokens, a tenth of a second each."""


def of_vllm(made: Deployment) -> Deployment:
    """The deployment under an engine whose masks are known."""
    return replace(made, engine=made.engine.model_copy(update={"masks": load_engine("vllm").masks}))


def masks(share: float = 1.0, mask_time: float = MASK, **more: Any) -> Structured:
    return Structured(share=share, mask_time=mask_time, cores=32, bandwidth=1e22, **more)


def lora(slots: int = 2, **changes: Any) -> Deployment:
    return assemble(
        Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True, lora=LoraAsked(rank=16, slots=slots), **changes)
    )


def named(adapters: list[int], arrival: list[float], output: int = 64, prompt: int = 64) -> Requests:
    count = len(adapters)
    return Requests(
        prompt=np.full(count, prompt),
        output=np.full(count, output),
        arrival=np.asarray(arrival, dtype=float),
        adapters=np.asarray(adapters),
    )


def run(made: Deployment, sent: Requests | Traffic, rate: float = 25e9, **options: Any) -> SimulationResult:
    return simulate(made, sent, Flags(), Options(lora_bandwidth=rate, **options))


# --- steps ----------------------------------------------------------------------------------------------------------


def test_masks_wait_for_the_pass_that_holds_the_adapters() -> None:
    """Two sequences, each with an adapter of its own. Masks of 1 us each add their copy and kernel to the step with
    adapters; those of 20 ms are longer than it, and the step is 40 ms, the copy and the kernel."""
    sent = named([0, 1], [0.0, 0.0])
    bare = run(lora(), sent).tpot
    after = 2 * (128_256 / 8 / 64e9 + 128_256 * (2 + 2 + 1 / 8) / 3.35e12)
    short = Structured(share=1.0, mask_time=1e-6, cores=32, bandwidth=64e9)
    assert run(lora(), sent, structured=short).tpot - bare == pytest.approx(after, rel=1e-3)
    long = run(lora(), sent, structured=replace(short, mask_time=20e-3))
    assert long.tpot == pytest.approx(40e-3 + after, rel=1e-6)


def lanes(made: Deployment, sent: Requests, lane: int = 0) -> tuple[Any, tuple[StepModifier, ...], Lane]:
    """The tables, the modifiers and a lane of the first engine of a run that has not begun."""
    run = prepare(made, sent, Flags(), Options(lora_bandwidth=25e9, structured=masks(0.5, 2e-3)))
    scheduler = run.cluster.front.pool[0]
    return run.kind.times, run.kind.modifiers, Lane(scheduler, lane)


@pytest.mark.parametrize("pp", [1, 2])
def test_the_order_of_modifiers_is_theirs_not_the_callers(pp: int) -> None:
    times, both, lane = lanes(lora(parallel=Parallelism(pp=pp)), named([0, 1, 0], [0.0, 0.0, 0.0]))
    assert [one.changes for one in both] == ["kernels", "beside"]
    one, other = (price_with_modifiers(times, order, lane) for order in (both, both[::-1]))
    adapters = lane.scheduler.admitted.adapters
    assert adapters is not None
    adapters.lanes[0].update({0: 1, 1: 2})
    chunk = Chunk(1, 64.0, 64 * 65 / 2, (2,))
    for price in (one, other):
        assert price.decode(3, 500.0) == one.decode(3, 500.0) == pytest.approx(sum(price.stations(3, 500.0)), rel=1e-9)
        assert price.mixed(2, 500.0, chunk) == pytest.approx(sum(price.stations(2, 500.0, chunk)), rel=1e-9)


def test_two_that_add_are_no_faster_than_either() -> None:
    times, both, lane = lanes(lora(slots=4), named([0, 1, 2], [0.0] * 3))
    whole = price_with_modifiers(times, both, lane)
    parts = [price_with_modifiers(times, (one,), lane) for one in both]
    adapters = lane.scheduler.admitted.adapters
    assert adapters is not None
    adapters.lanes[0].update({0: 1, 1: 1, 2: 1})
    for batch, context in product((1, 2, 3, 16, 200), (1.0, 700.0, 3000.0)):
        each = max(part.decode(batch, context) for part in parts)
        assert whole.decode(batch, context) >= each * (1 - 1e-12)  # of sums in another order


def test_masks_of_a_pipeline_are_filled_while_the_batch_is_on_its_way() -> None:
    """A lone request on two stages: a second of the host, then 3 s until its mask is there, of which a tenth is its
    pass: 4 s a token. A mask of 80 ms is hidden: 1.1 s alone. The host fills it all the same, so that of two batches in
    flight each is composed for 1.08 s, and a cycle is 2.16 s; without masks it is that of a stage, which is prepared
    for 1 s and computes for 0.05 s: 2.1 s."""
    two = of_vllm(plain(parallel=Parallelism(pp=2)))
    assert simulate(two, requests((0.0, 4, 9)), None, Options(structured=masks())).tpot == pytest.approx(4.0, rel=CLOSE)
    hidden = simulate(two, requests((0.0, 4, 9)), None, Options(structured=masks(mask_time=0.08)))
    assert hidden.tpot == pytest.approx(1.1, rel=CLOSE)
    sent = requests((0.0, 4, 40), (0.5, 4, 40))
    both = simulate(two, sent, None, Options(structured=masks(mask_time=0.08)))
    assert both.tpot == pytest.approx(2.16, rel=0.01)
    assert simulate(two, sent, None).tpot == pytest.approx(2.1, rel=0.005)
    with pytest.raises(UsageError, match="before the forward pass of a pipeline"):
        simulate(two, requests((0.0, 4, 9)), None, Options(structured=masks(overlapped=False)))


def test_masks_of_each_rank_are_its_own() -> None:
    """Two ranks with a request each: a mask of 3 s each, filled side by side: 4 s a token, as one alone."""
    two = of_vllm(plain(parallel=Parallelism(dp=2)))
    found = simulate(two, requests((0.0, 4, 9), (0.0, 4, 9)), None, Options(structured=masks()))
    assert found.tpot == pytest.approx(4.0, rel=CLOSE)
    one = simulate(of_vllm(plain()), requests((0.0, 4, 9), (0.0, 4, 9)), None, Options(structured=masks()))
    assert one.tpot == pytest.approx(1.0 + 2 * MASK, rel=CLOSE)


def test_a_sequence_with_drafts_has_a_mask_for_each_token() -> None:
    """Three drafts that are all accepted: four tokens per step, of which each has a mask: 12 s beside a pass of 0.4 s,
    and a second of the host: 13 s for four tokens."""
    drafts = Speculation(length=3, acceptance=1.0)
    found = simulate(of_vllm(plain()), requests((0.0, 4, 41)), None, Options(structured=masks(), speculation=drafts))
    assert found.tpot == pytest.approx(13.0 / 4, rel=CLOSE)
    steps = MaskedSteps(deployment=of_vllm(plain()), structured=masks(), width=4)
    assert steps.filled(MaskRows(100)) == pytest.approx(400 * MASK)  # one after another: no threads
    with pytest.raises(UsageError, match="masks of a tree"):
        simulate(
            of_vllm(plain()),
            requests((0.0, 4, 9)),
            None,
            Options(structured=masks(), speculation=replace(drafts, branches=2)),
        )


def test_who_thinks_has_a_mask_that_nobody_fills() -> None:
    """A thought of 10 tokens, its end, and an answer of 20. The prompt of 4 (1.4 s) makes the first token; ten steps of
    1.1 s lead to the first token of the answer, which counts as thought, and 19 of 4 s to the last."""
    thought = ReasoningLengths(thought=Lengths(mean=10.0), answer=Lengths(mean=20.0))
    load = Traffic(arrivals=OpenLoop(rate=0.01), prompt=Lengths(mean=4.0), output=thought, requests_count=1)
    found = simulate(of_vllm(plain()), load, None, Options(structured=masks()))
    assert found.e2el - found.ttft == pytest.approx(11 * 1.1 + 19 * 4.0, rel=CLOSE)
    assert found.ttft == pytest.approx(1.4, rel=CLOSE)


def test_answers_of_a_prompt_have_one_grammar_by_enumeration() -> None:
    """Three prompts of two answers each, structured with a chance of 0.3; and two of one and a half of them."""
    steps = MaskedSteps(deployment=of_vllm(plain()), structured=masks(0.3, 1.0), together=2)
    for sizes in ((2, 2, 2), (2, 1)):
        mean = 0.0
        for ways in product((0, 1), repeat=len(sizes)):
            count = sum(size for size, there in zip(sizes, ways) if there)
            chance = float(np.prod([0.3 if there else 0.7 for there in ways]))
            mean += chance * max(count - 2.5, 0.0)
        assert steps.beyond(sum(sizes), 2.5) == pytest.approx(mean, rel=1e-9)


def test_masks_are_where_tokens_are_made() -> None:
    """Prompts and decodes apart: the first token's mask where the prompt is computed (1 + 3 s), the others' where it
    decodes: 4 s a token."""
    fleet = Fleet(prefill=1, decode=1)
    made = of_vllm(plain())
    found = simulate(made, requests((0.0, 4, 9)), None, Options(structured=masks(), fleet=fleet))
    bare = simulate(made, requests((0.0, 4, 9)), None, Options(fleet=fleet))
    assert found.ttft - bare.ttft == pytest.approx(4.0 - 1.4, rel=CLOSE)
    assert found.e2el - found.ttft - (bare.e2el - bare.ttft) == pytest.approx(8 * (4.0 - 1.1), rel=CLOSE)


# --- adapters -------------------------------------------------------------------------------------------------------


def test_each_stage_loads_its_part_when_the_batch_reaches_it() -> None:
    """Of 16 layers each: half of the bytes, one stage after the other, so that the first token is later by all."""
    two = lora(slots=1, parallel=Parallelism(pp=2))
    ttft = run(two, named([0, 0, 1, 1], [0.0, 5.0, 10.0, 15.0])).ttft
    assert ttft[[0, 2]] - ttft[[1, 3]] == pytest.approx(LOADED / 25e9, rel=1e-6)


def test_batches_in_flight_take_slots_from_each_other() -> None:
    """One slot and two batches in flight with an adapter each: every step of both copies half an adapter to each stage.
    At 250 MB/s that takes 168 ms a stage, so a cycle is about four of those; two slots hold both."""
    sent = named([0, 1], [0.0, 0.05], output=60)
    crowded = run(lora(slots=1, parallel=Parallelism(pp=2)), sent, rate=250e6)
    half = LOADED / 2 / 250e6
    assert crowded.tpot[1] == pytest.approx(2 * half, rel=0.05)
    assert sum(meter.adapters_reloaded for meter in crowded.meters) > 100
    roomy = run(lora(slots=2, parallel=Parallelism(pp=2)), sent, rate=250e6)
    assert sum(meter.adapters_reloaded for meter in roomy.meters) == 0
    assert np.max(roomy.tpot) < 0.05


def test_ranks_have_slots_of_their_own() -> None:
    """Two ranks, dealt in turns: each loads the adapter that it is asked for."""
    found = run(lora(slots=1, parallel=Parallelism(dp=2)), named([0, 0, 0, 0], [0.0, 5.0, 10.0, 15.0]))
    assert [(meter.adapters_loaded, meter.adapters_found) for meter in found.meters] == [(1, 1), (1, 1)]


def test_slots_of_lanes_by_hand() -> None:
    """Two slots and two lanes: 0 and 1 in the first, 2 in the second, which takes the slot of 0; the next batch of the
    first lane copies it back, in the place of 2, the only one that it does not need."""
    pool = AdapterPool(of=[0, 1, 2], slots=2, stages=(1.0, 2.0), times=lambda count: None)  # type: ignore[arg-type, return-value]
    slots = AdapterSlots(pool, Meter(), 2)
    assert [slots.enter(0), slots.enter(1)] == [0.0, 0.0]
    assert slots.copied() == [2.0, 4.0]
    found = [slots.crowded]
    slots.turn(1)
    slots.enter(2)
    assert [*found, slots.crowded] == [False, True]
    assert list(slots.held) == [1, 2] and slots.copied() == [1.0, 2.0]
    slots.turn(0)
    slots.fetch()
    assert sorted(slots.held) == [0, 1] and slots.copied() == [1.0, 2.0]
    assert slots.meter.adapters_reloaded == 1


def test_a_session_keeps_its_adapter() -> None:
    made = SessionTraffic(kinds=(chat(),), arrivals=OpenLoop(rate=0.01), sessions_count=40).requests()
    found = made.naming(Popularity(count=1000, skew=0.0), 0)
    assert found.sessions is not None and found.adapters is not None and found.hashes is not None
    assert made.hashes is not None
    for session in range(40):
        mine = np.flatnonzero(found.sessions.of == session)
        assert len(set(found.adapters[mine].tolist())) == 1
    assert found.hashes[3] == tuple(name * 1000 + int(found.adapters[3]) for name in made.hashes[3])


# --- requests -------------------------------------------------------------------------------------------------------


def chat(by_tool: bool = False) -> SessionKind:
    reply = NextCall(prompt=Lengths(mean=20.0), time=ThinkTime(mean=1.0))
    agent = Agent(
        turns=Lengths(mean=3.0),
        first=Lengths(mean=100.0),
        output=Lengths(mean=30.0),
        system=64,
        tool=reply if by_tool else None,
        user=None if by_tool else reply,
        user_share=0.0 if by_tool else 1.0,
    )
    return SessionKind(name="chat", share=1.0, agent=agent)


THOUGHT = ReasoningLengths(thought=Lengths(mean=199.0), answer=Lengths())


@pytest.mark.parametrize(
    ("by_tool", "prompts", "found"),
    [
        # thoughts stay until the user writes again: 200 more tokens behind every call
        (True, [164, 164 + 250, 164 + 500], [64, 164 + 230 - 1, 164 + 480 - 1]),
        # they are left out, and with them what was computed behind them
        (False, [164, 164 + 50, 164 + 100], [64, 164, 214]),
    ],
)
def test_thoughts_of_sessions(by_tool: bool, prompts: list[int], found: list[int]) -> None:
    """64 tokens of a system prompt and 100 of a task; answers of 30, and 20 new tokens for each later call. What a call
    finds of those before it, in blocks of one token: the last token of an answer is never computed."""
    sent = SessionTraffic(
        kinds=(chat(by_tool),), arrivals=OpenLoop(rate=1e-3), sessions_count=2, thoughts=THOUGHT
    ).requests(1)
    assert sent.prompt.tolist() == prompts * 2
    assert sent.output.tolist() == [230] * 6 and sent.before is not None and sent.before.tolist() == [200] * 6
    assert sent.hashes is not None
    seen: set[int] = set()
    shared = []
    for names, prompt in zip(sent.hashes, sent.prompt.tolist()):
        mine = list(names[:prompt])
        shared.append(next((place for place, name in enumerate(mine) if name not in seen), len(mine)))
        seen.update(names)
    assert shared == [0, *found[1:], *found]


def test_later_turns_do_not_repeat_thoughts() -> None:
    """Prompts of 32 and answers of 16 behind thoughts of 48: 32, 80, 128 tokens, of which the second turn finds the 32
    of the first in blocks of 16, and the third the 80 of the second."""
    thought = ReasoningLengths(thought=Lengths(mean=47.0), answer=Lengths(mean=16.0))
    load = Traffic(
        arrivals=ClosedLoop(concurrency=1),
        prompt=Lengths(mean=32.0),
        output=thought,
        prefix=SharedPrefix(turns=3),
        requests_count=3,
    )
    sent = load.requests()
    assert sent.prompt.tolist() == [32, 80, 128] and sent.output.tolist() == [64] * 3
    assert sent.hashes is not None
    assert [len(names) for names in sent.hashes] == [2, 5, 8]
    assert sent.hashes[2][:5] == sent.hashes[1] and sent.hashes[1][:2] == sent.hashes[0]


def two_classes(**more: Any) -> Traffic:
    classes = tuple(
        TrafficClass(name=name, share=share, prompt=Lengths(mean=prompt), output=Lengths(mean=output))
        for name, share, prompt, output in (("a", 0.5, 64.0, 8.0), ("b", 0.5, 256.0, 32.0))
    )
    return Traffic(arrivals=OpenLoop(rate=1.0), prompt=Lengths(), classes=classes, **{"output": Lengths(), **more})


def test_classes_think_are_sampled_and_converse() -> None:
    plainly = two_classes(requests_count=40).requests()
    thinking = two_classes(requests_count=40, output=THOUGHT).requests()
    assert plainly.of is not None and thinking.before is not None
    assert thinking.of is not None and np.array_equal(thinking.of, plainly.of)
    assert np.array_equal(thinking.output, plainly.output + 200) and set(thinking.before.tolist()) == {200}
    sampled = two_classes(requests_count=40, samples=3).requests()
    assert sampled.of is not None and np.array_equal(sampled.of, np.repeat(plainly.of, 3))
    assert np.array_equal(sampled.prompt, np.repeat(plainly.prompt, 3))
    turns = two_classes(requests_count=40, prefix=SharedPrefix(turns=2)).requests()
    assert turns.of is not None and turns.follows is not None
    later = turns.follows >= 0
    assert np.array_equal(turns.of[later], turns.of[turns.follows[later]])
    first = turns.follows[later]
    new = np.where(turns.of[later] == 0, 64, 256)
    assert np.array_equal(turns.prompt[later], turns.prompt[first] + turns.output[first] + new)


# --- replicas -------------------------------------------------------------------------------------------------------


def failing(at: float, replicas: int = 2, mode: FailureMode = "cut", restart: float = 50.0) -> Fleet:
    return Fleet(
        routing="least-loaded",
        scaling=Schedule(changes=((0.0, replicas),), cold_start=restart),
        failures=Failures(at=(Failure(at=at),), mode=mode),
    )


CALLS = [(10, 3, -1, 0.0), (20, 2, 0, 5.0)]
"""A step of 10 tokens and two of one: 2 + 1.1 + 1.1 = 4.2 s; 5 s of a tool; 3 s and 1.1 s: 13.3 s."""


@pytest.mark.parametrize(
    ("at", "replicas", "mode", "lasted"),
    [
        (2.5, 2, "cut", 13.3 + 2.5),  # the first call starts again on the other replica
        (4.1, 2, "cut", 13.3 + 4.1),  # in the step that makes its last token, which is made nowhere
        (4.3, 2, "cut", 13.3),  # nothing runs
        (9.7, 2, "cut", 13.3 + 0.5),  # the second call
        (2.5, 2, "drain", 13.3),  # it finishes what it has
        (2.5, 1, "cut", 13.3 + 2.5 + 50.0),  # nobody is there until it is back
    ],
)
def test_a_session_on_replicas_that_fail(at: float, replicas: int, mode: FailureMode, lasted: float) -> None:
    found = simulate(plain(), given(CALLS), None, Options(fleet=failing(at, replicas, mode)))
    assert figures(found).duration[0] == pytest.approx(lasted, rel=CLOSE)
    assert found.counts["finished"] == 2


def test_a_user_gives_up_while_no_replica_is_there() -> None:
    """The replica is lost at 2.5 s and back at 52.5 s; the user leaves after 20 s, and nothing is left to do."""
    found = simulate(plain(), given(CALLS, patience=[20.0]), None, Options(fleet=failing(2.5, 1)))
    assert found.counts["cancelled"] == 1 and found.counts["waiting"] == 0
    assert found.records.left == {0: 20.0}


@pytest.mark.parametrize("parallel", [Parallelism(pp=2), Parallelism(dp=2), Parallelism()])
@pytest.mark.parametrize("pools", [False, True])
def test_a_call_is_aborted_wherever_it_is(parallel: Parallelism, pools: bool) -> None:
    """Sessions of one call that would take 60 s or more, given up at any moment of it: of each nothing is left behind,
    neither cache nor a place, and the requests that are not given up finish."""
    calls = [(40 + 10 * place, 50, -1, 0.0) for place in range(12)]
    patience = [NEVER if place % 3 == 0 else 0.7 + 2.9 * place for place in range(12)]
    sent = given(calls, patience=patience, arrival=np.arange(12) * 0.9)
    fleet = Fleet(prefill=1, decode=1) if pools else Fleet()
    prepared = prepare(plain(parallel=parallel, budget=16), sent, None, Options(fleet=fleet))
    cluster = prepared.cluster
    found = prepared.result(cluster.run())
    assert found.counts["finished"] == 4 and found.counts["cancelled"] == 8
    for scheduler in (*cluster.front.pool, *cluster.back.pool):
        assert not scheduler.admitted.running and not scheduler.queue.waiting and not scheduler.queue.inbox
        assert scheduler.admitted.used == 0 and not any(lane.size for lane in scheduler.lanes)


# --- neutral values -------------------------------------------------------------------------------------------------


def same(one: SimulationResult, other: SimulationResult) -> None:
    for name in ("first", "finish", "admitted"):
        assert np.array_equal(np.asarray(getattr(one.records, name)), np.asarray(getattr(other.records, name)))


def test_a_feature_at_its_neutral_value_is_its_absence() -> None:
    """Drafts of no tokens, a tier that holds nothing, a weight for the only replicas, turns of one."""
    turns = Traffic(
        arrivals=ClosedLoop(concurrency=3),
        prompt=Lengths(mean=30.0),
        output=Lengths(mean=9.0),
        prefix=SharedPrefix(turns=4),
        requests_count=60,
    )
    small = plain(capacity=200, prefix_caching=True)
    bare = simulate(small, turns, None, Options())
    tier = CacheTier(name="host", capacity=0.0, bandwidth=1e9)
    same(bare, simulate(small, turns, None, Options(tiers=(tier,))))
    same(bare, simulate(small, turns, None, Options(speculation=replace(PLAIN, acceptance=0.7))))
    same(bare, simulate(small, turns, None, Options(fleet=Fleet(weight=3.0))))


def scheduler_of(lanes: int) -> Scheduler:
    sent = Records(arrival=[0.0], prompt=[4], output=[4])
    rules = prepare(plain(), requests((0.0, 4, 4))).kind.rules
    return Scheduler(rules, sent, lambda *_: None, None, 1, lanes)


def test_without_modifiers_a_price_is_that_of_the_tables() -> None:
    times = prepare(plain(), requests((0.0, 4, 4))).kind.times
    assert price_with_modifiers(times, (), Lane(scheduler_of(1))) is times


# --- energy ---------------------------------------------------------------------------------------------------------


def on(energy: RunEnergy) -> float:
    """Joules of H100s for being on (docs/power.md): 0.393 of 700 W in a step, 0.164 in none."""
    return 700 * (0.164 * energy.devices * energy.seconds + (0.393 - 0.164) * energy.busy)


def joules(sent: Requests, **options: Any) -> RunEnergy:
    asked = Options(**options)
    made = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True))
    found = run_energy(made, simulate(made, sent, Flags(), asked), asked)
    assert found is not None
    return found


def worked(made: Deployment, *segments: Segment) -> float:
    """Joules that the devices work in one step."""
    phase = run_step(made, Step(segments=segments))
    return float(step_joules(phase, power_shares(made.hardware), float(phase.time))[1])


LONE = Requests(prompt=np.array([512]), output=np.array([101]), arrival=np.array([0.0]))


def test_pools_are_the_sum_of_both() -> None:
    """One request: its prompt works as much in a pool of its own as beside nobody, its 100 decode steps too; two
    devices are on."""
    one, apart = joules(LONE), joules(LONE, fleet=Fleet(prefill=1, decode=1))
    assert (one.devices, apart.devices) == (1, 2)
    assert apart.on == pytest.approx(on(apart), rel=1e-9)
    assert apart.busy == pytest.approx(one.busy, rel=1e-3)
    assert apart.joules - apart.on == pytest.approx(one.joules - one.on, rel=1e-3)


def test_a_step_with_drafts_is_a_verification_and_its_passes() -> None:
    """Four tokens of each step: 25 steps of a verification of four, and of a pass of four and two of one by the draft;
    the draft computes the prompt too."""
    made = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True))
    draft = assemble(Request(model="llama-3.2-1b", gpu="h100-sxm", ideal=True))
    found = joules(LONE, speculation=Speculation(length=3, acceptance=1.0, draft=draft))
    past = 512 + 101 / 2
    each = worked(made, Segment(batch=1.0, new=4.0, past=past)) + worked(draft, Segment(batch=1.0, new=4.0, past=past))
    each += 2 * worked(draft, Segment(batch=1.0, new=1.0, past=past))
    prompt = sum(worked(one, Segment(batch=1.0, new=512.0, past=0.0)) for one in (made, draft))
    assert found.joules - found.on == pytest.approx(25 * each + prompt, rel=0.03)


def test_devices_of_a_replica_that_restarts_are_on() -> None:
    sent = named([0] * 20, [0.2 * place for place in range(20)])
    found = joules(replace(sent, adapters=None), fleet=failing(1.0, restart=1.5))
    assert found.devices == 2
    assert found.on == pytest.approx(on(found), rel=1e-9)
    assert found.idle > 700 * 0.164 * 1.5 * 0.9  # one of them restarts for so long
