"""Percentiles of latencies, predicted against measured (docs/accuracy-percentiles.md).

It is made of the file that ``python -m tools.fitting late FOLDER`` writes: measured rows beside their
simulation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from inferplan.devices.constants import QUANTILES
from inferplan.estimate.support import FEWEST_SYSTEMS
from tools.accuracy.scores import HEADS, Line, figures, markdown, score_cells
from tools.fitting.late import Late, decides, fit_first_burst, of_kinds, quantiles, read_late

_NEVER = 0.0
"""A first burst that takes no longer than its steps: the prediction before."""


def percentiles_page(rows_file: Path, today: str) -> str:
    """The page."""
    rows = read_late(rows_file)
    first_burst = fit_first_burst(rows)
    prose = (Path(__file__).parent / "percentiles_notes.md").read_text(encoding="utf-8")
    head, causes = prose.split("<!-- figures -->\n")
    told = {"DATE": today, "FIRST_BURST": f"{100 * first_burst:.0f}", "DECIDE": str(sum(map(decides, rows)))}
    for name, value in told.items():
        head = head.replace(name, value)
    bursts = [one for one in rows if one.kind.load == "burst"]
    return "\n".join(
        [
            head.rstrip() + "\n",
            "## The first burst of a closed loop\n",
            _before_and_after(bursts, first_burst),
            "### By system, clients that warm the server\n",
            _by_system([one for one in bursts if one.warmed], first_burst),
            "## How far repeats of one configuration are apart\n",
            _repeats(bursts),
            "## TPOT\n",
            _tpot(bursts),
            "## Steady loads\n",
            _stages([one for one in rows if not one.users]),
            "## How late: what is on file, and how it holds\n",
            _kinds(rows, first_burst),
            causes.rstrip() + "\n",
        ]
    )


def _pairs(rows: Iterable[Late], statistic: str, first_burst: float) -> list[tuple[float, float]]:
    measured = ((one, one.measured.get(("ttft", statistic))) for one in rows)
    return [(one.predicted(statistic, first_burst), seconds) for one, seconds in measured if seconds is not None]


_PARTS: dict[str, Callable[[Late], bool]] = {
    "**kept aside**, warmed": lambda one: one.aside and one.warmed and one.uneven,
    "kept aside, not warmed": lambda one: one.aside and not one.warmed and one.uneven,
    "others, warmed (they decide the share)": decides,
    "others, not warmed": lambda one: not one.aside and not one.warmed and one.uneven,
    "prompts computed apart": lambda one: one.apart,
    "AMD, warmed": lambda one: not one.apart and not one.uneven and one.warmed,
    "AMD, not warmed": lambda one: not one.apart and not one.uneven and not one.warmed,
    "**all**": lambda one: True,
}


def _before_and_after(rows: Sequence[Late], first_burst: float) -> str:
    """Errors of TTFT, of a first burst as fast as its steps and of one that takes longer."""
    lines: list[Line] = []
    for name, holds in _PARTS.items():
        for statistic in ("median", "p90", "p99"):
            for said, seconds in (("before", _NEVER), ("after", first_burst)):
                found = figures(_pairs(filter(holds, rows), statistic, seconds))
                if found is not None:
                    lines.append([f"{name}: TTFT {statistic}, {said}", *score_cells(found)])
    return markdown(("rows", *HEADS), lines)


def _by_system(rows: Sequence[Late], first_burst: float) -> str:
    """p99 of TTFT before and after, and how late it is, for each GPU and engine."""
    groups: dict[str, list[Late]] = defaultdict(list)
    for one in rows:
        aside = " (kept aside)" if one.aside else ""
        groups[f"{one.device}, {one.kind.engine}{', pools apart' if one.apart else ''}{aside}"].append(one)
    lines: list[Line] = []
    for name, members in sorted(groups.items()):
        cells = []
        for seconds in (_NEVER, first_burst):
            found = figures(_pairs(members, "p99", seconds))
            assert found is not None
            cells += [f"{100 * found.mape:.1f} / {100 * found.median:.1f}", f"{100 * found.bias:+.0f}"]
        late = np.quantile([one.late(first_burst) for one in members], [0.1, 0.5, 0.9])
        lines.append([name, str(len(members)), *cells, ", ".join(f"{value:+.2f}" for value in late)])
    heads = ("system", "rows", "before, MAPE / median %", "bias %", "after, MAPE / median %", "bias %")
    return markdown((*heads, "late by s (10, 50, 90 %)"), lines)


def _repeats(rows: Sequence[Late]) -> str:
    """How far a measured figure is from the median of the other measurements of the same run."""
    lines: list[Line] = []
    for name, warmed in (("warmed", True), ("not warmed", False)):
        for metric, statistic in (("ttft", "median"), ("ttft", "p99"), ("tpot", "p99")):
            runs: dict[tuple[object, ...], list[float]] = defaultdict(list)
            for one in rows:
                if one.warmed == warmed and (metric, statistic) in one.measured:
                    same = one.kind, one.system, one.users, one.prompt, tuple(one.ttft["p99"]), one.tpot["p99"]
                    runs[same].append(one.measured[metric, statistic])
            pairs = [
                (float(np.median([*values[:place], *values[place + 1 :]])), value)
                for values in runs.values()
                for place, value in enumerate(values)
                if len(values) > 1
            ]
            if (found := figures(pairs)) is not None:
                lines.append([f"{name}: {metric.upper()} {statistic}", *score_cells(found)])
    return markdown(("the others' median against one measurement", *HEADS), lines)


def _tpot(rows: Sequence[Late]) -> str:
    """p99 of TPOT, and what of it is beyond its median."""
    lines: list[Line] = []
    for name, holds in _PARTS.items():
        members = [one for one in rows if holds(one) and {("tpot", "median"), ("tpot", "p99")} <= set(one.measured)]
        whole = figures((one.tpot["p99"], one.measured["tpot", "p99"]) for one in members)
        beyond = figures(
            (one.tpot["p99"] / one.tpot["median"], one.measured["tpot", "p99"] / one.measured["tpot", "median"])
            for one in members
        )
        for said, found in (("p99", whole), ("p99 over the median", beyond)):
            if found is not None:
                lines.append([f"{name.replace(' (they decide the share)', '')}: {said}", *score_cells(found)])
    return markdown(("TPOT", *HEADS), lines)


def _stages(rows: Sequence[Late]) -> str:
    """Percentiles of TTFT of each stage of the open loop under capacity."""
    lines: list[Line] = []
    for one in rows:
        cells = []
        for statistic in ("median", "p95", "p99"):
            measured, predicted = one.measured["ttft", statistic], one.predicted(statistic, _NEVER)
            cells.append(f"{1e3 * predicted:.1f} / {1e3 * measured:.1f}")
        lines.append([one.name, *cells, f"{1e3 * one.late(_NEVER):+.0f}"])
    heads = ("stage", "median, predicted / measured ms", "p95", "p99", "p99 late by ms")
    return markdown(heads, lines)


def _kinds(rows: Sequence[Late], first_burst: float) -> str:
    """For each kind with systems enough the seconds, and the share of a system's rows inside those of the others."""
    lines: list[Line] = []
    low, high = QUANTILES.index(0.1), QUANTILES.index(0.9)
    for kind, systems in of_kinds(rows).items():
        if len(systems) < FEWEST_SYSTEMS:
            continue
        ends = quantiles(systems.values(), first_burst)
        told = []
        for system, members in systems.items():
            others = quantiles([rest for name, rest in systems.items() if name != system], first_burst)
            seconds = np.array([one.late(first_burst) for one in members])
            inside = (seconds >= min(others[low], 0.0)) & (seconds <= max(others[high], 0.0))
            told.append((" on ".join(system), float(np.mean(inside)), float(np.mean(seconds > max(others[high], 0.0)))))
        name = f"{kind.engine}, {kind.load}" + (f", {' and '.join(kind.forms)}" if kind.forms else "")
        values = ", ".join(f"{value:.2f}" for value in ends)
        mean, beyond = (float(np.mean([one[place] for one in told])) for place in (1, 2))
        each = "; ".join(f"{system} {share:.0%}" for system, share, _ in told)
        lines.append([name, values, f"{mean:.0%}", f"{beyond:.0%}", each])
    heads = ("kind", f"late by s at {', '.join(map(str, QUANTILES))}", "inside, left out", "beyond", "by system")
    return markdown(heads, lines)
