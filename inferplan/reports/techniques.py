"""What serving techniques do to a static batch, and the steady state beside it: the serving part of an estimate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from inferplan.estimate.batch import Estimate
from inferplan.reports.estimate import estimate_report
from inferplan.reports.simulation import steady_report
from inferplan.serving.steady import UserLoad, steady_state
from inferplan.serving.techniques.applied import ServedEstimate
from inferplan.serving.techniques.chunked_prefill import chunked_prefill
from inferplan.serving.techniques.offload import reload_gain
from inferplan.serving.techniques.prefix_caching import prefix_gain
from inferplan.serving.techniques.speculation import break_even, speculate
from inferplan.table import Report, Table
from inferplan.units import format_time

_Part = tuple[str, dict[str, Any], list[list[str]]]


def served_report(result: Estimate) -> Report:
    """One screen of an estimate, and what its techniques do where it has some."""
    report = estimate_report(result)
    if not isinstance(result, ServedEstimate):
        return report
    record, tables = technique_records(result)
    return replace(report, record={**report.record, **record}, tables=[*report.tables, *tables])


def technique_records(result: ServedEstimate) -> tuple[dict[str, Any], list[Table]]:
    """Records by technique, for JSON, and a table of what each does beside the headline."""
    record: dict[str, Any] = {}
    rows: list[list[str]] = []
    for part in (_speculation, _prefix, _chunks, _offload):
        name, values, lines = part(result)
        if values:
            record[name] = values
            rows += lines
    return record, [Table(title="techniques", columns=("", ""), rows=rows)]


def steady_record(result: ServedEstimate, users: int) -> tuple[dict[str, Any], Table]:
    """The steady state of so many users whose requests are those of the batch, with its techniques."""
    load = UserLoad(
        concurrency=float(users),
        prompt=result.load.prompt,
        output=result.load.output,
        hit_rate=result.techniques.hit_rate,
    )
    state = steady_state(result.deployment, load, speculation=result.techniques.speculation)
    return state.to_dict(), steady_report(state)


def _speculation(result: ServedEstimate) -> _Part:
    speculation = result.techniques.speculation
    if not speculation.length:
        return "speculation", {}, []
    load = result.load
    context = float(np.max(load.prompt + np.maximum(load.output - 2.0, 0.0) / 2))
    gain = speculate(result.deployment, speculation, load.batch, context)
    verify, draft, speedup = float(np.max(gain.verify)), float(np.max(gain.draft)), float(np.max(gain.speedup))
    losing = break_even(result.deployment, speculation, context)
    values = {
        "draft": None if speculation.draft is None else speculation.draft.model.name,
        "length": speculation.length,
        "branches": speculation.branches,
        "acceptance": speculation.acceptance,
        "acceptance_basis": speculation.basis,
        "tokens_per_step": gain.tokens,
        "tpot_s": float(np.max(result.tpot)),
        "verification_s": verify,
        "drafts_s": draft,
        "speedup": speedup,
        "loses_from_batch": losing,
    }
    lines = [
        ["drafts: tokens a verification yields", f"{gain.tokens:.3f} ({speculation.accepted})"],
        *([["  their acceptance", speculation.basis]] if speculation.basis not in ("", "given") else []),
        ["  drafts and verification", f"{format_time(draft)} + {format_time(verify)}, {speedup:.3g} times as fast"],
        ["  they lose from batch", "none up to 4,096" if losing is None else f"{losing:,}"],
    ]
    return "speculation", values, lines


def _prefix(result: ServedEstimate) -> _Part:
    rate = result.techniques.hit_rate
    if not rate:
        return "prefix_caching", {}, []
    gain = float(np.max(prefix_gain(result.deployment, result.load.batch, result.load.prompt, rate)))
    line = ["prefix caching", f"{int(np.max(result.cached)):,} tokens of each prompt found ({rate:.0%})"]
    values = {
        "hit_rate": rate,
        "cached_tokens": int(np.max(result.cached)),
        "ttft_s": float(np.max(result.ttft)),
        "speedup": gain,
    }
    return "prefix_caching", values, [line]


def _chunks(result: ServedEstimate) -> _Part:
    chunk = result.techniques.chunk
    if not chunk:
        return "chunked_prefill", {}, []
    prompt, batch = int(np.max(result.load.prompt)), int(np.max(result.load.batch))
    cut = chunked_prefill(result.deployment, prompt, chunk, batch - 1, float(prompt))
    values = {
        "chunk_tokens": chunk,
        "ttft_s": cut.total,
        "chunks": cut.steps,
        "longest_step_s": cut.longest_gap,
        "cost": cut.cost,
    }
    beside = f"beside {batch - 1:,} decodes " if batch > 1 else ""
    line = [
        f"one prompt in {cut.steps} chunks {beside}".strip(),
        f"{cut.cost:.3g} times as long, longest step {format_time(cut.longest_gap)}",
    ]
    return "chunked_prefill", values, [line]


def _offload(result: ServedEstimate) -> _Part:
    host = result.techniques.host
    if host is None:
        return "kv_offload", {}, []
    time, gain = float(np.max(result.host_loads)), float(np.max(reload_gain(result.deployment, host, result.cached)))
    line = ["cached part back from the host", f"{format_time(time)} (computing it takes {gain:.3g} times as long)"]
    tier = {"capacity_bytes": host.capacity, "bandwidth_bytes_per_s": host.bandwidth}
    return "kv_offload", {**tier, "load_s": time, "gain": gain}, [line]
