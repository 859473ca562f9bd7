"""What a plan says of GPUs that somebody named and that no option of it is on."""

from __future__ import annotations

import numpy as np

from inferplan.catalog.counted import counted
from inferplan.catalog.files import load_hardware
from inferplan.figures import short_time
from inferplan.planning.demand import METRIC_NAMES
from inferplan.planning.plan import Plan

_FEW = 6
"""As many GPUs may be named for a line on each that is left out; a plan over all of a price list has none."""


def unused_lines(plan: Plan) -> list[str]:
    """Of each named GPU without an option why: a limit that all of its points are over, in closed form."""
    named = [load_hardware(counted(gpu).gpu).name for gpu in plan.question.space.gpus]
    beside = (plan.unknown, plan.measured, plan.native, plan.apart, plan.as_predicted)
    shown = [plan.option, *(one.option for one in (*plan.alternatives, *beside) if one is not None)]
    used = {part.hardware.name for one in shown for part, _, _ in one.sold}
    if len(named) > _FEW:
        return []
    return [f"{gpu} is left out: {_why(plan, gpu)}" for gpu in dict.fromkeys(named) if gpu not in used]


def _why(plan: Plan, gpu: str) -> str:
    grids = [one.grid for one in plan.searched.grids if one.grid.deployment.hardware.name == gpu]
    costs = [one.bound for one in plan.searched.options if one.deployment.hardware.name == gpu and one.cost is not None]
    if not grids:
        return "it holds the weights in no division and format that was tried"
    if costs:
        least, cost = min(costs), plan.option.cost or 0.0
        if least >= cost:
            return f"it costs {least:,.2f} {plan.question.prices.currency}/h at least (closed form)"
        return "none of its options that might cost less and have a known error keeps the limits"
    for name, limit in plan.question.slo.limits.items():
        least = min(float(np.min(np.where(grid.possible, getattr(grid, name), np.inf))) for grid in grids)
        if np.isfinite(least) and least > limit:
            word = METRIC_NAMES[name]
            return f"its {word} is {short_time(least)} at least, over the limit of {short_time(limit)} (closed form)"
    return "none of its points keeps all limits and holds the requests at once (closed form)"
