"""``inferplan compare``."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import click

from inferplan.answers.compare import METRICS, Comparison, compare
from inferplan.catalog.assemble import Request, assemble
from inferplan.cli.media_options import media_options
from inferplan.cli.options import deployment_options, load_options, report_options, usual_engines
from inferplan.errors import InferplanError, UnknownNameError, UsageError
from inferplan.estimate.deployment import Deployment
from inferplan.estimate.load import StaticLoad
from inferplan.reports.estimate import IDEAL_NOTE, media_note
from inferplan.table import Report, Table
from inferplan.units import format_bytes, format_time


@click.command("compare")
@deployment_options
@click.option("--vs", "others", multiple=True, metavar="KEY=VALUE,...", help="Another candidate: what it changes.")
@load_options
@media_options
@report_options
def compare_command(request: Request, others: tuple[str, ...], load: StaticLoad) -> Report:
    """Models, GPUs, formats or parallelism side by side: ratios to the first, and the resource that explains each.

    MODEL, --gpu and --quant take comma lists: every combination is a candidate, the first is the baseline. --vs adds
    one that changes several things at once: --vs "gpu=h200-sxm,quant=fp8,tp=2".

    Example: inferplan compare llama-3.1-8b --gpu a100-80gb-sxm,h100-sxm,h200-sxm --batch 16
    """
    requests = _requests(request, others)
    changes = ("",) * (len(requests) - len(others)) + others
    alike = [one for one, change in zip(requests, changes) if "engine=" not in change]
    usual_engines(request.engine, [one.model for one in alike], [one.gpu for one in alike])
    labels = _labels(requests)
    deployments: list[Deployment | InferplanError] = []
    for one in requests:
        try:
            deployments.append(assemble(one))
        except UnknownNameError:  # a misspelt name is an error here, not a candidate without figures
            raise
        except InferplanError as error:
            deployments.append(error)
    return _report(compare(deployments, labels, load))


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _requests(request: Request, others: tuple[str, ...]) -> list[Request]:
    quants: list[str | None] = [*_split(request.quant)] or [None]
    grid = itertools.product(_split(request.model), _split(request.gpu), quants)
    requests = [replace(request, model=model, gpu=gpu, quant=quant) for model, gpu, quant in grid]
    return requests + [_change(requests[0], text) for text in others]


def _change(request: Request, text: str) -> Request:
    degrees = {"tp", "pp", "ep", "dp", "cp", "replicas", "redundant"}
    names = {"model", "gpu", "quant", "engine"}
    for part in _split(text):
        key, _, value = part.partition("=")
        if key in degrees and value.isdigit():
            degree: dict[str, Any] = {key: int(value)}
            request = replace(request, parallel=replace(request.parallel, **degree))
        elif key in names and value:
            changed: dict[str, Any] = {key: value}
            request = replace(request, **changed)
        else:
            raise UsageError(
                f"--vs {part!r} changes nothing known", hint=f"one of {', '.join(sorted(names | degrees))}"
            )
    return request


def _labels(requests: list[Request]) -> list[str]:
    """What tells the candidates apart, and no more."""
    columns = [
        [one.model for one in requests],
        [one.gpu for one in requests],
        [one.quant or "native" for one in requests],
        [one.parallel.describe() for one in requests],
        [one.engine for one in requests],
    ]
    told = [column for column in columns if len(set(column)) > 1] or columns[:2]
    return [" ".join(parts) for parts in zip(*told)]


def _show(name: str, value: float) -> str:
    if name.endswith("_s") and "per_s" not in name:
        return format_time(value)
    return format_bytes(value) if "bytes" in name else f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _report(result: Comparison) -> Report:
    labels = [candidate.label for candidate in result.candidates]
    rows = []
    known = {name for candidate in result.candidates for name in candidate.metrics()}
    for name, title in METRICS.items():
        if name not in known:
            continue
        cells = []
        for candidate in result.candidates:
            metrics = candidate.metrics()
            if name not in metrics:
                cells.append("-")
                continue
            ratio = result.ratios(candidate).get(name)
            same = candidate is result.baseline or ratio is None
            cells.append(_show(name, metrics[name]) + ("" if same else f" ({ratio:.3g}x)"))
        rows.append([title, *cells])
    load = next((c.estimate.load for c in result.candidates if c.estimate is not None), result.load)
    out = f", {load.output:.0f} out" if "output_tokens_per_s" in known else ""
    title = f"batch {load.batch:.0f}, {load.prompt - load.media_tokens:.0f} tokens in{out}; ratios to {labels[0]}"
    figures = Table(title=title, columns=["", *labels], rows=rows, right=frozenset(labels))
    why = Table(
        title="why",
        columns=["candidate", "what moved"],
        rows=[[candidate.label, result.why(candidate)] for candidate in result.candidates],
    )
    bases = {c.estimate.basis for c in result.candidates if c.estimate is not None}
    notes = [IDEAL_NOTE] if bases == {"roofline"} else [f"basis: {', '.join(sorted(bases)) or 'none'}"]
    notes += dict.fromkeys(
        c.estimate.deployment.engine.note for c in result.candidates if c.estimate and c.estimate.deployment.engine.note
    )
    notes += dict.fromkeys(
        c.estimate.deployment.calibration.note
        for c in result.candidates
        if c.estimate and c.estimate.deployment.calibration.note
    )
    carried = {media_note(c.estimate.deployment): None for c in result.candidates if c.estimate is not None}
    notes += [note for note in carried if note]
    said = {c.label: c.estimate.deployment.warnings for c in result.candidates if c.estimate is not None}
    notes += [f"note: {label}: {text}" for label, texts in said.items() for text in texts]
    record = {"model_notes": said, "baseline": result.baseline.label, "candidates": result.rows()}
    return Report(record=record, tables=[figures, why], notes=notes, rows=result.rows())
