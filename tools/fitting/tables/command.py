"""``python -m tools.fitting`` ``tables``, ``mechanisms``, ``releases``: kernel tables into ``configs``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from calibrate.files import write_calibration
from inferplan.catalog.files import config_root, load_hardware, read_yaml, validate
from inferplan.devices.constants import MEMORY_CLASSES, Calibration, memory_class
from tools.fitting.tables.calibrations import beyond_the_node, calibrate_device, vector_constants
from tools.fitting.tables.devices import devices_of
from tools.fitting.tables.mechanism_fit import fitted_class, fitted_device, read_mechanisms
from tools.fitting.tables.releases import fitted_releases, read_releases
from tools.fitting.tables.transfer import calibrate_unmeasured, with_carried_exchanges

DATE = "2026-11-22"
LICENCE = "Apache-2.0"
SOURCE = "kernel tables of ai-dynamo/aiconfigurator (see NOTICE)"


def provenance_options(command: Callable[..., None]) -> Callable[..., None]:
    """What the written files say of where the tables come from."""
    for option in (
        click.option("--date", default=DATE, show_default=True, help="Day of the fit, for the files."),
        click.option("--licence", default=LICENCE, show_default=True, help="Their licence, for the files."),
        click.option("--source", default=SOURCE, show_default=True, help="Where the tables come from, for the files."),
    ):
        command = option(command)
    return command


@click.command("tables")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the calibration files.")
@provenance_options
def fit_tables(folder: Path, out: Path, source: str, licence: str, date: str) -> None:
    """Fit the constants of every device in FOLDER's kernel tables and write them to OUT.

    One file for each device whose matmuls were timed, and for each class of memory one for all others.
    """
    command = f"python -m tools.fitting tables DIR --out {out.name}"
    provenance = {"source": source, "licence": licence, "date": date, "command": command}
    devices = devices_of(folder)
    vector, beyond = vector_constants(devices), beyond_the_node(devices)
    carried = {memory: calibrate_unmeasured(devices, memory, vector, provenance) for memory in MEMORY_CLASSES}
    for device in devices:
        if not any(kernel == "matmul" for pool in device.libraries.values() for kernel, _ in pool):
            click.echo(f"{device.hardware.name}: only in its class's file, of its matmuls nothing was timed", err=True)
            continue
        file = out / f"{device.hardware.name}.yaml"
        own = calibrate_device(device, vector, provenance, beyond)
        write_calibration(with_carried_exchanges(own, carried[memory_class(device.hardware)]), file)
        click.echo(f"{file}: {device.rows} rows, {device.impossible} of them faster than the roofline", err=True)
    for memory, calibration in carried.items():
        file = out / f"_transferred-{memory}.yaml"
        write_calibration(calibration, file)
        click.echo(f"{file}: for devices without measurements", err=True)


@click.command("releases")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the files, one a device.")
@provenance_options
def fit_releases(folder: Path, out: Path, source: str, licence: str, date: str) -> None:
    """Fit what engine releases in FOLDER/releases took otherwise than the constants on file, and write it to OUT."""
    timed, skipped = read_releases(folder)
    for reason, count in skipped.items():
        click.echo(f"{count} rows skipped, {reason}", err=True)
    command = f"python -m tools.fitting releases DIR --out {out.name}"
    for gpu in sorted({key.gpu for key in timed}):
        on_file = config_root() / "calibration" / f"{gpu}.yaml"
        if not on_file.is_file():
            click.echo(f"{gpu}: no constants on file that a release could differ from", err=True)
            continue
        constants = validate(on_file, read_yaml(on_file), Calibration)
        found = fitted_releases(timed, load_hardware(gpu), constants)
        provenance = {"source": source, "licence": licence, "date": date, "command": command, **found.provenance}
        file = out / f"{gpu}.yaml"
        write_calibration(found.model_copy(update={"provenance": provenance}), file)
        click.echo(f"{file}: {sum(len(releases) for releases in found.engines.values())} releases", err=True)


@click.command("mechanisms")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the calibration files.")
@provenance_options
def fit_mechanisms(folder: Path, out: Path, source: str, licence: str, date: str) -> None:
    """Add the mechanisms that FOLDER/releases timed in whole modules to the constants on file, and write them to OUT.

    What ``tables`` fitted stays as it is: run this after it. One file for each device that was measured, and one
    for the devices of their class of memory.
    """
    command = f"python -m tools.fitting mechanisms DIR --out {out.name}"
    said = {"source": source, "licence": licence, "date": date, "command": command}
    rows, devices = read_mechanisms(folder), {}

    def written(name: str, found: Calibration, count: int) -> None:
        note = {"mechanisms": said | {"rows": count}}
        file = out / f"{name}.yaml"
        write_calibration(found.model_copy(update={"provenance": found.provenance | note}), file)
        click.echo(f"{file}: {count} rows", err=True)

    for gpu in sorted(rows):
        hardware = load_hardware(gpu)
        devices[gpu] = hardware, fitted_device(rows[gpu], hardware, _fitted(gpu))
        written(gpu, devices[gpu][1], len(rows[gpu]))
    for memory in MEMORY_CLASSES:
        alike = {gpu: one for gpu, one in devices.items() if memory_class(one[0]) == memory}
        if len(alike) > 1:
            name = f"_transferred-{memory}"
            written(name, fitted_class(rows, alike, _fitted(name)), sum(len(rows[gpu]) for gpu in alike))


def _fitted(name: str) -> Calibration:
    """The constants that ``tables`` wrote. Raises ``InputFileError`` when there are none."""
    file = config_root() / "calibration" / f"{name}.yaml"
    return validate(file, read_yaml(file), Calibration)
