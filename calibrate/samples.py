"""What is measured: a visit to an operator, a step of a whole model, and operators as JSON."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from inferplan.work import ops
from inferplan.work.formats import FORMATS, Format
from inferplan.work.ops import Mask, Op

QUIET = 0.05
"""Share of a sample's time spent waiting for a core above which another program disturbed it."""
WARM = "its operands were in a cache: there was no time to make enough of them"
"""What disturbed a visit that took less time than it should have; all other disturbances lengthen."""


def encode(op: Op) -> dict[str, Any]:
    """An operator as JSON can hold it."""
    data: dict[str, Any] = {"type": type(op).__name__}
    for entry in fields(op):
        value = getattr(op, entry.name)
        if isinstance(value, Format):
            value = value.name
        elif isinstance(value, Mask):
            value = [value.kind, value.size]
        elif isinstance(value, (np.generic, np.ndarray)):
            value = float(value)
        data[entry.name] = value
    return data


def decode(data: dict[str, Any]) -> Op:
    """The operator that :func:`encode` wrote."""
    kind: type[Op] = getattr(ops, data["type"])
    values = {}
    for entry in fields(kind):
        if entry.name not in data:
            continue
        value = data[entry.name]
        if entry.type == "Format":
            value = FORMATS[value]
        elif entry.type == "Mask":
            value = Mask(kind=value[0], size=value[1])
        values[entry.name] = value
    return kind(**values)


def bare(op: Op) -> Op:
    """The operator as one run of one rank: without its place in a graph."""
    return replace(op, name=op.kernel, count=1.0, ranks=1, fusible=False)


def key_of(op: Op) -> str:
    """A short name of a shape: equal for equal work in equal formats, whatever the operator is called."""
    return hashlib.sha1(json.dumps(encode(bare(op)), sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One visit to one operator: the median of its laps.

    seconds: one run. spread: interquartile range over median. laps, calls: how many were timed, of how many runs each.
    host: seconds the host needs to issue one run (accelerators). waited: share of the time that a thread waited for a
    core (CPU). method: wall clock, device events or graph replay. kernel: the library call.
    """

    seconds: float
    spread: float = 0.0
    laps: int = 1
    calls: int = 1
    host: float | None = None
    waited: float = 0.0
    method: str = "wall"
    kernel: str = ""
    library: str = ""
    """The kernel library that the call belongs to (:attr:`calibrate.kernels.kernel.Kernel.library`)."""
    disturbed: str = ""
    """What disturbed an accelerator meanwhile (lower clocks, another process), in words."""

    @property
    def calm(self) -> bool:
        """Whether nothing is known to have disturbed it."""
        return self.waited <= QUIET and not self.disturbed


@dataclass(frozen=True, kw_only=True)
class StepSample:
    """One step of a whole model: prefill or decode, launched eagerly or replayed from a graph."""

    model: str
    layers: int
    mode: str
    batch: int
    new: int
    past: int
    format: str
    seconds: float
    spread: float = 0.0
    laps: int = 1
    waited: float = 0.0
    disturbed: str = ""
    maps: str = ""
    """How the small maps between library calls ran: compiled into one kernel each, or eager, and why."""

    @property
    def calm(self) -> bool:
        """Whether nothing is known to have disturbed it."""
        return self.waited <= QUIET and not self.disturbed

    @property
    def key(self) -> tuple[str, int, str, int, int, int, str]:
        """What tells steps apart: everything but what was measured."""
        return self.model, self.layers, self.mode, self.batch, self.new, self.past, self.format
