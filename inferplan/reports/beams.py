"""Beam search as people and programs read it."""

from __future__ import annotations

import numpy as np

from inferplan.figures import Figure, lines, record, text
from inferplan.reports.estimate import deployment_record, estimate_report, memory_record
from inferplan.serving.techniques.beams import BeamSearch
from inferplan.table import Report
from inferplan.units import format_bytes, format_time

_WAYS = {"inside": "inside the engine", "outside": "from outside: one request per beam and token"}


def beams_figures(search: BeamSearch) -> list[Figure]:
    """What beams take of time and cache."""
    (least, most), load, rounds = search.bounds, search.load, search.rounds
    each = search.deployment.model.kv_elements_per_token * search.deployment.precision.kv.width
    outside, many = search.way == "outside", len(rounds) > 1
    apart = search.width * float(np.ceil(search.cached / search.block)) * search.block
    again = float(np.mean(search.recomputed[1:])) if outside and many else None

    def cache(tokens: float) -> str:
        return f"{tokens:,.0f} tokens, {format_bytes(tokens * each)}"

    return [
        Figure("width", search.width),
        Figure("way", search.way, "search", text=_WAYS[search.way]),
        Figure("first_round_s", float(rounds[0]), "first token of all beams", format_time),
        Figure(
            "round_s", float(np.mean(rounds[1:])) if many else None, "each further token, mean", format_time, seen=many
        ),
        text("computed for it, per beam", f"{again or 0.0:.2f} tokens, mean", seen=again is not None),
        Figure("e2el_s", search.seconds, "whole answer", format_time),
        Figure(
            "requests_per_s",
            float(load.batch) * search.deployment.parallel.replicas / search.seconds,
            "requests per second",
            ",.3f",
        ),
        Figure("recomputed_tokens_mean", again),
        Figure("inside_s", float(search.inside.e2el), "the same beams inside an engine", format_time, seen=outside),
        Figure("cached_tokens_least", least, "cache per request, at least", cache),
        Figure("cached_tokens_most", most, "cache per request, at most", cache),
        Figure("cached_tokens_apart", apart, "cache per request, nothing shared", cache),
        Figure("kv_bytes_per_token", each),
    ]


def beams_report(search: BeamSearch) -> Report:
    """What beams take of time and cache, and the memory of the device when they share least."""
    figures, load = beams_figures(search), search.load
    title = f"{search.deployment.describe()}: batch {load.batch:.0f} x {search.width} beams, "
    title += f"{load.prompt:.0f} tokens in, {load.output:.0f} out"
    inside = estimate_report(search.inside)
    whole = {
        **deployment_record(search.deployment),
        "load": {"batch": int(load.batch), "prompt_tokens": int(load.prompt), "output_tokens": int(load.output)},
        "memory": memory_record(search.inside),
        "beams": record(figures),
    }
    notes = ["memory: beams that share the least; the choice among 2 W candidates per beam is not priced"]
    if search.way == "outside":
        notes.append("a lower bound: the time that the front end adds per token is not known (docs/beams.md)")
    tables = [lines(title, figures, "beam search"), inside.tables[1]]
    return Report(record=whole, tables=tables, notes=notes)
