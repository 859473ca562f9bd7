"""Users who think between an answer and the next request: the interactive response time law, and the queue it makes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferplan.serving.batch_means import half_width
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.simulator import prepare, simulate
from inferplan.traffic.conversations import parse_think_time
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, SharedPrefix, Traffic, parse_lengths
from tests.cases import for_each
from tests.serving.conftest import deployment

TRIMMED = Options(trim=True)


def users(count: int, think: str, ramp: float | None = None, **lengths: Lengths) -> Traffic:
    """A closed loop of users who think."""
    loop = ClosedLoop(concurrency=count, burst=False, ramp=ramp)
    return Traffic(arrivals=loop, prefix=SharedPrefix(think=parse_think_time(think)), **lengths)


def test_many_users_with_exponential_think_times_are_m_d_1() -> None:
    """Independent users who think for long send a Poisson stream of rate N/(R + Z) (Palm and Khinchine); with one slot
    and fixed lengths the wait is that of M/D/1, rho*S/(2(1 - rho)) (Pollaczek and Khinchine)."""
    served, fixed = deployment(), {"prompt": Lengths(mean=512), "output": Lengths(mean=8)}
    alone = simulate(served, Traffic(arrivals=ClosedLoop(concurrency=1), requests_count=1, **fixed))
    service, count, load = float(alone.e2el[0]), 500, 0.45
    think = count * service / load - service / (1 - load)
    run = simulate(served, users(count, f"exponential:{think}s", **fixed), Flags(max_num_seqs=1), TRIMMED)
    waits = run.ttft - alone.ttft[0]
    rho = count * service / (float(run.e2el.mean()) + think)
    batches = np.array([part.mean() for part in np.array_split(waits, 20)])
    error = float(batches.std(ddof=1) / np.sqrt(len(batches)))
    assert float(waits.mean()) == pytest.approx(rho * service / (2 * (1 - rho)), abs=4 * error)
    assert 4 * error < 0.5 * float(waits.mean())  # so that a factor of two would be seen


@for_each("think", ["10s", "exponential:10s"])
def test_a_closed_loop_with_think_times_is_the_open_loop_of_its_rate(think: str) -> None:
    """R = N/X - Z (Denning and Buzen, 1978), and percentiles of an open loop at N/(R + Z), within both 95 % intervals.

    Users who begin within the time of one request, about 1 s here, stay in step for ever where think times are
    constant: p95 is then several times as long.
    """
    lengths = {"prompt": parse_lengths("lognormal:1024:0.8"), "output": parse_lengths("lognormal:64:0.8")}
    served, count = deployment(), 150
    closed = simulate(served, users(count, think, **lengths), None, TRIMMED)
    rate = count / (float(closed.e2el.mean()) + 10.0)
    assert closed.request_rate == pytest.approx(rate, rel=0.05)
    loop = OpenLoop(rate=rate, exact=True)
    opened = simulate(served, Traffic(arrivals=loop, requests_count=2400, **lengths), None, TRIMMED)
    for metric in ("ttft", "tpot"):
        found, wanted = (getattr(run, metric) for run in (closed, opened))
        error = sum(half_width(values, 95.0) or np.inf for values in (found, wanted))
        assert float(np.percentile(found, 95)) == pytest.approx(float(np.percentile(wanted, 95)), abs=error), metric
        assert error < 0.5 * float(np.percentile(wanted, 95))


def test_users_begin_as_if_they_had_been_at_it_for_long() -> None:
    """A renewal process in equilibrium (Cox, Renewal Theory, 1962): from the first moment on users send at
    ``N/(R + Z)``, in no span more than in another. What is left of a cycle has the mean ``E[C^2]/(2 E[C])``: with
    answers of no length half a constant think time, a whole exponential one, ``(1 + cv^2)/2`` of a log-normal one."""
    lengths = {"prompt": Lengths(mean=16), "output": Lengths(mean=1)}
    for think, left in (("100s", 50.0), ("exponential:100s", 100.0), ("lognormal:100s:0.8", 82.0)):
        traffic = replace(users(4000, think, **lengths), requests_count=12_000)
        run = prepare(deployment(), traffic, None, TRIMMED)
        starts = np.array(run.cluster.starts)
        spread = float(starts.std()) / 4000**0.5
        assert float(starts.mean()) == pytest.approx(left, abs=4 * spread), think
        arrival = np.sort(np.asarray(run.result(run.cluster.run(0, run.fill, 1)).records.arrival))
        early = np.array([np.sum((arrival > at) & (arrival <= at + 20)) for at in (0, 40, 80, 120, 160, 200)])
        assert np.all(np.abs(early - 4000 * 20 / 100) < 4 * 800**0.5), (think, early)


def test_users_in_step_are_what_the_ramp_avoids() -> None:
    lengths = {"prompt": parse_lengths("lognormal:1024:0.8"), "output": parse_lengths("lognormal:64:0.8")}
    together, spread = (
        simulate(deployment(), users(150, "10s", ramp, **lengths), None, TRIMMED).ttft for ramp in (1.0, None)
    )
    assert float(np.percentile(together, 95)) > 2 * float(np.percentile(spread, 95))


def test_the_ramp_is_one_cycle_and_a_quarter_is_left_out() -> None:
    lengths = {"prompt": Lengths(mean=64), "output": Lengths(mean=4)}
    run = prepare(deployment(), users(20, "5s", **lengths), None, TRIMMED)
    assert run.closed is not None and run.closed.ramp is not None
    alone = simulate(deployment(), Traffic(arrivals=ClosedLoop(concurrency=1), requests_count=1, **lengths))
    assert run.closed.ramp == pytest.approx(5.0 + float(alone.e2el[0]), rel=0.01)
    assert (run.fill, run.drain) == (50, 0)  # a quarter of ten requests for each user, as of an open loop
    at_once = prepare(deployment(), users(20, "0s", **lengths), None, TRIMMED)
    assert (at_once.fill, at_once.drain) == (20, 20)
    assert at_once.closed is not None and (at_once.closed.ramp or 9.0) < 1.0


def test_other_users_than_were_drawn_begin_anew() -> None:
    """Twenty users of 5 s and an answer each send four times as much as five."""
    five = Traffic(
        arrivals=ClosedLoop(concurrency=5, burst=False, ramp=None),
        prefix=SharedPrefix(think=parse_think_time("5s")),
        prompt=Lengths(mean=16),
        output=Lengths(mean=1),
        requests_count=400,
    )
    drawn = five.requests(16)
    rates = [
        simulate(deployment(), drawn.in_loop(ClosedLoop(concurrency=users, burst=False, ramp=None))).request_rate
        for users in (5, 20)
    ]
    assert rates[1] == pytest.approx(4 * rates[0], rel=0.1)
