"""What an eager step costs beside its operators: views, splits and Python of each layer, which no operator holds.

Where the processor that computes also launches (a CPU), that is time of the step. It is measured on a model so thin
that its kernels take nothing but their launches (:data:`calibrate.designs.THIN`), with few layers and with many: what
the constants of the kernels do not explain of the difference is a layer's, and of the rest the step's. No whole model
that is reported has a part in it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from calibrate.designs import THIN
from calibrate.session.fitting import Outcome
from calibrate.session.steps import predict
from inferplan.devices.constants import StepConstants


def with_glue(outcome: Outcome) -> Outcome:
    """The outcome with the seconds of a layer and of a step beside their operators, where they were measured."""
    steps = glue(outcome)
    if steps is None:
        return outcome
    return replace(outcome, calibration=outcome.calibration.model_copy(update={"step": steps}))


def glue(outcome: Outcome) -> StepConstants | None:
    """Seconds of each layer and of a step that the constants of kernels leave of the thin model's steps.

    ``None`` where it was not timed undisturbed with two numbers of layers.
    """
    bare = replace(outcome, calibration=outcome.calibration.model_copy(update={"step": StepConstants()}))
    left: dict[int, float] = {}
    for samples in outcome.session.steps.values():
        calm = [sample.seconds for sample in samples if sample.calm]
        if samples[0].model == THIN and calm:
            left[samples[0].layers] = float(np.median(calm)) - float(predict(samples[0], bare).time)
    if len(left) < 2:
        return None
    few, many = min(left), max(left)
    layer = max(0.0, (left[many] - left[few]) / (many - few))
    return StepConstants(layer=float(f"{layer:.4g}"), host=float(f"{max(0.0, left[few] - few * layer):.4g}"))
