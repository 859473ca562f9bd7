"""``inferplan watch``: a service that runs beside its plan, for as long as somebody watches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferplan.cli.declared import gets, with_options
from inferplan.cli.layers import Layered
from inferplan.cli.options import API_KEY, key_asked, report_options, writable
from inferplan.errors import InfeasibleError, InferplanError, InputFileError, ToleranceError, UsageError
from inferplan.extras import require
from inferplan.files import reason, save
from inferplan.table import Report, format_of, plain
from inferplan.watching.question import WatchAsked

if TYPE_CHECKING:
    from inferplan.watching.counters import Span
    from inferplan.watching.exported import ExportedService
    from inferplan.watching.minutes import Minute, Minutes
    from inferplan.watching.record import DayRates
    from inferplan.watching.summary import Summary

_HEADING_EVERY = 20
"""Lines after which a terminal is shown the heading again."""


@click.command("watch", cls=Layered)
@click.argument("urls", nargs=-1, metavar="URL...")
@click.option("--plan", "plan_file", metavar="PLAN.json", help="The plan (inferplan plan ... -o PLAN.json).")
@click.option("--replay", metavar="FILE", type=click.Path(exists=True, dir_okay=False), multiple=True,
              help="Instead of URLs: minutes of --record, or the JSON of a Prometheus server's query_range; repeat for "
                   "more files.")  # fmt: skip
@gets(asked=WatchAsked)
@click.option("--record", metavar="FILE", callback=writable, help="Append the minutes, for --replay.")
@click.option("--profile", metavar="FILE.csv", callback=writable,
              help="Write the rates by time of day at the end, for inferplan day --profile.")  # fmt: skip
@click.option("--listen", metavar="HOST:PORT", help="Serve the last minute as metrics for Prometheus.")
@click.option("--dashboard", metavar="FILE.json", callback=writable,
              help="Write a Grafana dashboard of those metrics, and end.")  # fmt: skip
@with_options([API_KEY])
@report_options
def watch_command(
    urls: tuple[str, ...], plan_file: str | None, replay: tuple[str, ...], asked: WatchAsked, **files: Any
) -> Report:
    """Compare a running service with its plan, one line per minute.

    Each URL is a vLLM or SGLang server: one replica of the plan. Only its /metrics are read; no request is sent. Each
    line has the measured and the predicted latency and the load left under the plan's limits. Changes follow below
    it: longer prompts, fewer prefix hits, slower steps, more load, a lost replica.

    Example: inferplan watch http://gpu1:8000 http://gpu2:8000 --plan plan.json --what-if replicas=-1 --for 24h
    """
    from inferplan.reports.watching import watched_report
    from inferplan.watching.record import DayRates
    from inferplan.watching.summary import Summary

    if files["dashboard"] is not None:
        return _dashboard(urls, plan_file, replay, files["dashboard"])
    if plan_file is None or bool(urls) == bool(replay):
        raise UsageError(
            "--plan is missing" if plan_file is None else "watch takes URLs, or --replay FILE",
            hint="inferplan watch http://localhost:8000 --plan plan.json",
        )
    if replay:
        _refuse_live(files)
    exported = _exported(replay)
    minutes = _minutes(plan_file, exported.servers if exported else len(urls) or None, asked)
    summary, rates = Summary(), DayRates()
    ends: Callable[[], None] | None = None
    with ExitStack() as stack:
        shows = [*_shows(stack, files), _printer()]
        try:
            for span, at, anew in _spans(urls, replay, exported, asked, files):
                rates.add(span, at)
                minute = minutes.add(span, at, anew)
                summary.add(minute)
                for show in shows:
                    show(minute)
                _end_on(asked, minute)
        except KeyboardInterrupt:
            if not summary.minutes:
                raise
        except (InfeasibleError, ToleranceError) as ended:
            ends = partial(_raise, ended)
    if files["profile"] is not None:
        _write_profile(files["profile"], rates, summary)
    return replace(watched_report(summary), ends=ends)


def _raise(error: InferplanError) -> None:
    raise error


def _dashboard(urls: tuple[str, ...], plan_file: str | None, replay: tuple[str, ...], path: str) -> Report:
    from inferplan.watching.exporter import METRICS, dashboard

    if urls or plan_file or replay:
        raise UsageError("--dashboard writes a file and watches nothing", hint="inferplan watch --dashboard watch.json")
    save(path, dashboard() + "\n")
    note = f"import {path} in Grafana; the metrics come from inferplan watch URL --plan PLAN.json --listen HOST:PORT"
    return Report(record={"dashboard": path, "metrics": dict(METRICS)}, notes=[note])


def _refuse_live(files: dict[str, Any]) -> None:
    given = [f"--{name}" for name in ("record", "listen") if files[name] is not None]
    if given:
        raise UsageError(f"{', '.join(given)} with --replay", because="a replay has no running service")


def _minutes(plan_file: str, servers: int | None, asked: WatchAsked) -> Minutes:
    """The plan as what is watched is held to. Raises what reading a plan does, and ``UsageError`` for pools."""
    from inferplan.reports.plan_measured import PlanFile
    from inferplan.reports.watching import held_to
    from inferplan.watching.minutes import Minutes

    plan = PlanFile(plan_file)
    if plan.planned.pools is not None:
        raise UsageError(
            f"{plan_file} has separate servers for prompts and decodes",
            because="neither of them counts the first token of a request alone",
            hint="a plan in one pool",
        )
    servers = servers or plan.replicas
    if servers != plan.replicas:
        click.echo(
            f"note: {servers} of the plan's {plan.replicas} replicas are watched; the load is held to their share",
            err=True,
        )
    twin, drift = held_to(plan, servers)
    return Minutes(twin=twin, drift=drift, what_ifs=asked.what_ifs)


def _spans(
    urls: tuple[str, ...], replay: tuple[str, ...], exported: ExportedService | None, asked: WatchAsked,
    files: dict[str, Any],
) -> Iterator[tuple[Span, float, int]]:  # fmt: skip
    """The minutes of the service, as they end."""
    if exported is not None:
        return exported.spans(asked.window, _note())
    return _recorded(replay) if replay else _live(urls, asked, files)


def _exported(replay: tuple[str, ...]) -> ExportedService | None:
    """What a Prometheus server kept of a service; ``None`` where the files are minutes of --record."""
    from inferplan.files import read_text
    from inferplan.measuring.range_export import is_export, read_exports
    from inferplan.watching.exported import ExportedService

    kinds = {one: is_export(_head(one)) for one in replay}
    if not any(kinds.values()):
        return None
    if not all(kinds.values()):
        minutes = next(one for one, export in kinds.items() if not export)
        raise UsageError(f"{minutes} is no export of a Prometheus server, as others are", hint="files of one kind")
    found = ExportedService(read_exports([(one, read_text(Path(one))) for one in replay]))
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    return found


def _head(path: str) -> str:
    """The first characters of a file; what is no text is said where it is read."""
    from inferplan.files import announce

    try:
        announce(Path(path))
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return file.read(10_000)
    except OSError as error:
        raise InputFileError(f"cannot read {path}", because=reason(error)) from None


def _recorded(replay: tuple[str, ...]) -> Iterator[tuple[Span, float, int]]:
    """Minutes of --record, file after file."""
    from inferplan.watching.record import read_spans

    note = _note()
    for one in replay:
        yield from read_spans(Path(one), lambda where: note(f"{where} was cut and is passed over"))


def _live(urls: tuple[str, ...], asked: WatchAsked, files: dict[str, Any]) -> Iterator[tuple[Span, float, int]]:
    """The minutes of servers that run, as they end."""
    require("measure", "watch")
    from inferplan.measuring.address import address_of
    from inferplan.watching.live import spans
    from inferplan.watching.minutes import Scrapes
    from inferplan.watching.record import append_span, span_line

    addresses = [address_of(url) for url in urls]
    roots = [one.root for one in addresses]
    if len(set(roots)) < len(roots):
        raise UsageError("a server is named twice", because=", ".join(roots), hint="each replica once")
    key = key_asked(files["api_key_env"])
    scrapes = Scrapes(servers=roots, length=asked.window)
    source = spans(addresses, key, asked.every, scrapes, asked.lasting, _note())

    async def ended() -> tuple[Span, float, int] | None:
        return await anext(source, None)

    with asyncio.Runner() as runner:
        while (found := runner.run(ended())) is not None:
            span, at, anew = found
            if files["record"] is not None:
                try:
                    append_span(Path(files["record"]), span_line(span, at, anew))
                except OSError as error:
                    raise InputFileError(f"cannot write {files['record']}", because=reason(error)) from None
            yield span, at, anew


def _note() -> Callable[[str], None]:
    """Says each text once, as a note."""
    seen = set[str]()

    def told(text: str) -> None:
        if text not in seen and len(seen) < 100:
            seen.add(text)
            click.echo(f"note: {text}", err=True)

    return told


def _shows(stack: ExitStack, files: dict[str, Any]) -> Iterator[Callable[[Minute], None]]:
    """Who is shown each minute beside the terminal: the exporter."""
    if files["listen"] is None:
        return
    from inferplan.watching.exporter import Exporter

    host, _, port = files["listen"].rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        raise UsageError(f"--listen {files['listen']} is no host and port", hint="--listen 127.0.0.1:9108")
    exporter = Exporter(host.strip("[]"), int(port[:9]))
    stack.callback(exporter.close)
    click.echo(f"metrics at http://{host}:{exporter.port}/metrics", err=True)
    yield exporter.show


def _printer() -> Callable[[Minute], None]:
    """Lines of a terminal, or JSON lines, on stdout; nothing where the whole goes elsewhere."""
    from inferplan.reports.watching import event_text, heading, minute_record, minute_text, what_if_text

    given = click.get_current_context().params
    style = format_of(given["report_file"], given["style"])
    if given["report_file"] is not None or style not in ("table", "jsonl"):
        return lambda minute: None
    shown = 0

    def show(minute: Minute) -> None:
        nonlocal shown
        if style == "jsonl":
            click.echo(json.dumps(plain(minute_record(minute))))
            return
        if shown % _HEADING_EVERY == 0:
            click.echo(heading())
        shown += 1
        click.echo(minute_text(minute))
        for line in (*what_if_text(minute), *(f"! {event_text(minute.at, one)}" for one in minute.events)):
            click.echo(line)

    return show


def _end_on(asked: WatchAsked, minute: Minute) -> None:
    """Raise ``InfeasibleError`` or ``ToleranceError`` where something happened that ends watching."""
    from inferplan.reports.watching import event_text

    for event in minute.events:
        limit = event.cause in ("ttft", "tpot", "e2el")
        if not event.back and ("limit" if limit else "drift") in asked.fail_on:
            kind = InfeasibleError if limit else ToleranceError
            raise kind(event_text(minute.at, event), hint="inferplan plan, with the load as it is now")


def _write_profile(path: str, rates: DayRates, summary: Summary) -> None:
    text = rates.csv()
    if not text:
        raise InputFileError(f"{path} was not written", because="no minute was watched")
    save(path, text)
    written = datetime.now(UTC).isoformat(timespec="seconds")
    click.echo(f"note: {path}: requests/s by the time of day (UTC), {summary.minutes:,} minutes, {written}", err=True)
