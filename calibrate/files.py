"""Writing what a calibration makes: constants, hardware files, reports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from inferplan.devices.constants import Calibration
from inferplan.devices.releases import Releases
from inferplan.errors import InputFileError


def write_calibration(calibration: Calibration | Releases, file: Path) -> None:
    """The calibration as YAML in its JSON form, which loads at once, without the fields that say nothing."""
    data = calibration.model_dump(mode="json", exclude_defaults=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    # YAML takes 1e-06 for text and 1.0e-06 for a number; JSON takes both for a number.
    text = re.sub(r"(?<=[ \[])(-?\d+)e(?=[-+]?\d)", r"\1.0e", _layout(data, ""))
    file.write_text(text + "\n", encoding="utf-8")


def _layout(data: Any, indent: str) -> str:
    """JSON with a line for every mapping that holds no other, so that a change shows where it is."""
    if not isinstance(data, dict) or not any(isinstance(value, dict) for value in data.values()):
        return json.dumps(data, ensure_ascii=False)
    inner = indent + " "
    entries = (f"{inner}{json.dumps(key)}: {_layout(value, inner)}" for key, value in data.items())
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"


def write_yaml(path: Path, data: dict[str, Any]) -> None:
    """Write a mapping as YAML. Raises ``InputFileError`` when the file cannot be written."""
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputFileError(f"cannot write {path}", because=error.strerror or str(error)) from None


def write_text(path: Path, text: str) -> None:
    """Write a text, folders included. Raises ``InputFileError`` when the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputFileError(f"cannot write {path}", because=error.strerror or str(error)) from None


def write_bytes(path: Path, data: bytes) -> None:
    """Write a picture, folders included. Raises ``InputFileError`` when the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise InputFileError(f"cannot write {path}", because=error.strerror or str(error)) from None
