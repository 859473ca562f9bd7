"""Throughput over pipeline stages: predicted against published.

``python -m tests.benchmarks.compare_pipeline [pipeline.csv]``

The published runs send all requests at once and count output tokens per second of all devices; so does the simulation,
with three times the requests that fit at once. The KV cache is fp8, as in the checkpoint that was served (NVIDIA's
Llama-3.3-70B-Instruct-FP4, ``kv_cache_quant_algo: FP8``); the page does not print it. Column ``scaling`` is the
speed-up over one stage, in which the error of the kernels cancels: it is what the pipeline itself is off by.
"""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import InferplanError
from inferplan.serving.simulator import simulate
from inferplan.serving.steady import UserLoad, steady_state
from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic
from inferplan.work.parallel import Parallelism

WAVES = 3
"""Requests sent, in multiples of those that fit at once."""


def predicted(row: dict[str, str]) -> float:
    """Output tokens per second of all devices when all requests are sent at once."""
    parallel = Parallelism(tp=int(row["tp"]), pp=int(row["pp"]))
    wanted = {"model": row["model"].lower(), "gpu": row["gpu"], "quant": row["weights"], "engine": row["engine"]}
    deployment = assemble(Request(**wanted, roles=(("kv", "fp8"),), parallel=parallel))
    prompt, output = int(row["isl"]), int(row["osl"])
    at_once = float(steady_state(deployment, UserLoad(concurrency=1e6, prompt=prompt, output=output)).admissible)
    count = int(WAVES * at_once)
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=count),
        prompt=Lengths(mean=prompt),
        output=Lengths(mean=output),
        requests_count=count,
    )
    found = simulate(deployment, traffic)
    return count * output / found.end


def table(path: Path) -> list[str]:
    """Lines of a Markdown table: each row's ratio to the measurement, and that of its speed-up over one stage."""
    lines = ["| model | GPU | in, out | stages | measured | predicted | ratio | scaling |", "|" + "---|" * 8]
    ones: dict[tuple[str, ...], tuple[float, float]] = {}
    for row in csv.DictReader(path.open(encoding="utf-8")):
        measured = float(row["output_tokens_per_s"])
        try:
            found = predicted(row)
        except InferplanError as error:
            lines.append(f"| {row['model']} | {row['gpu']} | {row['isl']}, {row['osl']} | {row['pp']} | {error.what} |")
            continue
        key = tuple(row[name] for name in ("model", "gpu", "weights", "isl", "osl", "tp"))
        if row["pp"] == "1":
            ones[key] = measured, found
        scaling = ""
        if key in ones:
            scaling = f"{(found / ones[key][1]) / (measured / ones[key][0]):.2f}"
        lines.append(
            f"| {row['model']} | {row['gpu']} | {row['isl']}, {row['osl']} | {row['pp']} | {measured:,.0f} "
            f"| {found:,.0f} | {found / measured:.2f} | {scaling} |"
        )
    return lines


if __name__ == "__main__":
    shared = Path(os.environ.get("INFERPLAN_SHARED") or Path(__file__).parents[3] / "shared")
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else shared / "measured/published/pipeline.csv"
    print("\n".join(table(chosen)))
