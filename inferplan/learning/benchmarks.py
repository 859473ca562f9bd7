"""A benchmark's results as steps: runs of a closed loop, whose mean TPOT is the mean gap of a steady state.

With ``N`` users and ``T`` tokens an answer each request has its prompt in one of ``T`` steps, so that ``N/T`` prompts
come to a step (:func:`inferplan.learning.observed.steps_of_gaps`). Whatever `validate` reads is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inferplan.devices.releases import release_number
from inferplan.errors import InputFileError
from inferplan.estimate.deployment import Deployment
from inferplan.learning.observed import Observed, Recorded, StepLoad, steps_of_gaps
from inferplan.validation.importers import read_file
from inferplan.validation.names import catalogue_name
from inferplan.validation.rows import Row, Run, Shared, Waits

KIND = "a benchmark's results"
_EACH = 5
"""Every fifth run is put last, where it is held out: runs of a benchmark are in the order of their loads."""


def read(path: str, deployment: Deployment) -> Recorded:
    """The runs of a benchmark of the deployment; what a file does not say of it is taken from the deployment.

    Raises ``InputFileError`` for a file that `validate` does not read either.
    """
    found = Recorded.of(KIND)
    for row in read_file(Path(path), _facts(deployment))[1]:
        why = _unfit(row, deployment)
        if why or row.run is None:
            found.skip(why)
        else:
            _keep(found, row, row.run, deployment)
    found.observed = _fifths_last(found.observed)
    return found


def _facts(deployment: Deployment) -> dict[str, str]:
    parallel = deployment.parallel
    return {
        "model": deployment.model.name,
        "gpu": deployment.hardware.name,
        "engine": deployment.engine.name,
        "weights": deployment.precision.weights.name,
        "tp": str(parallel.tp),
    }


def _unfit(row: Row, deployment: Deployment) -> str:
    """Why a run says nothing of a step of the deployment; empty where it does."""
    run = row.run
    if run is None:
        return f"rows that cannot be read: {row.refused}"
    parallel = deployment.parallel
    own = (
        catalogue_name("models", deployment.model.name),
        deployment.hardware.name,
        deployment.engine.name,
        parallel.tp,
        parallel.ep,
        1,
        1,
    )
    if (catalogue_name("models", run.model), run.gpu, run.engine, run.tp, run.ep, run.dp, run.pp) != own:
        return "runs of another model, GPU, engine or division"
    if run.weights not in (None, "", deployment.precision.weights.name):
        return "runs in another format"
    if not _same_release(run.engine_version, deployment.engine.release):
        return "runs of another release of the engine"
    if _keeps_prompts_out(run.waits):
        return "runs whose engine keeps prompts out of steps, or waits for more of them"
    if run.prefill is not None or run.draft is not None or run.workers > 1 or run.shared != Shared():
        return "runs with drafts, shared prompts, several workers or pools apart"
    if run.suspect or row.measured.at("tpot", "mean") is None:
        return "runs that are suspect, or state no mean TPOT"
    users = run.concurrency or run.batch
    slots = run.slots or deployment.engine.defaults.tier(deployment.hardware).max_sequences
    if users is None:
        return "runs of an open loop"
    return "runs of more users than the engine has slots" if users > slots else ""


def _same_release(one: str | None, other: str | None) -> bool:
    """Whether two versions are of one release, ``0.12`` and ``0.12.3`` too; a version that nobody states is any."""
    parts = [(release_number(version) or "").split(".") for version in (one, other)]
    return [""] in parts or all(a == b for a, b in zip(*parts))


def _keeps_prompts_out(waits: Waits) -> bool:
    """Whether prompts come to steps in another way than :func:`steps_of_gaps` takes: each to the next one."""
    held = waits.batch or waits.balance or waits.rounds or waits.delayer
    return bool(held) or waits.poll > 1 or (waits.schedule or 1) > 1


def _keep(found: Recorded, row: Row, run: Run, deployment: Deployment) -> None:
    share = (1 + run.ratio_min) / 2
    prompt, output = max(run.prompt * share, 1.0), max(run.output * share, 2.0)
    context, seconds = prompt + output / 2, row.measured.at("tpot", "mean") or 0.0
    if run.concurrency is None:
        found.keep(seconds, [(1.0, StepLoad(decodes=float(run.batch or 1), context=context))], row.where)
        return
    users = float(run.concurrency)
    steps = steps_of_gaps(users, users / output, (prompt, 0.0), context, deployment.engine.batching.mixed)
    found.keep(seconds, steps, row.where)


def _fifths_last(observed: Sequence[Observed]) -> list[Observed]:
    last = observed[_EACH // 2 :: _EACH]
    chosen = {id(one) for one in last}
    return [*(one for one in observed if id(one) not in chosen), *last]


def require_read(path: str, deployment: Deployment, known: str) -> Recorded:
    """:func:`read`; raises ``InputFileError`` that says what is ``known`` for a file of no kind."""
    try:
        return read(path, deployment)
    except InputFileError as error:
        raise InputFileError(
            f"{path} says nothing of a server's steps",
            because=f"known: {known}; as a benchmark: {error.what}",
            hint="docs/learn.md lists which lines are read",
        ) from None
