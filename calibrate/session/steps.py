"""Steps of whole models against the price of their graphs; nothing is fitted to these."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from calibrate.designs import find_model
from calibrate.device.whole_models import GRAPH, shortened
from calibrate.samples import StepSample
from calibrate.session.fitting import Outcome
from calibrate.session.raw_file import Session
from inferplan.catalog.assemble import load_engine
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.phase import Phase, run_step
from inferplan.work.formats import uniform
from inferplan.work.parallel import Parallelism
from inferplan.work.step import Segment, Step


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One step of a whole model, predicted and measured [s]; the share of it that no constants stand behind."""

    step: StepSample
    measured: float
    predicted: float
    uncalibrated: float
    disturbed: bool
    """Other programs held a core during every repeat."""

    @property
    def off(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted / self.measured - 1.0


def step_rows(outcome: Outcome) -> list[StepRow]:
    """Every whole-model step against the price of the same model's graph. Nothing is fitted to these."""
    rows = []
    host = _host_seconds(outcome.session)
    for samples in outcome.session.steps.values():
        calm = [s for s in samples if s.calm]
        step, measured = samples[0], float(np.median([s.seconds for s in calm or samples]))
        phase = predict(step, outcome)
        predicted = float(phase.time)
        if step.mode != GRAPH and host:
            predicted = max(predicted, sum(host.get(c.op.kernel, 0.0) * float(c.op.count) for c in phase.costs))
        shares = phase.by_basis()
        rows.append(
            StepRow(
                step=step,
                measured=measured,
                predicted=predicted,
                uncalibrated=shares.get("roofline", 0.0),
                disturbed=not calm,
            )
        )
    return rows


def predict(step: StepSample, outcome: Outcome) -> Phase:
    """The price of a step, through the graph and the estimate that every command uses."""
    deployment = Deployment(
        model=shortened(find_model(step.model), step.layers),
        hardware=outcome.hardware,
        precision=uniform(step.format),
        parallel=Parallelism(),
        engine=load_engine("none"),
        calibration=outcome.calibration,
    )
    segment = Segment(batch=float(step.batch), new=float(step.new), past=float(step.past))
    return run_step(deployment, Step(segments=(segment,)))


def _host_seconds(session: Session) -> dict[str, float]:
    """Seconds the host needs to launch each kernel, where a device runs behind it."""
    table: dict[str, list[float]] = defaultdict(list)
    for key, samples in session.samples.items():
        table[session.shapes[key].kernel] += [s.host for s in samples if s.host is not None]
    return {kernel: float(np.median(seconds)) for kernel, seconds in table.items() if seconds}
