"""Batches that pass stations one after another, in the same order at each, many cycles at once.

One batch is sent by :func:`inferplan.estimate.phase.send`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, inf
from typing import NamedTuple

from inferplan.estimate.phase import send

_ALIKE = 1e-9
"""Share of a cycle by which the lanes' periods may differ when the cycle is taken to repeat."""


class Passage(NamedTuple):
    """One batch. stations: its seconds on each. behind: for how long the host is busy with it once it has sent it on,
    so that the next batch is composed later."""

    stations: Sequence[float]
    behind: float = 0.0


class FlowShop:
    """Stations and when each is free, in seconds. The first one is the host that composes the batches."""

    def __init__(self, stations: int) -> None:
        self.free = [-inf] * stations

    def send(self, start: float, batch: Passage) -> float:
        """A batch that is ready at ``start`` passes all stations: when it leaves the last."""
        return _send(self.free, start, batch)

    def cycles(
        self, back: Sequence[float], batches: Sequence[Passage], count: int, bound: float
    ) -> Iterator[tuple[int, list[float]]]:
        """Send the batches of all lanes round again, ``count`` times at most, each as soon as it is back.

        ``back``: when each lane's batch is back, in the order they were sent; ``batches``: of each lane.
        No batch is sent at or after ``bound``. Gives (number of cycles, when each lane is back at their end): cycle by
        cycle until one takes every lane and every station equally far, then all the others at once.
        """
        places = range(1, len(self.free))
        while count > 0:
            free, left, start = self.free.copy(), [], 0.0
            for ready, (stations, behind) in zip(back, batches):  # :func:`_send`, without a call
                host, start = stations[0], free[0]
                start = ready if ready > start else start
                time = start + host
                free[0] = time + behind
                for station in places:
                    begun = free[station] + host
                    time = free[station] = (begun if begun > time else time) + stations[station]
                left.append(time)
            if start >= bound:
                return
            period, before, was = left[0] - back[0], back, self.free
            self.free, back, count = free, left, count - 1
            yield 1, left
            if not count:
                return
            repeats = count if start + count * period < bound else ceil((bound - start) / period) - 1
            if repeats > 0 and _steady((*left, *free), (*before, *was), period):
                self.free = [time + repeats * period for time in free]
                back, count = [time + repeats * period for time in left], count - repeats
                yield repeats, back


def _steady(after: Sequence[float], before: Sequence[float], period: float) -> bool:
    """Whether all times have moved on by a period."""
    most = _ALIKE * period
    for now, then in zip(after, before):  # noqa: SIM110 (a generator takes twice as long)
        if not abs(now - then - period) <= most:
            return False
    return True


def _send(free: list[float], start: float, batch: Passage) -> float:
    back = send(free, start, batch.stations)
    free[0] += batch.behind
    return back
