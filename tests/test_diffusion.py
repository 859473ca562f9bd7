"""Diffusion: hand-computed passes of LLaDA-8B."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.errors import UsageError
from inferplan.estimate.diffusion import DiffusionEstimate
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate

REQUEST = Request(model="llada-8b", gpu="h100-sxm", ideal=True)


def run(request: Request = REQUEST, **load: float) -> DiffusionEstimate:
    found = estimate(assemble(request), StaticLoad(**{"batch": 1.0, "prompt": 128.0, "output": 128.0, **load}))
    assert isinstance(found, DiffusionEstimate)
    return found


def test_flop_of_a_pass_by_hand() -> None:
    """256 positions: 32 layers of 4 x 4096^2 + 3 x 4096 x 12288, the full square of attention, the head on all."""
    linear = 2 * 256 * 32 * (4 * 4096**2 + 3 * 4096 * 12288)
    attention = 32 * 4 * 256 * 256 * 4096
    head = 2 * 256 * 4096 * 126464
    assert float(run().decode.flop) == linear + attention + head


def test_a_pass_with_a_block_cache_computes_the_block_alone() -> None:
    cached = run(replace(REQUEST, generation=(("block_cache", True),)))
    middle = 128 + 1.5 * 32  # tokens behind the mean of four blocks
    linear = 2 * 32 * 32 * (4 * 4096**2 + 3 * 4096 * 12288)
    attention = 32 * 4 * 32 * (middle + 32) * 4096
    head = 2 * 32 * 4096 * 126464
    assert float(cached.decode.flop) == pytest.approx(linear + attention + head, rel=1e-12)
    assert float(cached.footprint.state) == 256 * 2 * 32 * 128 * 32 * 2


def test_times_add_up() -> None:
    found = run()
    assert float(found.blocks) == 4
    assert float(found.block_time) == pytest.approx(32 * float(found.step_time), rel=1e-12)
    assert float(found.e2el) == pytest.approx(float(found.ttft) + 127 * float(found.tpot), rel=1e-12)
    assert float(found.e2el) == pytest.approx(4 * 32 * float(found.step_time), rel=1e-12)
    assert float(found.footprint.state) == 0.0


def test_steps_scale_time() -> None:
    half = run(replace(REQUEST, generation=(("steps", 16),)))
    assert float(half.e2el) == pytest.approx(float(run().e2el) / 2, rel=1e-12)


def test_unknown_steps_are_asked_for() -> None:
    deployment = assemble(REQUEST)
    bare = deployment.model.generation.model_copy(update={"block": 0})
    model = deployment.model.model_copy(update={"generation": bare})
    with pytest.raises(UsageError, match="block size"):
        estimate(replace(deployment, model=model), StaticLoad())


def test_only_diffusion_models_have_blocks() -> None:
    with pytest.raises(UsageError, match="no diffusion model"):
        assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", generation=(("block", 32),)))


def test_arrays_are_scalars_side_by_side() -> None:
    load = StaticLoad(batch=np.array([1.0, 4.0]), prompt=np.array([128.0, 64.0]), output=np.array([128.0, 33.0]))
    both = estimate(assemble(REQUEST), load)
    for index in range(2):
        one = run(batch=float(load.batch[index]), prompt=float(load.prompt[index]), output=float(load.output[index]))  # type: ignore[index]
        assert np.asarray(both.e2el)[index] == pytest.approx(float(one.e2el), rel=1e-12)


def test_a_sweep_denoises_too() -> None:
    """Every point of a grid is the estimate of that point; serving under load is refused."""
    from inferplan.answers.sweep import Grid, sweep
    from inferplan.errors import UsageError
    from inferplan.serving.simulator import simulate
    from inferplan.traffic.requests import ClosedLoop, Lengths, Traffic

    base = replace(REQUEST, generation=(("block", 32), ("steps", 8), ("block_cache", True)))
    rows = sweep(Grid(base=base, batch=(1, 4), prompt=(8, 100, 200), output=(64, 100))).rows
    assert len(rows) == 12
    for row in rows:
        load = StaticLoad(batch=row["batch"], prompt=row["prompt_tokens"], output=row["output_tokens"])
        one = estimate(assemble(base), load)
        assert (row["ttft_s"], row["tpot_s"]) == (pytest.approx(one.ttft), pytest.approx(one.tpot))
    traffic = Traffic(
        arrivals=ClosedLoop(concurrency=1, burst=True, ramp=None), prompt=Lengths(mean=8), output=Lengths(mean=8)
    )
    with pytest.raises(UsageError, match="denoises blocks"):
        simulate(assemble(REQUEST), traffic)
