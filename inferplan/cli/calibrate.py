"""``inferplan calibrate``: measure this device with torch. ``calibrate`` is imported here only, and only when run."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from inferplan.cli.layers import Layered
from inferplan.cli.numbers import WholeNumber
from inferplan.cli.options import report_options, write
from inferplan.errors import MissingExtraError, ToleranceError
from inferplan.extras import installs
from inferplan.table import Report
from inferplan.units import parse_number

EXTRA = ("torch", "scipy", "matplotlib")
"""What must be there before anything is measured: the kernels, the fit, the figures of the report."""


class Duration(click.types.FloatParamType):
    """A time: 90s, 5m, 8m30s."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        import re

        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?", str(value).strip(), re.ASCII)
        seconds = sum(float(part or 0) * unit for part, unit in zip(match.groups(), (60, 1))) if match else 0.0
        if seconds <= 0:
            self.fail(f"{value!r} is not a time; write 90s, 5m or 8m30s", param, ctx)
        return seconds


class ShareType(click.types.FloatParamType):
    """A share: 20%, 0.2."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            share = parse_number(text.removesuffix("%").strip()) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 < share < 10:
            self.fail(f"{value!r} is not a share; write 20% or 0.2", param, ctx)
        return share


_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("calibrate", cls=Layered)
@click.option("--device", metavar="cuda|cpu|mps", help="Device to measure [the best that torch sees].")
@click.option("--budget", type=Duration(), default="5m", show_default=True, help="Wall time of the whole run.")
@click.option("--out", type=_FILE, help="File of the constants [configs/calibration/<hardware>.yaml].")
@click.option("--raw", type=_FILE, help="File of every measurement, as JSON lines [next to --out].")
@click.option(
    "--report",
    type=_FILE,
    help="The Markdown report; an HTML page and a picture (PNG) go with it [next to --out].",
)
@click.option("--resume", is_flag=True, help="Continue the raw file of a run that was cut short, or add to one.")
@click.option("--fit-only", "only_fit", is_flag=True, help="Measure nothing: fit and report what the raw file holds.")
@click.option(
    "--check", "only_check", is_flag=True, help="Repeat a sample and compare with stored constants; fit nothing."
)
@click.option(
    "--tolerance",
    type=ShareType(),
    help="Largest error of a kernel. Fit: mean factor on held-out shapes, less 1 [50%]. Check: median [20%].",
)
@click.option(
    "--keep-disturbed",
    is_flag=True,
    help="Write constants even if most visits were disturbed [such a run is refused, and kept as raw].",
)
@click.option("--calibration", type=_FILE, help="The constants to check [the file of --out].")
@click.option("--gpu", help="The device's entry in the catalogue [found by name and memory].")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    help="A model of yours, by name or path (repeatable): half of the shapes are from it, and its steps come first.",
)
@click.option("--new-hardware", type=_FILE, help="Write a hardware YAML of the measured ceilings.")
@click.option(
    "--seed",
    type=WholeNumber(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="Seed of random operands, shapes and the held-out part.",
)
@report_options
def calibrate_command(**values: Any) -> Report:
    """Run the model's operators on this device with torch, fit its constants, and say how far they are off.

    First come TTFT and TPOT of whole models, measured and predicted, which nothing is fitted to. Then come the errors
    per kernel on shapes that the fit never saw. Steps that other work disturbed are marked with *, and counted. Every
    measurement is kept in the raw file at once. Exit 6: --check found a kernel beyond --tolerance, or the machine was
    too disturbed to measure on.

    Example: inferplan calibrate --device cpu --budget 3m --out cpu.yaml --new-hardware cpu-hardware.yaml
    """
    started = time.perf_counter()
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"calibrate needs {', '.join(missing)}", hint=installs("calibrate"))
    from calibrate.cli import CheckFailedError, Options, execute

    try:
        return execute(Options(started=started, **values))
    except CheckFailedError as failed:
        write(failed.report, "table")
        raise ToleranceError(failed.what, failed.because, failed.hint) from None
