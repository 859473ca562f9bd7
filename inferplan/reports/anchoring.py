"""Which runs of one's own system to measure, and what they make of predictions, as people and programs read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from math import exp

import numpy as np

from inferplan.answers.anchoring import DEGREES, SuggestedRun, Suggestion
from inferplan.devices.anchors import METRICS, Anchor, Metric
from inferplan.figures import Figure, record, side_by_side, text
from inferplan.table import Report, Table
from inferplan.units import format_time
from inferplan.validation.anchor import Fitted, left_over
from inferplan.validation.host import FoundHost

_NAMES = {"ttft": "TTFT", "tpot": "TPOT"}


def suggestion_report(found: Suggestion) -> Report:
    """The runs with the commands of server and client, and the bands before and after them."""
    rows = [_run(n, run) for n, run in enumerate(found.runs, start=1)]
    servers: dict[str, list[int]] = {}
    for n, run in enumerate(found.runs, start=1):
        servers.setdefault(run.server or (run.note if run.benchmark else ""), []).append(n)
    notes = [f"server of {', '.join(map(str, runs))}: {words}" for words, runs in servers.items() if words]
    notes += [f"run {n}: {run.benchmark or run.note}" for n, run in enumerate(found.runs, start=1)]
    bands = ", ".join(
        f"{name} x {found.before[m][0]:.2f} to {found.before[m][1]:.2f} before, x {found.after[m][0]:.2f} to "
        f"{found.after[m][1]:.2f} after"
        for m, name in _NAMES.items()
    )
    beside = f", in addition to {found.measured} measured runs" if found.measured else ""
    notes += [
        f"then: {found.fit}",
        f"80 % band, mean over {found.loads} loads{beside}: {bands} (docs/anchors.md)",
        *([f"{found.dropped} loads left out: beyond memory, slots or context"] if found.dropped else []),
    ]
    whole = {
        "system": found.system.model_dump(exclude_none=True),
        "runs": [record(row) for row in rows],
        "fit": found.fit,
        "loads": found.loads,
        "loads_left_out": found.dropped,
        "measured_runs": found.measured,
        "band_before": {name: list(band) for name, band in found.before.items()},
        "band_after": {name: list(band) for name, band in found.after.items()},
    }
    table = side_by_side(f"runs to measure of {found.system.describe()}", rows)
    return Report(record=whole, tables=[table], notes=notes)


def _run(number: int, run: SuggestedRun) -> list[Figure]:
    """One run to measure."""
    load, degrees = run.load, asdict(run.load.parallel)
    return [
        text("run", str(number), left=True),
        Figure("concurrency", round(float(load.users)), "users"),
        Figure("prompt_tokens", float(load.prompt), "prompt", ".0f"),
        Figure("output_tokens", float(load.output), "output", ".0f"),
        *(Figure(name, degrees[name]) for name in DEGREES),
        text("division", run.division, left=True),
        Figure("server", run.server),
        Figure("benchmark", run.benchmark),
        Figure("result", run.result, "result", left=True),
        Figure("note", run.note or None),
    ]


def _clipped(metric: Metric, anchor: Anchor) -> str:
    """How many runs are farther off than counts, and why that is; empty for none."""
    clip = anchor.process.clip
    count = int(np.sum(np.abs(anchor.measured(metric)[1]) > clip))
    if not count:
        return ""
    return (
        f"{_NAMES[metric]} of {count} runs is off by more than x {exp(clip):.2f} and counts as that: look for facts "
        "that the results do not state, such as slots, the token budget, a prefix cache or another precision"
    )


def anchor_report(found: Fitted, path: str, above: Sequence[str]) -> Report:
    """Measured over predicted of each run that is kept, and how well they correct each other."""
    anchor = found.anchor
    rows, records = [], []
    for row in anchor.rows:
        ratios = {metric: getattr(row, f"{metric}_ln_ratio") for metric in METRICS}
        shown = ["-" if value is None else f"x {exp(value):.3f}" for value in ratios.values()]
        division = row.load.parallel.describe()
        rows.append([f"{row.users:g}", f"{row.prompt:g}", f"{row.output:g}", division, *shown])
        records.append(row.model_dump())
    table = Table(
        title=f"measured over predicted: {anchor.system.describe()}",
        columns=["users", "prompt", "output", "division", *_NAMES.values()],
        rows=rows,
        right=frozenset({"users", "prompt", "output", *_NAMES.values()}),
    )
    crossed = {metric: left_over(anchor, metric) for metric in METRICS}
    notes = [
        f"{_NAMES[metric]}: mean error {one[0]:.1%} as predicted, {one[1]:.1%} with each run corrected by the others"
        for metric, one in crossed.items()
        if one is not None
    ]
    notes += [_clipped(metric, anchor) for metric in METRICS if _clipped(metric, anchor)]
    notes += [*above]
    notes += [f"left out: {where}: {reason}" for where, reason in found.left_out]
    notes.append(f"{len(anchor.rows)} runs written; use them with --anchor {path}")
    whole = {
        "system": anchor.system.model_dump(exclude_none=True),
        "rows": records,
        "left_out": [{"where": where, "reason": reason} for where, reason in found.left_out],
        "mean_error": {
            m: None if one is None else {"predicted": one[0], "corrected": one[1]} for m, one in crossed.items()
        },
        "file": path,
    }
    return Report(record=whole, tables=[table], notes=notes, rows=records)


_HOST_MAY_BE = 0.5
"""Below this share of the first token the host is not told from what kernels are off."""


def host_report(found: FoundHost, above: Sequence[str]) -> Report:
    """The options that say what the host takes, and the first tokens that say it."""
    seconds = {one.name: getattr(found.host, one.name) for one in fields(found.host)}
    table = Table(
        title=f"the host of {found.system}",
        columns=["run", "first token", "predicted with this host", "without host times"],
        rows=[
            [run.where, *(format_time(value) for value in (run.measured, run.predicted, run.kernels))]
            for run in found.runs
        ],
        right=frozenset({"first token", "predicted with this host", "without host times"}),
    )
    options = " ".join(f"--host-{name} {value * 1e6:.6g}us" for name, value in seconds.items())
    notes = [f"{found.times:.2f} times the host on file: {options}"]
    if found.share < _HOST_MAY_BE:
        notes.append(
            f"the host takes {found.share:.0%} of these first tokens, so it includes errors of the kernels: measure "
            "shorter prompts"
        )
    notes += [*above]
    notes += [f"left out: {where}: {reason}" for where, reason in found.left_out]
    runs = [
        {"where": run.where, "ttft_s": run.measured, "predicted_s": run.predicted, "kernels_s": run.kernels}
        for run in found.runs
    ]
    whole = {
        "system": found.system,
        "times": found.times,
        "host_s": seconds,
        "host_share": found.share,
        "runs": runs,
        "left_out": [{"where": where, "reason": reason} for where, reason in found.left_out],
    }
    return Report(record=whole, tables=[table], notes=notes, rows=runs)
