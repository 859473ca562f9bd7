"""A run in which replicas fail, as people and programs read it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, isnan
from typing import Any

from inferplan.serving.outages import Episode, Outages, Stretch, anew_late
from inferplan.serving.result import SimulationResult
from inferplan.table import SCHEMA_VERSION, Report, Table
from inferplan.units import format_time

_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "latency", "answer_ttft": "TTFT of the answer"}
_ROWS, _BINS = 32, 400
"""Bins of a timeline: of a table, and of a record."""


def failure_report(result: SimulationResult) -> Report:
    """What users have before, during and after each failure, the failures, and the time around them in bins."""
    seen = Outages(result)
    rows = [stretch_record(one) for one in seen.stretches]
    given, slo = result.conditions, result.slo
    record = {
        "schema_version": SCHEMA_VERSION,
        "recovered": seen.recovered,
        "slo": {f"{name}_s": limit for name, limit in slo.limits.items()},
        "percentile": slo.percentile,
        "requests": result.counts,
        "began_anew": int(anew_late(seen)[0]),
        "in_fleet_before": seen.level,
        "failures": episode_records(seen),
        "stretches": rows,
        "timeline": [stretch_record(one) for one in seen.bins(_BINS)],
        "basis": result.basis,
        "conditions": given,
    }
    tables = [_stretches(seen), _failures(seen), _timeline(seen)]
    return Report(record=record, tables=tables, notes=_notes(seen), rows=rows)


def stretch_record(one: Stretch) -> dict[str, Any]:
    """A stretch of time with units in its keys; null for what is not there, and for what never ends."""
    return {
        "name": one.name or None,
        "start_s": _finite(one.start),
        "stop_s": _finite(one.stop),
        "replicas": one.replicas,
        "requests": one.arrived,
        **{f"{name}_s": _finite(value) for name, value in one.latencies.items()},
        "within": one.within,
        "began_anew": one.anew,
        "in_fleet_most": one.most,
    }


def episode_records(seen: Outages) -> list[dict[str, Any]]:
    """Each episode: what was lost and when it was over."""
    return [
        {
            "at_s": episode.at,
            "replicas_lost": sum(len(outage.lost) for outage in episode.outages),
            "back_s": episode.back,
            "backlog_gone_s": _finite(episode.over),
            "recovered_after_s": _finite(episode.over - episode.at),
            "began_anew": sum(outage.anew for outage in episode.outages),
            "in_fleet_peak": episode.peak,
            "in_fleet_before": episode.level,
            "within_while_missing": seen.stretch("", (episode.at, episode.back)).within,
        }
        for episode in seen.episodes
    ]


def failure_table(runs: Sequence[tuple[str, Outages]], what: str) -> Table:
    """The failures of several runs, and how many of the requests keep the limits that come while replicas are missing.

    what: that the runs differ by.
    """
    own = ["replicas lost", "began anew", "back after", "backlog gone after", "most in the fleet", "within meanwhile"]
    columns = [what, "at", *own]
    rows = [
        [name, *_failure(seen, episode), _within(seen, episode)] for name, seen in runs for episode in seen.episodes
    ]
    return Table(title="Failures", columns=columns, rows=rows, right=frozenset(columns[1:]))


def _within(seen: Outages, episode: Episode) -> str:
    share = seen.stretch("", (episode.at, episode.back)).within
    return "-" if share is None else f"{share:.2%}"


def _finite(value: float) -> float | None:
    return float(value) if isfinite(value) else None


def _time(value: float) -> str:
    return "-" if isnan(value) else "never" if value == inf else format_time(value, 3)


def _latencies(seen: Outages) -> list[str]:
    """Those of a table: the limited ones, or TTFT and TPOT."""
    return list(seen.result.slo.limits) or ["ttft", "tpot"]


def _columns(seen: Outages) -> list[str]:
    at = f"p{seen.result.slo.percentile:g}"
    return [*(f"{_NAMES[name]} {at}" for name in _latencies(seen)), "within limits", "anew", "most in the fleet"]


def _cells(seen: Outages, one: Stretch) -> list[str]:
    return [
        f"{one.replicas:.2f}",
        f"{one.arrived:,}",
        *(_time(one.latencies[name]) for name in _latencies(seen)),
        "-" if one.within is None else f"{one.within:.2%}",
        f"{one.anew:,}",
        f"{one.most:,}",
    ]


def _stretches(seen: Outages) -> Table:
    columns = ["requests that come", "replicas", "requests", *_columns(seen)]
    rows = [[one.name, *_cells(seen, one)] for one in seen.stretches if one.arrived]
    title = f"{seen.result.conditions['deployment']}: replicas fail"
    return Table(title=title, columns=columns, rows=rows, right=frozenset(columns[1:]))


def _failures(seen: Outages) -> Table:
    columns = ("at", "replicas lost", "began anew", "back after", "backlog gone after", "most in the fleet")
    rows = [_failure(seen, episode) for episode in seen.episodes]
    return Table(title="Failures", columns=columns, rows=rows, right=frozenset(columns))


def _failure(seen: Outages, episode: Episode) -> list[str]:
    return [
        format_time(episode.at, 4),
        f"{sum(len(outage.lost) for outage in episode.outages):,}",
        f"{sum(outage.anew for outage in episode.outages):,}",
        format_time(episode.back - episode.at, 4),
        "not in this run" if episode.over == inf else format_time(episode.over - episode.at, 4),
        f"{episode.peak:,} ({episode.level:,.1f} before, mean)",
    ]


def _timeline(seen: Outages) -> Table:
    first = seen.episodes[0].at
    columns = ["from the failure", "replicas", "requests", *_columns(seen)]
    rows = [[f"{one.start - first:+,.4g} s", *_cells(seen, one)] for one in seen.bins(_ROWS)]
    return Table(title="Around the failures", columns=columns, rows=rows, right=frozenset(columns))


def _notes(seen: Outages) -> list[str]:
    given = seen.result.conditions
    asked = given["failures"]
    again, late = anew_late(seen)
    how = {
        "cut": "a replica that fails is gone at once: what it has begins anew elsewhere, its prefix cache is lost",
        "drain": "a replica that fails takes no more requests, finishes those that it has, and restarts then",
    }[asked["mode"]]
    lines = [
        f"{how}; it takes requests again {format_time(asked['restart_s'], 4)} later; {given['routing']} routing",
        "a latency counts from when the request was sent first; requests belong to the time in which they were sent",
        f"recovered: all replicas are back, and no more than {seen.level:,.1f} requests are in the fleet, the mean of "
        f"the time before the first failure without its first quarter",
    ]
    if again and seen.limited:
        lines.append(f"{again:,} requests began anew; {late:,} of them miss a limit")
    return [*lines, f"basis: {seen.result.basis}, constants {given['calibration']}"]
