"""A static batch with structured decoding as people and programs read it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inferplan.estimate.phase import host_seconds
from inferplan.estimate.structured import StructuredEstimate, mask_filling
from inferplan.reports.estimate import estimate_report, server_record
from inferplan.table import Report, Table
from inferplan.units import format_bytes, format_time


def structured_record(estimate: StructuredEstimate, compiling: float | None) -> dict[str, Any]:
    """What masks take of a mean decode step; units are in the keys."""
    steps, batch = estimate.steps, int(estimate.load.batch)
    masks = round(batch * estimate.structured.share) or 1
    forward = float(estimate.decode.time - host_seconds(estimate.deployment, float(batch)))
    server = server_record(estimate)["ttft_at_server_s"]
    return {
        **estimate.structured.to_dict(),
        "masks": masks,
        "mask_bytes": steps.mask_bytes,
        "forward_s": forward,
        "fill_s": estimate.structured.fill(masks, mask_filling(estimate.deployment.engine)),
        "copy_s": float(steps.copied(float(masks))),
        "apply_s": float(steps.applied(float(masks))),
        "added_s": float(estimate.tpot - estimate.plain_tpot) if estimate.load.output > 1 else None,
        "grammar_compile_s": compiling,
        "ttft_at_server_first_use_s": None if compiling is None or server is None else float(server) + compiling,
    }


def masked_report(estimate: StructuredEstimate, compiling: float | None) -> Report:
    """The report of the batch, and what its masks take."""
    report, found = estimate_report(estimate), structured_record(estimate, compiling)
    rows = [
        ["masks of a step, about", f"{found['masks']:,} of {format_bytes(found['mask_bytes'])}"],
        ["forward pass", format_time(found["forward_s"])],
        ["masks filled in", format_time(found["fill_s"])],
        ["masks copied in", format_time(found["copy_s"])],
        ["logits masked in", format_time(found["apply_s"])],
    ]
    if found["added_s"] is not None:
        rows.append(["added to TPOT, mean", format_time(found["added_s"])])
    if found["ttft_at_server_first_use_s"] is not None:
        rows.append(["TTFT at the server, first use of a schema", format_time(found["ttft_at_server_first_use_s"])])
    columns = ["mean decode step", "value"]
    table = Table(title="structured decoding", columns=columns, rows=rows, right=frozenset(columns[1:]))
    note = "TTFT at the server has no masks in it; error bands are those of plain steps"
    return replace(
        report,
        record={**report.record, "structured": found},
        tables=[report.tables[0], table, *report.tables[1:]],
        notes=[*report.notes, note],
    )
