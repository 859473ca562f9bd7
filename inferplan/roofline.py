"""The roofline: work in, time out. No model words in this file.

Uncalibrated, ``t = max(flop/peak, bytes/bandwidth, wire/link)`` (Williams, Waterman, Patterson 2009, eq. 1). Calibrated,
``t = overhead + sum(c*count) + ((flop/(math*peak))^p + (bytes/(memory*bandwidth))^p)^(1/p)``, which is never less
(docs/formulas/roofline.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from inferplan.calibration import Calibration, Fit
from inferplan.hardware import HardwareSpec
from inferplan.ops import Attention, Collective, Conv, GroupedMatmul, Matmul, Op, Scan, Work
from inferplan.units import Num

Basis = Literal["roofline", "calibrated", "transferred", "extrapolated"]
Bound = Literal["math", "memory", "wire", "overhead"]
Effect = Literal["seconds", "math", "memory"]
_IDEAL_FIT = Fit()
TILE = 128
"""Rows and columns that one thread block of a matmul works on, queries and keys that one of an attention does."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Demand:
    """What one run of a kernel asks of a device: seconds at the datasheet's rates, and what further terms count."""

    math: Num
    memory: Num
    wire: Num
    counts: dict[str, Num]


@dataclass(frozen=True, kw_only=True, eq=False)
class Times:
    """A demand under the constants of a fit, in seconds."""

    math: Num
    memory: Num
    wire: Num
    overhead: Num
    total: Num


@dataclass(frozen=True, kw_only=True)
class Term:
    """A further physical constant ``c``: what it multiplies (``count``, zero or more) and what the product does.

    seconds: ``c*count`` is added. math, memory: that resource's time grows by the factor ``1 + c*count``. scale: a usual
    size of the constant.
    """

    effect: Effect
    scale: float
    meaning: str
    count: Callable[[Op, HardwareSpec], Num]


@dataclass(frozen=True, kw_only=True, eq=False)
class OpCost:
    """The price of one run of an operator on one rank, in seconds, and what its numbers rest on.

    band: factors on ``time`` between which 80 % of measurements lie; ``None`` where no held-out error is known.
    """

    op: Op
    work: Work
    time_math: Num
    time_memory: Num
    time_wire: Num
    overhead: Num
    time: Num
    basis: Basis
    band: tuple[float, float] | None = None

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
    """``(a^p + b^p)^(1/p)``: the sum at p = 1, the larger at infinity. Roots, not powers, at the usual p."""
    if np.isinf(sharpness):
        return np.maximum(a, b)
    if sharpness == 1.0:
        return a + b
    if sharpness == 2.0:
        return np.sqrt(a * a + b * b)
    if sharpness == 4.0:
        return np.sqrt(np.sqrt((a * a) ** 2 + (b * b) ** 2))
    if sharpness == 1.5:
        total = a * np.sqrt(a) + b * np.sqrt(b)
        return np.cbrt(total * total)
    high = np.maximum(a, b)
    ratio = np.minimum(a, b) / np.maximum(high, 1e-300)
    return high * np.power(1.0 + np.power(ratio, sharpness), 1.0 / sharpness)


def demand(op: Op, work: Work, hardware: HardwareSpec, terms: Iterable[str] = ()) -> Demand:
    """What ``op`` asks of ``hardware``, with the counts of the named terms.

    Raises ``MissingFactError`` when the device has no peak for the arithmetic, or no link for the group.
    """
    wire = 0.0
    if isinstance(op, Collective):
        link = hardware.link(op.span)
        wire = op.factor(link.switch_reduces) * op.elements * op.format.width / link.bandwidth
    return Demand(
        math=0.0 if op.math is None else work.flop / hardware.peak_of(op.math),
        memory=work.bytes / hardware.memory.bandwidth,
        wire=wire,
        counts={name: TERMS[name].count(op, hardware) for name in terms},
    )


def times(asked: Demand, fit: Fit) -> Times:
    """The one formula: a demand priced with the constants of a fit."""
    overhead: Num = fit.overhead
    stretch: dict[Effect, Num] = {"math": 1.0 / fit.math, "memory": 1.0 / fit.memory}
    for name, constant in fit.terms.items():
        effect = TERMS[name].effect
        if effect == "seconds":
            overhead = overhead + constant * asked.counts[name]
        else:
            stretch[effect] = stretch[effect] * (1.0 + constant * asked.counts[name])
    math, memory = asked.math * stretch["math"], asked.memory * stretch["memory"]
    wire = asked.wire / fit.memory
    busy = memory if asked.math is 0.0 else soft_maximum(math, memory, fit.sharpness)  # noqa: F632
    return Times(math=math, memory=memory, wire=wire, overhead=overhead, total=overhead + busy + wire)


def price(op: Op, hardware: HardwareSpec, calibration: Calibration) -> OpCost:
    """The time of one run of ``op`` on one rank of ``hardware``.

    Raises ``MissingFactError`` when the device has no peak for the arithmetic, or no link for the group.
    """
    fit = calibration.fit(op.kernel, op.label)
    work = op.work()
    chosen = fit or _IDEAL_FIT
    spent = times(demand(op, work, hardware, chosen.terms), chosen)
    return OpCost(
        op=op,
        work=work,
        time_math=spent.math,
        time_memory=spent.memory,
        time_wire=spent.wire,
        overhead=spent.overhead,
        time=spent.total,
        basis=_basis(fit, work, calibration),
        band=None if fit is None else fit.band,
    )


def _basis(fit: Fit | None, work: Work, calibration: Calibration) -> Basis:
    if fit is None:
        return "roofline"
    if not fit.covers(work.flop, work.bytes + work.wire):
        return "extrapolated"
    return "transferred" if "transferred" in (fit.basis, calibration.basis) else "calibrated"


def _blocks(size: Num, tile: int) -> Num:
    return np.ceil(size / tile)
