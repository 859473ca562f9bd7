"""Limits that an idle replica barely keeps."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import Run

ASKED = "llama-3.1-8b --gpu l40s --quant fp8 --prompt 4000 --output 200 --tpot 50ms"
PLAN = f"plan {ASKED} --rate 20 --aggregated --tp 1 --pp 1 --confidence 0.5"


def test_a_limit_near_an_idle_gpu_is_said_with_its_cost(run: Run) -> None:
    """What a request alone takes is that of the simulator, to whom one request comes; the plan with twice the limit is
    the one that the option named asks for."""
    alone = run("simulate", *ASKED.split()[:-2], "--in-flight", "1", "--requests", "3", "--format", "json").json
    shown = run(*PLAN.split(), "--ttft", "350ms").out
    said = re.search(r"near what an idle replica takes, (\d+) ms of 350 ms .* (--ttft 700ms) a plan is (\d+) x", shown)
    assert said is not None
    assert int(said[1]) == pytest.approx(1e3 * alone["ttft_s"]["mean"], rel=0.03)
    looser = run(*PLAN.split(), *said[2].split(), "--format", "json").json["plan"]
    assert int(said[3]) == looser["devices"]
    assert "idle replica" not in run(*PLAN.split(), "--ttft", "1s").out


def test_a_day_says_what_a_looser_limit_is_worth(run: Run) -> None:
    """A replica under each limit, in a day of its own."""
    day = f"day {ASKED} --profile 00:00=0.05 --policy static --confidence 0.5"
    carried = {}
    for limit in ("350ms", "700ms"):
        shown = run(*day.split(), "--ttft", limit).out
        rate = re.search(r"a replica carries ([\d.]+) requests/s", shown)
        assert rate is not None
        carried[limit] = float(rate[1]), shown
    said = re.search(r"with --ttft 700ms a replica carries ([\d.]+) times as much", carried["350ms"][1])
    assert said is not None and float(said[1]) == pytest.approx(carried["700ms"][0] / carried["350ms"][0], rel=0.1)
