"""Files of sessions on the command line: what is refused, with file and line; rates; the answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferplan.catalog.files import names
from inferplan.catalog.sessions import load_sessions
from tests.cases import for_each
from tests.cli.conftest import Run

GOOD = """\
sessions:
  - name: coder
    share: 0.7
    turns: "3"
    system: 100
    first: "40"
    output: "5"
    tool: {prompt: "20", time: 2s}
    user: {share: 0.5, prompt: "10", time: "exponential:3s"}
    subagents: {probability: 0.5, number: "2", turns: "1", first: "30", output: "4"}
    cancel: {share: 0.2, after: 1min}
  - name: chat
    share: 0.3
    turns: "1"
    first: "60"
    output: "6"
"""
SIMULATE = "simulate llama-3.1-8b --gpu h100-sxm --sessions mine.yaml"


@for_each(
    ("old", "new", "said"),
    [
        ("system: 100", "sytem: 100", "mine.yaml:5: sessions.0.sytem: unknown field; did you mean system?"),
        ("share: 0.7", "share: 0.6", "mine.yaml: the shares of the kinds add up to 0.9, not to 1"),
        ('turns: "3"', 'turns: "three"', "mine.yaml:2: turns: 'three' is not a length"),
        ("time: 2s", "time: 2", "mine.yaml:8: sessions.0.tool.time: Input should be a valid string"),
        ("time: 2s", "time: soon:2s", "mine.yaml:2: tool.time: 'soon:2s' is not a time"),
        ("{share: 0.5, prompt", "{prompt", "mine.yaml:2: a tool and a user both bring later calls"),
        ('prompt: "20", time', 'share: 0.5, prompt: "20", time', "mine.yaml:2: a tool and a user both bring later"),
        ("probability: 0.5", "probability: 0", "mine.yaml:10: sessions.0.subagents.probability"),
        ('number: "2", turns: "1"', 'number: "2", turns: "2"', "mine.yaml:2: later turns of an agent need what brings"),
        ("share: 0.2", "share: 2", "mine.yaml:11: sessions.0.cancel.share"),
        ("name: chat", "name: coder", "mine.yaml: two kinds of session are named 'coder'"),
        ("system: 100", "system: -1", "mine.yaml:5: sessions.0.system"),
    ],
)
def test_a_wrong_file_is_refused_where_it_is_wrong(
    old: str, new: str, said: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert old in GOOD
    Path("mine.yaml").write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    answer = run(*f"{SIMULATE} --session-rate 1/s".split())
    assert answer.code == 2 and said in answer.err and not answer.out


@for_each(
    ("options", "said"),
    [
        ("", "sessions need one kind of load"),
        ("--session-rate 1/s --concurrency 2", "sessions need one kind of load"),
        ("--session-rate 1", "--session-rate '1' is not a rate of sessions"),
        ("--session-rate 0/s", "--session-rate must be more than 0"),
        ("--rate 3 --session-rate 1/s", "--rate and --sessions exclude each other"),
        ("--session-rate 1/s --requests 50", "--requests and --sessions exclude each other"),
        ("--session-rate 1/s --turns 5", "--turns and --sessions exclude each other"),
        ("--session-rate 1/s --classes chat-and-batch", "exclude each other"),
        ("--session-rate 1/s --warmup 5", "--warmup and --sessions exclude each other"),
        ("--session-rate 1/s --client-timeout 5s", "--client-timeout and --sessions exclude each other"),
        ("--session-rate 1/s --jobs 2 --replicas 2", "requests that follow answers connect them"),
        ("--session-rate 1/s --samples 2", "--samples and --sessions exclude each other"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: str, said: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(GOOD, encoding="utf-8")
    answer = run(*f"{SIMULATE} {options}".split())
    assert answer.code == 2 and said in answer.err and not answer.out


@for_each("option", ["--session-rate 1/s", "--session-count 5", "--session-time 5min"])
def test_options_of_sessions_need_sessions(option: str, run: Run) -> None:
    answer = run(*f"simulate llama-3.1-8b --gpu h100-sxm --rate 1 {option}".split())
    assert answer.code == 2
    assert f"{option.split(maxsplit=1)[0]} needs sessions of agents, and there are none" in answer.err


@for_each("load", ["--session-rate 30/min", "--concurrency 5 --burst"])
def test_the_answer(load: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(GOOD, encoding="utf-8")
    record = run(*f"{SIMULATE} {load} --session-count 40 --session-time 60s --format json".split()).json
    sessions = record["sessions"]
    assert sessions["begun"] == sessions["finished"] + sessions["cancelled"] == 40
    parts = [sessions[f"{name}_s"]["mean"] for name in ("model", "tools", "thinking")]
    assert sum(parts) == pytest.approx(sessions["duration_s"]["mean"], rel=1e-9)
    assert sessions["limit_s"] == 60.0
    assert [kind["name"] for kind in sessions["kinds"]] == ["coder", "chat"]
    assert sum(kind["begun"] for kind in sessions["kinds"]) == 40
    arrivals = record["conditions"]["traffic"]["arrivals"]
    assert arrivals.get("rate", 0.5) == 0.5  # 30 a minute
    shown = run(*f"{SIMULATE} {load} --session-count 40".split())
    assert shown.code == 0 and "40 of mine (0.7 coder, 0.3 chat), seed 0" in shown.out


WEKA = {
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        {"t": 0, "type": "n", "in": 100, "out": 5, "hash_ids": [1, 2], "api_time": 1.0},
        {"t": 2, "type": "subagent", "requests": [{"t": 2, "type": "n", "in": 90, "out": 5, "hash_ids": [8, 9]}]},
        {"t": 9, "type": "s", "in": 200, "out": 5, "hash_ids": [1, 3, 4, 5], "input_types": ["text"], "think_time": 3},
    ],
}
TRACE = "simulate llama-3.1-8b --gpu h100-sxm --trace agents.json"


def test_a_trace_of_agents_is_replayed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agents.json").write_text("\n".join([json.dumps(WEKA)] * 3), encoding="utf-8")
    for load, loaded in (
        ("--session-rate 1/s", "1 sessions/s (poisson), 3 of agents.json"),
        ("--concurrency 2 --burst", "the requests of a trace, sent by 2 users"),
    ):
        shown = run(*f"{TRACE} {load}".split())
        assert shown.code == 0 and loaded in shown.out
        assert "trace: times inside sub-agents count from the begin of the session" in shown.out
        assert "3 begun: 3 finished" in shown.out
    cut = run(*f"{TRACE} --session-rate 1/s --session-count 2 --format json".split()).json
    assert cut["sessions"]["finished"] == 2 and cut["run"]["sent"] == 6
    for options, said in (
        ("", "the sessions of this trace have no times at which they begin"),
        ("--session-rate 1/s --concurrency 2", "sessions need one kind of load"),
        ("--session-rate 1/s --requests 4", "--requests and a trace of agents exclude each other"),
        ("--concurrency 2 --burstiness 2", "--burstiness needs an open loop"),
    ):
        refused = run(*f"{TRACE} {options}".split())
        assert refused.code == 2 and said in refused.err


@for_each("option", ["--replay", "--profile-from"])
def test_a_day_takes_no_trace_of_agents(run: Run, tmp_path: Path, option: str) -> None:
    path = tmp_path / "agents.json"
    path.write_text("\n".join([json.dumps(WEKA)] * 3), encoding="utf-8")
    refused = run(*f"day llama-3.1-8b --gpu h100-sxm {option} {path} --ttft 1s --policy static".split())
    assert refused.code == 2 and "their calls follow answers" in refused.err and "--sessions FILE" in refused.err


def test_a_rate_of_sessions_is_not_of_other_traces(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agents.json").write_text("arrival_s,prompt,output\n0,10,10\n1,10,10\n", encoding="utf-8")
    answer = run(*f"{TRACE} --session-rate 1/s".split())
    assert answer.code == 2 and "--session-rate needs sessions of agents, and there are none" in answer.err


@for_each("name", names("sessions"))
def test_the_shipped_files_load_and_say_where_they_are_from(name: str) -> None:
    assert load_sessions(name).kinds
