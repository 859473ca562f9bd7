"""What serving techniques do to a static batch, and the steady state beside it: the serving part of an estimate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from inferplan.estimate.batch import Estimate
from inferplan.figures import Figure, labelled_texts, record, text
from inferplan.reports.estimate import band_note, estimate_report, within_line
from inferplan.reports.simulation import steady_report
from inferplan.serving.steady import SteadyState, UserLoad, steady_bands, steady_state
from inferplan.serving.techniques.applied import ServedEstimate
from inferplan.serving.techniques.chunked_prefill import chunked_prefill
from inferplan.serving.techniques.offload import reload_gain
from inferplan.serving.techniques.prefix_caching import prefix_gain
from inferplan.serving.techniques.speculation import break_even, speculate
from inferplan.table import Report, Table
from inferplan.units import format_time


def served_report(result: Estimate) -> Report:
    """One screen of an estimate, and what its techniques do where it has some."""
    report = estimate_report(result)
    if not isinstance(result, ServedEstimate):
        return report
    records, tables = technique_records(result)
    return replace(report, record={**report.record, **records}, tables=[*report.tables, *tables])


def technique_records(result: ServedEstimate) -> tuple[dict[str, Any], list[Table]]:
    """Records by technique, for JSON, and a table of what each does beside the headline."""
    parts = {
        "speculation": _speculation(result),
        "prefix_caching": _prefix(result),
        "chunked_prefill": _chunks(result),
        "kv_offload": _offload(result),
    }
    rows = [line for figures in parts.values() for line in labelled_texts(figures)]
    records = {name: record(figures) for name, figures in parts.items() if figures}
    return records, [Table(title="techniques", columns=("", ""), rows=rows)]


def with_steady(report: Report, alone: Estimate, served: ServedEstimate, users: int) -> Report:
    """The report of a batch alone behind the steady state of so many users whose requests are those of ``served``, with
    its techniques. Each has bands of its own."""
    load = UserLoad(
        concurrency=float(users),
        prompt=served.load.prompt,
        output=served.load.output,
        hit_rate=served.techniques.hit_rate,
    )
    drafts = served.techniques.speculation
    state = steady_state(served.deployment, load, speculation=drafts)
    without = steady_state(served.deployment, load) if drafts.length else None
    bands = steady_bands(served.deployment, load, served.forms)
    figures = {"ttft": float(state.ttft), **({"tpot": float(state.tpot)} if load.output > 1 else {})}
    ends = {
        f"{name}_{end}_s": None if (band := bands.get(name)) is None else figures[name] * band[place]
        for name in figures
        for place, end in enumerate(("low", "high"))
    }
    named = {"ttft": "TTFT at the server, mean", "tpot": "TPOT"}
    within = within_line(served.deployment, [(named[name], value, bands.get(name)) for name, value in figures.items()])
    own, whose = band_note(alone), f"error of the steady state: {within or 'unknown; no band is known for its steps'}"
    said = own.replace("error:", "error of the batch alone:", 1)
    return replace(
        report,
        record={
            **report.record,
            "steady_state": {**state.to_dict(), **ends},
            **({} if without is None else {"steady_state_without": without.to_dict()}),
        },
        opening=[*full_cache(state), *report.opening],
        tables=[steady_report(state, without), *report.tables],
        notes=[line for note in report.notes for line in ([whose, said] if note == own else [note])],
    )


_NEARLY_FULL = 0.9
"""Share of the cache in use from which single requests, which a mean load does not know, wait or lose their room."""


def full_cache(state: SteadyState) -> list[str]:
    """What a closed form leaves out where the cache is full; nothing where it is not. How far it is from simulated runs
    then is what ``python -m tests.benchmarks.compare_steady_state full`` prints."""
    if not float(state.kv_use) > _NEARLY_FULL:
        return []
    asked, fit, late = float(state.load.concurrency), float(state.admissible), float(state.queue)
    waits = f"{late:,.0f} wait {format_time(float(state.wait))} each" if late else "the next ones wait"
    return [
        f"warning: the KV cache holds {fit:,.0f} requests of these {asked:,.0f}: {waits}. These means know no request "
        "that loses its room to others: in one of ten drawn loads TTFT is off by more than 57 % at 1.1 times what "
        f"fits, 26 % at 1.3 times, 14 % at 4 times; inferplan simulate --in-flight {asked:.0f} follows each request"
    ]


def _speculation(result: ServedEstimate) -> list[Figure]:
    """What drafts yield and take; nothing without."""
    speculation, load = result.techniques.speculation, result.load
    if not speculation.length:
        return []
    context = float(np.max(load.prompt + np.maximum(load.output - 2.0, 0.0) / 2))
    gain = speculate(result.deployment, speculation, load.batch, context)
    verify, draft, speedup = float(np.max(gain.verify)), float(np.max(gain.draft)), float(np.max(gain.speedup))
    losing, basis = break_even(result.deployment, speculation, context), speculation.basis
    return [
        Figure("draft", None if speculation.draft is None else speculation.draft.model.name),
        Figure("length", speculation.length),
        Figure("branches", speculation.branches),
        Figure("acceptance", speculation.acceptance),
        text("drafts: tokens per verification", f"{gain.tokens:.3f} ({speculation.accepted})"),
        Figure("acceptance_basis", basis, "  acceptance of drafts", seen=basis not in ("", "given")),
        Figure("tokens_per_step", gain.tokens),
        Figure("tpot_s", float(np.max(result.tpot))),
        Figure("verification_s", verify),
        Figure("drafts_s", draft),
        Figure(
            "speedup",
            speedup,
            "  drafts and verification",
            text=f"{format_time(draft)} + {format_time(verify)}, {speedup:.3g} times as fast",
        ),
        Figure("loses_from_batch", losing, "  batch from which drafts are slower", ",", absent="none up to 4,096"),
    ]


def _prefix(result: ServedEstimate) -> list[Figure]:
    """What prefixes that are found save; nothing without."""
    rate, load = result.techniques.hit_rate, result.load
    if not rate:
        return []
    cached, gain = int(np.max(result.cached)), prefix_gain(result.deployment, load.batch, load.prompt, rate)
    return [
        Figure("hit_rate", rate),
        Figure("cached_tokens", cached, "prefix caching", text=f"{cached:,} tokens of each prompt found ({rate:.0%})"),
        Figure("ttft_s", float(np.max(result.ttft))),
        Figure("speedup", float(np.max(gain))),
    ]


def _chunks(result: ServedEstimate) -> list[Figure]:
    """One prompt in chunks; nothing without."""
    chunk = result.techniques.chunk
    if not chunk:
        return []
    prompt, batch = int(np.max(result.load.prompt)), int(np.max(result.load.batch))
    cut = chunked_prefill(result.deployment, prompt, chunk, batch - 1, float(prompt))
    beside = f" next to {batch - 1:,} decodes" if batch > 1 else ""
    return [
        Figure("chunk_tokens", chunk),
        Figure("ttft_s", cut.total),
        Figure("chunks", cut.steps),
        Figure("longest_step_s", cut.longest_gap),
        Figure(
            "cost",
            cut.cost,
            f"one prompt in {cut.steps} chunks{beside}",
            lambda cost: f"{cost:.3g} times as long, longest step {format_time(cut.longest_gap)}",
        ),
    ]


def _offload(result: ServedEstimate) -> list[Figure]:
    """The cached part of the batch's prompts back from the host; nothing without."""
    host = result.techniques.host
    if host is None:
        return []
    time, gain = float(np.max(result.host_loads)), float(np.max(reload_gain(result.deployment, host, result.cached)))
    return [
        Figure("capacity_bytes", host.capacity),
        Figure("bandwidth_bytes_per_s", host.bandwidth),
        Figure("load_s", time),
        Figure(
            "gain",
            gain,
            "cached part read from the host",
            text=f"{format_time(time)} (computing it takes {gain:.3g} times as long)",
        ),
    ]
