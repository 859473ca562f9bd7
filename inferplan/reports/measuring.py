"""A measured server as a report: what it answered, load by load, and how far the anchored model is from one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from inferplan.figures import Figure, side_by_side, text
from inferplan.figures import record as figures_record
from inferplan.measuring.definitions import DEFINITIONS, PERCENTILES, Tool, statistics
from inferplan.measuring.figures import LoadFigures, counted_replies, load_figures
from inferplan.measuring.loads import UsersLoad
from inferplan.measuring.planned import PlannedLoad
from inferplan.measuring.server import Server
from inferplan.measuring.session import MeasuredLoad, Session
from inferplan.reports.validation import above_notes
from inferplan.table import Report, Table
from inferplan.units import format_time
from inferplan.validation.held_out import HeldOut, Judged, count_clipped
from inferplan.validation.held_out import HeldOutLatency as Compared
from inferplan.validation.score import NAMES, Scored

_SELDOM = frozenset({"requests/s", "cached", "failed", "suspect"})
"""Columns that are left out where they say nothing."""
_LATE = 0.05
"""Share of a mean TTFT, or of the time in which the further tokens come, from which the lateness of stamps is said."""


def measured_report(
    session: Session, lines: Sequence[Mapping[str, str]], judged: Judged, tool: Tool | None = None
) -> Report:
    """Everything about a run. ``lines``: the rows of its CSV. tool: a client by whose definitions it is shown too."""
    found = [(one, load_figures(one)) for one in session.loads]
    tables = [_measured_table(session, found)]
    record = _record(session, found)
    if judged.scored:
        tables.append(
            side_by_side("predicted, without an anchor", _telling([_predicted(one) for one in judged.scored]))
        )
        record["predicted"] = [_scored_record(one) for one in judged.scored]
    record["held_out"] = None
    if (held := judged.held) is not None:
        tables.append(side_by_side(_held_title(held), [_held(one) for one in held.figures]))
        record["held_out"] = held_record(held)
    record["not_predicted"] = judged.why or None
    record["defined_by"] = None
    if tool is not None:
        defined = [row for one in session.loads for row in _defined(one, tool)]
        tables.append(side_by_side(f"the same replies by the definitions of {tool}", _telling(defined)))
        record["defined_by"] = {"client": tool, "rows": [figures_record(row) for row in defined]}
    notes = [*_notes(session, found), *_verdict(judged), *above_notes(judged.scored)]
    return Report(record=record, tables=tables, notes=notes, rows=[dict(line) for line in lines])


def _measured_table(session: Session, found: Sequence[tuple[MeasuredLoad, LoadFigures | None]]) -> Table:
    """Each load as it was measured."""
    return side_by_side(_title(session), _telling([_measured(one, known) for one, known in found]))


def _telling(rows: Sequence[list[Figure]]) -> list[list[Figure]]:
    """The rows without the columns for people that say nothing."""
    telling = {one.label for row in rows for one in row if one.shown not in ("", "0")}
    return [[one for one in row if one.label not in _SELDOM - telling] for row in rows]


def _measured(one: MeasuredLoad, known: LoadFigures | None) -> list[Figure]:
    latencies = known.latencies if known else {}
    at = [(name, which) for name in ("ttft", "tpot") for which in ("mean", "p90")]
    return [
        text("users", str(one.load.users or "")),
        Figure("", _rate(one.load), "requests/s", ".4g", absent=""),
        text("prompt", f"{known.isl if known else one.load.prompt:.0f}"),
        text("cached", f"{known.hits:.0%}" if known and one.load.repeated else ""),
        text("output", f"{known.osl if known else one.load.output:.0f}"),
        text("requests", str(known.requests if known else 0)),
        text("failed", str(known.failed if known else len(one.replies))),
        *(
            Figure("", latencies.get(name, {}).get(which), f"{NAMES[name]}{' p90' * (which == 'p90')}", format_time)
            for name, which in at
        ),
        Figure("", latencies.get("e2el", {}).get("mean"), "end to end", format_time),
        Figure("", known and known.rate, "tokens/s", ",.1f"),
        text("suspect", "; ".join(one.suspect), left=True),
    ]


def _rate(load: UsersLoad | PlannedLoad) -> float | None:
    """Requests/s of an open loop."""
    return load.requests_per_s if isinstance(load, PlannedLoad) and load.arrivals else None


def _defined(one: MeasuredLoad, tool: Tool) -> list[list[Figure]]:
    """A load by the definitions of a client, a row for each latency."""
    replies, rows = counted_replies(one), []
    for name, formula, values in DEFINITIONS[tool]:
        found = statistics(tool, values(replies))
        rows.append(
            [
                Figure("users", one.load.users or None, "users"),
                Figure("requests_per_s", _rate(one.load), "requests/s", ".4g", absent=""),
                Figure("prompt_tokens", one.load.prompt, "prompt"),
                Figure("name", name, "latency", left=True),
                *(Figure(f"{at}_s", found.get(at), at, format_time) for at in ("mean", *PERCENTILES)),
                Figure("formula", formula, "", left=True),
            ]
        )
    return rows


def _title(session: Session) -> str:
    server = session.server
    if server is None:
        return session.settings.address.root
    engine = f" under {server.engine} {server.version}".rstrip() if server.engine else ""
    return f"measured: {server.model} at {session.settings.address.root}{engine}"


def _predicted(one: Scored) -> list[Figure]:
    """A load beside its prediction from constants alone."""
    run, found = one.row.run, one.prediction
    fast = [f"{name} faster than an ideal device" for name in one.impossible]
    fast += [f"{name} above uncertain peaks" for name in one.above_uncertain]
    return [
        Figure("", run and run.concurrency, "users"),
        Figure("", run and run.rate, "requests/s", ".4g", absent=""),
        Figure("", run and run.prompt, "prompt", ".0f"),
        Figure("", run and run.output, "output", ".0f"),
        Figure("", found and found.at("ttft"), "TTFT predicted", format_time),
        Figure("", one.error("ttft"), "error", "+.1%"),
        Figure("", found and found.at("tpot"), "TPOT predicted", format_time),
        Figure("", one.error("tpot"), "error ", "+.1%"),
        text("", one.refused or ", ".join(fast), left=True),
    ]


def held_record(held: HeldOut) -> dict[str, Any]:
    """The load that was held out as JSON; seconds and shares."""
    latencies: dict[str, Any] = {one.metric: figures_record(_held(one)) for one in held.figures}
    return {"row": held.row.where, "loads_in_anchor": len(held.fitted.anchor.rows), **latencies}


def held_lines(held: HeldOut) -> list[str]:
    """The same in sentences, one for each latency."""
    return [
        f"{_held_title(held)}: {NAMES[one.metric]} measured {format_time(one.measured)}, predicted "
        f"{format_time(one.predicted)} ({one.error_before:+.1%}), by the other loads {format_time(one.anchored)} "
        f"({one.error:+.1%})"
        for one in held.figures
    ]


def _held_title(held: HeldOut) -> str:
    run = held.row.run
    if run is None:
        return f"held out: {held.row.where}"
    users = "1 user" if run.concurrency == 1 else f"{run.concurrency} users"
    users = users if run.rate is None else f"{run.rate:.3g} requests/s"
    return f"held out: {users}, {run.prompt:.0f} tokens in, {run.output:.0f} out"


def _held(one: Compared) -> list[Figure]:
    """A latency of the load that was held out."""
    low, high = one.band or (None, None)
    band = "unknown" if one.band is None else f"{format_time(one.band[0])} to {format_time(one.band[1])}"
    return [
        text("", NAMES[one.metric], left=True),
        Figure("measured_s", one.measured, "measured", format_time),
        Figure("predicted_s", one.predicted, "predicted", format_time),
        Figure("error_predicted", one.error_before, "error", "+.1%"),
        Figure("anchored_s", one.anchored, "anchored", format_time),
        Figure("error_anchored", one.error, "error ", "+.1%"),
        Figure("low_s", low),
        Figure("high_s", high),
        text("80 % band", band, left=True),
        text("inside", {None: "-", True: "yes", False: "no"}[one.inside], left=True),
    ]


def _verdict(judged: Judged) -> list[str]:
    if judged.held is None:
        return [f"nothing held out: {judged.why}"] if judged.why else []
    held = judged.held
    fitted = len(held.fitted.anchor.rows)
    notes = [f"anchored: corrected by the other {fitted} loads, without the one held out"]
    for metric, (before, after) in held.mean_error.items():
        notes.append(
            f"{NAMES[metric]} of those: mean error {before:.1%} as predicted, {after:.1%} if corrected by the others"
        )
    for one in held.figures:
        if count := count_clipped(held, one.metric):
            notes.append(
                f"{NAMES[one.metric]} of {count} loads is off by more than an anchor corrects: look for facts that "
                "are not stated (formats, slots, another device)"
            )
    return [*notes, *(f"left out of the anchor: {where}: {why}" for where, why in held.fitted.left_out)]


def _notes(session: Session, found: Sequence[tuple[MeasuredLoad, LoadFigures | None]]) -> list[str]:
    """What a reader of the figures must know."""
    known = [one for _, one in found if one is not None]
    trip = session.round_trip
    notes = [
        f"means over requests; sent: {session.budget.requests:,} requests, of them {session.warmed} to warm up and to "
        f"learn sizes, left out; at most {session.budget.tokens:,} tokens",
        "network: " + ("no handshake could be timed" if trip is None else "a round trip takes "
                                                                          f"{format_time(trip)}, included in every "
                                                                          "latency"),
    ]  # fmt: skip
    if session.dialect is not None and session.dialect.left_out:
        notes.append(f"the server does not accept {', '.join(session.dialect.left_out)}")
    if session.before.running is None:
        notes.append("whether the server had other work is not known: it has no metrics of a known engine")
    if session.settings.key and not session.settings.address.encrypted and not session.settings.address.loopback:
        notes.append("the key travelled unencrypted: the address is http, not https")
    notes += [f"left out: {load.describe()}: {why}" for load, why in session.left_out]
    shared = [reply for one in session.loads if one.load.repeated for reply in one.good]
    if shared and all(reply.cached is None for reply in shared):
        notes.append("the server does not count hits in its prefix cache: prefix_hit_rate of the rows is what was sent")
    if any(one.varied for one in known):
        notes.append("outputs differ in length: the server ends them itself; rows hold their mean")
    if any(one.pieces > 1.02 for one in known):
        most = max(one.pieces for one in known)
        notes.append(f"up to {most:.2f} tokens come at once: gaps between pieces are not gaps between tokens")
    notes += [late] if (late := _late(known)) else []
    if refused := sum(one.refused for one in known):
        notes.append(
            f"{refused:,} requests were turned away at first and sent again; their times count from the last sending"
        )
    errors = dict.fromkeys(reply.error for one in session.loads for reply in one.failed)
    notes += [f"failed: {error}" for error in list(errors)[:5]]
    return [*notes, *([f"ended early: {session.ended}"] if session.ended else [])]


def late_client(loads: Sequence[MeasuredLoad]) -> str:
    """That this machine was too slow to time what came; empty where it was not."""
    return _late([found for one in loads if (found := load_figures(one)) is not None])


def _late(known: Sequence[LoadFigures]) -> str:
    late = [one.late for one in known if one.late > _LATE * min(one.latencies["ttft"]["mean"], _decoding(one))]
    return f"this machine was too slow a client: time stamps up to {format_time(max(late))} late" if late else ""


def _decoding(one: LoadFigures) -> float:
    """Seconds from the first token to the last."""
    return one.latencies["tpot"].get("mean", float("inf")) * max(one.osl - 1, 1.0)


def _record(session: Session, found: Sequence[tuple[MeasuredLoad, LoadFigures | None]]) -> dict[str, Any]:
    """The run as JSON; seconds and tokens."""
    server, settings, dialect = session.server, session.settings, session.dialect
    return {
        "url": settings.address.root,
        "server": None if server is None else _server_record(server),
        "api": dialect.api if dialect else None,
        "options_refused": dialect.left_out if dialect else [],
        "requests_running_before": session.before.running,
        "round_trip_s": session.round_trip,
        "bounds": asdict(settings.bounds),
        "requests_sent": session.budget.requests,
        "requests_of_warmup": session.warmed,
        "ended": session.ended or None,
        "loads": [_load_record(one, known) for one, known in found],
        "left_out": [{**_asked(load), "reason": why} for load, why in session.left_out],
    }


def _server_record(server: Server) -> dict[str, Any]:
    """What the server says of itself; its model by the name that may be shown."""
    return {name: value if value != "" else None for name, value in asdict(server).items() if name != "id"}


def _load_record(one: MeasuredLoad, known: LoadFigures | None) -> dict[str, Any]:
    record: dict[str, Any] = {"asked": _asked(one.load), "suspect": one.suspect}
    record["errors"] = list(dict.fromkeys(reply.error for reply in one.failed))
    record["measured"] = None if known is None else asdict(known)
    return record


def _asked(load: UsersLoad | PlannedLoad) -> dict[str, Any]:
    """What a load asks for. prefix_hit_rate: the share of its prompts that is the same text."""
    return {
        "users": load.users or None,
        "requests_per_s": _rate(load),
        "prompt": load.prompt,
        "output": load.output,
        "requests": load.requests,
        "prefix_hit_rate": load.repeated,
    }


def _scored_record(one: Scored) -> dict[str, Any]:
    """A row with its prediction, in seconds."""
    record: dict[str, Any] = {"row": one.row.where, "refused": one.refused or None}
    for metric in ("ttft", "tpot"):
        record[metric] = {
            "measured_s": one.row.measured.at(metric),
            "predicted_s": one.prediction.at(metric) if one.prediction else None,
            "error": one.error(metric),
        }
    return record
