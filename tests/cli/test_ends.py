"""How runs end: exit codes of verdicts, and what changes them."""

from __future__ import annotations

import csv
from pathlib import Path

from tests.cases import for_each
from tests.cli.conftest import Run

WORDS = ("simulate", "llama-3.1-8b", "--gpu", "l40s", "--prompt", "1000", "--output", "300")
BURSTS = (*WORDS, "--requests", "1500", "--rate", "4.6", "--arrivals", "gamma", "--burstiness", "0.1")
"""Requests in bursts at nine tenths of what can leave: the queue comes and goes, and the first token waits in it."""


@for_each(
    ("words", "code", "said"),
    [
        ((), 0, "warning: saturated"),
        (("--ttft", "60s"), 3, "error: saturated"),
        (("--ttft", "60s", "--fail-on", "limits"), 0, "warning: saturated"),  # nobody waits for a minute
        (("--ttft", "100ms", "--fail-on", "limits"), 3, "90% have to"),
        (("--fail-on", "tired"), 2, "--fail-on 'tired' is no ending"),
    ],
)
def test_a_saturated_run(run: Run, words: tuple[str, ...], code: int, said: str) -> None:
    ran = run(*BURSTS, *words)
    assert ran.code == code
    assert said in ran.err
    assert ("saturated" in ran.out) == (code != 2)  # the report is written first


@for_each(
    ("slots", "rate", "named"),
    [("1", "8", True), ("16", "30", True), ("50", "200", False)],
)
def test_an_overload_names_the_slots_of_adapters_that_it_is_of(run: Run, slots: str, rate: str, named: bool) -> None:
    """A slot serves one adapter at a time: 50 adapters asked for alike queue for one or 16, and with a slot each for
    none. --max-loras, which the hint names, is taken as it is: the rank is vLLM's 16."""
    words = f"--rate {rate} --prompt 512 --output 200 --requests 1500 --ttft 300ms --loras 50 --max-loras {slots}"
    ran = run("simulate", "llama-3.1-8b", "--gpu", "h100-sxm", *words.split())
    assert ran.code == 3
    assert (f"a larger --max-loras than {slots}" in ran.err) is named
    assert ("overloaded" in ran.err) or named


def test_limits_of_classes_are_limits(run: Run, tmp_path: Path) -> None:
    """The same bursts as two classes, one of which has a limit that nobody misses."""
    (tmp_path / "two.yaml").write_text(
        "name: two\nsource: here\nclasses:\n"
        '  - {name: a, share: 0.5, prompt: "1000", output: "300", ttft: 60 s}\n'
        '  - {name: b, share: 0.5, prompt: "1000", output: "300"}\n'
    )
    ran = run("simulate", "llama-3.1-8b", "--gpu", "l40s", *BURSTS[8:], "--classes", str(tmp_path / "two.yaml"))
    assert ran.code == 3 and "error: saturated" in ran.err


def test_limits_of_sessions_are_limits(run: Run) -> None:
    """No session of an agent, whose tools alone take longer, is over in a second."""
    load = "llama-3.1-8b --gpu h100-sxm --sessions coding-agent --session-rate 0.02/s --session-count 8"
    ran = run("simulate", *load.split(), "--session-time", "1s", "--fail-on", "limits")
    assert ran.code == 3 and "0.0% of the sessions" in ran.err


def test_a_fleet_that_recovers_may_miss_limits(run: Run) -> None:
    """docs/failures.md: one of four replicas is lost and comes back; nobody sees a first token within a microsecond."""
    load = (
        "simulate llama-3.1-8b --gpu l4 --replicas 4 --rate 2 --arrivals constant --prompt 256 --output 16 --fail 60s"
    )
    words = (*load.split(), "--restart", "30s", "--requests", "600", "--ttft", "1us")
    assert run(*words).code == 0
    missed = run(*words, "--fail-on", "limits")
    assert missed.code == 3 and "0.0% of the requests" in missed.err


def test_an_overload_is_worse_than_a_queue(run: Run) -> None:
    ran = run(*WORDS, "--requests", "400", "--rate", "9", "--fail-on", "saturated")
    assert ran.code == 3 and "error: overloaded" in ran.err


def test_an_overloaded_run_may_be_let_pass(run: Run) -> None:
    load = (*WORDS, "--requests", "400", "--rate", "9")
    assert run(*load).code == 3
    passed = run(*load, "--fail-on", "rejecting")
    assert passed.code == 0
    assert "warning: overloaded" in passed.err


def test_users_who_give_up_are_not_said_to_arrive_too_fast(run: Run) -> None:
    """Each of them waits for the answer, or gives up, before the next request: a queue cannot grow."""
    load = (*WORDS, "--requests", "200", "--concurrency", "64", "--client-timeout", "2s")
    ran, passed = run(*load), run(*load, "--fail-on", "rejecting")
    assert (ran.code, passed.code) == (3, 0)
    for said in (ran.err, passed.err):
        assert "overloaded: clients give up before they are answered" in said
    assert "of the clients give up" in ran.err and "arrive" not in ran.err + passed.err


def test_a_stable_run_says_nothing(run: Run) -> None:
    ran = run(*WORDS, "--requests", "400", "--rate", "2", "--ttft", "2s")
    assert (ran.code, ran.err) == (0, "")


def test_a_plan_takes_no_more_gpus_than_there_are(run: Run) -> None:
    """docs/questions.md: 10 requests/s of chat take three L40S in fp8."""
    ran = run("plan", "llama-3.1-8b", "--gpu", "1x-l40s", "--workload", "chat", "--rate", "10", "--quant", "fp8",
              "--most", "1", "--aggregated")  # fmt: skip
    assert ran.code == 3
    assert "on at most 1 x l40s" in ran.err
    assert "--gpu 3x-l40s" in ran.err


def test_what_a_server_served_lies_within_the_error_of_its_capacity(run: Run, shared: Path) -> None:
    """The one overloaded run on file whose clients waited to the end (docs/serving.md): 4,796 of 4,800 in 1,490 s."""
    rows = csv.DictReader((shared / "measured" / "serving_open_loop.csv").read_text(encoding="utf-8").splitlines())
    (row,) = (one for one in rows if one["experiment"] == "codellama-34b-tp2-reasoning")
    words = ("simulate", "codellama-34b", "--gpu", row["gpu"], "--tp", row["tp"], "--engine", "vllm@0.15.1")
    words += ("--max-num-seqs", row["max_num_seqs"], "--max-num-batched-tokens", row["max_num_batched_tokens"])
    words += ("--rate", row["rate_per_s"], "--arrivals", "constant", "--requests", "1000", "--warmup", "0")
    words += ("--prompt", "1081", "--output", "1450", "--format", "json", "--fail-on", "rejecting")
    capacity = run(*words).json["capacity"]
    assert capacity["low_requests_per_s"] < float(row["achieved_requests_per_s"]) < capacity["high_requests_per_s"]
    assert capacity["high_requests_per_s"] < 1.2 * capacity["requests_per_s"]  # a band of its steps, no floor of 22 %
