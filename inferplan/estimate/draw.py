"""Joules of a step on its devices: for being on, for arithmetic and for memory traffic (docs/power.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferplan.devices.power import PowerShares
from inferplan.estimate.phase import Phase, over_ranks
from inferplan.estimate.roofline import OpCost, ideal_time, price
from inferplan.terms import Naming, plain
from inferplan.units import Num


def step_joules(phase: Phase, shares: PowerShares, seconds: Num, name: Naming = plain) -> tuple[Num, Num]:
    """What all devices of a replica take in a step that lasts ``seconds``: for being on, and for what they work [J].

    A device is on for the whole step, whoever works in it. Raises ``MissingFactError`` without a TDP.
    """
    ranks = name(phase.deployment.parallel.ranks, "ranks", "", ("parallel", "ranks"))
    tdp = name(phase.deployment.hardware.tdp, "TDP", "W", ("hardware", "power"))
    on: Num = tdp * name(shares.idle, "idle", "", ("power", "idle")) * ranks * seconds
    return on, tdp * over_ranks(phase, lambda cost: _worked(phase, cost, shares, name), "s of TDP", name)


def _worked(phase: Phase, cost: OpCost, shares: PowerShares, name: Naming) -> Any:
    """Seconds of TDP that one run of a kernel takes above what its device draws for being on.

    Below it where a cap slows the clock: what switches in every cycle then draws less.
    """
    if cost.op.place != "device":
        return 0.0
    hardware, calibration, _ = phase.deployment.runs_on(cost.op)
    asked = ideal_time(cost.op, cost.work, hardware)
    own = cost.time if np.all(cost.clock == 1.0) else price(cost.op, hardware, calibration).time
    arithmetic, moved = shares.dynamic(asked.math, asked.memory, own)
    memory: Any = moved
    if name is not plain:
        called = ideal_time(cost.op, cost.work, hardware, name=name)
        if float(np.max(arithmetic)) == float(np.max(shares.arithmetic * asked.math)):
            arithmetic = name(shares.arithmetic, "arithmetic", "", ("power", "arithmetic")) * called.math
        else:
            arithmetic = name(arithmetic, "arithmetic up to TDP", "s")
        memory = name(shares.memory, "memory", "", ("power", "memory")) * called.memory
    if np.all(cost.clock == 1.0):
        return arithmetic + memory
    clock = name(cost.clock, "clock", "", ("power", "cap"))
    energy = clock ** name(shares.voltage, "voltage", "", ("power", "voltage"))
    static = name(shares.static, "static", "", ("power", "static"))
    saved = (name(shares.idle, "idle", "", ("power", "idle")) - static) * (1.0 - energy * clock) * cost.time
    return arithmetic * energy + memory - saved
