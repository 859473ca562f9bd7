"""A static batch with structured decoding as people and programs read it."""

from __future__ import annotations

from dataclasses import replace

from inferplan.estimate.phase import host_seconds
from inferplan.estimate.structured import StructuredEstimate, mask_filling, masks_record
from inferplan.figures import Figure, lines, record
from inferplan.reports.estimate import estimate_report, server_record
from inferplan.table import Report
from inferplan.units import format_bytes, format_time


def structured_figures(estimate: StructuredEstimate, compiling: float | None) -> list[Figure]:
    """What masks take of a mean decode step."""
    steps, batch = estimate.steps, int(estimate.load.batch)
    masks = round(batch * estimate.structured.share) or 1
    forward = float(estimate.decode.time - host_seconds(estimate.deployment, float(batch)))
    engine = estimate.deployment.engine
    fill = estimate.structured.fill(masks, mask_filling(engine))
    added = float(estimate.tpot - estimate.plain_tpot) if estimate.load.output > 1 else None
    server = server_record(estimate)["ttft_at_server_s"]
    first = None if compiling is None or server is None else float(server) + compiling
    return [
        *(Figure(name, value) for name, value in masks_record(estimate.structured, engine).items()),
        Figure("masks", masks, "masks per step, about", lambda count: f"{count:,} of {format_bytes(steps.mask_bytes)}"),
        Figure("mask_bytes", steps.mask_bytes),
        Figure("forward_s", forward, "forward pass", format_time),
        Figure("fill_s", fill, "masks filled in", format_time),
        Figure("copy_s", float(steps.copied(float(masks))), "masks copied in", format_time),
        Figure("apply_s", float(steps.applied(float(masks))), "logits masked in", format_time),
        Figure("added_s", added, "added to TPOT, mean", format_time, seen=added is not None),
        Figure("grammar_compile_s", compiling),
        Figure(
            "ttft_at_server_first_use_s",
            first,
            "TTFT at the server, first use of a schema",
            format_time,
            seen=first is not None,
        ),
    ]


def masked_report(estimate: StructuredEstimate, compiling: float | None) -> Report:
    """The report of the batch, and what its masks take."""
    report, figures = estimate_report(estimate), structured_figures(estimate, compiling)
    table = lines("structured decoding", figures, "mean decode step")
    note = "TTFT at the server excludes masks"
    return replace(
        report,
        record={**report.record, "structured": record(figures)},
        tables=[report.tables[0], table, *report.tables[1:]],
        notes=[*report.notes, note, estimate.structured.rests_on(mask_filling(estimate.deployment.engine))],
    )
