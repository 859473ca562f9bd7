"""A simulated run and a steady state as people read them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from inferplan.serving.records import Meter
from inferplan.serving.result import SimulationResult
from inferplan.serving.steady import SteadyState
from inferplan.table import Report, Table
from inferplan.units import format_time

_NAMES = {"ttft_s": "TTFT at the server", "tpot_s": "TPOT", "itl_s": "ITL", "e2el_s": "end to end"}
_MEANING = {
    "stable": "stable: requests are admitted about as soon as they come",
    "saturated": "saturated: requests wait longer than their prompt takes, and the queue does not grow",
    "overloaded": "overloaded: the queue grows for as long as the traffic lasts, so latencies have no percentiles",
    "rejecting": "rejecting: some requests can never run; latencies are those of the others",
    "too short to tell": "too short to tell: the run ends before the system has filled; more --requests, or none",
}
_COLUMNS = ("start_s", "duration_s", "steps", "decodes", "prompt_tokens", "waiting", "kv_use")


def _time(value: float | None) -> str:
    return "-" if value is None else format_time(value)


def simulation_report(result: SimulationResult) -> Report:
    """Latency percentiles, rates, queue and cache of a run, with what they are conditional on."""
    record = result.to_dict()
    latency = [
        [name, *(_time(value) for value in record[key].values())] for key, name in _NAMES.items() if key in record
    ]
    columns = ("", "mean", "p50", "p90", "p95", "p99")
    tables = [
        Table(title="Latency", columns=columns, rows=latency, right=frozenset(columns[1:])),
        Table(title="Run", columns=("", ""), rows=_rows(result, record), right=frozenset()),
    ]
    return Report(record=record, tables=tables, notes=_notes(result, record))


def _rows(result: SimulationResult, record: Mapping[str, Any]) -> list[list[str]]:
    rates, queue, kv = record["throughput"], record["queue"], record["kv"]
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in record["requests"].items() if count)
    refused = [[f"rejected: {reason}", f"{count:,}"] for reason, count in record["rejected_because"].items()]
    goodput = record["goodput_requests_per_s"]
    attained = record["slo_attained"]
    return [
        ["verdict", record["verdict"]],
        ["requests", counts],
        *refused,
        ["duration", format_time(record["duration_s"])],
        ["requests/s", f"{rates['requests_per_s']:.4g}"],
        ["output tokens/s", f"{rates['output_tokens_per_s']:,.1f}"],
        ["total tokens/s", f"{rates['total_tokens_per_s']:,.1f}"],
        *([] if goodput is None else [["goodput, requests/s", f"{goodput:.4g} ({attained or 0:.1%} meet the SLO)"]]),
        ["wait for a slot or cache", f"mean {_time(queue['wait_mean_s'])}, longest {_time(queue['wait_max_s'])}"],
        ["decode batch, mean", f"{record['batch_mean']:.1f} of {result.slots} slots"],
        [
            "KV cache used",
            f"mean {kv['use_mean']:.1%}, peak {kv['use_peak']:.1%} of {kv['capacity_tokens']:,.0f} tokens",
        ],
        ["preemptions", f"{record['preemptions']:,}"],
        ["prefix-cache hits", f"{record['prefix_cache_hit_rate']:.1%} of the prompt tokens"],
        ["steps", f"{record['steps']:,}, {record['prompt_steps']:,} with prompts"],
    ]


def _anchored(result: SimulationResult) -> str:
    if result.anchor == (1.0, 1.0):
        return ""
    return f"; anchored to measured rows: TTFT x {result.anchor[0]:.3f}, TPOT x {result.anchor[1]:.3f}"


def _notes(result: SimulationResult, record: Mapping[str, Any]) -> list[str]:
    given = result.conditions
    flags = [
        f"{name} {given[name]}"
        for name in ("max_num_seqs", "max_num_batched_tokens", "poll_interval_steps")
        if given.get(name) is not None
    ]
    engines = f", {given['replicas']} engines, {given['routing']}" if given.get("replicas", 1) > 1 else ""
    return [
        _MEANING[record["verdict"]],
        f"conditional on {given.get('engine', 'the engine')}: {', '.join(flags)}{engines}; and on the load generator",
        f"basis: {record['basis']}{_anchored(result)}",
    ]


def steady_report(state: SteadyState) -> Table:
    """The steady state of a load that is a single point."""
    rows = [
        ["users", f"{float(state.load.concurrency):,.0f}"],
        ["TTFT at the server, mean", _time(float(state.ttft))],
        ["TPOT", _time(float(state.tpot))],
        ["end to end", _time(float(state.e2el))],
        ["requests/s", f"{float(state.request_rate):.4g}"],
        ["output tokens/s", f"{float(state.output_rate):,.1f}"],
        ["admitted at once", f"{float(state.admitted):,.1f} of at most {float(state.admissible):,.1f}"],
        ["waiting for a slot or cache", f"{float(state.queue):,.1f} users, {_time(float(state.wait))} each"],
        ["KV cache used", f"{float(state.kv_use):.1%}"],
        ["steps that hold prompts", f"{float(state.prompt_share):.1%}"],
    ]
    return Table(title=f"Steady state of {float(state.load.concurrency):,.0f} users", columns=("", ""), rows=rows)


def timeline_csv(meters: list[Meter]) -> str:
    """One line a step or run of alike steps, with the engine it ran on."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("engine", *_COLUMNS))
    for engine, meter in enumerate(meters):
        for entry in meter.timeline or []:
            writer.writerow((engine, *(f"{value:.9g}" for value in entry)))
    return buffer.getvalue()


def timeline_trace(meters: list[Meter]) -> str:
    """The same as a Chrome trace (chrome://tracing, Perfetto); times there are microseconds."""
    events: list[dict[str, Any]] = []
    for engine, meter in enumerate(meters):
        for start, duration, steps, decodes, tokens, waiting, use in meter.timeline or []:
            name = "prompt" if tokens else "decode"
            events.append(
                {
                    "name": name,
                    "ph": "X",
                    "pid": engine,
                    "tid": 0,
                    "ts": start * 1e6,
                    "dur": duration * 1e6,
                    "args": {"steps": steps, "decodes": decodes, "prompt_tokens": tokens},
                }
            )
            counters = {"decodes": decodes, "waiting": waiting, "kv_use": use}
            events += [
                {"name": key, "ph": "C", "pid": engine, "ts": start * 1e6, "args": {key: value}}
                for key, value in counters.items()
            ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def timeline_tracks(meter: Meter) -> dict[str, tuple[Any, Any]]:
    """What a plot of one engine shows: name to times and values."""
    columns = np.asarray(meter.timeline or np.zeros((1, len(_COLUMNS))), dtype=np.float64).T
    return {
        "decodes": (columns[0], columns[3]),
        "waiting": (columns[0], columns[5]),
        "prompt tokens": (columns[0], columns[4]),
        "KV cache used": (columns[0], columns[6]),
    }
