"""The formulas that a plan's report prints are those of docs/planning.md, and give the numbers of the grid."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.planning.demand import Demand
from inferplan.planning.grid import Axes, load_grid
from inferplan.reports.plan_formulas import plan_formulas
from inferplan.traffic.requests import Lengths
from inferplan.work.parallel import Parallelism
from tests.cases import for_each

TEXTS = {formula.text.partition(" = ")[0]: formula.text.partition(" = ")[2] for formula in plan_formulas()}


def test_the_report_prints_what_the_documentation_says() -> None:
    """Written out by hand from docs/planning.md, "Closed form"."""
    assert TEXTS == {
        "t": "((FLOP / peak / math)^s + (bytes / bandwidth / memory)^s)^(1 / s) + overhead",
        "x": "B / (O - 1)",
        "p": "min(max(1 - exp(-x), x * I / (M - B)), 1)",
        "TPOT": "(1 - p) * t_decode(B) + p * t_mixed(B, x*I/p)",
        "X": "B / ((O - 1) * TPOT)",
        "C": "X * (TTFT + (O - 1) * TPOT)",
        "n": "max(ceil(rate / (X * utilisation)), 1)",
        "c": "bill per hour / 3600 / (input tokens/s / 4 + output tokens/s) * 1000000",
    }


def test_batches_in_flight_and_ranks_that_step_together_are_in_the_formula() -> None:
    """Written out by hand from docs/formulas/step.md, "Under load"; a plan's page has the plan's own."""

    def share(model: str, **degrees: int) -> str:
        deployment = assemble(Request(model=model, gpu="h100-sxm", ideal=True, parallel=Parallelism(**degrees)))
        (text,) = [found.text for found in plan_formulas(deployment) if found.title.startswith("Share")]
        return text

    assert share("llama-3.1-8b") == "p = min(max(1 - exp(-x), x * I / (M - B)), 1)"
    assert share("llama-3.1-8b", pp=2) == "p = min(max(1 - exp(-x), x * I / m / (M - B / m)), 1)"
    assert share("llama-3.1-8b", dp=2) == share("llama-3.1-8b")  # nothing is shared: each rank for itself
    assert share("mixtral-8x7b-v0.1", dp=2) == "p = 1 - (1 - min(max(1 - exp(-x), x * I / (M - B)), 1))^g"


def test_prompts_in_steps_of_their_own_are_in_the_formula() -> None:
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", engine="sglang", ideal=True))
    texts = {found.title: found.text for found in plan_formulas(deployment)}
    assert texts["Time per output token"] == "TPOT = t_decode(B) + p * t_prompt(x*I/p)"


@for_each(("batch", "budget"), [(1.0, 8192.0), (16.0, 2048.0), (64.0, 1024.0), (64.0, 8192.0)])
def test_the_printed_formulas_give_the_grid(batch: float, budget: float) -> None:
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True))
    demand = Demand(rate=1.0, prompt=Lengths(kind="fixed", mean=1024), output=Lengths(kind="fixed", mean=257))
    grid = load_grid(deployment, demand, 95.0, Axes(batch=np.array([batch]), budget=np.array([budget])))
    known = {"B": batch, "O": 257.0, "I": 1024.0, "M": budget, "exp": math.exp, "min": min, "max": max}
    known |= {
        "t_decode": lambda B: float(grid.step_decode[0]),
        "t_mixed": lambda B, tokens: float(grid.step_mixed[0, 0]),
    }
    for symbol in ("x", "p", "TPOT", "X"):
        known[symbol] = eval(TEXTS[symbol], {"__builtins__": {}}, known)
    assert float(grid.tpot[0, 0]) == pytest.approx(known["TPOT"], rel=1e-9)
    assert float(grid.rate[0, 0]) == pytest.approx(known["X"], rel=1e-9)


def test_the_documentation_has_the_same_closed_form() -> None:
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
    for line in (
        "max(1 - exp(-x), x I/(M - B))",
        "(1 - p) t_decode(B) + p t_mixed(B, x I/p)",
        "X (TTFT + (O - 1) TPOT)",
    ):
        assert line in page
