"""``inferplan measure``: a live server, timed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from inferplan.cli.declared import options_of, with_options
from inferplan.cli.layers import Layered
from inferplan.cli.numbers import Count
from inferplan.cli.options import API_KEY, key_asked, report_options, typed, watching, writable
from inferplan.cli.validate import FACTS_OF_DEPLOYMENT, deployment_facts, facts_of
from inferplan.errors import InferplanError, InputFileError, NetworkError, UsageError
from inferplan.extras import require
from inferplan.fields import option_values, question_of
from inferplan.files import save
from inferplan.measuring.definitions import Tool
from inferplan.measuring.loads import Bounds, LoadChoice
from inferplan.measuring.planned import PlannedLoad
from inferplan.measuring.session import MeasuringSettings
from inferplan.table import Report
from inferplan.validation.run import Pricing

if TYPE_CHECKING:
    from inferplan.measuring.session import Session, Watch


def _new_file(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Callback of ``--out``: a file that is there stays, unless --force. Raises ``InputFileError``."""
    if value is not None and Path(value).exists() and not ctx.resilient_parsing and not ctx.params.get("force"):
        raise InputFileError(
            f"{value} is there already", because="it may hold what was measured before", hint="--force"
        )
    return writable(ctx, parameter, value)


@click.command("measure", cls=Layered)
@click.argument("target", metavar="URL|PLAN.json")
@click.option("--url", metavar="URL", help="With a PLAN.json: the server, or the router in front of its replicas.")
@click.option("--requests", type=Count(), help="With a PLAN.json: requests to send [enough for its percentile].")
@click.option("--replicas", type=Count(), help="With a PLAN.json: how many of its replicas are behind --url [all].")
@click.option(
    "--out", "csv_file", metavar="FILE.csv", callback=_new_file, help="File of the rows, for validate and anchor fit."
)
@click.option("--force", is_flag=True, is_eager=True, help="Overwrite --out.")
@with_options(options_of(MeasuringSettings))
@click.option("--tokenizer", metavar="FOLDER", type=click.Path(exists=True), help="Count tokens with the model's own.")
@click.option(
    "--definition", type=click.Choice(get_args(Tool)), help="Show the figures also as this client defines them."
)
@with_options([API_KEY])
@deployment_facts
@with_options(options_of(Pricing, "calibration", "ideal"))
@report_options
def measure_command(target: str, csv_file: str | None, definition: Tool | None, **values: Any) -> Report:
    """Send random prompts to the OpenAI-compatible server at URL and time its streamed replies.

    The loads are one user at several prompt lengths, more users at a time, and open loops of --rate; one of each comes
    first. Every load is warmed up, and all stay within the bounds below. With the facts of the deployment (--model
    --gpu --tp --quant ..., or as the server states them) one load is held out, and the model, corrected by the others,
    is compared with it.

    With PLAN.json (inferplan plan ... -o) and --url, the load of the plan is sent: its lengths, rate or users, and
    think times. The answer says whether the service performs as planned; -o copy.json is the plan with the
    measurement.

    Example: inferplan measure http://localhost:8000 --gpu h100-sxm --tp 1 --quant bf16 --out own.csv
    """
    require("measure", "measure")
    from inferplan.measuring import session as sessions
    from inferplan.measuring.figures import csv_text, figure_rows
    from inferplan.reports.measuring import measured_report
    from inferplan.validation.held_out import Judged, judge

    of_plan = {name: values.pop(name) for name in ("url", "requests", "replicas")}
    if target.lower().endswith(".json"):
        return _of_plan(target, csv_file, of_plan, values)
    if given := [f"--{name}" for name, value in of_plan.items() if value is not None]:
        raise UsageError(f"{', '.join(given)} with an address", hint="inferplan measure PLAN.json --url URL")
    url, facts = target, facts_of(values, loaded=False)
    pricing = question_of(Pricing, values)
    _require_known(facts, pricing)
    session = sessions.start(_settings(url, values))
    _run(session)
    lines = figure_rows(session, _named(session, facts))
    unwritten = _written(csv_file, csv_text(lines)) if csv_file is not None and lines else None
    judged = judge(csv_file or url, csv_text(lines), pricing, facts) if lines else Judged(why="no load has figures")
    report = replace(measured_report(session, lines, judged, definition), ends=lambda: _leave(session, unwritten))
    if csv_file is not None and lines and unwritten is None:
        report.record["file"] = csv_file
        report = replace(report, notes=[*report.notes, _where(csv_file, len(lines), "empty" in judged.why)])
    return report


def _of_plan(path: str, csv_file: str | None, asked: Mapping[str, Any], values: dict[str, Any]) -> Report:
    """Send the load of a plan to its service; the plan with what was measured, and the verdict."""
    from inferplan.measuring import session as sessions
    from inferplan.measuring.figures import csv_text, figure_rows
    from inferplan.reports import plan_measured

    if given := _given_beside_plan():
        raise UsageError(
            f"{path} already states {', '.join(given)}",
            because="the plan has its own load and deployment",
            hint="leave them out, or measure the address alone",
        )
    if not asked["url"]:
        raise UsageError(f"{path} is a plan; the address of its service is missing", hint="--url http://localhost:8000")
    plan = plan_measured.PlanFile(path)
    replicas = asked["replicas"] or plan.replicas
    load = plan.load(replicas, asked["requests"])
    settings = _settings(asked["url"], values)
    session = sessions.start(replace(settings, planned=load, bounds=_bounds_of(load, settings.bounds)))
    click.echo(f"{load.requests:,} requests, {load.tokens:,} tokens, about {load.seconds:,.0f} s", err=True)
    _run(session)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    found = plan_measured.measurement(session, plan, load, now, replicas)
    lines = figure_rows(session, plan.facts)
    unwritten = _written(csv_file, csv_text(lines)) if csv_file is not None and lines else None
    if found is None:
        return replace(plan_measured.nothing_measured(plan), ends=lambda: _leave(session, unwritten))
    whole = plan.with_measurement(found)
    measured = whole.measurements[-1:]

    def ends() -> None:
        _leave(session, unwritten)
        plan_measured.require_as_planned(whole, measured)

    return replace(plan_measured.verdict_report(whole, measured, whole.data), ends=ends)


def _given_beside_plan() -> list[str]:
    """Options that a plan's file decides which were given all the same."""
    decided = {one.name for one in options_of(LoadChoice)} | {
        one.name for one in options_of(Pricing, "calibration", "ideal")
    }
    decided |= {"definition"} | {name.replace("-", "_") for name in FACTS_OF_DEPLOYMENT} | {"backend"}
    return typed(decided)


_MORE = 64
"""Requests and, times the longest request, tokens that it takes to learn how a server wants to be asked."""


def _bounds_of(load: PlannedLoad, asked: Bounds) -> Bounds:
    """The bounds of a run of a plan's load: what it takes, where they were not given."""
    ctx = click.get_current_context()
    usual = {
        "requests": ("max_requests", load.requests + _MORE),
        "tokens": ("max_tokens", load.tokens + _MORE * (load.request_tokens + 512)),
        "seconds": ("max_minutes", 2 * load.seconds + 600.0),
    }
    left: dict[str, Any] = {
        field: most
        for field, (option, most) in usual.items()
        if ctx.get_parameter_source(option) is click.core.ParameterSource.DEFAULT
    }
    return replace(asked, **left)


def _written(path: str, text: str) -> InputFileError | None:
    """Write the CSV; the error where that fails, for the report still has the figures."""
    try:
        save(path, text)
    except InputFileError as error:
        return error
    return None


def _where(path: str, rows: int, incomplete: bool) -> str:
    options = "; state the empty cells there with the same options" if incomplete else ""
    return f"{rows} rows written to {path}: inferplan validate and inferplan anchor fit read them{options}"


def _require_known(facts: Mapping[str, str], pricing: Pricing) -> None:
    """Raise ``UnknownNameError``, ``SpecError``, ``InputFileError`` or ``UsageError`` for names and constants that
    cannot price: before anything is sent."""
    from inferplan.catalog.assemble import load_engine
    from inferplan.catalog.calibrations import load_calibration
    from inferplan.catalog.files import load_hardware, load_model
    from inferplan.devices.engine import EngineFlags
    from inferplan.estimate.formats import native_precision
    from inferplan.validation.deploy import engine_of
    from inferplan.validation.names import formats_of_label

    for name, reader in (("model", load_model), ("gpu", load_hardware), ("engine", load_engine)):
        if name in facts:
            reader(facts[name])
    if "engine_version" in facts and (note := engine_of(facts["engine"], facts["engine_version"], EngineFlags())[1]):
        click.echo(f"note: {note}", err=True)
    for name in ("tp", "pp", "ep", "dp"):
        if name in facts and not (facts[name].isascii() and facts[name].isdigit() and int(facts[name][:9]) > 0):
            raise UsageError(f"--{name} is {facts[name]!r}", because="a group has one device or more")
    if {"model", "gpu", "precision"} <= facts.keys() and facts["precision"].lower() != "native":
        formats_of_label(
            facts["precision"].lower(), native_precision(load_model(facts["model"])), load_hardware(facts["gpu"])
        )
    if "gpu" in facts:
        load_calibration(load_hardware(facts["gpu"]), pricing.calibration, pricing.ideal)


def _settings(url: str, values: dict[str, Any]) -> MeasuringSettings:
    """The options as one object. Raises ``UsageError`` for an address, a key or lists that cannot be used."""
    from inferplan.measuring.address import address_of
    from inferplan.measuring.tokens import local_counter

    folder = values["tokenizer"]
    return MeasuringSettings(
        address=address_of(url),
        key=key_asked(values["api_key_env"]),
        count=None if folder is None else local_counter(Path(folder)),
        **option_values(MeasuringSettings, values),
    )


def _run(session: Session) -> None:
    """Measure, with a bar on a terminal and in silence elsewhere."""
    with watching() as watch:
        _measure(session, watch)


def _measure(session: Session, watch: Watch) -> None:
    """Run the session; Ctrl-C ends it and keeps what is there."""
    from inferplan.measuring.session import close_interrupted, measure

    try:
        asyncio.run(measure(session, watch))
    except KeyboardInterrupt:
        if not session.loads:
            raise
        close_interrupted(session)


def _named(session: Session, facts: Mapping[str, str]) -> dict[str, str]:
    """The facts with the model's name, where the server has one that the catalogue knows."""
    from inferplan.catalog.files import find

    found = {"served_model": session.server.model if session.server else "", **facts}
    server = session.server
    for name in (server.source, server.model) if server and "model" not in facts else ():
        try:
            found["model"] = find("models", name).stem
            break
        except InferplanError:
            continue
    return found


def _leave(session: Session, unwritten: InputFileError | None) -> None:
    """Exit 4 where the CSV could not be written, 130 after Ctrl-C, 5 where the server failed most of what was asked or
    answered nothing in time, 2 where the bounds left no load."""
    if unwritten is not None:
        raise unwritten
    if session.kind == "interrupted":
        raise click.Abort
    if session.kind == "time" and not any(one.good for one in session.loads):
        raise NetworkError(
            f"{session.settings.address.root} was not measured",
            because=f"{session.ended}, and no load had a reply",
            hint="a longer --max-minutes; is this the address of an inference server?",
        )
    if session.left_out and not session.loads:
        raise UsageError(
            "nothing was measured",
            because=f"every load is out of bounds: {session.left_out[0][1]}",
            hint="--lengths, --prompt, --output, --max-requests, --max-tokens",
        )
    bad = [one for one in session.loads if not one.usable]
    replies = [reply for one in session.loads for reply in one.replies]
    failed = [reply for reply in replies if not reply.ok]
    if session.kind == "failed" or (replies and 2 * len(failed) > len(replies)):
        raise NetworkError(
            f"{len(failed)} of {len(replies)} requests failed",
            because=failed[-1].error if failed else session.ended,
            hint=f"{len(session.loads) - len(bad)} loads were measured and are in the report",
        )
