"""Published tables of batches that arrive at once."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

from calibrate.accuracy.scores import HEADS, markdown, scored_lines
from inferplan.catalog.files import load
from inferplan.devices.engine import EngineSpec
from inferplan.errors import InferplanError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import Band, StaticLoad
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from inferplan.validation.deploy import deployment_of
from inferplan.validation.rows import Run

_DEVICES = {
    "H100-80GB": "h100-sxm",
    "H100-80GB SXM": "h100-sxm",
    "H100": "h100-sxm",
    "A100-40GB": "a100-40gb-pcie",
    "A100-80GB SXM": "a100-80gb-sxm",
    "A100-80GB": "a100-80gb-sxm",
    "A100": "a100-80gb-sxm",
    "L40S": "l40s",
    "H200": "h200-sxm",
    "GH200": "gh200-96gb",
    "MI300X": "mi300x",
}
_VINTAGES = (("(4211f5d)", "mid-2024"), ("v0.5)", "TensorRT-LLM 0.5, 2023"), ("v0.6.1)", "TensorRT-LLM 0.6, 2023"))
"""Ends of the sources of published tables, and the software that they measured: Argonne's results are of mid-2024."""
_MODELS = {"LLaMA 7B": "llama-2-7b", "LLaMA 70B": "llama-2-70b", "GPT-J 6B": "gpt-j-6b", "Falcon 180B": "falcon-180b"}
_ENGINES = {"vLLM": "vllm", "TensorRT-LLM": "trtllm", "llama.cpp": "llama.cpp"}


def static_run(row: dict[str, str], engine: str) -> Run:
    """What a row of a published table was run on."""
    hardware = row["hardware"].split("x ", 1)[-1]
    eight = row["precision"] == "fp8"
    return Run(
        model=_MODELS.get(row["model"], row["model"]),
        gpu=_DEVICES[hardware],
        engine=engine,
        engine_version=None,
        precision=None,
        weights="fp8" if eight else "fp16",
        experts=None,
        kv="fp8" if eight else None,
        activations=None,
        prompt=float(row["isl"]),
        output=max(float(row["osl"] or 1), 1.0),
        batch=int(float(row["batch"])),
        tp=int(float(row["tp"])),
    )


def batch_latency(run: Run) -> tuple[float, Band | None]:
    """Seconds until a batch that arrives at once is finished, and the 80 % band of that as factors."""
    deployment, _ = deployment_of(run)
    assert run.batch is not None
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=run.batch),
        prompt=Lengths(mean=run.prompt),
        output=Lengths(mean=run.output),
        requests_count=run.batch,
    )
    found = simulate(deployment, traffic)
    return (float(found.duration) if len(found.e2el) == run.batch else float("nan")), found.band("e2el")


def vintage(row: dict[str, str]) -> str:
    """The software that a row of a published table was measured with."""
    source = row.get("source") or ""
    return next((software for end, software in _VINTAGES if source.endswith(end)), "not stated")


def static_section(path: Path, every: int) -> str:
    """Errors of every ``every``-th batch latency of one table, and of the first-token times and rates of others.

    Each group is of one vintage of software, all of them older than the oldest versions on file.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["id"].startswith(("ARG-", "ARGT-", "TRT-"))]
    argonne: dict[str, list[tuple[float, float]]] = defaultdict(list)
    inside: dict[str, list[bool]] = defaultdict(list)
    kept = [row for row in rows if row["id"].startswith("ARG-") and row["inputs"] in _ENGINES]
    refused = 0
    for row in kept[::every]:
        device = _DEVICES.get(row["hardware"].split("x ", 1)[-1])
        try:
            predicted, band = batch_latency(static_run(row, _ENGINES[row["inputs"]]))
        except (InferplanError, KeyError):
            refused += 1
            continue
        group, measured = f"{device}, {row['inputs']} of {vintage(row)}", float(row["value"])
        argonne[group].append((predicted, measured))
        if band is not None:
            inside[group].append(band[0] * predicted <= measured <= band[1] * predicted)
    others = sum(row["id"].startswith("ARG-") for row in rows) - len(kept)
    prefills: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        pair = _first_token(row)
        if pair is not None:
            prefills[f"{pair[0]}, {vintage(row)}"].append(pair[1])
    return "\n".join(
        [
            "## Static batches, software of 2023 and 2024\n",
            "**Not the error of the model.** Published tables of batches that arrive at once, measured with engines "
            f"older than every version on file ({_oldest()}) and priced as the newest: what an engine has become "
            "faster since is in these figures. Nothing was fitted to these rows. Each line is of one vintage, and they "
            "are not added up. vLLM of August 2025 takes a third of the time of the MI300X rows for the same model and "
            "lengths, and the vLLM rows of H100 are a third off as well.\n",
            "Latency of the batch, simulated (a batch that does not fit is served in turns). The A100 of Argonne's "
            "table is taken as the 40 GB card on file.\n",
            markdown(
                ("Argonne, batch latency", *HEADS, "inside the 80 % band"),
                [
                    [*line, f"{np.mean(inside[line[0]]):.0%}" if inside[line[0]] else "no band"]
                    for line in scored_lines(dict(sorted(argonne.items())))
                ],
            ),
            f"Left out: {others} rows of frameworks that are not modelled, {refused} that cannot be answered.\n",
            markdown(("other published figures", *HEADS), scored_lines(dict(sorted(prefills.items())))),
        ]
    )


def _oldest() -> str:
    """The oldest version on file of each engine of these tables."""
    found = {name: load("engines", name, EngineSpec).versions[0].version for name in ("vllm", "trtllm")}
    return f"vLLM {found['vllm']}, TensorRT-LLM {found['trtllm']}"


def _first_token(row: dict[str, str]) -> tuple[str, tuple[float, float]] | None:
    """Published first-token times, token intervals and throughputs as (table, (predicted, measured)) in one unit."""
    kind, quantity = row["id"].split("-")[0], row["quantity"]
    engine = _ENGINES.get(row["inputs"] or "TensorRT-LLM", "") if kind == "ARGT" else "trtllm"
    wanted = ("batch prefill", "mean token interval", "1st token", "output throughput")
    if kind not in ("ARGT", "TRT") or not engine or not quantity.startswith(wanted) or not row["batch"]:
        return None
    try:
        run = static_run(row, engine)
        deployment, _ = deployment_of(run)
        load = StaticLoad(batch=float(run.batch or 1), prompt=run.prompt, output=run.output)
        estimate = Estimate(deployment=deployment, load=load)
        value = float(row["value"]) * (1e-3 if row["unit"] == "ms" else 1.0)
        if quantity.startswith(("batch prefill", "1st token")):
            return f"{kind} first token", (float(estimate.ttft), value)
        if quantity.startswith("mean token"):
            return f"{kind} token interval", (float(estimate.tpot), value)
        share = run.tp if row["unit"].endswith("GPU") else 1
        return f"{kind} output rate, {row['section']}", (float(estimate.output_rate) / share, value)
    except (InferplanError, KeyError, ValueError):
        return None
