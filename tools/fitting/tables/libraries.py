"""How far one library's kernel is from another's on the same device: the error of a stand-in for an engine's kernel."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from calibrate.files import write_text
from calibrate.fit import TERMS_OF, Measurement, fit_stack, ratio_errors, stack
from inferplan.devices.constants import ANY, Calibration
from inferplan.units import Array
from tools.fitting.tables.calibrations import IN_MODULES, VECTOR, rest_calibration, vector_constants
from tools.fitting.tables.choose import ENGINES, DeviceTables
from tools.fitting.tables.devices import devices_of

Errors = dict[str, dict[str, dict[str, float]]]
"""``errors[kernel][label]``: figures of :func:`calibrate.fit.ratio_errors` and ``n``, the rows."""


def carried_ratios(device: DeviceTables, rest: Calibration) -> Iterator[tuple[str, str, str, Array]]:
    """(kernel, format, libraries, measured over predicted) where two engines' libraries were timed on a device.

    The constants are fitted to all rows of the one library; the rows are those of the other inside their range.
    """
    groups = {group for name in ENGINES for group in device.libraries.get(name, {})}
    for kernel, label in sorted(groups):
        if kernel in IN_MODULES:  # whole modules differ in more than this kernel
            continue
        pools = {name: device.libraries.get(name, {}).get((kernel, label)) for name in ENGINES}
        for one, rows in pools.items():
            fit = fit_stack(stack(rows, device.hardware, TERMS_OF.get(kernel, ()), rest)) if rows else None
            for other, measured in pools.items():
                inside = [m for m in measured or () if fit is not None and fit.covers(*_work(m))]
                if fit is None or other == one or not inside:
                    continue
                stacked = stack(inside, device.hardware, tuple(fit.terms), rest)
                yield kernel, label, f"{one} to {other}", stacked.seconds / stacked.predict(fit)


def _work(measured: Measurement) -> tuple[float, float]:
    """FLOP and bytes of one run, as the range of a fit counts them."""
    work = measured.op.work()
    return float(work.flop), float(work.bytes + work.wire)


def library_errors(devices: list[DeviceTables]) -> tuple[Errors, dict[str, list[str]]]:
    """The errors over all pairs of libraries and all devices, and by kernel which pairs of which devices they are of.

    Kernels that only move data were timed in no library: short convolutions, which do little else, stand for them.
    """
    rest = rest_calibration(vector_constants(devices))
    pools: dict[tuple[str, str], list[Array]] = defaultdict(list)
    pairs: dict[str, set[str]] = defaultdict(set)
    for device in devices:
        for kernel, label, libraries, ratios in carried_ratios(device, rest):
            pools[kernel, label].append(ratios)
            pairs[kernel].add(f"{libraries} on {device.hardware.name}")
    errors: Errors = defaultdict(dict)
    for (kernel, label), parts in sorted(pools.items()):
        together = np.concatenate(parts)
        errors[kernel][label] = ratio_errors(together) | {"n": len(together)}
    if ANY in errors.get("conv", {}):
        errors |= {kernel: {ANY: errors["conv"][ANY]} for kernel in VECTOR}
    return dict(errors), {kernel: sorted(found) for kernel, found in sorted(pairs.items())}


@click.command("libraries")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The file of the errors.")
@click.option("--date", default="2026-11-22", show_default=True, help="Day of the comparison, for the file.")
def fit_libraries(folder: Path, out: Path, date: str) -> None:
    """Carry the constants of each library in FOLDER's tables to the others on the same device, kernel by kernel."""
    devices = devices_of(folder, fastest=False)
    errors, pairs = library_errors(devices)
    provenance = {"command": f"python -m tools.fitting libraries DIR --out {out.name}", "date": date, "pairs": pairs}
    write_libraries(out, sorted({device.hardware.vendor for device in devices}), provenance, errors)
    for kernel, formats in errors.items():
        for label, error in formats.items():
            click.echo(f"{kernel} {label}: median {100 * error['median']:.1f} %, {error['n']} rows", err=True)


def write_libraries(out: Path, vendors: Sequence[str], provenance: Mapping[str, Any], errors: Errors) -> None:
    """``configs/libraries.yaml``, a line for each format. Raises ``InputFileError`` when it cannot be written."""
    lines = [
        "# Written by `python -m tools.fitting libraries`: errors of constants carried from one library to another.",
        "source: >-",
        "  kernel tables of ai-dynamo/aiconfigurator (see NOTICE): the rows of each engine's library priced with",
        "  constants fitted to another engine's on the same device; kernels that move data by short convolutions",
        f"vendors: [{', '.join(vendors)}]",
        f"provenance: {json.dumps(provenance)}",
        "errors:",
    ]
    for kernel, formats in errors.items():
        lines.append(f"  {kernel}:")
        for label, error in formats.items():
            lines.append(f"    {label}: {{{', '.join(f'{name}: {value}' for name, value in error.items())}}}")
    write_text(out, "\n".join(lines) + "\n")
