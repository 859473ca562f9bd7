"""What a server's record makes of its model's step: factors, errors on both blocks, and what was passed over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inferplan.figures import Figure, record, side_by_side, text
from inferplan.learning.document import factor_rows
from inferplan.learning.factors import FACTORS
from inferplan.learning.fit import Errors, Learned
from inferplan.learning.observed import Recorded
from inferplan.table import Report
from inferplan.units import format_time


def learned_report(found: Learned, records: Sequence[Recorded], path: str | None) -> Report:
    """The factors, each with how sure it is; the errors as on file and as learned; where the file is."""
    factors = [_factor(row) for row in factor_rows(found)]
    blocks = {"fitted": found.fitted, "held_out": found.held_out}
    errors = [_errors(name, *pair) for name, pair in blocks.items()]
    passed = [(one.kind, why, count) for one in records for why, count in one.passed_over.items()]
    notes = [f"read: {one.kind}, {len(one.observed):,} measurements of steps" for one in records]
    notes += [f"passed over: {count:,} {why} ({kind})" for kind, why, count in passed]
    notes += [f"{name}: as on file, because no step holds {FACTORS[name].what}" for name in found.absent]
    notes.append(
        f"use it with --calibration {path}" if path else "not written: --out own.yaml writes it, for --calibration"
    )
    whole = {
        "factors": [record(row) for row in factors],
        "errors": [record(row) for row in errors],
        "as_on_file": list(found.absent),
        "passed_over": [{"record": kind, "reason": why, "count": count} for kind, why, count in passed],
        "file": path,
    }
    tables = [
        side_by_side(f"steps of {found.deployment.describe()}", factors),
        side_by_side("measured against predicted steps", errors),
    ]
    return Report(record=whole, tables=tables, notes=notes, rows=[record(row) for row in factors])


def _factor(row: dict[str, Any]) -> list[Figure]:
    def shown(value: float) -> str:
        return format_time(value) if row["unit"] == "s" else f"x {value:.3f}"

    sure = row["standard_error"]
    return [
        Figure("factor", row["factor"], "factor", left=True),
        Figure("unit", row["unit"]),
        Figure("on_file", row["on_file"], "on file", shown),
        Figure("learned", row["learned"], "learned", shown),
        Figure("standard_error", sure, "+-", format_time if row["unit"] == "s" else ".3f"),
        text("of", FACTORS[row["factor"]].what, left=True),
    ]


def _errors(name: str, before: Errors, after: Errors) -> list[Figure]:
    return [
        Figure("block", name, "block", left=True, text=name.replace("_", " ")),
        Figure("steps", after.steps, "measurements", ",d"),
        Figure("mean_error_on_file", before.mean, "error on file", ".1%"),
        Figure("bias_on_file", before.bias, "bias", "+.1%"),
        Figure("mean_error", after.mean, "error learned", ".1%"),
        Figure("bias", after.bias, "bias of it", "+.1%"),
    ]
