"""How long to simulate: until the figures are as sure as they shall be.

A run begins with an empty system and ends with one, so its first quarter and its end are left out. It is long enough
when the rest holds many times of one request, its halves agree, and batch means put the percentile of TTFT and of TPOT
inside the tolerance; or when the queue is seen to grow. Each run that is not is repeated with as many requests as its
own errors ask for.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

import numpy as np

from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.serving.batch_means import RunPrecision, fewest_values, half_width, halves_agree
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.records import FINISHED, REJECTED
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import simulate
from inferplan.serving.verdict import flow_of
from inferplan.traffic.conversations import ThinkTime
from inferplan.traffic.requests import ClosedLoop, OpenLoop, Requests, Traffic
from inferplan.units import Array

_MARGIN = 1.2
"""More requests than the errors of a shorter run ask for: those errors are estimates too."""
_MOST_GROWTH, _LEAST_GROWTH = 16.0, 1.5
"""By how much one run may be longer than the one before, at most and at least."""
_LONG, _FAR, WORTH = 30_000, 2.0, 0.5
"""A run of so many requests that by its own errors needs so many times as many, and more than this share of the most,
is not repeated: near capacity, where that is so, errors are larger than they look, and the most would not settle it."""
_LIFETIMES_IN_VAIN = 100.0
"""Times of one request that such a run holds: that of a large fleet is short with many requests."""
COUNTED = 0.75
"""Share of the requests, or of the time, of a run that comes after the fill."""
LIFETIMES = 10.0
"""Times of one request from admission on, or of a conversation, that the counted part of a run holds at least."""
_PLAIN_GROWTH, _PLAIN_LIFETIMES = 0.25, 3.0
"""A queue that takes up so large a share of the arrivals is one after fewer of them."""
_FEW = 20
"""Requests that show that none can run."""
_FEWEST_FOR_CAPACITY = 3000
_GENERATIONS = 10.0
"""How often a run that measures capacity fills the system, at least."""
_STEADY = 0.03
"""By how much pools may leave faster in one half of a run than in the other when their capacity is measured."""
_PLACES = 201
"""Times of the span at which is counted how many have left."""
_FILLED, _DRAINS = 0.3, 0.85
"""Shares of the requests of such a run that have left when the system is full, and while it still is with pools."""


def simulate_load(
    deployment: Deployment,
    traffic: Traffic | Requests,
    flags: Flags | None = None,
    options: Options | None = None,
    precision: RunPrecision | None = None,
) -> SimulationResult:
    """Simulate a load for its steady figures: an open loop as long as its answer needs, or as many requests as it
    gives, with its capacity. A trace is counted whole, and so is a burst of users: it is what such a client reports.
    """
    options = options or Options()
    if not isinstance(traffic, Traffic) or not isinstance(traffic.arrivals, OpenLoop):
        loop = traffic.arrivals if isinstance(traffic, Traffic) else traffic.loop
        spread = not loop.burst if isinstance(loop, ClosedLoop) else _drawn_sessions(traffic)
        return simulate(deployment, traffic, flags, replace(options, trim=options.trim and spread))
    if traffic.requests_count is None and options.trim:
        result = simulate_steady(deployment, traffic, flags, options, precision)
    else:
        result = simulate(deployment, traffic, flags, options)
    rate = capacity_rate(deployment, traffic, flags, options, precision)
    if not options.tiers:
        return replace(result, capacity_rate=rate)
    bare = capacity_rate(deployment, traffic, flags, replace(options, tiers=()), precision)
    return replace(result, capacity_rate=rate, untiered_rate=bare)


def _drawn_sessions(traffic: Traffic | Requests) -> bool:
    """Whether a load is of sessions that were drawn, not those of a trace."""
    return isinstance(traffic, Requests) and traffic.sessions is not None and traffic.sessions.recipe is not None


def simulate_steady(
    deployment: Deployment,
    traffic: Traffic,
    flags: Flags | None = None,
    options: Options | None = None,
    precision: RunPrecision | None = None,
) -> SimulationResult:
    """Simulate an open loop for as long as its answer needs; fill and drain are in no figure.

    ``traffic.requests_count`` is not used. The result says ``converged`` and gives the ``interval`` of each figure.
    Raises what :func:`inferplan.serving.simulator.simulate` does, and ``UsageError`` for a closed loop.
    """
    if not isinstance(traffic.arrivals, OpenLoop):
        raise UsageError("a closed loop has a length of its own: a number of requests for each user")
    precision = precision or RunPrecision()
    options = replace(options or Options(), trim=True)
    traffic = replace(traffic, arrivals=replace(traffic.arrivals, exact=True))
    count = ceil(min(max(precision.fewest, precision.counted / COUNTED), precision.most))
    while True:
        result = simulate(deployment, replace(traffic, requests_count=count), flags, options)
        if set(result.records.status) == {REJECTED}:  # nothing runs, and nothing converges
            return simulate(deployment, replace(traffic, requests_count=min(count, _FEW)), flags, options)
        ended, count = as_sure_as(result, precision)
        if ended is not None:
            return ended


def as_sure_as(result: SimulationResult, precision: RunPrecision) -> tuple[SimulationResult | None, int]:
    """A run of a steady load with what it says of a precision, and its requests; ``None`` where it is to be longer, and
    the requests of the next one.
    """
    missing, count = _missing(result, precision), len(result.records.prompt)
    in_vain = count >= _LONG and missing > _FAR and missing * count > WORTH * precision.most
    if missing <= 1 or count >= precision.most or (in_vain and _settled(result)):
        return replace(result, converged=missing <= 1, precision=precision), count
    growth = min(max(missing * _MARGIN, _LEAST_GROWTH), _MOST_GROWTH)
    return None, min(ceil(count * growth), precision.most)


def _settled(result: SimulationResult) -> bool:
    """Whether a run says all of the load that a longer one would, but for the errors of its figures."""
    flow = flow_of(result)
    long = flow is not None and flow.lifetimes >= _LIFETIMES_IN_VAIN
    return long and result.verdict not in ("overloaded", "too short to tell")


def _missing(result: SimulationResult, precision: RunPrecision) -> float:
    """How many times as many requests the answer needs, by this run; 1 or less when it has them."""
    flow = flow_of(result)
    if flow is None:  # nothing, or next to nothing, could run
        return inf
    short = LIFETIMES / flow.lifetimes if flow.lifetimes > 0 else inf
    if result.verdict == "overloaded":
        return short * (_PLAIN_LIFETIMES / LIFETIMES if flow.growth > _PLAIN_GROWTH else 1.0)
    wanted = [short]
    for values in (result.ttft, result.tpot):
        if not len(values):
            continue
        error, value = half_width(values, precision.percentile), float(np.percentile(values, precision.percentile))
        if error is None:
            wanted.append(fewest_values(precision.percentile) / len(values))
            continue
        wanted.append((error / (precision.tolerance * value)) ** 2 if value > 0 else 0.0)
        if not halves_agree(values, precision.percentile, precision.tolerance):
            wanted.append(2.0)
    return max(wanted)


def capacity_rate(
    deployment: Deployment,
    traffic: Traffic,
    flags: Flags | None = None,
    options: Options | None = None,
    precision: RunPrecision | None = None,
) -> float | None:
    """Requests a second that leave when more wait than can be served: the most load from which a queue still goes away.

    Where the cache is short, somewhat more can be served for as long as no queue forms: with the cache full, what is
    preempted is computed again, and less leaves. A load between the two runs well until a burst fills the cache.
    Turns of a conversation follow their answers at once: with enough conversations somebody always sends, however long
    each user thinks. Requests leave in the order in which they came, whatever the order of the queue: from an endless
    one, only the first class would leave. Replicas are alike, so one of them is simulated; pools that compute prompts
    apart all are, and replicas that share a cache tier. No run is longer than the ``precision`` allows. ``None`` when
    no request can run.
    """
    most = (precision or RunPrecision()).most
    traffic = replace(traffic, prefix=replace(traffic.prefix, think=ThinkTime()))
    options = replace(options or Options(), warmup=0, trim=False, timeline=False, progress=None)
    flags = replace(flags or Flags(), client_timeout=None, queue="fcfs")
    replicas = 1
    if not options.fleet.disaggregated and not any(tier.shared for tier in options.tiers):
        replicas = deployment.parallel.replicas
        deployment = replace(deployment, parallel=replace(deployment.parallel, replicas=1))
    count = min(_FEWEST_FOR_CAPACITY, most)
    while True:
        requests = replace(traffic, requests_count=count).requests(deployment.engine.defaults.block_size)
        run = simulate(deployment, replace(requests, arrival=np.zeros(len(requests))), flags, options)
        finish = np.sort(np.asarray(run.records.finish)[run.records.outcome == FINISHED])
        if not len(finish):
            return None
        full = float(np.nanmax(np.asarray(run.records.admitted)))
        start, inside = float(finish[int(_FILLED * len(finish))]), int(np.sum(finish > full))
        longer = _GENERATIONS * inside / len(finish)
        if options.fleet.disaggregated:  # prompts run ahead of decodes: admission says nothing of those
            full = float(finish[int(_DRAINS * len(finish))])
            sorts = requests.adapters is not None  # who has a slot overtakes: halves of an endless queue never agree
            longer = 1.0 if sorts or _steady(finish, start, full) else 2.0
        if longer <= 1 or count >= most:
            break
        count = min(ceil(_MARGIN * longer * count), most)
    if not full > start:
        return None
    if run.records.follows is None:
        return replicas * _leaving(finish, start, full)
    return replicas * int(np.sum((finish > start) & (finish <= full))) / (full - start)  # later turns are longer


def _leaving(finish: Array, start: float, stop: float) -> float:
    """Requests a second that leave in a span: the slope of a least-squares line through how many have left.

    Requests of equal length leave in waves. By the number at both ends of the span the rate would be off by up to a
    wave over all of them, by a line only by the square of that.
    """
    times = np.linspace(start, stop, _PLACES)
    return float(np.polyfit(times - start, np.searchsorted(finish, times, "right"), 1)[0])


def _steady(finish: Array, start: float, stop: float) -> bool:
    """Whether requests leave as fast in the second half of a span as in the first, within :data:`_STEADY`."""
    counts = np.histogram(finish, bins=[start, (start + stop) / 2, stop])[0]
    return bool(abs(counts[1] - counts[0]) <= _STEADY * counts[0])
