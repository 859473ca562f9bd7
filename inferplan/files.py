"""Files of the user: read with a word for what is wrong, written beside their place and then renamed."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from inferplan.errors import InferplanError, InputFileError, printable

LARGEST_SPEC = 64 * 2**20
"""Bytes of the largest file of fields (a model, a device, a plan): those of people have kilobytes."""

_DECODER = json.JSONDecoder()


READ = "inferplan.read"
"""Audit event before a file is read whose name a user, or a file of theirs, has given (:func:`announce`)."""


def announce(path: Path) -> None:
    """Say that a file is about to be read; a hook (``sys.addaudithook``) refuses it by an ``OSError``.

    Raises ``OSError`` for a device, such as ``/dev/zero``: its bytes may have no end.
    """
    sys.audit(READ, os.fspath(path))
    mode = 0
    with suppress(OSError, ValueError):  # no such file, a name that none can have: said when it is opened
        mode = os.stat(path).st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise OSError(errno.EINVAL, "it is a device, whose bytes may have no end")


def reason(error: OSError) -> str:
    """What the system says of a failure, without the path and the number of the error."""
    return error.strerror or str(error)


def read_text(path: Path, most: int | None = None, encoding: str = "utf-8") -> str:
    """A file as text. Raises ``InputFileError`` for one that is missing, no UTF-8, or larger than ``most`` bytes."""
    try:
        announce(path)
        size = path.stat().st_size
        if most is not None and size > most:
            raise InputFileError(f"cannot read {path}", because=f"it has {size:,} bytes; {most:,} are the most")
        return path.read_text(encoding=encoding)
    except OSError as error:
        raise InputFileError(f"cannot read {path}", because=reason(error)) from None
    except UnicodeDecodeError:
        raise InputFileError(f"cannot read {path}", because="it is not UTF-8 text") from None
    except ValueError as error:  # a null byte in the path
        raise InputFileError(f"cannot read {path}", because=str(error)) from None


def parse_json(text: str, where: str, refuse: type[InferplanError], at: int | None = None) -> tuple[Any, int]:
    """A JSON value that begins at a place of a text, and the place behind it; of a whole text without a place.

    Raises ``refuse`` with ``where`` and the line for what is none, for nesting without end, and for an integer of
    thousands of digits.
    """
    try:
        return (json.loads(text), len(text)) if at is None else _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        line = text.count("\n", 0, error.pos) + 1
        raise refuse(f"{where}:{line}: not JSON", because=error.msg) from None
    except RecursionError:
        raise refuse(f"{where}: not JSON", because="it is nested too deeply to read") from None
    except ValueError as error:
        raise refuse(f"{where}: not JSON", because=str(error)) from None


def require_writable(path: str | Path) -> None:
    """Raise ``InputFileError`` where a file could not be written: before the work, not after it."""
    place = Path(path)
    with suppress(OSError, ValueError):  # a name that no file can have: said when it is opened
        if not place.parent.is_dir():
            _refuse(path, "there is no such directory")
        if place.is_dir():
            _refuse(path, "it is a directory")
        if not os.access(place if place.exists() else place.parent, os.W_OK):
            _refuse(path, "it may not be written")


def _refuse(path: str | Path, because: str) -> NoReturn:
    raise InputFileError(f"cannot write {path}", because=because, hint="write elsewhere")


def save(path: str | Path, content: str | bytes | Iterable[str]) -> None:
    """Write a file, in one piece or in several: beside its place first, so that what was there stays until all of it is
    written, and nothing of it is left where that fails.

    Raises ``InputFileError`` with the reason.
    """
    pieces = [content] if isinstance(content, (str, bytes)) else content
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():  # a device or a pipe: nothing to keep
            _fill(target, pieces)
            return
        require_writable(path)
        beside = target.with_name(f".inferplan-{os.getpid()}.part")
        try:
            _fill(beside, pieces)
            if target.exists():
                beside.chmod(target.stat().st_mode)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise InputFileError(
            f"cannot write {path}", because=reason(error), hint="make room, or write elsewhere"
        ) from None


def _fill(path: Path, pieces: Iterable[str | bytes]) -> None:
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece if isinstance(piece, bytes) else printable(piece).encode("utf-8"))
