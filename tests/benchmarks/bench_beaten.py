"""Plans that a part of their own space beats: ``python -m tests.benchmarks.bench_beaten [COUNT] [--first N]``.

Questions are drawn from one seed: a model, a workload with its limits, a load, one price list or all. Each is asked as
it is, then of each GPU that is sold and each number format alone. An answer of a part of the space that keeps the same
confidence for less is a mistake of the whole search, and so is a row of its table of other GPUs that the GPU alone
undercuts. One question takes some minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tests.benchmarks.examine_plans import ask

SEED = 20261130
MODELS = (
    *("llama-3.1-8b", "llama-3.1-70b", "llama-3.2-3b", "qwen3-8b", "qwen3-32b", "qwen2.5-72b", "mistral-small-24b"),
    *("gemma-2-27b", "gemma-3-27b", "phi-4", "qwen3-30b-a3b", "gpt-oss-20b", "gpt-oss-120b", "mixtral-8x7b"),
    *("glm-4.5-air", "qwen3-coder-30b-a3b", "llama-3.1-405b", "qwen3-235b-a22b", "granite-4.0-h-small", "qwen3-4b"),
)
WORKLOADS = ("chat", "rag", "code", "summarise", "agent", "support")
LISTS = ("", "", "aws-us-east-1", "runpod-secure")
FORMATS = ("native", "fp8", "int8", "w4a16", "nvfp4")
TOLERANCE = 0.02


class Asked(NamedTuple):
    """A question in words of the command line."""

    model: str
    load: list[str]


def questions(count: int) -> Iterator[Asked]:
    """So many, always the same first ones."""
    draw = np.random.default_rng(SEED)
    for _ in range(count):
        model, workload = str(draw.choice(MODELS)), str(draw.choice(WORKLOADS))
        rate = f"{float(np.exp(draw.uniform(np.log(1.0), np.log(100.0)))):.2g}"
        sold = str(draw.choice(LISTS))
        load = ["--workload", workload, "--rate", rate, "--aggregated"]
        yield Asked(model, [*load, *(["--prices", sold] if sold else [])])


@cache
def sold() -> list[str]:
    """The GPUs on some price list."""
    _, found, _ = ask(["prices"])
    return sorted({row["gpu"] for row in found["prices"]})


def answer(question: Asked, *more: str) -> dict[str, Any]:
    """The answer to a question; empty where there is none."""
    code, found, said = ask(["plan", question.model, *question.load, *more])
    if code not in (0, 2, 3):
        sys.exit(f"plan {question.model} {' '.join((*question.load, *more))} ends with {code}: {said}")
    return found if code == 0 else {}


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two plans are answers of the same certainty."""
    return bool(one["confidence"] == other["confidence"] and bool(one["error_unknown"]) == bool(other["error_unknown"]))


def examined(question: Asked) -> tuple[str, float, list[str]]:
    """What was bought, its cost over the cheapest part of the space, and what is wrong."""
    whole = answer(question)
    parts = {gpu: answer(question, "--gpu", gpu) for gpu in sold()}
    for gpu in [gpu for gpu, found in parts.items() if found and (not whole or alike(found["plan"], whole["plan"]))]:
        for quant in FORMATS:
            parts[f"{gpu} {quant}"] = answer(question, "--gpu", gpu, "--quant", quant)
    if not whole:
        better = [name for name, found in parts.items() if found]
        return "none", 1.0, [f"there is one on {name}" for name in better]
    plan, wrong = whole["plan"], []
    costs = {name: found["plan"]["cost"] for name, found in parts.items() if found and alike(found["plan"], plan)}
    least = min(costs.values(), default=plan["cost"])
    if plan["cost"] > (1 + TOLERANCE) * least:
        wrong.append(f"{min(costs, key=lambda name: costs[name])} costs {least:.2f}")
    for row in (row for row in whole["alternatives"] if row["gpu"] != plan["gpu"]):
        alone = min((cost for name, cost in costs.items() if name.split()[0] == row["gpu"]), default=row["cost"])
        if row["cost"] > (1 + TOLERANCE) * alone:
            wrong.append(f"beside it {row['gpu']} for {row['cost']:.2f}, alone {alone:.2f}")
    return f"{plan['replicas']} x {plan['devices']} {plan['gpu']} {plan['cost']:.2f}", plan["cost"] / least, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    for number, question in list(enumerate(questions(asked.count)))[asked.first :]:
        bought, ratio, wrong = examined(question)
        print(
            f"{number} {question.model} {' '.join(question.load)}: {bought}, {ratio:.3f}", *wrong, sep="; ", flush=True
        )


if __name__ == "__main__":
    main()
