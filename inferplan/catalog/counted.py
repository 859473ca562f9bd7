"""GPUs with their number, as people say it: ``2x-a6000``, ``2xA6000``, ``RTX 4090 x8``, ``2x24GB``."""

from __future__ import annotations

import re
from typing import NamedTuple

from inferplan.catalog.files import device_name, load_hardware, names
from inferplan.errors import UnknownNameError, UsageError
from inferplan.units import parse_quantity, parse_whole

_MEMORY = r"(\d+(?:\.\d+)?)\s*(GB|GiB|TB)"
_SIZE = re.compile(_MEMORY, re.IGNORECASE)
_COUNTED = re.compile(
    rf"(\d{{1,3}}|\d+(?=\s*[x×](?:[\s-]|{_MEMORY}$)))\s*[x×]\s*-?\s*(?=\S)(?P<named>[^,]+)", re.IGNORECASE
)
"""A larger number needs a gap, or a size, behind the x: 7900xtx and 9070xt are names."""
_BEHIND = re.compile(r"(?P<named>[^,]*\S)\s+(?:[x×]\s*(\d+)|\(\s*[x×]\s*(\d+)\s*\))", re.IGNORECASE)
"""The number behind the name, with a gap before the x."""
_MOST = 1_000_000
"""GPUs of one kind."""


class Counted(NamedTuple):
    """GPUs of one kind. number: ``None`` where nobody says how many. gpu: a name or a path, as it was typed."""

    number: int | None
    gpu: str

    @property
    def label(self) -> str:
        """``"2 x rtx-a6000"``."""
        return self.gpu if self.number is None else f"{self.number} x {self.gpu}"


def counted(text: str) -> Counted:
    """A GPU with its number; without one the text as it is. Raises ``UsageError`` for a number that is none."""
    found = _COUNTED.fullmatch(text.strip()) or _BEHIND.fullmatch(text.strip())
    if found is None:
        return Counted(None, text)
    number = found[1] if found.re is _COUNTED else found[2] or found[3]
    count, named = parse_whole(number), found["named"].strip()
    if not 0 < count <= _MOST:
        raise UsageError(f"{text}: {count:,} is not a number of GPUs", hint=f"2x-{named}, a count up to {_MOST:,}")
    return Counted(count, named)


def counted_device(text: str) -> Counted:
    """The same with the device's own name. Raises ``UnknownNameError`` for a device that is not on file."""
    count, gpu = counted(text)
    return Counted(count, device_name(gpu))


def devices_meant(text: str) -> list[Counted]:
    """The devices on file that ``"2x-a6000"`` or ``"2x24GB"`` names; one of each where there is no number.

    A size is that of the label on one device. Raises ``UnknownNameError`` for a name or a size that is not on file.
    """
    count, named = counted(text)
    if _SIZE.fullmatch(named) is None:
        return [Counted(count or 1, device_name(named))]
    gigabytes = parse_quantity(named, "bytes") / 1e9
    labels = {gpu: load_hardware(gpu).memory.labelled for gpu in names("hardware")}
    found = [Counted(count or 1, gpu) for gpu, label in labels.items() if label == gigabytes]
    if not found:
        known = sorted({label for label in labels.values() if label is not None})
        near = ", ".join(f"{size:g}GB" for size in sorted(known, key=lambda size: abs(size - gigabytes))[:4])
        raise UnknownNameError(
            f"no GPU on file is sold with {named}", hint=f"sizes on file near it: {near}; a name is taken too: 2x-a6000"
        )
    return found
