"""Between which factors measured latencies lie, and how much slower than predicted a device may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from inferplan.estimate.anchoring import anchored_bands
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import Band, combine_bands, widened_at
from inferplan.estimate.phase import Phase, run_step
from inferplan.estimate.support import forms_of, lacking, measured_cell
from inferplan.units import Num
from inferplan.work.step import decode, prefill

TRANSFERRED_SLOW_END = 1.3
"""What the slow end of a band is at least where most of the time rests on constants that were carried from another
device or kernel. Kernels that were timed on both devices lie, by the median kernel, within x 1.26 of constants carried
to a device of the same chip and within x 1.46 to another chip (the slow ends in ``configs/relatives.yaml``), and within
x 1.41 of those of the class (``configs/calibration/_transferred-hbm.yaml``). On serving rows that nobody fitted, 10 of
11 lay beyond a slow end of x 1.03 (docs/accuracy.md)."""


def serving_bands(deployment: Deployment, prompt: float, forms: Sequence[str] = ()) -> dict[str, Band]:
    """The bands of TTFT and TPOT of served requests: those of a prompt of ``prompt`` tokens and of a decode step behind
    it, widened by what serving adds. With measured runs of its own, the widest of what they leave open over usual
    loads. A metric whose band nothing stands behind is left out; ``forms`` as in :func:`lacking`.
    """
    if not deployment.calibration.has_bands or lacking(deployment, forms):
        return {}
    steps = {"ttft": prefill(1.0, prompt), "tpot": decode(1.0, prompt)}
    found = {name: latency_band(deployment, name, run_step(deployment, step), forms) for name, step in steps.items()}
    measured = anchored_bands(deployment, None, prompt)
    return {name: measured.get(name, band) for name, band in found.items() if band is not None}


def latency_band(deployment: Deployment, metric: str, step: Phase, forms: Sequence[str] = ()) -> Band | None:
    """The band of ``ttft`` or ``tpot``: that of what was measured of its kind, of whose kernels the error is known too;
    else that of its step's kernels, with what serving adds."""
    if lacking(deployment, forms):
        return None
    cell, kernels = measured_cell(deployment, (*forms_of(deployment), *forms)), step.band
    if cell is None:
        band = combine_bands(kernels, deployment.calibration.bands.get(metric))
    else:
        band = None if kernels is None else cell.bands.get(metric)
    return None if band is None else (band[0], max(band[1], float(slowest_end(deployment, step))))


def latency_bands(deployment: Deployment, metric: str, step: Phase, forms: Sequence[str] = ()) -> tuple[Num, Num]:
    """:func:`latency_band` at each point of a grid; NaN where it is not known, and everywhere with an anchor, whose
    bands are of one load."""
    constants, kernels = deployment.calibration, step.bands()
    cell = measured_cell(deployment, (*forms_of(deployment), *forms))
    own = constants.bands.get(metric) if cell is None else cell.bands.get(metric)
    if own is None or constants.anchor is not None or lacking(deployment, forms):
        return kernels[0] * np.nan, kernels[1] * np.nan
    low, high = widened_at(kernels, own) if cell is None else (own[0] + 0.0 * kernels[0], own[1] + 0.0 * kernels[1])
    return low, np.maximum(high, slowest_end(deployment, step))


def slowest_end(deployment: Deployment, step: Phase) -> Num:
    """What the slow end of a band is at least, at each point of a grid: 1 on constants that were measured here."""
    if deployment.calibration.basis == "transferred":
        return TRANSFERRED_SLOW_END
    carried = sum((cost.total for cost in step.costs if cost.basis == "transferred"), start=0.0)
    whole = sum((cost.total for cost in step.costs), start=0.0)
    mostly = np.asarray(carried > 0.5 * whole, dtype=np.float64)
    return 1.0 + (TRANSFERRED_SLOW_END - 1.0) * mostly


def mostly_transferred(deployment: Deployment, prompt: float) -> bool:
    """Whether most of a decode step behind a prompt of ``prompt`` tokens rests on constants that were carried over from
    other devices or kernels."""
    return float(slowest_end(deployment, run_step(deployment, decode(1.0, prompt)))) > 1.0


def quantile(band: Band, confidence: float) -> float:
    """The factor on a prediction that a measurement stays below with a chance of ``confidence``.

    The ends of a band are the 10 % and the 90 % quantile of measured over predicted. Between and beyond them the
    logarithm is taken to be normal about the prediction, each side with its own spread.
    """
    from statistics import NormalDist  # (takes 4 ms to import; an estimate asks for no quantile)

    deviations = NormalDist().inv_cdf(confidence) / NormalDist().inv_cdf(0.9)
    slow, fast = band[1], band[0]
    return float(slow**deviations if deviations >= 0 else fast**-deviations)


def slow_end(bands: Mapping[str, Band], metrics: set[str], confidence: float) -> dict[str, float] | None:
    """By metric (``ttft``, ``tpot``), the factor at ``confidence``; ``None`` where one of ``metrics`` has no band."""
    if not metrics <= set(bands):
        return None
    return {name: quantile(bands[name], confidence) for name in metrics}
