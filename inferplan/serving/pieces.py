"""Figures of single requests of a long run, some of them at a time: the same to the last bit, in less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import floor, inf

import numpy as np

from inferplan.serving.class_results import percentile_among
from inferplan.serving.result import SimulationResult
from inferplan.units import Array

PIECE = 1 << 16
"""Requests that are looked at together."""
_SHIFT, _BINS = 48, 1 << 16
"""Values whose first 16 bits are the same are counted together: they differ by 6 % at the most."""


def pieces(run: SimulationResult) -> Iterator[SimulationResult]:
    """The requests of an open loop of which all count that are sent, as runs of their own, in order; nothing is said of
    steps."""
    count = run.counted.stop
    if count <= PIECE:
        yield run
        return
    for first in range(0, count, PIECE):
        some = slice(first, min(first + PIECE, count))
        yield replace(run, records=run.records.only(some), meters=(), cooldown=0)
        run.records.put_aside()


def percentile_in_pieces(run: SimulationResult, name: str, percentile: float) -> float:
    """:func:`inferplan.serving.class_results.at_percentile` of such a run."""

    def values() -> Iterator[Array]:
        return (getattr(piece, name) for piece in pieces(run))

    return percentile_of(values, percentile, run.counts["arrived"] - run.counts["finished"])


def percentile_of(values: Callable[[], Iterable[Array]], percentile: float, lost: int = 0) -> float:
    """:func:`inferplan.serving.class_results.percentile_beside` of values that come in pieces, as often as asked for:
    they are counted by their first bits, and then those are sorted that have the bits of the percentile.
    """
    counts = np.zeros(_BINS, dtype=np.int64)
    for piece in values():
        counts += np.bincount(_bins(piece), minlength=_BINS)
    reached = np.cumsum(counts)
    count = int(reached[-1])
    among = percentile_among(count, percentile, lost)
    if among is None:
        return inf
    place = (count - 1) * (among / 100)
    low = min(floor(place), count - 1)
    places = low, min(low + 1, count - 1)
    first, last = (int(np.searchsorted(reached, one, "right")) for one in places)
    near = [piece[(bins >= first) & (bins <= last)] for piece in values() for bins in (_bins(piece),)]
    found = np.sort(np.concatenate(near))
    before = int(reached[first - 1]) if first else 0
    under, over = (float(found[one - before]) for one in places)
    share = place - low
    return over - (over - under) * (1 - share) if share >= 0.5 else under + (over - under) * share  # as numpy has it


def _bins(values: Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The first bits of values, as numbers in the same order."""
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.int64)
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = ((bits ^ ((bits >> 63) & (2**63 - 1))) >> _SHIFT) + _BINS // 2
    return found
