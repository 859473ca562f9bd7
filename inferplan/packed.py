"""Shipped specs as they were read and checked when the wheel was built: its first command parses no YAML.

One file beside the configs, JSON throughout: a line with the place of each spec, then a line for each. A checkout has
none. A spec counts while the files that it was read from have the bytes that they had, and the code that reads them
has the files and sizes that it had. ``tools/wheel.py`` writes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from zlib import crc32

from inferplan.spec import Spec

NAME = "specs.jsonl"
_PACKAGE = Path(__file__).parent
_READERS = ("catalog", "devices", "models", "work")
"""The parts of the package that say what a YAML means, beside the files at its top."""


def unpacked(path: Path, kind: str) -> tuple[list[Path], Any] | None:
    """What a shipped file was made into, behind the files that this was read from; ``None`` where it has to be read."""
    place, start, specs = _places()
    found = specs.get(f"{_name(path)} {kind}") if path.is_relative_to(_PACKAGE) else None
    if found is None:
        return None
    offset, length, sources = found
    try:
        if any(_bytes_of(_PACKAGE / name) != bytes_then for name, bytes_then in sources.items()):
            return None
        with place.open("rb") as file:
            file.seek(start + offset)
            text = file.read(length)
    except OSError:
        return None
    return [_PACKAGE / name for name in sources], json.loads(text, object_hook=_decoded)


def packed(held: Mapping[tuple[str, str], tuple[Iterable[Path], Any]], root: Path) -> bytes:
    """The file. held: by file and kind what it was made into, behind the files that this was read from. root: the
    configs' folder, which the wheel has in the package."""
    places: dict[str, tuple[int, int, dict[str, list[int]]]] = {}
    lines = b""
    for (file, kind), (sources, made) in sorted(held.items(), key=lambda one: one[0]):
        line = json.dumps(_encoded(made), separators=(",", ":")).encode() + b"\n"
        told = {_name(one, root): _bytes_of(one) for one in sources}
        places[f"{_name(Path(file), root)} {kind}"] = len(lines), len(line), told
        lines += line
    return json.dumps({"code": _code(), "specs": places}).encode() + b"\n" + lines


def code_files() -> Iterator[tuple[str, os.stat_result]]:
    """Every file of the code that reads a spec."""
    waiting = [_PACKAGE / part for part in _READERS]
    with os.scandir(_PACKAGE) as entries:
        yield from ((one.path, one.stat()) for one in entries if one.name.endswith(".py"))
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for one in entries:
                if one.name.endswith(".py"):
                    yield one.path, one.stat()
                elif one.name != "__pycache__" and one.is_dir():
                    waiting.append(Path(one.path))


@cache
def _places() -> tuple[Path, int, dict[str, Any]]:
    """The file, where its specs begin, and where each is; none where there is no file, or one of other code."""
    place = _PACKAGE / "configs" / NAME
    try:
        with place.open("rb") as file:
            told = json.loads(file.readline())
            return place, file.tell(), told["specs"] if told["code"] == _code() else {}
    except (OSError, ValueError, LookupError, TypeError):
        return place, 0, {}


def _code() -> int:
    return crc32(repr(sorted((_name(Path(path)), one.st_size) for path, one in code_files())).encode())


def _name(path: Path, root: Path = _PACKAGE / "configs") -> str:
    """A file as the package has it."""
    inside = Path("configs") / path.relative_to(root) if path.is_relative_to(root) else path.relative_to(_PACKAGE)
    return inside.as_posix()


def _bytes_of(path: Path) -> list[int]:
    held = path.read_bytes()
    return [len(held), crc32(held)]


def _encoded(value: Any) -> Any:
    """A value as JSON has it: what JSON lacks is an object of one key, which says what it is."""
    if isinstance(value, Spec):
        kind = type(value)
        values = [_encoded(vars(value)[name]) for name in kind.spec_fields]
        return {f"{kind.__module__}:{kind.__qualname__}": [values, sorted(value.model_fields_set)]}
    if isinstance(value, dict):
        return {"dict": [[key, _encoded(one)] for key, one in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_encoded(one) for one in value]}
    if isinstance(value, list):
        return [_encoded(one) for one in value]
    if isinstance(value, date):
        return {"date": value.isoformat()}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"a spec holds a {type(value).__name__}: nothing says how it is packed")


def _decoded(told: dict[str, Any]) -> Any:
    """What an object of :func:`_encoded` says, whose parts have been decoded."""
    [(what, held)] = told.items()
    if what == "dict":
        return dict(held)
    if what == "tuple":
        return tuple(held)
    if what == "date":
        return date.fromisoformat(held)
    kind = _kind(what)
    made = object.__new__(kind)
    made.spec_hold(dict(zip(kind.spec_fields, held[0], strict=True)), frozenset(held[1]))
    return made


@cache
def _kind(name: str) -> type[Spec]:
    module, _, kind = name.partition(":")
    found: type[Spec] = getattr(import_module(module), kind)
    return found
