"""From a plan to a verdict on its service: the plan's own load is sent to a server of known timings.

One user alone, prompts of 64 tokens and replies of 8: the stand-in takes ``first + 0.0002*64`` seconds to the first
token and 10 ms (``STEP + PER_USER``) for each further one, times its pace.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.measuring.stand_in import PER_TOKEN, PER_USER, STEP, StandIn
from tests.measuring.wire import served

FIRST = 0.0372
TTFT, TPOT = FIRST + PER_TOKEN * 64, STEP + PER_USER
"""50 and 10 ms."""
NO_THINKING = {"kind": "constant", "mean_s": 0.0, "spread": 0.0}


def plan_file(folder: Path, **question: Any) -> Path:
    """The JSON of a plan that quotes the stand-in's own times, with what is read of it."""
    load = {
        "prompt": {"kind": "fixed", "mean": 64, "spread": 0.0, "most": None},
        "output": {"kind": "fixed", "mean": 8, "spread": 0.0, "most": None},
        "requests_per_s": None,
        "users": 1,
        "arrivals": "poisson",
        "burstiness": 1.0,
        "think_time": {"kind": "constant", "mean_s": 0.02, "spread": 0.0},
        "shared_prefix_tokens": 0,
        "distinct_prefixes": 1,
        "not_sent": [],
    }
    parallel = {"tp": 1, "pp": 1, "ep": 1, "dp": 1, "cp": 1, "replicas": 2}
    data = {
        "question": {"percentile": 50.0, "slo": {"ttft_s": 0.07, "tpot_s": 0.0145}, "load": {**load, **question}},
        "plan": {
            "ttft_s": TTFT,
            "tpot_s": TPOT,
            "e2el_s": TTFT + 7 * TPOT,
            "replicas": 2,
            "deployment": {
                "model": "llama-3.1-8b",
                "gpu": "h100-sxm",
                "quant": "fp8",
                "engine": "vllm 0.33",
                "parallel": parallel,
                "pools": None,
                "context_tokens": 4096,
                "concurrency": 8,
                "token_budget": 2048,
                "speculation": None,
            },
        },
        "band_s": {"ttft_s": [0.9 * TTFT, 1.3 * TTFT], "tpot_s": [0.9 * TPOT, 1.3 * TPOT]},
    }
    path = folder / "plan.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    from tests.command import exit_code

    code = exit_code(monkeypatch, *arguments)
    said = capsys.readouterr()
    assert "a bug in inferplan" not in said.err, said.err
    return code, said.out, said.err


Called = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Called:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return lambda *arguments: run(monkeypatch, capsys, *arguments)


@pytest.mark.parametrize(("pace", "code"), [(1.0, 0), (1.5, 3)])
def test_a_service_is_held_to_its_plan(call: Called, tmp_path: Path, pace: float, code: int) -> None:
    """At its own pace it does as planned; at 1.5 times that it is over both limits, and the ratios say by how much."""
    plan, copy = plan_file(tmp_path), tmp_path / "measured.json"
    asked = ("measure", str(plan), "--requests", "16", "--out", "own.csv", "--force", "-o", str(copy))
    for _ in range(3):  # measured again where the machine was at other work
        with served(StandIn(first=FIRST, pace=pace)) as server:
            got, out, err = call(*asked, "--url", server.url)
        found = json.loads(copy.read_text("utf-8"))
        latencies = {one["metric"]: one for one in found["verdicts"][0]["latencies"]}
        near = all(abs(one["measured_over_planned"] / pace - 1) < 0.15 for one in latencies.values())
        if got == code and near:
            break
    assert (got, near) == (code, True), (out, err, latencies)
    assert len(server.seen) == 16 + 1 + 1 + 2  # a warm-up, how to ask, two sizes of prompts
    assert found["plan"] == json.loads(plan.read_text("utf-8"))["plan"]  # the copy is the plan, and more
    (measured,) = found["measurements"]
    assert measured["requests"] == 12  # a quarter of the 16 fills the system
    assert measured["output_tokens"] == 8 and measured["prompt_tokens"] == pytest.approx(64, abs=1.0)
    assert measured["ttft_s"] == pytest.approx(pace * TTFT, rel=0.15)
    assert found["verdicts"][0]["as_planned"] is (code == 0)
    words = {name: one["verdict"] for name, one in latencies.items()}
    slow = "over the limit, slower than the band"
    assert words == dict.fromkeys(("ttft", "tpot"), "as planned" if code == 0 else slow)
    for files in ((str(copy),), (str(plan), str(copy))):
        got, out, err = call("validate", *files)
        assert got == code, err
        assert (code == 0) == ("not as planned" not in out + err)


def test_a_csv_at_the_percentile_of_the_plan_is_held_to_it(call: Called, tmp_path: Path) -> None:
    """Rows of `measure`, or of anybody: 60 ms of TTFT is within the limit of 70 and the band of 45 to 65."""
    plan = plan_file(tmp_path, users=None, requests_per_s=4.0, think_time=NO_THINKING)
    data = json.loads(plan.read_text("utf-8"))
    data["question"]["percentile"] = 95.0
    plan.write_text(json.dumps(data), encoding="utf-8")
    head = "isl,osl,rate_per_s,requests,ttft_p95_ms,tpot_p95_ms,suspect,model,gpu\n"
    for row, code in (("64,8,4,500,60,10,", 0), ("64,8,2,500,60,10,", 0), ("64,8,4,500,80,10,", 3),
                      ("64,8,4,500,30,10,", 3), ("64,8,4,500,60,10,cut short", 3), ("128,8,4,500,60,10,", 4),
                      ("64,8,3,500,60,10,", 4), ("64,8,4,500,,,", 4), ("64,8,4,500,nan,10,", 4),
                      ("64,8,4,500,60,-1,", 4), ("64,,4,500,60,10,", 4), ("64,8,4,500,60,10,,llama-3.1-8b,h100", 0),
                      ("64,8,4,500,60,10,,qwen3-8b,", 4), ("64,8,4,500,60,10,,,b200", 4)):  # fmt: skip
        Path("own.csv").write_text(head + row + "\n", encoding="utf-8")
        got, out, err = call("validate", str(plan), "own.csv")
        assert got == code, (row, out, err)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("band_s", "x"),
        ("band_s.tpot_s", [0.02, 0.01]),
        ("question.percentile", 101),
        ("question.slo.ttft_s", -1),
        ("plan.ttft_s", None),
        ("plan.tpot_s", -3),
        ("plan.replicas", 0),
        ("plan.replicas", 3),
        ("measurements", [1]),
    ],
)
def test_a_plan_that_was_edited_is_refused_before_a_load_is_sent(
    call: Called, tmp_path: Path, where: str, value: Any
) -> None:
    """Nobody listens at the address: that would be exit code 5."""
    path = plan_file(tmp_path)
    data = json.loads(path.read_text("utf-8"))
    *within, name = where.split(".")
    part = data
    for key in within:
        part = part[key]
    part[name] = value
    path.write_text(json.dumps(data), encoding="utf-8")
    code, _, err = call("measure", str(path), "--url", "http://127.0.0.1:1")
    assert code == 2 and name in err, err


def test_a_measurement_of_another_plan_is_refused(call: Called, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    data = json.loads(plan_file(other).read_text("utf-8"))
    data["plan"]["deployment"]["model"] = "qwen3-8b"
    (other / "plan.json").write_text(json.dumps(data), encoding="utf-8")
    code, _, err = call("validate", str(plan_file(tmp_path)), str(other / "plan.json"))
    assert code == 4 and "qwen3-8b" in err


def test_what_a_plan_says_is_not_said_again(call: Called, tmp_path: Path) -> None:
    rows = tmp_path / "x.csv"
    code, _, err = call(
        "validate", str(plan_file(tmp_path)), "own.csv", "--rows", str(rows), "--gpu", "l4", "--jobs", "2"
    )
    assert code == 2 and all(name in err for name in ("--rows", "--gpu", "--jobs")) and not rows.exists()


def test_users_are_those_of_the_plan(call: Called, tmp_path: Path) -> None:
    """64 users on two replicas: 64 of both, or 32 of one; 24 users are 0.75 of a replica's share."""
    plan = plan_file(tmp_path, users=64, think_time=NO_THINKING)
    for users, code in (("64", 0), ("32", 0), ("24", 4), ("1", 4), ("", 0)):
        Path("own.csv").write_text(f"isl,osl,concurrency,ttft_median_ms,tpot_median_ms\n64,8,{users},50,10\n", "utf-8")
        got, _, err = call("validate", str(plan), "own.csv")
        assert got == code, (users, err)
    code, _, err = call("measure", str(plan), "--url", "http://127.0.0.1:1", "--requests", "100")
    assert code == 2 and "--requests 128" in err


def test_a_measurement_of_another_load_than_was_sent_is_kept_and_doubted(call: Called, tmp_path: Path) -> None:
    """A stand-in that ends each reply after half of its tokens: what was measured is in the copy."""
    plan, copy = plan_file(tmp_path), tmp_path / "measured.json"
    with served(StandIn(first=FIRST, refuses=("ignore_eos",), ends_after=4)) as server:
        code, _, err = call("measure", str(plan), "--requests", "16", "-o", str(copy), "--url", server.url)
    (kept,) = json.loads(copy.read_text("utf-8"))["measurements"]
    assert code == 3 and kept["output_tokens"] == 4 and "output tokens" in " ".join(kept["suspect"]), err


def test_a_server_of_another_model_gets_no_verdict(tmp_path: Path) -> None:
    from inferplan.measuring.server import Server
    from inferplan.reports.plan_measured import PlanFile

    plan = PlanFile(str(plan_file(tmp_path)))
    assert "qwen3-32b" in plan.unlike(Server(model="Qwen/Qwen3-32B", id="Qwen/Qwen3-32B"))
    for own in ("meta-llama/Llama-3.1-8B-Instruct", "chat", ""):
        assert plan.unlike(Server(model=own, id=own)) == ""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--url", "http://127.0.0.1:1", "--prompt", "512"), 2),
        (("--url", "http://127.0.0.1:1", "--tp", "2"), 2),
        (("--url", "http://127.0.0.1:1", "--replicas", "3"), 2),
        ((), 2),
    ],
)
def test_what_a_plan_decides_is_refused_beside_it(
    call: Called, tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    assert call("measure", str(plan_file(tmp_path)), *arguments)[0] == code


def test_a_load_that_cannot_be_sent_is_refused(call: Called, tmp_path: Path) -> None:
    code, _, err = call("measure", str(plan_file(tmp_path, not_sent=["conversations"])), "--url", "http://127.0.0.1:1")
    assert code == 2 and "conversations" in err


def test_the_load_is_that_of_the_plan(call: Called, tmp_path: Path) -> None:
    """100 requests/s for both replicas: one of them gets every second, at twice the shape of a Poisson stream, whose
    coefficient of variation is 1/sqrt(2); the first and the last of 2,000 are about 40 s apart.
    """
    import numpy as np

    from inferplan.reports.plan_measured import PlanFile

    lengths = {"kind": "lognormal", "mean": 500, "spread": 0.5, "most": None}
    path = plan_file(tmp_path, users=None, requests_per_s=100.0, prompt=lengths, shared_prefix_tokens=40,
                     distinct_prefixes=3, think_time=NO_THINKING)  # fmt: skip
    load = PlanFile(str(path)).load(1, 2000)
    gaps = np.diff(load.arrivals)
    assert load.seconds == pytest.approx(40.0, rel=0.02)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(2**-0.5, rel=0.1)
    assert np.mean(load.prompts) == pytest.approx(500, rel=0.05)
    assert np.std(load.prompts) / np.mean(load.prompts) == pytest.approx(0.5, rel=0.1)
    assert set(load.heads) == {0, 1, 2} and load.head_tokens == 40
    assert PlanFile(str(path)).load(2, None).requests == 267  # 200 values of a median behind a quarter
