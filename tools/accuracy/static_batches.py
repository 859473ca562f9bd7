"""Published tables of batches that arrive at once."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

from inferplan.errors import InferplanError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.load import Band, StaticLoad
from inferplan.models.layers.attention import AttentionLayer
from inferplan.models.spec import ModelSpec
from inferplan.serving.simulator import simulate
from inferplan.validation.deploy import deployment_of
from inferplan.validation.rows import Run
from tools.accuracy.scores import HEADS, markdown, scored_lines
from tools.fitting.published.batches import DEVICES, ENGINES, batch_traffic, static_run

_VINTAGES = (("(4211f5d)", "mid-2024"), ("v0.5)", "TensorRT-LLM 0.5, 2023"), ("v0.6.1)", "TensorRT-LLM 0.6, 2023"))
"""Ends of the sources of published tables, and the software that they measured: Argonne's results are of mid-2024."""
HOST_FITTED = ("a100-40gb-pcie", "h100-sxm", "gh200-96gb")
"""Whose rows of vLLM its host before 0.8 is fitted to (tools.fitting.published.host)."""
_EACH = ("A100-80GB SXM",)
"""Where a table of rates says devices and means each: 70B on four is a quarter of what version 0.17 reaches."""
_BEFORE = ", grouped heads before 0.8"
"""Versions 0.5 and 0.6.1 read a cache of grouped heads once for each query head: the kernels of 0.8 put 1.9 to 2.4
times as much of Llama-70B through (TensorRT-LLM docs/source/blogs/XQA-kernel.md)."""


def _grouped(model: ModelSpec) -> bool:
    """Whether some layer has several query heads to a head of its cache."""
    mixers = (part for layer in model.sequence for part in layer.parts if isinstance(part, AttentionLayer))
    return any(mixer.kv_heads < mixer.heads for mixer in mixers)


def batch_latency(run: Run) -> tuple[float, Band | None]:
    """Seconds until a batch that arrives at once is finished, and the 80 % band of that as factors."""
    deployment, _ = deployment_of(run)
    found = simulate(deployment, batch_traffic(run))
    return (float(found.duration) if len(found.e2el) == run.batch else float("nan")), found.band("e2el")


def vintage(row: dict[str, str]) -> str:
    """The software that a row of a published table was measured with."""
    source = row.get("source") or ""
    return next((software for end, software in _VINTAGES if source.endswith(end)), "not stated")


def static_section(path: Path, every: int) -> str:
    """Errors of every ``every``-th batch latency of one table, and of the first-token times and rates of others.

    Each group is of one vintage of software.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["id"].startswith(("ARG-", "ARGT-", "TRT-"))]
    argonne: dict[str, list[tuple[float, float]]] = defaultdict(list)
    inside: dict[str, list[bool]] = defaultdict(list)
    kept = [row for row in rows if row["id"].startswith("ARG-") and row["inputs"] in ENGINES]
    refused = 0
    for row in kept[::every]:
        device = DEVICES.get(row["hardware"].split("x ", 1)[-1])
        try:
            predicted, band = batch_latency(static_run(row, ENGINES[row["inputs"]]))
        except (InferplanError, KeyError):
            refused += 1
            continue
        group, measured = f"{device}, {row['inputs']} of {vintage(row)}", float(row["value"])
        if row["inputs"] == "vLLM" and device in HOST_FITTED:
            group += " (host in sample)"
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
            "Published tables of batches that arrive at once, priced as the oldest versions on file: `vllm@0.5`, whose "
            "host was fitted to Argonne's rows on NVIDIA's GPUs (on a GPU left out it is 5 to 13 % off: "
            "[calibration](calibration.md#the-host-of-a-step)), and `trtllm@0.17`, to which nothing here was fitted. "
            "**Not the error of the model**: kernels are those of today, and what they have become faster since is in "
            "these figures, on MI300X most of all. Each line has one vintage, and they are not added up.\n",
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


def _first_token(row: dict[str, str]) -> tuple[str, tuple[float, float]] | None:
    """Published first-token times, token intervals and throughputs as (table, (predicted, measured)) in one unit."""
    kind, quantity = row["id"].split("-")[0], row["quantity"]
    engine = ENGINES.get(row["inputs"] or "TensorRT-LLM", "") if kind == "ARGT" else "trtllm"
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
        share = run.tp if row["unit"].endswith("GPU") or row["hardware"] in _EACH else 1
        before = _BEFORE if kind == "TRT" and _grouped(deployment.model) else ""
        return f"{kind} output rate, {row['section']}{before}", (float(estimate.output_rate) / share, value)
    except (InferplanError, KeyError, ValueError):
        return None
