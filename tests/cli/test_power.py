"""Power on the command line: what is refused, what JSON holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import for_each
from tests.cli.conftest import Run

PLAN = "plan llama-3.1-8b --gpu h100-sxm --rate 10 --prompt 512 --output 64 --ttft 1s"
ESTIMATE = "estimate llama-3.1-8b --gpu h100-sxm"
SIMULATE = "simulate llama-3.1-8b --gpu h100-sxm --rate 2 --requests 20"


@for_each(
    ("line", "said"),
    [
        (f"{PLAN} --provision mean", "--provision belongs to a power budget, and none is given"),
        (f"{PLAN} --pue 1.2", "--pue belongs to a power budget"),
        (f"{PLAN} --power-budget 8", "has no unit"),
        (f"{PLAN} --power-cap ,", "names no watts"),
        (f"{ESTIMATE} --power-cap 500", "--power-cap: '500' has no unit"),
        (f"{ESTIMATE} --power-cap 0W", "--power-cap must be more than 0"),
        (f"{ESTIMATE} --power-cap 900W", "above what h100-sxm draws"),
        (f"{ESTIMATE} --power-cap 300W", "below what the law of clocks covers"),
        (f"{PLAN} --power-cap 1W", "--power-cap 318W or more, up to 700W"),  # 0.453 of the data sheet's 700 W
        (f"{ESTIMATE} --carbon DEX", "no grams of CO2 a kWh are on file"),
        (f"{SIMULATE.replace('llama-3.1-8b', 'whisper-large-v3')} --energy", "an encoder-decoder"),
        (f"{ESTIMATE.replace('h100-sxm', 'tpu-v6e')} --memory 30GB --ideal --energy", "the power of tpu-v6e"),
        (f"{ESTIMATE} --energy --no-kv-cache", "steps without a KV cache"),
        (f"{ESTIMATE} --energy --prefix-hit-rate 0.5", "a given hit rate"),
        (
            "estimate gpt-oss-20b --gpu h100-sxm --dp 2 --ep 2 --engine sglang --two-batch-overlap --power-cap 500W",
            "draw",
        ),
    ],
)
def test_what_means_nothing_is_refused(run: Run, line: str, said: str) -> None:
    found = run(*line.split())
    assert found.code == 2, found.out
    assert said in found.err


def test_json_of_an_estimate_holds_its_energy(run: Run) -> None:
    asked = f"{ESTIMATE} --batch 8 --power-cap 500W --pue 1.5 --host-watts 100W --carbon 360 --format json"
    found = run(*asked.split()).json
    energy, prefill = found["energy"], found["energy"]["prefill"]
    assert found["power_cap_w"] == 500.0
    assert prefill["gpu_joules"] == pytest.approx(prefill["gpu_w"] * found["ttft_s"])
    assert prefill["joules"] == pytest.approx(1.5 * (prefill["gpu_joules"] + 100 * found["ttft_s"]))
    assert energy["request_g"] == pytest.approx(energy["request_j"] / 1e4)  # 360 g for 3.6 MJ
    assert energy["j_per_output_token"] == pytest.approx(energy["request_j"] / 256)
    assert "energy" not in run(*ESTIMATE.split(), "--format", "json").json


def test_a_model_that_encodes_decodes_nothing(run: Run) -> None:
    asked = "simulate bge-m3 --gpu l4 --rate 20 --prompt 256 --requests 60 --energy --format json"
    energy = run(*asked.split()).json["energy"]
    assert energy["decode_joules"] == 0.0
    assert energy["prompt_joules"] + energy["idle_joules"] == pytest.approx(energy["gpu_joules"], rel=1e-12)
    one = run(*["estimate", "bge-m3", "--gpu", "l4", "--prompt", "256", "--energy", "--format", "json"]).json["energy"]
    worked = energy["gpu_joules"] * (1 - energy["idle_share"])
    # a request works as much in a run as alone, less what requests of one step share: their weights are read once
    assert 0.5 < worked / 60 / (one["prefill"]["gpu_joules"] - one["prefill"]["idle_joules"]) < 1.3


def test_a_day_emits_by_the_hour(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("grid.csv").write_text("time,grams\n0,500\n00:10,100\n", encoding="utf-8")
    Path("day.csv").write_text("time,rate\n0,1\n", encoding="utf-8")
    asked = (
        "day llama-3.1-8b --gpu h100-sxm --ideal --profile day.csv --prompt 128 --output 8 --ttft 1s --policy static"
    )
    line = f"{asked} --duration 20min --price h100-sxm=2 --power-cap 500W --grid grid.csv"
    energy = run(*line.split(), "--format", "json").json["energy"]
    (policy,) = energy["policies"]
    assert policy["carbon_g_per_kwh"] == pytest.approx(300.0)  # of twenty minutes half at 500, half at 100
    assert policy["kwh_per_day"] == pytest.approx(72 * sum(hour["kwh"] for hour in policy["hours"]))
    assert policy["carbon_g_per_day"] == pytest.approx(300 * policy["kwh_per_day"])
    twice = run(*line.split(), "--carbon", "100")
    assert twice.code == 2 and "--grid and --carbon both state the CO2 per kWh" in twice.err


def test_json_of_a_run_adds_up(run: Run) -> None:
    found = run(*SIMULATE.split(), *["--pue", "2", "--carbon", "180", "--format", "json"]).json
    energy = found["energy"]
    parts = energy["prompt_joules"] + energy["decode_joules"] + energy["idle_joules"]
    assert parts == pytest.approx(energy["gpu_joules"], rel=1e-12)
    assert energy["joules"] == pytest.approx(2 * parts)
    assert energy["w_mean"] == pytest.approx(2 * energy["gpu_w_mean"])
    assert energy["request_g"] == pytest.approx(energy["request_j"] / 2e4)  # 180 g for 3.6 MJ
    rates = found["throughput"]
    assert energy["request_j"] == pytest.approx(energy["w_mean"] / rates["requests_per_s"], rel=1e-9)


def test_a_run_under_a_cap_says_that_nothing_was_measured(run: Run) -> None:
    words = ("simulate", "llama-3.1-8b", "--gpu", "h100-sxm", "--rate", "2", "--requests", "20")
    said = "no measurement of this device under a cap is on file"
    assert f"cap of 500 W per GPU: {said}" in run(*words, "--power-cap", "500W").out
    assert said not in run(*words).out
