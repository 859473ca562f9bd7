"""Distributions and arrivals have the moments they claim; workload files load."""

from __future__ import annotations

import numpy as np
import pytest

from inferplan.catalog.files import names
from inferplan.catalog.workloads import load_workload
from inferplan.errors import UsageError
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, SharedPrefix, Slo, Traffic, parse_lengths


@pytest.mark.parametrize(
    "text", ["1000", "uniform:1000:0.8", "normal:1000:0.2", "lognormal:1000:0.9", "gamma:1000:0.5"]
)
def test_lengths_have_their_mean_and_spread(text: str) -> None:
    lengths = parse_lengths(text)
    draws = lengths.sample(np.random.default_rng(0), 200_000)
    assert draws.min() >= 1
    assert draws.mean() == pytest.approx(lengths.average, rel=0.01)
    if lengths.kind in ("normal", "lognormal", "gamma"):
        assert draws.std() / draws.mean() == pytest.approx(lengths.spread, rel=0.03)
    if lengths.kind == "uniform":
        assert (draws.min(), draws.max()) == (800, 1000)


def test_empirical_lengths_are_those_given() -> None:
    lengths = Lengths(kind="empirical", values=(3, 5, 7))
    assert set(lengths.sample(np.random.default_rng(0), 1000)) == {3, 5, 7}


@pytest.mark.parametrize(
    ("kind", "burstiness", "variation"), [("poisson", 1.0, 1.0), ("gamma", 0.25, 2.0), ("constant", 1.0, 0.0)]
)
def test_arrivals_have_their_rate_and_variation(kind: str, burstiness: float, variation: float) -> None:
    arrivals = OpenLoop(rate=5.0, kind=kind, burstiness=burstiness)  # type: ignore[arg-type]
    gaps = np.diff(arrivals.sample(np.random.default_rng(0), 100_000))
    assert gaps.mean() == pytest.approx(0.2, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.02, abs=1e-6)


def test_ten_requests_a_user_unless_told() -> None:
    traffic = Traffic(arrivals=ClosedLoop(concurrency=12), prompt=Lengths(mean=10), output=Lengths(mean=10))
    assert traffic.count == 120


def test_conversations_of_an_open_loop_come_in_order() -> None:
    traffic = Traffic(
        arrivals=OpenLoop(rate=3.0),
        prompt=Lengths(mean=100),
        output=Lengths(mean=50),
        requests_count=30,
        prefix=SharedPrefix(turns=3, gap=5.0, tokens=64, distinct=2),
    )
    requests = traffic.requests(16)
    assert requests.arrival is not None and requests.hashes is not None
    assert np.all(np.diff(requests.arrival) >= 0)
    assert sorted(set(requests.prompt)) == [164, 314, 464]
    assert len({names[0] for names in requests.hashes}) == 2


@pytest.mark.parametrize("text", ["", "-5", "0", "many", "lognormal:1000", "uniform:1000:2"])
def test_bad_lengths_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_lengths(text)


def test_bad_loads_are_refused() -> None:
    for broken in (lambda: OpenLoop(rate=-1.0), lambda: ClosedLoop(concurrency=0), lambda: Slo(ttft=-1.0)):
        with pytest.raises(UsageError):
            broken()


@pytest.mark.parametrize("name", names("workloads"))
def test_workload_files_load(name: str) -> None:
    workload = load_workload(name)
    assert workload.name == name and workload.source
    for text in (workload.prompt, workload.output):
        if text:
            parse_lengths(text)
    if name.startswith("mlperf"):
        assert workload.limits().percentile == 99


def test_mlperf_limits() -> None:
    limits = load_workload("mlperf-llama2-70b-interactive").limits()  # loadgen/mlperf.conf: 450 and 40 ms
    assert (limits.ttft, limits.tpot) == (0.45, 0.04)
