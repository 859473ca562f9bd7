"""Several kinds of traffic as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferplan.figures import Figure, short_time, side_by_side, text
from inferplan.table import Table
from inferplan.units import format_time

_NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2el_s": "end to end"}


def class_tables(classes: Sequence[Mapping[str, Any]]) -> list[Table]:
    """The latencies of each class, and how much of it is within its limits."""
    latency = [_latency(one, key, name) for one in classes for key, name in _NAMES.items()]
    return [
        side_by_side("Latency of each class", latency),
        side_by_side("Limits of each class", [_limits(one) for one in classes]),
    ]


def _latency(one: Mapping[str, Any], key: str, name: str) -> list[Figure]:
    limit = one["slo"].get(key)
    return [
        text("class", one["name"] if key == "ttft_s" else "", left=True),
        text("", name, left=True),
        *(Figure("", value, at, format_time) for at, value in one[key].items()),
        text("limit", "" if limit is None else f"p{one['percentile']:g} < {short_time(limit)}"),
    ]


def _limits(one: Mapping[str, Any]) -> list[Figure]:
    return [
        text("class", one["name"], left=True),
        Figure("", one["requests"]["arrived"], "requests", ","),
        Figure("", one["priority"], "priority"),
        Figure("", one["weight"], "weight", "g"),
        Figure("", one["wait_mean_s"], "wait, mean", format_time),
        Figure("", one["slo_attained"], "within limits", ".1%"),
        Figure("", one["goodput_requests_per_s"], "goodput, requests/s", ".4g"),
        Figure("", one["meets"], "meets", lambda meets: "yes" if meets else "no"),
    ]


def limits_by_class(classes: Sequence[Mapping[str, Any]]) -> str:
    """Whether every class meets its limits, and who misses which."""
    missed = [f"{one['name']} misses {', '.join(_missed(one))}" for one in classes if one["meets"] is False]
    if missed:
        return "; ".join(missed)
    return "every class meets its limits" if any(one["meets"] for one in classes) else "none of them has limits"


def _missed(one: Mapping[str, Any]) -> list[str]:
    """The limits that a class misses, with what it has."""
    if one["overloaded"]:
        return ["its limits: its queue grows"]
    found = []
    for key, limit in one["slo"].items():
        value = one["at_percentile"][key]
        if value is None or value > limit:
            found.append(f"{_NAMES[key]} p{one['percentile']:g} {_time(value)} (limit {format_time(limit, 3)})")
    return found


def _time(value: float | None) -> str:
    return "-" if value is None else format_time(value)
