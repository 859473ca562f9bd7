"""The first burst of a benchmark takes longer and the others less, with the mean as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferplan.serving.result import SimulationResult
from inferplan.serving.run_figures import uneven
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, Traffic
from tests.cases import for_each
from tests.serving.conftest import deployment


def run(users: int = 4, requests: int = 40, **arrivals: object) -> SimulationResult:
    loop = ClosedLoop(concurrency=users, **arrivals)  # type: ignore[arg-type]
    lengths = Lengths(mean=512.0)
    traffic = Traffic(arrivals=loop, prompt=lengths, output=lengths, requests_count=requests)
    return simulate(deployment(ideal=False), traffic)


def test_a_burst_takes_a_tenth_longer_and_the_others_give_it_by_hand() -> None:
    """20 and 40 ms more of 200 and 400: 60 ms, of which three others give 20 each. Where they have 10 ms of latency
    they give those, and the burst takes half as much."""
    ttft, first = np.array([0.2, 0.4, 0.1, 0.1, 0.1]), np.array([True, True, False, False, False])
    assert uneven(ttft, first, 0.1, 0.05) == pytest.approx([0.02, 0.04, -0.02, -0.02, -0.02])
    assert uneven(ttft, first, 0.1, 0.01) == pytest.approx([0.01, 0.02, -0.01, -0.01, -0.01])
    assert not uneven(ttft, first, 0.1, 0.0).any()


def test_the_first_requests_of_all_users_are_the_burst() -> None:
    """4 of 40 take a twentieth longer; means and TPOT stay, of the first token and of the whole."""
    plain = run()
    late = replace(plain, first_burst=0.05)
    assert late.ttft[:4] == pytest.approx(1.05 * plain.ttft[:4])
    assert late.ttft[4:] - plain.ttft[4:] == pytest.approx(np.full(36, -0.05 * np.sum(plain.ttft[:4]) / 36))
    assert late.e2el - plain.e2el == pytest.approx(late.ttft - plain.ttft)
    assert np.mean(late.ttft) == pytest.approx(np.mean(plain.ttft), rel=1e-12)
    assert np.allclose(late.tpot, plain.tpot, rtol=1e-12)
    assert np.min(replace(plain, first_burst=100.0).ttft) > 0


@for_each("what", ["one user", "nobody comes again", "one after another", "open loop"])
def test_without_a_burst_among_others_nothing_moves(what: str) -> None:
    lengths = Lengths(mean=64.0)
    found = {
        "one user": lambda: run(users=1, requests=10),
        "nobody comes again": lambda: run(users=8, requests=8),
        "one after another": lambda: run(burst=False, ramp=1.0),
        "open loop": lambda: simulate(
            deployment(ideal=False),
            Traffic(arrivals=OpenLoop(rate=5.0), prompt=lengths, output=lengths, requests_count=40),
        ),
    }[what]()
    assert np.array_equal(replace(found, first_burst=0.1).ttft, found.ttft)
