"""Deployments that several serving tests share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.devices.constants import Calibration, Fit, StepConstants
from inferplan.estimate.deployment import Deployment

_FIT = Fit(math=0.7, memory=0.8, overhead=4e-6, sharpness=2.0)
_KERNELS = (
    "matmul",
    "grouped_matmul",
    "attention.prefill",
    "attention.decode",
    "norm",
    "elementwise",
    "copy",
    "gather",
)
CALIBRATION = Calibration(
    name="test",
    constants={kernel: {"any": _FIT} for kernel in _KERNELS},
    step=StepConstants(host=5e-4, layer=1e-6, sequence=8e-6),
)
"""Constants of a usual size, so that nothing here depends on those on file."""


def deployment(model: str = "llama-3.1-8b", gpu: str = "h100-sxm", ideal: bool = True, **more: object) -> Deployment:
    """A deployment of an ideal device, or with the constants above (and with the engine's host effects)."""
    made = assemble(Request(model=model, gpu=gpu, ideal=True, **more))  # type: ignore[arg-type]
    return made if ideal else replace(made, calibration=CALIBRATION)


@pytest.fixture
def small() -> Deployment:
    return deployment()
