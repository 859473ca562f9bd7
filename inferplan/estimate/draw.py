"""Joules of a step on its devices: for being on, for arithmetic and for memory traffic (docs/power.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferplan.devices.power import PowerShares
from inferplan.estimate.phase import Phase, over_ranks
from inferplan.estimate.roofline import OpCost, ideal_time
from inferplan.terms import Naming, plain
from inferplan.units import Num


def step_joules(phase: Phase, shares: PowerShares, seconds: Num, name: Naming = plain) -> tuple[Num, Num]:
    """What all devices of a replica take in a step that lasts ``seconds``: for being on, and for what they work [J].

    A device is on for the whole step, whoever works in it, and draws no more than TDP, or its cap, on average over
    it. Raises ``MissingFactError`` without a TDP.
    """
    ranks = name(phase.deployment.parallel.ranks, "ranks", "", ("parallel", "ranks"))
    tdp = name(phase.deployment.hardware.tdp, "TDP", "W", ("hardware", "power"))
    running, cap = name(shares.running, "running", "", ("power", "running")), phase.deployment.cap
    on: Num = tdp * running * ranks * seconds
    limit = 1.0 if cap is None else cap.watts / cap.tdp
    worked = over_ranks(phase, lambda cost: _worked(phase, cost, shares), "s of TDP")
    left = (limit - shares.running) * phase.deployment.parallel.ranks * getattr(seconds, "value", seconds)
    if name is plain:
        return on, tdp * np.minimum(worked, left)
    if np.any(worked > left):
        return on, tdp * ((name(limit, "limit", "", ("power", "limit")) - running) * ranks * seconds)
    return on, tdp * over_ranks(phase, lambda cost: _worked(phase, cost, shares, name), "s of TDP", name)


def _worked(phase: Phase, cost: OpCost, shares: PowerShares, name: Naming = plain) -> Any:
    """Seconds of TDP that one run of a kernel takes above what its device draws for being on.

    Below it where a cap slows the clock: what switches in every cycle then draws less.
    """
    if cost.op.place != "device":
        return 0.0
    asked = ideal_time(cost.op, cost.work, phase.deployment.runs_on(cost.op)[0], name=name)
    cores: Any = name(shares.arithmetic, "arithmetic", "", ("power", "arithmetic")) * asked.math
    if shares.moving:
        cores = cores + name(shares.moving, "moving", "", ("power", "moving")) * asked.memory
    memory = name(shares.memory, "memory", "", ("power", "memory")) * asked.memory
    if np.all(cost.clock == 1.0):
        return cores + memory
    clock = name(cost.clock, "clock", "", ("power", "cap"))
    energy = clock ** name(shares.voltage, "voltage", "", ("power", "voltage"))
    static = name(shares.static, "static", "", ("power", "static"))
    saved = (name(shares.running, "running", "", ("power", "running")) - static) * (1.0 - energy * clock) * cost.time
    return cores * energy + memory - saved
