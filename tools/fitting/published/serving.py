"""The few constants that published kernels leave open, from serving rows of the device.

Constants carried from other makers' devices are brought to the published figures
(:mod:`tools.fitting.published.kernels`); what is left are :data:`UNKNOWNS`, fitted to TPOT and TTFT of
simulated rows: logarithms of predicted over measured, soft-L1, Gauss-Newton steps, each held to what is expected of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.files import write_calibration
from calibrate.fit import ratio_errors
from inferplan.devices.constants import ANY, Calibration, Constants, Fit
from inferplan.units import Array
from inferplan.validation.rows import Row
from inferplan.validation.run import Pricing, price_rows
from tools.fitting.published.kernels import Shares
from tools.fitting.unknowns import Unknown, pulled_step

UNKNOWNS: dict[str, Unknown] = {
    "fixed": Unknown(1.0, 0.3, 4.0, "factor on the fixed seconds of every kernel"),
    "experts": Unknown(0.8, 0.1, 1.5, "factor on the share of the peak that experts reach"),
    "touched": Unknown(1.0, 0.1, 4.0, "factor on the seconds for each expert touched"),
    "latents": Unknown(0.6, 0.1, 0.8, "share of the bandwidth that decode attention on latents reaches"),
}
FIGURES = (("tpot", 1.0), ("ttft", 0.5))
"""What is fitted, and its weight: the median TTFT of a few rows of 40 requests is twice as far off from run to run."""
PULL = 0.3
"""How strongly a constant is held to what is expected: a factor e away costs as much as such an error of one row."""
_NUDGE, _REACH, _STEPS = 1.2, 0.6, 3
LIMITED = ("vllm",)
"""Libraries whose own all-reduce leaves messages over 8 MiB to RCCL, which then takes its own fixed seconds."""
BLOCK = "fp8-blockxfp8"
FOUR_BITS = "mxfp4xfp8"
"""Nobody timed it; AITER runs both formats with the same launches, so the block-fp8 kernel stands for it."""
Values = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device to make constants for: those carried to it, and what published kernels say, by library.

    carried: of :func:`inferplan.catalog.calibrations.load_kernels` kind, libraries not yet chosen.
    """

    name: str
    carried: Calibration
    shares: Mapping[str, Shares]

    def calibration(self, values: Values) -> Calibration:
        """The constants of every library under the values of the unknowns."""
        libraries = {
            library: _library(constants, self.shares[library], values, library in LIMITED)
            for library, constants in self.carried.libraries.items()
        }
        any_share = next(iter(self.shares.values()))
        return Calibration(
            name=self.name,
            basis="transferred",
            constants=_shared(self.carried.constants, any_share, values),
            libraries=libraries,
        )


def _each(constants: Constants, change: Any) -> Constants:
    return {
        kernel: {label: fit.model_copy(update=change(kernel, label, fit)) for label, fit in formats.items()}
        for kernel, formats in constants.items()
    }


def _shared(constants: Constants, shares: Shares, values: Values) -> Constants:
    """Vector kernels at the published streams, collectives as RCCL's; exchanges of experts as carried."""

    def change(kernel: str, label: str, fit: Fit) -> dict[str, Any]:
        if kernel.startswith("collective"):
            ours = shares.all_reduce
            same = {"basis": "calibrated"} if kernel == "collective.all_reduce" else {}
            return {name: getattr(ours, name) for name in ("memory", "overhead", "terms", "source", "n")} | same
        if kernel.startswith(("dispatch", "combine")):
            return {"error": {}}
        return {"memory": shares.copy, "overhead": fit.overhead * values["fixed"], "source": "BabelStream", "error": {}}

    return _each(constants, change)


def _library(constants: Constants, shares: Shares, values: Values, limited: bool) -> Constants:
    """The kernels of a library on this device; ``limited``: its own all-reduce takes no large messages."""

    def change(kernel: str, label: str, fit: Fit) -> dict[str, Any]:
        update: dict[str, Any] = {"overhead": fit.overhead * values["fixed"], "error": {}, "basis": "transferred"}
        if kernel.startswith("collective"):
            later = max(shares.all_reduce.overhead - update["overhead"], 0.0)
            fallback = {"fallback": later} if limited and kernel == "collective.all_reduce" else {}
            return update | {"memory": shares.all_reduce.memory, "terms": fit.terms | fallback}
        update["memory"] = min(fit.memory, shares.stream)
        if kernel == "matmul":
            reached = shares.matmul["bf16" if label.endswith("bf16") or label == ANY else "fp8"]
            update["math"] = min(1.0, fit.math * reached)
        elif kernel.startswith("grouped_matmul"):
            touched = {"experts": fit.terms["experts"] * values["touched"]} if "experts" in fit.terms else {}
            update |= {"math": min(1.0, fit.math * values["experts"]), "terms": fit.terms | touched}
        elif kernel.startswith(("attention.prefill", "mla")):
            update["math"] = min(1.0, fit.math * shares.attention)
        return update

    found = _each(_with_four_bits(constants), change)
    if "mla.decode" in found:
        found["mla.decode"] = {
            label: _latents(fit, found["mla.prefill"][ANY].math, values) for label, fit in found["mla.decode"].items()
        }
    return {kernel: {label: _rounded(fit) for label, fit in formats.items()} for kernel, formats in found.items()}


def _with_four_bits(constants: Constants) -> Constants:
    """The same with block-fp8 constants for mxfp4 weights."""

    def filled(formats: dict[str, Fit]) -> dict[str, Fit]:
        block = formats.get(BLOCK)
        return (
            formats if block is None else formats | {FOUR_BITS: block.model_copy(update={"source": f"{BLOCK} kernel"})}
        )

    return constants | {name: filled(constants[name]) for name in ("matmul", "grouped_matmul") if name in constants}


def _latents(fit: Fit, math: float, values: Values) -> Fit:
    """Decode attention on latents: AITER's kernel has a form for 16 heads, so nothing is padded (``aiter/mla.py``)."""
    return fit.model_copy(update={"math": math, "memory": values["latents"], "sharpness": 1.0, "terms": {}})


def _rounded(fit: Fit) -> Fit:
    return fit.model_copy(
        update={name: float(f"{getattr(fit, name):.4g}") for name in ("math", "memory", "overhead")}
        | {"terms": {name: float(f"{value:.4g}") for name, value in fit.terms.items()}, "flop_range": None}
        | {"bytes_range": None}
    )


def predicted(device: Device, rows: Sequence[Row], values: Values) -> Array:
    """Median TPOT and TTFT of each row in seconds: shape (rows, 2), NaN where it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{device.name}.yaml"
        write_calibration(device.calibration(values), file)
        found = price_rows(rows, Pricing(calibration=str(file)))
    return np.array(
        [
            [(one.prediction.at(name, "median") if one.prediction else None) or np.nan for name, _ in FIGURES]
            for one in found
        ]
    )


def measured(rows: Sequence[Row]) -> Array:
    """The same of what was measured."""
    return np.array([[row.measured.at(name, "median") or np.nan for name, _ in FIGURES] for row in rows])


def expected() -> dict[str, float]:
    """What the unknowns are expected to be."""
    return {name: unknown.start for name, unknown in UNKNOWNS.items()}


def fit_rows(device: Device, rows: Sequence[Row], names: Sequence[str], start: Values) -> dict[str, float]:
    """The unknowns ``names`` that bring the predictions of ``rows`` nearest to what was measured; the others stay."""
    values = dict(start)
    target, weight = np.log(measured(rows)), np.array([weight for _, weight in FIGURES])
    for _ in range(_STEPS):
        base = np.log(predicted(device, rows, values))
        nudged = [np.log(predicted(device, rows, values | {name: values[name] * _NUDGE})) for name in names]
        slopes = (np.array(nudged) - base) / np.log(_NUDGE)
        values |= _step({name: values[name] for name in names}, (base - target) * weight, slopes * weight)
    return values


def _step(values: Values, error: Array, slopes: Array) -> dict[str, float]:
    """One Gauss-Newton step inside the bounds."""
    unknowns = [UNKNOWNS[name] for name in values]
    flat = slopes.reshape(len(unknowns), -1).T
    found = pulled_step(unknowns, list(values.values()), error.ravel(), flat, PULL, _REACH)
    return {name: float(f"{value:.4g}") for name, value in zip(values, found)}


def ratios_of(device: Device, rows: Sequence[Row], values: Values) -> Array:
    """Measured over predicted TPOT and TTFT of each row: shape (rows, 2)."""
    found: Array = measured(rows) / predicted(device, rows, values)
    return found


def errors(ratios: Array) -> dict[str, dict[str, float]]:
    """Errors of TPOT and TTFT (:func:`calibrate.fit.ratio_errors`) with how many rows there are."""
    found = {}
    for column, (name, _) in enumerate(FIGURES):
        known = ratios[np.isfinite(ratios[:, column]), column]
        if len(known):
            found[name] = ratio_errors(known) | {"n": len(known)}
    return found
