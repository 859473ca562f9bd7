"""Exact queues: M/D/1 by Pollaczek-Khinchine, DistServe's forms, Little's law on every run."""

from __future__ import annotations

import csv
import re
from decimal import Decimal, localcontext
from math import factorial, floor, log
from pathlib import Path

import numpy as np
import pytest

from inferplan.errors import UsageError
from inferplan.serving.flags import Flags
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.queueing import (
    mean_wait,
    mean_wait_of_lengths,
    tail_wait,
    ttft_pipelined,
    ttft_single,
    ttft_tensor_parallel,
)
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, Traffic
from tests.cases import for_each
from tests.serving.conftest import deployment


@for_each("load", [0.3, 0.6, 0.8])
@for_each(("prompt", "output"), [(2048, 1), (512, 64)])
def test_one_slot_and_poisson_arrivals_are_m_d_1(load: float, prompt: int, output: int) -> None:
    served = deployment()
    fixed = {"prompt": Lengths(mean=prompt), "output": Lengths(mean=output)}
    alone = simulate(served, Traffic(arrivals=ClosedLoop(concurrency=1), requests_count=1, **fixed))
    service = float(alone.e2el[0])
    traffic = Traffic(arrivals=OpenLoop(rate=load / service), requests_count=20000, seed=7, **fixed)
    run = simulate(served, traffic, Flags(max_num_seqs=1))
    expected = float(mean_wait(service, load))
    waits = run.ttft - alone.ttft[0]
    batches = np.array([part.mean() for part in np.array_split(waits, 40)])  # waits are correlated: batch means
    error = float(batches.std(ddof=1) / np.sqrt(len(batches)))
    assert abs(float(waits.mean()) - expected) < 4 * error + 1e-9
    assert float(waits.mean()) == pytest.approx(expected, rel=0.1)
    if output == 1:
        assert float(run.ttft.mean()) == pytest.approx(ttft_single(load / service, service), rel=0.1)


def test_distserve_forms(shared: Path) -> None:
    checked = 0
    with (shared / "reference" / "truths.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            inputs = re.match(r"D=([\d.]+) s R=(\d+)/s", row["inputs"])
            if not row["id"].startswith("QUE-") or not inputs:
                continue
            service, rate = float(inputs[1]), float(inputs[2])
            form = {
                "Avg TTFT single": ttft_single,
                "inter": ttft_pipelined,
                "intra(K=1.6)": lambda r, d: ttft_tensor_parallel(r, d, 1.6),
            }[row["quantity"]]
            assert form(rate, service) == pytest.approx(float(row["value"]), abs=5e-7)
            checked += 1
    assert checked == 9


def test_distserve_single_form_by_hand() -> None:
    assert ttft_single(2.0, 0.1) == pytest.approx(0.1125)
    assert ttft_pipelined(2.0, 0.1) == pytest.approx(0.102778, abs=1e-6)
    assert ttft_tensor_parallel(2.0, 0.1, 1.6) == pytest.approx(0.066964, abs=1e-6)
    with pytest.raises(UsageError, match="no steady state"):
        ttft_single(10.0, 0.1)


def share_that_waits_longer(services: float, load: float) -> float:
    """M/D/1, exact (Erlang, 1909): ``1 - (1 - rho) sum_k (-rho (t - k))^k / k! e^(rho (t - k))``, t in service times.

    The terms alternate and grow, so they are summed with 200 digits.
    """
    with localcontext() as context:
        context.prec = 200
        t, rho = Decimal(services), Decimal(load)
        terms = ((-rho * (t - k)) ** k / factorial(k) * (rho * (t - k)).exp() for k in range(floor(services) + 1))
        return float(1 - (1 - rho) * sum(terms))


def exact_wait(load: float, share: float) -> float:
    """Service times that a share of the customers waits longer than, by bisection of Erlang's distribution."""
    low, high = 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if share_that_waits_longer(middle, load) > share else (low, middle)
    return low


@for_each("load", [0.2, 0.5, 0.8, 0.9, 0.95])
def test_the_tail_is_close_to_the_exact_distribution_and_above_it(load: float) -> None:
    exact = exact_wait(load, 0.05)
    assert exact <= float(tail_wait(1.0, load, 0.05)) <= exact + 1 / 3


def test_waits_by_hand() -> None:
    assert float(mean_wait(0.1, 0.8)) == pytest.approx(0.8 * 0.1 / 0.4)
    assert float(tail_wait(0.1, 0.8, 0.05)) == pytest.approx(0.1 / 0.4 * log(16))
    assert float(tail_wait(0.1, 0.03, 0.05)) == 0  # 3 % of the arrivals wait at all
    # half the services take nothing: E[S^2] = 0.02, load 0.5
    assert mean_wait_of_lengths(5.0, [0.0, 0.2]) == pytest.approx(5 * 0.02 / (2 * 0.5))
    both = tail_wait(np.array([0.1, 0.2]), np.array([0.8, 0.5]), 0.05)
    assert both == pytest.approx([0.25 * log(16), 0.2 * log(10)])


@for_each("engine", ["vllm", "sglang", "trtllm"])
def test_littles_law_holds_on_every_run(engine: str) -> None:
    served = deployment(engine=engine)
    for arrivals in (ClosedLoop(concurrency=16), OpenLoop(rate=8.0)):
        traffic = Traffic(
            arrivals=arrivals,
            prompt=Lengths(kind="lognormal", mean=900, spread=0.7),
            output=Lengths(kind="gamma", mean=150, spread=0.6),
            requests_count=300,
        )
        run = simulate(served, traffic)
        assert run.in_system == pytest.approx(run.request_rate * float(run.e2el.mean()), rel=1e-9)
