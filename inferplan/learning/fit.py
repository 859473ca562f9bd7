"""Factors of a step fitted to a record, with a block of time held out; what the record cannot tell apart is refused.

The logarithms of measured over predicted seconds are made small by Gauss and Newton's method with Levenberg's damping
(Marquardt, An algorithm for least-squares estimation of nonlinear parameters, 1963, section 4), each weighted as Huber
does (Robust estimation of a location parameter, 1964): steps beside which the machine did something else count less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from inferplan.errors import InfeasibleError, ToleranceError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.learning.factors import FACTORS, HOST, SEQUENCE, Kernels, Priced, Whole, is_seconds, require_alone
from inferplan.learning.observed import Observed
from inferplan.units import Array

HELD_OUT = 0.2
"""The share of a record that is held out: its last part in time."""
FEWEST = 10
"""Measurements of a record, at the least."""
ABSENT = 0.03
"""A factor with less of the time of every step than this is left as it is on file."""
UNSURE = 0.1
"""A multiple whose standard error is more than this, and seconds whose error is more than this share of a step of the
record, cannot be told."""
MISFIT = 0.02
"""The error of the model itself, at the least, for each distinct load: a thousand steps of one load say no more."""
FAR = 4.0
"""Factors beyond this, or below its inverse, are of another deployment than the record."""
MOST_ERROR = 0.2
"""The largest mean error over the block that was held out."""
_HUBER, _ROUNDS, _STEP = 1.345, 60, 1e-3
_ALIKE = 0.3
"""In the direction in which least is known: what a factor changes of a step, over what the first of them does, above
which it is named with it."""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """How far a block of a record is from its prediction: measurements, mean absolute error and bias, as shares."""

    steps: int
    mean: float
    bias: float

    @classmethod
    def of(cls, predicted: Array, measured: Array) -> Errors:
        """The errors of predicted over measured seconds."""
        off = predicted / measured - 1.0
        return cls(steps=len(off), mean=float(np.mean(np.abs(off))), bias=float(np.mean(off)))


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What a record makes of the factors of a deployment.

    values, sure: each factor and its standard error (of a multiple as a share; of seconds in seconds). absent: factors
    that are left as they are on file, for want of steps that hold them. before, after: errors of the constants on file
    and of the learned ones, on the block that was fitted and on the one that was held out.
    """

    deployment: Deployment
    kernels: Kernels
    values: dict[str, float]
    sure: dict[str, float]
    absent: tuple[str, ...]
    fitted: tuple[Errors, Errors]
    held_out: tuple[Errors, Errors]


def learn(deployment: Deployment, files: Sequence[Sequence[Observed]], names: Sequence[str]) -> Learned:
    """Fit the factors ``names`` to the records of files, each in the order of time; the last part of each is held out.

    Raises ``UsageError`` for a deployment whose steps are not learned, and for factors that are in no step of the
    record; ``InfeasibleError`` for a record that is too small, that cannot tell factors apart, or of which the device
    would be faster than it can; ``ToleranceError`` where the factors do not describe the block that was held out.
    """
    require_alone(deployment)
    kept = [one[: len(one) - round(len(one) * HELD_OUT)] for one in files]
    train = Priced([one for file in kept for one in file])
    test = Priced([one for file, own in zip(files, kept) for one in file[len(own) :]])
    if len(train.measured) < FEWEST or not len(test.measured):
        raise InfeasibleError(
            f"the record has {len(train.measured) + len(test.measured)} measurements of steps",
            because=f"{FEWEST} are the fewest to fit, in addition to {HELD_OUT:.0%} that are held out",
            hint="a longer record, or fewer files that are longer each",
        )
    kernels = Kernels(deployment)
    problem = _Problem(kernels, train, names)
    values = problem.solve()
    _require_possible(kernels, values, problem.errors(values)[0])
    _require_known(problem, values)
    if _require_possible(kernels, values):
        values = problem.solve(at_most_ideal=True)
    learned = kernels.deployed(values)
    errors = [
        (Errors.of(block.seconds(deployment), block.measured), Errors.of(block.seconds(learned), block.measured))
        for block in (train, test)
    ]
    _require_better(*errors[1], values)
    return Learned(
        deployment=deployment,
        kernels=kernels,
        values=values,
        sure=problem.errors(values)[0],
        absent=tuple(problem.absent),
        fitted=errors[0],
        held_out=errors[1],
    )


class _Problem:
    """The factors of a record as unknowns: logarithms of multiples, and seconds over a median step."""

    def __init__(self, kernels: Kernels, priced: Priced, names: Sequence[str]) -> None:
        self.kernels, self.priced = kernels, priced
        self.scale = float(np.median(priced.measured))
        self.names = list(names)
        slopes = self.slopes(self.unknowns(kernels.base))
        present = np.max(np.abs(slopes), axis=0) >= ABSENT
        needed = {HOST: True, SEQUENCE: bool(np.any(present))}
        self.absent = [name for name, there in zip(names, present) if not (there or needed.get(name, False))]
        self.names = [name for name in names if name not in self.absent]
        if not self.names:
            raise UsageError(
                f"no step of the record holds {', '.join(names)}",
                because=f"none has {ABSENT:.0%} of the time of a step",
                hint="--factors with others",
            )

    def unknowns(self, values: Mapping[str, float]) -> Array:
        """The unknowns at values of the factors."""
        return np.array([values[n] / self.scale if is_seconds(n) else np.log(values[n]) for n in self.names])

    def values(self, unknowns: Array) -> dict[str, float]:
        """The factors at unknowns."""
        pairs = zip(self.names, unknowns)
        return {name: float(at * self.scale if is_seconds(name) else np.exp(at)) for name, at in pairs}

    def logs(self, unknowns: Array) -> Array:
        """Logarithms of the predicted seconds."""
        return np.log(self.priced.seconds(self.kernels.deployed(self.values(unknowns))))

    def slopes(self, unknowns: Array) -> Array:
        """How they change with each unknown: the share of the time that a factor has, of each measurement."""
        here = self.logs(unknowns)
        moved = [self.logs(unknowns + _STEP * one) - here for one in np.eye(len(unknowns))]
        return np.column_stack(moved) / _STEP

    def solve(self, at_most_ideal: bool = False) -> dict[str, float]:
        """The factors that fit; those of a device that is no faster than its datasheet, where that is asked for."""
        at, wanted, damping = self.unknowns(self.kernels.base), np.log(self.priced.measured), 1e-3
        least = {name: self.kernels.least(name) if at_most_ideal else 0.5 / FAR for name in self.names}
        floor = np.array([0.0 if is_seconds(name) else np.log(least[name]) for name in self.names])
        off = wanted - self.logs(at)
        for _ in range(_ROUNDS):
            slopes, weights = self.slopes(at), _huber(off)
            normal = slopes.T @ (weights[:, None] * slopes)
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), slopes.T @ (weights * off))
            tried = np.clip(at + np.clip(step, -0.5, 0.5), floor, np.log(2 * FAR))
            left = wanted - self.logs(tried)
            if np.sum(weights * left**2) <= np.sum(weights * off**2):
                moved, at, off, damping = np.max(np.abs(tried - at)), tried, left, max(damping / 5, 1e-9)
                if moved < 1e-6:
                    break
            else:
                damping *= 10
                if damping > 1e6:
                    break
        self.left = off
        return self.values(at)

    def errors(self, values: Mapping[str, float]) -> tuple[dict[str, float], Array]:
        """The standard error of each factor, and the covariance of the unknowns.

        Each distinct load is one sample, with what is left of its measurements and no less than :data:`MISFIT`: the
        model is off by a load, not by a measurement.
        """
        slopes, cells = self.slopes(self.unknowns(values)), _cells(self.priced.mean_loads)
        order = np.argsort(cells, kind="stable")
        starts = np.flatnonzero(np.diff(cells[order], prepend=-1))
        each = np.add.reduceat(slopes[order], starts, axis=0) / np.bincount(cells)[:, None]
        off = np.array([np.median(one) for one in np.split(self.left[order], starts[1:])])
        noise = max(1.4826 * float(np.median(np.abs(off))), MISFIT)
        covariance: Array = noise**2 * np.asarray(np.linalg.pinv(each.T @ each, rcond=1e-12), dtype=np.float64)
        unknown = np.linalg.matrix_rank(each, tol=1e-6 * max(1.0, float(np.linalg.norm(each)))) < len(self.names)
        if unknown:
            covariance = covariance + np.eye(len(self.names))
        found = np.sqrt(np.diag(covariance))
        pairs = zip(self.names, found)
        return {name: float(one * self.scale if is_seconds(name) else one) for name, one in pairs}, covariance


def _huber(off: Array) -> Array:
    """The weight of each residual: 1 near the middle, and less the farther it is out."""
    spread = max(1.4826 * float(np.median(np.abs(off - np.median(off)))), 1e-3)
    return 1.0 / np.maximum(np.abs(off) / (_HUBER * spread), 1.0)


def _cells(loads: Array) -> Whole:
    """Which distinct load each measurement is of: all that a step holds, to a tenth or so."""
    steps = np.rint(np.log1p(loads) / np.log(1.1)).astype(np.int64)
    return np.unique(steps, axis=0, return_inverse=True)[1].reshape(-1)


def _require_known(problem: _Problem, values: Mapping[str, float]) -> None:
    """Raise ``InfeasibleError`` for factors that the record does not tell, with those that hide them."""
    sure, covariance = problem.errors(values)
    most = dict(zip(problem.names, np.max(np.abs(problem.slopes(problem.unknowns(values))), axis=0)))
    share = {name: sure[name] / problem.scale * most[name] if is_seconds(name) else sure[name] for name in most}
    worst = max(share, key=lambda name: share[name])
    if share[worst] <= UNSURE:
        return
    felt = np.abs(np.linalg.eigh(covariance)[1][:, -1]) * np.array(list(most.values()))
    together = [name for name, one in zip(most, felt) if one > _ALIKE * np.max(felt) or name == worst]
    what = f"the record cannot tell {' from '.join(together)}"
    rest = ",".join(name for name in problem.names if name != worst)
    raise InfeasibleError(
        what,
        because=f"{worst} would be sure to {_as_told(worst, share[worst])}; {_span(problem.priced)}",
        hint="add " + "; or ".join(f"{FACTORS[name].told_by} ({name})" for name in together)
        + (f"; or leave {worst} as it is on file: --factors {rest}" if rest else ""),
    )  # fmt: skip


def _as_told(name: str, sure: float) -> str:
    return f"{min(sure, 1.0):.0%} of a step at best" if is_seconds(name) else f"a factor of {1 + sure:.2f} at best"


def _span(priced: Priced) -> str:
    """What the steps of a record hold, in words."""
    prompts, new, _, decodes, read = priced.mean_loads.T
    said = [f"{_range(decodes)} sequences decode in a step"]
    if np.any(decodes):
        said.append(f"with {_range(read[decodes > 0] / decodes[decodes > 0])} tokens behind each")
    said.append(f"{_range(new[prompts > 0])} tokens of prompts" if np.any(prompts) else "no prompts")
    return ", ".join(said)


def _range(values: Array) -> str:
    low, high = float(np.min(values)), float(np.max(values))
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"


def _require_possible(kernels: Kernels, values: Mapping[str, float], sure: Mapping[str, float] | None = None) -> bool:
    """Whether a factor is beyond the device's rates and is to be held at them: by no more than :data:`UNSURE` where
    they are those of a datasheet; measured ones are what the device reaches at the least.

    Raises ``InfeasibleError`` for factors that no such deployment has; with ``sure``, for those that are three standard
    errors beyond.
    """
    least = {name: kernels.least(name) for name in values if not is_seconds(name)}
    below = 1.0 if kernels.deployment.hardware.uncertain else UNSURE
    for name, ideal in least.items():
        doubt = 1.0 if sure is None else float(np.exp(3.0 * sure[name]))
        if not max(1 / FAR, ideal * (1 - below)) / doubt <= values[name] <= FAR * doubt:
            raise InfeasibleError(
                f"the record does not fit this deployment: {name} would be x {values[name]:.2f} of the value on file",
                because=f"{FACTORS[name].what}; at x {ideal:.2f} the device runs at the rates on file, and "
                f"beyond x {FAR:g} something else runs",
                hint="check --gpu, --tp, --quant and the record: drafts, prompts from a cache, two steps in one",
            )
    return any(values[name] < ideal for name, ideal in least.items())


def _require_better(before: Errors, after: Errors, values: Mapping[str, float]) -> None:
    """Raise ``ToleranceError`` where the block that was held out is not described."""
    hint = "a record of more loads and of a calm server; nothing is written"
    if values.get("host") == 0.0 and "weights" not in values:
        hint = "steps are shorter than their kernels on file, with a host of no time: --factors weights,prompt"
    if after.mean > MOST_ERROR or after.mean > max(before.mean, MISFIT):
        raise ToleranceError(
            f"the factors are off by {after.mean:.1%} on the block that was held out",
            because=f"{before.mean:.1%} as on file; {MOST_ERROR:.0%} is the most, and the learned factors must be "
            "better",
            hint=hint,
        )
