"""Throughput over pipeline stages: predicted against published.

``python -m tests.benchmarks.compare_pipeline [pipeline.csv [KV format]]``

The published runs send all requests at once and count output tokens a second of all devices. They do not say in which
format the cache is; NVFP4 checkpoints often ask for fp8. ``steady``: the closed form with every slot and the whole
cache in use; ``simulated``: as many requests as fill the cache several times, all at once, the drain at the end
included.
Behind each prediction: its ratio to the measurement, and that of its speed-up over one stage, in which the error of the
kernels cancels: it is what the pipeline itself is off by.
"""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import numpy as np

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import InferplanError
from inferplan.estimate.deployment import Deployment
from inferplan.serving.simulator import simulate
from inferplan.serving.steady import UserLoad, steady_state
from inferplan.traffic.requests import Requests
from inferplan.work.parallel import Parallelism

MANY = 100_000.0
TOKENS = 6_000_000
"""Prompt and output tokens of a simulated run, about: 3,000 requests of 1,000 and 1,000."""


def deployment(row: dict[str, str], kv: str | None) -> Deployment:
    """The published configuration."""
    request = Request(
        model=row["model"].lower(),
        gpu=row["gpu"],
        quant=row["weights"],
        engine=row["engine"],
        parallel=Parallelism(tp=int(row["tp"]), pp=int(row["pp"])),
        roles=(("kv", kv),) if kv else (),
    )
    return assemble(request)


def predicted(row: dict[str, str], kv: str | None) -> tuple[float, float]:
    """Output tokens a second of all devices, by the closed form and by simulation."""
    served, prompt, output = deployment(row, kv), int(row["isl"]), int(row["osl"])
    load = UserLoad(concurrency=MANY, prompt=float(prompt), output=float(output))
    count = max(TOKENS // (prompt + output), 3000)
    burst = Requests(prompt=np.full(count, prompt), output=np.full(count, output), arrival=np.zeros(count))
    return float(steady_state(served, load).output_rate), simulate(served, burst).output_rate


def table(path: Path, kv: str | None = None) -> list[str]:
    """Lines of a Markdown table."""
    columns = ("model", "GPU", "in, out", "stages", "measured", "steady", "ratio", "scaling", "simulated")
    lines = [f"| {' | '.join((*columns, 'ratio', 'scaling'))} |", "|" + "---|" * (len(columns) + 2)]
    ones: dict[tuple[str, ...], tuple[float, tuple[float, float]]] = {}
    for row in csv.DictReader(path.open(encoding="utf-8")):
        measured = float(row["output_tokens_per_s"])
        what = f"| {row['model']} | {row['gpu']} | {row['isl']}, {row['osl']} | {row['pp']} | {measured:,.0f}"
        try:
            found = predicted(row, kv)
        except InferplanError as error:
            lines.append(f"{what} | {error.what} |")
            continue
        key = tuple(row[name] for name in ("model", "gpu", "weights", "isl", "osl", "tp"))
        if row["pp"] == "1":
            ones[key] = measured, found
        for index, value in enumerate(found):
            scaling = ""
            if key in ones:
                scaling = f"{(value / ones[key][1][index]) / (measured / ones[key][0]):.2f}"
            what += f" | {value:,.0f} | {value / measured:.2f} | {scaling}"
        lines.append(f"{what} |")
    return lines


if __name__ == "__main__":
    shared = Path(os.environ.get("INFERPLAN_SHARED") or Path(__file__).parents[3] / "shared")
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else shared / "measured/published/pipeline.csv"
    print("\n".join(table(chosen, sys.argv[2] if len(sys.argv) > 2 else None)))
