"""Options that say what a replica takes to start; ``day``, ``simulate`` and ``plan`` have them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferplan.cli.declared import quantity
from inferplan.errors import UsageError
from inferplan.fields import made_of

if TYPE_CHECKING:
    from inferplan.estimate.deployment import Deployment
    from inferplan.serving.cold_start import ColdStart


def cold_start_of(values: dict[str, Any], deployment: Deployment | None, whole: str) -> ColdStart | None:
    """The time to start, or what it is made of; ``None`` where nothing says so. whole: the option that is all of it.

    Without a deployment its weights are still to be said.
    """
    from inferplan.serving.cold_start import ColdStart, StartAsked, weights_of

    asked = made_of(StartAsked, values)
    all_of_it = quantity(values[whole.removeprefix("--").replace("-", "_")], "seconds", whole)
    bandwidth, rest, measured = asked.bandwidth, asked.engine, ""
    if asked.log is not None:
        from inferplan.validation.startup_logs import engine_start

        if rest is not None:
            raise UsageError("--engine-start and --startup-log say the same", hint="leave one out")
        rest, measured = engine_start(Path(asked.log))
    if all_of_it is not None:
        if bandwidth is not None or rest is not None:
            raise UsageError(f"{whole} is all of it", hint=f"--storage-bandwidth with --engine-start, or {whole}")
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
    return ColdStart(rest=rest, measured=measured, weights=weights, bandwidth=bandwidth)
