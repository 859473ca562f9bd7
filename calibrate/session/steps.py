"""Steps of whole models against the price of their graphs; nothing is fitted to these."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrate.designs import THIN, find_model
from calibrate.device.whole_models import GRAPH, shortened
from calibrate.samples import StepSample
from calibrate.session.fitting import Outcome
from calibrate.session.raw_file import Session
from inferplan.catalog.assemble import load_engine
from inferplan.devices.constants import Calibration, StepConstants
from inferplan.devices.hardware import HardwareSpec
from inferplan.errors import MissingFactError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import Phase, run_step
from inferplan.models.spec import ModelSpec
from inferplan.work.formats import uniform
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Step, prefill

WORKING = ("matmul", "grouped_matmul", "attention", "mla", "scan")
"""Kernels that do the work of a step; what the others take beside them is told by its share."""


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One step of a whole model, predicted and measured [s]; the share of it that no constants stand behind."""

    step: StepSample
    measured: float
    predicted: float
    uncalibrated: float
    disturbed: bool
    """Other programs held a core, or something else the device, during every repeat."""
    bare: tuple[str, ...] = ()
    """Kernels of the step's work that have no constants (:data:`WORKING`): its prediction is a lower bound."""

    @property
    def off(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted / self.measured - 1.0

    @property
    def prefill(self) -> bool:
        """Whether its time is a TTFT (all tokens of the prompts at once); else it is a TPOT."""
        return self.step.new > 1

    @property
    def length(self) -> int:
        """Tokens of a prompt, or the context that a decoded token sees."""
        return self.step.new if self.prefill else self.step.past + 1


@dataclass(frozen=True, kw_only=True)
class StepErrors:
    """Errors over a set of steps: how many, the mean of |predicted/measured - 1|, and the mean with its sign."""

    steps: int
    mean: float
    bias: float


def errors_of(rows: Sequence[StepRow]) -> StepErrors | None:
    """The errors over ``rows``; ``None`` where there are none."""
    if not rows:
        return None
    off = np.array([row.off for row in rows])
    return StepErrors(steps=len(rows), mean=float(np.mean(np.abs(off))), bias=float(np.mean(off)))


class Predictions:
    """What a fitted run says of any step, with what the host needs to launch it where a device runs behind the host."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome, self._host = outcome, host_seconds(outcome.session)
        known = beside_operators(outcome.session, lambda step: self._launches(self.phase(step))) if self._host else None
        self._beside = known or StepConstants()

    def phase(self, step: StepSample) -> Phase:
        """The step's price. Raises ``MissingFactError`` where the hardware has no arithmetic in its format."""
        return predict(step, self.outcome)

    def seconds(self, step: StepSample, phase: Phase | None = None) -> float:
        """Its time; an eager step takes at least what the host needs to launch it. Raises as :meth:`phase`."""
        phase = phase or self.phase(step)
        time = float(phase.time)
        if step.mode == GRAPH or not self._host:
            return time
        return max(time, self._launches(phase) + self._beside.host + self._beside.layer * step.layers)

    def _launches(self, phase: Phase) -> float:
        """Seconds in which the host launches the operators of a step."""
        return sum(self._host.get(c.op.kernel, 0.0) * float(c.op.count) for c in phase.costs)


def beside_operators(session: Session, explained: Callable[[StepSample], float]) -> StepConstants | None:
    """Seconds of each layer and of a step that ``explained`` leaves of the thin model's steps.

    ``None`` where it was not timed undisturbed with two numbers of layers. No other model has a part in it.
    """
    left: dict[int, float] = {}
    for samples in session.steps.values():
        calm = [sample.seconds for sample in samples if sample.calm]
        if samples[0].model == THIN and calm:
            left[samples[0].layers] = float(np.median(calm)) - explained(samples[0])
    if len(left) < 2:
        return None
    few, many = min(left), max(left)
    layer = max(0.0, (left[many] - left[few]) / (many - few))
    return StepConstants(layer=float(f"{layer:.4g}"), host=float(f"{max(0.0, left[few] - few * layer):.4g}"))


def step_rows(outcome: Outcome) -> list[StepRow]:
    """Every whole-model step against the price of the same model's graph, by model, prefills first, then by load.

    Steps that have no price on this hardware are left to :func:`unpriced`, those of the thin model to the glue.
    """
    rows, predictions = [], Predictions(outcome)
    for samples in outcome.session.steps.values():
        step = samples[0]
        if step.model == THIN:
            continue
        try:
            phase = predictions.phase(step)
        except MissingFactError:
            continue
        calm = [s.seconds for s in samples if s.calm]
        measured = float(np.median(calm or [s.seconds for s in samples]))
        rows.append(row_of(replace(step, seconds=measured), phase, predictions.seconds(step, phase), not calm))
    first = {row.step.model: place for place, row in reversed(list(enumerate(rows)))}
    return sorted(rows, key=lambda r: (first[r.step.model], not r.prefill, r.step.mode, r.step.batch, r.length))


def row_of(step: StepSample, phase: Phase, predicted: float, disturbed: bool) -> StepRow:
    """A timed step beside its price, and what no constants stand behind in that."""
    return StepRow(
        step=step,
        measured=step.seconds,
        predicted=predicted,
        uncalibrated=phase.by_basis().get("roofline", 0.0),
        disturbed=disturbed,
        bare=bare_kernels(phase),
    )


def bare_kernels(phase: Phase) -> tuple[str, ...]:
    """The kernels of a step's work that no constants price, by name."""
    bare = {cost.op.kernel for cost in phase.costs if cost.basis == "roofline"}
    return tuple(sorted(kernel for kernel in bare if kernel.split(".")[0] in WORKING))


def unpriced(outcome: Outcome) -> dict[str, str]:
    """Models that were timed but have no price on this hardware, and why."""
    found = {}
    for samples in outcome.session.steps.values():
        if samples[0].model == THIN:
            continue
        try:
            predict(samples[0], outcome)
        except MissingFactError as error:
            found[samples[0].model] = error.what
    return found


def predict(step: StepSample, outcome: Outcome) -> Phase:
    """The price of a step, through the graph and the estimate that every command uses.

    Raises ``MissingFactError`` where the hardware has no arithmetic in the step's format.
    """
    return price_step(step, outcome.hardware, outcome.calibration)


def price_step(step: StepSample, hardware: HardwareSpec, calibration: Calibration) -> Phase:
    """The same by any constants. Raises as :func:`predict`."""
    model = shortened(find_model(step.model), step.layers)
    return run_step(timed_deployment(model, step.format, hardware, calibration), load_of(step))


def timed_deployment(model: ModelSpec, fmt: str, hardware: HardwareSpec, calibration: Calibration) -> Deployment:
    """A model as its steps are timed: in one format, on one device, without an engine."""
    return Deployment(
        model=model,
        hardware=hardware,
        precision=uniform(fmt),
        parallel=Parallelism(),
        engine=load_engine("none"),
        calibration=calibration,
    )


def load_of(step: StepSample) -> Step:
    """What a timed step computes, as a step of the graph."""
    return prefill(float(step.batch), float(step.new), float(step.past))


def host_seconds(session: Session) -> dict[str, float]:
    """Seconds the host needs to launch each kernel, where a device runs behind it."""
    table: dict[str, list[float]] = defaultdict(list)
    for key, samples in session.samples.items():
        table[session.shapes[key].kernel] += [s.host for s in samples if s.host is not None]
    return {kernel: float(np.median(seconds)) for kernel, seconds in table.items() if seconds}
