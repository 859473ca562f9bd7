"""``python -m tools.accuracy cpu``: the run of :mod:`tools.accuracy.cpu`, its page and its picture."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from datetime import date
from pathlib import Path

import torch

from calibrate.files import write_text
from calibrate.session.figures import CAPTION, svg, whole_models
from calibrate.session.fitting import pooled_errors
from calibrate.session.report import headline, percent, whole_table
from calibrate.session.steps import errors_of
from inferplan.catalog.files import config_root
from inferplan.cli.calibrate import Duration
from inferplan.errors import InferplanError, MissingFactError, ToleranceError
from inferplan.table import Report, render
from inferplan.units import format_quantity
from tools.accuracy.cpu import DESIGN, Comparison, Sizes, base_formats, compare, predicted
from tools.accuracy.llama_cpp.parts import part_of

AIM = 0.15
"""The mean error that is aimed at on a calm machine."""
SMALL = Sizes(width=768, layers=4, heads=12, kv_heads=4, head_dim=64, inner=2048, vocab=16000)
"""A model whose steps take milliseconds: launches and glue count there."""


def page(found: Comparison, today: str, budget: float, picture: str) -> str:
    """The account of a run in Markdown."""
    rows, facts = found.rows, found.outcome.calibration.provenance
    parts = ["# Accuracy on a CPU", _head(found, today, budget)]
    parts += (
        [f"**Disturbed: {'; '.join(found.disturbances)}. These figures say little.**"] if found.disturbances else []
    )
    parts += [f"**{headline(rows)}**", f"![{CAPTION}]({picture})", CAPTION]
    parts += [render(Report(record={}, tables=[whole_table(rows)]), "markdown").strip()]
    sizes = found.sizes
    kernels = "; ".join(f"{kernel} {pooled.describe()}" for kernel, pooled in pooled_errors(found.outcome).items())
    hardware = found.outcome.hardware
    parts += [
        f"The model: width {sizes.width}, {sizes.layers} layers, {sizes.heads} heads and {sizes.kv_heads} KV heads of "
        f"{sizes.head_dim}, feed-forward {sizes.inner}, vocabulary {sizes.vocab}, random weights, a KV cache, "
        "`F.scaled_dot_product_attention` with `enable_gqa`, every step launched eagerly.",
        f"Laps: {found.laps} of all steps, of which {found.laps_disturbed} are left out because a thread waited for a "
        f"core in more than 5 % of them. The second timing is {percent(found.drift)} off the first (median of steps).",
        f"Calibration: {facts['shapes']} shapes in {facts['samples']} visits; "
        f"{format_quantity(hardware.memory.bandwidth, 'B/s')}; held-out errors: {kernels or 'too few shapes'}.",
    ]
    return "\n\n".join(parts) + "\n"


def _head(found: Comparison, today: str, budget: float) -> str:
    return (
        f"Made on {today} by `python -m tools.accuracy cpu` on {found.device.describe()}, in one process: a Llama "
        f"in plain torch (`tools/accuracy/independent_llama.py`) was timed, {budget:g} s of calibration followed on "
        f"shapes of {', '.join(DESIGN.models)}, and the model was timed again. No matmul and no attention of it is "
        "among the shapes; nothing is fitted to it. Predictions are those of `--engine none`."
    )


def main(arguments: list[str]) -> None:
    """Run, write the page and the picture, say the headline. Exit 6 when the machine was disturbed."""
    options = _options(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        _make(options)
    except InferplanError as error:
        print(error.render(), file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def _make(options: argparse.Namespace) -> None:
    sizes = SMALL if options.small else Sizes()
    with tempfile.TemporaryDirectory() as folder:
        raw = options.raw or Path(folder) / "cpu.jsonl"
        found = compare(options.budget, raw, options.formats, sizes, _say)
    if found.shared:
        raise MissingFactError(
            f"{found.shared} of the shapes that were measured are the model's own",
            because="the model must be one that no shape was taken from",
            hint="sizes that no model of tools.accuracy.cpu.DESIGN has",
        )
    picture = options.out.with_suffix(".svg")
    write_text(picture, svg(whole_models(found.rows, lambda step: predicted(sizes, step, found.outcome))) + "\n")
    kept = part_of(options.out)  # what tools.accuracy llama-cpp wrote
    write_text(options.out, page(found, options.date, options.budget, picture.name) + kept)
    table = whole_table(found.rows, picture=True)
    print(render(Report(record={}, tables=[table], notes=[headline(found.rows)]), "table"))
    _say(f"page: {os.path.relpath(options.out)}, picture: {os.path.relpath(picture)}")
    if found.disturbances:
        raise ToleranceError(
            "the machine was disturbed: the figures say little, and the page says so",
            because="; ".join(found.disturbances),
            hint="a machine where nothing else runs, or --threads with a core to spare",
        )
    mean = errors_of(found.rows)
    if mean is not None and mean.mean > AIM:
        _say(f"the mean error is above the aim of {percent(AIM)}")


def _options(arguments: list[str]) -> argparse.Namespace:
    what = (
        "Time a Llama that the calibrator has never seen, calibrate, time it again, and compare: one page, one picture."
    )
    parser = argparse.ArgumentParser(prog="python -m tools.accuracy cpu", description=what)
    parser.add_argument(
        "--budget", type=_seconds, default=200.0, help="of the calibration [3m20s]; timing comes on top"
    )
    parser.add_argument("--threads", type=int, help="threads of torch [its own choice]")
    parser.add_argument(
        "--formats", type=base_formats, default=["bf16", "fp32"], help="formats of the model [bf16,fp32]"
    )
    parser.add_argument("--small", action="store_true", help="a model of width 768 instead of 2048")
    parser.add_argument("--raw", type=Path, help="keep every measurement of the calibration here")
    parser.add_argument("--out", type=Path, default=config_root().parent / "docs" / "accuracy-cpu.md")
    parser.add_argument("--date", default=date.today().isoformat())
    return parser.parse_args(arguments)


def _seconds(text: str) -> float:
    return float(Duration().convert(text, None, None))


def _say(text: str) -> None:
    print(text, file=sys.stderr)
