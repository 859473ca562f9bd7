"""Which files a request may name: those of one folder that was named when the server started, or none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferplan.errors import InputFileError, UsageError
from inferplan.web.limits import LIMITS, Limits

_BETWEEN = re.compile(r"[,=;:\s]+")
"""What separates names in an option: ``h100-sxm,./own.yaml``, ``gpu=own.yaml``."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The folder in which every process of the server that reads files works."""

    root: Path
    limits: Limits = LIMITS
    started: str = "inferplan web --folder DIR"
    """The command that names a folder, for the hint."""

    def require_inside(self, value: Any) -> None:
        """Check every text of a request: read as a path, it and each of its parts lie in the folder, links followed.

        Which options name files need not be known for this. Raises ``InputFileError`` for what lies outside,
        ``UsageError`` for what no option can be.
        """
        parts: set[str] = set()
        for text in _texts(value):
            if len(text) > self.limits.text:
                raise UsageError(f"a text of {len(text):,} characters", hint=f"{self.limits.text:,} at most")
            if _CONTROL.search(text):
                raise UsageError(f"{text[:40]!r} has characters that no option has")
            parts |= {text, *_BETWEEN.split(text)}
        if len(parts) > self.limits.items:  # each is looked for on the disk
            raise UsageError(f"the body has more than {self.limits.items:,} names")
        root = self.root.resolve()
        outside = next((part for part in parts if not _holds(root, part)), None)
        if outside is not None:
            raise InputFileError(
                f"{outside[:80]} is outside the folder of this server",
                because="files are read from the folder that was named when it started, and from nowhere else",
                hint=f"a name of the catalogue, or a file of {self.started}",
            )


def _holds(root: Path, part: str) -> bool:
    """Whether a text, read as a path from the folder, lies in it."""
    words = re.split(r"[\\/]", part)
    if ".." in words or part.startswith(("/", "\\", "~")) or re.match(r"[A-Za-z]:[\\/]", part):
        return False
    try:
        return (root / part).resolve().is_relative_to(root)
    except (OSError, RuntimeError, ValueError):  # too long a name, a circle of links
        return False


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from (str(key), *_texts(inner))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
