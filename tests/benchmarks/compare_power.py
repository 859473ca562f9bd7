"""Watts and caps against what was measured; prints the tables of docs/power.md.

``python -m tests.benchmarks.compare_power SERVING_INFERENCEX.csv`` (the table of measured serving runs)

``power_caps.csv``: vLLM on one RTX PRO 6000 Blackwell Workstation under ``nvidia-smi -pl``, 5 minutes each, AWQ weights
in 4 bits, one long prompt and 200 tokens out (github.com/Light-Heart-Labs/MMBT-Messy-Model-Bench-Tests,
hardware-tests/vllm-power-sweep-2026-04-29/findings.md; at 600 W and 32 users the windows that its audit calls steady).
The prompt's length is not stated: 300 tokens here. Qwen3-Coder-Next is taken as Qwen3-Next-80B-A3B.

``power_serving.csv``: vLLM under steady load on H100 and B200, watts of all GPUs (ML.ENERGY leaderboard v3,
github.com/ml-energy/leaderboard, public/data/models at 0cd52dab897c, 2026-02-16). Prompts, whose lengths are not
stated, are left out: answers of GPQA have some 7,000 tokens, those of chats 600.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_hardware
from inferplan.catalog.power import power_cap, power_shares
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import decode_cycle, over_ranks
from inferplan.estimate.roofline import OpCost, ideal_time
from inferplan.units import Array, Num
from inferplan.validation.importers import read_file
from inferplan.validation.run import Pricing, price_rows
from inferplan.validation.score import score
from inferplan.work.parallel import Parallelism

CAPS = Path(__file__).parent / "power_caps.csv"
SERVING = Path(__file__).parent / "power_serving.csv"
PROMPT = 200.0
"""Tokens behind the answers of those rows: a guess that moves their bytes by little."""
LAWS = (0.0, 1.0, 2.0)
MATMULS = np.array([0.377, 0.831, 0.273])
"""The shares of single matmuls (docs/accuracy-scale-out.md)."""


def rate(deployment: Deployment, users: float, watts: float, voltage: float) -> float:
    """Output tokens per second of a batch of ``users`` under a cap, by a law of voltage."""
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


class Drawn(NamedTuple):
    """Serving runs with their watts. use: one, and the shares of their time in which the peaks of arithmetic and of
    memory would have done what a decode step asks; drawn: the share of TDP."""

    models: Array
    gpus: Array
    use: Array
    drawn: Array

    @property
    def shares(self) -> Array:
        """Running, arithmetic and memory: least squares of relative errors."""
        found: Array = least_squares(self.off, (0.4, 2.0, 0.5), bounds=(0.0, np.inf)).x
        return found

    def off(self, shares: Array) -> Array:
        """Relative errors of watts by some shares; none is above TDP."""
        found: Array = np.minimum(self.use @ shares, 1.0) / self.drawn - 1.0
        return found

    def of(self, kept: Array) -> Drawn:
        """Some of them."""
        return Drawn(*(column[kept] for column in self))


def drawn_in_serving() -> Drawn:
    """The rows of ``power_serving.csv``, each with its measured time of a step."""
    rows = list(csv.DictReader(SERVING.open(encoding="utf-8")))
    use, drawn = [], []
    for row in rows:
        parallel = Parallelism(tp=int(row["tp"]), ep=int(row["ep"]))
        deployment = assemble(Request(model=row["model"], gpu=row["gpu"], parallel=parallel))
        step = decode_cycle(deployment, float(row["sequences"]), PROMPT + float(row["output_tokens"]) / 2)
        seconds = float(row["sequences"]) / float(row["tokens_per_s"]) * parallel.ranks
        runs = [over_ranks(step, partial(_peak, deployment, part), "s") for part in ("math", "memory")]
        use.append((1.0, *(float(run) / seconds for run in runs)))
        drawn.append(float(row["watts"]) / deployment.hardware.tdp / parallel.ranks)
    models, gpus = (np.array([row[name] for row in rows]) for name in ("model", "gpu"))
    return Drawn(models, gpus, np.array(use), np.array(drawn))


def _peak(deployment: Deployment, part: str, cost: OpCost) -> Num:
    """Seconds of a kernel's arithmetic or memory traffic at the device's peak."""
    found: Num = getattr(ideal_time(cost.op, cost.work, deployment.hardware), part)
    return found if cost.op.place == "device" else 0.0


def steady() -> None:
    """Shares of TDP fitted to serving runs, and what they are off on models that are left out."""
    found = drawn_in_serving()
    on_file = power_shares(load_hardware("h100-sxm"))
    filed = np.array([on_file.running, on_file.arithmetic, on_file.memory + on_file.moving])
    print("running, arithmetic, memory:", ", ".join(f"{share:.3f}" for share in found.shares))
    left = np.zeros(len(found.drawn))
    for model in np.unique(found.models):
        own = found.models == model
        left[own] = found.of(own).off(found.of(~own).shares)
    for name, kept in [("all", found.drawn > 0), *((gpu, found.gpus == gpu) for gpu in np.unique(found.gpus))]:
        errors = {"on file": found.off(filed), "model left out": left, "of matmuls": found.off(MATMULS)}
        print(
            f"{name}: {np.count_nonzero(kept)} rows;",
            "; ".join(
                f"{kind} {np.mean(np.abs(off[kept])):.1%}, bias {np.mean(off[kept]):+.1%}"
                for kind, off in errors.items()
            ),
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
    steady()
    serving(Path(sys.argv[1]))
