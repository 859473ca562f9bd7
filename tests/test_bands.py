"""The band of a step: weighted by time, and unknown where more than 2 % of the time has no known error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.constants import Calibration, Fit
from inferplan.estimate.load import StaticLoad, combine_bands
from inferplan.estimate.phase import Phase, run_step
from inferplan.estimate.run import estimate_unchecked
from inferplan.work.step import decode
from tests.builders import chip, dense, deploy
from tests.cases import for_each

BANDS = {"matmul": (0.9, 1.2), "attention.decode": (0.7, 1.5)}
KERNELS = ("matmul", "attention.decode", "elementwise", "copy", "gather")


def step(seconds: dict[str, float], unknown: tuple[str, ...] = ()) -> Phase:
    """A decode step of one layer with 5 matmuls and one attention, whose kernels take these seconds each."""
    fits = {
        kernel: Fit(
            overhead=seconds.get(kernel, 0.0),
            error={} if kernel in unknown or kernel not in BANDS else dict(zip(("low", "high"), BANDS[kernel])),
        )
        for kernel in KERNELS
    }
    calibration = Calibration(name="t", fused=True, constants={kernel: {"any": fit} for kernel, fit in fits.items()})
    model = dense(layers=1, d_model=64, heads=4, d_ff=64, vocab=64)
    return run_step(deploy(model, chip(1e18, 1e21), calibration=calibration), decode(1.0, 16.0))


def test_bands_are_weighted_by_time() -> None:
    """qkv, out, gate and up, down, head: 5 x 1 s within 0.9 to 1.2; attention 5 s within 0.7 to 1.5."""
    band = step({"matmul": 1.0, "attention.decode": 5.0}).band
    assert band == pytest.approx((0.8, 1.35), rel=1e-6)


@for_each(("share", "known"), [(0.01, True), (0.019, True), (0.021, False), (0.1, False)])
def test_more_than_two_percent_of_unknown_error_hides_the_band(share: float, known: bool) -> None:
    phase = step({"matmul": (1 - share) / 5, "attention.decode": share}, unknown=("attention.decode",))
    assert (phase.band is not None) == known


def test_independent_errors_add_as_squares_of_logs() -> None:
    """exp(sqrt(ln(2)^2 + ln(2)^2)) = 2^sqrt(2) up and down."""
    assert combine_bands((0.5, 2.0), (0.5, 2.0)) == pytest.approx((2 ** -(2**0.5), 2 ** (2**0.5)))
    assert combine_bands((0.5, 2.0), None) is None and combine_bands(None, (0.5, 2.0)) is None


@for_each("model", ["llama-3.1-8b", "deepseek-v2-lite", "bge-m3"])
def test_the_bands_of_a_grid_are_those_of_its_points(model: str) -> None:
    """NaN exactly where a point has none: on an H100 some kernels of some batches have no held-out error."""
    deployment, batches = assemble(Request(model=model, gpu="h100-sxm")), np.array([1.0, 8.0, 33.0, 128.0])
    load = StaticLoad(batch=batches, prompt=300.0, output=1.0 if deployment.model.encodes else 64.0)
    grid = estimate_unchecked(deployment, load).bands()
    for place, batch in enumerate(batches):
        point = estimate_unchecked(deployment, replace(load, batch=float(batch)))
        for metric, ends in grid.items():
            own = point.band(metric)
            found = [np.broadcast_to(end, batches.shape)[place] for end in ends]
            assert found == pytest.approx([np.nan] * 2 if own is None else own, rel=1e-12, nan_ok=True), (metric, batch)
