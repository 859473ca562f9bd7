"""The physical factors of a step that a record may correct, and the deployment with other values of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from inferplan.devices.constants import Constants, Fit, StepConstants
from inferplan.devices.engine import CADENCE
from inferplan.errors import UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import run_step
from inferplan.learning.observed import Observed, StepLoad
from inferplan.serving.rounds import Decodes, HeldPrompts, Round
from inferplan.units import Array
from inferplan.work.step import WIDE, Segment, Step

Whole = np.ndarray[Any, np.dtype[np.int64]]
HOST, SEQUENCE = "host", "sequence"


@dataclass(frozen=True, kw_only=True)
class Factor:
    """A factor of a step: what it is, which constants it changes and what load tells it from the others.

    math, memory: of which kernels it multiplies the time of the arithmetic, and of the memory; none of what is seconds.
    """

    what: str
    told_by: str
    math: Callable[[str], bool] = lambda kernel: False
    memory: Callable[[str], bool] = lambda kernel: False


def _prompt_attention(kernel: str) -> bool:
    return kernel.endswith((".prefill", ".encoder"))


FACTORS = {
    HOST: Factor(what="seconds of the host in each step", told_by="steps of few short sequences, without prompts"),
    SEQUENCE: Factor(
        what="seconds of the host for each sequence of a step", told_by="steps of many short sequences, and of few"
    ),
    "prompt": Factor(
        what="arithmetic of matrices, and attention of prompts",
        told_by="steps with prompts of some thousand tokens, of several lengths",
        math=lambda kernel: kernel == "matmul" or _prompt_attention(kernel),
        memory=_prompt_attention,
    ),
    "cache": Factor(
        what="what each decode reads of its context",
        told_by="steps of many sequences with long contexts, and of as many with short ones",
        math=lambda kernel: kernel.endswith(".decode"),
        memory=lambda kernel: kernel.endswith(".decode"),
    ),
    "experts": Factor(
        what="matrices of routed experts",
        told_by="steps of one sequence and of many, without prompts",
        math=lambda kernel: kernel.startswith("grouped_matmul") and not kernel.endswith(".adapter"),
        memory=lambda kernel: kernel.startswith("grouped_matmul") and not kernel.endswith(".adapter"),
    ),
    "weights": Factor(
        what="weights of matrices read from memory",
        told_by="steps with prompts of tens to a few hundred tokens, which read them once as decodes do",
        memory=lambda kernel: kernel == "matmul",
    ),
}
"""By name. ``host`` and ``sequence`` are seconds, the others multiply times."""
USUAL = ("host", "sequence", "prompt", "cache", "experts")
"""Those that are fitted where none is named: ``weights`` is in every step that decodes, as ``host`` is."""


def is_seconds(name: str) -> bool:
    """Whether a factor is seconds of a step; else it multiplies times."""
    return name in {HOST, SEQUENCE}


def require_alone(deployment: Deployment) -> None:
    """Raise ``UsageError`` for a deployment whose record is not that of one step after another."""
    parallel = deployment.parallel
    if deployment.calibration.basis == "roofline":
        raise UsageError(
            f"{deployment.hardware.name} has no constants here to correct",
            because="--ideal, or none on file: every step takes what the datasheet says",
            hint="leave --ideal out",
        )
    if parallel.pp > 1 or parallel.dp > 1 or parallel.cp > 1 or deployment.elsewhere:
        raise UsageError(
            f"steps of {deployment.describe()} are not learned",
            because="a record of a server says how long one step took, and with pipeline stages, data or context "
            "parallelism, or weights in host memory it misses a part of the step",
            hint="a server with --tp alone; --ep goes with it",
        )
    defaults = deployment.engine.defaults
    kept = [name for name, off in CADENCE.items() if getattr(defaults, name) != off]
    if kept:
        option = f"--{kept[0].replace('_', '-')}"
        raise UsageError(
            f"{option} does not change the learned constants",
            because="a step takes the same time whenever prompts join it, and scrapes and benchmarks do not tell "
            "which steps prompts joined",
            hint=f"iteration records or a log that times each step, without {option}",
        )
    if deployment.model.generation.kind != "autoregressive" or deployment.model.encoder is not None:
        raise UsageError(f"{deployment.model.name} does not decode step by step", hint="a decoder of text")


class Kernels:
    """The constants that price the steps of a deployment, kernel by kernel, and the same with other factors."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.used = _used(deployment)

    @cached_property
    def base(self) -> dict[str, float]:
        """The factors as they are on file."""
        step = self.deployment.step
        return dict.fromkeys(FACTORS, 1.0) | {HOST: step.host, SEQUENCE: step.sequence}

    def constants(self, values: Mapping[str, float]) -> Constants:
        """The constants of the kernels in use that factors of these values change."""
        made: Constants = {}
        for (kernel, label), fit in self.used.items():
            update = {}
            for part in ("math", "memory"):
                times = [values[name] for name, one in FACTORS.items() if name in values and getattr(one, part)(kernel)]
                if times:
                    update[part] = getattr(fit, part) / float(np.prod(times))
            if update:
                made.setdefault(kernel, {})[label] = fit.model_copy(update=update)
        return made

    def step(self, values: Mapping[str, float]) -> StepConstants:
        """The constants of a step with these values; those of layers and launches are as on file."""
        known = self.base | dict(values)
        return self.deployment.calibration.step.model_copy(update={"host": known[HOST], "sequence": known[SEQUENCE]})

    def deployed(self, values: Mapping[str, float]) -> Deployment:
        """The deployment with factors of these values, whether a device can reach them or not."""
        below = self.deployment.calibration
        constants = {kernel: dict(formats) for kernel, formats in below.constants.items()}
        for kernel, formats in self.constants(values).items():
            constants.setdefault(kernel, {}).update(formats)
        found = below.model_copy(update={"constants": constants, "step": self.step(values), "shares_step": False})
        found.__dict__.pop("_fits", None)  # what the calibration below has looked up
        return replace(self.deployment, calibration=found)

    def least(self, name: str) -> float:
        """The smallest value of a factor at which no kernel is faster than its device."""
        parts = ((getattr(FACTORS[name], part), part) for part in ("math", "memory"))
        return max(
            (getattr(fit, part) for of, part in parts for (kernel, _), fit in self.used.items() if of(kernel)),
            default=0.0,
        )


def _used(deployment: Deployment) -> dict[tuple[str, str], Fit]:
    """The constants of every kernel that a step with long prompts, short ones or none runs."""
    segments = [Segment(batch=4.0, new=1.0, past=900.0), Segment(batch=1.0, new=WIDE / 2, past=64.0)]
    segments.append(Segment(batch=1.0, new=2048.0, past=512.0))
    used: dict[tuple[str, str], Fit] = {}
    for one in segments:
        for cost in run_step(deployment, Step(segments=(one,))).costs:
            if cost.fit is not None and cost.op.place == "device":
                used[cost.op.kernel, cost.op.label] = cost.fit
    return used


class Priced:
    """The steps of a record in the form in which they are priced at once: each distinct load once."""

    def __init__(self, observed: Sequence[Observed]) -> None:
        places: dict[StepLoad, int] = {}
        rows, columns, times = [], [], []
        for row, one in enumerate(observed):
            for count, load in one.steps:
                rows.append(row)
                columns.append(places.setdefault(load, len(places)))
                times.append(count)
        self.loads = list(places)
        self._rows, self._columns, self._times = np.array(rows), np.array(columns), np.array(times)
        self.measured = np.array([one.seconds for one in observed])

    def seconds(self, deployment: Deployment) -> Array:
        """What the deployment takes for each measurement, in seconds."""
        each = np.empty(len(self.loads))
        for chosen, round_of in self._groups:
            each[chosen] = np.broadcast_to(np.asarray(round_of.price(deployment).total), len(chosen))
        spent = each[self._columns] * self._times
        return np.asarray(np.bincount(self._rows, spent, minlength=len(self.measured)), dtype=np.float64)

    @cached_property
    def _groups(self) -> list[tuple[Whole, Round]]:
        """Loads of the same kind: with or without decodes, prompts, and prompts of few or many tokens."""
        table = np.array(self.loads, dtype=np.float64)
        prompts, new, _, decodes, _ = table.T
        kind = 3 * (decodes > 0) + (prompts > 0) * (1 + (new > WIDE))
        groups = []
        for one in np.unique(kind):
            chosen = np.flatnonzero(kind == one)
            number, each, past, batch, context = table[chosen].T
            groups.append(
                (
                    chosen,
                    Round(
                        decodes=Decodes(batch, context) if one >= 3 else None,
                        prompts=HeldPrompts(number, each, past) if one % 3 else None,
                    ),
                )
            )
        return groups

    @cached_property
    def mean_loads(self) -> Array:
        """The loads of each measurement: what it holds of prompts, their tokens and past, decodes and context."""
        table = np.array(self.loads, dtype=np.float64)[self._columns]
        totals = table[:, 0:1] * np.column_stack([np.ones(len(table)), table[:, 1], table[:, 2]])
        held = np.column_stack([totals, table[:, 3], table[:, 3] * table[:, 4]]) * self._times[:, None]
        return np.column_stack([np.bincount(self._rows, one, minlength=len(self.measured)) for one in held.T])
