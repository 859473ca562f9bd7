"""Constants fitted by Gauss-Newton steps inside the bounds that physics allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from calibrate.fit import SOFT
from inferplan.units import Array


class Unknown(NamedTuple):
    """A constant to fit: what is expected of it, and between which values physics allows it."""

    start: float
    low: float
    high: float
    meaning: str


def pulled_step(
    unknowns: Sequence[Unknown], at: Sequence[float], error: Array, slope: Array, pull: float, reach: float
) -> Array:
    """The constants that fit linearised rows best, at most a factor ``exp(reach)`` from ``at`` and inside their bounds.

    error: logarithms of predicted over measured, shape (n,); slope: how they change with the logarithm of each
    constant, shape (n, constants). What is not finite is left out. pull: how strongly each is held to what is expected.
    """
    centre, usual = np.log(at), np.log([unknown.start for unknown in unknowns])
    low = np.maximum(np.log([unknown.low for unknown in unknowns]) - centre, -reach) - 1e-9
    high = np.minimum(np.log([unknown.high for unknown in unknowns]) - centre, reach) + 1e-9
    known = np.isfinite(error) & np.all(np.isfinite(slope), axis=1)
    error, slope = error[known], slope[known]

    def residual(x: Array) -> Array:
        return np.concatenate([error + slope @ x, pull * (x - (usual - centre))])

    found = least_squares(residual, np.clip(0.0, low, high), bounds=(low, high), loss="soft_l1", f_scale=SOFT)
    return np.asarray(np.exp(centre + found.x))
