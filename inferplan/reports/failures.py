"""A run in which replicas fail, as people and programs read it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isnan
from typing import Any

from inferplan.figures import Figure, finite, record, side_by_side, text
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
    stretches, given = [_stretch(seen, one, one.name) for one in seen.stretches], result.conditions
    rows = [record(row) for row in stretches]
    run = {
        "schema_version": SCHEMA_VERSION,
        "recovered": seen.recovered,
        "slo": {f"{name}_s": limit for name, limit in result.slo.limits.items()},
        "percentile": result.slo.percentile,
        "requests": result.counts,
        "began_anew": int(anew_late(seen)[0]),
        "in_fleet_before": seen.level,
        "failures": episode_records(seen),
        "stretches": rows,
        "timeline": [record(_stretch(seen, one)) for one in seen.bins(_BINS)],
        "basis": result.basis,
        "conditions": given,
    }
    tables = [
        side_by_side(
            f"{given['deployment']}: replicas fail", [row for row, one in zip(stretches, seen.stretches) if one.arrived]
        ),
        side_by_side("Failures", [_episode(seen, episode) for episode in seen.episodes]),
        side_by_side("Around the failures", [_bin(seen, one) for one in seen.bins(_ROWS)]),
    ]
    return Report(record=run, tables=tables, notes=_notes(seen), rows=rows)


def _stretch(seen: Outages, one: Stretch, name: str | None = None) -> list[Figure]:
    """A stretch of time, or a bin; null for what is not there, and for what never ends."""
    percentile, limited = seen.result.slo.percentile, list(seen.result.slo.limits) or ["ttft", "tpot"]
    return [
        Figure("name", name or None, "requests that arrive", left=True, seen=name is not None),
        Figure("start_s", finite(one.start)),
        Figure("stop_s", finite(one.stop)),
        Figure("replicas", one.replicas, "replicas", ".2f"),
        Figure("requests", one.arrived, "requests", ","),
        *(
            Figure(
                f"{name}_s", finite(value), f"{_NAMES[name]} p{percentile:g}", text=_time(value), seen=name in limited
            )
            for name, value in one.latencies.items()
        ),
        Figure("within", one.within, "within limits", ".2%"),
        Figure("began_anew", one.anew, "restarted", ","),
        Figure("in_fleet_most", one.most, "most in the fleet", ","),
    ]


def _bin(seen: Outages, one: Stretch) -> list[Figure]:
    """A bin of the time around the failures."""
    return [text("from the failure", f"{one.start - seen.episodes[0].at:+,.4g} s"), *_stretch(seen, one)]


def episode_records(seen: Outages) -> list[dict[str, Any]]:
    """Each episode: what was lost and when it was over."""
    return [record(_episode(seen, episode)) for episode in seen.episodes]


def failure_table(runs: Sequence[tuple[str, Outages]], what: str) -> Table:
    """The failures of several runs, and how many of the requests keep the limits that come while replicas are missing.

    what: that the runs differ by.
    """
    rows = [
        [text(what, name, left=True), *_episode(seen, episode, several=True)]
        for name, seen in runs
        for episode in seen.episodes
    ]
    return side_by_side("Failures", rows)


def _episode(seen: Outages, episode: Episode, several: bool = False) -> list[Figure]:
    """What an episode lost and when it was over. several: beside other runs."""
    anew, after = sum(outage.anew for outage in episode.outages), episode.over - episode.at
    within = seen.stretch("", (episode.at, episode.back)).within
    return [
        Figure("at_s", episode.at, "at", _seconds),
        Figure("replicas_lost", sum(len(outage.lost) for outage in episode.outages), "replicas lost", ","),
        text("restarted", f"{anew:,}"),
        Figure("back_s", episode.back, "back after", text=_seconds(episode.back - episode.at)),
        Figure("backlog_gone_s", finite(episode.over)),
        Figure("recovered_after_s", finite(after), "backlog gone after", _seconds, absent="not in this run"),
        Figure("began_anew", anew),
        Figure(
            "in_fleet_peak",
            episode.peak,
            "most in the fleet",
            text=f"{episode.peak:,} ({episode.level:,.1f} before, mean)",
        ),
        Figure("in_fleet_before", episode.level),
        Figure("within_while_missing", within, "within meanwhile", ".2%", seen=several),
    ]


def _seconds(value: float) -> str:
    return format_time(value, 4)


def _time(value: float) -> str:
    return "-" if isnan(value) else "never" if value == inf else format_time(value, 3)


def _notes(seen: Outages) -> list[str]:
    given = seen.result.conditions
    asked = given["failures"]
    again, late = anew_late(seen)
    how = {
        "cut": "a replica that fails is gone at once: its requests start again elsewhere, its prefix cache is lost",
        "drain": "a replica that fails takes no more requests, finishes the ones it has, and then restarts",
    }[asked["mode"]]
    lines = [
        f"{how}; it takes requests again {format_time(asked['restart_s'], 4)} later; {given['routing']} routing",
        "a latency counts from the first sending of the request; requests belong to the time in which they were sent",
        f"recovered: all replicas are back, and no more than {seen.level:,.1f} requests are in the fleet, the mean "
        "before the first failure (without its first quarter)",
    ]
    if again and seen.limited:
        lines.append(f"{again:,} requests restarted; {late:,} of them miss a limit")
    return [*lines, f"basis: {seen.result.basis}, constants {given['calibration']}"]
