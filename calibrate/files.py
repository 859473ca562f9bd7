"""Writing what a calibration makes: constants, hardware files, reports."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import yaml

from inferplan.devices.constants import Calibration
from inferplan.devices.releases import Releases
from inferplan.errors import InputFileError
from inferplan.files import reason, save


def write_calibration(calibration: Calibration | Releases, file: Path) -> None:
    """The calibration as YAML in its JSON form, which loads at once, without the fields that say nothing.

    Raises ``InputFileError`` when the file cannot be written.
    """
    data = calibration.model_dump(mode="json", exclude_defaults=True)
    # YAML takes 1e-06 for text and 1.0e-06 for a number; JSON takes both for a number.
    text = re.sub(r"(?<=[ \[])(-?\d+)e(?=[-+]?\d)", r"\1.0e", _layout(data, ""))
    write_text(file, text + "\n")


def _layout(data: Any, indent: str) -> str:
    """JSON with a line for every mapping that holds no other, so that a change shows where it is."""
    if not isinstance(data, dict) or not any(isinstance(value, dict) for value in data.values()):
        return json.dumps(data, ensure_ascii=False)
    inner = indent + " "
    entries = (f"{inner}{json.dumps(key)}: {_layout(value, inner)}" for key, value in data.items())
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"


def write_yaml(path: Path, data: dict[str, Any]) -> None:
    """Write a mapping as YAML. Raises ``InputFileError`` when the file cannot be written."""
    write_text(path, yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120))


def write_text(path: Path, text: str) -> None:
    """Write a text, folders included. Raises ``InputFileError`` when the file cannot be written."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file as :func:`inferplan.files.save` does, folders included.

    Raises ``InputFileError`` when it cannot be written.
    """
    try:
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputFileError(f"cannot write {path}", because=reason(error), hint="write elsewhere") from None
    save(path, data)


def require_writable(path: Path) -> None:
    """Raise ``InputFileError`` where a file could not be written: before a measurement, not after it."""
    folder = next(parent for parent in path.resolve().parents if parent.exists())
    why = "" if folder.is_dir() else f"{folder} is no folder"
    if path.is_dir():
        why = "it is a folder"
    elif not why and not os.access(path if path.exists() else folder, os.W_OK):
        why = "permission denied"
    if why:
        raise InputFileError(f"cannot write {path}", because=why, hint="another path")
