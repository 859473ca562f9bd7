"""Arrays in files without names: memory holds what is being looked at, and processes that were forked see the same."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from typing import IO, Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

_TIMES = 3
"""Columns of eight bytes."""
_PIECE = 1 << 16
"""Requests of which memory is made ready at once."""
_BLOCK = 1 << 20
"""Bytes that are written at once."""
FEWEST = 1 << 16
"""Requests of a run that is worth a file."""
_MAPS: WeakSet[mmap.mmap] = WeakSet()
"""All that there are."""


def unnamed_file() -> IO[bytes]:
    """A file that is gone when nobody needs it."""
    import tempfile  # some ms of every start, needed by few

    return tempfile.TemporaryFile(prefix="inferplan-")


def mapped(size: int) -> mmap.mmap:
    """So many bytes of zeros. Raises ``OSError`` where the disk has no room."""
    with unnamed_file() as file:
        if hasattr(os, "posix_fallocate"):  # a disk that is full says so now, not when a page is written
            os.posix_fallocate(file.fileno(), 0, size)
        else:  # macOS, Windows
            for first in range(0, size, _BLOCK):
                file.write(bytes(min(_BLOCK, size - first)))
            file.flush()
        return _map(file, size)


def mapped_file(file: IO[bytes]) -> mmap.mmap:
    """What was written to a file, which may be closed then."""
    file.flush()
    return _map(file, os.fstat(file.fileno()).st_size)


def _map(file: IO[bytes], size: int) -> mmap.mmap:
    found = mmap.mmap(file.fileno(), size)
    _MAPS.add(found)
    return found


def put_aside() -> None:
    """The memory of all of them is free for other things; what is looked at again comes from its file."""
    for one in list(_MAPS):
        if hasattr(mmap, "MADV_DONTNEED"):
            one.madvise(mmap.MADV_DONTNEED)


class Spool:
    """What becomes of the requests of a long run: three columns of times, which are NaN until they
    happen, and one of codes. given: columns of what is known of the requests ahead; nobody writes to them.
    """

    def __init__(self, given: Sequence[npt.NDArray[np.generic]]) -> None:
        requests = len(given[0])
        self.given = [_column(one) for one in given]
        self._whole = memoryview(mapped((8 * _TIMES + 1) * requests))
        self.requests = requests
        self.times = [self._whole[8 * at * requests : 8 * (at + 1) * requests].cast("d") for at in range(_TIMES)]
        self.codes = self._whole[8 * _TIMES * requests :]

    @property
    def columns(self) -> list[object]:
        """All of them."""
        return [*self.given, *self.times, self.codes]

    def clear(self) -> None:
        """Nothing has happened yet."""
        nothing = memoryview(b"\0\0\0\0\0\0\xf8\x7f" * _PIECE).cast("d")
        for first in range(0, self.requests, _PIECE):
            stop = min(first + _PIECE, self.requests)
            for column in self.times:
                column[first:stop] = nothing[: stop - first]
            self.codes[first:stop] = bytes(stop - first)
            put_aside()


def spool_for(
    given: Sequence[npt.NDArray[np.generic] | None], warn: Callable[[str], object] | None = None
) -> Spool | None:
    """A file for what becomes of requests that come at these times, with these prompts and outputs; ``None`` for few,
    where it is not known when they come, or where no file can be made, which ``warn`` is told.
    """
    known = [one for one in given if one is not None]
    if len(known) < len(given) or len(known[0]) < FEWEST:
        return None
    try:
        return Spool(known)
    except OSError as error:
        if warn is not None:
            warn(
                f"no file can be made for {len(known[0]):,} requests ({error.strerror}): memory holds them; "
                "TMPDIR=DIR names another folder"
            )
        return None


def _column(values: npt.NDArray[np.generic]) -> memoryview[Any]:
    """The memory of an array, with the codes of ``array``; that of a copy where its numbers have other widths."""
    floats = values.dtype.kind == "f"
    whole = memoryview(np.ascontiguousarray(values, np.float64 if floats else np.int64))  # type: ignore[arg-type]
    return whole.cast("B").cast("d" if floats else "q")
