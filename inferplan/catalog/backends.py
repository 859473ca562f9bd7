"""Kernels that flags of an engine choose (``--backend experts=triton``), in place of the usual ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from inferplan.catalog.calibrations import device_releases, load_kernels, release_dates
from inferplan.devices.constants import Calibration, Constants
from inferplan.devices.releases import OnFile, ReleaseDates, Releases, own_source, role_of
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.graph import build_rank
from inferplan.work.step import Segment, Step


@dataclass(frozen=True, kw_only=True)
class Backends:
    """Kernels that flags of an engine choose: pairs of a role and a name, of ``engine`` (``name`` or
    ``name@version``). path: a file of constants that was asked for."""

    engine: str
    chosen: Sequence[tuple[str, str]]
    path: str | None = None


def with_backends(deployment: Deployment, asked: Backends, strict: bool = True) -> Deployment:
    """The deployment with the kernels asked for in place of the usual ones.

    Those of the release that is nearest to the engine's version, by default the newest; ``@RELEASE`` for a name is
    that release's usual kernel. Raises ``UsageError`` where nothing was timed by backend, where constants of a file
    would be replaced, and where nothing that it runs was timed so (unless not ``strict``: that keeps its usual
    kernels); ``UnknownNameError`` for a backend that nobody timed.
    """
    if not asked.chosen:
        return deployment
    releases, dates, calibration = _timed(deployment, asked)
    name, _, version = asked.engine.partition("@")
    on_file_for = load_kernels(deployment.hardware, None, name)
    named = on_file_for.provenance.get("kernels", {}).get(name, {})
    usual = {place: own_source(source, name) for place, source in named.items()}
    on_file = OnFile(dates, usual, on_file_for.constants)
    words = [calibration.note or f"{name} {version or releases.newest[name]}"]
    for role, backend in asked.chosen:
        found = releases.backend(name, version or releases.newest[name], role, backend, on_file)
        calibration, left = _replaced(deployment, calibration, role, found)
        formats = ", ".join(sorted({label for labels in found.values() for label in labels}))
        if strict and left is None:
            raise UsageError(
                f"--backend {role}={backend} would do nothing: timed in {formats} on {deployment.hardware.name}",
                because=f"{deployment.describe()} runs no such kernel in a format that was timed",
                hint="another format, or leave it out",
            )
        kept = f"; {', '.join(left)} as usual" if left else ""
        words += [] if left is None else [f"{role} by {backend} (timed in {formats}{kept})"]
    return replace(deployment, calibration=calibration.model_copy(update={"note": "; ".join(words)}))


def _replaced(
    deployment: Deployment, calibration: Calibration, role: str, found: Constants
) -> tuple[Calibration, list[str] | None]:
    """``calibration`` with other kernels of a role, and what the deployment runs of it that keeps its own; ``None``
    where that is all of it, or where it runs none."""
    launch = {"launch": calibration.step.launch}
    own = {
        kernel: {label: fit.model_copy(update=launch) for label, fit in fits.items()} for kernel, fits in found.items()
    }
    constants = {kernel: {**calibration.constants.get(kernel, {}), **fits} for kernel, fits in own.items()}
    changed = calibration.model_copy(update={"constants": {**calibration.constants, **constants}})
    run = sorted(place for place in kernels_run(deployment) if role_of(place[0]) == role)
    fits = [fit for labels in own.values() for fit in labels.values()]
    left = [place for place in run if not any(changed.fit(*place) is fit for fit in fits)]
    return changed, None if len(left) == len(run) else [f"{kernel} in {label}" for kernel, label in left]


def _timed(deployment: Deployment, asked: Backends) -> tuple[Releases, ReleaseDates, Calibration]:
    """What was timed by backend on the device. Raises ``UsageError`` where nothing was, or where it may not price."""
    calibration, name = deployment.calibration, asked.engine.partition("@")[0]
    releases, dates = device_releases(deployment.hardware.name), release_dates().get(name)
    role, backend = asked.chosen[0]
    if asked.path is not None:
        raise UsageError(
            f"--backend {role}={backend} would replace constants of {asked.path}",
            because="kernels by backend were timed elsewhere, and --calibration was timed on this device",
            hint="leave one of them out",
        )
    if calibration.basis == "roofline":
        why = "an ideal device runs no kernel"
    elif releases is None or dates is None or name not in releases.newest:
        why = f"no kernels of {name} by backend are on file for {deployment.hardware.name}"
    else:
        return releases, dates, calibration
    raise UsageError(f"--backend {role}={backend} would do nothing", because=why, hint="leave --backend out")


def kernels_run(deployment: Deployment) -> set[tuple[str, str]]:
    """Kernels, each with its format, of a step that computes prompts and of one that decodes."""
    segments = (Segment(batch=1.0, new=1024.0, past=0.0, media=True), Segment(batch=1.0, new=1.0, past=1024.0))
    stages = [
        stage for segment in segments for stage in build_rank(deployment, Step(segments=(segment,)), alternatives=True)
    ]
    return {(op.kernel, op.label) for stage in stages for op in stage.ops}
