"""The first burst of a benchmark takes longer and the others less, with the mean as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import simulate
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, Traffic
from tests.cases import for_each
from tests.serving.conftest import deployment


def run(users: int = 4, requests: int = 40, **arrivals: object) -> SimulationResult:
    loop = ClosedLoop(concurrency=users, **arrivals)  # type: ignore[arg-type]
    lengths = Lengths(mean=512.0)
    traffic = Traffic(arrivals=loop, prompt=lengths, output=lengths, requests_count=requests)
    return simulate(deployment(ideal=False), traffic)


def test_a_tenth_of_the_requests_takes_longer_and_nine_tenths_a_ninth_of_it_less() -> None:
    """4 of 40: 45 ms more, and 45/9 = 5 ms less."""
    plain = run()
    uneven = replace(plain, first_burst=0.045)
    moved = np.sort(np.round(1e3 * (uneven.ttft - plain.ttft), 6))
    assert plain.conditions["latency_s"] > 0.005
    assert moved.tolist() == pytest.approx([-5.0] * 36 + [45.0] * 4)
    assert np.mean(uneven.ttft) == pytest.approx(np.mean(plain.ttft), rel=1e-12)
    assert np.mean(uneven.e2el) == pytest.approx(np.mean(plain.e2el), rel=1e-12)
    assert np.allclose(uneven.tpot, plain.tpot, rtol=1e-12)
    assert np.flatnonzero(uneven.ttft > plain.ttft).tolist() == [0, 1, 2, 3]


def test_the_others_give_no_more_than_their_latency() -> None:
    """A second of a burst of 4 among 40 would take 111 ms of each of the others, of which their latency is 18: they
    give all of that, and the burst takes nine times as much."""
    plain = run()
    uneven, latency = replace(plain, first_burst=1.0), plain.conditions["latency_s"]
    moved = uneven.ttft - plain.ttft
    assert np.min(moved) == pytest.approx(-latency) and np.max(moved) == pytest.approx(9 * latency)
    assert np.min(uneven.ttft) > 0


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
