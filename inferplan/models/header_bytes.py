"""The bytes of a file's header, a piece at a time, and the tensors that headers list; no weight is read.

A count in a file is a claim: it is held against the bytes that are there before anything is read in its name, so that a
file costs no more than the part of its header that is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import BinaryIO

_CHUNK = 2**20
"""Bytes that are read at a time."""


class DamagedError(ValueError):
    """The file ends within its header, or claims what it does not hold."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One stored tensor; ``size`` is in bytes. GGUF writes columns first in a shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


class HeaderBytes:
    """A window on a header: what is asked for is read, what is passed over is not.

    start: the first byte of the header in the file. end: what it may not reach beyond, because the file, or the header
    by its own word, ends there. longest: bytes after which no header is believed.
    """

    def __init__(self, file: BinaryIO, start: int, end: int, longest: int) -> None:
        self.file, self.end, self.longest = file, end, longest
        self.bytes, self.begin, self.at = b"", start, 0

    @property
    def place(self) -> int:
        """The byte of the file that is read next."""
        return self.begin + self.at

    @property
    def left(self) -> int:
        """Bytes from there to the end."""
        return self.end - self.place

    def need(self, count: int) -> None:
        """Have the next ``count`` bytes. Raises ``DamagedError`` where there are fewer."""
        if self.at + count > len(self.bytes):
            self._require(count)
            self.move(self.place, count)

    def skip(self, count: int) -> None:
        """Go on ``count`` bytes further. Raises ``DamagedError`` where there are fewer."""
        if self.at + count <= len(self.bytes):
            self.at += count
        else:
            self._require(count)
            self.bytes, self.begin, self.at = b"", self.place + count, 0

    def move(self, place: int, count: int = 0) -> None:
        """Begin the window at a byte of the file: at least ``count`` bytes, or all that are left."""
        self.file.seek(place)
        self.bytes = self.file.read(min(max(count, _CHUNK), self.end - place))
        self.begin, self.at = place, 0
        if len(self.bytes) < count:
            raise DamagedError("it became shorter while it was read")

    def _require(self, count: int) -> None:
        if count > self.left:
            raise DamagedError(f"its {self.end:,} bytes end within a table")
        if self.place + count > self.longest:
            raise DamagedError(f"its header is longer than {self.longest:,} bytes")
