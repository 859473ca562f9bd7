"""``inferplan calibrate`` and ``python -m calibrate`` once torch is there: a run or a check, its files and its talk."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from calibrate.designs import require_room
from calibrate.device.device import Device, identify, match
from calibrate.device.measurer import Measurer
from calibrate.device.memory import block_bytes
from calibrate.device.torch_measurer import TorchMeasurer
from calibrate.files import require_writable, write_bytes, write_calibration, write_text, write_yaml
from calibrate.session.check import Checked, check
from calibrate.session.figures import png, whole_figure
from calibrate.session.fitting import Outcome, fit, pooled_errors
from calibrate.session.glue import with_glue
from calibrate.session.raw_file import RawFile, Session, read
from calibrate.session.report import (
    disturbances,
    headline,
    held_out_table,
    legend,
    markdown,
    opening,
    percent,
    shortfalls,
    webpage,
    whole_table,
)
from calibrate.session.run import Run
from calibrate.session.settings import QUICK, Progress, Settings
from calibrate.session.steps import StepRow, errors_of, step_rows
from inferplan.catalog.files import config_root, load_hardware, load_model, read_yaml, validate
from inferplan.devices.constants import Calibration
from inferplan.errors import InputFileError, ToleranceError, UsageError
from inferplan.table import Report, Table
from inferplan.units import format_quantity


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line of a calibration. Paths that are ``None`` follow from the device's name."""

    device: str | None = None
    budget: float = 300.0
    out: Path | None = None
    raw: Path | None = None
    report: Path | None = None
    resume: bool = False
    only_fit: bool = False
    only_check: bool = False
    tolerance: float | None = None
    """Largest error of a kernel; ``None`` takes that of writing, or of a check (:class:`Settings`)."""
    keep_disturbed: bool = False
    calibration: Path | None = None
    gpu: str | None = None
    new_hardware: Path | None = None
    seed: int = 0
    models: tuple[str, ...] = ()
    """Models of the user's own, by name or path: their shapes are half of those measured."""
    started: float | None = None
    """When the program began, on ``time.perf_counter``: imports count as time spent."""


def execute(options: Options, measurer: Measurer | None = None) -> Report:
    """What the options ask for. Raises ``ToleranceError`` when a check fails; Ctrl-C keeps what was measured."""
    if options.gpu:
        load_hardware(options.gpu)  # a name that nobody has is said before anything is measured
    for model in options.models:
        load_model(model)
    device = measurer.device if measurer else identify(options.device)
    click.echo(device.describe(), err=True)
    if measurer is None:
        measurer = torch_measurer(device, options.budget, options.seed)
    spent = 0.0 if options.started is None else max(0.0, time.perf_counter() - options.started)
    settings = Settings(
        budget=options.budget,
        spent=spent,
        seed=options.seed,
        gpu=options.gpu,
        models=options.models,
        keep_disturbed=options.keep_disturbed,
    )
    if options.tolerance is not None:
        settings = replace(settings, tolerance=options.tolerance, written=options.tolerance)
    require_room(settings.design_on(device.kind), device.memory)
    return _check(options, measurer, settings) if options.only_check else _run(options, measurer, settings)


def torch_measurer(device: Device, budget: float, seed: int) -> TorchMeasurer:
    """The device that torch runs on, with blocks of operands for a run of ``budget`` seconds."""
    return TorchMeasurer(device, seed, block_bytes(device, budget, short=budget < QUICK))


def _run(options: Options, measurer: Measurer, settings: Settings) -> Report:
    device = measurer.device
    if options.only_fit and options.raw is not None:
        device = device_of(options.raw)
    out = options.out or default_out(options, device)
    raw_path = options.raw or out.with_suffix(".jsonl")
    report_path = options.report or out.with_suffix(".md")
    _require_apart(
        {
            "--out": out,
            "--raw": raw_path,
            "--report": report_path,
            "the page beside --report": report_path.with_suffix(".html"),
            "the picture beside --report": report_path.with_suffix(".png"),
            "--new-hardware": options.new_hardware,
        }
    )
    for path in filter(None, (out, raw_path, report_path, options.new_hardware)):
        require_writable(path)
    if options.only_fit:
        session, device = read(raw_path), device_of(raw_path)
    else:
        session = _measured(raw_path, options, measurer, settings)
    try:
        outcome = with_glue(fit(session, device, settings))
    except ToleranceError:
        click.echo(f"every measurement is kept in {raw_path}", err=True)
        raise
    write_calibration(outcome.calibration, out)
    rows = step_rows(outcome)
    picture = report_path.with_suffix(".png")
    if rows:
        write_bytes(picture, png(whole_figure(rows, outcome)))
    write_text(report_path, markdown(outcome, picture.name))
    write_text(report_path.with_suffix(".html"), webpage(outcome))
    if options.new_hardware is not None:
        if outcome.new_hardware is None:
            click.echo(f"{outcome.hardware.name} is in the catalogue: no new hardware file is needed", err=True)
        else:
            write_yaml(options.new_hardware, outcome.new_hardware)
    files = {"calibration": out, "raw": raw_path, "report": report_path, "page": report_path.with_suffix(".html")}
    files |= {"picture": picture} if rows else {}
    return summary(outcome, {name: str(path) for name, path in files.items()})


def _require_apart(files: dict[str, Path | None]) -> None:
    """Raise ``UsageError`` where one file of a run would be written over another; measurements would be lost."""
    taken: dict[Path, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise UsageError(
                f"{other} and {option} are the same file, {path}",
                because="one would be written over the other",
                hint="--out x.yaml --raw x.jsonl --report x.md; names that are not given follow from --out",
            )


def device_of(path: Path) -> Device:
    """The device that a raw file was measured on, whatever this machine is. Raises ``InputFileError``."""
    session = read(path)
    if not session.provenance:
        raise InputFileError(f"{path} holds no measurements", hint="run the calibration itself")
    try:
        return Device.of(session.provenance[-1]["device"])
    except TypeError as error:
        raise InputFileError(f"{path} does not describe its device", because=str(error)) from None


def _measured(path: Path, options: Options, measurer: Measurer, settings: Settings) -> Session:
    """What a run measures, and keeps in its raw file."""
    raw = RawFile.open(path, options.resume)
    try:
        with progress_bar() as progress:
            Run(measurer, raw, settings, progress).measure()
    except KeyboardInterrupt:
        samples = sum(map(len, raw.session.samples.values()))
        click.echo(f"interrupted: {samples} samples are kept in {path}", err=True)
        click.echo("hint: the same command with --resume goes on from them", err=True)
        raise
    finally:
        raw.close()
    return raw.session


def default_out(options: Options, device: Device) -> Path:
    """``configs/calibration/<hardware>.yaml``; ``-torch`` after the name where constants of other kernels are there."""
    known = None if options.gpu else match(device)
    name = options.gpu or (known.name if known else device.slug)
    folder = config_root() / "calibration"
    path = folder / f"{name}.yaml"
    if path.is_file() and not (path.with_suffix(".jsonl")).is_file():
        path = folder / f"{name}-torch.yaml"
    if not os.access(folder, os.W_OK):
        raise InputFileError(f"cannot write {path}", because="the installed configs are read-only", hint="--out FILE")
    return path


def _check(options: Options, measurer: Measurer, settings: Settings) -> Report:
    path = options.calibration or options.out or default_out(options, measurer.device)
    stored = validate(path, read_yaml(path), Calibration)
    with progress_bar() as progress:
        found = check(measurer, stored, settings, progress)
    report = check_report(found, path, settings.tolerance)
    rows, bad = found.rows, [row for row in found.rows if not row.within]
    if bad:
        raise CheckFailedError(
            f"{len(bad)} of {len(rows)} kernels are off by more than {percent(settings.tolerance)}",
            because="; ".join(f"{r.kernel} {r.label}: median {percent(r.median)}, bias {percent(r.bias)}" for r in bad),
            hint="a quieter machine, a larger --tolerance, or a new calibration",
            report=report,
        )
    return report


class CheckFailedError(ToleranceError):
    """A check outside its tolerance (exit 6); ``report`` is the table to show before the message."""

    def __init__(self, what: str, because: str, hint: str, report: Report) -> None:
        self.report = report
        super().__init__(what, because, hint)


def check_report(found: Checked, path: Path, tolerance: float) -> Report:
    """What a check found: how many kernels hold, then kernel by kernel, those outside the tolerance first; and which
    were not repeated."""
    rows = found.rows
    ordered = sorted(rows, key=lambda row: (row.within, -row.median))
    cells = [
        [
            r.kernel,
            r.label,
            f"{r.shapes}{' *' if r.disturbed else ''}",
            percent(r.median),
            f"{100 * r.bias:+.1f} %",
            "yes" if r.within else "NO",
        ]
        for r in ordered
    ]
    columns = ["kernel", "format", "shapes", "median error", "bias", "within"]
    table = Table(title=f"Check of {path}", columns=columns, rows=cells, right=frozenset(columns[2:5]))
    records = [
        {
            "kernel": r.kernel,
            "format": r.label,
            "shapes": r.shapes,
            "disturbed": r.disturbed,
            "median_error": r.median,
            "bias": r.bias,
            "within": r.within,
        }
        for r in ordered
    ]
    held, lost = sum(r.within for r in rows), sum(r.disturbed for r in rows)
    said = f"{held} of {len(rows)} kernels are within {percent(tolerance)}: the median of |predicted/measured - 1|."
    notes = [f"{said} A bias above zero: the device is faster now than the constants say."]
    if lost:
        notes.append(f"*: other work disturbed every repeat of some shapes, {lost} of {sum(r.shapes for r in rows)}.")
    skipped = {" ".join(group): why for group, why in sorted(found.unchecked.items())}
    notes += [f"Not checked: {what}: {why}." for what, why in skipped.items()]
    record = {"kernels": records, "tolerance": tolerance, "not_checked": skipped}
    return Report(record=record, tables=[table], notes=notes, rows=records, headline=said)


def summary(outcome: Outcome, files: dict[str, str]) -> Report:
    """What a run found, for stdout."""
    steps, pooled = step_rows(outcome), pooled_errors(outcome)
    facts = outcome.calibration.provenance
    tables = [*([whole_table(steps, picture=True)] if steps else []), held_out_table(outcome)]
    records = [
        {"kernel": kernel, "format": label, **{name: v for name, v in figures.items() if name != "worst_shape"}}
        for kernel, formats in outcome.calibration.held_out.items()
        for label, figures in formats.items()
    ]
    record = {
        "hardware": outcome.hardware.name,
        "bandwidth": format_quantity(outcome.hardware.memory.bandwidth, "B/s"),
        "shapes": facts["shapes"],
        "samples": facts["samples"],
        "files": files,
        "held_out": records,
        "held_out_median": {kernel: one.median for kernel, one in pooled.items()},
        "held_out_mean_factor": {kernel: one.factor for kernel, one in pooled.items()},
        "whole_models": [_step_record(row) for row in steps],
        "whole_models_error": {
            name: None if found is None else asdict(found)
            for name, found in (
                ("all", errors_of(steps)),
                ("undisturbed", errors_of([row for row in steps if not row.disturbed])),
            )
        },
        "held_out_model": facts.get("held_out_model"),
        "not_written": facts["not_written"],
        "refused": facts["refused"],
        "failed": facts["failed"],
    }
    said = [*filter(None, [opening(outcome, steps)]), *legend(steps)]
    said += [f"{facts['shapes']} shapes, {facts['samples']} visits, {len(facts['refused'])} refused."]
    said += disturbances(facts)
    said += shortfalls(facts)
    said += [f"{kernel}, all formats: {one.describe()}." for kernel, one in pooled.items()]
    said += [f"{name}: {path}" for name, path in files.items()]
    return Report(record=record, tables=tables, notes=said, rows=records, headline=headline(steps) if steps else "")


def _step_record(row: StepRow) -> dict[str, Any]:
    step = row.step
    load = {"model": step.model, "mode": step.mode, "batch": step.batch, "new": step.new, "past": step.past}
    times = {"measured_s": row.measured, "predicted_s": row.predicted, "error": row.off}
    return load | times | {"disturbed": row.disturbed, "kernels_without_constants": list(row.bare)}


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on stderr that shows what is being measured; nothing where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:32}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("begin", total=1.0)
        yield lambda what, part: bar.update(task, description=what[:32], completed=min(max(part, 0.0), 1.0))
