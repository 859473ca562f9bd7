"""What the GPU may use of memory that it shares with the processor, by the size on the box (``configs/wired.yaml``)."""

from __future__ import annotations

import re
from functools import cache

from inferplan.catalog.files import config_root, spec_of
from inferplan.spec import Spec
from inferplan.units import Bytes, format_bytes, parse_quantity

_ON_THE_BOX = re.compile(r"\s*(\d+)(?:\.0*)?\s*(?:GB|GiB)\s*", re.IGNORECASE)


class Wired(Spec):
    """The limit of one system. reported: what tells a program. limit: the command that changes it, in MiB. usable:
    bytes by the size on the box, ``"64 GB"``."""

    source: str
    reported: str
    limit: str
    usable: dict[str, Bytes]

    def of_box(self, text: str) -> float | None:
        """What the GPU may use of a size on the box [B]; ``None`` for a text that is no size sold."""
        sold = _ON_THE_BOX.fullmatch(text)
        return None if sold is None else self.usable.get(f"{int(sold[1])} GB")

    def in_words(self, text: str, option: str) -> str:
        """How a size that was given is read, and how the other reading is asked for."""
        found = self.of_box(text)
        if found is None:
            sizes = ", ".join(self.usable)
            return f"{option} {text} is taken as what the GPU may use, not as a size on the box ({sizes})"
        return (
            f"{option} {text} is the size on the box; the GPU may use {format_bytes(found)} of it ({self.reported}). "
            f"After {self.limit}=N: {option} NMiB"
        )


class _OnFile(Spec):
    metal: Wired


@cache
def wired_limits() -> dict[str, Wired]:
    """The limits on file, by the name that ``memory.wired`` of a device has."""
    found = spec_of(config_root() / "wired.yaml", _OnFile)
    return {"metal": found.metal}


def usable_of(text: str, wired: str) -> tuple[float, str]:
    """Bytes that the GPU may use where a user says that a device has ``text`` of memory, and why, in words."""
    limit, option = wired_limits()[wired], "--memory"
    box = limit.of_box(text)
    return parse_quantity(text, "bytes") if box is None else box, f"{option}: {limit.in_words(text, option)}"
