"""How late first tokens are in the tail: ``configs/tails.yaml``.

``python -m tools.fitting late FOLDER`` writes it, and :data:`ROWS`, from the rows that state a 99th percentile of
TTFT: closed loops of ``serving_inferencex.csv``, whose users begin all at once, and the stages of
``serving_open_loop.csv`` under capacity.

``first_burst`` is how much longer the requests of a first burst take, with the mean as it is. Of a grid it is the one
at which the logarithms of predicted over measured median and 99th percentile are least off, each system counted alike,
on rows of one pool whose client warms its server, without the systems that are kept aside
(:func:`tools.fitting.tails.kept_aside`). What the 99th percentile is beyond that are the seconds of ``kinds``, by
engine and form over all devices: quantiles of measured less predicted, each system weighted by the root of its rows.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import yaml

from inferplan.catalog.files import config_root
from inferplan.devices.constants import QUANTILES, BeginsAs, LateTokens, MeasuredTails
from inferplan.estimate.support import FEWEST_SYSTEMS
from inferplan.files import save
from inferplan.serving.result import SimulationResult
from inferplan.units import Array
from inferplan.validation.deploy import deployment_of
from inferplan.validation.importers import read_file
from inferplan.validation.names import model_of
from inferplan.validation.predict import served_run
from inferplan.validation.rows import Row, Run
from tools.fitting.bands import cell_of, weighted_quantiles
from tools.fitting.priced import MOST_USERS
from tools.fitting.serving_host import overloaded
from tools.fitting.tails import kept_aside, system_of

ROWS = Path(__file__).parents[2] / "tests" / "fixtures" / "late_tokens.csv"
"""Measured rows beside their simulation, of which all figures are made."""
BURSTS, STEADY = "serving_inferencex.csv", "serving_open_loop.csv"
WARM = "2026-02"
"""The month from which the client of the campaign warms its server (docs/accuracy-scale-out.md)."""
GRID = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
"""Shares by which a first burst takes longer, of which one is chosen."""
VENDORS = ("NVIDIA",)
"""Whose devices have first bursts in their latency: it is fitted to means of runs on them. AMD's constants are fitted
to medians, which hold none."""
_AT = {"median": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


class Kind(NamedTuple):
    """What systems share that differ in model and device."""

    engine: str
    load: BeginsAs
    forms: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Late:
    """A measured row beside its simulation; seconds by statistic. ttft: predicted, for each of :data:`GRID`. apart:
    prompts are computed elsewhere. uneven: its first burst takes longer than the others. aside: nothing is chosen by
    it."""

    name: str
    kind: Kind
    model: str
    device: str
    warmed: bool
    aside: bool
    apart: bool
    uneven: bool
    users: int
    prompt: int
    ttft: Mapping[str, tuple[float, ...]]
    tpot: Mapping[str, float]
    measured: Mapping[tuple[str, str], float]

    @property
    def system(self) -> tuple[str, str]:
        """Model and device."""
        return self.model, self.device

    def predicted(self, statistic: str, first_burst: float) -> float:
        """Seconds of TTFT where a first burst takes so much longer."""
        return self.ttft[statistic][GRID.index(first_burst)]

    def late(self, first_burst: float) -> float:
        """Seconds by which the measured 99th percentile of TTFT is beyond the predicted one."""
        return self.measured["ttft", "p99"] - self.predicted("p99", first_burst)


def measured_of(row: Row) -> dict[tuple[str, str], float]:
    """What a row states of TTFT and TPOT, in seconds."""
    found = {}
    for metric in ("ttft", "tpot"):
        for statistic in ("mean", *_AT):
            value = row.measured.at(metric, statistic)
            if value is None and row.cells.get(f"{metric}_{statistic}_s"):
                value = float(row.cells[f"{metric}_{statistic}_s"])
            if value:
                found[metric, statistic] = value
    return found


def late_rows(folder: Path) -> list[Late]:
    """The rows of both files that state a 99th percentile of TTFT, simulated."""
    rows = [row for name in (BURSTS, STEADY) for row in read_file(folder / name, {})[1]]
    aside = kept_aside([row for row in rows if "framework" in row.cells])
    runs: dict[Run, list[Row]] = defaultdict(list)
    for row in rows:
        if row.run is not None and usable(row):
            runs[row.run].append(row)
    return [one for run, members in runs.items() for one in _priced(run, members, aside)]


def usable(row: Row) -> bool:
    """Whether a row says something of its tail: it is not doubted, its queue does not grow, and p99 is stated."""
    run = row.run
    if run is None or run.suspect or (run.concurrency or 0) > MOST_USERS or ("ttft", "p99") not in measured_of(row):
        return False
    return run.closed or not overloaded(row)


def _priced(run: Run, rows: Sequence[Row], aside: frozenset[str]) -> list[Late]:
    """The rows of one run, simulated once."""
    deployment, cell = deployment_of(run)[0], cell_of(run)
    result = served_run(deployment, run)
    uneven = run.closed and run.prefill is None and deployment.hardware.vendor in VENDORS
    bursts = [replace(result, first_burst=share if uneven else 0.0) for share in GRID]
    ttft = {name: tuple(float(np.percentile(one.ttft, at)) for one in bursts) for name, at in _AT.items()}
    return [
        Late(
            name=row.cells.get("id") or f"{row.cells['experiment']} {run.rate:g}/s",
            kind=Kind(cell.engine, "burst" if run.closed and (run.concurrency or 0) > 1 else "steady", cell.forms),
            model=model_of(run.model).name,
            device=cell.device,
            warmed=row.cells.get("date", "") >= WARM,
            aside="framework" in row.cells and system_of(row) in aside,
            apart=run.prefill is not None,
            uneven=uneven,
            users=run.concurrency or 0,
            prompt=int(run.prompt),
            ttft=ttft,
            tpot=tpot_of(result),
            measured=measured_of(row),
        )
        for row in rows
    ]


FACTS = ("name", "engine", "load", "forms", "model", "device", "warmed", "aside", "apart", "uneven", "users", "prompt")
_STATED = tuple((metric, name) for metric in ("ttft", "tpot") for name in ("median", "p90", "p95", "p99"))
_BY_BURST = ("median", "p90", "p99")


def write_late(rows: Iterable[Late], path: Path) -> None:
    """A file of rows beside their simulation, in milliseconds, from which everything here is made again."""
    heads = [*FACTS, *(f"{metric}_{name}" for metric, name in _STATED), *(f"predicted_tpot_{name}" for name in _AT)]
    heads += ["predicted_ttft_p95", *(f"predicted_ttft_{name}_{at:g}" for name in _BY_BURST for at in GRID)]
    lines = [",".join(heads)]
    for one in rows:
        facts = [one.name, one.kind.engine, one.kind.load, "+".join(one.kind.forms), one.model, one.device]
        facts += [str(int(value)) for value in (one.warmed, one.aside, one.apart, one.uneven, one.users, one.prompt)]
        seconds = [one.measured.get(figure) for figure in _STATED] + [one.tpot[name] for name in _AT]
        seconds += [one.ttft["p95"][0], *(value for name in _BY_BURST for value in one.ttft[name])]
        lines.append(",".join([*facts, *("" if value is None else f"{value * 1e3:.4g}" for value in seconds)]))
    save(path, "\n".join(lines) + "\n")


def read_late(path: Path) -> list[Late]:
    """Those that :func:`write_late` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    return [_read(one) for one in cells]


def _read(cells: Mapping[str, str]) -> Late:
    def seconds(name: str) -> float:
        return float(cells[name]) * 1e-3

    load: BeginsAs = "burst" if cells["load"] == "burst" else "steady"
    ttft = {name: tuple(seconds(f"predicted_ttft_{name}_{at:g}") for at in GRID) for name in _BY_BURST}
    return Late(
        name=cells["name"],
        kind=Kind(cells["engine"], load, tuple(one for one in cells["forms"].split("+") if one)),
        model=cells["model"],
        device=cells["device"],
        warmed=cells["warmed"] == "1",
        aside=cells["aside"] == "1",
        apart=cells["apart"] == "1",
        uneven=cells["uneven"] == "1",
        users=int(cells["users"]),
        prompt=int(cells["prompt"]),
        ttft=ttft | {"p95": (seconds("predicted_ttft_p95"),) * len(GRID)},
        tpot={name: seconds(f"predicted_tpot_{name}") for name in _AT},
        measured={(metric, name): seconds(f"{metric}_{name}") for metric, name in _STATED if cells[f"{metric}_{name}"]},
    )


def tpot_of(result: SimulationResult) -> dict[str, float]:
    """Percentiles of TPOT, in seconds."""
    return {name: float(np.percentile(result.tpot, at)) for name, at in _AT.items()}


def off(one: Late, statistic: str, first_burst: float) -> float:
    """Logarithm of predicted over measured TTFT."""
    return float(np.log(one.predicted(statistic, first_burst) / one.measured["ttft", statistic]))


def fit_first_burst(rows: Iterable[Late]) -> float:
    """The share of the grid at which the rows that may decide it are least off."""
    systems: dict[tuple[str, ...], list[Late]] = defaultdict(list)
    for one in rows:
        if decides(one):
            systems[one.kind.engine, *one.system].append(one)

    def error(share: float) -> float:
        each = [
            np.mean([abs(off(one, "median", share)) + abs(off(one, "p99", share)) for one in members])
            for members in systems.values()
        ]
        return float(np.mean(each))

    return min(GRID, key=error)


def decides(one: Late) -> bool:
    """Whether a row has a part in ``first_burst``."""
    return one.kind.load == "burst" and one.warmed and not one.aside and one.uneven


def of_kinds(rows: Iterable[Late]) -> dict[Kind, dict[tuple[str, str], list[Late]]]:
    """The rows that say how late a kind is, by system: of closed loops those whose client warms its server."""
    found: dict[Kind, dict[tuple[str, str], list[Late]]] = defaultdict(lambda: defaultdict(list))
    for one in rows:
        if one.warmed if one.kind.load == "burst" else not one.users:
            found[one.kind][one.system].append(one)
    return {kind: dict(systems) for kind, systems in sorted(found.items())}


def quantiles(systems: Iterable[Sequence[Late]], first_burst: float) -> Array:
    """Seconds at :data:`QUANTILES` of rows, each system weighted by the root of their number."""
    seconds = [np.array([one.late(first_burst) for one in members]) for members in systems]
    weights = np.concatenate([np.full(len(one), len(one) ** -0.5) for one in seconds])
    return weighted_quantiles(np.concatenate(seconds), weights, QUANTILES)


def kind_of(kind: Kind, systems: Mapping[tuple[str, str], Sequence[Late]], first_burst: float) -> LateTokens:
    """What is written of a kind."""
    enough = len(systems) >= FEWEST_SYSTEMS
    seconds = tuple(float(f"{value:.3f}") for value in quantiles(systems.values(), first_burst)) if enough else ()
    rows = sum(map(len, systems.values()))
    return LateTokens(**kind._asdict(), systems=len(systems), rows=rows, seconds=seconds)


def fitted(rows: Sequence[Late], command: str) -> MeasuredTails:
    """Both constants of a file."""
    first_burst = fit_first_burst(rows)
    return MeasuredTails(
        source="99th percentiles of TTFT in measured serving rows (docs/accuracy-percentiles.md)",
        provenance={
            "command": command,
            "date": date.today().isoformat(),
            "rows": len(rows),
            "decide_first_burst": sum(map(decides, rows)),
        },
        first_burst=first_burst,
        vendors=VENDORS,
        kinds=tuple(kind_of(kind, systems, first_burst) for kind, systems in of_kinds(rows).items()),
    )


def tails_yaml(tails: MeasuredTails) -> str:
    """``configs/tails.yaml``, a line a kind."""
    record = tails.model_dump(mode="json")
    kinds = record.pop("kinds")
    head = (
        "# Written by `python -m tools.fitting late`; how well it holds stands in docs/accuracy-percentiles.md.\n"
        "# Seconds: measured less predicted 99th percentile of TTFT, at these quantiles of measured rows:\n"
        f"# {', '.join(map(str, QUANTILES))}.\n"
    )
    lines = [yaml.safe_dump(kind, sort_keys=False, default_flow_style=True, width=1000).strip() for kind in kinds]
    body = yaml.safe_dump(record, sort_keys=False, width=120)
    return head + body + "kinds:\n" + "".join(f"  - {line}\n" for line in lines)


@click.command("late")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=config_root(), help="Folder of tails.yaml.")
@click.option("--rows", "kept", type=click.Path(path_type=Path), default=ROWS, help="The rows beside their simulation.")
def command(folder: Path, out: Path, kept: Path) -> None:
    """Fit how late first tokens are in the tail to the rows of FOLDER (docs/validate.md)."""
    write_late(late_rows(folder), kept)
    # from the file, so that it can be made again without pricing a row
    tails = fitted(read_late(kept), f"python -m tools.fitting late FOLDER ({BURSTS}, {STEADY})")
    save(out / "tails.yaml", tails_yaml(tails))
    click.echo(f"a first burst takes {tails.first_burst:.0%} longer")
    for kind in tails.kinds:
        click.echo(f"{kind.engine}, {kind.load}, {' and '.join(kind.forms) or 'no form'}: {kind.seconds or 'too few'}")
