"""``inferplan day`` as a user types it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from inferplan.planning.processes import StoppedError
from tests.cases import for_each
from tests.cli.conftest import Run
from tests.json_page import listed

ASKED = ("day", "llama-3.1-8b", "--gpu", "l4", "--prompt", "512", "--output", "32", "--ttft", "2s", "--tpot", "120ms")
PRICE = ("--price", "l4=1.00")


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """Ten minutes of little, ten of more; then nothing until the end of the day."""
    path = tmp_path / "two.csv"
    path.write_text(
        "time,rate,class\n0,1,chat\n0,0.5,code\n00:10,4,chat\n00:20,0,chat\n00:20,0,code\n", encoding="utf-8"
    )
    return str(path)


def test_policies_side_by_side(run: Run, profile: str) -> None:
    """A day of which half an hour is simulated: costs are 48 times those; hours and rates are those of the file."""
    ran = run(*ASKED, *PRICE, "--profile", profile, "--duration", "30min", "--cold-start", "20s", "--format", "json")
    record = ran.json
    assert sorted([*record["policies"][0], "failures"]) == sorted(listed("day", "policies[]"))
    assert record["profile"]["classes"] == ["chat", "code"]
    assert record["profile"]["peak_requests_per_s"] == 4.5
    assert record["profile"]["requests"] == pytest.approx(600 * 1.5 + 600 * 4.5, rel=0.1)
    share, capacity = record["replica"]["utilisation"], record["replica"]["requests_per_s"]
    peak = -(-4.5 // (share * capacity))
    static, scheduled, reactive = record["policies"]
    assert [one["policy"] for one in record["policies"]] == ["static", "scheduled", "reactive"]
    assert static["peak_replicas"] == peak
    assert static["gpu_hours"] == pytest.approx(peak * 24)
    assert static["cost_per_day"] == pytest.approx(peak * 24 * 1.00)
    assert scheduled["cost_per_day"] < static["cost_per_day"]
    assert scheduled["saving"] == pytest.approx(1 - scheduled["cost_per_day"] / static["cost_per_day"])
    assert [hour["hour"] for hour in reactive["hours"]] == [0]
    assert reactive["hours"][0]["replicas"] * 24 == pytest.approx(reactive["gpu_hours"])
    for one in record["policies"]:
        assert one["requests"]["arrived"] == record["profile"]["requests"]
    assert record["cold_start"] == {
        "seconds": 20.0, "weights_bytes": None, "storage_bytes_per_s": None, "loader": None,
        "loader_start_s": 0.0, "rest_s": 20.0, "rest_is": None
    }  # fmt: skip


def test_a_start_up_log_says_the_rest_of_a_cold_start(run: Run, profile: str, tmp_path: Path) -> None:
    """16.06 GB at 2 GB/s and the 34.11 s of vllm-project/vllm#20264."""
    log = tmp_path / "vllm.log"
    log.write_text(
        "INFO 06-19 23:05:35 [gpu_model_runner.py:1608] Graph capturing finished in 17 secs, took 0.48 GiB\n"
        "INFO 06-19 23:05:35 [core.py:162] init engine (profile, create kv cache, warmup model) took 34.11 seconds\n"
    )
    asked = (*ASKED, *PRICE, "--profile", profile, "--duration", "20min", "--policy", "scheduled")
    asked += ("--storage-bandwidth", "2GB/s", "--startup-log", str(log))
    record = run(*asked, "--format", "json").json["cold_start"]
    assert record["seconds"] == pytest.approx(2 * 8_030_261_248 / 2e9 + 34.11)
    assert record["rest_is"] == "profile, cache, warm-up and graphs"
    log.write_text("[2025-07-29 18:14:43 TP0] Capture cuda graph end. Time elapsed: 19.50 s. mem usage=6.19 GB.\n")
    record = run(*asked, "--format", "json").json["cold_start"]
    assert (record["rest_s"], record["rest_is"]) == (19.5, "graphs alone")
    log.write_text("nothing of the kind\n")
    refused = run(*asked)
    assert (refused.code, "--engine-start 45s" in refused.err) == (4, True)


def test_a_trace_brings_its_lengths(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "arrival_s,prompt,output\n" + "".join(f"{second},64,8\n" for second in range(1200)), encoding="utf-8"
    )
    asked = ("day", "llama-3.1-8b", "--gpu", "l4", "--ttft", "2s", *PRICE, "--profile-from", str(trace))
    ran = run(*asked, "--policy", "static", "--duration", "30min", "--arrivals", "constant")
    assert ran.code == 0, ran.err
    assert "1,800 requests in 0.5 h, of 64 tokens in and 8 out on average, constant arrivals" in " ".join(
        ran.out.split()
    )
    assert "lasts 1,200 s and repeats, with no night in it" in " ".join(ran.out.split())
    rows = run(*asked, "--policy", "static", "--duration", "30min", "--arrivals", "constant", "--format", "csv").out
    assert rows.splitlines()[0].startswith("policy,peak_replicas,gpu_hours,cost_per_day")
    assert rows.splitlines()[1].startswith("static,1,24.0,24.0,USD")
    refused = run(*asked, "--policy", "static", "--workload", "chat")
    assert (refused.code, "both" in refused.err, "--slo chat" in refused.err) == (2, True, True)


def test_a_trace_whose_prompts_share_text_brings_its_rates_alone(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 1000 * n, "input_length": 1024, "output_length": 8, "hash_ids": [0, n]} for n in range(600)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    asked = ("day", "llama-3.1-8b", "--gpu", "l4", "--ttft", "2s", *PRICE, "--profile-from", str(trace))
    asked = (*asked, "--policy", "static", "--duration", "10min", "--arrivals", "constant")
    refused = run(*asked)
    assert (refused.code, "share text" in refused.err) == (2, True)
    ran = run(*asked, "--prompt", "64", "--output", "8")
    assert ran.code == 0, ran.err
    assert "600 requests in 0.167 h, of 64 tokens in and 8 out" in ran.out


def test_none_at_night(run: Run, profile: str) -> None:
    """From 00:20 on nothing comes: the last replica leaves after the window, and who comes at midnight waits."""
    ran = run(
        *(*ASKED, *PRICE, "--profile", profile, "--duration", "1h", "--policy", "reactive", "--min-replicas", "0"),
        *("--cold-start", "20s", "--format", "json"),
    )
    (hour,) = ran.json["policies"][0]["hours"]
    assert hour["replicas"] < 2.0
    kept = run(
        *(*ASKED, *PRICE, "--profile", profile, "--duration", "1h", "--policy", "reactive", "--cold-start", "20s"),
        *("--format", "json"),
    ).json
    (before,) = kept["policies"][0]["hours"]
    assert before["replicas"] > hour["replicas"] + 0.3


def test_a_cold_start_of_nobody_is_refused(run: Run, profile: str) -> None:
    """Static replicas are there from the beginning; only one that replaces what is taken away starts."""
    static = (*ASKED, *PRICE, "--profile", profile, "--duration", "10min", "--policy", "static")
    refused = run(*static, "--cold-start", "20s")
    assert (refused.code, "--cold-start changes nothing under the policy static" in refused.err) == (2, True)
    refused = run(*static, "--minimum-bill", "60s")
    assert (refused.code, "--minimum-bill changes nothing" in refused.err) == (2, True)
    refused = run(*static, "--storage-bandwidth", "2GB/s", "--engine-start", "45s")
    assert (refused.code, "--storage-bandwidth changes nothing" in refused.err) == (2, True)
    ran = run(*static, "--cold-start", "20s", "--preemptions", "0.5", "--notice", "10s", "--format", "json")
    assert ran.json["cold_start"]["seconds"] == 20.0


KINDS = """classes:
  - {name: chat, prompt: "256", output: "32", ttft: 1 s, tpot: 100 ms}
  - {name: batch, prompt: "1024", output: "64", e2e: 60 s, priority: 1}
"""
OF_CLASSES = ("day", "llama-3.1-8b", "--gpu", "l4", *PRICE)


@pytest.fixture
def kinds(tmp_path: Path) -> str:
    path = tmp_path / "kinds.yaml"
    path.write_text(KINDS, encoding="utf-8")
    return str(path)


def test_classes_of_a_profile(run: Run, kinds: str, tmp_path: Path) -> None:
    """Each at its own rate, with its lengths: of 1,200 s 2 and 1 of chat a second, 0 and 0.5 of batch."""
    profile = tmp_path / "of.csv"
    profile.write_text("time,rate,class\n0,2,chat\n0,0,batch\n00:10,1,chat\n00:10,0.5,batch\n", encoding="utf-8")
    asked = (*OF_CLASSES, "--profile", str(profile), "--classes", kinds, "--queue", "priority")
    asked = (*asked, "--duration", "20min", "--policy", "static")
    record = run(*asked, "--format", "json").json
    chat, batch = record["classes"]
    assert (chat["name"], batch["name"], batch["priority"]) == ("chat", "batch", 1)
    assert (chat["share"], batch["share"]) == (pytest.approx(1800 / 2100), pytest.approx(300 / 2100))
    assert [mix["shares"] for mix in record["mixes"]["simulated"]] == [[1.0, 0.0], [2 / 3, 1 / 3]]
    assert (record["slo"], record["percentile"], record["replica"]["queue"]) == (None, None, "priority")
    first, second = record["policies"][0]["classes"]
    assert first["requests"] == pytest.approx(1800, abs=5 * 1800**0.5)
    assert second["requests"] == pytest.approx(300, abs=5 * 300**0.5)


def test_shares_divide_a_profile_without_classes(run: Run, kinds: str, tmp_path: Path) -> None:
    path = tmp_path / "shares.yaml"
    path.write_text(KINDS.replace("name: chat", "name: chat, share: 0.75").replace("name: b", "share: 0.25, name: b"))
    (tmp_path / "flat.csv").write_text("time,rate\n0,2\n")
    asked = (*OF_CLASSES, "--profile", str(tmp_path / "flat.csv"), "--duration", "10min", "--policy", "static")
    record = run(*asked, "--classes", str(path), "--format", "json").json
    assert [one["share"] for one in record["classes"]] == [0.75, 0.25]
    refused = run(*asked, "--classes", kinds)  # the number of people is missing of each
    assert (refused.code, ":2: a class has a share of the requests or a rate" in refused.err) == (2, True)


@for_each(
    ("rows", "more", "said"),
    [
        ("0,chat,1\n0,coat,1\n", (), ":3: no class is named 'coat'; there are chat, batch"),
        ("0,chat,1\n", (), "has no rate of class 'batch'"),
        ("0,chat,1\n0,batch,0\n", (), "no request of class 'batch' comes"),
        ("0,chat,1\n0,batch,1\n", ("--ttft", "1s"), "--ttft and --classes exclude each other"),
        ("0,chat,1\n0,batch,1\n", ("--workload", "chat"), "--workload and --classes exclude each other"),
    ],
)
def test_classes_and_a_profile_that_do_not_fit(
    run: Run, kinds: str, tmp_path: Path, rows: str, more: tuple[str, ...], said: str
) -> None:
    profile = tmp_path / "of.csv"
    profile.write_text(f"time,class,rate\n{rows}", encoding="utf-8")
    refused = run(*OF_CLASSES, "--profile", str(profile), "--classes", kinds, "--policy", "static", *more)
    assert refused.code in (2, 3, 4) and said in refused.err, refused.err


def test_classes_of_a_log(run: Run, kinds: str, tmp_path: Path) -> None:
    """Of two days chat comes twice in every five minutes, batch once; a class that is none is refused with its line."""
    log = tmp_path / "log.csv"
    rows = [(300 * step + 90 * n, "batch" if n == 2 else "chat") for step in range(577) for n in range(3)]
    log.write_text("timestamp,class\n" + "".join(f"{at},{name}\n" for at, name in rows), encoding="utf-8")
    asked = (*OF_CLASSES, "--classes", kinds, "--profile-from", str(log), "--fold", "mean", "--policy", "static")
    record = run(*asked, "--peak", "3", "--duration", "10min", "--format", "json").json
    assert [one["share"] for one in record["classes"]] == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert record["profile"]["peak_requests_per_s"] == pytest.approx(3.0)
    log.write_text(log.read_text().replace("90,chat", "90,chatter", 1))
    refused = run(*asked)
    assert (refused.code, "log.csv:3: no class is named 'chatter'" in refused.err) == (4, True)


def test_rates_are_said_once(run: Run, tmp_path: Path) -> None:
    """A rate in the file of the classes, beside one in the profile; and a trace, which has lengths of its own."""
    path, profile = tmp_path / "rated.yaml", tmp_path / "of.csv"
    path.write_text(KINDS.replace("name: chat", "name: chat, rate: 3").replace("name: b", "rate: 1, name: b"))
    profile.write_text("time,class,rate\n0,chat,1\n0,batch,1\n", encoding="utf-8")
    asked = (*OF_CLASSES, "--classes", str(path), "--policy", "static")
    refused = run(*asked, "--profile", str(profile))
    assert ":2: the rate of a class is stated twice" in refused.err
    profile.write_text("time,rate\n0,1\n", encoding="utf-8")
    refused = run(*asked, "--profile", str(profile))
    assert "the classes and the profile both state rates" in refused.err
    refused = run(
        *OF_CLASSES, "--profile", str(profile), "--prompt", "8", "--output", "8", "--ttft", "1s", "--queue", "fair"
    )
    assert (refused.code, "--queue fair needs several classes" in refused.err) == (2, True)
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt,output\n" + "".join(f"{n},64,8\n" for n in range(60)), encoding="utf-8")
    path.write_text(KINDS.replace("name: chat", "name: chat, share: 0.5").replace("name: b", "share: 0.5, name: b"))
    refused = run(*asked, "--profile-from", str(trace))
    assert "--profile-from takes lengths from a trace" in refused.err


def test_a_log_of_several_days_is_one_day(run: Run, tmp_path: Path) -> None:
    """Two days with one and three requests in every five minutes: 2 on average, 3 at the 100th percentile."""
    log = tmp_path / "log.csv"
    steps = [(288 * day + step) * 300 + 50 * n for day in range(2) for step in range(288) for n in range(1 + 2 * day)]
    log.write_text("timestamp\n" + "".join(f"{at}\n" for at in [*steps, 2 * 86_400]), encoding="utf-8")
    asked = (*ASKED, *PRICE, "--profile-from", str(log), "--duration", "10min", "--policy", "static")
    record = run(*asked, "--fold", "mean", "--format", "json").json
    assert record["profile"]["peak_requests_per_s"] == pytest.approx(2 / 300)
    assert record["profile"]["source"] == f"{log}, mean of 2 days"
    busy = run(*asked, "--fold", "p100", "--peak", "1", "--format", "json").json["profile"]
    assert (busy["steps"], busy["mean_requests_per_s"]) == (288, pytest.approx(1.0))
    refused = run(*asked)
    assert (refused.code, "--fold mean" in refused.err) == (2, True)
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt,output\n" + "".join(f"{at},64,8\n" for at in [*steps, 2 * 86_400]))
    asked = ("day", "llama-3.1-8b", "--gpu", "l4", "--ttft", "2s", *PRICE, "--policy", "static", "--duration", "1h")
    found = run(*asked, "--profile-from", str(trace), "--fold", "p100", "--format", "json").json["profile"]
    assert found["peak_requests_per_s"] == pytest.approx(3 / 300)
    refused = run(*asked, "--profile", "azure-2023-conv", "--workload", "chat", "--fold", "mean")
    assert (refused.code, "--fold needs a file" in refused.err) == (2, True)


def test_a_log_beside_other_designs(run: Run, tmp_path: Path) -> None:
    """Two hours of one request a second; a replica more from 01:00 on; every tenth answer took a minute longer."""
    log, ran = tmp_path / "log.csv", tmp_path / "ran.csv"
    rows = [f"{at},64,8,{60.1 if at % 10 == 0 else 0.1},{60.4 if at % 10 == 0 else 0.4}\n" for at in range(7200)]
    log.write_text("arrival_s,prompt,output,ttft_s,latency_s\n" + "".join(rows), encoding="utf-8")
    ran.write_text("timestamp,replicas\n0,1\n3600,2\n", encoding="utf-8")
    asked = (
        "day",
        "llama-3.1-8b",
        "--gpu",
        "l4",
        "--ttft",
        "2s",
        *PRICE,
        "--price",
        "l40s=3.00",
        "--cold-start",
        "60s",
    )
    asked = (*asked, "--replay", str(log), "--replay-replicas", str(ran), "--policy", "recorded,static")
    ran_all = run(*asked, "--vs", "gpu=l40s", "--format", "json")
    record = ran_all.json
    recorded, static = record["policies"]
    assert (recorded["policy"], static["policy"]) == ("recorded", "static")
    assert record["profile"]["requests"] == static["requests"]["arrived"] == 7200
    span = record["profile"]["simulated_s"]
    assert span == pytest.approx(7200.0)
    was = record["recorded"]
    assert (was["peak_replicas"], was["missed"]) == (2, pytest.approx(0.1))
    assert was["gpu_hours"] == pytest.approx(3 * 12)  # three replica hours in two, of 24
    assert recorded["gpu_hours"] == pytest.approx((3 + 60 / 3600) * 12, abs=0.01)
    assert [hour["replicas"] for hour in was["hours"]] == [1.0, pytest.approx(2.0)]
    (other,) = record["others"]
    assert (record["design"], other["design"], other["gpu"]) == ("l4", "l40s", "l40s")
    assert other["policies"][1]["cost_per_day"] == pytest.approx(other["policies"][1]["peak_replicas"] * 24 * 3.00)
    assert sorted([*static, "failures"]) == sorted(listed("day", "policies[]"))
    assert sorted(was) == sorted(listed("day", "recorded"))
    lines = run(*asked, "--vs", "gpu=l40s", "--format", "csv").out.splitlines()
    assert lines[0].startswith("design,policy,")
    assert [line.split(",")[1] for line in lines[1:]] == ["recorded", "static"] * 2
    said = " ".join(run(*asked, "--duration", "1h").out.split())
    assert "as it was" in said and "Hours over the limits: 1" in said and "1 h of log from day 1 00:00 on" in said


def test_a_replay_by_a_folded_timetable(run: Run, tmp_path: Path) -> None:
    """Two days: nothing but one request an hour on the first, two a second from 12:00 to 13:00 on the second. A
    timetable of the mean day has replicas for one a second at 12:00 on both."""
    log = tmp_path / "log.csv"
    times = sorted([*range(0, 172_801, 3600), *[129_600.25 + half / 2 for half in range(7200)]])
    log.write_text("arrival_s,prompt,output\n" + "".join(f"{at},512,32\n" for at in times), encoding="utf-8")
    asked = (*ASKED[:4], "--ttft", "2s", "--tpot", "120ms", *PRICE, "--cold-start", "60s", "--replay", str(log))
    asked = (*asked, "--policy", "scheduled", "--utilisation", "0.2", "--format", "json")
    known, folded = (run(*asked, *more).json["policies"][0] for more in ((), ("--fold", "mean")))
    carried = run(*asked).json["replica"]["requests_per_s"] * 0.2
    for one, first, second in ((known, 1, -(-2 // carried)), (folded, -(-1 // carried), -(-1 // carried))):
        assert [round(one["hours"][hour]["replicas"]) for hour in (12, 36)] == [first, second]
    said = " ".join(run(*asked[:-2]).out.split())
    assert "48 h of log" in said and "day 2 00:00" in said


def test_turns_that_a_router_scatters_are_sized_as_if_nothing_was_found(run: Run, tmp_path: Path) -> None:
    """The eighth prompt has 8 x 2,048 + 7 x 64 tokens: at the 362 TFLOP/s of an L40S, 2 x 8.0e9 FLOP a token take
    0.74 s. With 1 s for 95 in 100 no load is carried where all is computed, and some where the turns before are found.
    """
    (tmp_path / "flat.csv").write_text("time,rate\n0,1\n")
    words = ["day", "llama-3.1-8b", "--gpu", "l40s", "--profile", str(tmp_path / "flat.csv"), "--price", "l40s=1"]
    words += ["--peak", "2", "--duration", "4min", "--prompt", "2048", "--output", "64"]
    words += ["--ttft", "1s", "--tpot", "60ms", "--policy", "static"]
    turns = ["--turns", "8", "--think-time", "exponential:20s"]
    scattered = run(*words, *turns)
    assert scattered.code == 3 and "under no load" in scattered.err and "--routing sticky" in scattered.err
    kept = run(*words, *turns, "--routing", "sticky", "--format", "json")
    assert kept.code == 0 and json.loads(kept.out)["policies"][0]["missed"] <= 0.05
    endless = run(*words, "--turns", "8", "--think-time", "100h")
    assert endless.code == 2 and "360,000" not in endless.out and "a shorter --think-time" in endless.err
    deep = run(*words, "--turns", "100000", "--think-time", "1ms")
    assert deep.code == 2 and "fewer --turns" in deep.err
    deep = run(*words, "--turns", "100", "--think-time", "1ms")
    assert deep.code == 2 and "beyond a context of 131,072" in deep.err
    assert "--think-time 60s" in run(*words, "--turns", "8").err


def test_a_day_counts_the_replicas_of_a_plan(run: Run) -> None:
    """At the confidence of a plan where none is said, and at the one that is said."""
    load = ("llama-3.1-8b", "--gpu", "h100-sxm", "--workload", "chat", "--price", "h100-sxm=3")
    stated = ("--profile", "00:00=40", "--duration", "2min", "--policy", "static", "--format", "json")
    one = (*load, "--quant", "native", "--tp", "1", "--rate", "40", "--format", "json")
    for sure, said in ((0.8, ()), (0.5, ("--confidence", "0.5"))):
        day, plan = run("day", *load, *stated, *said).json, run("plan", *one, *said).json["plan"]
        assert day["replica"]["confidence"] == sure
        assert day["policies"][0]["peak_replicas"] == plan["replicas"] == (4 if sure == 0.8 else 3)
    unknown = ("llama-3.1-8b", "--gpu", "l4", "--workload", "chat", "--ttft", "2s", "--tpot", "120ms", *stated[:-2])
    refused = run("day", *unknown, "--confidence", "0.8")
    assert refused.code == 3 and "--confidence 0.5" in refused.err


def test_a_part_of_the_day_says_what_it_leaves_out(run: Run) -> None:
    asked = [
        "day",
        "llama-3.1-8b",
        "--gpu",
        "h100-sxm",
        "--workload",
        "chat",
        "--cold-start",
        "60s",
        "--duration",
        "5min",
    ]
    first = run(*asked, "--profile", "00:00=3,08:00=20").out.splitlines()[0]
    assert "the first 0.0833 h alone, with 3 requests/s at most, not the peak of 20, profile" in first
    assert ": 0.0833 h, profile" in run(*asked, "--profile", "00:00=3,08:00=2").out.splitlines()[0]


def test_a_long_day_says_how_long_it_takes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 h of 5 requests/s under three policies are 1,296,000 requests."""

    def stopped(*_: object) -> None:
        raise StoppedError({})

    monkeypatch.setattr("inferplan.cli.day.simulate_days", stopped)
    asked = ["day", "llama-3.1-8b", "--gpu", "h100-sxm", "--workload", "chat", "--cold-start", "60s"]
    assert "note: 1,296,000 requests under all policies" in run(*asked, "--profile", "00:00=5").err
    assert "under all policies" not in run(*asked, "--profile", "00:00=1").err


def test_which_of_two_reasons_holds_for_a_days_confidence(run: Run) -> None:
    """Nobody measured vLLM on an L4; on an H100 the limit on TPOT, 7 ms, lies between 6.61 ms of a request alone and
    1.14 times as much, the slow end of its band."""
    day = ["day", "llama-3.1-8b", "--profile", "00:00=0.02", "--prompt", "512", "--output", "64", "--policy", "static"]
    unknown = run(*day, "--gpu", "l4", "--ttft", "2s", "--tpot", "120ms").out
    assert re.search("as predicted, for at a confidence of 0.8 the error of .* is not known", unknown)
    kept = run(*day, "--gpu", "h100-sxm", "--ttft", "400ms", "--tpot", "7ms").out
    assert re.search("as predicted, for at a confidence of 0.8 a replica .* TPOT p95 < 7.00 ms under no load", kept)
