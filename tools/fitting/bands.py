"""How far served latencies of a system are off that nobody has seen: ``configs/bands.yaml``.

``python -m tools.fitting bands FOLDER --unseen UNSEEN.csv`` writes it from closed-loop rows: those of ``UNSEEN.csv``
beside what the rows of other models say of them (:mod:`tools.fitting.serving`), and those of ``serving_inferencex.csv``
in the folder, all of one model, beside what the constants on file say: of no kind of theirs are there systems enough
for a band. A system is a model under an engine on a device; a cell is what systems share that differ in their model
alone: device, engine and form. For a system ``s`` of a cell, ``centre(s)`` is the mean logarithm of measured over
predicted of the ``n`` others (each the mean of its rows), and

    u = (row of s - centre(s)) / sqrt(1 + 1/n)

is how far a row lies from what the others say. A cell has few systems, so the quantiles of ``u`` are those over the
systems of all cells together, each system weighted by the root of its number of rows. The ends of a cell's band are
``centre + u(10 %, 90 %) * sqrt(1 + 1/n)`` with all its ``n`` systems (the conformal band of a further one; Barber et
al. 2021, "Predictive inference with the jackknife+"), never inside the 10 % and 90 % quantiles of the cell's own rows,
and never inside 1. What a left-out system is judged by rests on
no row of it: neither ``centre`` nor the quantiles, whose other systems are then measured from centres without it.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import yaml

from inferplan.catalog.files import config_root
from inferplan.devices.constants import MeasuredBands, MeasuredCell
from inferplan.estimate.bands import quantile, slowest_end
from inferplan.estimate.phase import run_step
from inferplan.estimate.support import DRAFTS, FEWEST_SYSTEMS, POOLS, families_of, forms_of
from inferplan.files import save
from inferplan.units import Array
from inferplan.validation.deploy import deployment_of
from inferplan.validation.names import model_of
from inferplan.validation.predict import client_of
from inferplan.validation.rows import Run
from inferplan.validation.score import Scored
from inferplan.work.step import decode, prefill
from tools.fitting.priced import FILES, priced_file
from tools.fitting.unseen import read_unseen

METRICS = ("ttft", "tpot")
ENDS = (0.1, 0.9)
"""Which quantiles of measured over predicted the ends of a band are."""

System = tuple[str, str, str]
"""Model, device and engine."""


class Cell(NamedTuple):
    """What systems share that differ in their model alone."""

    device: str
    engine: str
    forms: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A run's logarithms of measured over predicted, by metric; the mean over the days on which it was measured.

    least: what the slow ends of its bands are at the least, by metric; NaN where its kernels' error is not known.
    """

    cell: Cell
    model: str
    logs: tuple[float, float]
    least: tuple[float, float]

    @property
    def system(self) -> System:
        """What is left out together, whatever the form."""
        return self.model, self.cell.device, self.cell.engine


def deviations(scored: Iterable[Scored]) -> list[Deviation]:
    """Those of rows that are not doubted, of a client that is known, with both latencies."""
    found: dict[Run, list[tuple[float, float]]] = defaultdict(list)
    for one in scored:
        run, prediction, measured = one.row.run, one.prediction, one.row.measured
        if run is None or prediction is None or not run.closed or one.suspect or client_of(run).start == "spread":
            continue
        values = [(measured.at(name), prediction.at(name, measured.statistic)) for name in METRICS]
        logs = tuple(float(np.log(seen / said)) for seen, said in values if seen and said and np.isfinite(said))
        if len(logs) == len(METRICS):
            found[run].append((logs[0], logs[1]))
    return [deviation(run, np.mean(logs, axis=0)) for run, logs in found.items()]


def deviation(run: Run, logs: Array) -> Deviation:
    """That of a run whose logarithms of measured over predicted are these, by metric."""
    ttft, tpot = (float(value) for value in logs)
    return Deviation(cell=cell_of(run), model=model_of(run.model).name, logs=(ttft, tpot), least=least_ends(run))


DEVIATIONS = ("device", "engine", "forms", "model", "ttft", "tpot", "ttft_least", "tpot_least")
"""The columns of a file of deviations; the forms of a cell are joined by ``+``."""


def write_deviations(found: Iterable[Deviation], path: Path) -> None:
    """A file of deviations, from which the bands can be made again without pricing a row."""
    lines = [",".join(DEVIATIONS)]
    for one in sorted(found, key=lambda one: (one.cell, one.model, one.logs)):
        figures = [*(f"{value:.3f}" for value in one.logs), *(f"{value:g}" for value in one.least)]
        lines.append(",".join([one.cell.device, one.cell.engine, "+".join(one.cell.forms), one.model, *figures]))
    save(path, "\n".join(lines) + "\n")


def read_deviations(path: Path) -> list[Deviation]:
    """Those that :func:`write_deviations` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        Deviation(
            cell=Cell(row["device"], row["engine"], tuple(form for form in row["forms"].split("+") if form)),
            model=row["model"],
            logs=(float(row["ttft"]), float(row["tpot"])),
            least=(float(row["ttft_least"]), float(row["tpot_least"])),
        )
        for row in rows
    ]


@cache
def least_ends(run: Run) -> tuple[float, float]:
    """What the slow ends of a run's bands are at the least, by metric; NaN where its kernels' error is not known."""
    deployment = deployment_of(run)[0]
    steps = (run_step(deployment, step) for step in (prefill(1.0, run.prompt), decode(1.0, run.prompt)))
    first, rest = (np.nan if one.band is None else float(slowest_end(deployment, one)) for one in steps)
    return first, rest


@cache
def cell_of(run: Run) -> Cell:
    """The cell of a run."""
    deployment = deployment_of(run)[0]
    forms = [*forms_of(deployment), *([DRAFTS] if run.draft else []), *([POOLS] if run.prefill else [])]
    return Cell(deployment.hardware.name, deployment.engine.name, tuple(sorted(forms)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Spread:
    """The deviations of one metric, by cell and model, and what each system says of a further one."""

    logs: Mapping[Cell, Mapping[str, Array]]

    @classmethod
    def of(cls, found: Iterable[Deviation], metric: str) -> Spread:
        logs: dict[Cell, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for one in found:
            logs[one.cell][one.model].append(one.logs[METRICS.index(metric)])
        return cls(logs={cell: {m: np.array(v) for m, v in models.items()} for cell, models in logs.items()})

    @cached_property
    def known(self) -> list[Cell]:
        """Cells with systems enough for a band."""
        return [cell for cell, models in self.logs.items() if len(models) >= FEWEST_SYSTEMS]

    def centre(self, cell: Cell, *without: str) -> tuple[float, float]:
        """The mean over systems, and the root of one plus one over their number; ``without`` those of some models."""
        means = [float(np.mean(logs)) for model, logs in self.logs[cell].items() if model not in without]
        return float(np.mean(means)), float(np.sqrt(1 + 1 / len(means)))

    def residuals(self, without: System | None = None) -> dict[tuple[Cell, str], Array]:
        """``u`` of each system of the known cells; ``without`` a system in any of its forms, which has no part in the
        centres of the others either."""
        found = {}
        for cell in self.known:
            left_out = without[:1] if without is not None and without[1:] == (cell.device, cell.engine) else ()
            for model, logs in self.logs[cell].items():
                if model not in left_out:
                    centre, wide = self.centre(cell, model, *left_out)
                    found[cell, model] = (logs - centre) / wide
        return found

    @lru_cache(maxsize=1024)  # noqa: B019 (a spread lives as long as the command that asks it)
    def band(self, cell: Cell, without: str | None = None) -> tuple[float, float]:
        """The band of a known cell, for a further system or for the one of the model ``without``, as if it were."""
        left_out = () if without is None else (without,)
        centre, wide = self.centre(cell, *left_out)
        residuals = self.residuals(None if without is None else (without, cell.device, cell.engine))
        own = quantiles_of([logs for model, logs in self.logs[cell].items() if model not in left_out])
        low, high = centre + quantiles_of([*residuals.values()]) * wide
        low, high = min(low, own[0]), max(high, own[1])
        return float(np.exp(min(low, 0.0))), float(np.exp(max(high, 0.0)))


def spreads_of(found: Iterable[Deviation]) -> dict[str, Spread]:
    """The spread of each metric."""
    known = list(found)
    return {metric: Spread.of(known, metric) for metric in METRICS}


def left_out(one: Deviation, spreads: Mapping[str, Spread]) -> dict[str, tuple[float, float]]:
    """By metric, the band of a run's latencies that its own system has no part in; a metric without one is left out."""
    found = {}
    for metric, spread in spreads.items():
        least = one.least[METRICS.index(metric)]
        if one.cell in spread.known and np.isfinite(least):
            low, high = spread.band(one.cell, one.model if one.model in spread.logs[one.cell] else None)
            found[metric] = low, max(high, least)
    return found


def quantiles_of(systems: Sequence[Array]) -> Array:
    """The quantiles at both ends over some systems, each of which counts by the root of its number of rows."""
    weights = np.concatenate([np.full(len(rows), len(rows) ** -0.5) for rows in systems])
    return weighted_quantiles(np.concatenate(systems), weights, ENDS)


def weighted_quantiles(values: Array, weights: Array, at: Sequence[float]) -> Array:
    """Quantiles of values that count by their weights, linear between the middles of their shares."""
    order = np.argsort(values)
    shares = np.cumsum(weights[order]) - weights[order] / 2
    return np.interp(at, shares / weights.sum(), values[order])


class Coverage(NamedTuple):
    """How many runs of a cell lie beyond the slow end at a confidence, of how many, of how many systems."""

    beyond: int
    runs: int
    systems: int


def beyond_the_slow_end(found: Sequence[Deviation], metric: str, confidence: float) -> dict[Cell, Coverage]:
    """By known cell, the runs with a band that are slower than it says, their system left out of it."""
    spread, at = Spread.of(found, metric), METRICS.index(metric)
    counted: dict[Cell, list[bool]] = defaultdict(list)
    for one in found:
        band = left_out(one, {metric: spread}).get(metric)
        if band is not None:
            counted[one.cell].append(bool(one.logs[at] > np.log(quantile(band, confidence))))
    return {cell: Coverage(sum(late), len(late), len(spread.logs[cell])) for cell, late in counted.items()}


def fitted(found: Sequence[Deviation], command: str) -> MeasuredBands:
    """The bands of every cell, with counts where there are none."""
    spreads = spreads_of(found)
    first = spreads[METRICS[0]]
    cells = []
    for cell, models in sorted(first.logs.items()):
        known = METRICS if cell in first.known else ()
        bands: dict[str, Any] = {metric: rounded(spreads[metric].band(cell)) for metric in known}
        rows = sum(map(len, models.values()))
        cells.append(MeasuredCell(**cell._asdict(), systems=len(models), rows=rows, **bands))
    return MeasuredBands(
        source="closed-loop serving rows that no source doubts, each system left out of its band (docs/validate.md)",
        provenance={
            "command": command,
            "date": date.today().isoformat(),
            "runs": len(found),
            "systems": len({one.system for one in found}),
        },
        cells=tuple(cells),
        families=families(found),
    )


def rounded(band: tuple[float, float]) -> tuple[float, float]:
    low, high = (float(f"{end:.3f}") for end in band)
    return low, high


def families(found: Iterable[Deviation]) -> dict[str, int]:
    """How many models hold each kind of layer."""
    counted: dict[str, int] = defaultdict(int)
    for model in {one.model for one in found}:
        for family in families_of(model_of(model)):
            counted[family] += 1
    return dict(sorted(counted.items()))


def bands_yaml(bands: MeasuredBands) -> str:
    """``configs/bands.yaml``, a line a cell."""
    head = "# Written by `python -m tools.fitting bands`; how well it holds stands in docs/planning.md.\n"
    record = bands.model_dump(mode="json", exclude_none=True)
    cells = record.pop("cells")
    lines = [yaml.safe_dump(cell, sort_keys=False, default_flow_style=True, width=1000).strip() for cell in cells]
    body = yaml.safe_dump(record, sort_keys=False, width=120)
    return head + body + "cells:\n" + "".join(f"  - {line}\n" for line in lines)


@click.command("bands")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--unseen", type=click.Path(path_type=Path), required=True, help="What `serving --unseen` wrote.")
@click.option("--out", type=click.Path(path_type=Path), default=config_root(), help="Folder of bands.yaml.")
@click.option("--deviations", "kept", type=click.Path(path_type=Path), help="Also write how far each run was off.")
def command(folder: Path, unseen: Path, out: Path, kept: Path | None) -> None:
    """Fit the error bands of served latencies to the closed-loop rows of FOLDER (docs/validate.md)."""
    found = deviations([*read_unseen(unseen), *priced_file(folder / FILES[1])])
    if kept is not None:
        write_deviations(found, kept)
    bands = fitted(found, f"python -m tools.fitting bands FOLDER --unseen UNSEEN ({', '.join(FILES)})")
    save(out / "bands.yaml", bands_yaml(bands))
    for confidence in (0.8, 0.9):
        for metric in METRICS:
            counted = beyond_the_slow_end(found, metric, confidence)
            beyond, runs = (sum(getattr(one, name) for one in counted.values()) for name in ("beyond", "runs"))
            share = f"{beyond / runs:.1%} of {runs} runs"
            click.echo(f"{metric} beyond the slow end of {confidence:g}, systems left out: {share}")
