"""Sessions of agents as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferplan.table import Table
from inferplan.units import format_time

_TIMES = {
    "duration_s": "duration",
    "model_s": "in the model",
    "tools_s": "waiting for tools",
    "thinking_s": "user reads and writes",
}
_AMOUNTS = {"calls": "calls", "prompt_tokens": "prompt tokens", "output_tokens": "output tokens"}


def session_tables(record: Mapping[str, Any]) -> list[Table]:
    """How long sessions take and in what, what they read and write; how many get through."""
    rows = [[name, *_times(record[key])] for key, name in _TIMES.items()]
    if len(record["kinds"]) > 1:
        rows += [[f"duration, {kind['name']}", *_times(kind["duration_s"])] for kind in record["kinds"]]
    rows += [
        [name, *("-" if value is None else f"{value:,.0f}" for value in record[key].values())]
        for key, name in _AMOUNTS.items()
    ]
    columns = ("", "mean", "p50", "p90", "p95", "p99")
    spread = Table(title="A session", columns=columns, rows=rows, right=frozenset(columns[1:]))
    return [spread, Table(title="Sessions", columns=("", ""), rows=_all(record), right=frozenset())]


def _times(values: Mapping[str, float | None]) -> list[str]:
    return ["-" if value is None else format_time(value) for value in values.values()]


def _all(record: Mapping[str, Any]) -> list[list[str]]:
    ended = ", ".join(f"{record[name]:,} {name}" for name in ("finished", "cancelled", "refused") if record[name])
    mean, error = record["duration_s"]["mean"], record["duration_mean_error_s"]
    sure = f"; mean duration ±{error / mean:.1%}" if mean and error is not None else ""
    within = record["within_limit"]
    return [
        ["sessions", f"{record['begun']:,} begun: {ended or 'none ended'}"],
        ["in the figures", f"{record['in_figures']:,}{sure}"],
        ["sessions/h that finish", f"{record['sessions_per_h']:,.4g}"],
        ["under way at a time, mean", f"{record['in_system_mean']:,.1f}"],
        ["prompt tokens found in the cache", f"{record['cached_share']:.1%}"],
        *([] if within is None else [["within the limit", f"{within:.1%} in {format_time(record['limit_s'])}"]]),
    ]
