"""Deployments side by side, as tables for people and records for programs."""

from __future__ import annotations

from inferplan.answers.compare import METRICS, Comparison
from inferplan.reports.estimate import IDEAL_NOTE, band_note, media_note
from inferplan.table import Report, Table
from inferplan.units import format_bytes, format_time


def _show(name: str, value: float) -> str:
    if name.endswith("_s") and "per_s" not in name:
        return format_time(value)
    return format_bytes(value) if "bytes" in name else f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def comparison_report(result: Comparison) -> Report:
    """Figures of every candidate, their ratios to the first, and what moved."""
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
    if any(candidate.kept[0] != 1.0 and candidate.estimate for candidate in result.candidates):
        rows.append(["quality kept", *(candidate.kept[1] for candidate in result.candidates)])
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
    notes += [] if bases == {"roofline"} else _errors(result)
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
    models = {c.label: c.estimate.deployment.model for c in result.candidates if c.estimate is not None}
    notes += dict.fromkeys(f"{model.name}: {model.made_from.line}" for model in models.values())
    said = {c.label: c.estimate.deployment.warnings for c in result.candidates if c.estimate is not None}
    notes += [f"note: {label}: {text}" for label, texts in said.items() for text in texts]
    record = {
        "model_counts": {label: model.made_from.to_dict() for label, model in models.items()},
        "model_notes": said,
        "baseline": result.baseline.label,
        "candidates": result.rows(),
    }
    return Report(record=record, tables=[figures, why], notes=notes, rows=result.rows())


def _errors(result: Comparison) -> list[str]:
    """The error of each candidate, those with the same together; and of engines that nobody measured their ratio."""
    estimates = {c.label: c.estimate for c in result.candidates if c.estimate is not None}
    said: dict[str, list[str]] = {}
    for label, estimate in estimates.items():
        said.setdefault(band_note(estimate), []).append(label)
    lines = [f"error of {', '.join(labels)}: {text.removeprefix('error: ')}" for text, labels in said.items()]
    engines = dict.fromkeys(one.deployment.engine.describe() for one in estimates.values())
    if len({one.deployment.engine.name for one in estimates.values()}) > 1:
        lines.append(
            f"no ranking of {', '.join(engines)} within these errors: no ratio of two engines was measured here"
        )
    return lines
