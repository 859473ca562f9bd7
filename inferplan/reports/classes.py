"""Several kinds of traffic as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferplan.table import Table
from inferplan.units import format_time

_NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2el_s": "end to end"}


def class_tables(classes: Sequence[Mapping[str, Any]]) -> list[Table]:
    """The latencies of each class, and how much of it is within its limits."""
    columns = ("class", "", "mean", "p50", "p90", "p95", "p99", "limit")
    latency = [
        [one["name"] if key == "ttft_s" else "", name, *(_time(value) for value in one[key].values()), _limit(one, key)]
        for one in classes
        for key, name in _NAMES.items()
    ]
    goodput = ("class", "requests", "priority", "weight", "wait, mean", "within limits", "goodput, requests/s", "meets")
    rows = [
        [
            one["name"],
            f"{one['requests']['arrived']:,}",
            str(one["priority"]),
            f"{one['weight']:g}",
            _time(one["wait_mean_s"]),
            "-" if one["slo_attained"] is None else f"{one['slo_attained']:.1%}",
            "-" if one["goodput_requests_per_s"] is None else f"{one['goodput_requests_per_s']:.4g}",
            "-" if one["meets"] is None else "yes" if one["meets"] else "no",
        ]
        for one in classes
    ]
    return [
        Table(title="Latency of each class", columns=columns, rows=latency, right=frozenset(columns[2:])),
        Table(title="Limits of each class", columns=goodput, rows=rows, right=frozenset(goodput[1:])),
    ]


def kept(classes: Sequence[Mapping[str, Any]]) -> str:
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


def _limit(one: Mapping[str, Any], key: str) -> str:
    limit = one["slo"].get(key)
    return "" if limit is None else f"p{one['percentile']:g} < {format_time(limit, 3)}"


def _time(value: float | None) -> str:
    return "-" if value is None else format_time(value)
