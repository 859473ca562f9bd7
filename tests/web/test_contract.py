"""The API says what the command line says: the same figures to the last digit, the same words, the same exit code."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cases import for_each
from tests.web.conftest import ROOT, Web, started, stopped

VIEWS: dict[str, dict[str, Any]] = {
    "dense on eight": {"model": "llama-3.1-70b", "gpu": "h100-sxm", "tp": 8, "batch": 32, "prompt": "2k"},
    "an alias, a kernel file": {"model": "llama-3.1-8b", "gpu": "a100-80gb-sxm", "weights": "int4", "kv": "fp8"},
    "stages": {"model": "llama-3.1-70b", "gpu": "h200-sxm", "tp": 2, "pp": 2, "batch": 16, "quant": "fp8"},
    "experts": {"model": "deepseek-v3", "gpu": "h200-sxm", "tp": 8, "ep": 8, "batch": 64, "prompt": "4k"},
    "attention ranks": {"model": "deepseek-v3", "gpu": "h200-sxm", "dp": 8, "ep": 8, "batch": 128},
    "no engine, ideal": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": "none", "ideal": True, "batch": 4},
    "another engine": {"model": "qwen3-32b", "gpu": "h100-sxm", "engine": "sglang", "tp": 2, "output": 1},
    "drafts": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "draft": "free", "draft-tokens": 3, "acceptance": 0.7},
    "an encoder": {"model": "bge-m3", "gpu": "h100-sxm", "batch": 16, "prompt": 512},
    "a flag off and a flag": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "ideal": False, "unfused-attention": True},
    "a file of the folder": {"model": "own.yaml", "gpu": "h100-sxm"},
}  # fmt: skip


def typed(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command line as it is typed, in a process of its own."""
    command = [sys.executable, "-m", "inferplan", *words]
    return subprocess.run(
        command, cwd=cwd, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False
    )


def words(options: dict[str, Any]) -> list[str]:
    """Options as they are typed, written down here by other means than ours."""
    found = [options["model"]]
    for name, value in options.items():
        if value is True:
            found.append(f"--{name}")
        elif name != "model" and value is not False:
            found += [f"--{name}", str(value)]
    return found


@for_each("name", VIEWS)
def test_a_view_is_the_estimate_of_the_command_line(web: Web, name: str) -> None:
    got = web.post("/api/view", VIEWS[name])
    assert got.status == 200, got.body
    printed = typed("estimate", *words(VIEWS[name]), "--format", "json", cwd=web.folder)
    assert printed.returncode == 0, printed.stderr
    assert got.json["estimate"] == json.loads(printed.stdout)


@for_each("name", ["an alias, a kernel file", "stages", "drafts", "a flag off and a flag"])
def test_its_command_asks_the_same(web: Web, name: str) -> None:
    view = web.post("/api/view", VIEWS[name]).json
    program, *rest = view["command"].split()
    assert program == "inferplan"
    assert json.loads(typed(*rest, "--format", "json", cwd=web.folder).stdout) == view["estimate"]


@for_each("name", ["an alias, a kernel file", "stages", "experts", "no engine, ideal"])
def test_its_python_gives_the_same(web: Web, name: str) -> None:
    view = web.post("/api/view", VIEWS[name]).json
    script = view["python"] + "import json; print(json.dumps([found.ttft, found.e2el]))\n"
    ran = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert json.loads(ran.stdout.splitlines()[-1]) == [view["estimate"]["ttft_s"], view["estimate"]["e2el_s"]]


@for_each("name", VIEWS)
def test_the_parts_of_a_view_add_up(web: Web, name: str) -> None:
    view = web.post("/api/view", VIEWS[name]).json
    record, roofline = view["estimate"], view["roofline"]
    assert sum(part["bytes"] for part in view["memory"]) == pytest.approx(view["memory_total_bytes"], rel=1e-12)
    assert view["memory_total_bytes"] == record["memory"]["total_bytes"]
    assert roofline["ridge"] == pytest.approx(roofline["peak_flop_per_s"] / roofline["bandwidth_byte_per_s"])
    for phase in ("prefill", "decode"):
        rows = [row for row in roofline["operators"] if row["phase"] == phase]
        assert (rows == []) is (record[phase] is None)
        if record[phase] is not None:
            assert sum(row["time_s"] for row in rows) == pytest.approx(record[phase]["time_s"], rel=1e-9)
            assert sum(row["share"] for row in rows) == pytest.approx(1.0, rel=1e-9)
    roofs = {roof["math"]: roof["peak_flop_per_s"] for roof in roofline["roofs"]}
    for row in roofline["operators"]:
        if row["achieved_flop_per_s"] is not None and row["math"]:
            roof = min(roofs[row["math"]], row["intensity"] * roofline["bandwidth_byte_per_s"])
            assert row["achieved_flop_per_s"] <= roof * (1 + 1e-9), row


@for_each("name", VIEWS)
def test_curves_go_through_the_point(web: Web, name: str) -> None:
    """At the batch that is asked for a curve has the figure of the estimate, and the ends of its band: all to the last
    digits, for a sum over a grid is rounded in another order."""
    view = web.post("/api/view", {**VIEWS[name], "points": 2000}).json
    curves, record = view["curves"], view["estimate"]
    at = curves["batch"].index(record["load"]["batch"])
    for curve, figure in (("ttft", "ttft"), ("tpot", "tpot"), ("latency", "e2el")):
        for end in ("_s", "_low_s", "_high_s"):
            ours, theirs = curves[curve + end], record[figure + end]
            at_point = None if ours is None else ours[at]
            assert at_point == (None if theirs is None else pytest.approx(theirs, rel=1e-12)), curve + end
    assert curves["requests_per_s"][at] == pytest.approx(record["requests_per_s"], rel=1e-12)
    if curves["throughput_tokens_per_s"] is not None:
        assert curves["throughput_tokens_per_s"][at] == pytest.approx(record["output_tokens_per_s"], rel=1e-12)
    assert all(low < high for low, high in pairwise(curves["batch"]))
    slots = record["max_num_seqs"] * record["parallel"]["dp"]
    assert curves["largest_batch"] == min(record["max_batch"], slots)
    assert curves["batch"][-1] == max(curves["largest_batch"], record["load"]["batch"])


def test_a_view_of_a_70b_by_hand(web: Web) -> None:
    """H100: 989.4 TFLOP/s and 3.35 TB/s. 70.55e9 parameters in two bytes, over four: 35.3 GB each."""
    view = web.post("/api/view", {"model": "llama-3.1-70b", "gpu": "h100-sxm", "tp": 4}).json
    assert view["roofline"]["ridge"] == pytest.approx(989.4e12 / 3.35e12)
    weights = next(part["bytes"] for part in view["memory"] if part["name"] == "weights")
    assert weights == pytest.approx(70_553_706_496 * 2 / 4, rel=1e-3)
    down = next(row for row in view["roofline"]["operators"] if (row["phase"], row["name"]) == ("decode", "ffn.down"))
    inner, width = 28672 // 4, 8192  # one token: FLOP over the bytes of the weights, the input and the output
    assert down["intensity"] == pytest.approx(2 * inner * width / (2 * (inner * width + inner + width)))


@for_each("points", [1, 2, 7, 500])
def test_as_many_points_as_asked_for(web: Web, points: int) -> None:
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "tp": 4, "points": points}
    curves = web.post("/api/view", options).json["curves"]
    assert len(curves["batch"]) == points == len(curves["ttft_s"])
    assert curves["batch"][0] == 1
    assert points == 1 or curves["batch"][-1] == curves["largest_batch"]


def test_the_cost_is_that_of_the_command_line(web: Web) -> None:
    options = {"model": "llama-3.1-70b", "gpu": "h100-sxm", "tp": 4, "batch": 8, "price": "h100-sxm=2.49"}
    ours = web.post("/api/view", options).json["cost"]
    theirs = json.loads(typed("cost", *words(options), "--format", "json", cwd=web.folder).stdout)["cost"]
    assert {key: ours[key] for key in theirs} == theirs
    assert ours["usd_per_h"] == pytest.approx(4 * 2.49)
    assert ours["usd_per_million_tokens"] == theirs["per_million_tokens_whole_bill"]


def test_without_a_price_it_says_why(web: Web) -> None:
    view = web.post(
        "/api/view", {"model": "llama-3.1-8b", "gpu": "h100-sxm", "term": "spot", "prices": "aws-us-east-1"}
    )
    assert view.json["cost"] is None
    assert "no price of h100-sxm is known" in view.json["cost_why"]


REFUSED: dict[str, dict[str, Any]] = {
    "does not fit": {"model": "llama-3.1-70b", "gpu": "h100-sxm"},
    "no such model": {"model": "lama-3.1-8b", "gpu": "h100-sxm"},
    "no such gpu": {"model": "llama-3.1-8b", "gpu": "h1000"},
    "no such option": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "tensor": 4},
    "not a count": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "tp": "many"},
    "a count of none": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "batch": 0},
    "does not divide": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "tp": 3},
    "no format": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "kv": "fp3"},
    "no peak": {"model": "llama-3.1-8b", "gpu": "a100-80gb-sxm", "quant": "nvfp4"},
    "no gpu": {"model": "llama-3.1-8b"},
    "too long": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "prompt": 1_000_000},
    "half of an option": {"model": "llama-3.1-8b", "gpu": "h100-sxm", "draft-tokens": 3},
    "a file that is not there": {"model": "other.yaml", "gpu": "h100-sxm"},
}


@for_each("name", REFUSED)
def test_refusals_are_those_of_the_command_line(web: Web, name: str) -> None:
    error = web.post("/api/view", REFUSED[name]).error
    printed = typed("estimate", *words(REFUSED[name]), cwd=web.folder)
    lines = [f"error: {error['what']}"]
    lines += [f"because: {error['because']}"] if error["because"] else []
    lines += [error["picture"]] if "picture" in error else []
    lines += [f"hint: {error['hint']}"] if error["hint"] else []
    assert "\n".join(lines) == printed.stderr.strip()
    assert error["exit_code"] == printed.returncode


def test_status_of_refusals(web: Web) -> None:
    statuses = {name: web.post("/api/view", options).status for name, options in REFUSED.items()}
    assert statuses == dict.fromkeys(REFUSED, 400) | {"does not fit": 409, "a file that is not there": 404}


def test_the_catalogue_has_every_file(web: Web) -> None:
    found = web.get("/api/catalog").json
    for key, folder in (("models", "models"), ("gpus", "hardware"), ("engines", "engines")):
        on_file = {path.stem for path in (ROOT / "configs" / folder).glob("*.yaml")}
        assert {one["name"] for one in found[key]} == on_file
    assert set(found["profiles"]) == {path.stem for path in (ROOT / "configs" / "profiles").glob("*.yaml")}
    h100 = next(one for one in found["gpus"] if one["name"] == "h100-sxm")
    assert h100["memory_bytes"] == 81082 * 2**20
    assert "fp8" in h100["formats"] and "nvfp4" not in h100["formats"]
    llama = next(one for one in found["models"] if one["name"] == "llama-3.1-8b")
    assert (llama["parameters_total"], llama["context"], llama["formats"]) == (8_030_261_248, 131072, ["bf16"])


def test_compare_holds_what_can_be_and_why_not(web: Web) -> None:
    views = [{"model": "llama-3.1-70b", "gpu": "h100-sxm", "tp": tp, "points": 20} for tp in (4, 8, 1)]
    first, second, third = web.post("/api/compare", {"views": views}).json
    assert first["estimate"] == web.post("/api/view", views[0]).json["estimate"]
    assert second["estimate"]["parallel"]["tp"] == 8
    assert "operators" not in first["roofline"]
    assert third["error"]["exit_code"] == 3


def test_fit_and_explain_are_those_of_the_command_line(web: Web) -> None:
    fit = web.wait(web.start("fit", model="llama-3.1-8b", context="32k", users=4))["result"]
    printed = typed("fit", "llama-3.1-8b", "--context", "32k", "--users", "4", "--format", "json", cwd=web.folder)
    assert fit == json.loads(printed.stdout)
    view = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "batch": 8, "price": "h100-sxm=2", "points": 3}
    ours = web.post("/api/explain", {"view": view, "term": "decode.ffn.down"}).json
    asked = ["decode.ffn.down", "llama-3.1-8b", "--gpu", "h100-sxm", "--batch", "8"]
    assert ours["lines"] == typed("explain", *asked, cwd=web.folder).stdout.rstrip("\n").split("\n")
    theirs = json.loads(typed("explain", *asked, "--format", "json", cwd=web.folder).stdout)
    assert {key: ours[key] for key in theirs} == theirs


@for_each(("model", "more"), [("llama-3.1-70b", {"users": 4, "context": "32k"}), ("bge-m3", {}), ("mamba2-2.7b", {})])
def test_the_numbers_of_a_fit_are_those_that_their_views_explain(web: Web, model: str, more: dict[str, Any]) -> None:
    """What is printed in a row is the value of an explanation, to the last bit: here of some rows, best first."""
    found = web.wait(web.start("fit", model=model, **more))
    rows, views = found["result"]["options"], found["behind"]["views"]
    fits = [pair for pair in zip(rows, views, strict=True) if pair[0]["fits"]]
    assert len(fits) == sum(view is not None for view in views)
    terms = {"weights_bytes": "memory.weights", "kv_pool_bytes": "memory.kv_pool"}
    terms |= {"max_requests": "max_batch", "max_context_tokens": "max_context"}
    for row, view in fits[:: len(fits) // 4]:
        for key, term in terms.items():
            explained = web.post("/api/explain", {"view": view, "term": term}).json
            assert explained["value"] == row[key], (row, term, explained)


def test_words_of_the_glossary_are_sent(web: Web) -> None:
    words = web.get("/api/catalog").json["words"]
    assert words["p95"].startswith("95 of 100")
    shown = (ROOT / "inferplan" / "web" / "static").glob("*.js")
    texts = "".join(path.read_text() for path in shown)
    assert [word for word, meaning in words.items() if meaning in texts] == []  # they are written down once
    asked = {"TTFT", "TPOT", "ITL", "end-to-end", "throughput", "token", "goodput", "SLO", "admission", "KV cache"}
    asked |= {"preemption", "replica", "spare", "tp", "pp", "ep", "dp", "TDP", "simulated", "p50", "p90", "p99"}
    assert asked <= set(words)


def test_every_number_of_a_view_can_be_explained(web: Web) -> None:
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "batch": 8}
    view = web.post("/api/view", options).json
    terms = [one["explain"] for one in [*view["memory"], *view["roofline"]["operators"]]]
    for term in terms[:3] + terms[-4:]:
        assert web.post("/api/explain", {"view": options, "term": term}).status == 200, term


def test_exports(web: Web) -> None:
    view = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "batch": 8, "points": 4}
    full = web.post("/api/view", view).json
    kinds = {style: web.post("/api/export", {"view": view, "format": style}) for style in ("csv", "json", "python")}
    assert kinds["json"].json == full["estimate"]
    assert kinds["python"].body.decode() == full["python"]
    header, first, *_ = kinds["csv"].body.decode().splitlines()
    row = dict(zip(header.split(","), first.split(","), strict=True))
    assert float(row["ttft_s"]) == full["curves"]["ttft_s"][0]
    assert math.isclose(float(row["batch"]), 1)
    assert kinds["csv"].headers["content-type"].startswith("text/csv")
    assert web.post("/api/export", {"view": view, "format": "png"}).error["exit_code"] == 2


def test_defaults_are_those_of_where_it_was_started(tmp_path: Path) -> None:
    """``inferplan.yaml`` of the folder in which the command was typed, not of that from which files are read."""
    folder = tmp_path / "files"
    folder.mkdir()
    (tmp_path / "inferplan.yaml").write_text("batch: 4\nestimate: {prompt: 300}\n")
    (folder / "inferplan.yaml").write_text("batch: 5\n")
    web = started(folder, tmp_path)
    try:
        view = web.post("/api/view", {"model": "llama-3.1-8b", "gpu": "h100-sxm"}).json
        printed = typed("estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--format", "json", cwd=tmp_path)
        assert view["estimate"] == json.loads(printed.stdout)
        assert view["estimate"]["load"]["batch"] == 4
    finally:
        stopped(web)


CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 32000,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu",
}  # fmt: skip


def test_a_hub_id_is_read_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloaded before. Two tables; in each layer q and o, k and v, three of the feed-forward, two norms."""
    kept = tmp_path / "kept" / "hub" / "models--somebody--tiny-llama"
    snapshot = kept / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("0" * 40)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "kept"))
    (tmp_path / "files").mkdir()
    web = started(tmp_path / "files", tmp_path)
    try:
        options = {"model": "somebody/tiny-llama", "gpu": "h100-sxm", "ideal": True}
        got = web.post("/api/view", options)
        assert got.status == 200, got.body
        layer = 2 * 512 * 512 + 2 * 512 * 256 + 3 * 512 * 1024 + 2 * 512
        parameters = 2 * 32000 * 512 + 4 * layer + 512
        assert got.json["estimate"]["memory"]["weights_bytes"] == 2 * parameters
    finally:
        stopped(web)
