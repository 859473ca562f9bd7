"""How far constants are off that are carried from one device to another, where both were measured."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from calibrate.files import write_text
from calibrate.fit import Stack, ratio_errors, stack
from inferplan.catalog.files import config_root, read_yaml, validate
from inferplan.devices.constants import ANY, SHARED, Calibration, Constants, Fit
from inferplan.devices.hardware import HardwareSpec
from inferplan.units import Array
from tools.fitting.tables.calibrations import IN_MODULES, VECTOR, module_rest, rest_calibration
from tools.fitting.tables.choose import DeviceTables
from tools.fitting.tables.devices import devices_of
from tools.fitting.tables.exchanges import LIBRARY

Ratios = dict[str, dict[str, dict[str, Array]]]
"""``ratios[library][kernel][label]``: measured over predicted seconds."""
SHARED_TABLES = ("nccl", LIBRARY)
KINDS = ("same_chip", "other_chip")
"""How the device that constants are carried from is related."""
NEIGHBOURS = {"h100-sxm": ("b200-hgx",), "h200-sxm": ("b200-hgx",), "b200-hgx": ("h100-sxm", "h200-sxm")}
"""Measured devices with another chip of the generation before or after, between which most kernels are alike. A100 is
left out: its kernels know no asynchronous copies, and its latent decode is 60 % and more off either way."""


def constants_of(found: Calibration, library: str) -> Constants:
    """The constants of a library of the tables, as a calibration file keeps them."""
    return found.constants if library in SHARED_TABLES else found.libraries.get(library, {})


def carried_ratios(device: DeviceTables, found: Calibration) -> Ratios:
    """Measured over predicted seconds of ``device`` under the constants ``found`` of another one.

    Only where the other has the kernel in that format itself: what it lacks falls to the class.
    """
    vector: Fit = found.constants[VECTOR[0]][ANY]
    rest = rest_calibration(vector)
    ratios: Ratios = defaultdict(lambda: defaultdict(dict))
    for library, pool in device.libraries.items():
        for (kernel, label), rows in pool.items():
            fit = constants_of(found, library).get(kernel, {}).get(label)
            if fit is None or fit.basis == "transferred":
                continue
            beside = module_rest(found.libraries, rest, library) if kernel in IN_MODULES else rest
            measured: Stack = stack(rows, device.hardware, tuple(fit.terms), beside)
            home = SHARED if library in SHARED_TABLES else library
            ratios[home][kernel][label] = measured.seconds / measured.predict(fit)
    return ratios


def pooled_errors(pairs: Sequence[Ratios]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Errors and bands over all pairs of relatives, by library, kernel and format."""
    pools: dict[tuple[str, str, str], list[Array]] = defaultdict(list)
    for ratios in pairs:
        for library, kernels in ratios.items():
            for kernel, formats in kernels.items():
                for label, values in formats.items():
                    pools[library, kernel, label].append(values)
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = defaultdict(lambda: defaultdict(dict))
    for (library, kernel, label), parts in sorted(pools.items()):
        ratios_here = np.concatenate(parts)
        found[library][kernel][label] = ratio_errors(ratios_here) | {"n": len(ratios_here)}
    return {
        library: {kernel: dict(formats) for kernel, formats in kernels.items()} for library, kernels in found.items()
    }


def by_kernel(ratios: Ratios) -> Mapping[str, tuple[float, float]]:
    """(median, mean) absolute error of each kernel over all libraries and formats."""
    pools: dict[str, list[Array]] = defaultdict(list)
    for kernels in ratios.values():
        for kernel, formats in kernels.items():
            pools[kernel] += list(formats.values())
    off = {kernel: np.abs(1.0 / np.concatenate(parts) - 1.0) for kernel, parts in sorted(pools.items())}
    return {kernel: (float(np.median(values)), float(np.mean(values))) for kernel, values in off.items()}


@click.command("relatives")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The file of the errors.")
@click.option("--date", default="2026-11-22", show_default=True, help="Day of the comparison, for the file.")
def fit_relatives(folder: Path, out: Path, date: str) -> None:
    """Carry the constants on file between the devices of FOLDER's tables: of one chip, and of neighbouring ones."""
    found: dict[str, list[Ratios]] = {kind: [] for kind in KINDS}
    names: dict[str, list[str]] = {kind: [] for kind in KINDS}
    vendors = set()
    for device in devices_of(folder):
        for kind, other in others_of(device.hardware):
            file = config_root() / "calibration" / f"{other}.yaml"
            ratios = carried_ratios(device, validate(file, read_yaml(file), Calibration))
            found[kind].append(ratios)
            names[kind].append(f"{other} to {device.hardware.name}")
            vendors.add(device.hardware.vendor)
            for kernel, (median, mean) in by_kernel(ratios).items():
                click.echo(f"{names[kind][-1]}: {kernel} median {100 * median:.1f} % mean {100 * mean:.1f} %", err=True)
    provenance = {"command": f"python -m tools.fitting relatives DIR --out {out.name}", "date": date} | names
    write_relatives(out, sorted(vendors), provenance, {kind: pooled_errors(pairs) for kind, pairs in found.items()})


def others_of(hardware: HardwareSpec) -> list[tuple[str, str]]:
    """(kind, device) whose constants are carried to a device with tables: the same chip, or a neighbouring one."""
    same = [("same_chip", hardware.relative)] if hardware.relative and hardware.same_chip else []
    return same + [("other_chip", name) for name in NEIGHBOURS.get(hardware.name, ())]


def write_relatives(
    out: Path, vendors: Sequence[str], provenance: Mapping[str, Any], errors: Mapping[str, Any]
) -> None:
    """``configs/relatives.yaml``, a line for each format. Raises ``InputFileError`` when it cannot be written."""
    lines = [
        "# Written by `python -m tools.fitting relatives`: errors of constants carried from another device.",
        "source: kernel tables of ai-dynamo/aiconfigurator (see NOTICE), priced with the constants of another device",
        f"vendors: [{', '.join(vendors)}]",
        f"provenance: {json.dumps(provenance)}",
    ]
    for kind, libraries in errors.items():
        lines.append(f"{kind}:")
        for library, kernels in libraries.items():
            lines.append(f"  {library}:")
            for kernel, formats in kernels.items():
                lines.append(f"    {kernel}:")
                for label, error in formats.items():
                    figures = ", ".join(f"{name}: {value}" for name, value in error.items())
                    lines.append(f"      {label}: {{{figures}}}")
    write_text(out, "\n".join(lines) + "\n")
