"""What an eager step costs beside its operators: views, splits and Python of each layer, which no operator holds.

Where the processor that computes also launches (a CPU), that is time of the step, and goes into the constants. It is
measured on a model so thin that its kernels take nothing but their launches (:data:`calibrate.designs.THIN`), with few
layers and with many: what the constants of the kernels do not explain of the difference is a layer's, and of the rest
the step's. No model that is reported has a part in it. Where a device runs behind the host, the same is time of the
host alone, and :class:`calibrate.session.steps.Predictions` adds it to what launches the kernels.
"""

from __future__ import annotations

from dataclasses import replace

from calibrate.session.fitting import Outcome
from calibrate.session.steps import beside_operators, host_seconds, predict
from inferplan.devices.constants import StepConstants


def with_glue(outcome: Outcome) -> Outcome:
    """The outcome with the seconds of a layer and of a step beside their operators, where they were measured."""
    if host_seconds(outcome.session):
        return outcome
    bare = replace(outcome, calibration=outcome.calibration.model_copy(update={"step": StepConstants()}))
    steps = beside_operators(outcome.session, lambda step: float(predict(step, bare).time))
    if steps is None:
        return outcome
    return replace(outcome, calibration=outcome.calibration.model_copy(update={"step": steps}))
