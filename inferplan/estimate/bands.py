"""Between which factors measured latencies lie, and how much slower than predicted a device may be."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

from inferplan.estimate.anchoring import anchored_bands
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import Band, widened, widened_at
from inferplan.estimate.phase import run_step
from inferplan.units import Num
from inferplan.work.step import decode, prefill

_UPPER_END = NormalDist().inv_cdf(0.9)
"""Standard deviations from the middle of a band to its slow end: a band holds 80 % of the measurements."""


def serving_bands(deployment: Deployment, prompt: float) -> dict[str, Band]:
    """The bands of TTFT and TPOT of served requests: those of a prompt of ``prompt`` tokens and of a decode step behind
    it, widened by what serving adds. With measured runs of its own, the widest of what they leave open over usual
    loads. A metric whose band nothing stands behind is left out.
    """
    if not deployment.calibration.bands:
        return {}
    steps = {"ttft": prefill(1.0, prompt), "tpot": decode(1.0, prompt)}
    found = {name: latency_band(deployment, name, run_step(deployment, step).band) for name, step in steps.items()}
    measured = anchored_bands(deployment, None, prompt)
    return {name: measured.get(name, band) for name, band in found.items() if band is not None}


def latency_band(deployment: Deployment, metric: str, kernels: Band | None) -> Band | None:
    """The band of ``ttft`` or ``tpot`` from that of its step's kernels: what is left of them, and what is added."""
    constants = deployment.calibration
    return widened(kernels, constants.bands.get(metric), constants.kernel_shares.get(metric, (1.0, 1.0)))


def latency_bands(deployment: Deployment, metric: str, kernels: tuple[Num, Num]) -> tuple[Num, Num]:
    """:func:`latency_band` at each point of a grid; NaN where it is not known, and everywhere with an anchor, whose
    bands are of one load."""
    constants = deployment.calibration
    step = constants.bands.get(metric)
    if step is None or constants.anchor is not None:
        return kernels[0] * np.nan, kernels[1] * np.nan
    return widened_at(kernels, step, constants.kernel_shares.get(metric, (1.0, 1.0)))


def quantile(band: Band, confidence: float) -> float:
    """The factor on a prediction that a measurement stays below with a chance of ``confidence``.

    The ends of a band are the 10 % and the 90 % quantile of measured over predicted. Between and beyond them the
    logarithm is taken to be normal about the prediction, each side with its own spread.
    """
    deviations = NormalDist().inv_cdf(confidence) / _UPPER_END
    slow, fast = band[1], band[0]
    return float(slow**deviations if deviations >= 0 else fast**-deviations)


def slow_end(bands: Mapping[str, Band], metrics: set[str], confidence: float) -> dict[str, float] | None:
    """By metric (``ttft``, ``tpot``), the factor at ``confidence``; ``None`` where one of ``metrics`` has no band."""
    if not metrics <= set(bands):
        return None
    return {name: quantile(bands[name], confidence) for name in metrics}
