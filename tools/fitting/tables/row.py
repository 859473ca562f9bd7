"""A row of a kernel table: what it measured, and where it belongs."""

from __future__ import annotations

from typing import NamedTuple

from calibrate.fit import Measurement


class Row(NamedTuple):
    """One measurement and where it belongs; ``kernel`` is the source's name for the kernel that ran."""

    gpu: str
    library: str
    kernel: str
    measurement: Measurement
