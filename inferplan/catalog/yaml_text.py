"""The text of a YAML file: as Python's values, and on which line a field of it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from inferplan.errors import SpecError

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 500


class _Loader(_BASE):  # type: ignore[misc]
    """YAML in which a field given twice is an error, as the specification says, not the later of the two."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def parse(path: Path, text: str) -> Any:
    """The content of a file. Raises ``SpecError`` for a text that is no YAML."""
    try:
        _require_shallow(text)
        return yaml.load(text, Loader=_Loader)
    except (ValueError, RecursionError) as error:  # a date or an integer that is none, nesting without end
        raise SpecError(f"{path}: not YAML", because=str(error)) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise SpecError(f"{where}: not YAML", because=str(getattr(error, "problem", error))) from None


def _require_shallow(text: str) -> None:
    """Raise ``ValueError`` for nesting so deep that the loader, which is written in C, would end the process by it."""
    if sum(text.count(mark) for mark in ("[", "{", "- ", "? ", ": ")) < _DEEPEST:
        return
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} deep")


def line_of(path: Path, field: tuple[str | int, ...]) -> int | None:
    """The line on which a field of a YAML file stands, counted from 1; of its nearest parent when it is absent."""
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    line = None if node is None else node.start_mark.line + 1
    for part in field:
        entries = getattr(node, "value", None)
        found = None
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            found = node.value[part]
            line = found.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode) and isinstance(entries, list):
            for key, value in entries:
                if key.value == str(part):
                    found, line = value, key.start_mark.line + 1
        if found is None:
            break
        node = found
    return line
