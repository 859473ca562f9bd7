"""What a plan shall survive, and how often that happens: replicas or a node lost at a time, back after a restart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import NamedTuple

import numpy as np

from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.serving.cold_start import ColdStart, weights_of
from inferplan.serving.failures import on_a_node

YEAR = 365.25 * 86400.0
"""Seconds."""


class Availability(NamedTuple):
    """What to expect of a fleet whose units fail on their own. failures: units lost a year. degraded: share of the time
    in which any is missing. beyond: share in which more are than the plan survives."""

    failures: float
    degraded: float
    beyond: float


@dataclass(frozen=True, kw_only=True)
class Survive:
    """What is lost at a moment: so many ``replicas``, or all of one node (``None``). start: until a lost one is back
    (infinite: never); its weights are those of the replica that is looked at. mtbf: seconds between failures of one
    GPU, if anybody says.
    """

    start: ColdStart
    replicas: int | None = 1
    mtbf: float | None = None

    def __post_init__(self) -> None:
        if self.replicas is not None and self.replicas < 1:
            raise UsageError("--survive takes 1 or more replicas, or node", hint="--survive 1, or --survive node")
        if not self.start.seconds >= 0 or (self.start.seconds == 0 and not isfinite(self.start.bandwidth)):
            raise UsageError("--restart must be more than 0")
        if self.mtbf is not None and not self.mtbf > 0:
            raise UsageError("--mtbf must be more than 0")

    def lost(self, deployment: Deployment) -> int:
        """Replicas that are lost at a moment. Raises ``UsageError`` where nobody says how large a node is."""
        return self.replicas or self._per_node(deployment)

    def restart(self, deployment: Deployment) -> float:
        """Seconds until they are back."""
        if not isfinite(self.start.bandwidth):
            return self.start.seconds
        return replace(self.start, weights=weights_of(deployment), processes=deployment.parallel.ranks).seconds

    def _per_node(self, deployment: Deployment) -> int:
        return on_a_node(deployment, "--survive K for K replicas, or another --gpu")

    def units(self, deployment: Deployment, replicas: int) -> list[int]:
        """GPUs of each unit that fails as one: replicas, or nodes with those of their GPUs that are used."""
        ranks = deployment.parallel.ranks
        if self.replicas is not None:
            return [ranks] * replicas
        each = self._per_node(deployment)
        return [ranks * min(each, replicas - first) for first in range(0, replicas, each)]

    def availability(self, deployment: Deployment, replicas: int) -> Availability | None:
        """What to expect in the long run; ``None`` where nobody says how often a GPU fails.

        A unit of ``g`` GPUs is up for ``mtbf/g`` on average and then down for the restart: an alternating renewal
        process, down for the share ``restart/(mtbf/g + restart)`` of the time (Ross, *Introduction to Probability
        Models*, Regenerative Processes, alternating renewal processes). Units are independent.
        """
        if self.mtbf is None:
            return None
        restart, survived = self.restart(deployment), self.replicas or 1
        missing, failures = np.ones(1), 0.0
        for gpus in self.units(deployment, replicas):
            cycle = self.mtbf / gpus + restart
            down = restart / cycle
            failures += YEAR / cycle
            missing = np.convolve(missing, [1 - down, down])
        return Availability(failures, float(np.sum(missing[1:])), float(np.sum(missing[survived + 1 :])))
