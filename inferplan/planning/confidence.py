"""A plan at a confidence: the same question for devices that are as much slower as measurements say they may be.

The error of TPOT is that of a steady step, so every step is taken to be longer by its factor: replicas then carry less,
and their queues are longer. What the error of TTFT exceeds it by is added to TTFT alone. Beyond the 95th percentile
first tokens are late by seconds, too, where such were measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from inferplan.devices.constants import late_share, late_together
from inferplan.estimate.bands import serving_bands, slow_end
from inferplan.estimate.deployment import Deployment, found_once
from inferplan.estimate.load import Band
from inferplan.estimate.support import measured_tail
from inferplan.planning.grid import LoadGrid
from inferplan.traffic.requests import Slo

MIDDLE = 0.5
"""The prediction itself: a measurement is as likely above it as below."""
USUAL = 0.8
"""The confidence of the plan that is named where none is asked for and the error of some candidate is known."""
SAFE = 0.9
"""The slow end of an error band: nine in ten measurements are faster."""


class Slowness(NamedTuple):
    """Factors on predicted times. step: on every step. first: on TTFT, beyond that of the steps. tail: seconds by which
    TTFT is late at the 99th percentile, whatever the steps."""

    step: float = 1.0
    first: float = 1.0
    tail: float = 0.0

    def late(self, ttft: float) -> float:
        """Seconds by which first tokens come later than their steps make them, of a run in the devices' own time."""
        return ttft * self.step * (self.first - 1.0) if self.first != 1.0 else 0.0  # of an infinite one, too

    def of(self, latencies: Mapping[str, float], percentile: float) -> dict[str, float]:
        """Latencies of such a run at a percentile, TTFT among them, in seconds of the clock."""
        late = self.late(latencies["ttft"]) + self.tail * late_share(percentile)
        return {name: value * self.step + (late if name != "tpot" else 0.0) for name, value in latencies.items()}

    def of_session(self, duration: float, calls: float, ttft: float, percentile: float) -> float:
        """The time of a session at a percentile: as long as in such a run, with so many first tokens (the mean of
        sessions, at the ``ttft`` of the run) that come later, and what they are late by together beyond that."""
        late = self.tail * late_together(max(ceil(calls), 1), percentile) if self.tail else 0.0
        return duration * self.step + calls * self.late(ttft) + late


AS_PREDICTED = Slowness()


def metrics_of(slo: Slo) -> set[str]:
    """The metrics on whose errors it depends whether limits are kept: TPOT, by which every step is longer, and TTFT too
    for any limit but that on TPOT.
    """
    return {"tpot"} if set(slo.all_limits) <= {"tpot"} else {"tpot", "ttft"}


@found_once
def slowness(
    deployment: Deployment, prompt: float, slo: Slo, confidence: float, forms: tuple[str, ...] = ()
) -> Slowness | None:
    """How much slower the devices may be; ``None`` where no measurement says so for one of the limits.

    forms: what the option has beyond its deployment (:func:`lacking`).
    """
    if confidence == MIDDLE:
        return AS_PREDICTED
    factors = slow_end(_bands(deployment, prompt, forms), metrics_of(slo), confidence)
    if factors is None:
        return None
    found = measured_tail(deployment, "steady", forms) if "ttft" in factors else None
    tail = 0.0 if found is None else max(found.at(confidence), 0.0)
    return Slowness(factors["tpot"], max(factors.get("ttft", 1.0) / factors["tpot"], 1.0), tail)


@found_once
def _bands(deployment: Deployment, prompt: float, forms: tuple[str, ...]) -> dict[str, Band]:
    """The bands, which take two steps to price, once for every confidence."""
    return serving_bands(deployment, prompt, forms)


def slow_grid(grid: LoadGrid, slow: Slowness, percentile: float) -> LoadGrid:
    """The closed form's grid, of latencies at a percentile, for such devices: the same batches, longer steps, fewer
    requests a second."""
    if slow == AS_PREDICTED:
        return grid
    first, tail = slow.step * slow.first, slow.tail * late_share(percentile)
    return replace(
        grid,
        rate=grid.rate / slow.step,
        ttft=grid.ttft * first + tail,
        ttft_mean=grid.ttft_mean * first,
        tpot=grid.tpot * slow.step,
        e2el=grid.e2el * slow.step + grid.ttft * (first - slow.step) + tail,
        answer_ttft=grid.answer_ttft * slow.step + grid.ttft * (first - slow.step) + tail,
        step_decode=grid.step_decode * slow.step,
        step_mixed=grid.step_mixed * slow.step,
    )
