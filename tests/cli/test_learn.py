"""``inferplan learn``: the lines of docs/learn.md, on the record of a server of known constants."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.learning.factors import Kernels
from tests.cli.conftest import Run
from tests.learning.recorded import Users, forward_pass_metrics, served, tables

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
    """TPOT of 32 users is longer by the host's 1.4 ms a step, and by the prompts beside."""
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
    own, without = run(*lines[1].split(), *load), run(*asked.split(), *load)
    assert own.code == without.code == 0, own.err
    more = own.json["tpot_s"]["mean"] - without.json["tpot_s"]["mean"]
    assert 0.0013 < more < 0.004


def test_factors_by_name_and_deployments_that_are_not_learned(run: Run, steps: None) -> None:
    two = run(*LINE.split(), "--factors", "host,prompt", "--format", "json")
    assert [one["factor"] for one in two.json["factors"]] == ["host", "prompt"]
    unknown = run(*LINE.split(), "--factors", "hots")
    assert unknown.code == 2
    assert "--factors" in unknown.err
    staged = run(*LINE.split(), "--pp", "2")
    assert staged.code == 2
    assert not Path("none.yaml").exists()
