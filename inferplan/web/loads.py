"""A simulation under more and less load: the points of the page's curves of latency over load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferplan.errors import UsageError
from inferplan.web.commands import Commands, Progress

FACTORS = (0.5, 0.75, 0.9, 1.1, 1.25, 1.5)
"""Of the load that is asked for; that itself is the simulation."""
_LOADS = ("rate", "people", "in-flight", "concurrency", "users")
"""Options that state a load; all but the first are whole numbers."""
_LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2el_s")


def run_loads(commands: Commands, options: Mapping[str, Any], progress: Progress | None = None) -> list[dict[str, Any]]:
    """``inferplan simulate`` with these options under each of :data:`FACTORS` times their load, those that are the same
    in whole numbers once. Raises ``InferplanError`` for options that are refused, and for a load that is no number.
    """
    key = next((key for key, value in options.items() if value is not None and _named(key) in _LOADS), "")
    asked = options.get(key)
    if not isinstance(asked, (int, float)) or isinstance(asked, bool) or not asked > 0:
        raise UsageError("a load to scale is missing", hint=f"a number for one of {', '.join(_LOADS)}")
    found, loads = [], _loads(key, asked)
    for index, load in enumerate(loads):
        if progress is not None:
            progress(index, len(loads), "loads")
        answered = commands.run("simulate", {**options, key: load})
        if answered.report is None:
            raise answered.error or UsageError("a simulation without figures")
        if answered.report.of is None:
            raise UsageError("replicas that come and go have no curve over load", hint="inferplan simulate")
        record = answered.report.record
        own = {"load": load / asked, "asked": load, "command": answered.command, "verdict": record["verdict"]}
        found.append({**own, **{name: record[name] for name in _LATENCIES}})
    return found


def _named(key: str) -> str:
    return key.replace("_", "-")


def _loads(key: str, asked: float) -> list[float]:
    """The loads to simulate, rising."""
    if key == "rate":
        return [factor * asked for factor in FACTORS]
    whole = {max(round(factor * asked), 1) for factor in FACTORS}
    return sorted(whole - {round(asked)})
