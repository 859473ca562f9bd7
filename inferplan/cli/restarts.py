"""What a replica takes to start, for ``day``, ``simulate`` and ``plan``; runs with replicas that fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from inferplan.catalog.loaders import loading_of
from inferplan.cli.declared import quantity
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.fields import question_if_asked, question_of
from inferplan.serving.autoscaling import Schedule
from inferplan.serving.cold_start import ColdStart, StartAsked, restart_missing, weights_of
from inferplan.serving.failures import FailuresAsked
from inferplan.serving.options import Options


def cold_start_of(values: dict[str, Any], deployment: Deployment | None, whole: str) -> ColdStart | None:
    """The time to start, or what it is made of; ``None`` where nothing says so. whole: the option that is all of it.

    Without a deployment its weights are still to be said.
    """
    asked = question_of(StartAsked, values)
    all_of_it = quantity(values[whole.removeprefix("--").replace("-", "_")], "seconds", whole)
    bandwidth, rest, measured = asked.bandwidth, asked.engine, ""
    if asked.log is not None:
        from inferplan.validation.startup_logs import engine_start

        if rest is not None:
            raise UsageError("--engine-start and --startup-log state the same", hint="leave one out")
        rest, measured = engine_start(Path(asked.log))
    if asked.loader is not None and bandwidth is None:
        raise UsageError(
            "--loader needs the bandwidth of the storage that it reads",
            hint="--storage-bandwidth 1GB/s --engine-start 45s",
        )
    if all_of_it is not None:
        if bandwidth is not None or rest is not None:
            raise UsageError(f"{whole} is the whole time", hint=f"--storage-bandwidth with --engine-start, or {whole}")
        return ColdStart(rest=all_of_it)
    if bandwidth is None and rest is None:
        return None
    if bandwidth is None or rest is None:
        raise UsageError(
            f"a {whole.removeprefix('--').replace('-', ' ')} is the weights and the engine",
            because=f"{'--storage-bandwidth' if bandwidth is None else '--engine-start or --startup-log'} is missing",
            hint=f"--storage-bandwidth 2GB/s --engine-start 45s, or {whole} 90s for all of it",
        )
    weights = 0.0 if deployment is None else weights_of(deployment)
    start = ColdStart(rest=rest, measured=measured, weights=weights, bandwidth=bandwidth)
    if asked.loader is None:
        return start
    loading, processes = loading_of(asked.loader), 1 if deployment is None else deployment.parallel.ranks
    return replace(start, start=loading.start, loader=loading.name, each=loading.bandwidth, processes=processes)


def with_failures(options: Options, values: dict[str, Any], deployment: Deployment) -> Options:
    """The run with replicas that fail, where any do: those of the deployment are there when it begins."""
    asked, restart = question_if_asked(FailuresAsked, values), cold_start_of(values, deployment, "--restart")
    if asked is None:
        if restart is not None:
            raise UsageError("a time to restart needs replicas that fail, and there are none", hint="--fail 600s")
        return options
    if restart is None:
        raise restart_missing("fails")
    scaling = Schedule(changes=((0.0, deployment.parallel.replicas),), cold_start=restart.seconds)
    fleet = replace(options.fleet, scaling=scaling, failures=asked.on(deployment))
    named = values["slo"] or values["workload"]  # of which the percentile is
    slo = options.slo if named else replace(options.slo, percentile=95.0)
    return replace(options, fleet=fleet, trim=False, slo=slo)
