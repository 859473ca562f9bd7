"""Defaults of the command line: the command line wins over the environment, the environment over ``inferplan.yaml``.

``inferplan.yaml`` (or the file that ``INFERPLAN_CONFIG`` names) maps option names to values, for every command that has
the option; a command's own section wins. ``INFERPLAN_GPU=h100-sxm`` does the same, ``INFERPLAN_PLAN_GPU`` for one
command.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferplan.catalog.files import read_yaml
from inferplan.errors import SpecError

PREFIX = "INFERPLAN_"
FILE = "inferplan.yaml"
RESERVED = frozenset({"CACHE", "CONFIG", "TRACEBACK", "SHARED", "COMPILED"})
"""Environment variables that are no option."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A value and where it is from."""

    value: Any
    origin: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Values by command (``""``: every command) and option name, dashes for underscores."""

    values: dict[str, dict[str, Setting]] = field(default_factory=dict)

    def of(self, command: str) -> dict[str, Setting]:
        """What applies to a command; the environment was put over the file when this was read."""
        return {**self.values.get("", {}), **self.values.get(command, {})}


def read_settings(commands: frozenset[str], environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of this folder and environment.

    Raises ``SpecError`` for a file that is no mapping, ``InputFileError`` when a file that was named cannot be read.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, dict[str, Setting]] = {}
    named = environ.get(f"{PREFIX}CONFIG")
    path = Path(named or FILE)
    if named or path.is_file():
        _from_file(path, commands, values)
    general: dict[str, Setting] = {}
    own: dict[str, dict[str, Setting]] = {}
    for variable, text in environ.items():
        option = variable.removeprefix(PREFIX)
        if option == variable or option in RESERVED or not text:
            continue
        name = option.lower().replace("_", "-")
        command = next((c for c in sorted(commands, key=len, reverse=True) if name.startswith(f"{c}-")), "")
        table = own.setdefault(command, {}) if command else general
        table[name.removeprefix(f"{command}-") if command else name] = Setting(value=text, origin=variable)
    for name, setting in general.items():  # over the file's sections too
        for table in values.values():
            table.pop(name, None)
        values.setdefault("", {})[name] = setting
    for command, table in own.items():
        values.setdefault(command, {}).update(table)
    return Settings(values=values)


def _from_file(path: Path, commands: frozenset[str], values: dict[str, dict[str, Setting]]) -> None:
    from inferplan.catalog.yaml_text import line_of

    data = read_yaml(path)
    if data is None:
        return
    if not isinstance(data, dict):
        raise SpecError(f"{path}: not a mapping of options to values", hint="gpu: h100-sxm")
    for key, value in data.items():
        name = str(key).replace("_", "-")
        line = line_of(path, (str(key),))
        origin = f"{path}:{line}"
        if name in commands and isinstance(value, dict):
            for option, inner in value.items():
                table = values.setdefault(name, {})
                table[str(option).replace("_", "-")] = Setting(value=inner, origin=origin)
        elif isinstance(value, dict):
            raise SpecError(f"{origin}: {key} is no command", hint=f"one of {', '.join(sorted(commands))}")
        else:
            values.setdefault("", {})[name] = Setting(value=value, origin=origin)
