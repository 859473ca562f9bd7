"""Batches that pass stations one after another, in the same order at each, many cycles at once.

One batch is sent by :func:`inferplan.estimate.phase.send`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, inf

from inferplan.estimate.phase import send

_ALIKE = 1e-9
"""Share of a cycle by which the lanes' periods may differ when the cycle is taken to repeat."""


class FlowShop:
    """Stations and when each is free, in seconds. The first one is the host that composes the batches."""

    def __init__(self, stations: int) -> None:
        self.free = [-inf] * stations

    def send(self, start: float, seconds: Sequence[float]) -> float:
        """A batch that is ready at ``start`` passes all stations: when it leaves the last."""
        return send(self.free, start, seconds)

    def cycles(
        self, back: Sequence[float], seconds: Sequence[Sequence[float]], count: int, bound: float
    ) -> Iterator[tuple[int, list[float]]]:
        """Send the batches of all lanes round again, ``count`` times at most, each as soon as it is back.

        ``back``: when each lane's batch is back, in the order they were sent; ``seconds``: each lane on each station.
        No batch is sent at or after ``bound``. Gives (number of cycles, when each lane is back at their end): cycle by
        cycle until one takes every lane and every station equally far, then all the others at once.
        """
        while count > 0:
            free, left, start = self.free.copy(), [], 0.0
            for ready, each in zip(back, seconds):
                start = max(ready, free[0])
                left.append(send(free, start, each))
            if start >= bound:
                return
            period = left[0] - back[0]
            steady = all(
                abs(after - before - period) <= _ALIKE * period
                for after, before in zip((*left, *free), (*back, *self.free))
            )
            self.free, back, count = free, left, count - 1
            yield 1, left
            repeats = count if start + count * period < bound else ceil((bound - start) / period) - 1
            if steady and repeats > 0:
                self.free = [time + repeats * period for time in free]
                back, count = [time + repeats * period for time in left], count - repeats
                yield repeats, back
