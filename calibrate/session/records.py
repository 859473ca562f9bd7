"""Whether a line of a raw file is what a calibration writes: files are cut, edited and copied from elsewhere."""

from __future__ import annotations

import json
from dataclasses import fields
from math import isfinite
from typing import Any

from calibrate.samples import Sample, StepSample, decode

KINDS = frozenset(
    {"provenance", "ceiling", "plan", "shape", "sample", "step", "refused", "allowed", "passed_over", "failed", "done",
     "finished"}
)  # fmt: skip
_LARGEST = 1e30
"""Above any rate, time or size of a device; the square of it is still a number."""
_NUMBERS = frozenset({"int", "float", "float | None"})


def record_of(line: str) -> dict[str, Any]:
    """The record in a line. Raises ``ValueError`` for what is no JSON object, or has values no run can measure."""
    try:
        record = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError("it is no mapping")
    checks = {"sample": _sample, "step": _step, "ceiling": _ceiling, "shape": _shape, "provenance": _provenance}
    if record.get("record") in KINDS:
        _require_number("at", record.get("at", 0.0))
        checks.get(record["record"], lambda _: None)(record)
    return record


def _sample(record: dict[str, Any]) -> None:
    _require_fields(Sample, record["sample"])
    _require_above("seconds", record["sample"]["seconds"])


def _step(record: dict[str, Any]) -> None:
    _require_fields(StepSample, record["step"])
    for name in ("seconds", "batch", "new", "layers"):
        _require_above(name, record["step"][name])


def _ceiling(record: dict[str, Any]) -> None:
    _require_above("value", record["value"])


def _shape(record: dict[str, Any]) -> None:
    """The operator can be built, and its work is a number."""
    for name, value in record["op"].items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            _require_number(name, value)
            if value < 0:
                raise ValueError(f"{name} is {value}")
    try:
        work = decode(record["op"]).work()
        _require_number("its bytes", float(work.bytes))
        _require_number("its FLOP", float(work.flop))
    except (OverflowError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"no operator of a model: {error}") from None


def _provenance(record: dict[str, Any]) -> None:
    device = record["device"]
    if not isinstance(device["software"], dict) or not all(isinstance(device[key], str) for key in ("kind", "name")):
        raise ValueError("it does not say which device was measured")
    _require_number("units", device["units"])
    _require_above("budget", record["budget"])
    models = record.get("models", [])
    if not isinstance(models, list) or not all(isinstance(name, str) for name in models):
        raise ValueError("models is no list of names")


def _require_fields(kind: type[Sample] | type[StepSample], values: Any) -> None:
    for entry in fields(kind):
        value = values.get(entry.name, entry.default)
        if value is None and entry.type == "float | None":
            continue
        if entry.type in _NUMBERS:
            _require_number(entry.name, value)
        elif not isinstance(value, str):
            raise ValueError(f"{entry.name} is {value!r}, not a text")


def _require_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > _LARGEST or not isfinite(value):
        raise ValueError(f"{name} is {_told(value)}, not a number that can be measured")


def _require_above(name: str, value: Any) -> None:
    _require_number(name, value)
    if value <= 0:
        raise ValueError(f"{name} is {value}")


def _told(value: Any) -> str:
    text = str(value) if not isinstance(value, int) or abs(value) < _LARGEST else "a number of more than 30 digits"
    return text[:60]
