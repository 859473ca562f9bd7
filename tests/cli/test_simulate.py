"""``inferplan simulate``: exit codes, keys, files."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.engine import EngineFlags
from inferplan.reports.simulation import _waits
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import Lengths, OpenLoop, Traffic
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.cli.conftest import Run

BASE = ("simulate", "llama-3.1-8b", "--gpu", "h100-sxm", "--ideal")


def test_json_has_the_latencies(run: Run) -> None:
    record = run(*BASE, "--concurrency", "8", "--prompt", "512", "--output", "64", "--format", "json").json
    for key in ("ttft_s", "tpot_s", "itl_s", "e2el_s"):
        assert set(record[key]) == {"mean", "p50", "p90", "p95", "p99"}
        assert record[key]["mean"] > 0
    # ten requests for each of eight users; the first and the last of each fill the system and empty it
    assert record["run"]["sent"] == 80 and record["run"]["warmup"] == record["run"]["cooldown"] == 8
    assert record["requests"]["arrived"] == record["requests"]["finished"] == 64
    assert record["verdict"] == "stable"
    assert record["conditions"]["engine"].startswith("vllm")


def test_overload_exits_3_and_prints(run: Run) -> None:
    ran = run(*BASE, "--rate", "300", "--requests", "3000", "--prompt", "1024", "--output", "256", "--format", "json")
    assert ran.code == 3
    record = json.loads(ran.out)
    assert record["verdict"] == "overloaded" and record["ttft_s"]["p99"] is None
    assert "overloaded" in ran.err


@for_each(
    "arguments",
    [
        (),
        ("--rate", "1", "--concurrency", "4"),
        ("--rate", "-1"),
        ("--concurrency", "4", "--prompt", "none"),
        ("--concurrency", "4", "--draft-model", "llama-3.2-3b"),
        ("--concurrency", "4", "--length-ratio-min", "2"),
        ("--concurrency", "4", "--prefill-replicas", "1"),
        ("--concurrency", "4", "--prefill-tp", "2"),
        ("--concurrency", "4", "--workload", "chta"),
        ("--concurrency", "4", "--timeline", "steps.txt"),
        ("--rate", "4", "--replicas", "2", "--routing", "least-loaded", "--jobs", "8"),
        ("--concurrency", "4", "--replicas", "2", "--jobs", "8"),
    ],
)
def test_bad_usage_exits_2(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run(*BASE, *arguments)
    assert ran.code == 2
    assert ran.err.startswith("error:")


def test_replicas_for_prompts_of_their_own(run: Run) -> None:
    """What the options describe is what the library is given."""
    apart = ("--prefill-replicas", "2", "--decode-replicas", "1", "--prefill-tp", "2", "--prefill-gpu", "h200-sxm")
    flags = ("--max-num-seqs", "32", "--prefill-max-num-batched-tokens", "1024", "--no-prefill-chunked-prefill")
    load = ("--rate", "4", "--requests", "40", "--prompt", "512", "--output", "16")
    record = run(*BASE, *load, *apart, *flags, "--format", "json").json
    request = Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True, flags=EngineFlags(max_sequences=32))
    prompts = EngineFlags(max_sequences=32, token_budget=1024)
    fleet = Fleet(
        prefill=2,
        decode=1,
        prefill_deployment=assemble(replace(request, gpu="h200-sxm", parallel=Parallelism(tp=2), flags=prompts)),
        prefill_flags=Flags(chunked_prefill=False),
    )
    lengths = {"prompt": Lengths(mean=512), "output": Lengths(mean=16)}
    traffic = Traffic(arrivals=OpenLoop(rate=4), requests_count=40, **lengths)
    known = simulate(assemble(request), traffic, options=Options(fleet=fleet, trim=True)).to_dict()
    assert record["ttft_s"] == pytest.approx(known["ttft_s"]) and record["tpot_s"] == pytest.approx(known["tpot_s"])
    assert record["conditions"]["prefill"] == known["conditions"]["prefill"]
    assert not known["conditions"]["prefill"]["chunked_prefill"] and known["conditions"]["chunked_prefill"]
    table = run(*BASE, *load, *apart, *flags).out
    assert "2 x llama-3.1-8b in bf16 on 2 x h200-sxm (tp 2), 1024 tokens per step" in table


def test_a_broken_trace_exits_4(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt,output\n0,10,10\n-3,10,10\n")
    ran = run(*BASE, "--trace", str(path))
    assert ran.code == 4
    assert f"{path}:3:" in ran.err and "negative time" in ran.err
    assert run(*BASE, "--trace", str(tmp_path / "absent.csv")).code == 4


def test_a_trace_without_times_takes_users(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("prompt,output\n" + "100,10\n" * 8)
    assert run(*BASE, "--trace", str(path)).code == 2
    record = run(*BASE, "--trace", str(path), "--concurrency", "2", "--burst", "--format", "json").json
    assert record["requests"]["finished"] == 8
    assert run(*BASE, "--trace", str(path), "--concurrency", "2", "--prompt", "64").code == 2  # not ignored


def test_a_million_token_prompt_is_answered(run: Run) -> None:
    ran = run(*BASE, "--concurrency", "1", "--prompt", "1M", "--output", "8", "--format", "json")
    record = json.loads(ran.out)
    assert ran.code == 3 and record["verdict"] == "rejecting" and "10 of 10 requests can never run" in ran.err
    assert record["requests"]["rejected"] == 10
    assert any("max_model_len" in reason for reason in record["rejected_because"])


def test_timeline_and_plot(run: Run, tmp_path: Path) -> None:
    steps, trace, plot = tmp_path / "steps.csv", tmp_path / "steps.json", tmp_path / "steps.svg"
    load = ("--concurrency", "4", "--prompt", "256", "--output", "32")
    assert run(*BASE, *load, "--timeline", str(steps), "--plot", str(plot)).code == 0
    with steps.open() as file:
        rows = list(csv.DictReader(file))
    assert rows and float(rows[0]["duration_s"]) > 0
    assert plot.read_text().lstrip().startswith("<?xml")
    assert run(*BASE, *load, "--timeline", str(trace)).code == 0
    assert json.loads(trace.read_text())["traceEvents"]


def test_every_knob_is_taken(run: Run) -> None:
    arguments = (
        "--concurrency 4 --prompt uniform:256:0.8 --output 32 --requests 40 --warmup 4 --seed 3 "
        "--poll-interval-steps 10 --batch-wait-steps 5 --batch-wait-fill 0.5 --client-timeout 60s "
        "--max-num-seqs 8 --max-num-batched-tokens 512 --max-model-len 4096 --block-size 32 "
        "--gpu-memory-utilization 0.8 --length-ratio-min 0.5 --shared-prefix 64 "
        "--turns 2 --replicas 2 --routing prefix-aware --draft-model llama-3.2-3b --draft-tokens 3 --acceptance 0.7 "
        "--kv-offload 10GB --offload-bandwidth 50GB/s --ttft 1s --slo mlperf-llama3.1-8b --no-burst --ramp 2s"
    )
    record = run(*BASE, *arguments.split(), "--format", "json").json
    assert record["conditions"]["max_num_seqs"] == 8
    assert record["conditions"]["block_size"] == 32
    assert record["conditions"]["speculation"]["tokens_per_step"] == pytest.approx(2.533)
    assert record["slo"] == {"ttft_s": 1.0, "tpot_s": 0.1}


@pytest.mark.slow
def test_cache_tiers_are_those_of_the_option(run: Run) -> None:
    load = ("--rate", "1", "--requests", "40", "--prompt", "512", "--output", "16", "--turns", "4")
    tiers = ("--cache-tier", "host:2GB:25GB/s", "--cache-tier", "store:1TB:10GB/s:2ms:shared")
    device, host, store = run(*BASE, *load, *tiers, "--format", "json").json["cache_tiers"]
    assert device["name"] == "device" and device["hit_rate"] > 0
    facts = ("name", "capacity_bytes", "capacity_tokens", "bandwidth_bytes_per_s", "latency_s", "shared")
    assert [host[fact] for fact in facts] == ["host", 2e9, int(2e9 // 131072), 25e9, 0.0, False]
    assert [store[fact] for fact in facts] == ["store", 1e12, int(1e12 // 131072), 10e9, pytest.approx(2e-3), True]
    assert "1.000 TB, shared" in run(*BASE, *load, *tiers).out
    assert run(*BASE, *load, "--format", "json").json["cache_tiers"] is None


@pytest.mark.slow
def test_a_price_of_a_tier_is_paid_by_every_device_and_of_a_shared_one_once(run: Run) -> None:
    """Two replicas of two devices: 4 x 2 GB at 3 USD per month of 730 hours, 1,000 GB once at 0.002 USD an hour."""
    load = ("--rate", "1", "--requests", "40", "--prompt", "512", "--output", "16", "--turns", "4", "--tp", "2")
    tiers = (
        *("--cache-tier", "host:2GB:25GB/s:3USD/GB-month", "--cache-tier", "ssd:9GB:6GB/s:1ms"),
        *("--cache-tier", "store:1TB:10GB/s:2ms:2USD/TB-hour:shared", "--replicas", "2"),
    )
    _, host, ssd, store = run(*BASE, *load, *tiers, "--format", "json").json["cache_tiers"]
    assert host["cost_per_hour"] == pytest.approx(4 * 2 * 3 / 730) and host["currency"] == "USD"
    assert store["cost_per_hour"] == pytest.approx(1000 * 0.002) and store["price_per_gb_hour"] == pytest.approx(0.002)
    assert ssd["cost_per_hour"] is None and ssd["price_per_gb_hour"] is None
    printed = run(*BASE, *load, *tiers).out
    assert "0.0329 USD/h" in printed and "2 USD/h" in printed and "not priced" in printed
    for wrong in ("host:2GB:25GB/s:3USD/GB-day", "host:2GB:25GB/s:3/GB-month", "host:2GB:3USD/GB-month"):
        assert run(*BASE, *load, "--cache-tier", wrong).code == 2


def test_the_curve_of_hit_rates_is_shown_where_prompts_share_text(run: Run) -> None:
    """A cache that holds all finds what the device does, which holds all: 3 of 4 turns, all but the last block."""
    load = ("--rate", "1", "--requests", "40", "--prompt", "512", "--output", "16", "--turns", "4", "--hit-curve")
    record = run(*BASE, *load, "--format", "json").json
    assert record["hit_curve"][-1]["hit_rate"] == pytest.approx(record["prefix_cache_hit_rate"])
    assert record["hit_curve"][0]["capacity_bytes"] == 131072 * record["hit_curve"][0]["capacity_tokens"]
    assert "Hits of one LRU cache shared by all replicas, by its size" in run(*BASE, *load).out
    assert "hit_curve" not in run(*BASE, *load[:-1], "--format", "json").json
    assert "share no text" in run(*BASE, "--rate", "1", "--requests", "40", "--hit-curve").err


def test_the_report_says_what_was_sent(run: Run) -> None:
    """Every option that makes the load is in its line, in the form in which it is given."""
    load = (
        *("--concurrency", "4", "--prompt", "lognormal:300:0.5:1000", "--output", "16", "--shared-prefix", "64"),
        *("--distinct-prefixes", "3", "--turns", "2", "--think-time", "lognormal:1s:0.5", "--samples", "2"),
    )
    printed = run(*BASE, *load, "--ramp", "1s", "--prefix-hit-rate", "0.25", "--client-timeout", "9s").out
    for part in (
        *("prompt lognormal:300:0.5:1000,", "output 16,", "shared prefix 64, one of 3 texts,", "2 turns,"),
        *("think time lognormal:1s:0.5,", "2 samples per prompt,", "0.25 of each prompt taken as cached,"),
        *("clients give up after 9.000 s,", "seed 0"),
    ):
        assert part in printed


def test_an_overload_is_counted_in_one_span(run: Run) -> None:
    """Of 3,000 requests the last 2,250 come while rates count; what finishes later is told apart."""
    load = ("--rate", "300", "--requests", "3000", "--prompt", "1024", "--output", "32")
    record = json.loads(run(*BASE, *load, "--format", "json").out)
    finished = record["run"]["finished_while_counting"]
    assert record["run"]["arrived_while_counting"] == 2250 and 0 < finished < 1500
    assert finished / record["duration_s"] == pytest.approx(record["throughput"]["requests_per_s"])
    printed = run(*BASE, *load).out
    assert f"2,250 arrived, {finished:,} finished; 3,000 of all 3,000 at the end" in printed
    assert "s, while requests came" in printed and "requests counted" not in printed


def test_most_of_a_wait_is_named() -> None:
    queue = {"wait_mean_s": 1.0, "wait_max_s": 2.0, "waited_for_s": {"budget": 0.32, "cache": 0.05}}
    assert _waits(queue).endswith(
        "of it 63% for the step in progress and the server's latency, 32% for the token budget per step"
    )
    assert _waits({**queue, "waited_for_s": {"slots": 0.5, "cache": 0.6}}).endswith(
        "of it 55% for room in the cache, 45% for a slot in the batch"
    )
    assert "of it" not in _waits({**queue, "waited_for_s": {"budget": 0.1}})
