"""The journal of a sweep: a file that every finished task is added to, so that what was cut off goes on where it was.

Its first line says what it is; every other line is one task: the checksum of the rest of the line, and then JSON with
its key, and its rows by column with numbers in base64. Lines are only ever added; a last line that was being written
when the sweep was cut off, or that does not match its checksum, is taken off again.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from inferplan import __version__
from inferplan.columns import Block, Column
from inferplan.errors import InputFileError, SpecError

_HEADER = json.dumps({"inferplan": "sweep journal", "version": __version__, "checksum": "crc32"}).encode() + b"\n"
_ANOTHER = "another --resume FILE; one that does not exist is made"
_NUMBERS = {"f": "<f8", "i": "<i8"}
"""How columns of numbers are stored, by the kind of their array."""


class Journal:
    """An open journal: the tasks that it holds, and room for more; without a path it holds and keeps nothing.

    Raises ``SpecError`` for a file that is no journal, or not one of this version, ``InputFileError`` for one that
    cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.done: dict[str, list[Block]] = {}
        if path is None:
            return
        with self._reported():
            self._file = path.open("ab+")
        try:
            with self._reported():
                self._read(path)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.path is not None:
            self._file.close()

    def add(self, key: str, blocks: list[Block]) -> None:
        """Add a finished task; it is in the file when this returns."""
        self.done[key] = blocks
        if self.path is None:
            return
        entry = json.dumps({"key": key, "blocks": [_stored(block) for block in blocks]}).encode()
        with self._reported():
            self._file.write(_checksum(entry) + entry + b"\n")
            self._file.flush()

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputFileError(f"cannot use {self.path} as a journal", because=error.strerror or str(error)) from None

    def _read(self, path: Path) -> None:
        """The finished tasks; the file then ends behind the last of them, whatever had been begun after it."""
        file = self._file
        file.seek(0)
        first = file.readline(len(_HEADER))
        if first != _HEADER:
            if not _HEADER.startswith(first):
                raise SpecError(f"{path} is not a journal of inferplan sweep {__version__}", hint=_ANOTHER)
            file.truncate(0)
            file.write(_HEADER)
            file.flush()
            return
        end, spoilt = len(_HEADER), 0
        for number, line in enumerate(file, 2):
            if spoilt:
                raise SpecError(f"{path}:{spoilt}: not a line of a sweep journal", hint=_ANOTHER)
            text = line.removesuffix(b"\n")
            found, entry = text[:_WIDTH], text[_WIDTH:]
            if text == line or found != _checksum(entry):
                spoilt = number
                continue
            try:
                task = json.loads(entry)
                self.done[task["key"]] = [_restored(block) for block in task["blocks"]]
            except (ValueError, LookupError, TypeError, AttributeError):
                raise SpecError(f"{path}:{number}: not a line of a sweep journal", hint=_ANOTHER) from None
            end += len(line)
        if spoilt:  # the last line: written when the sweep was cut off, or damaged then; its task is run again
            file.truncate(end)


_WIDTH = 9
"""Bytes of a checksum with the space behind it."""


def _checksum(entry: bytes) -> bytes:
    """The CRC-32 of a line's JSON, in hexadecimal digits, and a space."""
    return f"{zlib.crc32(entry):08x} ".encode()


def _stored(block: Block) -> dict[str, Any]:
    return {"shape": block.shape, "columns": {name: _stored_column(column) for name, column in block.columns.items()}}


def _stored_column(column: Column) -> dict[str, Any]:
    kind = column.dtype.kind
    stored: dict[str, Any] = {"shape": column.shape}
    if kind in _NUMBERS:
        return stored | {kind: base64.b64encode(column.astype(_NUMBERS[kind]).tobytes()).decode()}
    places: dict[tuple[type, Any], int] = {}
    codes = [places.setdefault((type(value), value), len(places)) for value in column.reshape(-1).tolist()]
    return stored | {
        "values": [value for _, value in places],
        "codes": base64.b64encode(np.array(codes, dtype="<i4").tobytes()).decode(),
    }


def _restored(stored: dict[str, Any]) -> Block:
    columns = {name: _restored_column(column) for name, column in stored["columns"].items()}
    return Block(shape=tuple(stored["shape"]), columns=columns)


def _restored_column(stored: dict[str, Any]) -> Column:
    shape = tuple(stored["shape"])
    for kind, name in _NUMBERS.items():
        if kind in stored:
            return np.frombuffer(base64.b64decode(stored[kind]), dtype=name).reshape(shape)
    values: Column = np.array([*stored["values"], None], dtype=object)
    codes = np.frombuffer(base64.b64decode(stored["codes"]), dtype="<i4").reshape(shape)
    return np.take(values, codes)
