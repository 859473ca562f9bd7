"""What many deployments have in common when they are priced one after another: steps, operators, runs of kernels."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from inferplan.estimate.deployment import Deployment
from inferplan.units import Num
from inferplan.work.ops import OperatorRun

T = TypeVar("T")
_MOST_RUNS = 400
"""Of four divisions in each format; of a grid each takes tens of kB."""


class Shared:
    """What was made for one deployment and is the same for others.

    It is known by the objects that it was made from, which are kept, so that no other comes to lie where they do.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[object, Any]] = {}
        self._device: tuple[object, ...] = ()
        self._runs: dict[OperatorRun, Num] = {}

    def of(self, objects: tuple[object, ...], beside: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` makes of these very objects and of what stands beside them, made once."""
        key = (*map(id, objects), beside)
        if key not in self._made:
            self._made[key] = objects, make()
        found: T = self._made[key][1]
        return found

    def runs_on(self, deployment: Deployment) -> dict[OperatorRun, Num]:
        """Seconds of runs that were priced on the device of a deployment, by its constants. Those of the device before
        it are forgotten, and all when they are many; where the host has a part of the model, none are shared."""
        if deployment.offload is not None or deployment.streamed is not None:
            return {}
        device = deployment.hardware, deployment.calibration, deployment.cap
        known = self._device and all(one is other for one, other in zip(self._device, device))
        if not known or len(self._runs) > _MOST_RUNS:
            self._device, self._runs = device, {}
        return self._runs
