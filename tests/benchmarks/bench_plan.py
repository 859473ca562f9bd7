"""How well plans choose, and how fast: ``python tests/benchmarks/bench_plan.py [serving.csv]``.

Against measured rows: of pairs of configurations of one (model, GPU, engine, lengths), which gives more output tokens a
second and GPU, where the measured figures differ by more than 5 %; and what the best predicted configuration under a
limit loses against the best measured one, at several confidences. Then candidates a second of the closed form, and CPU
seconds of a plan.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from inferplan.catalog.assemble import Request
from inferplan.catalog.price_lists import price_book
from inferplan.estimate.bands import quantile
from inferplan.planning.confidence import MIDDLE, SAFE
from inferplan.planning.demand import Demand
from inferplan.planning.option import Sizing, Stream
from inferplan.planning.plan import plan
from inferplan.planning.question import Question
from inferplan.planning.search import search
from inferplan.planning.space import Space, default_gpus
from inferplan.traffic.requests import Lengths, Slo
from inferplan.validation.importers import read_file
from inferplan.validation.run import price_rows

TPOT_LIMITS = (0.010, 0.015, 0.020, 0.030, 0.040, 0.060, 0.100)
TTFT_LIMITS = (0.3, 0.5, 1.0, 2.0, 5.0)


def rate(users: float, output: float, ttft: float, tpot: float) -> float:
    """Output tokens per second of a closed loop, by Little's law."""
    return users * output / (ttft + (output - 1) * tpot)


def measured_rows(path: Path) -> list[dict[str, float | str]]:
    """Every row that can be priced: its configuration's group, measured and predicted latencies and rates."""
    found = []
    for scored in price_rows(read_file(path, {})[1]):
        run, prediction, measured = scored.row.run, scored.prediction, scored.row.measured
        if run is None or prediction is None or run.concurrency is None or None in (measured.ttft, measured.tpot):
            continue
        if prediction.ttft is None or prediction.tpot is None:
            continue
        output = run.output * (1 + run.ratio_min) / 2
        gpus = run.tp * run.pp
        found.append(
            {
                "group": f"{run.model} {run.gpu} {run.engine} {run.prompt:.0f} {run.output:.0f}",
                "suspect": bool(scored.row.cells.get("suspect", "") or ""),
                "tpot": measured.tpot,
                "ttft": measured.ttft,
                "tpot_predicted": prediction.tpot,
                "ttft_predicted": prediction.ttft,
                "rate": rate(run.concurrency, output, measured.ttft, measured.tpot) / gpus,
                "rate_predicted": rate(run.concurrency, output, prediction.ttft, prediction.tpot) / gpus,
                "speed": 1 / measured.tpot,
                "speed_predicted": 1 / prediction.tpot,
                **{f"{name}_slow": band[1] / getattr(prediction, name) for name, band in prediction.bands.items()},
            }
        )
    return found


def pairs(rows: list[dict], what: str = "rate") -> tuple[int, int]:
    """Pairs ordered rightly, and pairs that differ by more than 5 %."""
    right = whole = 0
    for group in by_group(rows).values():
        for first, second in itertools.combinations(group, 2):
            ratio = first[what] / second[what]
            if abs(np.log(ratio)) <= np.log(1.05):
                continue
            whole += 1
            right += (ratio > 1) == (first[f"{what}_predicted"] > second[f"{what}_predicted"])
    return right, whole


def by_group(rows: list[dict]) -> dict[str, list[dict]]:
    groups: dict[str, list[dict]] = defaultdict(list)
    for row in rows:
        groups[row["group"]].append(row)
    return groups


def late(row: dict, name: str, confidence: float) -> float:
    """The latency that a row stays below at a confidence, as a plan takes it; infinite where its error is not known."""
    slow = row.get(f"{name}_slow")
    if confidence == MIDDLE:
        return row[f"{name}_predicted"]
    return np.inf if slow is None else row[f"{name}_predicted"] * quantile((1 / slow, slow), confidence)


def losses(rows: list[dict], confidence: float = MIDDLE) -> tuple[list[float], int, int]:
    """Loss of each choice that keeps the limits when measured; choices that break them; questions without a choice."""
    lost, broken, none = [], 0, 0
    for group in by_group(rows).values():
        if len(group) < 2:
            continue
        for tpot, ttft in itertools.product(TPOT_LIMITS, TTFT_LIMITS):
            able = [row for row in group if row["tpot"] <= tpot and row["ttft"] <= ttft]
            if not able:
                continue
            chosen = [
                row for row in group if late(row, "tpot", confidence) <= tpot and late(row, "ttft", confidence) <= ttft
            ]
            if not chosen:
                none += 1
                continue
            pick = max(chosen, key=lambda row: row["rate_predicted"])
            best = max(row["rate"] for row in able)
            if pick["tpot"] > tpot or pick["ttft"] > ttft:
                broken += 1
                continue
            lost.append(1 - pick["rate"] / best)
    return lost, broken, none


def speed() -> dict[str, float]:
    """Candidates a second on one core, the best of five searches, and CPU seconds of a plan with its simulations."""
    prices = price_book()
    model = "llama-3.1-70b"
    demand = Demand(prompt=Lengths(mean=1024), output=Lengths(mean=256), rate=50.0)
    slo = Slo(ttft=0.5, tpot=0.04, percentile=95.0)
    space = Space(base=Request(model=model, gpu=""), gpus=default_gpus(prices), quants=(None, "fp8"))
    searched = float("inf")
    for _ in range(5):
        start = time.process_time()
        found = search(space, Stream(demand, slo, Sizing()), prices)
        searched = min(searched, time.process_time() - start)
    start = time.process_time()
    plan(Question(space=space, demand=demand, slo=slo, sizing=Sizing(), prices=prices))
    return {
        "candidates": found.evaluated,
        "candidates_per_s": found.evaluated / searched,
        "search_s": searched,
        "plan_s": time.process_time() - start,
    }


def main(arguments: list[str]) -> None:
    """Print every figure."""
    for name, value in speed().items():
        print(f"{name}: {value:,.3f}")
    default = Path(os.environ.get("INFERPLAN_SHARED") or Path(__file__).parents[3] / "shared") / "measured/serving.csv"
    path = Path(arguments[0]) if arguments else default
    if not path.is_file():
        print(f"no measured rows at {path}")
        return
    rows = measured_rows(path)
    for label, chosen in (("all rows", rows), ("without suspect rows", [r for r in rows if not r["suspect"]])):
        print(f"{label}: {len(chosen)} rows")
        for what in ("rate", "speed"):
            right, whole = pairs(chosen, what)
            print(f"  pairs by {what}: {right}/{whole} = {right / whole:.2%}")
        for confidence in (MIDDLE, 0.8, SAFE, 0.95):
            lost, broken, none = losses(chosen, confidence)
            strict = [*lost, *[1.0] * (broken + none)]
            made = len(lost) + broken
            print(f"  at a confidence of {confidence:g}: {len(lost)} choices keep the limits, {broken} break")
            print(f"    them when measured ({broken / made:.1%} of those made), {none} of {made + none} find none")
            print(f"    loss: median {np.median(lost):.2%}, mean {np.mean(lost):.2%}")
            print(f"    median with the broken and the missing at 100 %: {np.median(strict):.2%}")


if __name__ == "__main__":
    main(sys.argv[1:])
