"""Reports of more than one deployment say what their times rest on, and how far off they are known to be."""

from __future__ import annotations

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.reports.known_error import error_notes, error_record
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import Requests
from tests.cli.conftest import Run

H100 = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
IDEAL = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True))
MIG = assemble(Request(model="llama-3.2-1b", gpu="h100-sxm:3g.40gb"))


def test_the_error_is_that_of_a_simulation_of_the_same_replica() -> None:
    two = Requests(prompt=np.array([700, 700]), output=np.array([20, 20]), arrival=np.array([0.0, 9.0]))
    record = simulate(H100, two).to_dict()
    (row,) = error_record({"it": (H100, 700.0)})
    assert (row["name"], row["basis"]) == ("it", "calibrated")
    for name in ("ttft", "tpot"):
        low, high = (record[f"{name}_{end}_s"] / record[f"{name}_s"]["mean"] for end in ("low", "high"))
        assert row[name] == (pytest.approx(low, rel=1e-9), pytest.approx(high, rel=1e-9))
    (line,) = error_notes({"it": (H100, 700.0)})
    assert f"TTFT x {row['ttft'][0]:.2f} to x {row['ttft'][1]:.2f}, TPOT x {row['tpot'][0]:.2f}" in line


def test_nothing_is_claimed_of_what_nobody_measured() -> None:
    """An ideal device, and an instance of a GPU that was only measured whole."""
    served = {"ideal": (IDEAL, 700.0), "part": (MIG, 700.0), "too": (IDEAL, 700.0)}
    lines = error_notes(served, "models together")
    assert [line.split(":")[0] for line in lines[:2]] == ["basis of ideal, too", "basis of part"]
    assert "real ones are longer" in lines[0] and "no error band" in lines[1]
    assert lines[2:] == ["no measurement of models together is on file: how much this adds to the error is not known"]
    assert all(row["ttft"] is row["tpot"] is None for row in error_record(served))


def test_a_table_of_budgets_says_what_it_rests_on(run: Run) -> None:
    words = "plan llama-3.1-8b --gpu h100-sxm --quant native --most 1 --aggregated --rate 1 --prompt 512 --output 20"
    shown = run(*words.split(), "--thinking-tokens", "100", "--thinking-budget", "50,80", "--tpot", "30ms").out
    assert shown.count("basis: h100-sxm constants (calibrated); 80 % of held-out means lie within TPOT x ") == 1
