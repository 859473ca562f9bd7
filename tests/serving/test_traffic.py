"""Distributions and arrivals have the moments they claim; workload files load."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferplan.catalog.files import names
from inferplan.catalog.workloads import load_workload
from inferplan.errors import UsageError
from inferplan.traffic.conversations import ThinkTime, parse_think_time
from inferplan.traffic.requests import (
    ClosedLoop,
    LengthKind,
    Lengths,
    OpenLoop,
    SharedPrefix,
    Slo,
    Traffic,
    arrivals_of,
    parse_lengths,
)
from tests.cases import for_each


@for_each("text", ["1000", "uniform:1000:0.8", "normal:1000:0.2", "lognormal:1000:0.9", "gamma:1000:0.5"])
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


@for_each(("kind", "burstiness", "variation"), [("poisson", 1.0, 1.0), ("gamma", 0.25, 2.0), ("constant", 1.0, 0.0)])
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
        prefix=SharedPrefix(turns=3, think=ThinkTime(mean=5.0), tokens=64, distinct=2),
    )
    requests = traffic.requests(16)
    assert requests.arrival is not None and requests.hashes is not None and requests.follows is not None
    first = requests.follows < 0
    assert first.sum() == 10 and np.all(np.diff(requests.arrival[first]) >= 0)
    assert np.all(np.isnan(requests.arrival[~first]))  # known only once there is an answer
    assert list(requests.prompt[first]) == [164] * 10
    for index in np.flatnonzero(~first):
        before = requests.follows[index]
        assert before < index and requests.prompt[index] == requests.prompt[before] + 150
        known = requests.hashes[before]  # of the prompt and of the answer but its last token
        assert len(known) == (requests.prompt[before] + 50 - 1) // 16
        assert requests.hashes[index][: len(known)] == known
    assert len({names[0] for names in requests.hashes}) == 2
    assert len({names[4] for names in requests.hashes}) == 10  # beyond the 64 tokens that a text has, of one's own


def test_samples_are_conversations_that_begin_alike() -> None:
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=4),
        prompt=Lengths(mean=100),
        output=Lengths(mean=60),
        requests_count=6,
        prefix=SharedPrefix(turns=3),
        samples=2,
    )
    requests = traffic.requests(16)
    assert requests.hashes is not None and requests.follows is not None
    assert len(requests) == 12
    assert [int(before) for before in requests.follows] == [-1, -1, -1, -1, 0, 1, 2, 3, 4, 5, 6, 7]
    for one in (0, 2):  # two samples of a prompt: its six full blocks are the same, the answers are not
        mine, other = requests.hashes[one], requests.hashes[one + 1]
        assert mine[:6] == other[:6] and not set(mine[6:]) & set(other[6:])
    for index, before in enumerate(requests.follows):
        if before >= 0:
            assert requests.hashes[index][:9] == requests.hashes[before][:9]


def test_a_closed_loop_is_ten_conversations_of_each_user() -> None:
    fixed = {"prompt": Lengths(mean=100), "output": Lengths(mean=10)}
    talks = Traffic(arrivals=ClosedLoop(concurrency=3), prefix=SharedPrefix(turns=4), **fixed)  # type: ignore[arg-type]
    requests = talks.requests()
    assert len(requests) == 10 * 3 * 4 and requests.turns == 4
    assert int(np.max(requests.prompt)) == 4 * 100 + 3 * 10  # the last turns are among them
    assert requests.head(3).turns == 1 and requests.head(8).turns == 3  # six requests are two turns
    assert replace(talks, prefix=SharedPrefix()).count == 30


def test_think_times() -> None:
    rng = np.random.default_rng(1)
    assert parse_think_time("30s") == ThinkTime(mean=30.0)
    drawn = parse_think_time("exponential:2min").sample(rng, 100_000)
    assert drawn.mean() == pytest.approx(120, rel=0.02) and drawn.std() == pytest.approx(120, rel=0.02)
    drawn = parse_think_time("lognormal:10s:0.5").sample(rng, 100_000)
    assert drawn.mean() == pytest.approx(10, rel=0.02) and drawn.std() == pytest.approx(5, rel=0.02)
    for broken in ("", "-3s", "lognormal:3s", "weibull:3s", "exponential:3s:2", "3 tokens"):
        with pytest.raises(UsageError):
            parse_think_time(broken)
    traffic = Traffic(
        arrivals=OpenLoop(rate=1.0),
        prompt=Lengths(mean=10),
        output=Lengths(mean=10),
        prefix=SharedPrefix(think=ThinkTime(mean=1.0)),
    )
    with pytest.raises(UsageError, match="answers"):
        traffic.requests()


@for_each("kind, spread", [("normal", 0.3), ("lognormal", 1.3), ("gamma", 1.3), ("gamma", 0.2)])
@for_each("most", [1000, 1500, 12000])
def test_lengths_that_are_cut(kind: LengthKind, spread: float, most: int) -> None:
    """Nothing is longer, and mean and variance are those of the cut draws."""
    lengths = Lengths(kind=kind, mean=1000, spread=spread, most=most)
    drawn = np.random.default_rng(7)
    sample = lengths.sample(drawn, 400_000)
    assert sample.max() <= most
    assert lengths.average == pytest.approx(sample.mean(), rel=0.01)
    assert lengths.variance == pytest.approx(sample.var(), rel=0.03)


def test_a_cut_by_hand() -> None:
    """Exponential (a gamma of spread 1) of mean 1000 cut to 1000: the mean is 1000 (1 - 1/e)."""
    cut = parse_lengths("gamma:1000:1:1000")
    assert cut == Lengths(kind="gamma", mean=1000, spread=1.0, most=1000)
    assert cut.average == pytest.approx(1000 * (1 - np.exp(-1)))
    assert cut.variance + cut.average**2 == pytest.approx(1e6 * (2 - 4 * np.exp(-1)))  # E[min(X, m)^2]
    assert parse_lengths("lognormal:8k:1.3:120Ki").most == 122_880
    for broken in ("uniform:1000:0.5:2000", "lognormal:1000:0.5:500", "lognormal:1000:0.5:x"):
        with pytest.raises(UsageError):
            parse_lengths(broken)


def test_a_burstiness_asks_for_gamma_arrivals() -> None:
    assert arrivals_of(None, None) == ("poisson", 1.0)
    assert arrivals_of(None, 0.25) == arrivals_of("gamma", 0.25) == ("gamma", 0.25)
    assert arrivals_of(None, None, 0.05) == arrivals_of("gamma", None, 0.05) == ("gamma", 0.05)
    assert arrivals_of("poisson", None, 0.05)[0] == "poisson"
    with pytest.raises(UsageError, match="burstiness"):
        arrivals_of("poisson", 0.25)


def test_workloads_carry_what_their_sources_say() -> None:
    long = load_workload("long-chat")
    assert long.prompt is not None and long.output is not None
    most = [parse_lengths(text).most for text in (long.prompt, long.output)]
    assert sum(most) < 131_072  # every request fits models of that context
    assert (long.cached_share, load_workload("agent").cached_share) == (0.366, 0.59)
    code = OpenLoop(rate=2.566, kind="gamma", burstiness=load_workload("code").burstiness)
    seconds = np.bincount(code.sample(np.random.default_rng(0), 500_000).astype(int))
    assert seconds.var() / seconds.mean() == pytest.approx(13.2, rel=0.1)  # of the trace: 13.2


@for_each("text", ["", "-5", "0", "many", "lognormal:1000", "uniform:1000:2"])
def test_bad_lengths_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_lengths(text)


def test_bad_loads_are_refused() -> None:
    for broken in (lambda: OpenLoop(rate=-1.0), lambda: ClosedLoop(concurrency=0), lambda: Slo(ttft=-1.0)):
        with pytest.raises(UsageError):
            broken()


@for_each("name", names("workloads"))
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
