"""Watts and caps against what was measured; prints the tables of docs/power.md.

``python -m tests.benchmarks.compare_power SERVING_INFERENCEX.csv`` (the table of measured serving runs)

``power_caps.csv``: vLLM on one RTX PRO 6000 Blackwell Workstation under ``nvidia-smi -pl``, 5 minutes each, AWQ weights
in 4 bits, one long prompt and 200 tokens out (github.com/Light-Heart-Labs/MMBT-Messy-Model-Bench-Tests,
hardware-tests/vllm-power-sweep-2026-04-29/findings.md; at 600 W and 32 users the windows that its audit calls steady).
The prompt's length is not stated: 300 tokens here. Qwen3-Coder-Next is taken as Qwen3-Next-80B-A3B.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.power import power_cap
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.validation.importers import read_file
from inferplan.validation.run import Pricing, price_rows
from inferplan.validation.score import score

CAPS = Path(__file__).parent / "power_caps.csv"
LAWS = (0.0, 1.0, 2.0)


def rate(deployment: Deployment, users: float, watts: float, voltage: float) -> float:
    """Output tokens a second of a batch of ``users`` under a cap, by a law of voltage."""
    cap = power_cap(deployment.hardware, watts)
    cap = replace(cap, shares=cap.shares.model_copy(update={"voltage": voltage}))
    load = StaticLoad(batch=users, prompt=300.0, output=200.0)
    return float(Estimate(deployment=replace(deployment, cap=cap), load=load).output_rate)


def caps() -> None:
    """Throughput under a cap over that without one: measured, and by each law."""
    measured: dict[tuple[str, str], dict[float, float]] = defaultdict(dict)
    for row in csv.DictReader(CAPS.open(encoding="utf-8")):
        measured[row["model"], row["users"]][float(row["cap_w"])] = float(row["tokens_per_s"])
    errors: dict[tuple[str, float], list[float]] = defaultdict(list)
    for (model, users), rows in measured.items():
        deployment = assemble(Request(model=model, gpu="rtx-pro-6000-ws", quant="w4a16"))
        for watts, tokens in rows.items():
            line = f"{model:20} {users:>2} users {watts:4.0f} W  measured {tokens / rows[600.0]:.3f}"
            for law in LAWS:
                ratio = rate(deployment, float(users), watts, law) / rate(deployment, float(users), 600.0, law)
                line += f"  voltage {law:g}: {ratio:.3f}"
                if watts < 600:
                    errors[model, law].append(ratio / (tokens / rows[600.0]) - 1)
            print(line)
    for (model, law), off in errors.items():
        print(
            f"{model:20} voltage {law:g}: {len(off)} rows, mean {np.mean(np.abs(off)):.1%}, "
            f"worst {np.max(np.abs(off)):.1%}, bias {np.mean(off):+.1%}"
        )


def serving(path: Path) -> None:
    """Mean watts of a GPU in the serving rows that have them, each beside its prediction."""
    rows = [row for row in read_file(path, {})[1] if row.cells["power_w"]]
    found = price_rows(rows, Pricing(processes=1))
    for one in found:
        if one.prediction is not None and ("power", "mean") in one.prediction.figures:
            cells = one.row.cells
            watts = one.prediction.figures["power", "mean"]
            name = f"{cells['gpu']} {cells['weights']} {cells['isl']}/{cells['osl']}, {cells['concurrency']} users"
            print(f"{name:40} measured {float(cells['power_w']):6.0f} W  predicted {watts:6.0f} W")
    for metric in ("power", "energy"):
        of = score(found, metric)
        if of is not None:
            print(f"{metric}: {of.n} rows, mean {of.mape:.1%}, bias {of.bias:+.1%}")


if __name__ == "__main__":
    caps()
    serving(Path(sys.argv[1]))
