"""Laws of scale and load, on random deployments of every layer kind and with calibrated constants.

More load never makes anybody faster, a rank does not care how many like it there are, and a pipeline never lets a lone
prompt overtake its own pass. ``INFERPLAN_LAW_EXAMPLES`` raises the number of tries, as in test_laws.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferplan.errors import InfeasibleError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.phase import decode_phase, prefill_phase, run_step
from inferplan.estimate.roofline import price
from inferplan.serving.simulator import simulate
from inferplan.serving.steady import UserLoad, steady_state
from inferplan.serving.step_times import Chunk, Reach, step_times
from inferplan.traffic.requests import Requests
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment, Step
from tests.layer_strategies import EVERY_KIND
from tests.properties.test_laws import CLOSE, close, law, rising
from tests.strategies import deployments, loads

WITHOUT_EXPERTS = EVERY_KIND - {"moe"}
ENGINES = st.sampled_from(["vllm", "sglang", "trtllm"])
served = ENGINES.flatmap(lambda engine: deployments(engine=engine))
no_experts = st.builds(
    Parallelism,
    tp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    pp=st.integers(1, 3),
)


# Prices ---------------------------------------------------------------------------------------------------------------


@law
@given(
    deployments(),
    st.sampled_from([1.0, 3.0, 16.0, 17.0, 128.0, 2000.0]),
    st.sampled_from([0.0, 1.0, 4000.0, 120_000.0]),
    st.sampled_from([0.0, 1.0, 64.0]),
)
def test_every_price_is_finite_and_not_negative(
    deployment: Deployment, new: float, past: float, decodes: float
) -> None:
    """Of each operator of a prompt's chunk, alone and beside decodes; the step as a whole takes time."""
    segments = (Segment(batch=1.0, new=new, past=past),)
    if decodes:
        segments = (Segment(batch=decodes, new=1.0, past=past + 1.0), *segments)
    step = Step(segments=segments)
    for stage in build(deployment, step):
        for op in stage.ops:
            cost = price(op, deployment.hardware, deployment.calibration)
            assert np.isfinite(cost.total) and cost.total >= 0, op.name
    time = float(run_step(deployment, step).time)
    assert np.isfinite(time) and time > 0


# Ranks and stages -----------------------------------------------------------------------------------------------------


@law
@given(deployments(kinds=WITHOUT_EXPERTS, parallels=no_experts), loads, st.sampled_from([2, 3, 8]))
def test_a_rank_does_not_depend_on_dp(deployment: Deployment, point: dict[str, float], dp: int) -> None:
    """At equal load a rank, without experts: the same seconds of prompts and of decodes, in estimate and simulator."""
    wide = replace(deployment, parallel=replace(deployment.parallel, dp=dp))
    one, many = StaticLoad(**point), StaticLoad(**(point | {"batch": point["batch"] * dp}))
    assert close(prefill_phase(deployment, one).time, prefill_phase(wide, many).time)
    assert close(decode_phase(deployment, one, 500.0).time, decode_phase(wide, many, 500.0).time)
    reach = Reach(sequences=8, tokens=256, context=600)
    first, second = step_times(deployment, reach), step_times(wide, reach)
    chunk = Chunk(1, 200.0, 200.0 * 201 / 2)
    assert first.decode(7, 500.0) == pytest.approx(second.decode(7, 500.0), rel=CLOSE)
    assert first.mixed(3, 400.0, chunk) == pytest.approx(second.mixed(3, 400.0, chunk), rel=CLOSE)


@law
@given(deployments(), st.integers(17, 5000).map(float))
def test_a_lone_prompt_passes_every_stage(deployment: Deployment, prompt: float) -> None:
    """Its time is that of the host and of all stages, and never less than that of the same layers on one stage."""
    phase = prefill_phase(deployment, StaticLoad(batch=1.0, prompt=prompt))
    assert close(phase.time, phase.host + sum(float(seconds) for seconds in phase.stage_times))
    whole = replace(deployment, parallel=replace(deployment.parallel, pp=1))
    assert phase.time >= prefill_phase(whole, StaticLoad(batch=1.0, prompt=prompt)).time * (1 - CLOSE)


@law
@given(deployments(), st.integers(17, 5000).map(float))
def test_a_batch_on_a_pipeline_is_between_its_pass_and_one_after_another(deployment: Deployment, prompt: float) -> None:
    """Prompts of a batch follow each other: never faster than the slowest stage for each, nor slower than in turn."""
    dp, batch = deployment.parallel.dp, 4.0
    alone = prefill_phase(deployment, StaticLoad(batch=float(dp), prompt=prompt))
    together = prefill_phase(deployment, StaticLoad(batch=batch * dp, prompt=prompt))
    assert alone.time * (1 - CLOSE) <= together.time <= batch * alone.time * (1 + CLOSE)


# Load -----------------------------------------------------------------------------------------------------------------


@law
@given(deployments(), loads)
def test_a_larger_batch_is_never_faster_for_anybody(deployment: Deployment, point: dict[str, float]) -> None:
    load = StaticLoad(**(point | {"batch": np.arange(1.0, 30.0)}))  # type: ignore[arg-type]
    assert rising(prefill_phase(deployment, load).time)
    for past in (point["prompt"], point["prompt"] + point["output"]):
        assert rising(decode_phase(deployment, load, past).time)


@law
@given(served, loads)
def test_more_users_are_never_faster_for_anybody(deployment: Deployment, point: dict[str, float]) -> None:
    """TTFT and TPOT of the closed form, to half a percent: it takes the mean of what batches in flight hold."""
    users = np.array([1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0, 128.0]) * deployment.parallel.dp
    output = max(point["output"], 2.0)
    try:
        state = steady_state(deployment, UserLoad(concurrency=users, prompt=point["prompt"], output=output))
    except InfeasibleError:
        return
    for name in ("ttft", "tpot"):
        values = np.asarray(getattr(state, name))
        assert np.all(np.diff(values) >= -5e-3 * values[1:]), (name, values)


@law
@given(served, st.integers(17, 3000), st.integers(1, 6))
def test_a_neighbour_never_speeds_a_prompt_up(deployment: Deployment, prompt: int, neighbours: int) -> None:
    """A lone prompt, and the same while others decode, in the simulator: TTFT does not fall."""

    def ttft(others: int) -> float:
        arrival = np.array([0.0] * others + [0.5])
        prompts, outputs = np.array([16] * others + [prompt]), np.array([20_000] * others + [2])
        run = simulate(deployment, Requests(prompt=prompts, output=outputs, arrival=arrival))
        return float(run.records.first[-1] - 0.5)

    try:
        alone, beside = ttft(0), ttft(neighbours)
    except InfeasibleError:
        return
    assert beside >= alone * (1 - 5e-3) or np.isnan(beside)
