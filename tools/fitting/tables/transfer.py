"""Constants for devices without measurements: a fit over the measured ones, with the errors on each left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from calibrate.fit import TERMS_OF, Group, Measurement, Stack, fit_stack, join, ratio_errors, stack, stack_errors
from inferplan.devices.constants import ANY, Calibration, Constants, Fit, memory_class
from inferplan.devices.hardware import HardwareSpec
from tools.fitting.tables.calibrations import (
    IN_MODULES,
    VECTOR,
    module_rest,
    rest_calibration,
    with_exchanged,
    with_fallbacks,
    without_launches,
)
from tools.fitting.tables.choose import ENGINES, DeviceTables
from tools.fitting.tables.exchanges import LIBRARY
from tools.fitting.tables.guard import FASTER

Stacks = dict[str, Stack]
Measured = list[tuple[HardwareSpec, list[Measurement]]]


def carried(own: Stacks, beside: Stacks) -> dict[str, tuple[Stack, Fit]]:
    """Each device's measurements, with the constants fitted to the other devices of its class.

    A device that is alone in its class gets those of the other class.
    """
    moved = {}
    for name, measured in own.items():
        others = {other: one for other, one in own.items() if other != name} or beside
        if others:
            moved[name] = measured, fit_stack(join(list(others.values())))
    return moved


def banded(fit: Fit, carried_to: Iterable[tuple[Stack, Fit]]) -> Fit:
    """``fit`` as transferred, with the errors that constants had on the devices they were carried to."""
    ratios = [one.seconds / one.predict(other) for one, other in carried_to]
    if not ratios:
        return fit.model_copy(update={"basis": "transferred"})
    return fit.model_copy(update={"basis": "transferred", "error": ratio_errors(np.concatenate(ratios))})


def pooled(devices: Sequence[DeviceTables]) -> dict[tuple[str, Group], Measured]:
    """What was measured of each library's kernels and formats, device by device."""
    pools: dict[tuple[str, Group], Measured] = defaultdict(list)
    for device in devices:
        for library, pool in device.libraries.items():
            for group, rows in pool.items():
                pools[library, group].append((device.hardware, rows))
    return pools


def carried_terms(kernel: str, devices: int) -> tuple[str, ...]:
    """The terms of a kernel that may be carried from so many devices.

    Padded rows of a small matmul hide under the weights' traffic on one device and show on another whose ridge is
    lower: a single device cannot tell how much of the padding is computed (an RTX 4090 came out bound by arithmetic at
    batch 1 with the L40S's value).
    """
    terms = TERMS_OF.get(kernel, ())
    return tuple(term for term in terms if term != "padding") if devices == 1 and kernel == "matmul" else terms


def lagging(own: Stacks, beside: Sequence[Stacks]) -> set[str]:
    """Devices on which a kernel takes over :data:`FASTER` times as long as those of the other libraries would (the
    median of them): what a library has not made fast on one generation says nothing of the next."""
    found = set()
    for name, measured in own.items():
        neighbours = [fit_stack(stacks[name]) for stacks in beside if name in stacks]
        times = [float(np.median(measured.seconds / measured.predict(fit))) for fit in neighbours]
        if times and float(np.median(times)) > FASTER:
            found.add(name)
    return found


def _order(pool: tuple[tuple[str, Group], Measured]) -> tuple[int, str, Group]:
    """Kernels that are timed in whole modules come after those that the modules are priced with."""
    (library, group), _ = pool
    return (IN_MODULES.index(group[0]) + 1 if group[0] in IN_MODULES else 0, library, group)


def calibrate_unmeasured(
    devices: Sequence[DeviceTables], memory: str, vector: Fit, provenance: dict[str, Any]
) -> Calibration:
    """Constants for devices without measurements: one fit over the measured devices of the memory class.

    The error is that on each device left out (``held_out``). A library's modules on a device are left out from the
    first kernel on that is far behind there (:func:`lagging`); another library stands in where that leaves none.
    """
    rest = rest_calibration(vector)
    own = [device for device in devices if memory_class(device.hardware) == memory]
    other = pooled([device for device in devices if device not in own])
    libraries: dict[str, Constants] = defaultdict(lambda: defaultdict(dict))
    left_out: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    pools_here = pooled(own)
    behind: dict[str, set[str]] = defaultdict(set)
    for (library, (kernel, label)), measured in sorted(pools_here.items(), key=_order):
        terms_here = carried_terms(kernel, len(own))
        beside = module_rest(libraries, rest, library) if kernel in IN_MODULES else rest

        def stacked(pools: Measured, terms: Sequence[str] = terms_here, beside: Calibration = beside) -> Stacks:
            return {hardware.name: stack(rows, hardware, terms, beside) for hardware, rows in pools}

        stacks = stacked(measured)
        if kernel in IN_MODULES:
            others = [
                stacked(pool, beside=module_rest(libraries, rest, name))
                for (name, group), pool in pools_here.items()
                if name != library and group == (kernel, label)
            ]
            behind[library] |= lagging(stacks, others)
            stacks = {name: one for name, one in stacks.items() if name not in behind[library]}
        if not stacks:
            continue
        fit = fit_stack(join(list(stacks.values())))
        moved = carried(stacks, stacked(other.get((library, (kernel, label)), [])))
        carrier = banded(fit, moved.values())
        found = {kernel: {label: carrier}}
        libraries[library][kernel] |= (without_launches(found) if kernel in IN_MODULES else found)[kernel]
        if moved:
            left_out[library][kernel][label] = {
                name: stack_errors(one, carrier) | {"n": len(one.seconds)} for name, (one, carrier) in moved.items()
            }
    shared = {kernel: {ANY: vector} for kernel in VECTOR} | with_fallbacks(libraries.pop("nccl", {}))
    shared |= with_fallbacks(libraries.pop(LIBRARY, {}))
    return Calibration(
        name="transferred",
        basis="transferred",
        provenance=provenance | {"devices": [device.hardware.name for device in own]},
        vendors=sorted({device.hardware.vendor for device in own}),
        constants=shared,
        libraries=with_exchanged(
            {name: with_fallbacks(dict(libraries[name])) for name in ENGINES if name in libraries}
        ),
        held_out={library: {k: dict(v) for k, v in kernels.items()} for library, kernels in left_out.items()},
    )


def with_carried_exchanges(own: Calibration, carried: Calibration) -> Calibration:
    """A device's constants, and for exchanges of experts that nobody measured on it those of its class."""
    known = {kernel for constants in (own.constants, *own.libraries.values()) for kernel in constants}
    found = {
        kernel: formats
        for kernel, formats in carried.borrowed().constants.items()
        if kernel.startswith(("dispatch.", "combine.")) and kernel not in known
    }
    return own.model_copy(update={"constants": {**own.constants, **found}})
