"""Options that say what a replica takes to start; ``day``, ``simulate`` and ``plan`` have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferplan.cli.technique_options import quantity
from inferplan.errors import UsageError

if TYPE_CHECKING:
    from inferplan.estimate.deployment import Deployment
    from inferplan.serving.cold_start import ColdStart

START: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--storage-bandwidth", {"metavar": "RATE", "help": "What the weights of a replica are read at, such as 2GB/s."}),
    ("--engine-start", {"metavar": "TIME", "help": "Beside the weights: pod, engine, graphs, such as 45s."}),
    (
        "--startup-log",
        {"metavar": "FILE", "help": "A log of vLLM or SGLang that says how long the engine took."},
    ),
)
"""What a start is made of, where its time is not given whole."""
start_options: tuple[Callable[[Any], Any], ...] = tuple(click.option(name, **keywords) for name, keywords in START)


def cold_start_of(values: dict[str, Any], deployment: Deployment | None, whole: str) -> ColdStart | None:
    """The time to start, or what it is made of; ``None`` where nothing says so. whole: the option that is all of it.

    Without a deployment its weights are still to be said.
    """
    from inferplan.serving.cold_start import ColdStart, weights_of

    all_of_it = quantity(values[whole.removeprefix("--").replace("-", "_")], "seconds", whole)
    bandwidth = quantity(values["storage_bandwidth"], "bytes/s", "--storage-bandwidth")
    rest, measured = quantity(values["engine_start"], "seconds", "--engine-start"), ""
    if values["startup_log"] is not None:
        from inferplan.validation.startup_logs import engine_start

        if rest is not None:
            raise UsageError("--engine-start and --startup-log say the same", hint="leave one out")
        rest, measured = engine_start(Path(values["startup_log"]))
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
    if not bandwidth > 0:
        raise UsageError("--storage-bandwidth must be more than 0")
    weights = 0.0 if deployment is None else weights_of(deployment)
    return ColdStart(rest=rest, measured=measured, weights=weights, bandwidth=bandwidth)
