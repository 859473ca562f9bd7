"""How long to simulate: until the figures are as sure as they shall be.

A run begins with an empty system and ends with one, so its first quarter and its end are left out. It is long enough
when the rest holds many times of one request, its halves agree, and batch means put the percentile of TTFT and of TPOT
inside the tolerance; or when the queue is seen to grow. Each run that is not is repeated with as many requests as its
own errors ask for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np

from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.serving.batch_means import half_width, halves_agree
from inferplan.serving.flags import Flags
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import Options, simulate
from inferplan.serving.verdict import flow_of
from inferplan.traffic.requests import OpenLoop, Traffic

_MARGIN = 1.2
"""More requests than the errors of a shorter run ask for: those errors are estimates too."""
_MOST_GROWTH, _LEAST_GROWTH = 16.0, 1.5
"""By how much one run may be longer than the one before, at most and at least."""
LIFETIMES = 10.0
"""Times of one request, from admission on, that the counted part of a run holds at least."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """When a simulation is long enough.

    tolerance: half the width of the 95 % confidence interval of the ``percentile`` of TTFT and of TPOT over its value.
    fewest, most: requests of one run. A run that is not sure enough with ``most`` of them says so.
    """

    tolerance: float = 0.025
    percentile: float = 95.0
    fewest: int = 2000
    most: int = 200_000

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise UsageError(f"a tolerance is a share between 0 and 1, not {self.tolerance:g}")
        if not 0 < self.fewest <= self.most:
            raise UsageError(
                f"a run of {self.fewest} to {self.most} requests is none", hint="at least one, and no more"
            )


def simulate_steady(
    deployment: Deployment,
    traffic: Traffic,
    flags: Flags | None = None,
    options: Options | None = None,
    precision: Precision | None = None,
) -> SimulationResult:
    """Simulate an open loop for as long as its answer needs; fill and drain are in no figure.

    ``traffic.requests_count`` is not used. The result says ``converged`` and gives the ``interval`` of each figure.
    Raises what :func:`inferplan.serving.simulator.simulate` does, and ``UsageError`` for a closed loop.
    """
    if not isinstance(traffic.arrivals, OpenLoop):
        raise UsageError("a closed loop has a length of its own: a number of requests for each user")
    precision = precision or Precision()
    options = replace(options or Options(), trim=True)
    count = precision.fewest
    while True:
        result = simulate(deployment, replace(traffic, requests_count=count), flags, options)
        missing = _missing(result, precision)
        if missing <= 1 or count >= precision.most:
            return replace(result, converged=missing <= 1)
        growth = min(max(missing * _MARGIN, _LEAST_GROWTH), _MOST_GROWTH)
        count = min(ceil(count * growth), precision.most)


def _missing(result: SimulationResult, precision: Precision) -> float:
    """How many times as many requests the answer needs, by this run; 1 or less when it has them."""
    flow = flow_of(result)
    if flow is None:  # nothing, or next to nothing, could run
        return 0.0 if result.counts["rejected"] else inf
    short = LIFETIMES / flow.lifetimes if flow.lifetimes > 0 else inf
    if result.verdict == "overloaded":
        return short
    wanted = [short]
    for values in (result.ttft, result.tpot):
        if not len(values):
            continue
        error, value = half_width(values, precision.percentile), float(np.percentile(values, precision.percentile))
        if error is None:
            return inf
        wanted.append((error / (precision.tolerance * value)) ** 2 if value > 0 else 0.0)
        if not halves_agree(values, precision.percentile, precision.tolerance):
            wanted.append(2.0)
    return max(wanted)
