"""``inferplan anchor``: which runs to measure, and what they make of predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from inferplan.catalog.assemble import Request
from inferplan.cli.numbers import Count
from inferplan.cli.options import deployment_options, jobs_option, report_options, writable
from inferplan.cli.validate import facts_of, priced, supplied_options
from inferplan.devices.anchors import METRICS, Anchor, Metric
from inferplan.errors import UsageError
from inferplan.files import save
from inferplan.table import Report, Table
from inferplan.units import parse_whole

if TYPE_CHECKING:
    from inferplan.answers.anchoring import Suggestion
    from inferplan.validation.anchor import Fitted

_DEGREES = ("tp", "pp", "ep", "dp")
_NAMES = {"ttft": "TTFT", "tpot": "TPOT"}


@click.group("anchor")
def anchor_command() -> None:
    """Measure a few runs of your own system and correct its predictions by them, with a band of their own.

    `suggest` says which runs tell most, with the commands; `fit` reads their results into a file; --anchor FILE of
    estimate, explain, simulate, plan, sweep, compare, cost, plot and validate takes it (docs/anchors.md).
    """


@anchor_command.command("suggest")
@deployment_options
@click.option("--runs", type=Count(), default=3, show_default=True, help="How many to measure.")
@click.option(
    "--concurrency", default="1-256*4", show_default=True, metavar="COUNTS", help="Users of a replica asked about."
)
@click.option("--prompt", default="1024,8192", show_default=True, metavar="COUNTS", help="Prompt tokens asked about.")
@click.option(
    "--output", "output_tokens", default="1024", show_default=True, metavar="COUNTS", help="Generated tokens."
)
@click.option(
    "--division", "divisions", multiple=True, metavar="tp=4,ep=4", help="Another division asked about; again for more."
)
@click.option("--checkpoint", help="Repository or path of the weights [MODEL, or the source of its file].")
@report_options
def suggest_command(request: Request, runs: int, divisions: tuple[str, ...], **values: Any) -> Report:
    """Which runs of MODEL to measure: those that leave the least unknown about all loads asked about.

    Each comes with the command of its server and that of the engine's own benchmark client. Loads that the engine does
    not run at once are left out. With --anchor, the next runs beside those in the file.

    Example: inferplan anchor suggest llama-3.1-8b --gpu h100-sxm --concurrency 1-64*4 --prompt 1024,4096
    """
    from inferplan.answers.anchoring import Loads, suggest
    from inferplan.lists import parse_counts

    asked = {"--concurrency": "concurrency", "--prompt": "prompt", "--output": "output_tokens"}
    loads = Loads(*(parse_counts(values[name], option) for option, name in asked.items()))
    requests = [request, *(_divided(request, text) for text in divisions)]
    return _suggested(suggest(requests, loads, runs, values["checkpoint"]))


def _divided(request: Request, text: str) -> Request:
    """The request divided as ``tp=4,ep=4`` says; degrees that it leaves out are 1."""
    degrees: dict[str, Any] = dict.fromkeys(_DEGREES, 1)
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        try:
            if name not in _DEGREES:
                raise ValueError(name)
            degrees[name] = parse_whole(value)
        except ValueError:
            raise UsageError(f"--division {text!r} is no division", hint="tp=4,ep=4") from None
    return replace(request, parallel=replace(request.parallel, **degrees))


def _suggested(found: Suggestion) -> Report:
    rows = [
        [str(n), f"{run.load.users:.0f}", f"{run.load.prompt:.0f}", f"{run.load.output:.0f}", run.division, run.result]
        for n, run in enumerate(found.runs, start=1)
    ]
    columns = ["run", "users", "prompt", "output", "division", "result"]
    table = Table(
        title=f"runs to measure of {found.system.describe()}",
        columns=columns,
        rows=rows,
        right=frozenset({"users", "prompt", "output"}),
    )
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
    beside = f", beside {found.measured} measured runs" if found.measured else ""
    notes += [
        f"then: {found.fit}",
        f"80 % band, mean over {found.loads} loads{beside}: {bands} (docs/anchors.md)",
        *([f"{found.dropped} loads left out: beyond memory, slots or context"] if found.dropped else []),
    ]
    return Report(record=_suggestion_record(found), tables=[table], notes=notes)


def _suggestion_record(found: Suggestion) -> dict[str, Any]:
    return {
        "system": found.system.model_dump(exclude_none=True),
        "runs": [
            {
                "concurrency": round(float(run.load.users)),
                "prompt_tokens": float(run.load.prompt),
                "output_tokens": float(run.load.output),
                **{name: asdict(run.load.parallel)[name] for name in _DEGREES},
                "server": run.server,
                "benchmark": run.benchmark,
                "result": run.result,
                "note": run.note or None,
            }
            for run in found.runs
        ],
        "fit": found.fit,
        "loads": found.loads,
        "loads_left_out": found.dropped,
        "measured_runs": found.measured,
        "band_before": {name: list(band) for name, band in found.before.items()},
        "band_after": {name: list(band) for name, band in found.after.items()},
    }


@anchor_command.command("fit")
@click.argument("files", nargs=-1, required=True, metavar="RESULTS...")
@supplied_options
@click.option("--out", "anchor_file", "-o", required=True, metavar="FILE.yaml", callback=writable, help="Where to.")
@click.option("--calibration", metavar="FILE", help="Fitted constants [those of the GPU].")
@click.option("--ideal", is_flag=True, help="Predict without fitted constants.")
@jobs_option("Processes that simulate runs.")
@click.option("--format", "style", type=click.Choice(["table", "json", "csv", "markdown"]), help="Output format.")
def fit_command(files: tuple[str, ...], anchor_file: str, style: str | None, **values: Any) -> None:
    """Read measured RESULTS of one system and write them as an anchor, for --anchor of the other commands.

    Reads whatever `inferplan validate` reads; the options below fill what a file does not record. Suspect and
    impossible runs, pools and drafts are left out, each with its reason.

    Example: inferplan anchor fit run-1.json run-2.json run-3.json -o own.yaml
    """
    from inferplan.cli.options import write
    from inferplan.reports.validation import above_notes
    from inferplan.validation.anchor import anchor_of, anchor_yaml, require_unopposed
    from inferplan.validation.importers import read_file
    from inferplan.validation.run import Pricing

    supplied = facts_of(values)
    rows = [row for path in files for row in read_file(Path(path), supplied)[1]]
    require_unopposed(rows)
    pricing = Pricing(calibration=values["calibration"], ideal=values["ideal"], processes=values["jobs"])
    scored = priced(rows, pricing)
    found = anchor_of(scored, pricing, ", ".join(files))
    save(anchor_file, anchor_yaml(found.anchor))
    write(_fitted(found, anchor_file, above_notes(scored)), style or "table")


def _clipped(metric: Metric, anchor: Anchor) -> str:
    """How many runs are farther off than counts, and why that is; empty for none."""
    clip = anchor.process.clip
    count = int(np.sum(np.abs(anchor.measured(metric)[1]) > clip))
    if not count:
        return ""
    return (
        f"{_NAMES[metric]} of {count} runs is off by more than x {exp(clip):.2f} and counts as that: look for what the "
        "results do not state, such as slots, the token budget, a prefix cache or another precision"
    )


def _fitted(found: Fitted, path: str, above: Sequence[str]) -> Report:
    from inferplan.validation.anchor import left_over

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
    record = {
        "system": anchor.system.model_dump(exclude_none=True),
        "rows": records,
        "left_out": [{"where": where, "reason": reason} for where, reason in found.left_out],
        "mean_error": {
            m: None if one is None else {"predicted": one[0], "corrected": one[1]} for m, one in crossed.items()
        },
        "file": path,
    }
    return Report(record=record, tables=[table], notes=notes, rows=records)
