"""Runs with replicas that fail."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inferplan.cli.cold_start_options import cold_start_of
from inferplan.errors import InfeasibleError, UsageError
from inferplan.fields import made_if_asked
from inferplan.serving.autoscaling import Schedule
from inferplan.serving.failures import FailuresAsked

if TYPE_CHECKING:
    from inferplan.estimate.deployment import Deployment
    from inferplan.serving.flags import Flags
    from inferplan.serving.options import Options
    from inferplan.serving.result import SimulationResult
    from inferplan.traffic.requests import Requests, Traffic


def run_with_failures(
    deployment: Deployment, traffic: Traffic | Requests, flags: Flags, options: Options
) -> SimulationResult:
    """As :func:`inferplan.serving.outages.simulate_failures`, which is only loaded here."""
    from inferplan.serving.outages import simulate_failures

    return simulate_failures(deployment, traffic, flags, options)


def with_failures(options: Options, values: dict[str, Any], deployment: Deployment) -> Options:
    """The run with replicas that fail, where any do: those of the deployment are there when it begins."""
    asked, restart = made_if_asked(FailuresAsked, values), cold_start_of(values, deployment, "--restart")
    if asked is None:
        if restart is not None:
            raise UsageError("a time to restart is of replicas that fail, and none does", hint="--fail 600s")
        return options
    if restart is None:
        raise UsageError(
            "what fails is back after a time to restart, and none is given",
            because="nobody knows it without your storage and your engine",
            hint="--restart 3min, or --storage-bandwidth 2GB/s with --engine-start 45s (or --startup-log FILE)",
        )
    scaling = Schedule(changes=((0.0, deployment.parallel.replicas),), cold_start=restart.seconds)
    fleet = replace(options.fleet, scaling=scaling, failures=asked.on(deployment))
    named = values["slo"] or values["workload"]  # of which the percentile is
    slo = options.slo if named else replace(options.slo, percentile=95.0)
    return replace(options, fleet=fleet, trim=False, slo=slo)


def unrecovered(result: SimulationResult) -> InfeasibleError | None:
    """The error of a fleet that is not as before when the last request comes."""
    from inferplan.serving.outages import Outages

    seen = Outages(result)
    if seen.recovered:
        return None
    if not seen.filled:
        return InfeasibleError(
            f"not recovered: no request was done before the failure at {result.outages[0].at:,.4g} s",
            because="what the fleet had by then is less than what it has at this load, so no backlog falls to it",
            hint=f"a later --fail: a request takes {seen.typical:,.3g} s",
        )
    waiting = seen.in_fleet(seen.end, seen.end)[1]
    return InfeasibleError(
        "not recovered: the backlog of a failure is not gone when the last request comes",
        because=f"{waiting:,} requests are in the fleet then, {seen.level:,.1f} on average before the failure",
        hint="more --requests where it falls, more --replicas or a lower --rate where it does not",
    )
