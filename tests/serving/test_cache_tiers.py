"""Cache tiers: hits against a replay that shares no code with the simulator, loads counted by hand."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import UsageError
from inferplan.serving.batch_means import RunPrecision
from inferplan.serving.cache_tiers import beside_loads
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.serving.run_length import simulate_load
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.offload import HostTier
from inferplan.serving.techniques.tiers import CacheTier
from inferplan.traffic import traces
from inferplan.traffic.requests import ClosedLoop, OpenLoop, Requests, SharedPrefix, Traffic, parse_lengths
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.serving.plain_time import CLOSE, KV_BYTES, LAYERS, plain, requests, seconds, served

MOONCAKE = Path(__file__).parents[3] / "shared" / "traces" / "mooncake_conversation.jsonl"
BLOCK = 16
ALONE = ClosedLoop(concurrency=1, burst=True)


def tier(blocks: int, bandwidth: float = 1e9, **more: Any) -> CacheTier:
    """Of so many blocks of 16 tokens of 4 bytes."""
    given = {"name": f"t{blocks}", "capacity": blocks * BLOCK * KV_BYTES, "bandwidth": bandwidth}
    return CacheTier(**(given | more))


class Replay:
    """One request at a time: a device of ``capacity`` tokens in pages, and below it tiers of so many blocks.

    A request has all its pages until it ends; what others left idle goes, longest unused first and a chain from its
    end, only as far as room is needed. Blocks of answers, which nobody looks for here, take their room too,
    there and below.
    """

    def __init__(self, capacity: int, page: int, block: int, tiers: Sequence[int]) -> None:
        self.capacity, self.page, self.block, self.sizes = capacity, page, block, tiers
        self.device: OrderedDict[Any, None] = OrderedDict()
        self.tiers: list[OrderedDict[Any, None]] = [OrderedDict() for _ in tiers]
        self.hits = [0] * (1 + len(tiers))
        self.answers = 0

    def drop(self, block: Any) -> None:
        for held, size in zip(self.tiers, self.sizes):
            held[block] = None
            held.move_to_end(block)
            if len(held) <= size:
                return
            block = held.popitem(last=False)[0]

    def shrink(self, blocks: int) -> None:
        while len(self.device) > blocks:
            self.drop(self.device.popitem(last=False)[0])

    def serve(self, names: Sequence[int], prompt: int, output: int) -> None:
        self.shrink(self.capacity // self.block)
        missed = False
        taken = []
        for name in names[: (prompt - 1) // self.block]:
            where = [self.device, *self.tiers]
            found = next((index for index, held in enumerate(where) if name in held), None)
            if found is None:
                break
            missed |= found > 0
            self.hits[found] += 1
            if not missed:
                taken.append(name)
                del self.device[name]
        written = prompt + output - 1
        self.shrink((self.capacity - -(-written // self.page) * self.page) // self.block)
        full = written // self.block
        for _ in range(full - len(names)):
            self.answers += 1
            self.device[f"answer {self.answers}"] = None
        for name in reversed(names[:full]):
            self.device[name] = None
            self.device.move_to_end(name)


def replayed(sent: Requests, capacity: int, page: int, block: int, tiers: Sequence[int]) -> list[int]:
    """Tokens that the device and each tier bring."""
    replay = Replay(capacity, page, block, tiers)
    assert sent.hashes is not None
    for names, prompt, output in zip(sent.hashes, sent.prompt.tolist(), sent.output.tolist()):
        replay.serve(names, prompt, output)
    return [hits * block for hits in replay.hits]


def hits(run: SimulationResult) -> list[int]:
    records = run.to_dict()["cache_tiers"]
    return [record["hit_tokens"] for record in records]


def chats(count: int, seed: int, texts: int = 12) -> Requests:
    """Prompts of texts that grow and begin alike: the first block of some is the first block of others."""
    draw = np.random.default_rng(seed)
    names, prompt = [], []
    for _ in range(count):
        text, blocks = int(draw.integers(texts)), int(draw.integers(1, 7))
        names.append((text % 3, *(100 * text + 100 + index for index in range(1, blocks))))
        prompt.append(blocks * BLOCK + int(draw.integers(1, BLOCK)))
    return Requests(prompt=np.array(prompt), output=draw.integers(1, 40, count), hashes=names, hash_block=BLOCK)


def run(sent: Requests, tiers: Sequence[CacheTier], capacity: int = 200, **options: Any) -> SimulationResult:
    made = plain(capacity=capacity, prefix_caching=True)
    return simulate(made, sent.in_loop(ALONE), options=Options(tiers=tuple(tiers), **options))


@for_each("sizes", [(3,), (0, 4), (2, 5), (4, 3, 6), (1, 0, 2), (5, 1, 30)])
def test_hits_of_every_tier_are_those_of_a_replay(sizes: tuple[int, ...]) -> None:
    for seed in range(4):
        sent = chats(300, seed)
        found = run(sent, [tier(size, name=f"t{index}") for index, size in enumerate(sizes)])
        assert hits(found) == replayed(sent, 200, 1, BLOCK, sizes)
        assert sum(hits(found)) == pytest.approx(found.hit_rate * sent.prompt.sum())


@pytest.mark.skipif(not MOONCAKE.exists(), reason="the traces are not here")
@for_each(("host", "ssd"), [(100e9, 1e12), (400e9, 0.0)])
def test_hits_of_a_real_trace_are_those_of_a_replay(host: float, ssd: float) -> None:
    """Mooncake's conversations, one request at a time; a token of Llama 3.1 8B is 131,072 bytes. A block of vLLM has 16
    tokens: each name of the file is that of 32 of them, and the last of a prompt that of as many as are full."""
    sent = traces.read_trace(MOONCAKE).head(4000)
    model = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    tiers = CacheTier(name="host", capacity=host, bandwidth=50e9), CacheTier(name="ssd", capacity=ssd, bandwidth=6e9)
    found = simulate(model, sent.in_loop(ALONE), options=Options(tiers=tiers))
    assert found.counts["finished"] == 4000
    rows = [json.loads(line) for line in MOONCAKE.read_text().splitlines()[:4000]]
    cut = [[(row["hash_ids"][at // 32], at % 32) for at in range(row["input_length"] // 16)] for row in rows]
    sizes = [int(one // (131072 * 16)) for one in (host, ssd)]
    expected = replayed(replace(sent, hashes=cut), int(found.capacity), 16, 16, sizes)
    assert hits(found) == expected and min(expected[:2]) > 0
    rates = [record["hit_rate"] for record in found.to_dict()["cache_tiers"]]
    assert rates == pytest.approx(np.array(expected) / sent.prompt.sum(), abs=1e-9)


def endless(sent: Requests) -> int:
    """Tokens that a cache which forgets nothing finds."""
    assert sent.hashes is not None
    seen: set[int] = set()
    found = 0
    for names, prompt in zip(sent.hashes, sent.prompt.tolist()):
        for name in names[: (prompt - 1) // BLOCK]:
            if name not in seen:
                break
            found += BLOCK
        seen.update(names)
    return found


@for_each("sizes", [(1 << 40,), (2, 1 << 40)])
def test_a_tier_without_end_finds_all_that_came_before(sizes: tuple[int, ...]) -> None:
    sent = chats(400, 7)
    found = run(sent, [tier(size) for size in sizes])
    assert sum(hits(found)) == endless(sent) > 1.5 * sum(hits(run(sent, [tier(0)])))


def test_a_tier_of_nothing_is_no_tier() -> None:
    """To the last bit, also where requests meet."""
    sent = replace(chats(200, 3), arrival=np.arange(200) * 3.0)
    made = plain(capacity=300, prefix_caching=True)
    for more in ((), (tier(4, 32.0, name="ssd"),)):
        nothing = tier(0, 1.0, name="host", latency=5.0)
        one, other = (simulate(made, sent, options=Options(tiers=tiers)) for tiers in ((nothing, *more), more))
        assert one.records.finish == other.records.finish and one.records.first == other.records.first
        assert one.hit_rate == other.hit_rate > 0


def test_more_capacity_never_finds_less() -> None:
    draw = np.random.default_rng(0)
    for seed in range(40):
        sent = chats(120, seed, texts=9)
        sizes = draw.integers(0, 8, 3)
        more = sizes.copy()
        more[draw.integers(3)] += draw.integers(1, 4)
        less, larger = ([tier(int(n), name=str(index)) for index, n in enumerate(one)] for one in (sizes, more))
        assert sum(hits(run(sent, larger))) >= sum(hits(run(sent, less)))


# Time -----------------------------------------------------------------------------------------------------------------

N = LAYERS + 1


@for_each("layers", [1, 2, 7])
@for_each(("compute", "load"), [(3.0, 5.0), (5.0, 3.0), (2.0, 2.0)])
def test_layers_load_beside_those_that_compute(layers: int, compute: float, load: float) -> None:
    """A layer is loaded after the one before it, and computed when it is there and the one before it is done."""
    loaded = done = 0.0
    for _ in range(layers):
        loaded += load / layers
        done = max(done, loaded) + compute / layers
    assert beside_loads(compute, load, layers) == pytest.approx(done)


def gone_and_back(tiers: Sequence[CacheTier], last: int = 33, **more: Any) -> tuple[float, SimulationResult]:
    """Room for 40 tokens: B drives A's two blocks of 16 out, and A comes again with ``last`` tokens; its TTFT."""
    sent = requests((0.0, 33, 1), (50.0, 33, 1), (100.0, last, 1), hashes=((1, 2), (3, 4), (1, 2)), hash_block=BLOCK)
    found = simulate(
        plain(**{"capacity": 40, "prefix_caching": True, **more}), sent, options=Options(tiers=tuple(tiers))
    )
    return found.records.first[2] - 100.0, found


def test_a_load_takes_its_bytes_and_the_latency_and_hides_what_is_computed() -> None:
    """32 tokens of 4 B at 32 B/s are 4 s, a step of 1 token 1.1 s: 0.5 s of latency, 4 s, the last layer's 1.1/65."""
    first, found = gone_and_back([tier(100, 32.0, name="host", latency=0.5)])
    assert first == pytest.approx(0.5 + 4.0 + seconds(1) / N, rel=CLOSE)
    device, host = found.to_dict()["cache_tiers"]
    assert (device["hit_tokens"], host["hit_tokens"], host["loads"]) == (0, 32, 1)
    assert host["loaded_bytes"] == 32 * KV_BYTES
    assert host["load_mean_s"] == pytest.approx(0.5 + 32 * KV_BYTES / 32.0)
    assert host["hit_rate"] == pytest.approx(32 / 99)


def test_a_load_that_is_shorter_than_the_step_costs_a_layer_of_it() -> None:
    """At 128 B/s the load takes 1 s, the step of 8 tokens 1.8 s."""
    first, _ = gone_and_back([tier(100, 128.0)], last=40, capacity=41)
    assert first == pytest.approx(seconds(8) + 1.0 / N, rel=CLOSE)


def test_tiers_load_one_after_another() -> None:
    """The end of a chain goes first: the host's one block holds the first, the disk the second."""
    chain = [tier(1, 32.0, name="host", latency=0.25), tier(9, 16.0, name="ssd", latency=1.0)]
    first, found = gone_and_back(chain)
    assert hits(found) == [0, 16, 16]
    assert first == pytest.approx(0.25 + 16 * 4 / 32 + 1.0 + 16 * 4 / 16 + seconds(1) / N, rel=CLOSE)


def test_a_single_tier_is_the_offload_but_for_the_layers() -> None:
    """--kv-offload waits for the load: the same hits, and the whole step after it."""
    sent = replace(chats(200, 3), arrival=np.arange(200) * 9.0)
    made, host = plain(capacity=150, prefix_caching=True), HostTier(capacity=20 * 64.0, bandwidth=320.0)
    chain = (CacheTier(name="host", capacity=20 * 64.0, bandwidth=320.0, layered=False),)
    one, other = (simulate(made, sent, options=Options(**given)) for given in ({"host": host}, {"tiers": chain}))
    assert one.records.first == other.records.first and one.hit_rate == other.hit_rate > 0
    assert one.to_dict()["cache_tiers"] is None
    beside = simulate(made, sent, options=Options(tiers=(replace(chain[0], layered=True),)))
    assert beside.ttft.mean() < other.ttft.mean()


def test_a_stage_of_a_pipeline_loads_its_own_layers() -> None:
    """33 of 65 layers, and all 4 B of a token, lie on the first of two stages: the host's second, 8 s of loading at 16
    B/s, a 33rd of that stage's half of 0.1 s, and the second stage.
    """
    first, _ = gone_and_back([tier(100, 16.0)], parallel=Parallelism(pp=2))
    assert first == pytest.approx(1.0 + 8.0 + 0.05 / 33 + 0.05, rel=1e-3)


# Shared ---------------------------------------------------------------------------------------------------------------


def two_replicas(shared: bool, blocks: int = 4) -> SimulationResult:
    """A goes to the first of two replicas, is driven out there, and comes again to the second."""
    names = ((1, 2), (7, 8), (3, 4), (1, 2))
    sent = requests(*((10.0 * turn, 33, 1) for turn in range(4)), hashes=names, hash_block=BLOCK)
    made = plain(capacity=40, prefix_caching=True, parallel=Parallelism(replicas=2))
    return simulate(made, sent, options=Options(tiers=(tier(blocks, 32.0, name="store", shared=shared),)))


def test_a_shared_tier_gives_one_replica_what_another_dropped() -> None:
    assert hits(two_replicas(shared=True)) == [0, 32]
    assert two_replicas(shared=True).records.first[3] == pytest.approx(30.0 + 4.0 + seconds(1) / N, rel=CLOSE)
    assert hits(two_replicas(shared=False)) == [0, 0]
    assert hits(two_replicas(shared=True, blocks=1)) == [0, 16]  # the first block was dropped last


def test_a_shared_tier_of_one_replica_is_its_own() -> None:
    for routing_seed in range(3):
        sent = chats(200, routing_seed)
        own, store = (run(sent, [tier(9, 64.0, name="store", shared=shared)]) for shared in (False, True))
        assert own.records.finish == store.records.finish and hits(own) == hits(store)


def test_devices_load_their_part_and_a_store_keeps_a_token_once() -> None:
    """Llama 3.1 8B: 32 layers x 2 x 8 heads x 128 x 2 B = 131,072 B a token, a quarter of it on each of 4 devices."""
    served = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", parallel=Parallelism(tp=4)))
    host, store = (CacheTier(name="x", capacity=1e12, bandwidth=64e9, shared=shared) for shared in (False, True))
    assert host.blocks((served, None), 16) == int(1e12 // (32768 * 16))
    assert store.blocks((served, None), 16) == int(1e12 // (131072 * 16))
    assert host.made((served, None), 16).token_time == store.made((served, None), 16).token_time == 32768 / 64e9
    # a latent lies on every device: (512 + 64) x 2 B x 61 layers
    latent = assemble(Request(model="deepseek-v3", gpu="h200-sxm", parallel=Parallelism(tp=8), quant="fp8-block"))
    assert [one.kept_bytes((latent, None)) for one in (host, store)] == [576 * 2 * 61] * 2


def test_processes_count_what_one_counts() -> None:
    """Replicas with tiers of their own, in one process and in two."""
    made = plain(capacity=200, prefix_caching=True, parallel=Parallelism(replicas=2))
    sent = replace(chats(200, 5), arrival=np.arange(200) * 5.0)
    one, two = (simulate(made, sent, options=Options(tiers=(tier(9, 64.0),), jobs=jobs)) for jobs in (1, 2))
    assert hits(one) == hits(two) and one.records.finish == two.records.finish and hits(one)[1] > 0


def test_conversations_find_their_turns_below() -> None:
    """A closed loop in which requests are numbered anew: every token that is found is counted where it came from."""
    lengths = {"prompt": parse_lengths("160"), "output": parse_lengths("32")}
    traffic = Traffic(arrivals=OpenLoop(rate=0.02), requests_count=120, prefix=SharedPrefix(turns=4), **lengths)
    made = plain(capacity=1200, prefix_caching=True)
    found = simulate(made, traffic, options=Options(tiers=(CacheTier(name="host", capacity=1e6, bandwidth=1e6),)))
    assert sum(hits(found)) == pytest.approx(found.hit_rate * found.records.hits(found.counted)[1])
    assert hits(found)[1] > 0


def test_what_tiers_are_worth_is_what_can_leave_with_and_without() -> None:
    """Two replicas that share a store of nothing let as much leave as two without.

    Prompts of a conversation have 160, 352, 544 and 736 tokens, 1,792 in all. A large store has all but the last
    block of 16 of what came before, and leaves 160 + 3 x (160 + 16) = 688 to compute. 128 are written: 1,920/816 = 2.35
    times as much at most, less for the steps, which take a second each in both.
    """
    lengths = {"prompt": parse_lengths("160"), "output": parse_lengths("32")}
    traffic = Traffic(arrivals=OpenLoop(rate=0.02), requests_count=120, prefix=SharedPrefix(turns=4), **lengths)
    made = plain(capacity=1200, prefix_caching=True, parallel=Parallelism(replicas=2))
    short = RunPrecision(fewest=100, most=300)
    bare = simulate_load(made, traffic, precision=short).capacity_rate
    assert bare is not None
    for size, (low, high) in ((0.0, (0.97, 1.03)), (1e9, (1.7, 1920 / 816))):
        store = CacheTier(name="store", capacity=size, bandwidth=1e6, shared=True)
        found = simulate_load(made, traffic, options=Options(tiers=(store,)), precision=short)
        assert found.untiered_rate == bare and found.capacity_rate is not None
        assert low < found.capacity_rate / bare < high


@for_each(
    ("given", "said"),
    [
        ({"tiers": (tier(1), tier(1))}, "a name of its own"),
        ({"tiers": (tier(1, name="device"),)}, "a name of its own"),
        ({"tiers": (tier(1, shared=True), tier(2))}, "below a shared one"),
        ({"tiers": (tier(1, shared=True),), "jobs": 2}, "--jobs"),
        ({"tiers": (tier(1),), "hit_rate": 0.5}, "given hit rate"),
        ({"tiers": (tier(1),), "host": HostTier(capacity=1.0, bandwidth=1.0)}, "--kv-offload"),
    ],
)
def test_what_is_no_chain_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        served(plain(prefix_caching=True), requests((0.0, 33, 1)), **given)


def test_without_a_prefix_cache_there_is_nothing_to_keep() -> None:
    with pytest.raises(UsageError, match="--prefix-caching"):
        simulate(plain(), requests((0.0, 33, 1)), Flags(prefix_caching=False), Options(tiers=(tier(1),)))
    with pytest.raises(UsageError, match="bandwidth"):
        tier(1, bandwidth=0.0)


def test_answers_that_nobody_names_take_room_in_a_tier() -> None:
    """A device of 96 tokens. The first request leaves the blocks 1 and 2 of 16 tokens. The second, of 17 and an answer
    of 48, writes 64, block 3 and three of its answer, for which block 2 goes down. The third of 81 tokens drives out
    the rest, used longest ago first: 1, the answer's three, 3.

    So 2, 1, a, a, a, 3 come to the tier: with room for 4 it has neither 1 nor 2 any more, for 5 it has 1.
    """
    names = ((1, 2), (3,), (4, 5, 6, 7, 8), (1, 2))
    sent = requests((0.0, 33, 1), (50.0, 17, 48), (200.0, 81, 1), (400.0, 33, 1), hashes=names, hash_block=BLOCK)
    for blocks, found in ((4, 0), (5, 16), (6, 32)):
        run = simulate(plain(capacity=96, prefix_caching=True), sent, options=Options(tiers=(tier(blocks),)))
        assert run.records.cached.get(3, 0) == found, blocks
