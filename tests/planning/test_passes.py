"""Plans and simulations of a model that generates nothing: every request is one pass."""

from __future__ import annotations

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.files import load_model, names
from inferplan.errors import UsageError
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.planning.demand import Demand
from inferplan.planning.grid import Axes, load_grid
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.serving.steady import UserLoad, steady_state
from inferplan.serving.step_times import Chunk, Reach, step_times
from inferplan.traffic.requests import Lengths, OpenLoop, Slo, Traffic
from tests.cases import for_each
from tests.test_encode_estimate import deployment

DEMAND = Demand(prompt=Lengths(mean=400.0), output=Lengths(), rate=100.0)


def traffic(rate: float, prompt: float = 400.0, count: int = 3000) -> Traffic:
    return Traffic(
        arrivals=OpenLoop(rate=rate), prompt=Lengths(mean=prompt), output=Lengths(mean=1.0), requests_count=count
    )


def test_a_step_of_the_grid_is_the_pass_of_an_estimate():
    where = deployment(ideal=True)
    axes = Axes(batch=np.array([1.0, 4.0, 16.0]), budget=np.array([2048.0, 16384.0]))
    grid = load_grid(where, DEMAND, 95.0, axes)
    passes = [estimate(where, StaticLoad(batch=size, prompt=400.0)).ttft for size in axes.batch]
    np.testing.assert_allclose(grid.step_decode, passes)
    np.testing.assert_allclose(grid.rate[:, 1], axes.batch / passes)
    assert not grid.possible[2, 0]  # 16 prompts of 400 tokens are more than 2,048
    assert grid.possible[2, 1]
    assert np.all(grid.e2el == grid.ttft)


def encoders() -> list[str]:
    return [name for name in names("models") if load_model(name).encodes]


@for_each("gpu", ["l40s", "h100-sxm", "mi300x"])
@for_each("name", encoders)
def test_every_encoder_of_the_catalogue_has_one_price(name: str, gpu: str):
    """Estimate and planning grid to the bit, the simulator's table to half a percent, of a pass that hides its host."""
    where = assemble(Request(model=name, gpu=gpu, ideal=True))
    demand = Demand(prompt=Lengths(mean=300.0), output=Lengths(), rate=1.0)
    axes = Axes(batch=np.array([1.0, 6.0]), budget=np.array([8192.0]))
    passes = [float(estimate(where, StaticLoad(batch=size, prompt=300.0)).ttft) for size in axes.batch]
    np.testing.assert_allclose(load_grid(where, demand, 95.0, axes).step_decode, passes)
    table = step_times(where, Reach(sequences=8, tokens=2400, context=301))
    for size, time in zip((1, 6), passes, strict=True):
        chunk = Chunk(size, 300.0 * size, size * 300.0 * 301 / 2)
        assert table.mixed(0, 0.0, chunk) == pytest.approx(time, rel=5e-3)


def test_an_idle_server_takes_a_pass_for_a_request():
    where = deployment(ideal=True)
    result = simulate(where, traffic(1.0, count=50))
    alone = float(estimate(where, StaticLoad(prompt=400.0)).ttft)
    times = np.asarray(result.records.finish) - np.asarray(result.records.arrival)
    np.testing.assert_allclose(times, alone, rtol=1e-6)


def test_no_more_leave_than_full_steps_carry():
    """At most so many requests as tokens of a step hold: 5 prompts of 400 in 2,048 tokens, whatever waits."""
    where = deployment("l4", ideal=True)
    budget = where.engine.defaults.tier(where.hardware).token_budget
    whole = budget // 400
    fullest = whole / float(estimate(where, StaticLoad(batch=float(whole), prompt=400.0)).ttft)
    below = simulate(where, traffic(0.8 * fullest), options=Options(slo=Slo(e2el=1.0)))
    above = simulate(where, traffic(1.5 * fullest), options=Options(slo=Slo(e2el=1.0)))
    assert below.verdict == "stable"
    assert above.verdict == "overloaded"


def test_a_prompt_is_never_cut():
    """A prompt of the whole context takes one step, though a step of other models would be cut at the budget."""
    where = deployment(ideal=True)
    assert not where.engine.defaults.scheduler.chunked_prefill
    assert not where.engine.defaults.scheduler.prefix_caching
    result = simulate(where, traffic(10.0, prompt=512.0, count=40))
    assert not result.records.refused


def test_generated_tokens_are_refused():
    load = Traffic(arrivals=OpenLoop(rate=1.0), prompt=Lengths(mean=400.0), output=Lengths(mean=16.0), requests_count=9)
    with pytest.raises(UsageError, match="generates nothing"):
        simulate(deployment(ideal=True), load)


def test_a_steady_state_of_decodes_is_refused():
    with pytest.raises(UsageError, match="generates nothing"):
        steady_state(deployment(ideal=True), UserLoad(concurrency=8.0, prompt=256.0, output=1.0))
