"""Which runs of a system to measure, so that its other loads are known best (docs/anchors.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import floor

import numpy as np

from inferplan.answers.emit import Launch, launch, node_script
from inferplan.answers.emit.benchmark import CLIENTS, SILENT, benchmark, facts
from inferplan.answers.emit.engines import shell
from inferplan.catalog.assemble import Request, anchor_process, assemble
from inferplan.devices.anchors import AXES, METRICS, AnchorLoad, ErrorProcess, System, next_runs
from inferplan.errors import InfeasibleError, InferplanError, UsageError
from inferplan.estimate.anchoring import system_of
from inferplan.estimate.batch import Estimate
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import Band, StaticLoad
from inferplan.units import Array

MOST_LOADS = 4000
"""Loads among which runs are chosen: each is weighed against each, in 8 bytes for each pair."""

DEGREES = ("tp", "pp", "ep", "dp")
"""Degrees in which divisions of a system differ."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SuggestedRun:
    """A run to measure: the load, the command of the server and that of its client; note: why there is none."""

    load: AnchorLoad
    division: str
    server: str | None
    benchmark: str | None
    result: str
    note: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Suggestion:
    """The runs; the mean 80 % band over all loads asked about without, and with, what they will say.

    loads: how many that are. dropped: loads that the engine does not run at once, in words.
    """

    system: System
    runs: list[SuggestedRun]
    loads: int
    measured: int
    before: dict[str, Band]
    after: dict[str, Band]
    dropped: int
    fit: str


@dataclass(frozen=True)
class AnchorLoads:
    """What is asked about: every combination of users, prompt and output."""

    users: Sequence[int]
    prompt: Sequence[int]
    output: Sequence[int]


def suggest(requests: Sequence[Request], loads: AnchorLoads, count: int, checkpoint: str | None = None) -> Suggestion:
    """``count`` runs among ``loads`` on each division that ``requests`` differ in.

    checkpoint: of the weights, where it is named. With an anchor in the requests, the next ones beside its rows.
    Raises ``InfeasibleError`` where no load runs.
    """
    process = anchor_process()
    deployments = [assemble(request) for request in requests]
    total = len(deployments) * len(loads.users) * len(loads.prompt) * len(loads.output)
    if total > MOST_LOADS:
        raise UsageError(
            f"{total:,} loads are more than are weighed against each other",
            because=f"{MOST_LOADS:,} are the most",
            hint="a wider step, such as --concurrency 1-256*2",
        )
    asked = [(index, load) for index, one in enumerate(deployments) for load in _running(one, loads)]
    if not asked:
        raise InfeasibleError(
            f"{deployments[0].describe()} runs none of the loads",
            because="users beyond its memory or slots, or requests longer than its context",
            hint="a smaller --concurrency, --prompt or --output",
        )
    points = np.concatenate([process.points(load) for _, load in asked])
    anchor = deployments[0].calibration.anchor
    rows = () if anchor is None else anchor.rows
    known = np.concatenate([np.empty((0, AXES)), *(process.points(row.load) for row in rows)])
    chosen = next_runs(process, points, known, count)
    launches = [launch(replace(request, anchor=None), checkpoint=checkpoint) for request in requests]
    runs = [_run(launches[asked[i][0]], asked[i][1], number + 1) for number, i in enumerate(chosen)]
    return Suggestion(
        system=system_of(deployments[0]),
        runs=runs,
        loads=len(asked),
        measured=len(known),
        before=_bands(process, known, points),
        after=_bands(process, np.concatenate([known, points[chosen]]), points),
        dropped=total - len(asked),
        fit=_fit(launches, runs),
    )


def _running(deployment: Deployment, loads: AnchorLoads) -> list[AnchorLoad]:
    """The loads that the engine runs at once: within context, memory and slots."""
    found = []
    slots = deployment.engine.defaults.tier(deployment.hardware).max_sequences * deployment.parallel.dp
    for prompt in loads.prompt:
        for output in loads.output:
            if deployment.model.max_context is not None and prompt + output > deployment.model.max_context:
                continue
            one = StaticLoad(batch=1.0, prompt=float(prompt), output=float(output))
            most = min(floor(float(Estimate(deployment=deployment, load=one).footprint.max_batch())), slots)
            found += [
                AnchorLoad(float(users), float(prompt), float(output), deployment.parallel)
                for users in loads.users
                if users <= most
            ]
    return found


def _bands(process: ErrorProcess, known: Array, points: Array) -> dict[str, Band]:
    """The 80 % band of each latency at its mean variance over the points."""
    found: dict[str, Band] = {}
    for metric in METRICS:
        kernel = process.kernel(metric)
        variance = np.array([np.mean(kernel.posterior(known, np.zeros(len(known)), points)[1])])
        low, high = kernel.factors(variance)
        found[metric] = (float(low[0]), float(high[0]))
    return found


def _run(started: Launch, load: AnchorLoad, number: int) -> SuggestedRun:
    suffix = "jsonl" if started.deployment.engine.name in SILENT else "json"
    result = f"run-{number}.{suffix}"
    server, refused = _words(lambda: node_script(started))
    client, unknown = _words(lambda: shell(benchmark(started, load, result)))
    return SuggestedRun(
        load=load,
        division=started.deployment.parallel.describe(),
        server=server,
        benchmark=client,
        result=result,
        note="; ".join(dict.fromkeys(filter(None, (refused, unknown)))),
    )


def _words(command: Callable[[], str]) -> tuple[str | None, str]:
    """A command, or ``None`` and why there is none."""
    try:
        return command(), ""
    except InferplanError as error:
        return None, error.what


def _fit(launches: Sequence[Launch], runs: Sequence[SuggestedRun]) -> str:
    """The command that makes the anchor of the results."""
    started = launches[0]
    words = ["inferplan", "anchor", "fit", *(run.result for run in runs)]
    if started.deployment.engine.name in SILENT or started.deployment.engine.name not in CLIENTS:
        given = facts(started)
        stated = [name for name in ("gpu", "weights", "experts", "kv") if name in given]
        words += [word for name in stated for word in (f"--{name}", given[name])]
        words += ["--engine", started.request.engine] if "@" in started.request.engine else []
        words += [word for pair in started.request.flags.backends for word in ("--backend", "=".join(pair))]
    asked = started.request
    words += ["--calibration", asked.calibration] if asked.calibration else ["--ideal"] if asked.ideal else []
    return shell([*words, "-o", "own.yaml"])
