"""From tables of measurements to ``configs/calibration``: which kernel of a library counts, fits, transfer, files."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.fit import (
    TERMS_OF,
    Group,
    HeldOut,
    Measurement,
    Ranges,
    Stack,
    fit_all,
    fit_stack,
    join,
    ratio_errors,
    stack,
    stack_errors,
)
from calibrate.tables import Row
from inferplan.devices.constants import ANY, IDEAL, Calibration, Constants, Fit, memory_class
from inferplan.devices.hardware import HardwareSpec
from inferplan.estimate.roofline import price
from inferplan.work.ops import Attention, Op

ENGINES = ("trtllm", "vllm", "sglang")
"""Libraries that an engine brings, in the order in which one without own rows borrows: first the one whose kernels were
all timed inside graphs."""
VECTOR = ("norm", "elementwise", "copy", "gather")
"""Kernels bound by memory that no table times."""
EAGER = 4e-5
"""A library's kernel that never runs in less was launched by the host each time: its rows time the host."""
LARGEST_GROUP = 32
"""Query heads of a KV head beyond which libraries leave their grouped decode kernel for a slower one."""
FEWEST = 40
"""Rows below which a kernel is not fitted on its own."""

Pool = dict[Group, list[Measurement]]


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device's rows, by library and kernel.

    impossible, fallbacks: rows left out as faster than light, and as decode attention of very large groups.
    """

    hardware: HardwareSpec
    libraries: dict[str, Pool]
    impossible: int
    fallbacks: int
    rows: int
    sources: dict[str, dict[str, str]]


def gather(rows: Iterable[Row], hardware_of: Callable[[str], HardwareSpec]) -> list[Device]:
    """The rows of each device with one kernel chosen for each library, operator and format.

    Rows faster than the roofline are left out: a cache served them, which serving does not see. Of several kernels of a
    library, the one nearest to the roofline counts (geometric mean over its rows); other head sizes count only
    for the kernel of the usual one. Convolutions of one token and of many are one kernel.
    """
    by_device: dict[str, dict[tuple[str, Group, str], list[Measurement]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_device[row.gpu][row.library, row.measurement.group, row.kernel].append(row.measurement)
    return [_device(hardware_of(gpu), groups) for gpu, groups in by_device.items()]


def _device(hardware: HardwareSpec, groups: Mapping[tuple[str, Group, str], list[Measurement]]) -> Device:
    candidates: dict[tuple[str, Group], dict[str, tuple[float, list[Measurement]]]] = defaultdict(dict)
    impossible = fallbacks = total = 0
    for (library, group, kernel), rows in groups.items():
        measured = [m for m in rows if not _falls_back(m.op)]
        total += len(rows)
        fallbacks += len(rows) - len(measured)
        ratios = [m.seconds / _light(m, hardware) for m in measured]
        kept = [m for m, ratio in zip(measured, ratios) if ratio > 1.0]
        impossible += len(measured) - len(kept)
        eager = min((m.seconds for m in measured), default=0.0) > EAGER and group[0] != "grouped_matmul"
        if len(kept) >= FEWEST and not eager:
            distance = float(np.mean(np.log([ratio for ratio in ratios if ratio > 1.0])))
            candidates[library, group][kernel] = distance, kept
    libraries: dict[str, Pool] = defaultdict(dict)
    sources: dict[str, dict[str, str]] = defaultdict(dict)
    for (library, group), kernels in sorted(candidates.items()):
        if group[0] == "conv":
            libraries[library][group] = [m for _, measured in kernels.values() for m in measured]
            continue
        main = sources[library].get(f"{group[0]}/{group[1].rsplit('-d', 1)[0]}")
        chosen = main or min(kernels, key=lambda kernel: kernels[kernel][0])
        if chosen not in kernels:
            continue
        libraries[library][group] = kernels[chosen][1]
        sources[library]["/".join(group)] = chosen
    return Device(
        hardware=hardware,
        libraries=dict(libraries),
        impossible=impossible,
        fallbacks=fallbacks,
        rows=total,
        sources=dict(sources),
    )


def _falls_back(op: Op) -> bool:
    """Decode attention with more query heads a KV head than grouped kernels serve (MLA has kernels of its own)."""
    return isinstance(op, Attention) and op.kernel == "attention.decode" and op.heads > LARGEST_GROUP * op.kv_heads


def _light(measurement: Measurement, hardware: HardwareSpec) -> float:
    """Seconds that the operators of the kernel take at the datasheet's rates."""
    ops = (measurement.op, *(op for op in measurement.rest if op.kernel == measurement.op.kernel))
    return sum(float(price(op, hardware, IDEAL).total) for op in ops)


def vector_constants(devices: Sequence[Device]) -> Fit:
    """Constants of kernels that only move data, from the short convolutions of one token that the tables time.

    Fitted on the single-token kernel over all devices, and their error is that on the kernel for many tokens: a kernel
    they were not fitted to.
    """
    few: list[Stack] = []
    many: list[Stack] = []
    for device in devices:
        measured = [m for name in ("vllm", "sglang") for m in device.libraries.get(name, {}).get(("conv", ANY), [])]
        for part, chosen in ((few, True), (many, False)):
            rows = [m for m in measured if (m.source.endswith("update")) == chosen]
            if rows:
                part.append(stack(rows, device.hardware, ()))
    if not few or not many:
        return Fit(basis="transferred", source="none measured")
    fit = fit_stack(join(few))
    error = stack_errors(join(many), fit)
    error |= {"low": min(error["low"], 1.0), "high": max(error["high"], 1.0)}
    update: dict[str, Any] = {"error": error, "basis": "transferred", "source": "short convolutions"}
    return fit.model_copy(update=update | {"flop_range": None, "bytes_range": None})


def rest_calibration(vector: Fit) -> Calibration:
    """What prices the copies and pointwise operators that a measurement includes."""
    return Calibration(name="vector", constants={kernel: {ANY: vector} for kernel in VECTOR})


def calibrate_device(device: Device, vector: Fit, provenance: dict[str, Any]) -> Calibration:
    """The constants of one device: by library, and those that all libraries share."""
    rest = rest_calibration(vector)
    libraries: dict[str, Constants] = {}
    held_out: dict[str, HeldOut] = {}
    ranges: dict[str, Ranges] = {}
    for library, pool in device.libraries.items():
        measured = [m for rows in pool.values() for m in rows]
        libraries[library], held_out[library], ranges[library] = fit_all(measured, device.hardware, rest=rest)
    shared = {kernel: {ANY: vector} for kernel in VECTOR} | with_fallbacks(libraries.pop("nccl", {}))
    return Calibration(
        name=device.hardware.name,
        provenance=provenance
        | {
            "rows": device.rows,
            "rows_faster_than_the_roofline": device.impossible,
            "rows_of_very_large_groups": device.fallbacks,
            "kernels": {name: device.sources[name] for name in sorted(device.sources)},
        },
        constants=shared,
        libraries={name: with_fallbacks(libraries[name]) for name in ENGINES if name in libraries},
        held_out=held_out,
        range=ranges,
    )


def with_fallbacks(constants: Constants) -> Constants:
    """``any`` for each kernel (the 16-bit constants, or the first format's) and the patterns that move as much."""
    filled: Constants = {}
    for kernel, formats in constants.items():
        if not formats:
            continue
        usual = formats.get(ANY) or formats.get("bf16") or next(iter(formats.values()))
        name = next(label for label, fit in formats.items() if fit is usual)
        spare = usual.model_copy(update={"basis": "transferred", "source": f"{name} kernel"})
        filled[kernel] = formats | ({} if ANY in formats else {ANY: spare})
    if "collective.all_gather" in filled:
        gathered = filled["collective.all_gather"][ANY]
        for kernel in ("collective.reduce_scatter", "collective.all_to_all", "collective.send"):
            filled[kernel] = {ANY: gathered.model_copy(update={"source": "timed together with all-gather"})}
        filled["collective.all_reduce"] = filled.get("collective.all_reduce", {}) | {
            ANY: gathered.model_copy(update={"basis": "transferred", "source": "all-gather, twice the bytes"})
        }
    return filled


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


def pooled(devices: Sequence[Device]) -> dict[tuple[str, Group], Measured]:
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


def calibrate_unmeasured(
    devices: Sequence[Device], memory: str, vector: Fit, provenance: dict[str, Any]
) -> Calibration:
    """Constants for devices without measurements: one fit over the measured devices of the memory class.

    The error is that on each device left out (``held_out``).
    """
    rest = rest_calibration(vector)
    own = [device for device in devices if memory_class(device.hardware) == memory]
    other = pooled([device for device in devices if device not in own])
    libraries: dict[str, Constants] = defaultdict(lambda: defaultdict(dict))
    left_out: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    for (library, (kernel, label)), measured in sorted(pooled(own).items()):
        terms_here = carried_terms(kernel, len(own))

        def stacked(pools: Measured, terms: Sequence[str] = terms_here) -> Stacks:
            return {hardware.name: stack(rows, hardware, terms, rest) for hardware, rows in pools}

        stacks = stacked(measured)
        fit = fit_stack(join(list(stacks.values())))
        moved = carried(stacks, stacked(other.get((library, (kernel, label)), [])))
        libraries[library][kernel][label] = banded(fit, moved.values())
        if moved:
            left_out[library][kernel][label] = {
                name: stack_errors(one, carrier) | {"n": len(one.seconds)} for name, (one, carrier) in moved.items()
            }
    shared = {kernel: {ANY: vector} for kernel in VECTOR} | with_fallbacks(libraries.pop("nccl", {}))
    return Calibration(
        name="transferred",
        basis="transferred",
        provenance=provenance | {"devices": [device.hardware.name for device in own]},
        vendors=sorted({device.hardware.vendor for device in own}),
        constants=shared,
        libraries={name: with_fallbacks(dict(libraries[name])) for name in ENGINES if name in libraries},
        held_out={library: {k: dict(v) for k, v in kernels.items()} for library, kernels in left_out.items()},
    )


def write(calibration: Calibration, file: Path) -> None:
    """The calibration as YAML in its JSON form, which loads at once, without the fields that say nothing."""
    data = calibration.model_dump(mode="json", exclude_defaults=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    # YAML takes 1e-06 for text and 1.0e-06 for a number; JSON takes both for a number.
    text = re.sub(r"(?<=[ \[])(-?\d+)e(?=[-+]?\d)", r"\1.0e", _layout(data, ""))
    file.write_text(text + "\n", encoding="utf-8")


def _layout(data: Any, indent: str) -> str:
    """JSON with a line for every mapping that holds no other, so that a change shows where it is."""
    if not isinstance(data, dict) or not any(isinstance(value, dict) for value in data.values()):
        return json.dumps(data, ensure_ascii=False)
    inner = indent + " "
    entries = (f"{inner}{json.dumps(key)}: {_layout(value, inner)}" for key, value in data.items())
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
