"""``inferplan learn``: the lines of docs/learn.md, on the record of a server of known constants."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.learning.factors import Kernels
from tests.cli.conftest import Run
from tests.learning.recorded import Users, forward_pass_metrics, served, tables, vllm_metrics
from tests.learning.test_broken import scrape
from tests.measuring.reading import Read, clock
from tests.measuring.wire import served as serving

LINE = "learn steps.jsonl --model llama-3.1-8b --gpu h100-sxm --engine vllm --quant bf16 --out own.yaml"


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record in the current folder: a host of 2 ms a step, prompts 1.2 times as long as on file."""
    monkeypatch.chdir(tmp_path)
    base = Kernels(assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", quant="bf16")))
    times = tables(base.deployed({"host": 0.002, "prompt": 1.2}))
    loads = [Users(1, 500, 200), Users(64, 1500, 200), Users(8, 3000, 100), Users(128, 400, 150), Users(24, 6000, 100)]
    record = [one for n, users in enumerate(loads * 2) for one in served(times, users, 200, True, n, 0.03)]
    Path("steps.jsonl").write_text(forward_pass_metrics(record), encoding="utf-8")


def test_what_is_learned_prices_the_next_command(run: Run, steps: None) -> None:
    """TPOT of one user is longer by the host's 2.000 - 0.603 ms a step. That of 32 also by a fifth of the prompts
    beside: at most 31 in 63 gaps, each of 512 tokens, 11 ms at 70 % of the peak of 989 TFLOP/s; their launches hide a
    part of both."""
    page = (Path(__file__).parents[2] / "docs" / "learn.md").read_text(encoding="utf-8")
    lines = [line.strip().removeprefix("inferplan ") for line in page.splitlines() if line.startswith("    inferplan ")]
    assert lines[0] == LINE
    done = run(*LINE.split(), "--format", "json")
    assert done.code == 0, done.err
    assert {one["factor"]: one["learned"] for one in done.json["factors"]}["prompt"] == pytest.approx(1.2, rel=0.03)
    assert done.json["as_on_file"] == ["experts"]
    assert [one["block"] for one in done.json["errors"]] == ["fitted", "held_out"]
    load = ["--prompt", "512", "--output", "64", "--requests", "100", "--format", "json"]
    asked = lines[1].partition(" --calibration")[0]
    for users, least, most in (("1", 1.32e-3, 1.46e-3), ("32", 1.25e-3, 2.5e-3)):
        own, without = (run(*line.replace("32", users).split(), *load) for line in (lines[1], asked))
        assert own.code == without.code == 0, own.err
        assert least < own.json["tpot_s"]["mean"] - without.json["tpot_s"]["mean"] < most


def test_factors_by_name_and_deployments_that_are_not_learned(run: Run, steps: None) -> None:
    two = run(*LINE.split(), "--factors", "host,prompt", "--format", "json")
    assert [one["factor"] for one in two.json["factors"]] == ["host", "prompt"]
    unknown = run(*LINE.split(), "--factors", "hots")
    assert unknown.code == 2
    assert "--factors" in unknown.err
    Path("own.yaml").unlink()
    staged = run(*LINE.split(), "--pp", "2")
    assert staged.code == 2
    kept = run(*LINE.split(), "--prefill-schedule-interval", "64")
    assert kept.code == 2
    assert "--prefill-schedule-interval does not change the learned constants" in kept.err
    for context in ("nan", "inf", "1e300", "0", "12.5"):
        wrong = run(*LINE.split(), "--context", context)
        assert wrong.code == 2
        assert "--context" in wrong.err
    assert not Path("own.yaml").exists()


def test_a_refusal_says_what_was_passed_over(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two windows are too few to fit, and the third went over a counter that fell."""
    monkeypatch.chdir(tmp_path)
    Path("steps.txt").write_text("".join(scrape(steps) for steps in (1000, 2000, 500, 1500)), encoding="utf-8")
    done = run(*LINE.replace("steps.jsonl", "steps.txt").split())
    assert done.code == 3
    assert "2 measurements" in done.err
    assert "passed over: 1 windows in which a counter fell" in done.err


URL = ("--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--engine", "vllm", "--quant", "bf16", "--format", "json")


@pytest.fixture(scope="module")
def readings() -> list[str]:
    """What a vLLM server of a host of 2 ms a step says in 1,440 s, one scrape each ten: 145, of 137 steps each."""
    base = Kernels(assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", quant="bf16")))
    times = tables(base.deployed({"host": 0.002, "prompt": 1.2}))
    loads = [Users(1, 500, 200), Users(64, 1500, 200), Users(8, 3000, 100), Users(128, 400, 150), Users(24, 6000, 100)]
    record = [one for n, users in enumerate(loads * 2) for one in served(times, users, 2000, True, n, 0.03)]
    return [f"# HELP{one}" for one in vllm_metrics(record, 137).split("# HELP")[1:]]


def test_a_server_is_read_where_it_runs(
    run: Run, readings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns what a file of the same scrapes teaches, which is what went in, and asks for nothing but /metrics."""
    monkeypatch.chdir(tmp_path)
    now = clock(monkeypatch)
    with serving(Read(readings.__getitem__)) as server:
        done = run("learn", server.url, *URL, "--for", "24min", "--record", "kept.txt", "--out", "own.yaml")
    assert done.code == 0, done.err
    assert now == [1440.0]
    assert server.asked == ["/metrics"] * 145
    found = {one["factor"]: one["learned"] for one in done.json["factors"]}
    assert found["host"] == pytest.approx(0.002, rel=0.03)
    assert found["prompt"] == pytest.approx(1.2, rel=0.03)
    assert server.url in Path("own.yaml").read_text("utf-8")
    again = run("learn", "kept.txt", *URL)
    assert {one["factor"]: one["learned"] for one in again.json["factors"]} == found


def test_servers_that_cannot_be_read(run: Run, readings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends midway has taught what it said until then; one that wants a key, or is none, teaches nothing."""
    clock(monkeypatch)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(Read(lambda number: readings[number] if number < 120 else None)) as server:
        gone = run("learn", server.url, *URL, "--for", "24min")
    assert gone.code == 0, gone.err
    assert server.read == 123  # three times without an answer
    assert "stopped answering after 1190 s" in gone.err
    with serving(Read(readings.__getitem__, key="sk-of-a-test-server")) as server:
        refused = run("learn", server.url, *URL)
        assert refused.code == 5 and "--api-key-env" in refused.err
        monkeypatch.setenv("OWN_KEY", "sk-of-a-test-server")
        short = run("learn", server.url, *URL, "--api-key-env", "OWN_KEY", "--for", "60s")
        assert short.code == 3 and "6 measurements" in short.err
    with serving(Read(lambda number: "# TYPE up gauge\nup 1\n")) as server:
        other = run("learn", server.url, *URL, "--for", "20s")
    assert other.code == 4 and "says nothing of a server's steps" in other.err
    with serving(Read(lambda number: None)) as server:
        assert run("learn", server.url, *URL, "--for", "20s").code == 5


def test_options_of_an_address(run: Run, steps: None) -> None:
    beside = run(*LINE.split(), "--for", "1min")
    assert beside.code == 2 and "--for" in beside.err
    many = run("learn", "http://localhost:9", *URL, "--for", "30d", "--every", "1s")
    assert many.code == 2 and "2,592,000 scrapes" in many.err
