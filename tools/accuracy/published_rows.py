"""Published tables (``measured/published/*.csv``: a figure a line, with its source) as measured rows.

Lines that were taken from one run become one row, so that it is simulated once.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from inferplan.validation.rows import Facts, Row, row_of
from tools.fitting.published import batches

DEVICES = batches.DEVICES | {"H100 SXM": "h100-sxm", "Gaudi 3": "gaudi3", "TPU v6e": "tpu-v6e"}
MODELS = {"mistral-7b": "mistral-7b-v0.3"}
"""Published names of which the catalogue has several: Habana's runs of Mistral 7B attend to everything, as v0.3."""
ENGINES = {
    "vllm ~0.6.4": ("vllm", "0.6.4"),
    "trt-llm": ("trtllm", ""),
    "sglang (TPU)": ("sglang", ""),
}
"""Names of engines on file."""
LOOPS = ("Optimum Habana (static batch)",)
"""Programs without a scheduler, priced as no engine: a batch is finished before the next."""
LOOP = "1000 requests"
USERS_TURNS = {"3 prompts a user": 3}
"""Requests of each user where a source says how many."""
FLAGS: dict[tuple[str, str], Facts] = {
    ("Azure AI-benchmarking-guide", "vllm"): {
        "kv": "fp8",
        "max_num_seqs": "3000",
        "max_num_batched_tokens": "131072",
        "poll_interval_steps": "10",
    }
}
"""By the beginning of a source and by engine, what its published scripts set: Azure's Benchmarks/AMD/LLMBenchmark.py
and config.json run rocm/vllm-dev:20241121-tuned with --num-scheduler-steps 10, and report output tokens a second. Ten
steps for each look of the host hide most of what V0's host costs: the rows are priced as the newest version."""
_KEY = ("source", "model", "hardware", "engine", "weights", "kv", "tp", "batch", "concurrency", "isl", "osl")


def serving_rows(path: Path) -> list[Row]:
    """The rows of a table that are runs of a model.

    Those of single kernels: :mod:`tools.fitting.published.kernels`.
    """
    with path.open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["model"]]
    runs: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for line in lines:
        runs[tuple(line[name] for name in _KEY)].append(line)
    rows = [row_of(f"{path.name}:{run[0]['id']}", _facts(run), {}, _cells(run)) for run in runs.values()]
    return [_without_engine(row) if row.cells["engine"] in LOOPS else row for row in rows]


def _without_engine(row: Row) -> Row:
    return replace(row, run=replace(row.run, engine="none")) if row.run else row


def _cells(run: list[dict[str, str]]) -> dict[str, str]:
    return {name: run[0][name] for name in _KEY} | {"notes": run[0]["notes"]}


def _facts(run: list[dict[str, str]]) -> Facts:
    """What a run's lines say, by the names of a measured row."""
    line = run[0]
    engine, version = ENGINES.get(line["engine"], (line["engine"].partition(" ")[0], ""))
    model = line["model"].lower().replace(" ", "-")
    facts = {
        "model": MODELS.get(model, model),
        "gpu": DEVICES[line["hardware"]],
        "engine": engine,
        "engine_version": version,
        "weights": line["weights"],
        "experts": line["weights"] if model.startswith("deepseek") else "",
        "kv": line["kv"],
        "tp": line["tp"],
        "expert_tp": line["tp"],
        "isl": line["isl"],
        "osl": line["osl"],
    }
    scripts = (flags for (of, by), flags in FLAGS.items() if line["source"].startswith(of) and by == engine)
    return (
        facts | next(scripts, {}) | _load(line) | {name: value for one in run for name, value in _figures(one).items()}
    )


def _load(line: Mapping[str, str]) -> Facts:
    """Users and requests. A static batch without an engine that serves stays one; else all of it arrives at once."""
    if line["quantity"].endswith(LOOP):
        return {"concurrency": "1000", "requests": "1000"}
    if line["concurrency"]:
        turns = next((number for words, number in USERS_TURNS.items() if words in line["source"]), None)
        asked = {"requests": str(turns * int(float(line["concurrency"])))} if turns else {}
        return {"concurrency": line["concurrency"]} | asked
    if line["engine"] in LOOPS:
        return {"batch": line["batch"]}
    return {"concurrency": line["batch"], "requests": line["batch"]}


def _figures(line: Mapping[str, str]) -> Facts:
    """A measured figure. The latency of a batch is told as its output tokens a second."""
    quantity, value = line["quantity"].partition(",")[0], line["value"]
    if quantity == "batch latency":
        return {"output_tokens_per_s": repr(float(line["batch"]) * float(line["osl"]) / float(value))}
    return {_MEASURES[quantity]: value}


_MEASURES = {
    "output throughput": "output_tokens_per_s",
    "mean TTFT": "ttft_mean_ms",
    "mean TPOT": "tpot_mean_ms",
    "mean ITL": "tpot_mean_ms",  # one token a message
}
