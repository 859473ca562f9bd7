"""A measured server as a report: what it answered, load by load, and how far the anchored model is from one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from inferplan.measuring.figures import Figures, figures
from inferplan.measuring.server import Server
from inferplan.measuring.session import MeasuredLoad, Session
from inferplan.reports.validation import above_notes
from inferplan.table import Report, Table
from inferplan.units import format_time
from inferplan.validation.held_out import Figure, HeldOut, clipped
from inferplan.validation.score import NAMES, Scored

_RIGHT = frozenset(
    {"users", "prompt", "output", "requests", "failed", "TTFT", "TTFT p90", "TPOT", "TPOT p90", "end to end",
     "tokens/s", "measured", "predicted", "anchored", "error", "error ", "TTFT predicted", "TPOT predicted"}
)  # fmt: skip
_SELDOM = frozenset({"failed", "suspect"})
"""Columns that are left out where they say nothing."""
_LATE = 0.05
"""Share of a mean TTFT, or of the time in which the further tokens come, from which the lateness of stamps is said."""


def measured_report(session: Session, lines: Sequence[Mapping[str, str]], judged: Judged) -> Report:
    """Everything about a run. ``lines``: the rows of its CSV."""
    found = [(one, figures(one)) for one in session.loads]
    tables = [_measured_table(session, found)]
    record = _record(session, found)
    if judged.scored:
        tables.append(_predicted_table(judged.scored))
        record["predicted"] = [_scored_record(one) for one in judged.scored]
    if judged.held is not None:
        tables.append(_held_table(judged.held))
    record["held_out"] = None if judged.held is None else _held_record(judged.held)
    record["not_predicted"] = judged.why or None
    notes = [*_notes(session, found), *_verdict(judged), *above_notes(judged.scored)]
    return Report(record=record, tables=tables, notes=notes, rows=[dict(line) for line in lines])


class Judged:
    """What predictions say of the measured rows: each row with its own, the load that was held out, or why neither."""

    def __init__(self, scored: Sequence[Scored] = (), held: HeldOut | None = None, why: str = "") -> None:
        self.scored, self.held, self.why = scored, held, why


def _time(value: float | None) -> str:
    return "-" if value is None else format_time(value)


def _measured_table(session: Session, found: Sequence[tuple[MeasuredLoad, Figures | None]]) -> Table:
    rows = []
    for one, known in found:
        cells = [str(one.load.users), f"{known.isl:.0f}" if known else str(one.load.prompt)]
        cells += [f"{known.osl:.0f}" if known else str(one.load.output), str(known.requests if known else 0)]
        cells.append(str(known.failed if known else len(one.replies)))
        for name in ("ttft", "tpot"):
            statistics = known.latencies[name] if known else {}
            cells += [_time(statistics.get("mean")), _time(statistics.get("p90"))]
        cells += [_time(known.latencies["e2el"].get("mean")) if known else "-", f"{known.rate:,.1f}" if known else "-"]
        rows.append([*cells, "; ".join(one.suspect)])
    columns = ["users", "prompt", "output", "requests", "failed", "TTFT", "TTFT p90", "TPOT", "TPOT p90"]
    columns += ["end to end", "tokens/s", "suspect"]
    told = [
        at for at, name in enumerate(columns) if name not in _SELDOM or any(row[at] not in ("", "0") for row in rows)
    ]
    return Table(
        title=_title(session),
        columns=[columns[at] for at in told],
        rows=[[row[at] for at in told] for row in rows],
        right=_RIGHT,
    )


def _title(session: Session) -> str:
    server = session.server
    if server is None:
        return session.settings.address.root
    engine = f" under {server.engine} {server.version}".rstrip() if server.engine else ""
    return f"measured: {server.model} at {session.settings.address.root}{engine}"


def _predicted_table(scored: Sequence[Scored]) -> Table:
    """Each load beside its prediction from constants alone."""
    rows = []
    for one in scored:
        run = one.row.run
        cells = [str(run.concurrency), f"{run.prompt:.0f}", f"{run.output:.0f}"] if run else ["-", "-", "-"]
        for metric in ("ttft", "tpot"):
            predicted, error = one.prediction.at(metric) if one.prediction else None, one.error(metric)
            cells += [_time(predicted), "-" if error is None else f"{error:+.1%}"]
        fast = [f"{name} faster than light" for name in one.impossible]
        fast += [f"{name} above the measured peaks" for name in one.above_measured]
        rows.append([*cells, one.refused or ", ".join(fast)])
    columns = ["users", "prompt", "output", "TTFT predicted", "error", "TPOT predicted", "error ", ""]
    return Table(title="predicted, without an anchor", columns=columns, rows=rows, right=_RIGHT)


def _held_table(held: HeldOut) -> Table:
    run = held.row.run
    where = held.row.where
    if run is not None:
        users = "1 user" if run.concurrency == 1 else f"{run.concurrency} users"
        where = f"{users}, {run.prompt:.0f} tokens in, {run.output:.0f} out"
    rows = [
        [
            NAMES[one.metric],
            _time(one.measured),
            _time(one.predicted),
            f"{one.error_before:+.1%}",
            _time(one.anchored),
            f"{one.error:+.1%}",
            "unknown" if one.band is None else f"{_time(one.band[0])} to {_time(one.band[1])}",
            {None: "-", True: "yes", False: "no"}[one.inside],
        ]
        for one in held.figures
    ]
    columns = ["", "measured", "predicted", "error", "anchored", "error ", "80 % band", "inside"]
    return Table(title=f"held out: {where}", columns=columns, rows=rows, right=_RIGHT)


def _verdict(judged: Judged) -> list[str]:
    if judged.held is None:
        return [f"nothing held out: {judged.why}"] if judged.why else []
    held = judged.held
    fitted = len(held.fitted.anchor.rows)
    notes = [f"anchored: corrected by the other {fitted} loads, none of which is the one that is held out"]
    for metric, (before, after) in held.mean_error.items():
        notes.append(f"{NAMES[metric]} of those: mean error {before:.1%} as predicted, {after:.1%} each by the others")
    for one in held.figures:
        if count := clipped(held, one.metric):
            notes.append(
                f"{NAMES[one.metric]} of {count} loads is off by more than an anchor takes in: look for what the facts "
                "do not state (formats, slots, another device)"
            )
    return [*notes, *(f"left out of the anchor: {where}: {why}" for where, why in held.fitted.left_out)]


def _notes(session: Session, found: Sequence[tuple[MeasuredLoad, Figures | None]]) -> list[str]:
    """What a reader of the figures must know."""
    known = [one for _, one in found if one is not None]
    trip = session.round_trip
    notes = [
        f"means over requests; sent: {session.budget.requests} requests, of them {session.warmed} to warm up and to "
        f"learn sizes, left out; at most {session.budget.tokens:,} tokens",
        "network: " + ("no handshake could be timed" if trip is None else f"a round trip takes {format_time(trip)}, "
                       "which is in every latency"),
    ]  # fmt: skip
    if session.dialect is not None and session.dialect.left_out:
        notes.append(f"the server does not take {', '.join(session.dialect.left_out)}")
    if session.before.running is None:
        notes.append("whether the server had other work is not known: it has no metrics of a known engine")
    if session.settings.key and not session.settings.address.encrypted and not session.settings.address.loopback:
        notes.append("the key travelled unencrypted: the address is http, not https")
    notes += [f"left out: {load.describe()}: {why}" for load, why in session.left_out]
    if any(one.varied for one in known):
        notes.append("outputs are of several lengths: the server ends them itself; rows hold their mean")
    if any(one.pieces > 1.02 for one in known):
        most = max(one.pieces for one in known)
        notes.append(f"up to {most:.2f} tokens come at once: gaps between pieces are no gaps between tokens")
    late = [one for one in known if one.late > _LATE * min(one.latencies["ttft"]["mean"], _decoding(one))]
    if late:
        notes.append(
            f"this machine was too slow a client: time stamps up to {format_time(max(o.late for o in late))} late"
        )
    errors = dict.fromkeys(reply.error for one in session.loads for reply in one.failed)
    notes += [f"failed: {error}" for error in list(errors)[:5]]
    return [*notes, *([f"ended early: {session.ended}"] if session.ended else [])]


def _decoding(one: Figures) -> float:
    """Seconds from the first token to the last."""
    return one.latencies["tpot"].get("mean", float("inf")) * max(one.osl - 1, 1.0)


def _record(session: Session, found: Sequence[tuple[MeasuredLoad, Figures | None]]) -> dict[str, Any]:
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
        "left_out": [{**asdict(load), "reason": why} for load, why in session.left_out],
    }


def _server_record(server: Server) -> dict[str, Any]:
    """What the server says of itself; its model by the name that may be shown."""
    return {name: value if value != "" else None for name, value in asdict(server).items() if name != "id"}


def _load_record(one: MeasuredLoad, known: Figures | None) -> dict[str, Any]:
    record: dict[str, Any] = {"asked": asdict(one.load), "suspect": one.suspect}
    record["errors"] = list(dict.fromkeys(reply.error for reply in one.failed))
    record["measured"] = None if known is None else asdict(known)
    return record


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


def _held_record(held: HeldOut) -> dict[str, Any]:
    def of(one: Figure) -> dict[str, Any]:
        return {
            "measured_s": one.measured,
            "predicted_s": one.predicted,
            "anchored_s": one.anchored,
            "error_predicted": one.error_before,
            "error_anchored": one.error,
            "low_s": one.band[0] if one.band else None,
            "high_s": one.band[1] if one.band else None,
        }

    return {
        "row": held.row.where,
        "loads_in_anchor": len(held.fitted.anchor.rows),
        **{one.metric: of(one) for one in held.figures},
    }
