"""How much measured runs of a system help with its other runs, on predictions that no row of its model had a part in.

``python -m tools.accuracy anchors UNSEEN.csv`` prints the section and the bands for ``configs/anchors.yaml``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from inferplan.catalog.assemble import anchor_process
from inferplan.devices.anchors import AXES, METRICS, ErrorProcess, Metric, next_runs
from inferplan.devices.releases import release_number
from inferplan.units import Array
from inferplan.validation.anchor import load_of
from inferplan.validation.score import Score, Scored
from tools.accuracy.scores import HEADS, figures, markdown, score_cells

_DRAWS = 20
_NAMES = {"ttft": "TTFT", "tpot": "TPOT"}
Choice = Callable[[Array], Sequence[Sequence[int]]]
"""From the points of a system to the sets of its rows that are taken as measured."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredSystem:
    """The rows of one system: coordinates (n, AXES) and ln(measured/predicted) of each latency (n,)."""

    pair: tuple[str, str]
    points: Array
    errors: dict[Metric, Array]


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What is left on the rows that were not taken: figures, and deviations of the process by (model, GPU)."""

    figures: Score | None
    deviations: dict[tuple[str, str], Array]

    def band(self, without: tuple[str, str] | None = None) -> tuple[float, float]:
        """The deviations between which 80 % of the rows lie, of all pairs or of all but one."""
        others = np.concatenate([values for pair, values in self.deviations.items() if pair != without])
        low, high = np.quantile(others, (0.1, 0.9))
        return float(low), float(high)


def systems(scored: Sequence[Scored], process: ErrorProcess) -> list[MeasuredSystem]:
    """Possible rows by (model, GPU, engine, release, format)."""
    groups: dict[tuple[str, ...], list[Scored]] = defaultdict(list)
    for one in scored:
        run, measured = one.row.run, one.row.measured
        if run and one.prediction and not one.impossible and measured.ttft and measured.tpot:
            groups[(*run.pair, run.engine, release_number(run.engine_version) or "", run.label)].append(one)
    found = []
    for name, members in groups.items():
        loads = [load_of(one.row.run, one.row.measured) for one in members if one.row.run]
        errors: dict[Metric, Array] = {
            metric: np.array([log_error(one, metric) for one in members]) for metric in METRICS
        }
        points = np.concatenate([process.points(load) for load in loads if load is not None])
        found.append(MeasuredSystem(pair=(name[0], name[1]), points=points, errors=errors))
    return found


def log_error(one: Scored, metric: Metric) -> float:
    """ln(measured/predicted) of a row that has both; raises ``ValueError`` for one that has not."""
    error = one.error(metric)
    if error is None:
        raise ValueError(f"{one.row.where} has no {metric}, measured and predicted")
    return -float(np.log1p(error))


def outcome(found: Sequence[MeasuredSystem], process: ErrorProcess, metric: Metric, choice: Choice) -> Outcome:
    """Errors on the rows of each system that ``choice`` leaves out."""
    kernel, pairs = process.kernel(metric), list[tuple[float, float]]()
    deviations: dict[tuple[str, str], list[Array]] = defaultdict(list)
    for system in found:
        for taken in choice(system.points):
            rest = np.setdiff1d(np.arange(len(system.points)), taken)
            if len(rest) < 2:
                continue
            known = np.clip(system.errors[metric][list(taken)], -process.clip, process.clip)
            mean, variance = kernel.posterior(system.points[list(taken)], known, system.points[rest])
            left = system.errors[metric][rest] - mean
            pairs += [(float(value), 1.0) for value in np.exp(-left)]
            deviations[system.pair].append(left / np.sqrt(variance + kernel.noise**2))
    joined = {pair: np.concatenate(values) for pair, values in deviations.items()}
    return Outcome(figures=figures(pairs), deviations=joined)


def drawn(count: int, seed: int = 0) -> Choice:
    """``count`` rows at random, :data:`_DRAWS` times."""
    rng = np.random.default_rng(seed)
    return lambda points: [rng.permutation(len(points))[:count].tolist() for _ in range(_DRAWS)]


def suggested(count: int, process: ErrorProcess) -> Choice:
    """The rows that ``inferplan anchor suggest`` would have asked for."""
    return lambda points: [next_runs(process, points, np.empty((0, AXES)), count)]


def coverage(result: Outcome, bands: Outcome) -> str:
    """The share of rows inside the band of the other pairs of ``bands``; empty where there are no others."""
    inside = [
        (values >= low) & (values <= high)
        for pair, values in result.deviations.items()
        if bands.deviations.keys() - {pair}
        for low, high in [bands.band(pair)]
    ]
    return f"{np.mean(np.concatenate(inside)):.0%}" if inside else ""


def bands(found: Sequence[MeasuredSystem], process: ErrorProcess) -> dict[str, tuple[float, float]]:
    """For ``configs/anchors.yaml``: the deviations that hold 80 % of the rows beside three drawn at random."""
    return {metric: outcome(found, process, metric, drawn(3)).band() for metric in METRICS}


def anchors_section(scored: Sequence[Scored]) -> str:
    """Errors and coverage with so many measured runs of a system, drawn at random or suggested."""
    process = anchor_process()
    found = systems(scored, process)
    lines = []
    for metric in ("tpot", "ttft"):
        of_bands = outcome(found, process, metric, drawn(3))
        cases = {
            **{f"{count} at random ({_DRAWS} draws)": drawn(count) for count in (1, 3, 5)},
            **{f"{count} suggested": suggested(count, process) for count in (1, 3, 5)},
        }
        for name, choice in {"none": _none, **cases}.items():
            result = outcome(found, process, metric, choice)
            if result.figures is None:
                continue
            share = "" if choice is _none else coverage(result, of_bands)
            lines.append([f"{_NAMES[metric]}, {name}", *score_cells(result.figures), share])
    return "\n".join(
        [
            "### With measured runs of the system\n",
            f"{sum(len(system.points) for system in found)} possible rows of {len(found)} systems (model, GPU, engine, "
            "release, format), predicted by what rows of other models say; some rows are taken as "
            "measured ([anchors](anchors.md)) and the others of the system are scored. The last column is the share of "
            "them inside the 80 % band, whose width is that of the other (model, GPU) pairs with three rows at "
            "random.\n",
            markdown(("measured runs", *HEADS, "inside"), lines),
        ]
    )


def _none(points: Array) -> Sequence[Sequence[int]]:
    return [[]]
