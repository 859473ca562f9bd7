"""Fits, simulations, plans and days: progress, results, cancelling; and no process is left behind, however they end."""

from __future__ import annotations

import html
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from inferplan.web.behind import parts_of
from tests.cases import for_each
from tests.web.conftest import ROOT, Web, gone

SHORT = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "concurrency": 8, "requests": 200, "prompt": 256, "output": 32}
LONG = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "rate": 20, "requests": 2_000_000}


def test_a_simulation_is_that_of_the_command_line(web: Web) -> None:
    found = web.wait(web.start("simulate", **SHORT))
    assert found["state"] == "done"
    program, *rest = found["command"].split()
    assert program == "inferplan"
    printed = subprocess.run(
        [sys.executable, "-m", "inferplan", *rest, "--format", "json"],
        env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found["result"] == json.loads(printed.stdout)


def test_events_end_with_the_result(web: Web) -> None:
    name = web.start("simulate", **{**SHORT, "requests": 20000, "output": 64})
    got = web.get(f"/api/jobs/{name}/events")
    assert got.headers["content-type"].startswith("text/event-stream")
    events = [part.split("\ndata: ") for part in got.body.decode().strip().split("\n\n")]
    assert [head for head, _ in events][-1] == "event: done"
    last = json.loads(events[-1][1])
    assert last == web.job(name)
    told = [json.loads(data)["progress"] for _, data in events]
    assert [one["done"] for one in told] == sorted(one["done"] for one in told)
    assert any(0 < one["done"] < 20000 and one["total"] == 20000 for one in told), told


def test_an_overloaded_simulation_has_figures_and_exit_code_3(web: Web) -> None:
    found = web.wait(web.start("simulate", model="llama-3.1-8b", gpu="h100-sxm", rate=500))
    assert found["state"] == "done"
    assert found["result"]["verdict"] == "overloaded"
    assert found["error"]["exit_code"] == 3 and found["error"]["what"].startswith("overloaded")


def test_a_fit_knows_how_many_it_tries(web: Web) -> None:
    found = web.wait(web.start("fit", model="llama-3.1-8b", context="32k", users=4))
    rows = found["result"]["options"]
    assert (found["state"], len(found["behind"]["views"])) == ("done", len(rows))
    assert found["progress"] == {"done": len(rows), "total": len(rows), "text": "GPUs and formats"} and len(rows) > 300


DAY = {
    "model": "llama-3.1-8b", "gpu": "h100-sxm", "workload": "rag", "cold-start": "90s", "duration": "2h",
    "profile": "00:00=0.5,01:00=5",
}  # fmt: skip


def printed(command: str) -> dict[str, Any]:
    """What a command prints as JSON, whatever its exit code."""
    program, *rest = shlex.split(command)
    assert program == "inferplan"
    words = [sys.executable, "-m", "inferplan", *rest, "--format", "json"]
    ran = subprocess.run(words, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_a_day_is_that_of_the_command_line(web: Web) -> None:
    """Its picture has parts of five minutes: over the twelve of an hour they are the hours that the command prints. By
    hand: 3,600 x 0.5 + 3,600 x 5 = 19,800 requests, of which a Poisson count is off by 141, one in its square root."""
    found = web.wait(web.start("day", **DAY))
    assert found["state"] == "done", found["error"]
    assert found["progress"]["text"] == "requests" and found["progress"]["total"] == 3 * 19_800
    result, behind = found["result"], found["behind"]
    assert result == printed(found["command"])
    assert behind["start_s"] == [300.0 * part for part in range(24)] and behind["end_s"] == 7200
    load = behind["requests_per_s"]
    assert sum(load) * 300 == pytest.approx(result["profile"]["requests"]) == pytest.approx(19_800, abs=4 * 141)
    assert set(behind["replicas"]) == {"static", "scheduled", "reactive"}
    for policy in result["policies"]:
        paid = behind["replicas"][policy["policy"]]
        for hour in policy["hours"]:
            parts = slice(12 * hour["hour"], 12 * hour["hour"] + 12)
            assert sum(paid[parts]) / 12 == pytest.approx(hour["replicas"], rel=1e-9)
            assert sum(load[parts]) / 12 == pytest.approx(hour["requests_per_s"], rel=1e-9)
    of_static = set(behind["replicas"]["static"])
    assert of_static == {result["policies"][0]["peak_replicas"]} == {2}  # 5 over 0.8 times what one carries, rounded up
    assert 2.5 < 0.8 * result["replica"]["requests_per_s"] < 5


@for_each(
    "span, parts, last",
    [(7200.0, 24, 300.0), (7201.0, 25, 1.0), (60.0, 1, 60.0), (86400.0, 288, 300.0), (91428.30815407704, 288, 317.459)],
)
def test_a_day_is_drawn_in_parts_that_it_has(span: float, parts: int, last: float) -> None:
    """By hand: a day has 24 x 12 parts of 300 s, and a longer one as many. The last of 91428.3 s is 91428.3/288 s; in
    floating point that goes into it once more, with 1e-11 s left."""
    edges = parts_of(span)
    assert len(edges) == parts + 1 and edges[0] == 0 and edges[-1] == span
    assert edges[-1] - edges[-2] == pytest.approx(last, abs=1e-3)


def test_loads_are_simulations_of_the_command_line(web: Web) -> None:
    found = web.wait(web.start("loads", model="llama-3.1-8b", gpu="h100-sxm", rate=16, requests=300, ttft="200ms"))
    assert found["state"] == "done"
    loads = found["result"]["loads"]
    assert [one["load"] for one in loads] == [0.5, 0.75, 0.9, 1.1, 1.25, 1.5]
    assert [one["asked"] for one in loads] == pytest.approx([8, 12, 14.4, 17.6, 20, 24])
    for one in loads[::2]:
        theirs = printed(one["command"])
        assert {key: one[key] for key in ("verdict", "ttft_s", "tpot_s", "itl_s", "e2el_s")} == {
            key: theirs[key] for key in ("verdict", "ttft_s", "tpot_s", "itl_s", "e2el_s")
        }


def test_loads_in_whole_numbers_come_once(web: Web) -> None:
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "prompt": 64, "output": 8, "requests": 50}
    found = web.wait(web.start("loads", **options, **{"in-flight": 2}))
    assert [(one["asked"], one["load"]) for one in found["result"]["loads"]] == [(1, 0.5), (3, 1.5)]
    for wrong in ({}, {"rate": "many"}, {"trace": "x.csv"}):
        assert web.wait(web.start("loads", **options, **wrong))["error"]["what"] == "a load to scale is missing"


@pytest.mark.slow
def test_a_plan_has_a_page(web: Web) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    name = web.start("plan", model="llama-3.1-8b", gpu="h100-sxm", workload="chat", rate=5)
    found = web.wait(name)
    assert found["state"] == "done" and found["report"], found
    assert found["result"]["command"] == found["command"]
    assert found["progress"]["text"] == "steps" and found["progress"]["done"] == found["progress"]["total"] > 0
    assert found["options"] == {"model": "llama-3.1-8b", "gpu": "h100-sxm", "workload": "chat", "rate": 5}
    page = web.get(f"/api/report/{name}")
    printed = html.unescape(page.body.decode())
    behind, plan = found["behind"], found["result"]["plan"]
    assert all(f"{one[key]}" in printed for one in behind["terms"] for key in ("name", "value", "numbers", "formula"))
    reasons = {f"<td>{behind['reasons'][reason]}</td>" for reason in found["result"]["rejected"]}
    assert all(one in printed for one in reasons)
    assert sum(bill["per_hour"] for bill in behind["bills"]["plan"]) == pytest.approx(plan["cost"])
    memory = web.post("/api/explain", {"view": behind["memory"]["view"], "term": "memory.total"}).json
    assert memory["value"] == behind["memory"]["bytes"] < behind["memory"]["usable_bytes"]
    assert page.status == 200 and found["command"] in page.body.decode()
    assert "script-src" not in page.headers["content-security-policy"]
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


def test_refusals_of_a_job(web: Web) -> None:
    found = web.wait(web.start("plan", model="llama-3.1-8b", gpu="h100-sxm", rate=5))
    assert found["state"] == "failed"
    assert found["error"]["what"] == "a plan needs the lengths of requests and a limit on latency"
    assert web.get(f"/api/report/{found['id']}").status == 404
    for body in ({}, {"kind": "sweep", "options": {}}, {"kind": "plan", "options": []}, {"kind": "plan", "x": 1}):
        assert web.post("/api/jobs", body).error["exit_code"] == 2


def test_cancelling_leaves_no_process(web: Web) -> None:
    before = web.processes()
    name = web.start("simulate", **LONG)
    own = web.processes() - before
    assert len(own) == 1 and web.job(name)["state"] == "running"
    assert web.ask("DELETE", f"/api/jobs/{name}").json["state"] == "cancelled"
    assert gone(own, 2)
    assert web.job(name)["state"] == "cancelled"
    assert web.ask("DELETE", f"/api/jobs/{name}").json["state"] == "cancelled"
    assert web.processes() == before


def test_two_at_once_and_no_more(web: Web) -> None:
    names = [web.start("simulate", **LONG) for _ in range(2)]
    refused = web.post("/api/jobs", {"kind": "simulate", "options": LONG})
    assert refused.status == 429 and "2 jobs are running already" in refused.error["what"]
    for name in names:
        web.ask("DELETE", f"/api/jobs/{name}")
    again = web.start("simulate", **SHORT)
    assert web.wait(again)["state"] == "done"


def test_many_asked_for_at_the_same_moment_are_still_two(web: Web) -> None:
    with ThreadPoolExecutor(20) as threads:
        asked = threads.map(lambda _: web.post("/api/jobs", {"kind": "simulate", "options": LONG}), range(20))
        replies = list(asked)
    for got in replies:
        if got.status == 202:
            web.ask("DELETE", f"/api/jobs/{got.json['id']}")
    assert sorted(got.status for got in replies) == [202] * 2 + [429] * 18


@pytest.mark.slow
def test_a_job_has_a_time_limit(server: Callable[[str], Web]) -> None:
    web = server("job_seconds=2.0")
    before = web.processes()
    name = web.start("simulate", **LONG)
    own = web.processes() - before
    found = web.wait(name, 20)
    assert found["state"] == "failed" and "not done within 2 s" in found["error"]["what"]
    assert gone(own, 2)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_server_is_that_of_its_processes(server: Callable[[str], Web], how: signal.Signals) -> None:
    """Killed too, when it can tell nobody."""
    web = server("jobs=2")
    web.start("simulate", **LONG)
    assert web.post("/api/view", {"model": "llama-3.1-8b", "gpu": "h100-sxm"}).status == 200
    time.sleep(1.5)
    pids = web.processes()
    assert len(pids) == 3
    web.process.send_signal(how)
    web.process.wait(15)
    assert gone(pids, 5)
