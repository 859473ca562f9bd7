"""Beam search as people and programs read it."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferplan.reports.estimate import deployment_record, estimate_report, memory_record
from inferplan.serving.techniques.beams import BeamSearch
from inferplan.table import Report, Table
from inferplan.units import format_bytes, format_time

_WAYS = {"inside": "inside the engine", "outside": "from outside: a request for each beam and token"}


def beams_record(search: BeamSearch) -> dict[str, Any]:
    """What beams take; units are in the keys."""
    (least, most), load, rounds = search.bounds, search.load, search.rounds
    each = search.deployment.model.kv_elements_per_token * search.deployment.precision.kv.width
    outside = search.way == "outside"
    return {
        "width": search.width,
        "way": search.way,
        "first_round_s": float(rounds[0]),
        "round_s": float(np.mean(rounds[1:])) if len(rounds) > 1 else None,
        "e2el_s": search.seconds,
        "requests_per_s": float(load.batch) * search.deployment.parallel.replicas / search.seconds,
        "recomputed_tokens_mean": float(np.mean(search.recomputed[1:])) if outside and len(rounds) > 1 else None,
        "inside_s": float(search.inside.e2el),
        "cached_tokens_least": least,
        "cached_tokens_most": most,
        "cached_tokens_apart": search.width * float(np.ceil(search.cached / search.block)) * search.block,
        "kv_bytes_per_token": each,
    }


def beams_report(search: BeamSearch) -> Report:
    """What beams take of time and cache, and the memory of the device when they share least."""
    found, load = beams_record(search), search.load
    each = found["kv_bytes_per_token"]
    held = [found[f"cached_tokens_{name}"] for name in ("least", "most", "apart")]
    told = [f"{tokens:,.0f} tokens, {format_bytes(tokens * each)}" for tokens in held]
    rows = [["search", _WAYS[search.way]], ["first token of all beams", format_time(found["first_round_s"])]]
    if found["round_s"] is not None:
        rows.append(["each further token, mean", format_time(found["round_s"])])
    if found["recomputed_tokens_mean"] is not None:
        rows.append(["computed for it, a beam", f"{found['recomputed_tokens_mean']:.2f} tokens, mean"])
    rows += [
        ["whole answer", format_time(found["e2el_s"])],
        ["requests a second", f"{found['requests_per_s']:,.3f}"],
        *([["the same beams inside an engine", format_time(found["inside_s"])]] if search.way == "outside" else []),
        ["cache of a request, at least", told[0]],
        ["cache of a request, at most", told[1]],
        ["cache of a request, nothing shared", told[2]],
    ]
    title = f"{search.deployment.describe()}: batch {load.batch:.0f} x {search.width} beams, "
    title += f"{load.prompt:.0f} tokens in, {load.output:.0f} out"
    columns = ["beam search", "value"]
    inside = estimate_report(search.inside)
    record = {
        **deployment_record(search.deployment),
        "load": {"batch": int(load.batch), "prompt_tokens": int(load.prompt), "output_tokens": int(load.output)},
        "memory": memory_record(search.inside),
        "beams": found,
    }
    notes = ["memory is that of beams that share least; choosing among 2 W candidates a beam is not priced"]
    if search.way == "outside":
        notes.append("a lower bound: what the front end adds to the round of every token is not known (docs/beams.md)")
    tables = [Table(title=title, columns=columns, rows=rows, right=frozenset(columns[1:])), inside.tables[1]]
    return Report(record=record, tables=tables, notes=notes)
