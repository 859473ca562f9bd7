"""A run that is looked at before it ends is the same run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferplan.serving.batch_means import RunPrecision
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.paused_run import PausedRun
from inferplan.serving.run_length import simulate_steady
from inferplan.traffic.requests import Lengths, OpenLoop, Traffic
from tests.cases import for_each
from tests.serving.conftest import deployment

LOOKS = (300, 900)
PRECISION = RunPrecision(tolerance=0.05, fewest=2_000, most=2_000)
FLAGS = Flags(max_num_seqs=64)


def traffic(rate: float) -> Traffic:
    lengths = Lengths(mean=512, kind="lognormal", spread=0.8), Lengths(mean=128, kind="lognormal", spread=0.6)
    return Traffic(arrivals=OpenLoop(rate=rate), prompt=lengths[0], output=lengths[1])


@for_each(("stages", "replicas"), [(1, 1), (2, 1), (1, 2)])
def test_the_whole_of_a_paused_run_is_the_run_without_a_pause(stages: int, replicas: int) -> None:
    """Request for request, but for the last bits of sums that a pause has cut in two: it ends a run of equal steps."""
    one, load = deployment(), traffic(4.0)
    served = replace(one, parallel=replace(one.parallel, pp=stages, replicas=replicas))
    straight = simulate_steady(served, load, FLAGS, Options(), PRECISION)
    paused = PausedRun((served, FLAGS), load, Options(trim=True), PRECISION, LOOKS)
    paused.go_on()
    whole = paused.to_the_end()
    assert paused.to_the_end() is whole
    for name in ("arrival", "admitted", "first", "finish"):
        assert np.asarray(getattr(whole.records, name)) == pytest.approx(getattr(straight.records, name), rel=1e-6)
    assert (whole.warmup, whole.cooldown, whole.verdict) == (straight.warmup, straight.cooldown, straight.verdict)
    assert whole.metered == straight.metered
    assert whole.meters[0].waited == pytest.approx(straight.meters[0].waited, rel=1e-3, abs=1e-3)


def test_a_look_tells_what_became_of_the_first_requests_by_then() -> None:
    """Counted by hand from the run without a pause: behind the first quarter, those done when the last of them comes,
    but for those that came in the mean time of a request before that.
    """
    load = traffic(4.0)
    straight = simulate_steady(deployment(), load, FLAGS, Options(), PRECISION)
    arrival, first, finish = (np.asarray(getattr(straight.records, name)) for name in ("arrival", "first", "finish"))
    paused = PausedRun((deployment(), FLAGS), load, Options(trim=True), PRECISION, LOOKS)
    for look in LOOKS:
        seen, now = paused.go_on(), arrival[look - 1]
        there = np.flatnonzero((finish[:look] < now) | (first[:look] >= now))
        done = there[finish[there] < now]
        mean = np.mean((finish - arrival)[[one for one in there[len(there) // 4 :] if finish[one] < now]])
        counted = [one for one in done if one >= there[len(there) // 4] and arrival[one] <= now - mean]
        assert len(seen.ttft) == pytest.approx(len(counted), abs=2)
        assert float(np.mean(seen.ttft)) == pytest.approx(float(np.mean((first - arrival)[counted])), rel=0.01)
        assert seen.verdict == "stable"


def test_an_overload_is_seen_before_the_end() -> None:
    paused = PausedRun((deployment(), FLAGS), traffic(150.0), Options(trim=True), PRECISION, LOOKS)
    assert [paused.go_on().verdict for _ in LOOKS] == ["overloaded", "overloaded"]
