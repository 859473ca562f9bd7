"""The report on a run, of records that are written down here: its lines and sentences, word by word."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from inferplan.reports import simulation as report
from inferplan.traffic.block_names import FileNames, OfAdapters
from inferplan.traffic.requests import Slo
from tests.cases import for_each

THINK = {"mean": 0.0, "kind": "constant", "spread": 0.0}
PREFIX = {"tokens": 0, "distinct": 1, "turns": 1, "think": THINK}


def fixed(mean: float) -> dict[str, Any]:
    return {"kind": "fixed", "mean": mean, "spread": 0.0, "values": [], "most": None}


def traffic(**more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "arrivals": {"rate": 2.5, "kind": "poisson", "burstiness": 1.0}, "prompt": fixed(1000), "output": fixed(100),
        "classes": [], "prefix": PREFIX, "samples": 1, "seed": 7,
    }  # fmt: skip
    return found | more


def conditions(**more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "deployment": "a model", "cache_transfer": None, "prefill": None, "queue": "fcfs", "prefix_caching": False,
        "prefix_hit_rate_given": 0.0, "client_timeout_s": None, "traffic": traffic(), "calibration": "h100",
    }  # fmt: skip
    return found | more


def queue(mean: float | None, **waited: float) -> dict[str, Any]:
    return {"wait_mean_s": mean, "wait_max_s": 0.5, "waited_for_s": waited}


def record(**more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "verdict": "stable", "capacity": None, "sessions": None, "queue": queue(0.1), "ttft_s": {"mean": 0.4},
        "conditions": conditions(), "run": run(), "basis": "measured", "classes": None,
    }  # fmt: skip
    return found | more


def run(**more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "sent": 1200, "warmup": 0, "cooldown": 0, "converged": None, "percentile": 95.0, "tolerance": 0.03,
    }  # fmt: skip
    return found | more


def test_a_time_with_its_error() -> None:
    """90 to 130 ms is 20 ms on either side of 110, of which 100 ms has 20 %."""
    assert report._with_error(0.1, [0.09, 0.13]) == "100.0 ms ±20.0%"
    assert report._with_error(0.1, None) == "100.0 ms"
    assert report._with_error(None, [0.09, 0.13]) == "-"
    assert report._with_error(0.0, [0.0, 0.1]) == report._time(0.0)


LOADS = {
    "rate": ({}, "2.5 requests/s (poisson), prompt 1000, output 100, seed 7"),
    "gamma": (
        {"arrivals": {"rate": 2.5, "kind": "gamma", "burstiness": 0.5}},
        "2.5 requests/s (gamma, burstiness 0.5), prompt 1000, output 100, seed 7",
    ),
    "one user": ({"arrivals": {"concurrency": 1, "burst": True, "ramp": 0}}, "1 user, prompt 1000, output 100, seed 7"),
    "two users": (
        {"arrivals": {"concurrency": 2, "burst": False, "ramp": 3.0}},
        "2 users who start over 3.000 s, prompt 1000, output 100, seed 7",
    ),
    "at once": (
        {"arrivals": {"concurrency": 1500, "burst": True, "ramp": 3.0}},
        "1,500 users who all start at once, prompt 1000, output 100, seed 7",
    ),
    "classes": (
        {
            "classes": [
                {"share": 0.75, "name": "chat", "prompt": fixed(10), "output": fixed(20)},
                {"share": 0.25, "name": "batch", "prompt": fixed(30), "output": fixed(40)},
            ]
        },
        "2.5 requests/s (poisson), 0.75 chat with prompt 10, output 20, 0.25 batch with prompt 30, output 40, seed 7",
    ),
    "shared": (
        {"prefix": {**PREFIX, "tokens": 512, "turns": 4, "think": {"mean": 5.0, "kind": "constant", "spread": 0.0}}},
        "2.5 requests/s (poisson), prompt 1000, output 100, shared prefix 512, 4 turns, think time 5s, seed 7",
    ),
    "texts": (
        {
            "prefix": {
                **PREFIX,
                "tokens": 512,
                "distinct": 2000,
                "think": {"mean": 5, "kind": "lognormal", "spread": 0.4},
            },
            "adapters": {"count": 1200, "skew": 1.5},
            "samples": 4,
        },
        "2.5 requests/s (poisson), prompt 1000, output 100, shared prefix 512, one of 2,000 texts, think time "
        "lognormal:5s:0.4, 1,200 adapters of popularity rank^-1.5, 4 samples per prompt, seed 7",
    ),
}


@for_each("name", LOADS)
def test_a_load_in_words(name: str) -> None:
    changes, said = LOADS[name]
    assert report._load(conditions(traffic=traffic(**changes))) == said


def test_a_load_of_a_trace_or_of_sessions() -> None:
    given = {"queue": "priority", "prefix_hit_rate_given": 0.25, "client_timeout_s": 30.0}
    beside = "admitted by priority, 0.25 of each prompt taken as cached, clients give up after 30.00 s"
    assert report._load(conditions(traffic=None, **given)) == f"a trace, at its own times, {beside}"
    assert report._load(conditions(traffic=None)) == "a trace, at its own times"
    sent = {"arrivals": {"concurrency": 8, "burst": True, "ramp": 0.0}}
    start = "the requests of a trace, sent by 8 users who all start at once"
    assert report._load(conditions(traffic=sent, queue="fair")) == f"{start}, admitted by weighted service"
    kinds = [{"share": 0.9, "name": "a"}, {"share": 0.1, "name": "b"}]
    agents = {
        "arrivals": {"rate": 0.5, "kind": "poisson"},
        "sessions": 1500,
        "name": "agents",
        "kinds": kinds,
        "seed": 3,
    }
    said = "1,500 of agents (0.9 a, 0.1 b)"
    assert report._load(conditions(traffic=agents)) == f"0.5 sessions/s (poisson), {said}, seed 3"
    closed = agents | {"arrivals": {"concurrency": 1200}}
    assert report._load(conditions(traffic=closed, queue="fair")) == (
        f"1,200 sessions at a time, {said}, admitted by weighted service, seed 3"
    )
    read = conditions(generates=False)
    assert report._load(read) == "2.5 requests/s (poisson), prompt 1000, seed 7"


def test_lengths_as_the_options_write_them() -> None:
    said = report._lengths
    assert said({"kind": "empirical", "values": [1, 2, 3]}) == "empirical (3 values)"
    normal = {"kind": "lognormal", "mean": 800.0, "spread": 0.5, "most": None}
    assert (said(normal), said(normal | {"most": 9000})) == ("lognormal:800:0.5", "lognormal:800:0.5:9000")
    thought = {"kind": "reasoning", "answer": fixed(100), "thought": normal, "budget": None}
    assert said(thought) == "100 after a thought of lognormal:800:0.5"
    assert said(thought | {"budget": 4096}) == "100 after a thought of lognormal:800:0.5 cut to 4,096"


def test_the_verdict_beside_the_capacity() -> None:
    capacity = {"load": 0.8, "within_error": False, "requests_per_s": 12.345}
    said = report._verdict
    assert said(record(), "") == "stable"
    assert said(record(), "TTFT") == said(record(capacity={"load": None}), "TTFT") == "stable; limits missed: TTFT"
    assert said(record(capacity=capacity), "") == "stable: 80% of the maximum, 12.35 requests/s"
    assert said(record(capacity=capacity | {"within_error": True}), "TPOT") == (
        "stable, within the error of capacity: 80% of the maximum, 12.35 requests/s; limits missed: TPOT"
    )
    over = said(record(capacity=capacity | {"load": 1.02}), "TPOT")
    assert over == (
        "stable in this run, but above the maximum: 102% of the maximum, 12.35 requests/s; in a longer run the queue "
        "grows; limits missed: TPOT"
    )
    assert said(record(capacity=capacity | {"load": 1.02}, verdict="overloaded"), "").startswith("overloaded: 102%")
    assert "above the maximum" in said(record(capacity=capacity | {"load": 1.005}), "")
    assert "above the maximum" not in said(record(capacity=capacity | {"load": 1.0049}), "")


def test_how_long_a_run_was() -> None:
    said = report._length
    assert said(record()) == "1,200 requests sent"
    cut = run(warmup=1000, cooldown=2000, converged=True)
    whole = "1,200 requests sent, 1,000 left out as warm-up, 2,000 at the end"
    assert said(record(run=cut)) == f"{whole}; converged: p95 of TTFT and TPOT within 3.0%"
    assert said(record(run=cut | {"converged": False})).startswith(f"{whole}; NOT converged: p95")
    assert said(record(run=cut, verdict="overloaded")) == said(record(run=cut | {"converged": None})) == whole


def test_goodput_and_its_limits() -> None:
    said = report._goodput
    assert said({"goodput_requests_per_s": None}) == []
    slo = {"ttft_s": 0.5, "tpot_s": 0.02, "e2el_s": 3.0, "answer_ttft_s": 9.0}
    limits = "TTFT 500.0 ms, TPOT 20.00 ms, end to end 3.000 s, TTFT of the answer 9.000 s"
    good = {"goodput_requests_per_s": 12.345, "slo": slo, "slo_attained": 0.987}
    assert said(good) == [["goodput, requests/s", f"12.35 (98.7% of the requests meet {limits})"]]
    none = said(good | {"slo_attained": None, "slo": {}})
    assert none == [["goodput, requests/s", "12.35 (0.0% of the requests meet )"]]


def test_thoughts_before_answers() -> None:
    said = report._reasoning
    found = {"before_answer_tokens_mean": 1500.0, "answer_tokens_mean": 200.0, "budget_tokens": None, "cut_share": 0.1}
    assert said({"reasoning": None}) == []
    assert said({"reasoning": found}) == [["tokens, mean", "1,500 before an answer of 200"]]
    cut = said({"reasoning": found | {"budget_tokens": 4096}})
    assert cut == [["tokens, mean", "1,500 before an answer of 200; a budget of 4,096 cuts 10.00% of the thoughts"]]


def test_what_requests_wait_for() -> None:
    """60 of 100 ms for a slot and 25 for room; the other 15 are no main reason, and 30 are. What adds up to more than
    the mean is a share of the sum: 90 of 150 ms."""
    said = report._waits
    start = "mean 100.0 ms, longest 500.0 ms"
    assert said(queue(0.1, slots=0.06, cache=0.025)) == (
        f"{start}; of it 60% for a slot in the batch, 25% for room in the cache"
    )
    assert said(queue(0.1, slots=0.06, cache=0.01)) == (
        f"{start}; of it 60% for a slot in the batch, 30% for the step in progress and the server's latency"
    )
    assert said(queue(0.1, slots=0.09, cache=0.06)) == (
        f"{start}; of it 60% for a slot in the batch, 40% for room in the cache"
    )
    assert said(queue(0.1, slots=0.02, cache=0.02)) == said(queue(0.1)) == start
    assert said(queue(None, slots=0.02)) == "mean -, longest 500.0 ms"
    assert said(queue(0.0)).endswith("longest 500.0 ms")


def test_what_a_verdict_is_about() -> None:
    said = report._of_ttft
    assert said(record()) == "; on average they wait 100.0 ms of 400.0 ms until their first token"
    assert said(record(verdict="saturated")) == said(record())
    once = record(conditions=conditions(generates=False))
    assert said(once) == "; on average they wait 100.0 ms of 400.0 ms in all"
    for nothing in (record(verdict="overloaded"), record(queue=queue(0.0)), record(ttft_s={"mean": None})):
        assert said(nothing) == ""


def test_a_run_that_is_too_short_says_of_what_to_take_more() -> None:
    start = "the run ends before the system reaches its steady state; "
    short = record(verdict="too short to tell")
    assert report._meaning(short) == f"{start}raise --requests, or leave it out"
    assert report._meaning(short | {"sessions": {}}) == f"{start}raise --session-count"


def result(**more: Any) -> Any:
    found: dict[str, Any] = {
        "conditions": conditions(), "slo": Slo(ttft=0.5, tpot=0.02, percentile=99.0), "tail": None, "precision": None,
        "prompt_pool": [()], "anchor": (1.0, 1.0), "records": SimpleNamespace(sessions=None, hashes=None, prompt=[1]),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def test_warnings_of_a_run() -> None:
    said = report._warnings
    assert said(result(), record()) == []
    tail = SimpleNamespace(at=lambda share: {0.5: 0.02, 0.9: 0.11}[share], rows=40, systems=5)
    (late,) = said(result(tail=tail), record())
    assert late.startswith("p99: in the middle of 40 measured rows (5 systems)")
    assert said(result(tail=tail, slo=Slo(ttft=0.5, percentile=95.0)), record()) == []
    assert said(result(tail=tail, slo=Slo(tpot=0.5, percentile=99.0)), record()) == []
    rough = record(run=run(converged=False))
    half = "the ± percentages are half of the 95 % confidence intervals"
    start = "not converged: the figures still move after 1,200 requests, as happens near capacity"
    assert said(result(), rough) == [f"{start}; {half}"]
    for most, more in ((1200, ""), (1202, ""), (20000, "; to settle takes more than 10,000")):
        (one,) = said(result(precision=SimpleNamespace(most=most)), rough)
        assert one == f"{start}{more}; {half}"
    assert said(result(), rough | {"verdict": "overloaded"}) == []


def test_warnings_about_the_load() -> None:
    said = report._warnings
    turns = conditions(traffic=traffic(prefix={**PREFIX, "turns": 4}))
    (apart,) = said(result(conditions=turns, prompt_pool=[(1,)]), record())
    assert apart.startswith("answers are cached where they were decoded: the pool for prompts")
    assert said(result(prompt_pool=[(1,)]), record()) == said(result(conditions=turns), record()) == []

    def crowd(users: int, burst: bool, **more: Any) -> list[str]:
        closed = {"concurrency": users, "burst": burst, "ramp": 0.0}
        return said(result(conditions=conditions(traffic=traffic(arrivals=closed, **more))), record())

    assert crowd(2, True) == [
        "all users start at once with requests of one length and stay in step: every TTFT is that of a crowd"
    ]
    drawn = {"kind": "lognormal", "mean": 100.0, "spread": 0.5, "most": None}
    assert crowd(1, True) == crowd(2, False) == crowd(2, True, output=drawn) == crowd(2, True, prompt=drawn) == []
    assert crowd(2, True, classes=[{}]) == []
    assert said(result(conditions=conditions(traffic=None)), record()) == []


def test_sentences_below_a_run() -> None:
    given = conditions(
        max_num_seqs=64, max_num_batched_tokens=2048, poll_interval_steps=None, replicas=3, routing="round-robin",
        engine="vllm 0.19", media={"described": "4 images"}, power_cap_w=450.0, model_counts={"line": "counted"},
        model_notes=["one", "two"], structured={"rests_on": "masks"}, kernels="marlin",
    )  # fmt: skip
    first, *rest = report._notes(result(conditions=given), record())
    assert first.startswith("stable: the queue of requests does not grow; on average they wait")
    assert [line for line in rest if not line.startswith("cap of 450 W per GPU: ")] == [
        "media: a request carries 4 images", "counted", "note: one", "note: two", "masks",
        "the figures hold for vllm 0.19 with max_num_seqs 64, max_num_batched_tokens 2048, 3 engines, round-robin, and "
        "for this load",
        "kernels: marlin", "basis: measured, constants h100",
    ]  # fmt: skip
    bare = report._notes(result(conditions=conditions(max_num_seqs=0, replicas=1)), record())
    assert bare == report._notes(result(conditions=conditions(max_num_seqs=0)), record())
    assert bare[1:] == [
        "the figures hold for the engine with max_num_seqs 0, and for this load", "basis: measured, constants h100"
    ]  # fmt: skip
    anchored = report._notes(result(anchor=(1.1234, 0.9)), record())[-1]
    assert anchored == (
        "basis: measured, constants h100; anchored to measured runs: at this load TTFT x 1.123, TPOT x 0.900; ITL and "
        "waits are not anchored"
    )


def test_a_trace_hides_what_its_blocks_share() -> None:
    """Two prompts of 1,000 tokens share the first 512 and part in the next 488: of 487 that may be alike 999 // 16 - 32
    blocks of 16, 480 of 2,000 tokens. With or without adapters; without a cache nothing could be found."""
    names = FileNames.of([(1, 2), (1, 3)], [1000, 1000], 512).cut(16)
    kept, bare = conditions(prefix_caching=True), conditions(prefix_caching=False)
    for each in (names, OfAdapters(names, [0, 1], 2)):
        records = SimpleNamespace(sessions=None, hashes=each, prompt=[1000, 1000])
        assert report.named_blocks(result(records=records, conditions=bare)) == []
        (said,) = report.named_blocks(result(records=records, conditions=kept))
        assert said == (
            "trace: it names every 512 tokens of a prompt, and hits are counted in blocks of 16; what prompts share of "
            "a named block in which they part is not known and not found, at most 24.0% of the prompt tokens in a "
            "cache that forgets nothing"
        )


def test_sessions_that_keep_nothing() -> None:
    agents = SimpleNamespace(sessions=SimpleNamespace(note="read so"), hashes=None, prompt=[1])
    start = "no prefix cache: each call computes its whole prompt again"
    assert report._without_cache(result(records=agents)) == [f"{start} (--prefix-caching)"]
    slots = result(records=agents, conditions=conditions(engine="llama.cpp"))
    assert report._without_cache(slots) == [f"{start}; llama-server keeps the text of each slot (--prefix-caching)"]
    kept = result(records=agents, conditions=conditions(prefix_caching=True))
    assert report._without_cache(kept) == report._without_cache(result()) == []
    assert report._of_trace(result(records=agents)) == ["trace: read so"]
    silent = result(records=SimpleNamespace(sessions=SimpleNamespace(note=""), hashes=None, prompt=[1]))
    assert report._of_trace(silent) == report._of_trace(result()) == []


def test_what_tiers_are_worth() -> None:
    found = {"requests_per_s": 15.0, "without_tiers_requests_per_s": 12.0}
    said = "15 requests/s at most, 12 without them: as with 1.25 times the GPUs"
    assert report._worth(found) == [["cache tiers", said]]
    assert report._worth(None) == report._worth(found | {"without_tiers_requests_per_s": None}) == []


def test_tiers_of_a_run() -> None:
    device = {"name": "device", "hit_rate": 0.5}
    host = {
        "name": "host",
        "hit_rate": 0.25,
        "capacity_bytes": 256e9,
        "bandwidth_bytes_per_s": 25e9,
        "latency_s": 1e-5,
        "loads": 1200,
        "loaded_bytes": 3e9,
        "load_mean_s": 0.02,
        "shared": True,
        "currency": "USD",
        "cost_per_hour": 1.5,
    }
    table = report._tiers([device, host])
    assert table.title == "Cache tiers (per device)"
    heads = ["", "capacity", "bandwidth", "latency", "hits", "loads", "loaded", "load, mean", "cost of all"]
    assert list(table.columns) == heads
    assert [list(row) for row in table.rows] == [
        ["device", "", "", "", "50.00%", "", "", "", ""],
        ["host", "256.0 GB, shared", "25.00 GB/s", "10.00 us", "25.00%", "1,200", "3.000 GB", "20.00 ms", "1.5 USD/h"],
    ]
    unpriced = report._tiers([device, host | {"currency": None, "load_mean_s": None, "shared": False}])
    assert list(unpriced.columns) == heads[:-1]
    assert [list(row)[1:2] + list(row)[-1:] for row in unpriced.rows] == [["", ""], ["256.0 GB", "-"]]
    both = report._tiers([device, host, host | {"name": "store", "currency": None}])
    assert list(both.rows)[-1][-1] == "not priced"


def test_hits_by_size() -> None:
    table = report._curve([{"capacity_bytes": 1e9, "capacity_tokens": 12345, "hit_rate": 0.125}])
    assert (list(table.columns), [list(row) for row in table.rows]) == (
        ["bytes per device", "tokens", "hits"], [["1.000 GB", "12,345", "12.50%"]]
    )  # fmt: skip


def test_adapters_of_a_run() -> None:
    found = {"hit_rate": 0.875, "loaded": 1500, "load_s": 0.02}
    slots = {"adapters": found, "conditions": {"lora": {"rank": 16, "max_loras": 4}}}
    assert report._adapters(slots) == [
        ["LoRA adapters", "rank 16; 87.50% found in 4 slots; 1,500 loaded, 20.00 ms each"]
    ]
    assert report._adapters({"adapters": None}) == report._adapters({"adapters": found | {"hit_rate": None}}) == []


def test_cache_of_one_pool_or_two() -> None:
    of = {"use_mean": 0.5, "use_peak": 0.75, "capacity_tokens": 12000, "pools": None}
    assert report._cache_rows(of) == [["KV cache used", "mean 50.0%, peak 75.0% of 12,000 tokens"]]
    assert report._cache_rows(of | {"capacity_tokens": 0}) == [["KV cache used", "mean 50.0%, peak 75.0%"]]
    pools = {"prefill": of, "decode": of | {"use_mean": 0.25}}
    assert report._cache_rows(of | {"pools": pools}) == [
        ["KV cache used, prompts", "mean 50.0%, peak 75.0% of 12,000 tokens"],
        ["KV cache used, decodes", "mean 25.0%, peak 75.0% of 12,000 tokens"],
    ]


def test_pools_and_the_way_between_them() -> None:
    assert report._simulated(conditions()) == [["simulated", "a model"]]
    moved = {
        "sent_bytes_a_rank": 1e9, "sent_over": "nvlink", "received_bytes_a_rank": 5e8, "received_over": "infiniband",
        "seconds": 0.02, "sending": "layers", "first_token": "cache", "handoff_steps": 1.5,
    }  # fmt: skip
    apart = conditions(cache_transfer=moved, pools={"prefill": 2, "decode": 3})
    assert report._simulated(apart) == [
        ["prompts", "2 x a model"],
        ["decodes", "3 x a model"],
        [
            "cache of a mean prompt",
            "20.00 ms, layer by layer: 1.000 GB from each rank over nvlink, 500.0 MB to each over infiniband",
        ],
        ["first token", "with the cache, 1.5 decode steps after its transfer"],
    ]
    own = apart | {"prefill": {"deployment": "another", "max_num_batched_tokens": 2048}}
    assert report._simulated(own)[0] == ["prompts", "2 x another, 2048 tokens per step"]
    own["prefill"]["max_num_batched_tokens"] = None
    assert report._simulated(own)[0] == ["prompts", "2 x another, any number of tokens per step"]


def test_tokens_that_are_read() -> None:
    rates = {"total_tokens_per_s": 1100.0, "output_tokens_per_s": 100.0}
    assert (report._read(rates, True), report._read(rates, False)) == (1100.0, 1000.0)


METERS: Any = [
    SimpleNamespace(timeline=[(0.5, 0.25, 1, 8, 1000, 3, 0.5), (0.75, 0.125, 4, 9, 0, 0, 0.625)]),
    SimpleNamespace(timeline=None),
    SimpleNamespace(timeline=[(1.0, 0.5, 2, 1, 0, 7, 0.125)]),
]


def test_steps_as_csv() -> None:
    assert report.timeline_csv(METERS) == (
        "engine,start_s,duration_s,steps,decodes,prompt_tokens,waiting,kv_use\n"
        "0,0.5,0.25,1,8,1000,3,0.5\n0,0.75,0.125,4,9,0,0,0.625\n2,1,0.5,2,1,0,7,0.125\n"
    )


def test_steps_as_a_trace() -> None:
    """Times in microseconds."""
    found = json.loads(report.timeline_trace(METERS))
    assert found["displayTimeUnit"] == "ms"
    first, *counters = found["traceEvents"][:4]
    args = {"steps": 1, "decodes": 8, "prompt_tokens": 1000}
    assert first == {"name": "prompt", "ph": "X", "pid": 0, "tid": 0, "ts": 5e5, "dur": 2.5e5, "args": args}
    assert counters == [
        {"name": name, "ph": "C", "pid": 0, "ts": 5e5, "args": {name: value}}
        for name, value in (("decodes", 8), ("waiting", 3), ("kv_use", 0.5))
    ]
    assert [one["name"] for one in found["traceEvents"] if one["ph"] == "X"] == ["prompt", "decode", "decode"]
    assert {one["pid"] for one in found["traceEvents"]} == {0, 2}


def test_tracks_of_an_engine() -> None:
    tracks = report.timeline_tracks(METERS[0])
    assert {name: [list(part) for part in both] for name, both in tracks.items()} == {
        "decodes": [[0.5, 0.75], [8, 9]], "waiting": [[0.5, 0.75], [3, 0]],
        "prompt tokens": [[0.5, 0.75], [1000, 0]], "KV cache used": [[0.5, 0.75], [0.5, 0.625]],
    }  # fmt: skip
    empty = report.timeline_tracks(METERS[1])
    assert [list(part) for part in empty["decodes"]] == [[0.0], [0.0]]


def test_a_steady_state() -> None:
    state = SimpleNamespace(
        load=SimpleNamespace(concurrency=1500.0, output=100.0), ttft=0.2, tpot=0.02, e2el=2.2, request_rate=12.345,
        output_rate=1234.5, admitted=64.0, admissible=128.0, queue=3.5, wait=0.01, kv_use=0.5, prompt_share=0.25,
    )  # fmt: skip
    table = report.steady_report(state)  # type: ignore[arg-type]
    assert table.title == "Steady state of 1,500 users"
    assert table.rows == [
        ["users", "1,500"], ["TTFT at the server, mean", "200.0 ms"], ["TPOT", "20.00 ms"], ["end to end", "2.200 s"],
        ["requests/s", "12.35"], ["output tokens/s", "1,234.5"], ["admitted at once", "64.0 of at most 128.0"],
        ["waiting for a slot or cache", "3.5 users, 10.00 ms each"], ["KV cache used", "50.0%"],
        ["steps that hold prompts", "25.0%"],
    ]  # fmt: skip
    for output, decodes in ((1.0, False), (2.0, True)):
        state.load.output = output
        assert ("TPOT" in [row[0] for row in report.steady_report(state).rows]) is decodes  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", [False, True])
def test_lines_of_a_run(monkeypatch: pytest.MonkeyPatch, cut: bool) -> None:
    """Of a run that is cut while requests still wait, rates and duration are of the time in which requests came."""
    monkeypatch.setattr(report, "limits_missed", lambda result: "")
    monkeypatch.setattr(report, "while_counting", lambda result: (1100, 900))
    whole = record(
        requests={"arrived": 1200, "finished": 1190, "gave_up": 10, "rejected": 0},
        rejected_because={"too long": 1300}, duration_s=60.0, batch_mean=12.5,
        throughput={"requests_per_s": 19.833, "output_tokens_per_s": 1983.3, "total_tokens_per_s": 21816.3},
        kv={"use_mean": 0.5, "use_peak": 0.75, "capacity_tokens": 0, "pools": None}, preemptions=1400,
        prefix_cache_hit_rate=0.25, adapters=None, goodput_requests_per_s=None, reasoning=None, steps=5000,
        prompt_steps=2000,
    )  # fmt: skip
    status = [report.FINISHED] * 5 + [report.FINISHED + 1] * 3
    made = result(steady=not cut, metered=3.0 if cut else None, slots=64, records=SimpleNamespace(status=status))
    rows = dict(map(tuple, report._rows(made, whole)))  # type: ignore[arg-type]
    assert rows["load"].startswith("2.5 requests/s") and rows["verdict"] == "stable"
    assert rows["rejected: too long"] == "1,300"
    assert rows["requests/s"] == "19.83" and rows["output tokens/s"] == "1,983.3"
    assert rows["total tokens/s"] == "21,816.3" and rows["decode batch, mean"] == "12.5 of 64 slots"
    assert rows["preemptions"] == "1,400" and rows["prefix-cache hits"] == "25.0% of the prompt tokens"
    assert rows["steps"] == "5,000, 2,000 with prompts"
    if cut:
        assert rows["while requests came"] == "1,100 arrived, 900 finished; 5 of all 8 at the end"
        assert rows["duration"] == "60.00 s, while requests came" and "requests counted" not in rows
    else:
        assert rows["requests counted"] == "1,200 arrived, 1,190 finished, 10 gave up"
        assert rows["duration"] == "60.00 s" and "while requests came" not in rows
    none = whole | {"requests": {"arrived": 3, "finished": 0}}
    assert dict(map(tuple, report._rows(made, none)))["duration"] == "-"  # type: ignore[arg-type]
    reads = result(**vars(made) | {"conditions": conditions(generates=False)})
    rows = dict(map(tuple, report._rows(reads, whole)))  # type: ignore[arg-type]
    assert rows["tokens read/s"] == "19,833.0" and rows["steps"] == "5,000"
    assert not {"output tokens/s", "preemptions", "total tokens/s"} & rows.keys()


def test_the_tables_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions and classes stand between latencies and the run; a thought's answer below the first token."""
    for name, value in {"_rows": [["a", "b"]], "_notes": ["note"], "_tiers": "tiers", "_curve": "curve"}.items():
        monkeypatch.setattr(report, name, lambda *_, value=value: value)
    monkeypatch.setattr(report, "class_tables", lambda classes: ["classes", "limits"])
    monkeypatch.setattr(report, "session_tables", lambda sessions: ["a session", "sessions"])
    at = {"mean": 0.1, "p95": 0.2}
    names = {key for key, _ in (*report._NAMES.items(), *report._ONE_PASS.items())}
    found: dict[str, Any] = dict.fromkeys(names, at)
    found |= {"intervals": {"ttft_s": {"mean": [0.09, 0.13]}}, "answer_ttft_s": None, "classes": None, "sessions": None}
    found["cache_tiers"] = None

    def tables(curve: Any = (), generates: bool = True, **more: Any) -> Any:
        of = SimpleNamespace(to_dict=lambda: found | more, conditions={"generates": generates})
        whole = report.simulation_report(of, curve)  # type: ignore[arg-type]
        assert whole.notes == ["note"] and ("hit_curve" in whole.record) is bool(curve)
        return whole.tables

    latency, ran = tables()
    assert list(latency.columns) == ["", "mean", "p50", "p90", "p95", "p99"] and latency.right == {*latency.columns[1:]}
    assert latency.rows[0][1:] == ["100.0 ms ±20.0%", "200.0 ms"] and ran.rows == [["a", "b"]]
    assert [row[0] for row in latency.rows] == list(report._NAMES.values())
    assert [row[0] for row in tables(generates=False)[0].rows] == list(report._ONE_PASS.values())
    thought = {"answer_ttft_s": at, "intervals": {"answer_ttft_s": {"mean": [0.09, 0.13]}}}
    rows = tables(**thought)[0].rows
    assert rows[1] == ["TTFT of the answer", "100.0 ms ±20.0%", "200.0 ms"] and rows[0][1] == "100.0 ms"
    first, *rest, last, ended = tables(["point"], classes=["a"], sessions={"b": 1}, cache_tiers=["host"])
    assert first.title == "Latency" and rest[:4] == ["a session", "sessions", "classes", "limits"]
    assert rest[4].title == "Run" and (last, ended) == ("tiers", "curve")
