"""Fitted constants: how far kernels stay from the datasheet, per operator, format and kernel library.

With :data:`IDEAL` every constant is one or zero: the speed of light. A :class:`Calibration` read from
``configs/calibration`` says where it was measured, over which shapes it holds and how far off it was on shapes that it
was not fitted to.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from inferplan.spec import Spec
from inferplan.units import Num


class Fit(Spec):
    """The constants of one kernel (design: docs/formulas/roofline.md).

    ``t = overhead + ((flop/(math*peak))^p + (bytes/(memory*bandwidth))^p)^(1/p)`` with ``p = sharpness``. Efficiencies
    are in (0, 1] and sharpness is at least 1, so no constant makes a kernel faster than its roofline.
    """

    math: float = Field(default=1.0, gt=0.0, le=1.0)
    memory: float = Field(default=1.0, gt=0.0, le=1.0)
    overhead: float = Field(default=0.0, ge=0.0)
    """Seconds a run, whatever its size."""
    sharpness: float = Field(default=float("inf"), ge=1.0)
    """How sharply the slower resource hides the faster one: 1 adds them, infinity takes the larger."""
    terms: dict[str, float] = {}
    """Further physical constants by name; :mod:`inferplan.roofline` says what each does to its kernel."""
    n: int = 0
    """Measurements fitted."""
    error: dict[str, float] = {}
    """Held-out error as fractions: mape, median, p90, bias."""
    flop_range: tuple[float, float] | None = None
    """Smallest and largest FLOP of the shapes that the fit saw."""
    bytes_range: tuple[float, float] | None = None

    def covers(self, flop: Num, moved: Num) -> bool:
        """Whether the work lies in the range that the fit saw."""
        for value, bounds in ((flop, self.flop_range), (moved, self.bytes_range)):
            if bounds is not None and (np.min(value) < bounds[0] or np.max(value) > bounds[1]):
                return False
        return True


class StepConstants(Spec):
    """What a step costs beyond its kernels, in seconds."""

    host: float = Field(default=0.0, ge=0.0)
    """Scheduling, input preparation and sampling, for each step."""
    layer: float = Field(default=0.0, ge=0.0)
    """Launches and synchronisation, for each layer."""
    sequence: float = Field(default=0.0, ge=0.0)
    """Bookkeeping and detokenising, for each sequence in the step."""


class Anchor(Spec):
    """One scalar for each phase from a user's own measured rows, and how many rows stand behind it."""

    prefill: float = Field(default=1.0, gt=0.0)
    decode: float = Field(default=1.0, gt=0.0)
    rows: int = Field(ge=1)


class Calibration(Spec):
    """Constants by kernel: ``constants["matmul"]["bf16"]``, with ``"any"`` for kernels whose format does not matter."""

    name: str
    basis: Literal["roofline", "calibrated", "transferred"] = "calibrated"
    provenance: dict[str, Any] = {}
    constants: dict[str, dict[str, Fit]] = {}
    step: StepConstants = StepConstants()
    anchor: Anchor | None = None
    held_out: dict[str, Any] = {}
    range: dict[str, Any] = {}
    fused: bool = False
    """Epilogues (residuals, rotary, activation products, KV writes, norms) cost nothing of their own."""

    def fit(self, kernel: str, label: str) -> Fit | None:
        """The constants of a kernel in a format; ``None`` when nobody has measured it."""
        formats = self.constants.get(kernel)
        return None if formats is None else formats.get(label, formats.get("any"))


IDEAL = Calibration(name="ideal", basis="roofline", fused=True)
"""The speed of light: every kernel saturates the resource that binds it, epilogues are free, nothing else costs time."""
