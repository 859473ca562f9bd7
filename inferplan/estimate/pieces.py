"""Where the steps of a generation are sampled so that their mean is exact while time is linear in what they look at.

Between the kinks of its masks a decode step reads as many more positions as it has come further; where entries or
blocks come whole, in stairs. Over whole stairs the steps ``i`` and ``n - 1 - i`` of ``n`` look at the same number
together, whatever ``i``: ``floor(i/r) + floor((n - 1 - i)/r) = n/r - 1`` where ``r`` divides ``n``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from inferplan.work.ops import Mask

Steps = npt.NDArray[np.float64]
Stairs = list[tuple[int, int]]
"""Periods, each with a context at which it begins; the smallest first, each divides the next."""


def stairs(masks: Collection[Mask]) -> tuple[Stairs, Stairs]:
    """The stairs that begin together with those below them, and the others."""
    together: Stairs = []
    others: Stairs = []
    for period, start in sorted({mask.stair for mask in masks if mask.stair is not None}):
        below = together[-1] if together else (1, 0)
        fits = period % below[0] == 0 and (start - below[1]) % below[0] == 0
        (together if fits else others).append((period, start))
    return together, others


def kinks(masks: Collection[Mask], low: float, high: float) -> list[float]:
    """Contexts between ``low`` and ``high`` at which a mask's reach changes its slope, or stairs cross others."""
    found = {kink for mask in masks for kink in mask.kinks(low, high)}
    for period, start in stairs(masks)[1]:
        places = range(int((low - start) // period) + 1, int((high - start) // period) + 1)
        found |= {float(start + place * period) for place in places}
    return sorted(found)


def pieces_of_steps(prompt: Steps, low: Steps, high: Steps, climbed: Stairs) -> Iterator[tuple[Steps, Steps]]:
    """The steps from ``low`` to ``high`` after ``prompt``, cut so that each piece has whole stairs or stands on one."""
    ends = []
    for period, start in climbed:
        first = np.ceil(np.ceil((prompt + low - start) / period) * period + start - prompt)
        last = np.ceil(np.floor((prompt + high - start) / period) * period + start - prompt)
        inside = first <= last
        first, last = np.where(inside, first, high), np.where(inside, last, high)
        yield low, first
        ends.append((last, high))
        low, high = first, last
    yield low, high
    yield from reversed(ends)


def quadrature_pair(prompt: Steps, low: Steps, high: Steps, climbed: Stairs) -> Steps:
    """The contexts of two steps that stand for those from ``low`` to ``high``: (2, ...), two-point Gauss quadrature.

    ``n`` steps about ``c`` are sampled at ``c +- sqrt((n^2 - 1)/12)``: their first three moments are matched, so the
    mean is exact for a cubic. On stairs the nearest steps are taken.
    """
    count = high - low
    half, spread = np.maximum(count - 1.0, 0.0) / 2, np.sqrt(np.maximum(count * count - 1.0, 0.0) / 12.0)
    inset = half - spread
    if climbed:
        inset = np.round(inset)
    return np.stack([prompt + low + inset, prompt + low + 2 * half - inset])
