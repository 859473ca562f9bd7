"""Constants of the mechanisms of 2026, from modules and kernels that engines ran, beside those on file.

Each step of :data:`STEPS` fits one operator of a mechanism, under a label of its own; what else a row times has the
constants on file, and those of the steps before it. Constants of other kernels and formats stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from calibrate.fit import TERMS_OF, Group, Measurement, Stack, errors, fit_kernel, fit_stack, join, split, stack
from inferplan.catalog.calibrations import shared_step
from inferplan.devices.constants import Calibration, Constants, Fit
from inferplan.devices.hardware import HardwareSpec
from inferplan.work import ops
from inferplan.work.step import WIDE, Segment
from tools.fitting.tables.calibrations import without_launches
from tools.fitting.tables.mechanisms import BLOCKS, COMPRESSED, HYPER, LOGITS, mechanism_ops, mechanism_rows
from tools.fitting.tables.transfer import banded, carried

STEPS = (
    ((LOGITS,), "attn.index.select"),
    ((HYPER,), "hyper.expand"),
    ((HYPER,), "hyper.collapse"),
    (COMPRESSED, "attn.core"),
    *((BLOCKS, name) for _ in range(3) for name in ("attn.index.select", "attn.core")),
)
"""Tables, and the operator whose constants come from them. Nothing times the two kernels of chosen blocks by
themselves: each is fitted with the other's, in turns."""
TABLES = frozenset(table for tables, _ in STEPS for table in tables)
LABELS = (ops.COMPRESSED, ops.BLOCKS, *ops.HYPER)
"""The ends of the labels of the mechanisms."""
EAGER = tuple(table for table in (*COMPRESSED, *BLOCKS) if "context" in table)
"""Tables whose modules of few tokens wait for the host, which a step prices by itself; decodes were replayed."""
FEWEST = 25
"""Rows below which a kernel gets no constants."""
WORST = 0.4
"""Held-out median error above which constants say nothing, and what stands in without them is left to do so."""
LEAST = 1e-9
"""Seconds below which an overhead is none."""
Pools = dict[tuple[str, Group], list[Measurement]]
"""Rows by engine, kernel and format."""


def read_mechanisms(folder: Path) -> dict[str, pd.DataFrame]:
    """The rows of each device that a step fits, by its name."""
    rows = mechanism_rows(folder)
    return {str(gpu): some for gpu, some in rows[rows.table.isin(TABLES)].groupby("gpu")}


def measured(rows: pd.DataFrame, name: str, hardware: HardwareSpec) -> Pools:
    """The rows of one device that time the operator ``name``; what the device has no arithmetic for is left out."""
    found: Pools = defaultdict(list)
    for row in rows.itertuples(index=False):
        kind: Any = row
        if kind.gemm_type == "nvfp4" and "fp4" not in hardware.peak:
            continue
        if kind.isl <= WIDE and kind.table in EAGER:
            continue
        segment = Segment(batch=float(kind.batch_size), new=float(kind.isl), past=float(kind.step))
        runs = [
            op.repeated(1.0 / float(op.count))
            for op in mechanism_ops(kind, segment, peaks=frozenset(hardware.peak))
            for _ in range(round(float(op.count)))
        ]
        chosen = [op for op in runs if op.name == name]
        if chosen:
            rest = (*chosen[1:], *(op for op in runs if op.name != name))
            one = Measurement(op=chosen[0], seconds=kind.seconds, source=kind.kernel_source, rest=rest)
            found[kind.framework, one.group].append(one)
    return {key: some for key, some in found.items() if len(some) >= FEWEST}


def held_out(some: list[Measurement]) -> tuple[list[Measurement], list[Measurement]]:
    """Training and held-out modules: by the shape of the attention, so that every kernel has the same ones."""
    shapes = [next((op for op in (m.op, *m.rest) if op.name == "attn.core"), m.op) for m in some]
    keys = [Measurement(op=op, seconds=0.0, source=str(place)) for place, op in enumerate(shapes)]
    train, test = split(keys)
    return [some[int(key.source)] for key in train], [some[int(key.source)] for key in test]


def without_mechanisms(calibration: Calibration) -> Calibration:
    """The same without the constants that this module makes."""

    def others(constants: Constants) -> Constants:
        kept = {
            kernel: {label: fit for label, fit in formats.items() if not label.endswith(LABELS)}
            for kernel, formats in constants.items()
        }
        return {kernel: formats for kernel, formats in kept.items() if formats}

    libraries = {name: others(constants) for name, constants in calibration.libraries.items()}
    return calibration.model_copy(update={"constants": others(calibration.constants), "libraries": libraries})


def _with(calibration: Calibration, engine: str, group: Group, fit: Fit | None) -> Calibration:
    """The same with constants of an engine's kernel in one format, or without them."""
    kernel, label = group
    own = calibration.libraries.get(engine, {})
    formats = {name: one for name, one in own.get(kernel, {}).items() if name != label}
    formats |= {} if fit is None else {label: fit}
    changed = own | {kernel: formats} if formats else {name: one for name, one in own.items() if name != kernel}
    return calibration.model_copy(update={"libraries": calibration.libraries | {engine: changed}})


def _rest(calibration: Calibration, engine: str) -> Calibration:
    """What prices the other operators of a module, with their overheads as in a step."""
    return calibration.for_engine(engine).with_step(shared_step())


def _kept(group: Group, fit: Fit, tables: tuple[str, ...], name: str) -> Fit | None:
    """The same with what was measured, and no launches of a module from the host; ``None`` where it says nothing."""
    if fit.error["median"] > WORST:
        return None
    kernel, label = group
    overhead = fit.overhead if fit.overhead > LEAST else 0.0
    source = "whole modules" if tables in (COMPRESSED, BLOCKS) else f"{name}, timed alone"
    noted = fit.model_copy(update={"source": source, "overhead": overhead})
    return without_launches({kernel: {label: noted}})[kernel][label]


def fitted_device(rows: pd.DataFrame, hardware: HardwareSpec, on_file: Calibration) -> Calibration:
    """The constants of one device with those of the mechanisms; errors are those on shapes held out."""
    found = without_mechanisms(on_file)
    for tables, name in STEPS:
        for (engine, group), some in sorted(measured(rows[rows.table.isin(tables)], name, hardware).items()):
            train, test = held_out(some)
            rest = _rest(found, engine)
            fit = fit_kernel(train, hardware, TERMS_OF.get(group[0], ()), rest)
            kept = _kept(group, fit.model_copy(update={"error": errors(test, hardware, fit, rest)}), tables, name)
            found = _with(found, engine, group, kept)
    return with_caches(found)


def fitted_class(
    rows: Mapping[str, pd.DataFrame], devices: Mapping[str, tuple[HardwareSpec, Calibration]], on_file: Calibration
) -> Calibration:
    """The constants of a class of memory with those of the mechanisms; errors are those on each device left out.

    devices: each measured one with its constants, which price what else a module has.
    """
    found = without_mechanisms(on_file)
    for tables, name in dict.fromkeys(STEPS):
        for (engine, group), stacks in sorted(_stacks(rows, devices, tables, name).items()):
            if len(stacks) < 2:  # nothing to leave out
                continue
            fit = banded(fit_stack(join(list(stacks.values()))), carried(stacks, {}).values())
            found = _with(found, engine, group, _kept(group, fit, tables, name))
    return with_caches(found)


def with_caches(calibration: Calibration) -> Calibration:
    """The same with the kernel on compressed entries in fp8, the only ones that were timed, lent to 16-bit entries: it
    is nearer to theirs than any other kernel, and their bytes are counted as they are."""
    timed, lent = f"bf16-kv-fp8{ops.COMPRESSED}", f"bf16{ops.COMPRESSED}"
    stands_in = {"basis": "transferred", "source": f"{timed} kernel"}
    for engine, constants in calibration.libraries.items():
        for kernel, formats in constants.items():
            if timed in formats:
                fit = formats[timed].model_copy(update=stands_in)
                calibration = _with(calibration, engine, (kernel, lent), fit)
    return calibration


def _stacks(
    rows: Mapping[str, pd.DataFrame],
    devices: Mapping[str, tuple[HardwareSpec, Calibration]],
    tables: tuple[str, ...],
    name: str,
) -> dict[tuple[str, Group], dict[str, Stack]]:
    """The rows of each device by engine, kernel and format."""
    found: dict[tuple[str, Group], dict[str, Stack]] = defaultdict(dict)
    for gpu, (hardware, calibration) in devices.items():
        chosen = rows[gpu][rows[gpu].table.isin(tables)]
        for (engine, group), some in measured(chosen, name, hardware).items():
            terms = TERMS_OF.get(group[0], ())
            found[engine, group][gpu] = stack(some, hardware, terms, _rest(calibration, engine))
    return found
