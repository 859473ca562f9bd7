"""What a replica takes to start: from its order, or from the loss of the one before it, until it takes requests."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment, narrows
from inferplan.estimate.memory import Footprint
from inferplan.estimate.resting import PARTS, Resting
from inferplan.fields import Quantity, Text, ask
from inferplan.terms import Field as Place
from inferplan.terms import Naming, plain
from inferplan.units import Num, format_bytes


@dataclass(frozen=True, kw_only=True)
class ColdStart:
    """Seconds from the order of a replica until it takes requests: ``weights`` bytes at ``bandwidth`` bytes a second
    behind ``start`` seconds of the loader, and ``rest``: whatever else, from the order to the last captured graph.
    Without a bandwidth, ``rest`` is all of it. measured: what a log says that the rest is. loader: which reads the
    weights, in each of ``processes`` at most ``each`` bytes a second; empty where ``bandwidth`` is that of the reads.
    """

    rest: float
    measured: str = ""
    weights: float = 0.0
    bandwidth: float = inf
    start: float = 0.0
    loader: str = ""
    each: float = inf
    processes: int = 1

    @property
    def rate(self) -> float:
        """Bytes a second at which the weights come."""
        return min(self.bandwidth, self.processes * self.each)

    @property
    def part(self) -> Resting:
        """What its time rests on."""
        if self.loader:
            return PARTS["cold_start"].on("published" if self.processes == 1 else "carried")
        return PARTS["cold_start"].on("measured" if self.measured else "formula")

    @property
    def seconds(self) -> float:
        return self.start + self.weights / self.rate + self.rest


def restart_missing(what: str) -> UsageError:
    """The error where ``what`` is lost and nothing says when it is back."""
    return UsageError(
        f"the time to restart is missing: how long what {what} stays away",
        because="it depends on your storage and your engine",
        hint="--restart 3min, or --storage-bandwidth 2GB/s with --engine-start 45s (or --startup-log FILE)",
    )


def start_line(deployment: Deployment) -> str:
    """What a new replica reads when it starts, and the options that make seconds of it: no rate is on file."""
    return (
        f"cold start: a new replica reads {format_bytes(weights_of(deployment))} of weights; seconds take the rate of "
        "your storage: inferplan day --storage-bandwidth with --engine-start (docs/day.md#cold-start)"
    )


@dataclass(frozen=True, kw_only=True)
class StartAsked:
    """What a start is made of, where its time is not given whole. log: of the engine, which says how long it took."""

    bandwidth: float | None = ask(
        "--storage-bandwidth",
        Quantity("bytes/s"),
        "Bandwidth at which a replica reads its weights, such as 2GB/s; with --loader, that of the volume.",
        None,
    )
    loader: str | None = ask(
        "--loader",
        Text(),
        "What reads the weights from a network volume: safetensors, runai-streamer:STREAMS or tensorizer:STREAMS "
        "[as fast as the storage].",
        None,
        metavar="NAME",
    )
    engine: float | None = ask(
        "--engine-start",
        Quantity("seconds"),
        "Start-up time in addition to the weights: pod, engine, graphs, such as 45s.",
        None,
    )
    log: str | None = ask(
        "--startup-log",
        Text(),
        "A log of vLLM or SGLang that states the start-up time of the engine.",
        None,
        metavar="FILE",
    )


def weights_of(deployment: Deployment) -> float:
    """Bytes that all devices of one replica and its host read when it starts: each its own part of the weights, of a
    checkpoint in 32 bits twice the 16 that the engine keeps."""
    return float(np.max(read_at_start(deployment, plain)))


def read_at_start(deployment: Deployment, name: Naming) -> Num:
    """:func:`weights_of`, as a term where ``name`` makes some."""
    parallel, precision = deployment.parallel, deployment.precision
    footprint = Footprint(deployment=deployment, batch=1.0, prompt=1.0, context=1.0)
    kept = sum(stage.weights for stage in footprint.stages)
    place: Place = ("number", "memory.weights") if parallel.pp == 1 else ()
    ranks = name(float(parallel.ranks / parallel.pp), "devices of a stage")
    there = footprint.streamed + (0.0 if footprint.host is None else footprint.host.weights)
    found = name(kept, "weights of a device" if parallel.pp == 1 else "weights of a device of each stage", "B", place)
    if narrows(deployment) and precision.weights == precision.base:
        found, there = name(2.0, "fp32 over 16 bits") * found, 2.0 * there
    found = found * ranks
    return found + name(there, "weights on the host", "B") if there else found
