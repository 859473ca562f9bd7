"""TTFT of the closed form by hand, on a deployment whose steps take 1 s and a tenth for each token."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from inferplan.planning.demand import Demand
from inferplan.planning.grid import Axes, load_grid
from inferplan.traffic.requests import Lengths
from inferplan.work.parallel import Parallelism
from tests.serving.plain_time import EACH, HOST, plain

BATCH, PROMPT, OUTPUT, BUDGET, LATE = 4.0, 50.0, 11.0, 256.0, 0.05


def test_ttft_at_a_percentile_by_hand() -> None:
    """Four decode, 0.4 prompts of 50 tokens come with a step, and a step has room for 252 beside the decodes.

    An arrival finds a step with prompts in progress and waits for 95 % of it; then the crowd for its own step, an
    M/D/1 queue of that step's room; then its own step. The mean one finds a step at all unless nobody decodes: of four
    on average, as many as they like at a time, exp(-4).
    """
    deployment = plain(serving={"latency": "250 ms", "front_request": "125 ms"})
    demand = Demand(rate=1.0, prompt=Lengths(mean=PROMPT), output=Lengths(mean=OUTPUT))
    grid = load_grid(deployment, demand, 95.0, Axes(batch=np.array([BATCH]), budget=np.array([BUDGET])))
    coming = BATCH / (OUTPUT - 1)
    filled = coming * PROMPT / (BUDGET - BATCH)
    share = 1 - exp(-coming)  # more than the room needs
    own = HOST + EACH * (BATCH + coming * PROMPT / share)
    decode = HOST + EACH * BATCH
    step = (1 - share) * decode + share * own
    assert share > filled and share * own / step > LATE
    crowd = own / (2 * (1 - filled)) * log(filled / LATE)
    assert float(grid.ttft[0, 0]) == pytest.approx(0.375 + 0.95 * own + own + crowd, rel=1e-3)
    assert float(grid.tpot[0, 0]) == pytest.approx(step, rel=1e-3)
    mean = 0.375 + (1 - exp(-BATCH)) * ((1 - share) * decode**2 + share * own**2) / (2 * step) + own
    rate = BATCH / ((OUTPUT - 1) * step)
    assert float(grid.concurrency[0, 0]) == pytest.approx(rate * (mean + (OUTPUT - 1) * step), rel=1e-3)


def test_slots_are_those_of_all_ranks() -> None:
    """64 slots an attention rank, two of them: 128 requests and no more."""
    demand = Demand(rate=1.0, prompt=Lengths(mean=PROMPT), output=Lengths(mean=OUTPUT))
    axes = Axes(batch=np.array([60.0, 64.0]), budget=np.array([4096.0]))
    grid = load_grid(plain(slots=64, parallel=Parallelism(dp=2)), demand, 95.0, axes)
    assert grid.slots == 128.0
    assert float(grid.concurrency[1, 0]) > 128.0 and not grid.possible[1, 0]


def test_the_cache_holds_the_mean_and_two_deviations() -> None:
    """A request of 50 tokens in and 11 out holds 50 + 11/2 on average; uniform ages spread it by 11/sqrt(12)."""
    capacity = 1 << 14
    deployment = plain(capacity=capacity, budget=int(BUDGET))
    demand = Demand(rate=1.0, prompt=Lengths(mean=PROMPT), output=Lengths(mean=OUTPUT))
    grid = load_grid(deployment, demand, 95.0, Axes(batch=np.array([BATCH]), budget=np.array([BUDGET])))
    there = float(grid.concurrency[0, 0])
    held = PROMPT + OUTPUT / 2 + 2 * (OUTPUT**2 / 12 / there) ** 0.5
    assert float(grid.memory_use[0, 0]) == pytest.approx(there * min(held, PROMPT + OUTPUT) / capacity, rel=2e-2)
