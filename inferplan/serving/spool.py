"""What becomes of the requests of a long run, in a file without a name: memory holds what is being worked on.

Processes that were forked since see the same columns, so what one has written need not travel.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_TIMES = 3
"""Columns of eight bytes."""
_PIECE = 1 << 16
"""Requests of which memory is made ready at once."""
FEWEST = 1 << 16
"""Requests of a run that is worth a file."""


class Spool:
    """Three columns of times, which are NaN until they happen, and one of codes. given: columns of what is known of the
    requests ahead; nobody writes to them.
    """

    def __init__(self, given: Sequence[npt.NDArray[np.generic]]) -> None:
        requests = len(given[0])
        self.given = [memoryview(np.ascontiguousarray(one)) for one in given]  # type: ignore[arg-type]
        with tempfile.TemporaryFile(prefix="inferplan-") as file:
            size = (8 * _TIMES + 1) * requests
            if hasattr(os, "posix_fallocate"):  # a disk that is full says so now
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        self._whole = memoryview(self._map)
        self.requests = requests
        self.times = [self._whole[8 * at * requests : 8 * (at + 1) * requests].cast("d") for at in range(_TIMES)]
        self.codes = self._whole[8 * _TIMES * requests :]

    @property
    def columns(self) -> list[memoryview]:
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
            self.put_aside()

    def put_aside(self) -> None:
        """Memory is free for other things; what is looked at again comes from the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def spool_for(given: Sequence[npt.NDArray[np.generic] | None]) -> Spool | None:
    """A file for what becomes of requests that come at these times, with these prompts and outputs; ``None`` for few,
    where it is not known when they come, or where there is no room.
    """
    known = [one for one in given if one is not None]
    if len(known) < len(given) or len(known[0]) < FEWEST:
        return None
    try:
        return Spool(known)
    except OSError:
        return None
