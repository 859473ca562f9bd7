"""The host of a machine from runs of one user there: how often as long as that on file everything takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import NamedTuple

import numpy as np

from inferplan.catalog.host_times import HostTimes
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.serving.launches import eager_floors
from inferplan.validation.anchor import refusal
from inferplan.validation.deploy import deployment_of
from inferplan.validation.predict import predict_run
from inferplan.validation.rows import Run
from inferplan.validation.score import Scored

MOST_TIMES = 16.0
"""So many times the host on file are looked at: what takes longer than that is no host."""
_CLOSE = 1e-4
"""Within so much, in the logarithm, predicted first tokens are those measured."""


class RunOfOne(NamedTuple):
    """A run of one user: its mean first token as measured, as predicted with the host that was found, and with none
    [s]."""

    where: str
    measured: float
    predicted: float
    kernels: float


@dataclass(frozen=True, kw_only=True)
class FoundHost:
    """A host, how often as long as that on file it takes, the runs that say so, and those that say nothing of it."""

    times: float
    host: HostTimes
    system: str
    runs: tuple[RunOfOne, ...]
    left_out: tuple[tuple[str, str], ...]

    @property
    def share(self) -> float:
        """The share of the first tokens that is the host's, in the mean."""
        return float(np.mean([1.0 - run.kernels / run.predicted for run in self.runs]))


def host_of(scored: Sequence[Scored]) -> FoundHost:
    """The host of measured rows of one deployment, predicted with the host on file.

    A first token of one user waits for nobody: it is the request, the launches of its layers and its steps, which one
    processor works at one after another, and the prompt's kernels. So one number is sought, by how much everything of
    the host on file is multiplied that the predicted first tokens are the measured ones in the (geometric) mean.

    Raises ``UsageError`` where no run is of one user, where they are of several deployments, and where no host explains
    them: kernels alone take longer, or :data:`MOST_TIMES` times the host is too fast.
    """
    kept: list[tuple[Scored, Run, float]] = []
    left_out = []
    for one in scored:
        reason, run, measured = refusal(one), one.row.run, one.row.measured.at("ttft", "mean")
        if not reason and (run is None or run.concurrency != 1):
            reason = "not of one user (concurrency 1)"
        if reason or run is None or measured is None:
            left_out.append((one.row.where, reason or "no mean TTFT"))
        else:
            kept.append((one, run, measured))
    if not kept:
        raise UsageError(
            "no run shows the times of the host",
            because="; ".join(dict.fromkeys(reason for _, reason in left_out)) or "the files hold no rows",
            hint="a run of one user: inferplan measure, or the engine's benchmark with a concurrency of 1",
        )
    deployments = [deployment_of(run)[0] for _, run, _ in kept]
    systems = {f"{one.describe()} under {one.engine.describe()}" for one in deployments}
    if len(systems) > 1:
        raise UsageError(
            f"host times need one deployment, not {len(systems)}",
            because="; ".join(sorted(systems)[:4]),
            hint="only the results of one of them",
        )

    def first_tokens(times: float) -> list[float]:
        return [_first_token(one, run, times) for one, (_, run, _) in zip(deployments, kept)]

    wanted = [measured for *_, measured in kept]
    none = first_tokens(0.0)
    times = _scale(lambda found: _above(first_tokens(found), wanted), _above(none, wanted))
    runs = zip(kept, wanted, first_tokens(times), none)
    return FoundHost(
        times=times,
        host=scaled(deployments[0], times),
        system=systems.pop(),
        runs=tuple(RunOfOne(one.row.where, seen, said, kernels) for (one, *_), seen, said, kernels in runs),
        left_out=tuple(left_out),
    )


def scaled(deployment: Deployment, times: float) -> HostTimes:
    """The host of a deployment, everything of it so many times as long."""
    serving = deployment.engine.serving
    alike = serving.model_copy(update={"eager_latent": 1.0})
    floors = [
        sum(eager_floors(replace(deployment, engine=deployment.engine.model_copy(update={"serving": one}))))
        for one in (serving, alike)
    ]  # what latent attention takes more is in the seconds of a layer of this model
    layer = serving.eager_layer * (floors[0] / floors[1] if floors[1] else 1.0)
    seconds = {"step": deployment.step.host, "layer": layer, "request": serving.latency}
    return HostTimes(**{name: float(f"{value * times:.3g}") for name, value in seconds.items()})


def _first_token(deployment: Deployment, run: Run, times: float) -> float:
    """The mean first token of a run of one user on such a host [s]."""
    found = predict_run(run, replace(deployment, engine=scaled(deployment, times).of(deployment.engine)))
    seconds = found.at("ttft", "mean")
    assert seconds is not None  # one user is always served
    return seconds


def _above(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """By how much predictions are too long in the mean logarithm."""
    return float(np.mean(np.log(predicted) - np.log(measured)))


def _scale(above: Callable[[float], float], none: float) -> float:
    """Where ``above`` crosses 0, by regula falsi (Illinois); ``none`` is its value at 0.

    Raises ``UsageError`` where it does not between 0 and :data:`MOST_TIMES`.
    """
    low, high, below, over = 0.0, MOST_TIMES, none, above(MOST_TIMES)
    if below > 0 or over < 0:
        beyond = (
            f"the kernels alone take {exp(below):.2f} times as long as was measured"
            if below > 0
            else f"{MOST_TIMES:g} times the host on file explain {exp(over):.0%} of what was measured"
        )
        raise UsageError(
            "no host explains these first tokens",
            because=beyond,
            hint="inferplan anchor fit, which takes whatever is off; or other flags than those that ran?",
        )
    found = low
    while high - low > _CLOSE:
        found = (low * over - high * below) / (over - below)
        here = above(found)
        if abs(here) <= log(1 + _CLOSE):
            break
        if here > 0:
            high, over, below = found, here, below / 2
        else:
            low, below, over = found, here, over / 2
    return found
