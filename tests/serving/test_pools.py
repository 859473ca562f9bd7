"""Pools that differ: what each rank sends and receives is counted by hand, and so are whole runs."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.drafts import head_beside
from inferplan.devices.hardware import Link
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.reports.simulation import simulation_report
from inferplan.serving.cache_transfer import Transfer
from inferplan.serving.cluster import Cluster
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.pipeline import Pipeline
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.speculation import Speculation
from inferplan.traffic.requests import ClosedLoop, OpenLoop, SharedPrefix, Traffic, parse_lengths
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.serving.plain_time import CLOSE, plain, requests, seconds, served
from tests.serving.test_pipeline import Even


def on(model: str = "llama-3.1-8b", gpu: str = "h100-sxm", engine: str = "vllm", **parallel: int) -> Deployment:
    return assemble(Request(model=model, gpu=gpu, engine=engine, parallel=Parallelism(**parallel)))


def near(*values: float) -> object:
    return pytest.approx(list(values), rel=CLOSE)


# What a rank sends and receives ---------------------------------------------------------------------------------------

LLAMA = 32 * 2 * 8 * 128 * 2
"""Bytes of a token of Llama-3.1-8B: layers, keys and values, heads, channels, bf16."""
LATENT = 61 * 576 * 2
"""Bytes of a token of DeepSeek-V3: layers, latent and rotary channels, bf16."""


def arrives(size: float, rate: float) -> float:
    """Seconds of so many bytes over a link: 415 us, then 0.74 of its rate (configs/engines)."""
    return 415e-6 + size / (0.74 * rate)


@for_each(
    ("model", "sender", "receiver", "sent", "received"),
    [
        ("llama-3.1-8b", {"tp": 4}, {"tp": 4}, LLAMA / 4, LLAMA / 4),
        ("llama-3.1-8b", {"tp": 4}, {"tp": 8}, LLAMA / 4, LLAMA / 8),  # two heads, one to each of two ranks
        ("llama-3.1-8b", {"tp": 8}, {"tp": 2}, LLAMA / 8, LLAMA / 2),  # one head; four of them arrive
        ("llama-3.1-8b", {"tp": 8}, {"tp": 16}, 2 * LLAMA / 8, LLAMA / 8),  # two ranks keep each of eight heads
        ("llama-3.1-8b", {"tp": 16}, {"tp": 8}, LLAMA / 8, LLAMA / 8),  # of two with the same head one sends it
        ("llama-3.1-8b", {"pp": 2}, {"tp": 1}, LLAMA / 2, LLAMA),
        ("llama-3.1-8b", {"tp": 2}, {"tp": 2, "pp": 2}, LLAMA / 2, LLAMA / 4),
        ("deepseek-v3", {"tp": 8}, {"tp": 8}, LATENT, LATENT),
        ("deepseek-v3", {"tp": 8}, {"tp": 16}, 2 * LATENT, LATENT),  # rank d of 16 reads from rank d // 2
        ("deepseek-v3", {"tp": 16}, {"tp": 8}, LATENT, LATENT),  # eight of sixteen copies are sent
        ("deepseek-v3", {"tp": 16}, {"dp": 16, "ep": 16}, LATENT, LATENT),  # one copy for one attention rank
        ("deepseek-v3", {"dp": 16, "ep": 16}, {"tp": 16}, 16 * LATENT, LATENT),  # one rank has it, sixteen want it
    ],
)
def test_ranks_send_what_others_need(
    model: str, sender: dict[str, int], receiver: dict[str, int], sent: float, received: float
) -> None:
    way = Transfer.between(on(model, **sender), on(model, **receiver))
    assert float(way.sent(1000.0)) == pytest.approx(1000 * sent)
    assert float(way.received(1000.0)) == pytest.approx(1000 * received)
    assert way.seconds(1000.0) == pytest.approx(arrives(1000 * max(sent, received), 50e9))  # 400 Gb/s a GPU, both sides


def test_the_cache_of_a_draft_moves_with_that_of_its_model() -> None:
    """DeepSeek-V3's own head is one more layer with a latent: 62 times 576 channels of two bytes; and twice that from
    8 ranks to 16."""
    traffic = requests((0.0, 1000, 4))
    for sender, receiver, sent in (({"tp": 8}, {"tp": 8}, 1), ({"tp": 8}, {"tp": 16}, 2)):
        decodes, prompts = on("deepseek-v3", "b200-hgx", **receiver), on("deepseek-v3", "b200-hgx", **sender)
        head = head_beside(decodes, "mtp")
        assert head is not None
        drafts = Speculation(length=1, acceptance=0.8, draft=head.over(decodes.parallel).whole)
        fleet = Fleet(prefill=1, decode=1, prefill_deployment=prompts)
        moved = simulate(decodes, traffic, None, Options(fleet=fleet, speculation=drafts)).conditions["cache_transfer"]
        assert moved["sent_bytes_a_rank"] == pytest.approx(sent * 1000 * 62 * 576 * 2)
        assert moved["received_bytes_a_rank"] == pytest.approx(1000 * 62 * 576 * 2)
        assert moved["seconds"] == pytest.approx(arrives(sent * 1000 * 62 * 576 * 2, 50e9))


def test_a_latent_goes_to_every_rank_that_wants_it() -> None:
    way = Transfer.between(on("deepseek-v3", tp=8), on("deepseek-v3", tp=16))
    assert float(way.sent(1.0)) == pytest.approx(2 * LATENT)


def test_the_slower_link_sets_the_time() -> None:
    fast = on(tp=2)
    slow = replace(
        fast, hardware=fast.hardware.model_copy(update={"name": "other", "links": [Link(name="n", bandwidth="5 GB/s")]})
    )
    for sender, receiver in ((fast, slow), (slow, fast)):
        assert Transfer.between(sender, receiver).seconds(100.0) == pytest.approx(arrives(100 * LLAMA / 2, 5e9))


def test_a_cache_moves_as_fast_as_a_published_connector_moved_it() -> None:
    """vLLM's MooncakeConnector, Qwen3-8B from 8 to 8 H800 over 8 x ConnectX-7 at 200 Gbit/s each: milliseconds of the
    prompts that the constants were not taken from (kvcache-ai/Mooncake at 3b5a594, vllm-v1-pd-performance.md)."""
    served = on("qwen3-8b", "h800", tp=8)
    nic = Link(name="ConnectX-7", bandwidth="25 GB/s")
    there = replace(served, hardware=served.hardware.model_copy(update={"links": [nic]}))
    way = Transfer.between(there, there)
    for tokens, milliseconds in ((256, 0.61), (1024, 1.50), (4096, 4.75), (16384, 16.43)):
        assert 1e3 * way.seconds(float(tokens)) == pytest.approx(milliseconds, rel=0.1)


def test_the_last_part_of_a_transfer_waits_as_long_for_its_first_byte() -> None:
    """1,000 tokens over 0.74 of 50 GB/s behind 415 us; the last of 32 layers takes a 32nd of the bytes, and all of the
    latency. In a run it is there that much later than the prompt is done."""
    way = Transfer.between(on(), on())
    bytes_alone = 1000 * LLAMA / (0.74 * 50e9)
    assert way.last(way.seconds(1000.0), 1.0) == pytest.approx(415e-6 + bytes_alone)
    assert way.last(way.seconds(1000.0), 1 / 32) == pytest.approx(415e-6 + bytes_alone / 32)
    waits = {}
    for sending in ("after", "layers"):
        fleet = Fleet(prefill=1, decode=1, kv_sending=sending)  # type: ignore[arg-type]
        waits[sending] = float(simulate(on(), requests((0.0, 1000, 2)), None, Options(fleet=fleet)).records.finish[0])
    assert waits["after"] - waits["layers"] == pytest.approx(bytes_alone * 31 / 32, rel=1e-6)


def test_an_ideal_link_carries_all_of_its_rate_at_once() -> None:
    ideal = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True))
    way = Transfer.between(ideal, ideal)
    assert way.seconds(1000.0) == pytest.approx(1000 * LLAMA / 50e9)
    assert way.part["kind"] == "formula"
    assert Transfer.between(on(), on()).part["kind"] == "published"


@for_each(
    ("sender", "link", "message"),
    [
        (on("llama-3.2-3b"), None, "cannot compute prompts for"),
        (on(engine="sglang"), None, "cannot send its cache to vllm"),
        (on(gpu="h200-sxm"), "NVLink", "joins no h200-sxm and h100-sxm"),
        (on(), "carrier pigeon", "no link named"),
    ],
)
def test_pools_that_cannot_exchange_caches_are_refused(sender: Deployment, link: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Transfer.between(sender, on(), link)


def test_caches_of_two_formats_are_refused() -> None:
    narrow = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", roles=(("kv", "fp8"),)))
    with pytest.raises(UsageError, match="keep their caches in fp8 and bf16"):
        Transfer.between(narrow, on())


# Runs -----------------------------------------------------------------------------------------------------------------


def slow_link(deployment: Deployment, bandwidth: int = 100) -> Deployment:
    """A link of 100 B/s: a cached token of 4 bytes takes 0.04 s."""
    links = [Link(name="slow", bandwidth=f"{bandwidth} B/s")]
    return replace(deployment, hardware=deployment.hardware.model_copy(update={"links": links}))


def test_each_pool_takes_its_own_steps() -> None:
    """A prompt of 50 in pieces of 20, 20 and 10 where prompts are computed; three decodes at a second and 0.1 s each.

    Where it decodes a budget of 4096 would have taken the prompt at once.
    """
    fleet = Fleet(prefill=1, decode=1, prefill_deployment=slow_link(plain(budget=20)))
    first, last = served(slow_link(plain()), requests((0.0, 50, 4)), fleet=fleet)
    assert first == near(seconds(20, 20, 10))
    assert last == near(seconds(20, 20, 10) + 2.0 + 3 * 1.1)


def apart_as(deployment: Deployment, **facts: object) -> Deployment:
    """The deployment under an engine that does this where pools are apart."""
    apart = deployment.engine.apart.model_copy(update=facts)
    return replace(deployment, engine=deployment.engine.model_copy(update={"apart": apart}))


@for_each(("answers", "seen"), [("prompts", 6.0), ("cache", 8.0), ("decodes", 9.1)])
def test_the_first_token_comes_from_the_pool_that_the_engine_answers_with(answers: str, seen: float) -> None:
    """A prompt of 50 is done at 6 s, its 200 bytes take 2 s, a decode step 1.1 s."""
    deployment = apart_as(slow_link(plain()), first_token=answers)
    first, last = served(deployment, requests((0.0, 50, 4)), fleet=Fleet(prefill=1, decode=1))
    assert first == near(seen)
    assert last == near(8.0 + 3 * 1.1)


def test_a_handoff_is_steps_of_those_that_decode_and_keeps_no_link() -> None:
    """Two prompts of 50 are done together, their caches sent after 2 s and 4; each waits for two steps of 1.1 s."""
    deployment = apart_as(slow_link(plain()), handoff=2.0, first_token="cache")
    first, _ = served(deployment, requests((0.0, 50, 4), (0.0, 50, 4)), fleet=Fleet(prefill=1, decode=2))
    assert first == near(seconds(100) + 2.0 + 2.2, seconds(100) + 4.0 + 2.2)


def test_a_handoff_waits_for_the_steps_of_all_ranks() -> None:
    """A rank that decodes nothing beside one with three sequences, of a second for each row: two steps are 6 s."""
    received: list[tuple[int, float]] = []
    idle, full = (SimpleNamespace(size=size, context=10.0 * size) for size in (0, 3))
    ranks = [SimpleNamespace(rules=SimpleNamespace(handoff=2.0), decodes=lane) for lane in (full, idle)]
    cluster, pipeline = object.__new__(Cluster), object.__new__(Pipeline)
    pipeline.schedulers = ranks  # type: ignore[assignment]
    pipeline.ranks = SimpleNamespace(price_of=lambda one: Even(1))  # type: ignore[assignment]

    class Idle(SimpleNamespace):
        def __hash__(self) -> int:
            return id(self)

        def receive(self, request: int, time: float) -> None:
            received.append((request, time))

    one = Idle(**vars(ranks[1]))
    cluster.engines, cluster.engine_of = [pipeline], {one: 0}  # type: ignore[dict-item]
    cluster.receive(one, 7, 1.0)  # type: ignore[arg-type]
    assert received == [(7, 1.0 + 2 * 3.0)]


def test_the_record_says_who_answers_and_when() -> None:
    run = simulate(on(engine="sglang"), requests((0.0, 500, 4)), None, Options(fleet=Fleet(prefill=1, decode=1)))
    moved = run.conditions["cache_transfer"]
    assert (moved["first_token"], moved["handoff_steps"]) == ("cache", 15.0)


def test_engines_answer_as_their_sources_say() -> None:
    """vLLM's and TensorRT-LLM's decode servers stream their own steps, SGLang's the token that comes with the cache."""
    found = {name: on(engine=name).engine.apart.first_token for name in ("vllm", "trtllm", "sglang", "none")}
    assert found == {"vllm": "decodes", "trtllm": "decodes", "sglang": "cache", "none": "prompts"}


def test_flags_alone_make_a_pool() -> None:
    fleet = Fleet(prefill=1, decode=1, prefill_flags=Flags(max_num_batched_tokens=20))
    first, last = served(slow_link(plain()), requests((0.0, 50, 4)), fleet=fleet)
    assert (first, last) == (near(seconds(20, 20, 10)), near(seconds(20, 20, 10) + 2.0 + 3 * 1.1))


@for_each(
    ("bandwidth", "sending", "there"),
    [
        # 20, 40 and 50 tokens of 4 bytes are computed at 3, 6 and 8 s
        (100, "after", 8.0 + 2.0),
        (100, "pieces", 8.0 + 0.4),  # 0.8 s from 3 s on, 0.8 from 6 s, and the rest
        (10, "pieces", 3.0 + 8.0 + 8.0 + 4.0),  # the link never rests
        (100, "layers", 8.0 + 0.4 / 65),  # one of 65 layers is left
        (10, "layers", 3.0 / 65 + 20.0),
    ],
)
def test_what_is_computed_leaves_while_the_rest_is_computed(bandwidth: int, sending: str, there: float) -> None:
    deployment = slow_link(plain(budget=20), bandwidth)
    fleet = Fleet(prefill=1, decode=1, kv_sending=sending)
    first, last = served(deployment, requests((0.0, 50, 4)), fleet=fleet)
    assert first == near(8.0)
    assert last == near(there + 3 * 1.1)


def test_engines_send_as_their_files_say() -> None:
    """20,000 tokens in steps of 8192: SGLang has sent two pieces when the third is computed, vLLM none.

    131,072 bytes a token over 0.74 of 50 GB/s are 70.8 ms, of which the last piece takes 3,616/20,000; both wait for
    the latency of one transfer.
    """
    traffic = requests((0.0, 20000, 2))
    waits = {}
    for engine in ("vllm", "sglang"):
        apart = simulate(
            on(engine=engine), traffic, Flags(max_num_batched_tokens=8192), Options(fleet=Fleet(prefill=1, decode=1))
        )
        slow = simulate(
            on(engine=engine),
            traffic,
            Flags(max_num_batched_tokens=8192),
            Options(fleet=Fleet(prefill=1, decode=1, kv_sending="after")),
        )
        waits[engine] = slow.records.finish[0] - apart.records.finish[0]
    assert waits["vllm"] == 0.0
    assert waits["sglang"] == pytest.approx(2 * 8192 * LLAMA / (0.74 * 50e9))


def test_slots_are_those_of_each_pool() -> None:
    """Two prompts of 10 at once where two may run; the one slot of the decodes keeps the second waiting.

    Caches of 40 bytes arrive one after another, at 3.4 and 3.8 s.
    """
    deployment = slow_link(plain())
    fleet = Fleet(prefill=1, decode=1, prefill_flags=Flags(max_num_seqs=2))
    run = simulate(deployment, requests((0.0, 10, 3), (0.0, 10, 3)), Flags(max_num_seqs=1), Options(fleet=fleet))
    assert list(run.records.first) == near(3.0, 3.0)
    assert list(run.records.finish) == near(3.4 + 2.2, 3.4 + 2.2 + 2.2)


def test_ranks_and_stages_are_those_of_each_pool() -> None:
    prompts, decodes = on(tp=2), on(dp=1, pp=2)
    fleet = Fleet(prefill=3, decode=2, prefill_deployment=prompts)
    run = simulate(decodes, load(4.0, 60), options=Options(fleet=fleet))
    assert run.counts["finished"] == 60
    assert run.conditions["replicas"] == 5
    assert run.conditions["prefill"]["deployment"] == prompts.describe()


LENGTHS = {"prompt": parse_lengths("lognormal:2000:0.8"), "output": parse_lengths("lognormal:64:0.8")}


def load(rate: float, count: int = 200) -> Traffic:
    return Traffic(arrivals=OpenLoop(rate=rate), requests_count=count, **LENGTHS)


@for_each(
    ("served_by", "jobs"),
    lambda: [
        (on(), 1),
        (on(engine="trtllm", tp=2, pp=2), 1),
        (on("deepseek-v2-lite", engine="sglang", dp=2, ep=2), 2),
        (on("gemma-2-9b"), 1),
    ],
)
def test_two_pools_of_the_same_deployment_are_the_pools_of_one(served_by: Deployment, jobs: int) -> None:
    flags = Flags(max_num_batched_tokens=4096)
    users = Traffic(arrivals=ClosedLoop(concurrency=12), requests_count=120, **LENGTHS)
    shared = replace(load(12.0), prefix=SharedPrefix(tokens=256, distinct=4))
    for traffic in (shared,) if jobs == 2 else (shared, users):
        one, two = (
            simulate(served_by, traffic, flags, Options(fleet=fleet, jobs=jobs))
            for fleet in (
                Fleet(prefill=2, decode=3),
                Fleet(prefill=2, decode=3, prefill_deployment=served_by, prefill_flags=flags),
            )
        )
        for name in ("arrival", "admitted", "first", "finish", "status", "gaps", "gap_weights", "cached"):
            columns = [np.asarray(list(getattr(run.records, name)), dtype=float) for run in (one, two)]
            assert np.array_equal(*columns, equal_nan=True), name
        records = [run.to_dict() for run in (one, two)]
        assert records[0]["conditions"].pop("prefill") is None
        assert records[1]["conditions"].pop("prefill")["max_num_batched_tokens"] == 4096
        assert json.dumps(records[0]) == json.dumps(records[1])


def test_tokens_are_conserved() -> None:
    """Every prompt token is computed where prompts are, every other output token where decodes are."""
    traffic = load(10.0, 300).requests()
    fleet = Fleet(prefill=2, decode=1, prefill_deployment=on(tp=2), prefill_flags=Flags(max_num_batched_tokens=1024))
    run = simulate(on(gpu="h200-sxm"), traffic, options=Options(fleet=fleet))
    front, back = run.meters[:2], run.meters[2:]
    assert sum(meter.prompt_tokens for meter in front) == int(np.sum(traffic.prompt))
    assert sum(meter.decode_tokens for meter in back) == int(np.sum(traffic.output - 1))
    assert run.mean_batch == pytest.approx(back[0].batch_seconds / back[0].busy)  # replicas for prompts have no batch
    assert not sum(meter.decode_tokens for meter in front) and not sum(meter.prompt_tokens for meter in back)


@for_each("routing", ["round-robin", "least-loaded"])
def test_more_replicas_for_prompts_never_raise_ttft(routing: str) -> None:
    """But for the step of decodes that the answer comes out of: when in it the cache arrives is uniform, so the mean
    over n requests moves by step / sqrt(12 n), and the difference of two means by sqrt(2) times that; three of these.
    """
    times, steps, count = [], [], 400
    for prefill in (1, 2, 3, 5, 8):
        fleet = Fleet(routing=routing, prefill=prefill, decode=2, prefill_deployment=on(tp=2))
        run = simulate(on(), load(15.0, count), options=Options(fleet=fleet))
        times.append(float(np.mean(run.ttft)))
        steps.append(float(np.mean(run.tpot)))
    luck = 3 * max(steps) * np.sqrt(2 / (12 * count))
    assert luck < 0.01 * min(times)
    assert all(more <= fewer + luck for fewer, more in pairwise(times))


def test_a_faster_pool_for_prompts_is_faster() -> None:
    slow, fast = (
        simulate(on(), load(5.0), options=Options(fleet=Fleet(prefill=1, decode=2, prefill_deployment=on(tp=tp))))
        for tp in (1, 4)
    )
    step = float(np.max(slow.tpot))  # a cache may come when per step of others has just begun
    assert np.all(fast.ttft < slow.ttft + step)
    assert float(np.mean(fast.ttft)) < float(np.mean(slow.ttft)) - step


def test_what_computes_prompts_needs_replicas() -> None:
    with pytest.raises(UsageError, match="described, and there is none"):
        Fleet(prefill_deployment=on())


def test_the_pool_of_prompts_does_not_find_what_was_decoded() -> None:
    """Turns of 512 tokens and 512 answered: the second prompt of 1536 finds 1024 of them together, 512 apart."""
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=1, burst=True, ramp=None),
        prompt=parse_lengths("512"),
        output=parse_lengths("512"),
        requests_count=2,
        prefix=SharedPrefix(turns=2),
    )
    flags = Flags(prefix_caching=True)
    together = simulate(on(), traffic, flags)
    apart = simulate(on(), traffic, flags, Options(fleet=Fleet(prefill=1, decode=1)))
    assert list(together.records.prompt) == list(apart.records.prompt) == [512, 1536]
    assert together.records.cached[1] == pytest.approx(1024, abs=16)
    assert apart.records.cached[1] == 512
    assert any("computes earlier answers again" in note for note in simulation_report(apart).notes)
    assert not any("computes earlier answers again" in note for note in simulation_report(together).notes)


def test_the_cache_of_each_pool_is_counted_apart() -> None:
    """A prompt of 1000 tokens in a cache of its own until it is sent; 1100 tokens at most where it is decoded."""
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=1, burst=True, ramp=None),
        prompt=parse_lengths("1000"),
        output=parse_lengths("100"),
        requests_count=3,
    )
    fleet = Fleet(prefill=1, decode=1, prefill_deployment=on(tp=2))
    kv = simulate(on(), traffic, Flags(prefix_caching=False), Options(fleet=fleet)).to_dict()["kv"]
    prompts, decodes = kv["pools"]["prefill"], kv["pools"]["decode"]
    assert prompts["capacity_tokens"] > 2 * decodes["capacity_tokens"] == 2 * kv["capacity_tokens"]
    assert prompts["use_peak"] * prompts["capacity_tokens"] == pytest.approx(1000, rel=0.02)
    assert decodes["use_peak"] * decodes["capacity_tokens"] == pytest.approx(1100, rel=0.02)
    assert kv["use_peak"] == max(prompts["use_peak"], decodes["use_peak"])
    assert simulate(on(), traffic).to_dict()["kv"]["pools"] is None
