"""Devices without tables of kernels: the published measurements that there are, beside what is predicted of them.

``docs/accuracy-devices.md`` is one section a kind of device (:data:`SECTIONS`); ``python -m tools.accuracy devices
SHARED`` writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tools.accuracy.data_centre import data_centre_section
from tools.accuracy.llama import llama_section

Section = Callable[[Path], str]
"""From the folder of the reference data to Markdown that starts with a heading of level 2."""

SECTIONS: Sequence[Section] = (llama_section, data_centre_section)
HEAD = """# Accuracy on further devices

Devices without published tables of kernels. Computed on DATE by `python -m tools.accuracy devices
SHARED` from published measurements, each with its source. Errors are of predicted over measured, in percent.
"""


def devices_page(shared: Path, today: str) -> str:
    """The page, of the reference data in ``shared``."""
    parts = [HEAD.replace("DATE", today), *(section(shared) for section in SECTIONS)]
    return "\n".join(part.rstrip() + "\n" for part in parts)
