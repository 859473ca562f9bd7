"""Pictures of results. Every function takes values and gives a matplotlib ``Figure``; :func:`save` writes it.

The background is transparent and the text is a grey with a contrast of 4.5 on white and on black; series differ in
colour (Okabe and Ito's palette, safe for colour-blind readers) and in marker or dash.
"""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from inferplan import files
from inferplan.errors import UsageError
from inferplan.estimate.batch import Estimate
from inferplan.estimate.memory import Footprint
from inferplan.estimate.phase import Phase
from inferplan.estimate.roofline import OpCost
from inferplan.extras import require
from inferplan.models.spec import ModelSpec
from inferplan.units import format_bytes, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#767676"
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7")
MARKERS = ("o", "^", "s", "D", "v", "P")
DASHES = ("-", "--", "-.", ":")
SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One named line of a plot."""

    label: str
    x: npt.ArrayLike
    y: npt.ArrayLike
    notes: Sequence[str] = ()
    """A short text for each point."""


def new_figure(**options: Any) -> Figure:
    """An empty matplotlib ``Figure``; ``options`` are its own. Raises ``MissingExtraError`` without matplotlib."""
    require("plot", "drawing")
    return _picture()(**options)


@functools.cache
def _picture() -> type[Figure]:
    """A matplotlib ``Figure`` that a notebook shows also where nobody has asked for matplotlib's own way of that."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            return render_figure(self, "png", dpi=100)

    return Picture


def require_picture(path: str) -> str:
    """The form of a picture that a path names. Raises ``UsageError`` for a suffix that names none."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"cannot draw into {path}", hint=f"a suffix of {', '.join(SUFFIXES)}")
    return suffix.removeprefix(".")


def save(figure: Figure, path: str) -> None:
    """Write a figure as PNG, SVG or PDF, by suffix. Raises ``InputFileError`` when it cannot be written."""
    files.save(path, render_figure(figure, require_picture(path), dpi=160))


def drawn(figure: Figure) -> list[tuple[object, ...]]:
    """What a figure shows, part by part, to compare with another: points of lines, corners of areas, words."""
    from matplotlib.collections import Collection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.text import Text

    found: list[tuple[object, ...]] = []
    for part in figure.findobj():
        if isinstance(part, Text):
            found.append(("text", part.get_text(), *map(float, part.get_position())))
        elif isinstance(part, Line2D):
            found.append(("line", _points(part.get_xydata())))
        elif isinstance(part, Patch):
            found.append(("area", _points(part.get_patch_transform().transform_path(part.get_path()).vertices)))
        elif isinstance(part, Collection):
            corners = [_points(path.vertices) for path in part.get_paths()]
            found.append(("areas", _points(part.get_offsets()), *corners))
    return found


def _points(points: Any) -> bytes:
    """Points of a drawing, to compare."""
    return np.asarray(points, dtype=np.float64).tobytes()


def render_figure(figure: Figure, form: str, dpi: int) -> bytes:
    """A figure as a picture of a form such as ``png``."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # letters that the font has not: they are boxes in the picture
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure.savefig(buffer, format=form, dpi=dpi, bbox_inches="tight", transparent=True)
    return buffer.getvalue()


def svg(figure: Figure) -> str:
    """A figure as SVG text without its XML header, to stand inside HTML."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _axes(title: str, size: tuple[float, float] = (7.2, 4.4)) -> tuple[Figure, Axes]:
    figure = new_figure(figsize=size)
    axes = figure.add_subplot()
    axes.set_title("\n".join(wrap(title, 84)), color=INK, fontsize=10, loc="left")
    axes.patch.set_alpha(0.0)
    for spine in axes.spines.values():
        spine.set_color(INK)
    axes.spines["top"].set_visible(False)
    axes.spines["right"].set_visible(False)
    axes.tick_params(which="both", colors=INK, labelsize=9)
    axes.grid(True, color=INK, alpha=0.2, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _name(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, color=INK, fontsize=10)
    axes.set_ylabel(y, color=INK, fontsize=10)


def _legend(axes: Axes, **where: Any) -> None:
    axes.legend(frameon=False, labelcolor=INK, fontsize=9, **where)


def _figure_at(axes: Axes, text: str, point: tuple[float, float], **where: Any) -> None:
    """A figure beside its point."""
    axes.annotate(text, point, textcoords="offset points", fontsize=9, color=INK, **where)


def _quantity(axis: Any, unit: str) -> None:
    from matplotlib.ticker import EngFormatter

    axis.set_major_formatter(EngFormatter(unit=unit))


def _plain_numbers(axis: Any) -> None:
    """300 and 1,000 on a log axis, not powers of ten; single steps are named where the axis spans little."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    low, high = axis.get_view_interval()
    written = FuncFormatter(lambda value, _: f"{value:,.4g}")
    axis.set_major_formatter(written)
    axis.set_minor_locator(LogLocator(subs=(2, 3, 5, 7) if high / low < 100 else (2, 5)))
    axis.set_minor_formatter(written)


def roofline_figure(result: Estimate) -> Figure:
    """Operators of both phases under the roof: filled where they are achieved, hollow where they could be."""
    deployment = result.deployment
    hardware = deployment.hardware
    title = f"{deployment.describe()}: batch {float(np.max(result.load.batch)):.0f}, one device"
    figure, axes = _axes(title, (7.2, 4.8))
    maths = sorted({cost.op.math for phase in (result.prefill, result.decode) for cost in phase.costs if cost.op.math})
    points = [_point(cost) for phase in (result.prefill, result.decode) for cost in _matmuls(phase)]
    low = min([x for x, _ in points] + [1.0]) / 2
    high = max([x for x, _ in points] + [hardware.peak_of(m) / hardware.memory.bandwidth for m in maths]) * 4
    intensity = np.geomspace(low, high, 200)
    for index, math in enumerate(maths):
        roof = np.minimum(hardware.peak_of(math), intensity * hardware.memory.bandwidth)
        axes.plot(intensity, roof, color=INK, linestyle=DASHES[index % 4], linewidth=1.4, label=f"roof, {math}")
    for index, (name, phase) in enumerate((("prefill", result.prefill), ("decode", result.decode))):
        _scatter(axes, name, phase, index)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _quantity(axes.yaxis, "FLOP/s")
    _name(axes, "arithmetic intensity [FLOP/B]", "performance of one device")
    hollow: dict[str, Any] = {"marker": "s", "markerfacecolor": "none", "linestyle": "none", "color": INK}
    axes.plot([], [], label="hollow: attainable, filled: achieved", **hollow)
    _legend(axes, loc="lower right")
    return figure


def _matmuls(phase: Phase) -> list[OpCost]:
    """The operators with FLOP that take at least 1 % of the phase."""
    whole = sum(float(np.max(cost.total)) for cost in phase.costs) or 1.0
    return [
        cost for cost in phase.costs if float(np.max(cost.work.flop)) > 0 and float(np.max(cost.total)) >= 0.01 * whole
    ]


def _point(cost: OpCost) -> tuple[float, float]:
    return float(np.max(cost.intensity)), float(np.max(cost.work.flop / cost.time))


def _scatter(axes: Axes, name: str, phase: Phase, index: int) -> None:
    hardware = phase.deployment.hardware
    costs = _matmuls(phase)
    colour = COLOURS[index]
    named: dict[tuple[float, float], list[str]] = {}
    for number, cost in enumerate(costs):
        x, y = _point(cost)
        peak = hardware.peak_of(cost.op.math) if cost.op.math else float("inf")
        roof = min(peak, x * hardware.memory.bandwidth)
        axes.plot([x, x], [y, roof], color=colour, linewidth=0.7, alpha=0.6)
        axes.plot([x], [roof], marker=MARKERS[index], color=colour, markerfacecolor="none", linestyle="none")
        label = name if number == 0 else None
        axes.plot([x], [y], marker=MARKERS[index], color=colour, linestyle="none", label=label)
        near = next((key for key in named if abs(np.log(key[0] / x)) < 1.2 and abs(np.log(key[1] / y)) < 0.5), (x, y))
        short = cost.op.name.removesuffix(".core")
        if short not in named.setdefault(near, []):
            named[near].append(short)
    for (x, y), names in named.items():
        side = (6, -11) if index == 0 else (6, -3)
        text = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        axes.annotate(text, (x, y), xytext=side, textcoords="offset points", fontsize=7, color=INK)


def memory_stack(footprints: Mapping[str, Footprint]) -> Figure:
    """Where the memory of the fullest device goes, one bar a deployment; the tick is what a program can use."""
    figure, axes = _axes("memory of one device", (7.2, 1.4 + 0.55 * len(footprints)))
    labels = list(footprints)
    parts = ("weights", "KV cache and state", "activations", "runtime reserve")
    left = np.zeros(len(labels))
    for index, part in enumerate(parts):
        sizes = np.array([_parts(footprint)[part] for footprint in footprints.values()]) / 1e9
        axes.barh(labels, sizes, left=left, color=COLOURS[index], label=part, height=0.6, edgecolor=INK, linewidth=0.4)
        left = left + sizes
    for row, footprint in enumerate(footprints.values()):
        usable = footprint.usable / 1e9
        axes.plot([usable, usable], [row - 0.38, row + 0.38], color=COLOURS[3], linewidth=2)
        axes.annotate(
            f"{format_bytes(footprint.usable)} usable",
            (usable, row - 0.38),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=7,
            color=INK,
            ha="right",
            va="bottom",
        )
    axes.invert_yaxis()
    axes.set_axisbelow(True)
    axes.set_xlim(0, max(float(np.max(left)), *(f.usable / 1e9 for f in footprints.values())) * 1.05)
    _name(axes, "GB", "")
    _legend(axes, loc="upper center", bbox_to_anchor=(0.45, -0.32 / (0.6 + 0.3 * len(labels))), ncols=4)
    return figure


def _parts(footprint: Footprint) -> dict[str, float]:
    return {
        "weights": footprint.weights,
        "KV cache and state": float(np.max(footprint.state)),
        "activations": float(np.max(footprint.activations)),
        "runtime reserve": footprint.reserve,
    }


def time_by_operator(result: Estimate, most: int = 12) -> Figure:
    """Seconds by operator in both phases, the largest first."""
    phases = {"prefill": result.prefill.by_operator(), "decode step": result.decode.by_operator()}
    names = sorted(
        {name for operators in phases.values() for name in operators},
        key=lambda name: -max(_share(operators, name) for operators in phases.values()),
    )[:most]
    names = [name for name in names if max(_share(operators, name) for operators in phases.values()) >= 0.005]
    figure, axes = _axes(f"{result.deployment.describe()}: time by operator", (7.2, 1.4 + 0.34 * len(names)))
    height = 0.38
    for index, (phase, operators) in enumerate(phases.items()):
        whole = float(sum(operators.values()))
        shares = [100 * _share(operators, name) for name in names]
        rows = np.arange(len(names)) + (index - 0.5) * height
        label = f"{phase}, {format_time(whole)}"
        hatch = "" if index == 0 else "///"
        axes.barh(
            rows, shares, height=height, color=COLOURS[index], label=label, hatch=hatch, edgecolor=INK, linewidth=0.4
        )
    axes.set_yticks(np.arange(len(names)), names)
    axes.invert_yaxis()
    _name(axes, "share of the step [%]", "")
    _legend(axes, loc="lower right")
    return figure


def _share(operators: Mapping[str, Any], name: str) -> float:
    return float(operators.get(name, 0.0)) / float(sum(operators.values()))


def kv_context(models: Sequence[ModelSpec], width: float = 2.0, longest: int | None = None) -> Figure:
    """Bytes that one sequence keeps, against its context, by architecture; the line ends at the model's limit."""
    figure, axes = _axes(f"KV cache and state of one sequence ({width:g} B per element)")
    for index, model in enumerate(models):
        end = min(longest or 2**31, model.max_context or longest or 131072)
        tokens = np.unique(np.round(np.geomspace(min(128, end), end, 160)))
        size = np.zeros_like(tokens)
        for cache, count in model.caches():
            state = cache.state * (width if cache.state_bits is None else cache.state_bits / 8)
            size = size + count * (cache.token_bytes(width) * cache.mask.cached(tokens) + state)
        style: dict[str, Any] = {"color": COLOURS[index % 6], "linestyle": DASHES[(index // 6 + index) % 4]}
        axes.plot(tokens, size, label=model.name, linewidth=1.8, **style)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_yscale("log")
    _quantity(axes.yaxis, "B")
    _name(axes, "context [tokens]", "bytes per sequence")
    _legend(axes, loc="upper left")
    return figure


def tradeoff(curves: Sequence[Curve], title: str, slo: float | None = None) -> Figure:
    """Latency against throughput: time per output token [s] over tokens a second and device; the SLO as a line."""
    figure, axes = _axes(title)
    _draw(axes, curves, scale=1e3)
    if slo is not None:
        axes.axhline(slo * 1e3, color=COLOURS[3], linestyle="--", linewidth=1.2, label=f"SLO {format_time(slo)}")
    axes.set_ylim(bottom=0)
    _name(axes, "output tokens per second per device", "time per output token [ms]")
    _legend(axes, loc="upper left")
    return figure


def against_rate(curves: Sequence[Curve], title: str, slo: float | None = None) -> Figure:
    """Time to first token [s] against the request rate; the SLO as a line."""
    figure, axes = _axes(title)
    _draw(axes, curves, scale=1e3)
    if slo is not None:
        axes.axhline(slo * 1e3, color=COLOURS[3], linestyle="--", linewidth=1.2, label=f"SLO {format_time(slo)}")
    axes.set_yscale("log")
    _plain_numbers(axes.yaxis)
    _name(axes, "requests per second", "time to first token [ms]")
    _legend(axes, loc="upper left")
    return figure


def against_load(curve: Curve, limit: float, names: tuple[str, str]) -> Figure:
    """Simulated latencies [s] at some loads, each with its figure, and their limit. names: of load and latency."""
    figure, axes = _axes("", (7.2, 3.0))
    x, y = np.asarray(curve.x, dtype=float), np.asarray(curve.y, dtype=float) * 1e3
    axes.plot(x, y, color=COLOURS[0], marker="o", markersize=6, linewidth=1.6, label=curve.label)
    for load, value in zip(x, y):
        _figure_at(axes, format_time(value / 1e3, 3), (load, value), ha="center", xytext=(0, 7))
    axes.axhline(limit * 1e3, color=COLOURS[3], linestyle="--", linewidth=1.4, label=f"limit {format_time(limit, 3)}")
    axes.set_ylim(0, 1.18 * max(limit * 1e3, float(np.max(y, initial=0.0))))
    axes.margins(x=0.08)
    _name(axes, names[0], f"{names[1]} [ms]")
    _legend(axes, loc="lower right")
    return figure


def steps(
    line: tuple[npt.ArrayLike, npt.ArrayLike],
    marked: Sequence[tuple[float, float]],
    level: float,
    names: tuple[str, str],
) -> Figure:
    """A count that grows by steps, with some of its points and a level across. names: of both axes."""
    require("plot", "drawing")
    from matplotlib.ticker import MaxNLocator

    figure, axes = _axes("", (7.2, 2.8))
    axes.step(*line, where="post", color=COLOURS[0], linewidth=1.6)
    axes.plot(*zip(*marked), color=COLOURS[0], marker="o", markersize=6, linestyle="none")
    for x, y in marked:
        _figure_at(axes, f"{y:g}", (x, y), ha="center", xytext=(0, 7))
    axes.axhline(level, color=COLOURS[3], linestyle="--", linewidth=1.4, label=f"the plan: {level:g}")
    axes.set_ylim(0, 1.25 * max(level, *(y for _, y in marked)))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _name(axes, *names)
    _legend(axes, loc="lower right")
    return figure


def bars(values: Sequence[tuple[str, float]], unit: str, first: int = 0) -> Figure:
    """One bar a value with its figure, in the order given; the one at place ``first`` is the one that counts."""
    figure, axes = _axes("", (7.2, 0.9 + 0.42 * len(values)))
    names, sizes = [f"{name} " for name, _ in values], [size for _, size in values]
    colours = [COLOURS[0] if place == first else COLOURS[4] for place in range(len(values))]
    places = np.arange(len(values))
    axes.barh(places, sizes, color=colours, height=0.62, edgecolor=INK, linewidth=0.4)
    axes.set_yticks(places, names)
    for row, size in enumerate(sizes):
        _figure_at(axes, f"{size:,.0f}", (size, row), va="center", xytext=(5, 0))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * max(sizes))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(visible=False, axis="y")
    _name(axes, unit, "")
    return figure


def frontier_figure(points: Sequence[Curve], chosen: tuple[float, float] | None, title: str) -> Figure:
    """Tokens a second and device against tokens a second and user; one series a GPU, the chosen plan ringed."""
    figure, axes = _axes(title)
    for index, curve in enumerate(points):
        style: dict[str, Any] = {
            "color": COLOURS[index % 6],
            "marker": MARKERS[index % 6],
            "linestyle": DASHES[index % 4],
        }
        every = max(np.size(curve.x) // 12, 1)
        x, y = np.asarray(curve.x), np.asarray(curve.y)
        axes.plot(x, y, label=curve.label, markersize=5, markevery=every, linewidth=1.4, **style)
    if chosen is not None:
        ring: dict[str, Any] = {
            "marker": "o",
            "markersize": 14,
            "markerfacecolor": "none",
            "markeredgewidth": 2,
            "linestyle": "none",
        }
        axes.plot([chosen[0]], [chosen[1]], color=COLOURS[3], label="the plan", **ring)
    axes.set_ylim(bottom=0)
    _name(axes, "output tokens/s per user", "output tokens/s per device")
    _legend(axes, loc="upper right")
    return figure


def _draw(axes: Axes, curves: Sequence[Curve], scale: float) -> None:
    for index, curve in enumerate(curves):
        style: dict[str, Any] = {
            "color": COLOURS[index % 6],
            "marker": MARKERS[index % 6],
            "linestyle": DASHES[index % 4],
        }
        x, y = np.asarray(curve.x, dtype=float), np.asarray(curve.y, dtype=float) * scale
        axes.plot(x, y, label=curve.label, markersize=5, markevery=max(x.size // 12, 1), linewidth=1.4, **style)
        for px, py, note in zip(x, y, curve.notes):
            axes.annotate(note, (px, py), xytext=(4, -9), textcoords="offset points", fontsize=7, color=INK)


def waterfall(steps: Sequence[tuple[str, float]], title: str, unit: str) -> Figure:
    """Cumulative factors: a bar from each level to the next, on a log scale, with the factor of each step."""
    figure, axes = _axes(title, (7.2, 1.4 + 0.42 * len(steps)))
    before = 1.0
    for row, (_, level) in enumerate(steps):
        if row == 0:
            axes.barh([row], [level - 0.0], left=0.0, color=INK, height=0.55)
            before = level
            continue
        low, high = sorted((before, level))
        colour = COLOURS[0] if level >= before else COLOURS[3]
        axes.barh(
            [row], [max(high - low, 1e-9 * high)], left=low, color=colour, height=0.55, edgecolor=INK, linewidth=0.4
        )
        axes.plot([before, before], [row - 1.28, row + 0.28], color=INK, linewidth=0.7)
        factor = level / before
        axes.annotate(f"x {factor:.3g}", (high, row), xytext=(4, -3), textcoords="offset points", fontsize=8, color=INK)
        before = level
    axes.set_yticks(range(len(steps)), [name for name, _ in steps])
    axes.invert_yaxis()
    levels = [level for _, level in steps]
    if max(levels) / min(levels) > 20:
        axes.set_xscale("log")
        axes.set_xlim(min(levels) / 1.5, max(levels) * 2)
    else:
        axes.set_xlim(0, max(levels) * 1.15)
    _name(axes, unit, "")
    return figure


def timeline(tracks: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]], title: str) -> Figure:
    """Values over the time of a simulation, one panel a track, steps held until the next change."""
    figure = new_figure(figsize=(7.2, 0.8 + 1.25 * len(tracks)))
    panels = figure.subplots(len(tracks), 1, sharex=True, squeeze=False)[:, 0]
    for index, (axes, (name, (x, y))) in enumerate(zip(panels, tracks.items())):
        axes.step(np.asarray(x), np.asarray(y), where="post", color=COLOURS[index % 6], linewidth=1.2)
        axes.fill_between(np.asarray(x), np.asarray(y), step="post", color=COLOURS[index % 6], alpha=0.25)
        axes.patch.set_alpha(0.0)
        axes.tick_params(which="both", colors=INK, labelsize=8)
        axes.grid(True, color=INK, alpha=0.2, linewidth=0.6)
        axes.set_ylabel(name, color=INK, fontsize=8)
        axes.set_ylim(bottom=0)
        for side, spine in axes.spines.items():
            spine.set_color(INK)
            spine.set_visible(side in ("left", "bottom"))
    panels[0].set_title(title, color=INK, fontsize=10, loc="left")
    panels[-1].set_xlabel("seconds", color=INK, fontsize=9)
    figure.align_ylabels(panels)
    return figure


def steps_of_months(
    months: Sequence[str],
    stacks: Mapping[str, npt.ArrayLike],
    bills: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike],
    currency: str,
) -> Figure:
    """Machines by month, one upon another, above the least, the expected and the largest bill of each month."""
    figure = new_figure(figsize=(7.2, 5.6))
    upper, lower = figure.subplots(2, 1, sharex=True)
    at, below = np.arange(len(months)), np.zeros(len(months))
    for index, (name, machines) in enumerate(stacks.items()):
        heights = np.asarray(machines, dtype=float)
        hatch = ("", "//", "..")[index // len(COLOURS) % 3]
        upper.bar(at, heights, bottom=below, width=0.9, color=COLOURS[index % len(COLOURS)], label=name, hatch=hatch)
        below = below + heights
    least, mean, most = bills
    lower.fill_between(at, least, most, color=COLOURS[0], alpha=0.25, step="mid", label="least to most")
    lower.step(at, mean, where="mid", color=COLOURS[0], label="expected")
    apart = -(-len(months) // 6)  # labels that do not touch
    lower.set_xticks(at[::apart], [*months[::apart]])
    lower.yaxis.set_major_formatter("{x:,.0f}")
    for axes, name in ((upper, "machines"), (lower, f"bill per month, {currency}")):
        axes.set_ylabel(name, color=INK)
        axes.set_ylim(bottom=0)
        axes.tick_params(colors=INK)
        for side in axes.spines.values():
            side.set_color(INK)
        axes.legend(frameon=False, labelcolor=INK, fontsize="small", loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    return figure
