"""Options of replicas that fail, and runs with them; ``simulate`` and ``day`` have them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import click

from inferplan.cli.cold_start_options import cold_start_of
from inferplan.cli.options import Count
from inferplan.cli.technique_options import quantity
from inferplan.errors import InfeasibleError, UsageError
from inferplan.serving.autoscaling import Schedule
from inferplan.serving.failures import Failure, FailureMode, Failures, on_a_node

if TYPE_CHECKING:
    from inferplan.estimate.deployment import Deployment
    from inferplan.serving.flags import Flags
    from inferplan.serving.options import Options
    from inferplan.serving.result import SimulationResult
    from inferplan.traffic.requests import Requests, Traffic

failure_options = (
    click.option(
        "--fail",
        "failures",
        multiple=True,
        metavar="WHAT",
        help="A loss of a replica at a time of the run: 600s, of two 600s:2, of a node node@600s. Repeat for more.",
    ),
    click.option(
        "--fail-mode",
        type=click.Choice(get_args(FailureMode)),
        help="cut: what it has begins anew elsewhere; drain: it finishes what it has, then restarts. [cut]",
    ),
    click.option(
        "--replicas-per-node",
        type=Count(),
        help="Replicas that a node takes with it. [as many as its GPUs hold]",
    ),
)


def failures_of(values: dict[str, Any], deployment: Deployment) -> Failures | None:
    """The losses that are asked for; ``None`` without any. Raises ``UsageError`` for options that change nothing."""
    asked = sorted((_failure(text) for text in values["failures"]), key=lambda failure: failure.at)
    node = any(failure.node for failure in asked)
    if values["replicas_per_node"] is not None and not node:
        raise UsageError("--replicas-per-node is of a node that fails, and none does", hint="--fail node@600s")
    if not asked:
        if values["fail_mode"] is not None:
            raise UsageError("--fail-mode is of replicas that fail, and none does", hint="--fail 600s")
        return None
    per_node = (values["replicas_per_node"] or on_a_node(deployment, "--replicas-per-node 4")) if node else None
    return Failures(at=tuple(asked), mode=values["fail_mode"] or "cut", per_node=per_node)


def _failure(text: str) -> Failure:
    """``600s``, ``600s:2`` or ``node@600s``."""
    node, rest = text.startswith("node@"), text.removeprefix("node@")
    when, colon, count = rest.partition(":")
    if (colon and node) or (colon and not (count.isdecimal() and 1 <= int(count) <= 10_000)):
        raise UsageError(
            f"--fail {text} is no failure",
            because="it is a time, with a number of replicas behind it or node@ before it",
            hint="--fail 600s, --fail 600s:2, or --fail node@600s",
        )
    at = quantity(when, "seconds", "--fail")
    assert at is not None
    return Failure(at=at, replicas=int(count) if colon else 1, node=node)


def run_with_failures(
    deployment: Deployment, traffic: Traffic | Requests, flags: Flags, options: Options
) -> SimulationResult:
    """As :func:`inferplan.serving.outages.simulate_failures`, which is only loaded here."""
    from inferplan.serving.outages import simulate_failures

    return simulate_failures(deployment, traffic, flags, options)


def with_failures(options: Options, values: dict[str, Any], deployment: Deployment) -> Options:
    """The run with replicas that fail, where any do: those of the deployment are there when it begins."""
    failures, restart = failures_of(values, deployment), cold_start_of(values, deployment, "--restart")
    if failures is None:
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
    fleet = replace(options.fleet, scaling=scaling, failures=failures)
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
