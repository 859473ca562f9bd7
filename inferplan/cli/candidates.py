"""Candidates side by side, as the options that each changes: ``--vs "gpu=h200-sxm,tp=2"``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from inferplan.catalog.assemble import Request
from inferplan.catalog.counted import counted
from inferplan.catalog.files import load_hardware
from inferplan.cli.numbers import Count
from inferplan.errors import UsageError
from inferplan.estimate.formats import ROLES

_BRIDGE = "nvlink-bridge"


def split_names(text: str | None) -> list[str]:
    """The names between commas. Raises ``UsageError`` for a text of commas alone, which would be no candidate."""
    found = [part.strip() for part in (text or "").split(",") if part.strip()]
    if text and not found:
        raise UsageError(f"{text!r} names nothing", hint="names with commas between them: h100-sxm,h200-sxm")
    return found


def changed(request: Request, text: str) -> Request:
    """A candidate as the options that it changes. Raises ``UsageError`` for one that is not known."""
    degrees = {"tp", "pp", "ep", "dp", "cp", "replicas", "redundant"}
    names = {"model", "gpu", "quant", "engine"}
    given: dict[str, Any] = {}  # at once: what a number of GPUs means depends on the engine
    for part in split_names(text):
        key, _, value = part.partition("=")
        if key in degrees:
            degree: dict[str, Any] = {key: _degree(part, value)}
            given |= {"parallel": replace(given.get("parallel", request.parallel), **degree), "unnamed": None}
        elif key in ROLES and value:
            kept = tuple(one for one in given.get("roles", request.roles) if one[0] != key)
            given["roles"] = (*kept, (key, value))
        elif key in names and value:
            given[key] = value
        elif key == _BRIDGE and value in ("on", "off"):
            given["nvlink_bridge"] = value == "on"
        else:
            known = ", ".join(sorted({*names, *degrees, *ROLES, f"{_BRIDGE} (on or off)"}))
            raise UsageError(
                f"--vs {part!r} changes nothing known",
                hint=f"--vs gpu=a100, or --gpu h100,a100 for several GPUs; KEY=VALUE with one of {known}",
            )
    if "nvlink_bridge" not in given and (gpu := given.get("gpu")) is not None and request.nvlink_bridge:
        given["nvlink_bridge"] = load_hardware(counted(gpu).gpu).bridge is not None
    return replace(request, **given)


def _degree(part: str, value: str) -> int:
    try:
        return Count(0 if part.startswith("redundant") else 1)(value)
    except click.BadParameter as error:
        raise UsageError(f"--vs {part!r}: {error.message}") from None


def labels_of(requests: list[Request]) -> list[str]:
    """What tells the candidates apart, and no more."""
    columns = [
        [one.model for one in requests],
        [one.gpu for one in requests],
        [one.quant or "native" for one in requests],
        [" ".join(map("=".join, one.roles)) for one in requests],
        [one.parallel.describe() for one in requests],
        [one.engine for one in requests],
        [_BRIDGE if one.nvlink_bridge else "" for one in requests],
    ]
    told = [column for column in columns if len(set(column)) > 1] or columns[:2]
    return [" ".join(filter(None, parts)) or "as given" for parts in zip(*told)]
