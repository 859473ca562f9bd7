"""The account of a calibration: one Markdown file, and one HTML file that holds its figures and needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrate.device.device import HOST_WAYS
from calibrate.session.figures import kernel_figures, svg, whole_figure
from calibrate.session.fitting import Outcome, pooled_errors, unwritten_of
from calibrate.session.steps import StepErrors, StepRow, errors_of, step_rows, unpriced
from inferplan.devices.constants import StepConstants
from inferplan.devices.hardware import HardwareSpec
from inferplan.table import Report, Table, render
from inferplan.units import format_quantity, format_time

SCALE = 40
"""Characters of the picture in a table."""
UNCALIBRATED = 5e-4
"""Share of a step's time from which it is said that no constants price it."""
MEASURED, PREDICTED, BOTH = "o", "|", "@"


def markdown(outcome: Outcome, picture: str = "") -> str:
    """Whole models first, then ceilings, held-out errors and constants; provenance, and what was refused.

    picture: the file name of the picture of whole models beside it; none without.
    """
    title = f"# Calibration of {outcome.calibration.provenance['device']['name']}\n\n"
    rows = step_rows(outcome)
    seen = f"![Whole models: predicted and measured]({picture})\n\n" if picture and rows else ""
    said = opening(outcome, rows)
    first = title + (f"{said}\n\n" if said else "") + seen
    return first + render(Report(record={}, tables=tables(outcome, rows), notes=notes(outcome)), "markdown")


def webpage(outcome: Outcome) -> str:
    """The same with its figures drawn in."""
    name = html.escape(outcome.calibration.provenance["device"]["name"])
    rows = step_rows(outcome)
    first, *others = (_table(table) for table in tables(outcome, rows))
    said = opening(outcome, rows)
    top = f"<p><strong>{html.escape(said)}</strong></p>" if said else ""
    drawn = f"<figure>{svg(whole_figure(rows, outcome))}</figure>" if rows else ""
    first = top + drawn + first
    body = "".join([first, *others, *(_figure(*figure) for figure in kernel_figures(outcome))])
    rest = "".join(f"<p>{html.escape(note)}</p>" for note in notes(outcome))
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}"
        "table{border-collapse:collapse;margin:0 0 2rem}td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd}"
        "th{text-align:left}.r{text-align:right}figure{margin:0 0 2rem}svg{max-width:100%;height:auto}"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Calibration of {name}</title>'
        f"<style>{style}</style><h1>Calibration of {name}</h1>{body}{rest}</html>\n"
    )


def _figure(caption: str, drawn: str) -> str:
    return f"<figure>{drawn}<figcaption>{html.escape(caption)}</figcaption></figure>"


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
    said += [f"{name}, all formats: {pooled.describe()}." for name, pooled in pooled_errors(outcome).items()]
    said += legend(step_rows(outcome))
    step = outcome.calibration.step
    if step != StepConstants():
        said.append(
            f"Beside its operators a step takes {format_time(step.host, 3)}, and each layer "
            f"{format_time(step.layer, 3)}: views, splits and Python, measured on a model too thin to compute anything."
        )
    said += state_of(facts["device"])
    said += disturbances(facts)
    said += shortfalls(facts)
    said += [f"Whole models of {name} were timed and have no price: {why}." for name, why in unpriced(outcome).items()]
    said += [f"Refused: {what}: {why}." for what, why in facts["refused"].items()]
    said += [f"Failed: {what}: {why}." for what, why in facts["failed"].items()]
    return said


def shortfalls(facts: dict[str, Any]) -> list[str]:
    """What is not written and why, what measured peaks are, and how far shapes of a model are off that nothing is
    fitted to."""
    said = [f"Not written: {what}: {why}." for what, why in facts["not_written"].items()]
    said += facts.get("hardware", {}).get("notes", [])
    strange = facts.get("held_out_model")
    if strange and strange["shapes"]:
        rest = unwritten_of(strange["unwritten"], strange["unfitted"])
        said.append(
            f"Shapes of {strange['model']}, of which none was fitted: median {percent(strange['median'])}, "
            f"MAPE {percent(strange['mape'])} over {strange['shapes']}{rest}."
        )
    elif strange and strange["unfitted"]:
        said.append(f"All {strange['unfitted']} shapes of {strange['model']}, held out whole, have no constants.")
    elif strange:
        said.append(f"No shape of {strange['model']}, which is held out whole, was measured in time.")
    return said


def state_of(device: dict[str, Any]) -> list[str]:
    """How an accelerator was set and at which clock it ran, in one line; none for a CPU."""
    told = device.get("state") or {}
    return [f"The device: {', '.join(f'{name}: {value}' for name, value in told.items())}."] if told else []


def disturbances(facts: dict[str, Any]) -> list[str]:
    """How many shapes other programs disturbed, by what became of them."""
    left_out, used = facts["shapes_disturbed_left_out"], facts["shapes_disturbed_used"]
    said = [f"{facts['visits_disturbed']} of {facts['samples']} visits were disturbed."] if left_out or used else []
    are = "shape is" if left_out == 1 else "shapes are"
    said += [f"{left_out} {are} left out: other programs disturbed all visits, or all but one."] if left_out else []
    if used:
        said.append(
            f"{used} of {facts['shapes']} shapes count although other programs disturbed all visits, or all but one, "
            "for lack of others of their kernels: on a quieter machine, or with a longer --budget, the constants are "
            "better."
        )
    return said


def tables(outcome: Outcome, rows: Sequence[StepRow]) -> list[Table]:
    """Whole models where there are any; then ceilings, held-out errors, constants."""
    kernels = [_ceilings(outcome), held_out_table(outcome), _constants(outcome)]
    return [whole_table(rows), *kernels] if rows else kernels


def _ceilings(outcome: Outcome) -> Table:
    """Beside the catalogue's peaks, else beside those that are used instead: at least what operators reached."""
    hardware, rows, listed = outcome.hardware, [], outcome.new_hardware is None
    for name, rate in sorted(outcome.session.ceilings.items()):
        stated = _stated(hardware, name)
        unit = "FLOP/s" if name.startswith("matmul.") else "B/s"
        share = [percent(rate / stated) if stated else "-"] if listed else []
        rows.append([name, format_quantity(rate, unit), format_quantity(stated, unit) if stated else "-", *share])
    columns = ["ceiling", "measured", *(["stated", "reached"] if listed else ["peak that is used"])]
    return Table(title="Ceilings", columns=columns, rows=rows, right=frozenset(columns[1:]))


def _stated(hardware: HardwareSpec, name: str) -> float | None:
    if name in ("copy", "read"):
        return hardware.memory.bandwidth
    if name in HOST_WAYS:
        return hardware.to_host.bandwidth if hardware.host_link is not None else None
    return hardware.peak.get(name.removeprefix("matmul.")) if name.startswith("matmul.") else None


def held_out_table(outcome: Outcome) -> Table:
    """Errors on shapes that the fit never saw."""
    rows = []
    for kernel, formats in outcome.calibration.held_out.items():
        for label, figures in formats.items():
            fitted = outcome.calibration.constants[kernel][label].n
            counts = [str(fitted), str(figures["n"])]
            apart = [f"{figures[name]:.3g}" for name in ("mean_factor", "p90_factor")]
            errors = [percent(figures[name]) for name in ("median", "worst", "bias")]
            band = f"{figures['low']:.3g} to {figures['high']:.3g}"
            rows.append([kernel, label, *counts, *apart, *errors, band, figures["worst_shape"]])
    figures = ["mean factor", "p90 factor", "median", "worst", "bias", "80 % band"]
    columns = ["kernel", "format", "fitted", "held out", *figures, "worst shape"]
    return Table(title="Held-out error", columns=columns, rows=rows, right=frozenset(columns[2:10]))


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


def legend(rows: Sequence[StepRow]) -> list[str]:
    """What the last column of the table of whole models is, where it has one."""
    if not any(row.uncalibrated >= UNCALIBRATED for row in rows):
        return []
    return [
        "Without constants: the share of a predicted time whose kernels have none (not measured, or not written), so "
        "that the ceilings alone price them."
    ]


def opening(outcome: Outcome, rows: Sequence[StepRow]) -> str:
    """The first line: how far whole models are off, or that none was timed; empty where some were and have no price."""
    if rows or not unpriced(outcome):
        return headline(rows) if rows else f"{headline(rows)} A --budget under a minute is for operators only."
    return ""


def headline(rows: Sequence[StepRow]) -> str:
    """How far whole models are off, in one line: of all steps, and of those that nothing disturbed where some were; and
    of those whose work has constants, where some has none."""
    return _all_and_calm(rows) + _lower_bounds(rows)


def _lower_bounds(rows: Sequence[StepRow]) -> str:
    bare, others = [row for row in rows if row.bare], errors_of([row for row in rows if not row.bare])
    if not bare:
        return ""
    kernels = ", ".join(sorted({kernel for row in bare for kernel in row.bare}))
    rest = f"; the other {others.steps}: {_off(others)}" if others else ""
    return f" {len(bare)} of them are lower bounds (>), as nothing but the ceilings prices {kernels}{rest}."


def _all_and_calm(rows: Sequence[StepRow]) -> str:
    every, calm = errors_of(rows), errors_of([row for row in rows if not row.disturbed])
    if every is None:
        return "No step of a whole model was measured."
    parts = [
        f"{name} {percent(found.mean)}"
        for name, own in (("TTFT", [r for r in rows if r.prefill]), ("TPOT", [r for r in rows if not r.prefill]))
        if (found := errors_of(own))
    ]
    whole = f"whole models, {every.steps} steps, nothing fitted to them: {_off(every)} ({', '.join(parts)})"
    if calm is None:
        return f"Disturbed: {whole}; other work disturbed every one of them, so that these figures say little."
    if calm.steps == every.steps:
        return f"{whole[0].upper()}{whole[1:]}; none was disturbed."
    return (
        f"{whole[0].upper()}{whole[1:]}; over the {calm.steps} of {every.steps} that nothing disturbed: {_off(calm)}."
    )


def _off(errors: StepErrors) -> str:
    return f"mean error {percent(errors.mean)}, bias {100 * errors.bias:+.1f} %"


def whole_table(rows: Sequence[StepRow], picture: bool = False) -> Table:
    """TTFT (prefill) and TPOT (decode) of whole models, measured and predicted; picture: with both on a time axis."""
    columns = ["model", "figure", "batch", "length", "mode", "measured", "predicted", "error"]
    uncalibrated = any(row.uncalibrated >= UNCALIBRATED for row in rows)
    cells = []
    for row in rows:
        marks = " *" if row.disturbed else ""
        own = [
            f"{row.step.model} ({row.step.layers} layers)",
            "TTFT" if row.prefill else "TPOT",
            str(row.step.batch),
            str(row.length),
            row.step.mode,
            format_time(row.measured, 4),
            f"{'> ' if row.bare else ''}{format_time(row.predicted, 4)}",
            f"{100 * row.off:+.1f} %{marks}",
        ]
        cells.append(own + ([percent(row.uncalibrated)] if uncalibrated else []))
    columns += ["without constants"] if uncalibrated else []
    if picture:
        scale, drawn = drawn_rows(rows)
        columns, cells = [*columns, scale], [[*own, line] for own, line in zip(cells, drawn)]
    disturbed = sum(row.disturbed for row in rows)
    star = f" (*: other work disturbed every repeat, {disturbed} of {len(rows)} steps)" if disturbed else ""
    title = f"Whole models: predicted and measured{star}"
    return Table(title=title, columns=columns, rows=cells, right=frozenset(columns[2:4] + columns[5:9]) - {"picture"})


def drawn_rows(rows: Sequence[StepRow]) -> tuple[str, list[str]]:
    """Measured and predicted times on one logarithmic axis of characters: its heading, and a line for each step.

    ``o`` is measured, ``|`` predicted, ``@`` both in one place; the dashes between them are the error.
    """
    times = [t for row in rows for t in (row.measured, row.predicted)]
    low, high = np.log(min(times)), np.log(max(times) * 1.0001)

    def place(seconds: float) -> int:
        return round(float((np.log(seconds) - low) / (high - low)) * (SCALE - 1))

    lines = []
    for row in rows:
        measured, predicted = place(row.measured), place(row.predicted)
        between = range(min(measured, predicted), max(measured, predicted))
        line = ["-" if at in between else "." for at in range(SCALE)]
        line[measured], line[predicted] = MEASURED, PREDICTED
        if measured == predicted:
            line[measured] = BOTH
        lines.append("".join(line))
    left, right = format_time(min(times), 2), format_time(max(times), 2)
    said = f"{MEASURED} measured, {PREDICTED} predicted"
    return f"{left} {said.center(SCALE - len(left) - len(right) - 2)} {right}", lines
