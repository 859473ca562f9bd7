"""The roofline: work in, time out. No model words in this file.

Uncalibrated, ``t = max(flop/peak, bytes/bandwidth, wire/link)`` (Williams, Waterman, Patterson 2009, eq. 1). Calibrated,
``t = overhead + ((flop/(math*peak))^p + (bytes/(memory*bandwidth))^p)^(1/p)``, which is never less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from inferplan.calibration import Calibration, Fit
from inferplan.hardware import HardwareSpec
from inferplan.ops import Collective, Op, Work
from inferplan.units import Num

Basis = Literal["roofline", "calibrated", "transferred", "extrapolated"]
Bound = Literal["math", "memory", "wire", "overhead"]
_IDEAL_FIT = Fit()


@dataclass(frozen=True, kw_only=True, eq=False)
class OpCost:
    """The price of one run of an operator on one rank, in seconds, and what its numbers rest on."""

    op: Op
    work: Work
    time_math: Num
    time_memory: Num
    time_wire: Num
    overhead: Num
    time: Num
    basis: Basis

    @property
    def total(self) -> Num:
        """Seconds of all its runs in the step."""
        return self.time * self.op.count

    @property
    def intensity(self) -> Num:
        """FLOP per byte of device memory traffic."""
        return self.work.flop / np.maximum(self.work.bytes, 1e-300)

    @property
    def bound(self) -> Bound:
        """What binds it (of a grid: its largest point)."""
        parts: dict[Bound, Num] = {
            "math": self.time_math,
            "memory": self.time_memory,
            "wire": self.time_wire,
            "overhead": self.overhead,
        }
        return max(parts, key=lambda name: float(np.max(parts[name])))


def soft_maximum(a: Num, b: Num, sharpness: float) -> Num:
    """``(a^p + b^p)^(1/p)``: the sum at p = 1, the larger at infinity."""
    if np.isinf(sharpness):
        return np.maximum(a, b)
    if sharpness == 1.0:
        return a + b
    if sharpness == 2.0:
        return np.sqrt(a * a + b * b)
    high = np.maximum(a, b)
    ratio = np.minimum(a, b) / np.maximum(high, 1e-300)
    return high * np.power(1.0 + np.power(ratio, sharpness), 1.0 / sharpness)


def price(op: Op, hardware: HardwareSpec, calibration: Calibration) -> OpCost:
    """The time of one run of ``op`` on one rank of ``hardware``.

    Raises ``MissingFactError`` when the device has no peak for the arithmetic, or no link for the group.
    """
    fit = calibration.fit(op.kernel, op.label)
    work = op.work()
    basis: Basis = "roofline"
    if fit is not None:
        inside = fit.covers(work.flop, work.bytes + work.wire)
        basis = "extrapolated" if not inside else "transferred" if calibration.basis == "transferred" else "calibrated"
    fit = fit or _IDEAL_FIT
    if isinstance(op, Collective):
        return _price_collective(op, hardware, fit, basis)
    time_math = 0.0 if op.math is None else work.flop / (fit.math * hardware.peak_of(op.math))
    time_memory = work.bytes / (fit.memory * hardware.memory.bandwidth)
    return OpCost(
        op=op,
        work=work,
        time_math=time_math,
        time_memory=time_memory,
        time_wire=0.0,
        overhead=fit.overhead,
        time=fit.overhead + soft_maximum(time_math, time_memory, fit.sharpness),
        basis=basis,
    )


def _price_collective(op: Collective, hardware: HardwareSpec, fit: Fit, basis: Basis) -> OpCost:
    link = hardware.link(op.span)
    wire = op.factor(link.switch_reduces) * op.elements * op.format.width
    overhead = fit.overhead + fit.terms.get("overhead_per_doubling", 0.0) * float(np.log2(op.group))
    time_wire = wire / (fit.memory * link.bandwidth)
    return OpCost(
        op=op,
        work=Work(wire=wire),
        time_math=0.0,
        time_memory=0.0,
        time_wire=time_wire,
        overhead=overhead,
        time=overhead + time_wire,
        basis=basis,
    )
