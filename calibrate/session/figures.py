"""The pictures of a calibration: whole models over length and batch, and kernels against their roofline."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrate.device.whole_models import GRAPH
from calibrate.fit import Measurement
from calibrate.samples import StepSample
from calibrate.session.fitting import Outcome
from calibrate.session.steps import Predictions, StepRow
from inferplan.reports.plots import COLOURS, MARKERS

Draw = Callable[[Any, Outcome], None]
Price = Callable[[StepSample], float]
"""From a step to its predicted seconds."""
POINTS = 17
"""Loads at which a predicted line is computed."""
CAPTION = "Lines: predicted. Points: measured (hollow: eager beside graphs; crossed: disturbed in every repeat)."


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel of the picture of whole models: TTFT over prompt length, or TPOT over batch."""

    prefill: bool

    @property
    def title(self) -> str:
        return "TTFT (prefill)" if self.prefill else "TPOT (decode)"

    @property
    def axis(self) -> str:
        return "prompt length [tokens]" if self.prefill else "batch [sequences]"

    def x(self, row: StepRow) -> float:
        """Where a step stands on the axis."""
        return float(row.length if self.prefill else row.step.batch)

    def series(self, row: StepRow) -> tuple[int, str]:
        """What a line holds fixed: the batch of a prefill or the context of a decode, and how it is launched."""
        return (row.step.batch if self.prefill else row.length), row.step.mode

    def label(self, fixed: int, mode: str) -> str:
        return f"{'batch' if self.prefill else 'context'} {fixed:,}, {mode}"

    def moved(self, step: StepSample, x: float) -> StepSample:
        """The step at another place of the axis."""
        return replace(step, new=round(x)) if self.prefill else replace(step, batch=round(x))


def whole_models(rows: Sequence[StepRow], price: Price, of: str = "") -> Any:
    """A matplotlib figure with a row for each model: TTFT over prompt length, TPOT over batch; of: device and day."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys((row.step.model, row.step.layers) for row in rows))
    figure = Figure(figsize=(11.5, 0.7 + 3.6 * len(names)), layout="constrained", facecolor="white")
    figure.suptitle(f"{of}\n{CAPTION}" if of else CAPTION, fontsize=10)
    grid = figure.subplots(len(names), 2, squeeze=False)
    for (name, layers), pair in zip(names, grid):
        for axes, panel in zip(pair, (Panel(prefill=True), Panel(prefill=False))):
            own = [row for row in rows if row.step.model == name and row.prefill == panel.prefill]
            axes.set_title(f"{name} ({layers} layers): {panel.title}", fontsize=10, loc="left")
            _panel(axes, panel, own, price)
    return figure


def _panel(axes: Any, panel: Panel, rows: Sequence[StepRow], price: Price) -> None:
    if not rows:
        axes.text(0.5, 0.5, "not measured", ha="center", transform=axes.transAxes)
        return
    places = [panel.x(row) for row in rows]
    grid = np.unique(np.round(np.geomspace(min(places), max(places), POINTS)))
    fixed = sorted({panel.series(row)[0] for row in rows})
    for series in sorted({panel.series(row) for row in rows}):
        own = [row for row in rows if panel.series(row) == series]
        index, graph = fixed.index(series[0]), series[1] == GRAPH
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        line = "--" if not graph and any(row.step.mode == GRAPH for row in rows) else "-"
        label = panel.label(*series)
        if len(grid) > 1:
            lined = [price(panel.moved(own[0].step, x)) for x in grid]
            axes.plot(grid, lined, line, color=colour, linewidth=1.3)
        axes.plot(
            [panel.x(row) for row in own],
            [row.measured for row in own],
            linestyle="none",
            marker=marker,
            color=colour,
            markerfacecolor=colour if graph or line == "-" else "white",
            markersize=6,
            label=label,
        )
        crossed = [row for row in own if row.disturbed]
        if crossed:
            at = [panel.x(row) for row in crossed], [row.measured for row in crossed]
            axes.plot(*at, linestyle="none", marker="x", color="black", markersize=9, markeredgewidth=1.1)
    _dressed(axes, panel, places)


def _dressed(axes: Any, panel: Panel, places: Sequence[float]) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter, NullLocator

    axes.set(xscale="log", yscale="log", xlabel=panel.axis, ylabel=panel.title.split()[0])
    axes.set_xticks(sorted(set(places)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    low, high = axes.get_ylim()
    wide = (1.0, 2.0, 3.0, 5.0) if high / low < 30 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=tuple(map(float, range(1, 10))) if high / low < 4 else wide))
    axes.yaxis.set_major_formatter(EngFormatter(unit="s"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="both", labelsize=8)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=8, loc="best")


def kernel_figures(outcome: Outcome) -> list[tuple[str, str]]:
    """The figures of kernels, as captions and SVG."""
    drawn = [
        ("Predicted against measured; the line is agreement. Hollow: shapes the fit never saw.", _scatter),
        ("The roofline, with what was measured on it. Lines: the stated or measured ceilings.", _roofline),
        ("Residuals by size: predicted over measured. Hollow: shapes the fit never saw.", _residuals),
    ]
    return [(caption, _kernels(draw, outcome)) for caption, draw in drawn]


def whole_figure(rows: Sequence[StepRow], outcome: Outcome) -> Any:
    """:func:`whole_models` of a run, under the device and the day."""
    facts = outcome.calibration.provenance
    of = f"{facts['device']['name']}, {facts['date'][:10]}"
    return whole_models(rows, Predictions(outcome).seconds, of)


def svg(figure: Any) -> str:
    """A figure as SVG that can stand in an HTML page; the same figure gives the same text."""
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "inferplan"}):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def png(figure: Any) -> bytes:
    """A figure as a PNG of 140 dots an inch."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    return buffer.getvalue()


def _kernels(draw: Draw, outcome: Outcome) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.size": 9}):
        figure = Figure(figsize=(9, 5), layout="constrained")
        axes = figure.subplots()
        draw(axes, outcome)
        axes.grid(True, alpha=0.25)
        axes.legend(fontsize=7, ncols=2)
        return svg(figure)


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
