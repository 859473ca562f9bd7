"""Watts of a loaded and of a busy device, and throughput under caps."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path

from inferplan.answers.energy import StaticEnergy
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import config_root, load_hardware
from inferplan.catalog.power import power_cap, power_shares, standing_watts
from inferplan.errors import InferplanError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.draw import step_joules
from inferplan.estimate.load import StaticLoad
from inferplan.work.parallel import Parallelism
from tools.accuracy.parts.rows import Part, PartRow, published

DEVICES = {"H100": "h100-sxm", "B200": "b200-hgx", "H200 SXM 141GB": "h200-sxm", "B200 SXM 180GB": "b200-hgx"}
FORMATS = {"bfloat16": "native", "fp8": "native", "mxfp4": "native"}
PROMPT = 200.0
"""Tokens behind the answers of those rows: a guess that moves their bytes by little."""


def power_part(shared: Path) -> Part:
    """Loaded devices, and devices in steady load."""
    rows = [*_standing(shared), *_steady(shared), *_peaks(shared)]
    return Part(name="Power, loaded and busy", rows=rows)


def _standing(shared: Path) -> list[PartRow]:
    """115 W of sglang 3196, which the share is from, and what another calls idle."""
    watts = standing_watts(load_hardware("h200-sxm"))
    other = next(row for row in published(shared, "power") if row["quantity"] == "idle_power")
    told = "H200, idle; whether a model is loaded is not told"
    return [
        PartRow(
            source="sglang 3196",
            case="H200, DeepSeek-V3 loaded",
            measured=115.0,
            predicted=watts,
            unit="W",
            fitted=True,
        ),
        PartRow(source="serialalice.pt", case=told, measured=float(other["value"]), predicted=watts, unit="W"),
    ]


def _steady(shared: Path) -> list[PartRow]:
    found = []
    told = ("source", "model", "format", "gpu", "num_gpus", "tp", "ep", "dp", "max_num_seqs")
    rows = published(shared, "power_mlenergy")
    rates = {tuple(row[key] for key in told): row for row in rows if row["quantity"] == "output_throughput"}
    for row in rows:
        if row["quantity"] != "mean_power_all_gpus" or row["dp"] != "1":
            continue
        if int(row["tp"]) % int(row["ep"]):
            continue  # groups of experts over attention ranks
        parallel = Parallelism(tp=int(row["tp"]), ep=int(row["ep"]))
        name = row["model"].partition("/")[2].lower().removesuffix("-it").removesuffix("-instruct")
        load = StaticLoad(
            batch=float(row["mean_batch"]), prompt=PROMPT, output=max(float(row["mean_output_tokens"]), 2.0)
        )
        step = float(load.batch) / float(rates[tuple(row[key] for key in told)]["value"])
        watts = _watts_of_steps(_deployed(name, DEVICES[row["gpu"]], parallel), load, step)
        if watts is not None:
            many = f"{row['num_gpus']} x {row['gpu']}, {row['workload']}, {float(row['mean_batch']):.0f} sequences"
            case = f"{row['model'].partition('/')[2]}, {many}"
            measured = float(row["value"]) / float(row["num_gpus"])
            found.append(
                PartRow(
                    source="ML.ENERGY", case=case, measured=measured, predicted=watts, unit="W per GPU", fitted=True
                )
            )
    return found


def _peaks(shared: Path) -> list[PartRow]:
    found = []
    for row in published(shared, "power"):
        if row["quantity"] == "peak_power_all_gpus":
            watts = _watts("gpt-oss-120b", "h100-sxm", Parallelism(tp=8), float(row["max_num_seqs"]), 1024.0, 1024.0)
            assert watts is not None
            case = f"gpt-oss-120b, 8 x H100, {row['max_num_seqs']} users, peak of the run"
            measured = float(row["value"]) / 8
            found.append(
                PartRow(source="InferenceX 828", case=case, measured=measured, predicted=watts, unit="W per GPU")
            )
        if row["quantity"] == "mean_power" and row["model"].startswith("Phi-3-mini"):
            watts = _watts("phi-3-mini-4k", DEVICES[row["gpu"]], Parallelism(), float(row["max_num_seqs"]), 256.0)
            assert watts is not None
            case = f"{row['model']}, {row['gpu']}, batch {row['max_num_seqs']}"
            found.append(
                PartRow(source="serialalice.pt", case=case, measured=float(row["value"]), predicted=watts, unit="W")
            )
    return found


@cache
def _deployed(model: str, gpu: str, parallel: Parallelism) -> Deployment | None:
    try:
        return assemble(Request(model=model, gpu=gpu, parallel=parallel, engine="vllm"))
    except InferplanError:  # not on file, or not in such a division
        return None


def _watts(
    model: str, gpu: str, parallel: Parallelism, batch: float, output: float, prompt: float = PROMPT
) -> float | None:
    """Mean watts of a device in the decode steps of a batch."""
    deployment = _deployed(model, gpu, parallel)
    if deployment is None:
        return None
    load = StaticLoad(batch=batch, prompt=prompt, output=max(output, 2.0))
    decode = StaticEnergy(estimate=Estimate(deployment=deployment, load=load)).decode
    return None if decode is None else decode.watts


def _watts_of_steps(deployment: Deployment | None, load: StaticLoad, step: float) -> float | None:
    """Mean watts of a device in decode steps of so many seconds: as they were measured, so that the error of the
    predicted ones is left out."""
    if deployment is None:
        return None
    decode = Estimate(deployment=deployment, load=load).decode
    on, worked = step_joules(decode, power_shares(deployment.hardware), step)
    return (float(on) + float(worked)) / step / deployment.parallel.ranks


def caps_part(shared: Path) -> Part:
    """Rows of ``power_caps.csv``."""
    rows: dict[tuple[str, float], dict[float, float]] = defaultdict(dict)
    with (config_root().parent / "tests" / "benchmarks" / "power_caps.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows[row["model"], float(row["users"])][float(row["cap_w"])] = float(row["tokens_per_s"])
    found = []
    for (model, users), by_cap in rows.items():
        deployment = assemble(Request(model=model, gpu="rtx-pro-6000-ws", quant="w4a16"))
        load = StaticLoad(batch=users, prompt=300.0, output=200.0)
        rates = {
            watts: float(
                Estimate(
                    deployment=replace(deployment, cap=power_cap(deployment.hardware, watts)), load=load
                ).output_rate
            )
            for watts in by_cap
        }
        for watts, rate in by_cap.items():
            if watts < 600:
                found.append(
                    PartRow(
                        source="MMBT",
                        case=f"{model}, {users:.0f} users, {watts:.0f} W over 600 W",
                        measured=rate / by_cap[600.0],
                        predicted=rates[watts] / rates[600.0],
                        unit="throughput",
                        fitted=model.startswith("qwen3.6"),
                    )
                )
    return Part(name="Power, caps", rows=found)
