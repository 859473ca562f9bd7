"""Scores as a report: the table people read, the JSON contract, the CSV of rows, the scatter plot."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from inferplan.figures import Figure, record, side_by_side, text
from inferplan.table import Report, Table
from inferplan.validation.files import Validation
from inferplan.validation.predict import Prediction
from inferplan.validation.rows import SHOWN_LIMIT, run_record
from inferplan.validation.run import prediction_cells
from inferplan.validation.score import GROUPS, METRICS, NAMES, Score, Scored, by, score, statistics
from inferplan.validation.startup_logs import Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


_SLOW = 1.5
"""Measured over predicted beyond which a line says where to look."""


def clean(scored: Sequence[Scored]) -> list[Scored]:
    """Rows that are not marked suspect."""
    return [one for one in scored if not one.suspect]


def files_report(found: Validation, each: bool = False) -> Report:
    """What files say beside the predictions; each: list every row, not only those of a few."""
    if not found.logs:
        return validation_report(found.scored, found.title, per_row=each or len(found.scored) <= 12)
    reports = [log_report(log.lines, f"{log.path}: memory of {log.described}") for log in found.logs]
    if len(reports) == 1:
        return reports[0]
    record = {"logs": [{"file": log.path, **report.record} for log, report in zip(found.logs, reports)]}
    return Report(record=record, tables=[table for report in reports for table in report.tables])


def validation_report(scored: Sequence[Scored], title: str, per_row: bool = False) -> Report:
    """Everything about a set of rows."""
    plain = clean(scored)
    sets = (
        [("all rows", scored)] if len(plain) == len(scored) else [("without suspect rows", plain), ("all rows", scored)]
    )
    record: dict[str, Any] = {
        "rows": len(scored),
        "answered": sum(one.prediction is not None for one in scored),
        "refused": [{"row": one.row.where, "reason": one.refused} for one in scored if one.prediction is None],
        "faster_than_light": [
            {"row": one.row.where, "metrics": list(one.impossible)} for one in scored if one.impossible
        ],
        "above_uncertain_peaks": [
            {"row": one.row.where, "metrics": list(one.above_uncertain)} for one in scored if one.above_uncertain
        ],
        "scores": {
            name: {metric: found.record() for metric in METRICS if (found := score(rows, metric))}
            for name, rows in sets
        },
        "statistics": {
            name: {metric: {which: found.record() for which, found in statistics(rows, metric)} for metric in NAMES}
            for name, rows in sets
        },
        "by": {
            group: {
                metric: {name: value.record() for name, value in by(plain, key, metric).items()} for metric in METRICS
            }
            for group, key in GROUPS.items()
        },
    }
    tables = [_overall(sets, title), *_groups(plain)]
    if per_row:
        tables.append(side_by_side("rows", [_row(one) for one in scored]))
    return Report(record=record, tables=tables, notes=_notes(scored), rows=[row_record(one) for one in scored])


def _score(found: Score) -> list[Figure]:
    return [
        text("rows", str(found.n)),
        Figure("", found.mape, "MAPE", ".1%"),
        Figure("", found.median, "median", ".1%"),
        Figure("", found.p90, "p90", ".1%"),
        Figure("", found.bias, "bias", "+.1%"),
        Figure("", found.coverage, "in the 80 % band", ".0%", absent="unknown"),
    ]


def _overall(sets: Sequence[tuple[str, Sequence[Scored]]], title: str) -> Table:
    """Every figure that rows measured; a latency with its statistics where it has more than one."""
    rows = []
    for metric, title_of in NAMES.items():
        for name, members in sets:
            found = statistics(members, metric)
            for which, value in found:
                said = f"{title_of}{f' {which}' if len(found) > 1 else ''}, {name}"
                rows.append([text("predicted against measured", said, left=True), *_score(value)])
    return side_by_side(title, rows)


def _groups(scored: Sequence[Scored]) -> list[Table]:
    tables = []
    for group, key in GROUPS.items():
        rows = [
            [text(group, name, left=True), text("", NAMES[metric], left=True), *_score(value)]
            for metric in ("ttft", "tpot")
            for name, value in by(scored, key, metric).items()
        ]
        if len({row[0].shown for row in rows}) > 1:
            tables.append(side_by_side(f"by {group}", rows))
    return tables


_UNITS = {
    "ttft": "_s",
    "tpot": "_s",
    "e2el": "_s",
    "rate": "_tokens_per_s",
    "throughput": "_tokens_per_s_per_gpu",
    "output": "_output_tokens_per_s_per_gpu",
    "power": "_w",
    "energy": "_j_per_output_token",
}


def row_record(one: Scored) -> dict[str, Any]:
    """One row as JSON: what was run, measured and predicted, in seconds, with the bands."""
    found, measured = one.prediction, one.row.measured
    record: dict[str, Any] = {"row": one.row.where, "run": run_record(one.row.run) if one.row.run else None}
    for metric, unit in _UNITS.items():
        record[metric] = {
            f"measured{unit}": measured.at(metric),
            f"predicted{unit}": found.at(metric) if found else None,
            **_ends(found, metric, None, unit),
            "error": one.error(metric),
        }
        if len(others := [which for name, which in measured.figures if name == metric]) > 1:
            record[metric]["statistics"] = {
                which: {
                    f"measured{unit}": measured.at(metric, which),
                    f"predicted{unit}": found.at(metric, which) if found else None,
                    **_ends(found, metric, which, unit),
                    "error": one.error(metric, which),
                }
                for which in others
            }
    record["statistic"] = measured.statistic
    record |= {"refused": one.refused or None, "faster_than_light": list(one.impossible)}
    record["above_uncertain_peaks"] = list(one.above_uncertain)
    return record | {"basis": found.basis if found else None, "notes": list(found.notes) if found else []}


def _ends(found: Prediction | None, metric: str, statistic: str | None, unit: str) -> dict[str, float | None]:
    """The band of a figure, in SI units; of no width where none is known."""
    low, high = (None if found is None else found.band(metric, statistic)) or (None, None)
    return {f"low{unit}": low, f"high{unit}": high}


def _row(one: Scored) -> list[Figure]:
    """A row for people: measured and predicted latencies, or why there is no prediction."""
    cells, measured = prediction_cells(one), one.row.measured
    said = one.refused or ("impossible" if one.impossible else "above peaks" if one.above_uncertain else "")
    return [
        text("row", one.row.where, left=True),
        Figure("", measured.ttft, "TTFT ms", lambda seconds: f"{seconds * 1e3:,.1f}", absent=""),
        text("predicted", cells["ttft_predicted_ms"]),
        Figure("", one.error("ttft"), "error", "+.1%", absent=""),
        Figure("", measured.tpot, "TPOT ms", lambda seconds: f"{seconds * 1e3:,.2f}", absent=""),
        text("predicted ", cells["tpot_predicted_ms"]),
        Figure("", one.error("tpot"), "error ", "+.1%", absent=""),
        text("", said, left=True),
    ]


def _notes(scored: Sequence[Scored]) -> list[str]:
    refused = Counter(one.refused for one in scored if one.prediction is None)
    notes = [f"answered: {sum(one.prediction is not None for one in scored)} of {len(scored)} rows"]
    for reason, count in refused.most_common(SHOWN_LIMIT):
        notes.append(f"refused: {count} {'row' if count == 1 else 'rows'}: {reason}")
    if len(refused) > SHOWN_LIMIT:
        notes.append(f"refused: {len(refused) - SHOWN_LIMIT} further reasons; --rows FILE.csv lists all")
    fast = [one for one in scored if one.impossible]
    if fast:
        shown = ", ".join(one.row.where for one in fast[:SHOWN_LIMIT])
        notes.append(
            f"physically impossible (faster than a perfect device, more than memory holds): {len(fast)} rows "
            f"({shown}{', ...' if len(fast) > SHOWN_LIMIT else ''}); they count in the score, but not in a fit"
        )
    notes += _ratio_notes(scored)
    notes += above_notes(scored)
    notes += prediction_notes(scored)
    bases = Counter(one.prediction.basis for one in scored if one.prediction)
    notes.append("basis: " + ", ".join(f"{name} {count}" for name, count in bases.most_common()))
    return notes


def _ratio_notes(scored: Sequence[Scored]) -> list[str]:
    """How many times as long as predicted the measured latencies are, and where to look if that is much; empty without
    a row that was answered."""
    found = {metric: [1 / (1 + e) for one in scored if (e := one.error(metric)) is not None] for metric in METRICS}
    times = {metric: median(ratios) for metric, ratios in found.items() if ratios}
    if not times:
        return []
    said = ", ".join(f"{metric.upper()} {value:.3g} times" for metric, value in times.items())
    notes = [f"measured over predicted, median: {said}"]
    if max(times.values()) > _SLOW:
        notes.append(
            "much slower than predicted: compare the server's release, flags and GPUs with those stated; inferplan "
            "learn reads its log or /metrics and says which part of a step takes longer (docs/learn.md)"
        )
    return notes


def prediction_notes(scored: Sequence[Scored]) -> list[str]:
    """What was taken instead of what rows say, the most frequent first."""
    told = Counter(note for one in scored if one.prediction for note in one.prediction.notes)
    return [
        f"note on {count:,} row{'' if count == 1 else 's'}: {note}" for note, count in told.most_common(SHOWN_LIMIT)
    ]


def above_notes(scored: Sequence[Scored]) -> list[str]:
    """One line where rows are faster than peaks that were measured or that little is known of; empty elsewhere."""
    above = [one for one in scored if one.above_uncertain]
    if not above:
        return []
    shown = ", ".join(one.row.where for one in above[:SHOWN_LIMIT])
    devices = ", ".join(sorted({one.row.run.gpu for one in above if one.row.run}))
    return [
        f"peaks of {devices} are measured lower bounds, or of low confidence: {len(above)} rows ({shown}"
        f"{', ...' if len(above) > SHOWN_LIMIT else ''}) are faster than a device of these peaks; the rows count"
    ]


def rows_csv(scored: Sequence[Scored]) -> str:
    """The input's columns in the input's order, then the predictions and the reason of a refusal."""
    columns = list(dict.fromkeys(name for one in scored for name in one.row.cells))
    added = [name for name in ("ttft_predicted_ms", "tpot_predicted_ms", "refused") if name not in columns]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [*columns, *added], restval="", lineterminator="\n")
    writer.writeheader()
    for one in scored:
        writer.writerow({**one.row.cells, **prediction_cells(one)})
    return buffer.getvalue()


def log_report(lines: Sequence[Line], title: str) -> Report:
    """Predicted against logged memory."""
    found = [_line(line) for line in lines]
    rows = [record(row) for row in found]
    return Report(record={"lines": rows}, tables=[side_by_side(title, found)], rows=rows)


def _line(line: Line) -> list[Figure]:
    return [
        Figure("name", line.name, "", left=True),
        Figure("unit", line.unit),
        Figure("logged", line.logged, "logged", lambda value: _quantity(value, line.unit)),
        Figure("predicted", line.predicted, "predicted", lambda value: _quantity(value, line.unit)),
        Figure("error", line.error, "error", "+.1%"),
    ]


def _quantity(value: float, unit: str) -> str:
    return f"{value / 2**30:,.2f} GiB" if unit == "bytes" else f"{value:,.2f} {unit}"


def scatter(scored: Sequence[Scored], title: str) -> Picture:
    """Predicted over measured, TTFT and TPOT, one colour a model; the diagonal and a quarter off it."""
    from inferplan.reports.plots import COLOURS, INK, MARKERS, new_figure

    figure = new_figure(figsize=(10.0, 5.0), layout="constrained")
    figure.patch.set_alpha(0.0)
    for place, metric in enumerate(("ttft", "tpot"), start=1):
        axes = figure.add_subplot(1, 2, place)
        points = [one for one in clean(scored) if one.error(metric) is not None]
        models = sorted({one.row.run.model for one in points if one.row.run})
        for index, model in enumerate(models):
            mine = [one for one in points if one.row.run and one.row.run.model == model]
            x = [(one.row.measured.at(metric) or 0.0) * 1e3 for one in mine]
            y = [(one.prediction.at(metric) or 0.0) * 1e3 for one in mine if one.prediction]
            style: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
            axes.scatter(x, y, s=12, alpha=0.6, label=model, linewidths=0, **style)
        if points:
            values = [(one.row.measured.at(metric) or 0.0) * 1e3 for one in points]
            ends = [min(values), max(values)]
            axes.plot(ends, ends, color=INK, linewidth=1)
            for factor in (0.75, 1.25):
                axes.plot(ends, [end * factor for end in ends], color=INK, linewidth=0.7, linestyle=":")
        axes.patch.set_alpha(0.0)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(f"measured {NAMES[metric]} (ms)")
        axes.set_ylabel(f"predicted {NAMES[metric]} (ms)")
        if place == 1:
            axes.legend(fontsize=7, frameon=False)
    figure.suptitle(title)
    return figure
