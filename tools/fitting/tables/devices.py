"""The rows of every device that count: one kernel an operator, none off its fast path, the fastest dense matmuls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from inferplan.catalog.files import load_hardware
from tools.fitting.tables.choose import DeviceTables, gather
from tools.fitting.tables.fastest import with_fastest
from tools.fitting.tables.guard import guarded
from tools.fitting.tables.read import older_releases, read_tables
from tools.fitting.tables.row import Row


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
