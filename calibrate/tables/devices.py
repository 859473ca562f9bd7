"""The rows of every device that count: one kernel an operator, none off its fast path, the fastest dense matmuls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from calibrate.fit import Row
from calibrate.tables.choose import DeviceTables, gather
from calibrate.tables.fastest import with_fastest
from calibrate.tables.guard import guarded
from calibrate.tables.read import older_releases, read_tables
from inferplan.catalog.files import load_hardware


def devices_of(
    folder: Path, wanted: Callable[[Row], bool] = lambda row: True, fastest: bool = True
) -> list[DeviceTables]:
    """The tables of ``folder`` by device, of the rows that are ``wanted``; prints which kernels were refused, and why.

    fastest: dense matmuls of every library are the fastest library's; else each has its own.
    Raises ``InputFileError`` when there is no table.
    """
    devices = []
    for gathered in gather(filter(wanted, read_tables(folder)), load_hardware):
        device, refused = guarded(gathered, older_releases(folder))
        devices.append(with_fastest(device) if fastest else device)
        for line in refused:
            click.echo(line, err=True)
    return devices
