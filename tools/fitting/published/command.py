"""``python -m tools.fitting`` ``served`` and ``llama``: constants from published kernels, serving rows, llama-bench."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from calibrate.files import write_calibration
from inferplan.catalog.calibrations import class_file
from inferplan.catalog.files import load_hardware, read_yaml, validate
from inferplan.devices.constants import Calibration
from inferplan.validation.importers import read_file
from inferplan.validation.rows import Row
from tools.fitting.published import llama
from tools.fitting.published.kernels import shares
from tools.fitting.published.serving import UNKNOWNS, Device, Values, errors, expected, fit_rows, ratios_of

SINCE = {"mi300x": "2026-05-01", "mi355x": "2026-02-27"}
"""The first day of the software whose constants these are. The same run took 24 ms a token on MI300X with SGLang 0.5.9
in February 2026, and 15 with 0.5.12 in May; on MI355X 31 in December 2025, and 9 since February."""
FITTED = "fp8-block"
ENGINE = "sglang"
"""Whose kernels they are: rows of other engines on these devices (ATOM's) are predicted by them, never fitted."""
SERVED = (
    *("norm", "elementwise", "copy", "gather", "collective.all_reduce", "collective.all_gather"),
    *("matmul", "grouped_matmul", "attention.decode", "attention.prefill", "mla.decode", "mla.prefill"),
)
"""What rows of these devices run: DeepSeek-R1 divided by tensors inside a node, and Llama 3.1, to which nothing was
fitted. Nobody has published a run with experts over ranks, over several nodes, or of sparse attention."""
Errors = dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Served:
    """A device and the rows of its present software: those that are fitted, and those of other forms."""

    device: Device
    rows: list[Row]
    others: dict[str, list[Row]]

    @property
    def lightest(self) -> Row:
        """The row with the fewest users and tokens."""
        return min(self.rows, key=lambda row: (row.run.concurrency or 0, row.run.prompt + row.run.output))  # type: ignore[union-attr]


def served(name: str, rows: Sequence[Row]) -> Served:
    """A device with what measures it. Constants are carried from its class of memory."""
    file = class_file(load_hardware(name))
    carried = validate(file, read_yaml(file), Calibration)
    of_it = (row for row in rows if row.run is not None and row.run.engine == ENGINE and row.cells["gpu"] == name)
    found = [row for row in of_it if _counts(row, SINCE[name])]
    plain = [row for row in found if not row.cells["speculation"]]
    return Served(
        device=Device(
            name=name,
            carried=carried,
            shares={library: shares(carried.for_engine(library)) for library in carried.libraries},
        ),
        rows=[row for row in plain if row.cells["weights"] == FITTED],
        others={
            "other formats": [row for row in plain if row.cells["weights"] != FITTED],
            "drafts": [row for row in found if row.cells["speculation"]],
        },
    )


def _counts(row: Row, since: str) -> bool:
    cells = row.cells
    return cells["newest"] == "1" and not cells["suspect"] and cells["date"] >= since


def told(one: Served, other: Values) -> tuple[Errors, float]:
    """Errors with another device's constants once one row told the fixed seconds, on the others; and what it told."""
    known = fit_rows(one.device, [one.lightest], ("fixed",), other)
    rest = [row for row in one.rows if row is not one.lightest]
    return errors(ratios_of(one.device, rest, known)), known["fixed"]


@click.command("served")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the calibration files.")
@click.option("--date", default="2026-11-22", show_default=True, help="Day of the fit, for the files.")
def fit_served(file: Path, out: Path, date: str) -> None:
    """Fit the constants of MI300X and MI355X to their rows in FILE, a table of InferenceX's runs."""
    rows = read_file(file, {})[1]
    devices = {name: served(name, rows) for name in SINCE}
    values = {name: fit_rows(one.device, one.rows, tuple(UNKNOWNS), expected()) for name, one in devices.items()}
    other_of = dict(zip(SINCE, reversed(SINCE)))
    carried = {name: ratios_of(one.device, one.rows, values[other_of[name]]) for name, one in devices.items()}
    both_ways = np.concatenate(list(carried.values()))
    for name, one in devices.items():
        one_row, fixed = told(one, values[other_of[name]])
        held = {
            f"constants of {other_of[name]}": errors(carried[name]),
            f"constants of {other_of[name]}, fixed seconds of one row ({fixed})": one_row,
            "own rows, fitted": errors(ratios_of(one.device, one.rows, values[name])),
        }
        for what, others in one.others.items():
            held |= {what: errors(ratios_of(one.device, others, values[name]))} if others else {}
        found = _banded(one.device.calibration(values[name]), one_row["tpot"])
        facts = {"date": date, "command": f"python -m tools.fitting served FILE --out {out.name}"}
        update = {
            "provenance": _provenance(one, values[name]) | facts,
            "held_out": {"serving": held},
            "carried": errors(both_ways)["tpot"],
        }
        write_calibration(found.model_copy(update=update), out / f"{name}.yaml")
        click.echo(f"{out / name}.yaml: {values[name]}", err=True)
        for what, figure in held.items():
            click.echo(f"  {what}: {_said(figure)}", err=True)


def _provenance(one: Served, fitted: Values) -> dict[str, Any]:
    return {
        "source": "published kernels (tools/fitting/published/cdna.yaml) and serving rows of DeepSeek-R1, InferenceX",
        "licence": "published figures and results (Apache-2.0)",
        "rows": len(one.rows),
        "since": SINCE[one.device.name],
        "fitted": fitted,
        "carried_from": one.device.carried.provenance.get("devices", []),
    }


def _said(figure: Errors) -> str:
    return ", ".join(f"{k} {100 * v['mape']:.1f} % ({100 * v['bias']:+.0f}) of {v['n']}" for k, v in figure.items())


def _banded(found: Calibration, error: dict[str, float]) -> Calibration:
    """The same with the error of serving rows under the other device's constants: no kernel was measured alone.

    Kernels that none of those rows runs (:data:`SERVED`) have no known error.
    """

    def each(constants: Any) -> Any:
        return {
            kernel: {
                label: fit.model_copy(update={"error": error if kernel in SERVED else {}})
                for label, fit in formats.items()
            }
            for kernel, formats in constants.items()
        }

    libraries = {library: each(constants) for library, constants in found.libraries.items()}
    return found.model_copy(update={"constants": each(found.constants), "libraries": libraries})


@click.command("llama")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the calibration files.")
@click.option("--date", default="2026-11-22", show_default=True, help="Day of the fit, for the files.")
def fit_llama(file: Path, out: Path, date: str) -> None:
    """Fit llama.cpp's constants to FILE, a table of llama-bench rows, for each class of devices."""
    rows, slow = llama.read_rows(file)
    for name, published in llama.figures().items():
        own = [row for row in rows if llama.class_of(row.card) == name]
        found = llama.calibration(name, own)
        facts = {
            "source": f"llama-bench of May 2024 on {', '.join(sorted({row.card for row in own}))}; {published.source}",
            "licence": "published figures",
            "rows": len(own),
            "left_out": [run for run in slow if llama.class_of(run.partition(",")[0]) == name],
            "date": date,
            "command": f"python -m tools.fitting llama FILE --out {out.name}",
        }
        write_calibration(found.model_copy(update={"provenance": facts | found.provenance}), out / f"{name}.yaml")
        click.echo(f"{out / name}.yaml: {found.provenance['fitted']}", err=True)
        for what in ("tokens", "prompts"):
            error = found.held_out[what]
            said = (
                f"{100 * error['median']:.1f} % median, {100 * error['mape']:.1f} mean, {100 * error['bias']:+.1f} bias"
            )
            click.echo(f"  cards left out, {what}: {said} of {error['n']:.0f}", err=True)
