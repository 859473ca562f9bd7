"""``inferplan sweep``."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

import click

from inferplan.answers.drafting import Drafting, DraftsTried
from inferplan.answers.sweep import BACKENDS, DEGREES, Execution, Grid, Sweep, save_parquet, sweep
from inferplan.catalog.assemble import Request
from inferplan.catalog.counted import counted
from inferplan.cli.declared import asks, options_of, with_options
from inferplan.cli.layers import Layered
from inferplan.cli.options import (
    BACKEND_HELP,
    backends,
    engine_option,
    usual_engines,
    writable,
    write,
)
from inferplan.devices.engine import EngineFlags
from inferplan.errors import UsageError
from inferplan.extras import require
from inferplan.fields import question_if_asked, question_of
from inferplan.lists import parse_copies, parse_counts, parse_values
from inferplan.reports.progress import progress_counter
from inferplan.reports.sweep import sweep_report
from inferplan.table import FORMATS, format_of
from inferplan.units import parse_number

_COUNTS = "1,8 or 1-8 or 1-64*2"


def _kernels(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> Any:
    """Callback of ``--backend``, which was the name of ``--executor``: a word of that is still taken, and said."""
    places = [word for word in given if word in BACKENDS]
    for place in places:
        click.echo(f"note: --backend {place} is now --executor {place}; --backend names kernels", err=True)
    return places[-1:], backends(ctx, parameter, tuple(word for word in given if word not in BACKENDS))


@click.command("sweep", cls=Layered)
@click.argument("models")
@click.option("--gpu", required=True, metavar="LIST", help="Accelerators.")
@click.option("--quant", metavar="LIST", help="Formats [native].")
@engine_option("Engines.", metavar="LIST")
@click.option("--tp", default="1", metavar="COUNTS", help=f"Tensor parallelism: {_COUNTS} [1].")
@click.option("--pp", default="1", metavar="COUNTS", help="Pipeline stages [1].")
@click.option("--ep", default="1", metavar="COUNTS", help="Expert groups [1].")
@click.option("--dp", default="1", metavar="COUNTS", help="Attention data parallelism [1].")
@click.option("--cp", default="1", metavar="COUNTS", help="Context parallelism [1].")
@click.option("--replicas", default="1", metavar="COUNTS", help="Replicas [1].")
@click.option("--redundant-experts", metavar="COUNTS", help="Slots for copies of experts, such as 0,32 [0].")
@click.option("--two-batch-overlap", is_flag=True, help="Also price two half batches that overlap.")
@click.option(
    "--expert-skew", metavar="SKEWS", help="Expert imbalance (sigma of a log-normal; 0 is even), such as 0,0.5,1."
)
@click.option("--batch", default="1", metavar="COUNTS", help="Sequences per replica [1].")
@click.option("--prompt", default="1024", metavar="COUNTS", help="Prompt tokens [1024].")
@click.option("--output", default="256", metavar="COUNTS", help="Generated tokens [256].")
@asks(DraftsTried)
@click.option("--calibration", metavar="FILE", help="Fitted constants [per GPU, if on file].")
@with_options(options_of(Request, "anchor", "ideal"))
@click.option("--simulate", "simulated", is_flag=True, help="Simulate each point as a closed loop of --batch users.")
@click.option("--backend", metavar="ROLE=NAME", multiple=True, callback=_kernels, help=BACKEND_HELP)
@with_options(options_of(Execution))
@click.option("--format", "style", type=click.Choice(FORMATS), help="Output format [table, or by -o's suffix].")
@click.option("-o", "report_file", metavar="FILE", callback=writable, help="Write to a file; .parquet too.")
def sweep_command(models: str, style: str | None, report_file: str | None, **values: Any) -> None:
    """A grid over any axes: every combination is priced as a static batch. Lists are a,b,c; counts also 1-8,
    128-1024+128, 1-256*2. Structures run in parallel on all cores, or on a dask cluster. Points that cannot exist or
    do not fit are kept, with the reason in status. With --draft each structure is priced without drafts and with each
    number of drafts (column draft_tokens).

    Example: inferplan sweep llama-3.1-8b --gpu a100-80gb-sxm,h100-sxm --batch 1-256*2 --prompt 512,2048 -o grid.csv
    """
    parquet = report_file is not None and report_file.endswith(".parquet")
    if parquet:
        require("parquet", "a Parquet file")
    style = "table" if parquet else format_of(report_file, style)
    if numbered := [text for text in parse_values(values["gpu"]) if counted(text).number is not None]:
        raise UsageError(f"--gpu {numbered[0]}: a sweep takes GPUs without a number", hint="--tp 1-8*2 --replicas 1-4")
    counts = {name: parse_counts(values[name], f"--{name}") for name in DEGREES}
    places, chosen = values["backend"]
    values["executor"] = values["executor"] or next(iter(places), None)
    grid = Grid(
        base=Request(
            model="",
            gpu="",
            calibration=values["calibration"],
            ideal=values["ideal"],
            anchor=values["anchor"],
            flags=EngineFlags(backends=chosen or ()),
        ),
        structure={
            "model": parse_values(models),
            "gpu": parse_values(values["gpu"]),
            "quant": parse_values(values["quant"]) if values["quant"] else [None],
            "engine": list(
                usual_engines(
                    values["engine"], *(parse_values(text or "") for text in (models, values["gpu"], values["quant"]))
                )
            ),
            **counts,
            **_spread(values),
        },
        batch=parse_counts(values["batch"], "--batch"),
        prompt=parse_counts(values["prompt"], "--prompt"),
        output=parse_counts(values["output"], "--output"),
        simulated=values["simulated"],
        drafting=_drafting(parse_values(models), values),
    )
    result = _run(grid, values)
    result.require_points()
    if parquet and report_file is not None:
        save_parquet(result, report_file)
        click.echo(f"{len(result.columns)} points written to {report_file}", err=True)
        return
    report = sweep_report(result)
    kernels = [f"{role} kernels are those timed by {name} (--backend)" for role, name in chosen or ()]
    write(replace(report, notes=[*report.notes, *kernels]), style, report_file)


def _spread(values: dict[str, Any]) -> dict[str, list[Any]]:
    """The axes of experts that are spread which are asked for. Raises ``UsageError`` for a popularity that is none."""
    axes: dict[str, list[Any]] = {}
    if values["redundant_experts"]:
        axes["redundant"] = list(parse_copies(values["redundant_experts"]))
    if values["two_batch_overlap"]:
        axes["two_batch_overlap"] = [False, True]
    if values["expert_skew"]:
        try:
            axes["expert_skew"] = [parse_number(part) for part in parse_values(values["expert_skew"])]
        except ValueError:
            axes["expert_skew"] = [nan]
        if not all(0 <= skew <= 3 for skew in axes["expert_skew"]):
            raise UsageError(f"--expert-skew: {values['expert_skew']!r} is not in 0 to 3", hint="0,0.5,1")
    return axes


def _drafting(models: list[str], values: dict[str, Any]) -> dict[str, tuple[Drafting, ...]]:
    """The draftings of each model; none without ``--draft``."""
    asked = question_if_asked(DraftsTried, values)
    found = {} if asked is None else {model: asked.draftings(model) for model in models}
    return {model: drafting for model, drafting in found.items() if drafting}


def _run(grid: Grid, values: dict[str, Any]) -> Sweep:
    execution = question_of(Execution, values)
    with progress_counter("structures", len(grid.tasks())) as progress:
        return sweep(grid, replace(execution, progress=progress))
