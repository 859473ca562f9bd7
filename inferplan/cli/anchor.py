"""``inferplan anchor``: which runs to measure, and what they make of predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from inferplan.answers.anchoring import DEGREES
from inferplan.catalog.assemble import Request
from inferplan.cli.declared import options_of, with_options
from inferplan.cli.layers import Layered
from inferplan.cli.numbers import Count
from inferplan.cli.options import deployment_options, report_options, without, writable
from inferplan.cli.validate import facts_of, predict_rows, supplied_options
from inferplan.errors import UsageError
from inferplan.fields import question_of
from inferplan.files import save
from inferplan.table import Report
from inferplan.units import parse_whole
from inferplan.validation.run import Pricing


@click.group("anchor")
def anchor_command() -> None:
    """Measure a few runs of your own system and correct its predictions by them, with a band of their own.

    `suggest` says which runs tell most, with the commands; `fit` reads their results into a file; --anchor FILE of
    estimate, explain, simulate, plan, sweep, compare, cost, plot and validate takes it (docs/anchors.md). `host` reads
    what the host takes from runs of one user.
    """


@anchor_command.command("suggest", cls=Layered)
@deployment_options
@click.option("--runs", type=Count(), default=3, show_default=True, help="Number of runs to measure.")
@click.option(
    "--concurrency", default="1-256*4", show_default=True, metavar="COUNTS", help="Users per replica asked about."
)
@click.option("--prompt", default="1024,8192", show_default=True, metavar="COUNTS", help="Prompt tokens asked about.")
@click.option("--output", default="1024", show_default=True, metavar="COUNTS", help="Generated tokens.")
@click.option(
    "--division", "divisions", multiple=True, metavar="tp=4,ep=4", help="Another division asked about; repeat for more."
)
@click.option("--checkpoint", help="Repository or path of the weights [MODEL, or the source of its file].")
@report_options
def suggest_command(request: Request, runs: int, divisions: tuple[str, ...], **values: Any) -> Report:
    """The runs of MODEL to measure: those that leave the least unknown about the loads asked about.

    Each comes with the commands of its server and of the engine's benchmark client. Loads that the engine cannot run
    at once are left out. With --anchor, the next runs after those in the file.

    Example: inferplan anchor suggest llama-3.1-8b --gpu h100-sxm --concurrency 1-64*4 --prompt 1024,4096
    """
    from inferplan.answers.anchoring import AnchorLoads, suggest
    from inferplan.lists import parse_counts
    from inferplan.reports.anchoring import suggestion_report

    asked = {"--concurrency": "concurrency", "--prompt": "prompt", "--output": "output"}
    loads = AnchorLoads(*(parse_counts(values[name], option) for option, name in asked.items()))
    requests = [request, *(_divided(request, text) for text in divisions)]
    return suggestion_report(suggest(requests, loads, runs, values["checkpoint"]))


without(suggest_command, "replicas")  # a run is of one replica


def _divided(request: Request, text: str) -> Request:
    """The request divided as ``tp=4,ep=4`` says; degrees that it leaves out are 1."""
    degrees: dict[str, Any] = dict.fromkeys(DEGREES, 1)
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        try:
            if name not in DEGREES:
                raise ValueError(name)
            degrees[name] = parse_whole(value)
        except ValueError:
            raise UsageError(f"--division {text!r} is not a division", hint="tp=4,ep=4") from None
    return replace(request, parallel=replace(request.parallel, **degrees))


@anchor_command.command("fit", cls=Layered)
@click.argument("files", nargs=-1, required=True, metavar="RESULTS...")
@supplied_options
@click.option(
    "--out", "anchor_file", "-o", required=True, metavar="FILE.yaml", callback=writable, help="File to write."
)
@with_options(options_of(Pricing, without=["anchor"]))
@click.option("--format", "style", type=click.Choice(["table", "json", "csv", "markdown"]), help="Output format.")
def fit_command(files: tuple[str, ...], anchor_file: str, style: str | None, **values: Any) -> None:
    """Read measured RESULTS of one system and write them as an anchor, for --anchor of the other commands.

    Reads all files that `inferplan validate` reads; the options below fill in facts that a file lacks. Suspect and
    impossible runs, separate pools and drafts are left out, each with its reason.

    Example: inferplan anchor fit run-1.json run-2.json run-3.json -o own.yaml
    """
    from inferplan.cli.options import write
    from inferplan.reports.anchoring import anchor_report
    from inferplan.reports.validation import above_notes, prediction_notes
    from inferplan.validation.anchor import anchor_of, anchor_yaml, require_unopposed
    from inferplan.validation.importers import read_file

    supplied = facts_of(values)
    rows = [row for path in files for row in read_file(Path(path), supplied)[1]]
    require_unopposed(rows)
    pricing = question_of(Pricing, values)
    scored = predict_rows(rows, pricing)
    found = anchor_of(scored, pricing, ", ".join(files))
    save(anchor_file, anchor_yaml(found.anchor))
    notes = [*above_notes(scored), *prediction_notes(scored)]
    write(anchor_report(found, anchor_file, notes), style or "table")


@anchor_command.command("host", cls=Layered)
@click.argument("files", nargs=-1, required=True, metavar="RESULTS...")
@supplied_options
@report_options
def host_command(files: tuple[str, ...], **values: Any) -> Report:
    """The host's times, from RESULTS of one user, as options of estimate, simulate and plan. Reads all files that
    `inferplan validate` reads; rows of more users are left out. A first token of one user waits for the host and its
    prompt's kernels alone: short prompts say the most.

    Example: inferplan anchor host one-user.json --gpu h100-sxm
    """
    from inferplan.reports.anchoring import host_report
    from inferplan.reports.validation import above_notes, prediction_notes
    from inferplan.validation.anchor import require_unopposed
    from inferplan.validation.host import host_of
    from inferplan.validation.importers import read_file

    supplied = facts_of(values)
    rows = [row for path in files for row in read_file(Path(path), supplied)[1]]
    require_unopposed(rows)
    scored = predict_rows(rows, Pricing())
    return host_report(host_of(scored), [*above_notes(scored), *prediction_notes(scored)])
