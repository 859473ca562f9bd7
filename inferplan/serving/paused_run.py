"""A run of a steady load in parts: what its first requests say, and more of it only where that does not settle it."""

from __future__ import annotations

from collections.abc import Sequence

from inferplan.estimate.deployment import Deployment
from inferplan.serving.batch_means import RunPrecision
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.serving.run_length import first_count, steady
from inferplan.serving.simulator import Prepared, prepare
from inferplan.traffic.requests import Traffic


class PausedRun:
    """The first run that :func:`inferplan.serving.run_length.simulate_steady` makes, with a pause as each of ``looks``
    requests has come: on engines that nothing connects (:meth:`inferplan.serving.cluster_run.ClusterRun.in_parts`).

    A look is no run of so many requests: others follow them, and nothing runs empty. looks: those that are still ahead.
    """

    def __init__(
        self,
        served: tuple[Deployment, Flags],
        traffic: Traffic,
        options: Options,
        precision: RunPrecision,
        looks: Sequence[int],
    ) -> None:
        count = first_count(precision)
        self.precision, self.looks = precision, [look for look in looks if look < count]
        self._run: Prepared | None = prepare(served[0], steady(traffic, count), served[1], options)
        self._parts = self._run.cluster.in_parts(self._run.fill, self.looks)
        self._whole: SimulationResult | None = None

    def go_on(self) -> SimulationResult:
        """What all requests up to the next look say."""
        assert self._run is not None
        next(self._parts)
        return self._run.so_far(self.looks.pop(0))

    def to_the_end(self) -> SimulationResult:
        """What the whole run says."""
        if self._whole is None:
            assert self._run is not None
            *_, meters = self._parts
            self._whole, self._run = self._run.result(meters), None
        return self._whole
