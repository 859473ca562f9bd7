"""The account of a calibration: one Markdown file, and one HTML file that holds its figures and needs nothing else."""

from __future__ import annotations

import html
import io
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibrate.fit import Measurement
from calibrate.session.fitting import Outcome, pooled_errors
from calibrate.session.steps import StepRow, step_rows
from inferplan.devices.hardware import HardwareSpec
from inferplan.table import Report, Table, render
from inferplan.units import format_quantity, format_time

Draw = Callable[[Any, Outcome], None]


def markdown(outcome: Outcome) -> str:
    """Provenance, ceilings, held-out errors, constants, whole models, and what was refused."""
    title = f"# Calibration of {outcome.calibration.provenance['device']['name']}\n\n"
    return title + render(Report(record={}, tables=tables(outcome), notes=notes(outcome)), "markdown")


def webpage(outcome: Outcome) -> str:
    """The same with its figures drawn in."""
    name = html.escape(outcome.calibration.provenance["device"]["name"])
    figures = "".join(
        f"<figure>{svg}<figcaption>{html.escape(text)}</figcaption></figure>" for text, svg in drawn(outcome)
    )
    body = "".join(_table(table) for table in tables(outcome))
    rest = "".join(f"<p>{html.escape(note)}</p>" for note in notes(outcome))
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}"
        "table{border-collapse:collapse;margin:0 0 2rem}td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd}"
        "th{text-align:left}.r{text-align:right}figure{margin:0 0 2rem}svg{max-width:100%;height:auto}"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Calibration of {name}</title>'
        f"<style>{style}</style><h1>Calibration of {name}</h1>{body}{figures}{rest}</html>\n"
    )


def _table(table: Table) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        marks = [' class="r"' if column in table.right else "" for column in table.columns]
        return "".join(f"<{tag}{mark}>{html.escape(cell)}</{tag}>" for cell, mark in zip(row, marks))

    rows = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)
    return f"<h2>{html.escape(table.title)}</h2><table><tr>{cells(table.columns, 'th')}</tr>{rows}</table>"


def percent(share: float) -> str:
    """A share as a percentage with one decimal."""
    return f"{100 * share:.1f} %"


def notes(outcome: Outcome) -> list[str]:
    """What a reader must know beside the tables."""
    facts = outcome.calibration.provenance
    said = [
        f"Measured {facts['date']} with {', '.join(f'{k} {v}' for k, v in facts['device']['software'].items())}: "
        f"{facts['shapes']} shapes, {facts['samples']} visits. Errors are predicted over measured, on shapes that the "
        "fit never saw. Nothing is fitted to whole models."
    ]
    said += [
        f"{name}, all formats: median {percent(off)} over {n} held-out shapes."
        for name, (off, n) in pooled_errors(outcome).items()
    ]
    said += disturbances(facts)
    said += [f"Refused: {what}: {why}." for what, why in facts["refused"].items()]
    said += [f"Failed: {what}: {why}." for what, why in facts["failed"].items()]
    return said


def disturbances(facts: dict[str, Any]) -> list[str]:
    """How many shapes other programs disturbed, by what became of them."""
    left_out, used = facts["shapes_disturbed"], facts["shapes_disturbed_used"]
    said = [f"{left_out} shapes are left out: other programs disturbed all visits but one."] if left_out else []
    if used:
        said.append(
            f"{used} of {facts['shapes']} shapes count although other programs disturbed all visits but one, for lack "
            "of others of their kernels: on a quieter machine, or with a longer --budget, the constants are better."
        )
    return said


def tables(outcome: Outcome) -> list[Table]:
    """Ceilings, held-out errors, constants, and whole models where there are any."""
    made = [_ceilings(outcome), held_out_table(outcome), _constants(outcome)]
    rows = step_rows(outcome)
    return [*made, whole_table(rows)] if rows else made


def _ceilings(outcome: Outcome) -> Table:
    hardware, rows = outcome.hardware, []
    for name, rate in sorted(outcome.session.ceilings.items()):
        stated = _stated(hardware, name)
        unit = "FLOP/s" if name.startswith("matmul.") else "B/s"
        share = percent(rate / stated) if stated else "-"
        rows.append([name, format_quantity(rate, unit), format_quantity(stated, unit) if stated else "-", share])
    columns = ["ceiling", "measured", "stated", "reached"]
    return Table(title="Ceilings", columns=columns, rows=rows, right=frozenset(columns[1:]))


def _stated(hardware: HardwareSpec, name: str) -> float | None:
    if name in ("copy", "read"):
        return hardware.memory.bandwidth
    return hardware.peak.get(name.removeprefix("matmul.")) if name.startswith("matmul.") else None


def held_out_table(outcome: Outcome) -> Table:
    """Errors on shapes that the fit never saw."""
    rows = []
    for kernel, formats in outcome.calibration.held_out.items():
        for label, figures in formats.items():
            fitted = outcome.calibration.constants[kernel][label].n
            errors = [percent(figures[name]) for name in ("median", "mape", "p90", "worst", "bias")]
            rows.append([kernel, label, str(fitted), str(figures["n"]), *errors, figures["worst_shape"]])
    columns = ["kernel", "format", "fitted", "held out", "median", "MAPE", "p90", "worst", "bias", "worst shape"]
    return Table(title="Held-out error", columns=columns, rows=rows, right=frozenset(columns[2:9]))


def _constants(outcome: Outcome) -> Table:
    rows = []
    for kernel, formats in outcome.calibration.constants.items():
        for label, fit in formats.items():
            terms = ", ".join(f"{name} {value:.3g}" for name, value in fit.terms.items()) or "-"
            shares = [
                f"{fit.math:.3f}",
                f"{fit.memory:.3f}",
                format_time(fit.overhead if fit.overhead > 1e-9 else 0.0, 3),
                f"{fit.sharpness:g}",
            ]
            rows.append([kernel, label, *shares, terms])
    columns = ["kernel", "format", "math", "memory", "overhead", "sharpness", "further terms"]
    return Table(title="Constants", columns=columns, rows=rows, right=frozenset(columns[2:6]))


def whole_table(rows: Sequence[StepRow]) -> Table:
    """TTFT (prefill) and TPOT (decode) of whole models, predicted and measured."""
    cells = []
    for row in rows:
        step = row.step
        prefill = step.new > 1
        cells.append(
            [
                f"{step.model} ({step.layers} layers)",
                "TTFT" if prefill else "TPOT",
                step.mode,
                str(step.batch),
                str(step.new if prefill else step.past + 1),
                format_time(row.measured, 4),
                format_time(row.predicted, 4),
                f"{100 * row.off:+.1f} %{' *' if row.disturbed else ''}",
                percent(row.uncalibrated),
            ]
        )
    calm = [row for row in rows if not row.disturbed]
    mape = percent(float(np.mean([abs(row.off) for row in calm or rows])))
    columns = ["model", "figure", "mode", "batch", "context", "measured", "predicted", "off", "without constants"]
    star = f"; *: other programs disturbed every repeat, {len(rows) - len(calm)} rows" if len(calm) < len(rows) else ""
    title = f"Whole models, none fitted (MAPE {mape}{star})"
    return Table(title=title, columns=columns, rows=cells, right=frozenset(columns[3:]))


def drawn(outcome: Outcome) -> list[tuple[str, str]]:
    """The figures, as captions and SVG."""
    return [
        (
            "Predicted against measured; the line is agreement. Hollow: shapes the fit never saw.",
            _figure(_scatter, outcome),
        ),
        (
            "The roofline, with what was measured on it. Lines: the stated or measured ceilings.",
            _figure(_roofline, outcome),
        ),
        ("Residuals by size: predicted over measured. Hollow: shapes the fit never saw.", _figure(_residuals, outcome)),
    ]


def _figure(draw: Draw, outcome: Outcome) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "inferplan", "font.size": 9}):
        figure = Figure(figsize=(9, 5), layout="constrained")
        axes = figure.subplots()
        draw(axes, outcome)
        axes.grid(True, alpha=0.25)
        axes.legend(fontsize=7, ncols=2)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _by_kernel(outcome: Outcome) -> dict[str, list[tuple[Measurement, bool]]]:
    """Measurements by kernel, each with whether the fit saw it."""
    groups: dict[str, list[tuple[Measurement, bool]]] = defaultdict(list)
    for rows, seen in ((outcome.train, True), (outcome.test, False)):
        for measured in rows:
            groups[measured.op.kernel].append((measured, seen))
    return dict(sorted(groups.items()))


def _points(axes: Any, outcome: Outcome, place: Callable[[Measurement, float], tuple[float, float]]) -> None:
    for index, (kernel, rows) in enumerate(_by_kernel(outcome).items()):
        colour = f"C{index % 10}"
        for seen in (True, False):
            at = [place(m, outcome.predicted(m.op)) for m, was_seen in rows if was_seen is seen]
            if at:
                axes.scatter(
                    *zip(*at),
                    s=14,
                    linewidths=0.9,
                    marker="o" if index < 10 else "^",
                    edgecolors=colour,
                    facecolors=colour if seen else "none",
                    label=kernel if seen else None,
                )


def _scatter(axes: Any, outcome: Outcome) -> None:
    _points(axes, outcome, lambda measured, predicted: (measured.seconds, predicted))
    ends = [min(m.seconds for m in outcome.train), max(m.seconds for m in outcome.train)]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured [s]", ylabel="predicted [s]")


def _residuals(axes: Any, outcome: Outcome) -> None:
    _points(axes, outcome, lambda measured, predicted: (measured.seconds, predicted / measured.seconds))
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured [s]", ylabel="predicted/measured")


def _roofline(axes: Any, outcome: Outcome) -> None:
    def place(measured: Measurement, predicted: float) -> tuple[float, float]:
        work = measured.op.work()
        return float(work.flop) / max(float(work.bytes), 1.0), float(work.flop) / measured.seconds

    def arithmetic(rows: list[Measurement]) -> list[Measurement]:
        return [measured for measured in rows if float(measured.op.work().flop) > 0]

    only = replace(outcome, train=arithmetic(outcome.train), test=arithmetic(outcome.test))
    _points(axes, only, place)
    hardware = outcome.hardware
    intensity = np.geomspace(0.05, 5000, 200)
    for name, peak in hardware.peak.items():
        axes.plot(
            intensity, np.minimum(peak, intensity * hardware.memory.bandwidth), linewidth=0.9, label=f"{name} roof"
        )
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="FLOP/s")
