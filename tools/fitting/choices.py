"""What serving rows decided beside the constants of the fit, and a deployment priced as if they had not.

A figure is of unseen rows only if nothing that they decided has a part in it: not the constants that were fitted to
them (:mod:`tools.fitting.serving`), and none of these choices. In the fold that leaves a model out, each choice is made
again from the rows of the other models; where it concerns none of them, what nobody has shown is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

from inferplan.catalog.assemble import routing_of
from inferplan.catalog.calibrations import release_dates
from inferplan.catalog.files import load
from inferplan.devices.engine import Engine, EngineSpec, HostCost
from inferplan.estimate.deployment import Deployment
from inferplan.validation.importers.plain import stated_run
from inferplan.validation.names import model_of
from inferplan.validation.rows import Row, Run


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One choice.

    where: file and key. otherwise: what stands where no row speaks for it. concerns: the runs whose price it has a part
    in. run, deployment: how one of them is priced without it. keyed: it names models, so that what it says of one is
    nothing that the rows of others can ask for.
    """

    name: str
    where: str
    otherwise: str
    concerns: Callable[[Row], bool]
    run: Callable[[Row, Run], Run] = lambda _, run: run
    deployment: Callable[[Deployment], Deployment] = lambda deployment: deployment
    keyed: bool = False


@cache
def _spec(engine: str) -> EngineSpec:
    return load("engines", engine, EngineSpec)


def _step_of(engine: str, version: str) -> HostCost | None:
    """What a step costs the host of a version on file."""
    return next(defaults.step for defaults in _spec(engine).versions if defaults.version == version)


@cache
def _latent(model: str) -> bool:
    return any(part.kind == "mla" for layer, _ in model_of(model).distinct for part in layer.parts)


def _under(deployment: Deployment, **serving: object) -> Deployment:
    constants = deployment.engine.serving.model_copy(update=serving)
    return _of(deployment, serving=constants)


def _of(deployment: Deployment, **engine: object) -> Deployment:
    found: Engine = deployment.engine.model_copy(update=engine)
    return replace(deployment, engine=found)


def _scripted(row: Row) -> bool:
    return row.run is not None and stated_run(row) != row.run


def _concerned(test: Callable[[Run], bool]) -> Callable[[Row], bool]:
    return lambda row: row.run is not None and test(row.run)


def _of_newest(run: Run) -> Run:
    """The run with the kernels of its engine's newest release, under the defaults of its own."""
    return replace(run, kernels=run.library.partition("@")[0])


SCRIPTS = "run scripts"
CHOICES = (
    Choice(
        name=SCRIPTS,
        keyed=True,
        where="`scripts` in configs/clients.yaml",
        otherwise="the flags that the row states",
        concerns=_scripted,
        run=lambda row, _: stated_run(row),
    ),
    Choice(
        name="launches of latent attention",
        where="`eager_latent` in configs/engines",
        otherwise="1: as any layer",
        concerns=_concerned(lambda run: _spec(run.engine).serving.eager_latent != 1.0 and _latent(run.model)),
        deployment=lambda deployment: _under(deployment, eager_latent=1.0),
    ),
    Choice(
        name="tokens seen late",
        where="`seen_late` in configs/engines",
        otherwise="with their step, as the engine's source says",
        concerns=_concerned(lambda run: _spec(run.engine).serving.seen_late),
        deployment=lambda deployment: _under(deployment, seen_late=False),
    ),
    Choice(
        name="kernels of releases",
        where="`own` in configs/releases.yaml",
        otherwise="those of the newest release",
        concerns=_concerned(
            lambda run: bool(release_dates()[run.engine].own) and _of_newest(run).library != run.library
        ),
        run=lambda _, run: _of_newest(run),
    ),
    Choice(
        name="popularity of experts",
        where="`skew` in configs/routing.yaml",
        otherwise="0: as popular as each other",
        concerns=_concerned(lambda run: model_of(run.model).has_experts),
        deployment=lambda deployment: replace(deployment, routing=replace(routing_of(None), usual=0.0)),
    ),
    Choice(
        name="host of a release",
        where="`step` of vLLM 0.12 in configs/engines/vllm.yaml",
        otherwise="that of 0.5, the other release that composes a step when the one before is done, from rows of "
        "other models (docs/calibration.md)",
        concerns=_concerned(lambda run: run.engine == "vllm" and run.library in ("vllm@0.12.0", "vllm@0.13.0")),
        deployment=lambda deployment: _of(deployment, step=_step_of(deployment.engine.name, "0.5")),
    ),
)
"""Every choice that rows of one pool decided, alone or beside a source of its own."""
BY_NAME = {choice.name: choice for choice in CHOICES}


def run_without(row: Row, undone: Iterable[str]) -> Run:
    """The run of a row as it is priced without some choices."""
    run = row.run
    assert run is not None
    for name in undone:
        if BY_NAME[name].concerns(row):
            run = BY_NAME[name].run(row, run)
    return run


def deployment_without(row: Row, deployment: Deployment, undone: Iterable[str]) -> Deployment:
    """The deployment of a row without some choices."""
    for name in undone:
        if BY_NAME[name].concerns(row):
            deployment = BY_NAME[name].deployment(deployment)
    return deployment
