"""The serving fit and the accuracy page, on rows whose constants are known."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("scipy")

from inferplan.catalog.files import config_root
from inferplan.serving.launches import eager_floors
from inferplan.validation.deploy import bare_deployment_of, deployment_of
from inferplan.validation.rows import Row, row_of
from tools.accuracy.page import document
from tools.accuracy.scores import figures
from tools.fitting import priced
from tools.fitting import serving as serving_fit
from tools.fitting.choices import BY_NAME, SCRIPTS, deployment_without, run_without
from tools.fitting.serving import UNKNOWNS, ServingFit, fit_serving, predict_all, usable
from tools.fitting.unseen import read_unseen, unseen_csv

SYSTEMS = (("llama-3.1-8b", "h100-sxm"), ("llama-3.2-1b", "h100-sxm"), ("qwen3-14b", "a100-80gb-sxm"))
BASE = {"engine": "vllm", "engine_version": "0.19", "weights": "bf16", "tp": "1", "max_num_batched_tokens": "2048"}
TRUTH = {name: unknown.start for name, unknown in UNKNOWNS.items()} | {"host": 1.1e-3, "latency": 8e-3}


def bare_rows() -> list[Row]:
    """Rows with placeholders for what is measured; 16 to 40 layers and a burst of 64 tell constants from each other."""
    loads = [(1, 128, 24), (4, 1024, 16), (16, 256, 24), (64, 128, 24)]
    return [
        row_of(
            f"{model}:{gpu}:{users}",
            {**BASE, "model": model, "gpu": gpu, "isl": str(prompt), "osl": str(output)}
            | {"concurrency": str(users), "requests": str(2 * users), "ttft_ms": "1e4", "tpot_ms": "1e4"},
            {},
        )
        for model, gpu in SYSTEMS
        for users, prompt, output in loads
    ]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Rows that were measured on a machine whose constants are :data:`TRUTH`."""
    bare = bare_rows()
    found = predict_all(bare, [TRUTH])[0]
    assert np.all(np.isfinite(found))
    made = []
    for row, (ttft, tpot) in zip(bare, found):
        cells = {**row.cells, "ttft_ms": f"{ttft * 1e3:.8g}", "tpot_ms": f"{tpot * 1e3:.8g}"}
        made.append(row_of(row.where, cells, {}))
    return made


@pytest.fixture(scope="module")
def fit(rows: list[Row]) -> ServingFit:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving_fit, "PULL", 0.01)  # few rows; those that are real are held to what is expected of them
        return fit_serving(rows, rounds=4)


def test_the_fit_recovers_known_constants(fit: ServingFit) -> None:
    for name in ("host", "launch", "eager_layer", "latency", "front_request"):
        assert fit.constants[name] == pytest.approx(TRUTH[name], rel=0.05), name
    for name in ("host", "latency"):
        assert fit.constants[name] != pytest.approx(UNKNOWNS[name].start, rel=0.2)
    for name, unknown in UNKNOWNS.items():
        assert unknown.low * 0.999 <= fit.constants[name] <= unknown.high * 1.001
    measured = np.array([[row.measured.ttft, row.measured.tpot] for row in fit.rows])
    assert np.median(np.abs(fit.unseen / measured - 1)) < 0.02


def test_a_strong_pull_holds_the_constants(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_fit, "PULL", 1e4)
    at = {name: unknown.start for name, unknown in UNKNOWNS.items()}
    held = serving_fit.linearise(rows[:3], at).step(np.ones(3, dtype=bool))
    assert held == pytest.approx(at, rel=1e-3)


def test_rows_that_are_suspect_or_too_fast_are_not_fitted(rows: list[Row]) -> None:
    row = rows[0]
    suspect = row_of("suspect", {**row.cells, "suspect": "cold start"}, {})
    fast = row_of("fast", {**row.cells, "tpot_ms": "0.001"}, {})
    assert usable([row, suspect, fast]) == [row]


def test_a_fold_leaves_a_model_out(rows: list[Row], fit: ServingFit) -> None:
    """Its constants are those of a fit that never saw the model's rows."""
    assert set(fit.folds) == {model for model, _ in SYSTEMS}
    left_out, _ = SYSTEMS[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving_fit, "PULL", 0.01)
        others = fit_serving([row for row in rows if row.run and row.run.model != left_out], rounds=4)
    for name in ("host", "latency"):
        assert fit.folds[left_out].constants[name] == pytest.approx(others.constants[name], rel=0.03)


def test_a_choice_stands_where_the_rows_of_other_models_ask_for_it() -> None:
    """Of three rows the first two ask for a choice by 0.3 and 0.1, the last, of another model, against it by 0.2."""
    gain, models = {0: 0.3, 1: 0.1, 2: -0.2}, ["a", "a", "b", "c"]
    undone = {model: serving_fit._undone(gain, models, model) for model in "abc"}
    assert undone == {"a": True, "b": False, "c": False}
    assert serving_fit._undone({3: 0.5}, models, "c") and not serving_fit._undone({3: 0.5}, models, "a")


CAMPAIGN = {"campaign": "inferencex", "isl": "1024", "osl": "128", "concurrency": "8", "requests": "80"}
GPT_OSS = {"model": "gpt-oss-120b", "gpu": "h100-sxm", "engine": "vllm", "engine_version": "0.18.0", "tp": "2"}
R1 = {"model": "deepseek-r1", "gpu": "h200-sxm", "engine": "sglang", "engine_version": "0.5.9", "tp": "8"}
DENSE = {"model": "qwen3-32b", "gpu": "h100-sxm", "engine": "vllm", "engine_version": "0.12.0", "tp": "4"}


def row_with(*cells: dict[str, str], weights: str) -> Row:
    return row_of("a row", {**CAMPAIGN, "weights": weights} | {k: v for one in cells for k, v in one.items()}, {})


def test_what_a_row_is_priced_without() -> None:
    """Marlin's experts are the run script's word; three launches a layer of DeepSeek-R1's 61, in place of one; 1.8 ms
    of vLLM 0.12's host; the kernels of a release."""
    marlin = row_with(GPT_OSS, weights="mxfp4")
    assert marlin.run is not None and dict(marlin.run.backends) == {"experts": "marlin"}
    assert BY_NAME[SCRIPTS].concerns(marlin) and not run_without(marlin, [SCRIPTS]).backends
    latent = row_with(R1, weights="fp8-block")
    assert latent.run is not None and latent.run.library == "sglang@0.5.9"
    assert run_without(latent, ["kernels of releases"]).library == "sglang"
    whole, without = (
        deployment_without(latent, bare_deployment_of(latent.run), undone)
        for undone in ((), ("launches of latent attention",))
    )
    each = whole.engine.serving.eager_layer
    assert [eager_floors(one)[0] for one in (whole, without)] == pytest.approx([3 * 61 * each, 61 * each])
    dense = row_with(DENSE, weights="fp8")
    assert dense.run is not None and not BY_NAME["launches of latent attention"].concerns(dense)
    hosts = [
        deployment_without(dense, deployment_of(dense.run)[0], undone).step.host
        for undone in ((), ("host of a release",))
    ]
    assert hosts == pytest.approx([1.8e-3, 2.14e-3])  # of mid-2024, from Argonne's batches


def test_what_is_written_is_what_was_fitted(fit: ServingFit, tmp_path: Path) -> None:
    shutil.copytree(config_root() / "engines", tmp_path / "engines")
    shutil.copy(config_root() / "clients.yaml", tmp_path)
    serving_fit.write_engines(tmp_path, fit.constants)
    for engine in serving_fit.ENGINES:
        written = yaml.safe_load((tmp_path / "engines" / f"{engine}.yaml").read_text())["serving"]
        assert float(str(written["latency"]).split()[0]) * 1e-3 == pytest.approx(fit.constants["latency"], rel=0.01)
    clients = yaml.safe_load((tmp_path / "clients.yaml").read_text())
    for name in ("fixed-length", "open-loop"):
        seconds = float(clients[name]["latency"].split()[0]) * 1e-3
        assert seconds == pytest.approx(fit.constants["client_latency"], rel=0.01)
    step = yaml.safe_load(serving_fit.step_yaml(fit, "the command"))
    assert step["step"]["host"] == pytest.approx(fit.constants["host"], rel=0.01)
    assert step["provenance"]["pairs"] == len(SYSTEMS)


OPEN = {
    "experiment": "tiny",
    "model": "llama-3.2-1b",
    "gpu": "h100-sxm",
    "engine": "vllm",
    "engine_version": "0.15.1",
    "tp": "1",
    "arrival": "constant",
    "rate_per_s": "2",
    "duration_s": "20",
    "question_tokens": "200",
    "prompt_tokens_mean": "210",
    "output_tokens_requested": "16",
    "output_tokens_mean_retokenised": "16",
    "completed": "40",
    "failed": "0",
    **{f"ttft_{name}_s": "0.02" for name in ("mean", "median", "p90", "p95", "p99")},
    **{f"e2el_{name}_s": "0.2" for name in ("mean", "median", "p90", "p95", "p99")},
    "tpot_mean_s": "0.004",
}
TRUTHS = """id,section,quantity,value,unit,model,hardware,tp,precision,batch,isl,osl,inputs
ARG-001,s,end-to-end batch latency,1.5,s,LLaMA 7B,A100-80GB,1,fp16,2,128,16,vLLM
TRT-001,s,1st token latency,20,ms,LLaMA 7B,L40S,1,fp16,1,128,1,
"""


def _write(path: Path, cells: list[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(cells[0]))
        writer.writeheader()
        writer.writerows(cells)


def test_the_page_is_made_from_a_small_sample(fit: ServingFit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priced, "_KEPT", tmp_path / "priced")
    unseen = tmp_path / "unseen.csv"
    unseen.write_text(unseen_csv(fit.rows, fit.unseen, fit.scripted * 2), encoding="utf-8")
    again, twice = read_unseen(unseen), read_unseen(unseen, "scripted")
    assert len(again) == len(twice) == len(fit.rows)
    for one, other, (ttft, _) in zip(again, twice, fit.unseen):
        assert other.prediction is not None and other.prediction.ttft == pytest.approx(2 * ttft, rel=1e-4)
        assert one.prediction is not None and one.prediction.ttft == pytest.approx(ttft, rel=1e-4)
    _write(tmp_path / "measured" / "serving.csv", [dict(row.cells) for row in fit.rows])
    _write(tmp_path / "measured" / "serving_open_loop.csv", [OPEN])
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "truths.csv").write_text(TRUTHS, encoding="utf-8")
    page = document(tmp_path, unseen, "2026-01-02")
    assert "2026-01-02" in page
    assert f"Rows answered: {len(fit.rows)} of {len(fit.rows)}." in page
    for heading in ("closed loop", "open loop", "Static batches", "Kernels", "Memory"):
        assert heading in page
    assert "| tiny, 2/s |" in page and "nan" not in page
    for cell in yaml.safe_load((config_root() / "bands.yaml").read_text())["cells"]:
        ends = [f"x {cell[name][0]:.2f} to x {cell[name][1]:.2f}" for name in ("ttft", "tpot") if name in cell]
        assert not ends or f" | {' | '.join(ends)} |" in page, cell
    assert "{" not in page, "nothing of Python is on the page"


def test_errors_by_hand() -> None:
    found = figures([(1.1, 1.0), (0.8, 1.0), (float("nan"), 1.0)])
    assert found is not None
    assert (found.n, found.mape, found.bias) == (2, pytest.approx(0.15), pytest.approx(-0.05))
    assert figures([]) is None
