"""What was asked for against what an engine's flags can say: whatever is not taken is refused, new options too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from inferplan.answers.emit.replica import Launch
from inferplan.catalog.assemble import Request
from inferplan.errors import UsageError
from inferplan.serving.techniques.speculation import PLAIN
from inferplan.spec import Spec

PREDICTION = frozenset(
    {"calibration", "anchor", "ideal", "memory", "expert_skew"}
    | {f"speculation.{name}" for name in ("acceptance", "basis", "texts")}
    | {f"host.{name}" for name in ("step", "layer", "request")}
    | {"power_cap"}  # set on the device: reports/emit.py says so
    | {"lora.active", "sampling", "nvlink_bridge"}
    | {f"media.{name}" for name in ("images", "image_size", "video_frames", "audio_seconds", "sets", "text")}
    | {f"offload.{name}" for name in ("host", "host_memory", "host_link")}
)
"""Options that change what is predicted of a device or of a load and nothing of what is started."""
SHARED = frozenset(
    {"model", "gpu", "quant", "engine", "prune", "parallel.replicas", "flags.token_budget", "flags.max_sequences"}
    | {f"roles.{role}" for role in ("weights", "activations", "experts", "embedding", "head", "kv")}
)
"""Options that every engine takes: in the name of its checkpoint (or refused there), as a flag, as replicas."""


def changed_options(request: Request) -> dict[str, Any]:
    """Every option of a request that is not at its default, by its dotted name: ``{"flags.block_size": 32}``."""
    return dict(_differing(request, type(request)(model="", gpu=""), ""))


def refuse_untaken(launch: Launch, takes: frozenset[str]) -> None:
    """Raise ``UsageError`` for an option that neither :data:`SHARED`, :data:`PREDICTION` nor ``takes`` names."""
    drafts = dict(_differing(launch.drafts.speculation, PLAIN, "speculation."))
    scaled = ["model.yarn"] if launch.yarn else []
    untaken = sorted({*changed_options(launch.request), *drafts, *scaled} - SHARED - PREDICTION - takes)
    if untaken:
        words = ", ".join(name.rpartition(".")[2].replace("_", " ") for name in untaken)
        raise UsageError(
            f"{launch.deployment.engine.describe()} has no flag for this: {words}",
            because=f"modelled with {', '.join(untaken)}, which its command line cannot say",
            hint="leave it out, or another engine",
        )


def _differing(value: Any, default: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    names = [f.name for f in fields(value) if f.compare] if is_dataclass(value) else list(type(value).spec_fields)
    for name in names:
        own, usual = getattr(value, name), getattr(default, name)
        if own == usual:
            continue
        if isinstance(usual, Spec) or is_dataclass(usual):
            yield from _differing(own, usual, f"{prefix}{name}.")
        elif isinstance(own, tuple) and all(isinstance(entry, tuple) for entry in own):
            yield from ((f"{prefix}{name}.{key}", entry) for key, entry in own)
        else:
            yield f"{prefix}{name}", own
