"""Shipped specs as they were read and checked, kept for the next process: it parses no YAML and builds no schema.

What transformers made of a config is kept too, by the text of both (:func:`made_once`).

A wheel brings them (:mod:`inferplan.packed`). Else, as Python keeps what it has compiled: made when a file is
first read, and used while neither that file nor the code that reads it has changed. The folder is ``INFERPLAN_CACHE``
(empty: nothing is kept), else ``inferplan`` in ``XDG_CACHE_HOME`` (a whole path, as its rules have it) or ``~/.cache``;
where nothing can be written, every process reads the YAML.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from inferplan.errors import InputFileError
from inferplan.files import save
from inferplan.packed import code_files, unpacked

Kept = TypeVar("Kept")
_State = tuple[str, int, int, int]
"""A file, when it was written, when it was changed at all (which nobody can set back), and its size."""


def read_cached(path: Path, kind: str, read: Callable[[], tuple[Kept, Iterable[Path]]]) -> Kept:
    """What ``read`` makes of a file, and of the files that it says it has read: this one first. It is read when one of
    them has changed; else it is what this process has read, or an earlier one.

    kind: what it is made into; one file may be read as several.
    """
    key = os.fspath(path), kind
    if key in _held and _is_current(_held[key][0]):
        return _held[key][1]  # type: ignore[no-any-return]
    shipped = unpacked(path, kind)
    if shipped is not None:
        _held[key] = [_state(one) for one in shipped[0]], shipped[1]
        return shipped[1]  # type: ignore[no-any-return]
    place = _place(path, kind)
    kept = _load(place, lambda states: states[0][0] == key[0] and _is_current(states))
    if kept is not None:
        _held[key] = kept
        return kept[1]  # type: ignore[no-any-return]
    before = _state(path)  # not after: what is written while it is read is not what was read
    made, sources = read()
    _held[key] = [before, *(_state(one) for one in sources if one != path)], made
    _save(place, *_held[key])
    return made


def made_once(kind: str, of: str, make: Callable[[], Kept]) -> Kept:
    """What ``make`` gives, or gave to an earlier process from the same text ``of`` by the same code.

    For what takes long to make from something that is no shipped file.
    """
    if (kind, of) in _made:
        return _made[kind, of]  # type: ignore[no-any-return]
    folder = _folder()
    place = folder / f"{kind}-{sha256(of.encode()).hexdigest()[:32]}.pickle" if folder else None
    kept = _load(place, lambda text: text == of)
    if kept is not None:
        _made[kind, of] = kept[1]
        return kept[1]  # type: ignore[no-any-return]
    made = _made[kind, of] = make()
    _save(place, of, made)
    return made


def _load(place: Path | None, is_of: Callable[[Any], bool]) -> tuple[Any, Any] | None:
    """What this code has kept there, behind what it was made from, where that is still so."""
    with suppress(Exception):  # none, one cut short, or of classes that have changed: it is made again
        code, of, found = pickle.loads(place.read_bytes()) if place else ("", None, None)
        if code == _code() and is_of(of):
            return of, found
    return None


def _save(place: Path | None, of: Any, made: Any) -> None:
    with suppress(InputFileError, OSError, pickle.PicklingError):  # a full disk is no reason not to answer
        if place is not None:
            save(place, pickle.dumps((_code(), of, made), pickle.HIGHEST_PROTOCOL))


_made: dict[tuple[str, str], Any] = {}
"""By kind and text what :func:`made_once` has given in this process."""
_held: dict[tuple[str, str], tuple[list[_State], Any]] = {}
"""By file and kind what this process has read, with what its files were: the catalogue at most."""


def _is_current(states: list[_State]) -> bool:
    try:
        return all(_state(source) == (source, *when) for source, *when in states)
    except OSError:  # one that is no longer there
        return False


def _place(path: Path, kind: str) -> Path | None:
    """Where a spec is kept; ``None`` where none is, or where others could have put it."""
    folder = _folder()
    if folder is None:
        return None
    return folder / f"{path.stem}-{kind}-{crc32(os.fspath(path).encode()):08x}.pickle"


@cache
def _folder() -> Path | None:
    named, caches = os.environ.get("INFERPLAN_CACHE"), os.environ.get("XDG_CACHE_HOME", "")
    if named == "":
        return None
    with suppress(OSError, RuntimeError):  # nobody's home
        folder = Path(named or Path(caches if os.path.isabs(caches) else Path.home() / ".cache") / "inferplan")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # before the look at it: nobody else can make it then
        about = folder.stat()
        own = not hasattr(os, "getuid") or (about.st_uid == os.getuid() and not about.st_mode & 0o022)
        return folder if own else None  # what is unpickled is code: the user's own alone
    return None


def _state(path: str | Path) -> _State:
    about = os.stat(path)
    return os.fspath(path), about.st_mtime_ns, about.st_ctime_ns, about.st_size


@cache
def _code() -> str:
    """What the code that reads a YAML is, told as Python tells it, by the time and the size of its files: one digest
    of all, for every spec carries it.
    """
    files = sorted((name, one.st_mtime_ns, one.st_size) for name, one in code_files())
    checker = find_spec("pydantic")  # found, not imported
    installed = _state(checker.origin) if checker is not None and checker.origin else None
    return sha256(repr((sys.version, installed, files)).encode()).hexdigest()
