"""LoRA adapters in the closed form of a plan: how many a step has, what it waits for their loads, where slots run out.

docs/lora.md has the formulas. A step with so many sequences is priced with as many different adapters as these name on
average; a request whose adapter is in no slot holds up the step that admits it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import StepTime
from inferplan.planning.demand import Demand
from inferplan.serving.rounds import LoadedRounds
from inferplan.serving.techniques.lora import adapter_bytes, host_bandwidth
from inferplan.traffic.popularity import Popularity
from inferplan.units import Array, Num
from inferplan.work.adapters import Adapters, LoraAsked

_ROUNDS = 12
_MOST_EXPONENT = 500.0
"""An adapter of so many running requests is always in use; ``exp`` has no larger numbers."""


class AdapterLoads(NamedTuple):
    """Adapters that are brought to a device. missed: of the requests. seconds: one takes so long."""

    missed: float = 0.0
    seconds: float = 0.0

    @property
    def mean(self) -> float:
        """Seconds a request."""
        return self.missed * self.seconds

    def beyond_mean(self, tail: float) -> float:
        """Seconds that the request at the percentile with this share beyond it waits longer: all of a load where more
        requests than that have one."""
        return self.seconds - self.mean if self.missed > tail else 0.0


_SLOTS, _MOST_SLOTS = (1, 8), 64
"""Numbers of slots that a search tries where nobody names any, beside one for each adapter, and the most of these."""


def slots_tried(adapters: int) -> tuple[int, ...]:
    """The numbers of adapters in device memory that a search tries, for so many that requests name."""
    every = min(adapters, _MOST_SLOTS)
    return tuple(dict.fromkeys(min(slots, every) for slots in (*_SLOTS, every)))


def require_both(lora: LoraAsked, demand: Demand) -> None:
    """Raise ``UsageError`` for adapters of which only one half is said, and for what is not planned with them."""
    named = demand.adapters is not None
    if named and not lora.any:
        raise UsageError("requests name adapters, and the deployments have none", hint="--lora-rank 16")
    if lora.any and not named:
        raise UsageError("the popularity of adapters is missing", hint="--loras 100 --lora-skew 1")
    if demand.lora_bandwidth is not None and not named:
        raise UsageError("--lora-bandwidth needs adapters, and requests name none", hint="--loras 100 --lora-skew 1")
    if lora.active is not None:
        raise UsageError("a plan counts the adapters of a batch itself", hint="leave active out: slots are the most")


def with_adapter_counts(deployments: Sequence[Deployment], demand: Demand) -> list[Deployment]:
    """The deployments, of which a step has as many adapters as its sequences name on average."""
    if demand.adapters is None:
        return list(deployments)
    different = demand.adapters.different
    return [
        one if one.lora is None else replace(one, lora=replace(one.lora, different=different)) for one in deployments
    ]


def loads_of(deployment: Deployment, demand: Demand) -> AdapterLoads:
    """The loads of one engine's requests.

    Raises ``MissingFactError`` where nobody says how fast they come.
    """
    if deployment.lora is None or demand.adapters is None:
        return AdapterLoads()
    seconds = adapter_bytes(deployment) / host_bandwidth(deployment.hardware, demand.lora_bandwidth)
    return AdapterLoads(missed=demand.adapters.missed(deployment.lora.slots), seconds=seconds)


def with_loads(rounds: LoadedRounds, loads: AdapterLoads, coming: Array) -> LoadedRounds:
    """The rounds, of which those that hold prompts are longer by the loads of the ``coming`` prompts of every round, of
    all ranks that step together: one after another, which is the most that they take."""
    if not loads.mean:
        return rounds
    waiting: tuple[Num, ...] = (loads.mean * coming / rounds.held.share, *(0.0 for _ in rounds.own.fullest[1:]))
    return rounds._replace(own=rounds.own.plus(StepTime(fullest=waiting, mean=waiting)))


def slot_wait(lora: Adapters | None, demand: Demand, rate: Array, running: Array) -> Array | float:
    """Seconds that a request whose adapter is not in use waits at least until its slots are enough for all; 0 without
    adapters, and of a job, all requests of which are there from the beginning.

    rate: requests a second of an engine; running: those that run in it; alike in shape. An adapter that ``a = p C`` of
    the ``C`` running requests have is in use for a busy period of M/G/infinity, ``(exp(a) - 1)/(p rate)`` on average
    (Takacs 1962), then idle until its next request, ``1/(p rate)``, which waits for ``w``. So it is in use for a share
    ``(exp(a) - 1)/(exp(a) + p rate w)`` of the time; ``w`` is the least for which these add up to the slots. What
    gathers meanwhile makes busy periods longer than that: the wait is at least this.
    """
    if lora is None or demand.adapters is None or demand.offline:
        return 0.0
    popularity: Popularity = demand.adapters
    wait = np.zeros(np.shape(rate))
    short = popularity.different(running) > lora.slots
    if not np.any(short):
        return wait
    chance, number = popularity.few
    busy = np.exp(np.minimum(running[short][:, None] * chance, _MOST_EXPONENT))
    coming = rate[short][:, None] * chance
    found = np.zeros(len(busy))
    for _ in range(_ROUNDS):  # Newton's method on a convex falling function: from below, never beyond the root
        idle = busy + coming * found[:, None]
        share = number * (busy - 1.0) / idle
        over = np.sum(share, axis=1) - lora.slots
        found += np.maximum(over, 0.0) / np.sum(share * coming / idle, axis=1)
    wait[short] = found
    return wait


def with_slots(deployment: Deployment, slots: int) -> Deployment:
    """The deployment with so many slots, all of which may be in a batch."""
    assert deployment.lora is not None
    return replace(deployment, lora=replace(deployment.lora, slots=slots, active=float(slots)))
