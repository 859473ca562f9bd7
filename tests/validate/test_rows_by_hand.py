"""Rows as JSON, configurations of AIPerf, and the search for a host, of values that are written down here."""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferplan.catalog.files import load_hardware, load_model
from inferplan.errors import InputFileError, UsageError
from inferplan.measuring.prometheus_api import matchers
from inferplan.reports import emit as emitted
from inferplan.reports import validation as report
from inferplan.validation import anchor, deploy, files, held_out, host, importers, rows
from inferplan.validation.importers import aiperf, llama_bench, plain
from inferplan.validation.importers.record import Record
from inferplan.work.formats import find_format
from tests.cases import for_each


def test_a_row_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics beside the row's own where there are several; no band where nothing was predicted."""
    monkeypatch.setattr(report, "run_record", lambda run: f"{run} as JSON")
    seen = {("ttft", "mean"): 0.5, ("ttft", "p90"): 0.9, ("tpot", "mean"): 0.02}
    said = {("ttft", "mean"): 0.4, ("ttft", "p90"): 0.8}

    def at(values: dict[Any, float]) -> Any:
        return lambda metric, which=None: values.get((metric, which or "mean"))

    measured = SimpleNamespace(figures=seen, at=at(seen), statistic="mean")
    found = SimpleNamespace(
        at=at(said), basis="measured", notes=["a note"],
        band=lambda metric, which=None: (0.1, 0.7) if (metric, which) in (("ttft", None), ("ttft", "mean")) else None,
    )  # fmt: skip
    one: Any = SimpleNamespace(
        row=SimpleNamespace(where="row 1", run="run", measured=measured), prediction=found, refused="",
        impossible=("ttft",),
        above_uncertain=("tpot",), error=lambda metric, which=None: -0.2 if which == "mean" else -0.25,
    )  # fmt: skip
    whole = report.row_record(one)
    ttft = whole["ttft"]
    assert (ttft["measured_s"], ttft["predicted_s"], ttft["low_s"], ttft["high_s"], ttft["error"]) == (
        0.5, 0.4, 0.1, 0.7, -0.25
    )  # fmt: skip
    assert ttft["statistics"]["mean"] == {
        "measured_s": 0.5, "predicted_s": 0.4, "low_s": 0.1, "high_s": 0.7, "error": -0.2
    }  # fmt: skip
    assert ttft["statistics"]["p90"]["predicted_s"] == 0.8 and ttft["statistics"]["p90"]["low_s"] is None
    assert "statistics" not in whole["tpot"] and whole["tpot"]["predicted_s"] is None
    assert (whole["row"], whole["run"], whole["statistic"], whole["refused"]) == ("row 1", "run as JSON", "mean", None)
    assert (whole["faster_than_light"], whole["above_uncertain_peaks"]) == (["ttft"], ["tpot"])
    assert (whole["basis"], whole["notes"]) == ("measured", ["a note"])
    one.prediction, one.refused, one.row.run = None, "why", None
    bare = report.row_record(one)
    assert (bare["ttft"]["predicted_s"], bare["ttft"]["low_s"], bare["basis"], bare["notes"]) == (None, None, None, [])
    assert (
        bare["ttft"]["statistics"]["mean"]["predicted_s"] is None and bare["run"] is None and bare["refused"] == "why"
    )


def config(**told: Any) -> dict[str, str]:
    """A run of AIPerf of 1,000 tokens in and 128 out."""
    metrics: dict[str, Any] = {
        "input_sequence_length": {"avg": 1000}, "output_sequence_length": {"avg": 128}, "request_count": {"avg": 40},
        "benchmark_duration": {"avg": 60}, "time_to_first_token": {"avg": 250.0, "unit": "ms"},
    }  # fmt: skip
    (facts,) = aiperf.read(Record(metrics | {"input_config": told}))
    return dict(facts)


def test_configurations_of_aiperf() -> None:
    """Each of its releases, and genai-perf, names users, rates and models elsewhere."""
    assert config(loadgen={"concurrency": 8})["concurrency"] == "8"
    assert config(perf_analyzer={"stimulus": {"concurrency": 7}})["concurrency"] == "7"
    assert config(stimulus={"concurrency": 6})["concurrency"] == "6"
    both = config(loadgen={"concurrency": 8, "request_rate": 2.5})
    assert both["concurrency"] == "8" and "rate_per_s" not in both
    for told in ({"loadgen": {"request_rate": 2.5}}, {"perf_analyzer": {"stimulus": {"request_rate": 2.5}}}):
        found = config(**told)
        assert (found["rate_per_s"], found["duration_s"], "concurrency" in found) == ("2.5", "60", False)
    bare = config(loadgen="odd")
    assert not {"concurrency", "rate_per_s", "model"} & bare.keys() and (bare["isl"], bare["osl"]) == ("1000", "128")
    assert config(model_names=["a", "b"])["model"] == "a" and config(endpoint={"model_names": ["c"]})["model"] == "c"
    assert config(models=["d"])["model"] == "d"
    for odd in ([], [{"name": "x"}], "text"):
        assert "model" not in config(model_names=odd)


def test_which_host_explains_first_tokens() -> None:
    """Kernels of 60 ms and a host of 20: 100 ms are explained by twice the host."""

    def above(measured: float) -> Any:
        return lambda times: log((0.06 + 0.02 * times) / measured)

    def scale(measured: float) -> float:
        return host._scale(above(measured), above(measured)(0.0))

    assert scale(0.1) == pytest.approx(2.0, rel=1e-2) and scale(0.08) == pytest.approx(1.0, rel=1e-2)
    with pytest.raises(UsageError) as refused:
        scale(0.03)
    assert refused.value.because == "the kernels alone take 2.00 times as long as was measured"
    most = 0.06 + 0.02 * host.MOST_TIMES
    with pytest.raises(UsageError) as refused:
        scale(2 * most)
    assert refused.value.because == f"{host.MOST_TIMES:g} times the host on file explain 50% of what was measured"
    assert host._above([2.0, 0.5], [1.0, 1.0]) == 0.0
    assert exp(host._above([4.0, 4.0], [1.0, 4.0])) == pytest.approx(2.0)


def test_sentences_beside_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    words: dict[str, Any] = {
        "from_catalogue": None, "base_note": "", "checkpoint_needs": None, "online": None, "queue_note": "",
        "cap_note": "",
        "node_note": "",
    }  # fmt: skip

    def notes(pools: Any = None, replicas: int = 1, named: Any = None, holds: bool = False, draft: Any = None,
              **changed: Any) -> list[str]:  # fmt: skip
        for name, value in (words | changed).items():
            monkeypatch.setattr(emitted, name, value if callable(value) else lambda *_, value=value: value)
        deployment = SimpleNamespace(
            parallel=SimpleNamespace(replicas=replicas), engine=SimpleNamespace(name="vllm",
            describe=lambda: "vllm 0.33"),
            model=SimpleNamespace(name="m"),
        )  # fmt: skip
        drafts = SimpleNamespace(speculation=SimpleNamespace(draft=draft))
        started: Any = SimpleNamespace(deployment=deployment, named=named, holds=holds, drafts=drafts, queue="fcfs")
        return emitted._notes(started, pools)[1:]

    assert notes() == [] and notes(base_note="a base", from_catalogue="org/m") == ["a base"]
    assert notes(from_catalogue="org/m")[0].startswith("org/m is the checkpoint behind the file of m")
    assert notes(replicas=2) == ["one of 2 replicas"] and notes(pools=SimpleNamespace(prompts=None), replicas=2) == []
    assert (
        notes(named="org/x", checkpoint_needs="fp8")
        == ["org/x must hold fp8"]
        == notes(named="org/x", checkpoint_needs="fp8", pools=SimpleNamespace(prompts=None))
    )
    assert notes(named="org/x") == notes(checkpoint_needs="fp8") == []
    idle = ["--quantised changes nothing: the checkpoint is not converted without it, either"]
    assert notes(holds=True) == idle == notes(holds=True, draft="draft") and notes(holds=True, online="fp8") == []
    assert notes(holds=True, draft="draft", online=lambda launch, draft=None: draft == "draft" and "fp8") == []
    assert notes(queue_note="queue", cap_note="cap", node_note="node") == ["queue", "cap", "node"]
    assert notes(pools=SimpleNamespace(prompts="other"),
    node_note=lambda one: "first" if one == "other" else "last") == [
        "first", "last"
    ]  # fmt: skip


def test_the_load_of_a_replica() -> None:
    """Lengths from a half of 1,000 and 200 on are 750 and 150 on average; users by Little's law: 2 x (0.5 + 149 x
    0.01), over two replicas."""

    def load(measured: Any = None, **more: Any) -> Any:
        told = {"ratio_min": 0.5, "prompt": 1000.0, "output": 200.0, "tp": 4, "ep": 2, "dp": 1, "pp": 3, "batch": None,
                "concurrency": None, "rate": None, "workers": 1}  # fmt: skip
        return anchor.load_of(SimpleNamespace(**told | more), measured)  # type: ignore[arg-type]

    both = SimpleNamespace(ttft=0.5, tpot=0.01)
    closed = load(concurrency=6, workers=2)
    assert (closed.users, closed.prompt, closed.output) == (3.0, 750.0, 150.0)
    assert (closed.parallel.tp, closed.parallel.ep, closed.parallel.pp) == (4, 2, 3)
    assert load(batch=8, workers=2).users == 8.0 and load(concurrency=1, workers=4).users == 1.0
    assert load(both, rate=2.0, workers=2).users == pytest.approx(1.99)
    for lacking in ({"ttft": None}, {"tpot": None}):
        assert load(SimpleNamespace(**vars(both) | lacking), rate=2.0) is None
    assert load(both) is None and load(concurrency=1, prompt=1.0, output=1.0).output == 1.0


def test_inputs_of_narrow_weights() -> None:
    """fp8 weights run with fp8 inputs where the device multiplies them, MXFP4 with fp8, NVFP4 with their own."""
    new, old = (SimpleNamespace(peak=dict.fromkeys(peaks)) for peaks in (("bf16", "fp8", "fp4", "int8"), ("bf16",)))

    def inputs(name: str, device: Any = new) -> str:
        return deploy._input(find_format(name), find_format("bf16"), device).name

    names = ("bf16", "fp8", "int8", "mxfp4", "nvfp4", "int4", "fp32")
    assert [inputs(name) for name in names] == ["bf16", "fp8", "int8", "fp8", "nvfp4", "bf16", "bf16"]
    assert [inputs(name, old) for name in names] == ["bf16"] * 7
    assert inputs("mxfp4", SimpleNamespace(peak={"fp8": 1.0})) == "bf16"


def test_a_row_shows_its_cells() -> None:
    """Those of its file, where they are other words than its facts."""
    facts = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "engine": "vllm", "isl": "512", "osl": "64"}
    assert rows.row_of("x", facts, {}).cells == facts
    assert rows.row_of("x", facts, {}, {"Model": "Llama 3.1"}).cells == {"Model": "Llama 3.1"}
    assert rows.row_of("x", facts | {"isl": "none"}, {}, {"a": "b"}).cells == {"a": "b"}


def test_releases_that_are_none_are_words() -> None:
    """A release is told by its order; what is none is told by its letters."""
    assert rows._alike("engine_version", "0.19", "v0.19") and not rows._alike("engine_version", "0.19", "0.20")
    assert rows._alike("engine_version", "Nightly", "nightly ") and not rows._alike("engine_version", "nightly", "main")


def test_a_row_without_a_prediction_or_of_doubt_is_no_use() -> None:
    row = SimpleNamespace(run=None, refused="")
    one: Any = SimpleNamespace(row=row, prediction=None, refused="", suspect=False, impossible=())
    assert anchor.refusal(one) == "no prediction"
    row.refused = "no model"
    assert anchor.refusal(one) == "no model"
    one.refused = "too large"
    assert anchor.refusal(one) == "too large"
    kept = SimpleNamespace(prediction=1, suspect=False, impossible=())
    assert held_out._usable(kept)  # type: ignore[arg-type]
    for doubt in ({"prediction": None}, {"suspect": True}, {"impossible": ("ttft",)}):
        assert not held_out._usable(SimpleNamespace(**vars(kept) | doubt))  # type: ignore[arg-type]


def test_a_file_without_a_line_is_no_table() -> None:
    with pytest.raises(InputFileError):
        plain.read(Path("empty.csv"), "", {})


def test_devices_of_llama_bench() -> None:
    """Its list of devices may end with a comma."""
    names = {"n_prompt": 512, "n_gen": 0, "avg_ns": 1e9, "gpu_info": "RTX 3090, RTX 3090, "}
    (facts,) = llama_bench.read(Record(names))
    assert (facts["gpu"], facts["pp"], facts["model"]) == ("RTX 3090", "2", "")
    (named,) = llama_bench.read(Record(names | {"model_filename": "models/llama-2-7b-Q4_K_M.gguf"}))
    assert named["model"] == "llama-2-7b"


@for_each("keys, told", [(8, "a1, a2, a3, a4, a5, a6, a7, a8"), (9, "a1, a2, a3, a4, a5, a6, a7, a8, ...")])
def test_an_object_of_no_tool_is_told_by_its_first_keys(keys: int, told: str) -> None:
    record = json.dumps({f"a{number}": 1 for number in range(1, keys + 1)})
    with pytest.raises(InputFileError) as refused:
        importers._read_json(Path("x.json"), record, {})
    assert refused.value.because == f"its keys are {told}"


def test_experts_beside_a_label() -> None:
    """A label names the experts too, but where a row states theirs."""
    model, hardware = load_model("mixtral-8x7b"), load_hardware("h100-sxm")

    def formats(**more: Any) -> tuple[str, str]:
        run: Any = SimpleNamespace(
            weights=None, precision="fp8", experts=None, activations=None, kv=None, engine="vllm"
        )
        vars(run).update(more)
        found = deploy.row_precision(run, model, hardware)
        return found.weights.name, found.experts.name

    assert formats() == ("fp8", "fp8") and formats(experts="int4") == ("fp8", "int4")


def test_labels_of_servers() -> None:
    assert matchers(None) == {} and matchers('job=vllm, a_1="x=y"') == {"job": "vllm", "a_1": "x=y"}
    assert matchers('a="') == {"a": '"'}
    for wrong in ("", "job", "1a=b", "a-b=c", "__name__=x", "a=1,a=2", "a=1,"):
        with pytest.raises(UsageError):
            matchers(wrong)


def test_logs_and_benchmarks_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_is_log", lambda path: path.suffix == ".log")
    monkeypatch.setattr(files, "_log", lambda path, supplied: f"read {path}")
    monkeypatch.setattr(files, "read_file", lambda path, supplied: ("a tool", [f"{path} row"]))
    monkeypatch.setattr(files, "price_rows", lambda rows, pricing, progress: [*rows, progress])

    def found(*names: str) -> Any:
        return files.validate_files(names, {}, None)  # type: ignore[arg-type]

    assert (found("a.log", "b.log").title, found("a.log").logs) == ("a.log, b.log", ["read a.log"])
    assert (found("a.csv", "b.csv").title, found("a.csv").scored) == ("a.csv, b.csv (a tool)", ["a.csv row", None])
    with pytest.raises(UsageError, match="do not mix") as refused:
        found("a.log", "b.csv")
    assert refused.value.hint == "leave out a.log"
