"""A speed-up taken apart, as a table for people and records for programs."""

from __future__ import annotations

from inferplan.answers.recipe import Recipe
from inferplan.reports.estimate import IDEAL_NOTE
from inferplan.table import Report, Table
from inferplan.units import format_time

_RIGHT = frozenset({"tokens/s/GPU", "factor", "mean", "range", "TPOT", "factor ", "request", "batch"})


def recipe_report(result: Recipe) -> Report:
    """Every ingredient with its factors."""
    rows = []
    for row in result.rows():
        first = "throughput_factor" not in row
        rows.append(
            [
                row["ingredient"],
                f"{row['output_tokens_per_s_per_device']:,.0f}",
                "" if first else f"x {row['throughput_factor']:.3g}",
                "" if first else f"x {row['shapley_throughput_factor']:.3g}",
                "" if first else f"{row['smallest_throughput_factor']:.3g} to {row['largest_throughput_factor']:.3g}",
                format_time(row["tpot_s"], 3),
                "" if first else f"x {row['tpot_factor']:.3g}",
                format_time(row["e2el_s"], 3),
                f"{row['batch']:,.0f}",
            ]
        )
    last = result.steps()[-1][1]
    load = result.load
    rows.append(["all together", f"{last.rate:,.0f}", f"x {result.total:.3g}", "", "", "", "", "", ""])
    table = Table(
        title=f"{result.base.deployment.model.name} on {result.base.deployment.hardware.name}: {load.users} users, "
        f"{load.prompt:.0f} tokens in, {load.output.average:.0f} out ({load.output.kind})",
        columns=["ingredient", "tokens/s/GPU", "factor", "mean", "range", "TPOT", "factor ", "request", "batch"],
        rows=rows,
        right=_RIGHT,
    )
    notes = [
        "factor: in this order; mean, range: over all orders (Shapley, geometric); request: end to end, with its queue"
    ]
    if result.base.deployment.calibration.basis == "roofline":
        notes.append(IDEAL_NOTE)
    notes += filter(None, [result.base.deployment.calibration.note])
    record = {"baseline": result.baseline, "total_factor": result.total, "steps": result.rows()}
    return Report(record=record, tables=[table], notes=notes, rows=result.rows())
