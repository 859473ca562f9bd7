"""A service beside its prediction: a line a minute, what changed in words, and the whole at the end."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from inferplan.catalog.assemble import assemble
from inferplan.figures import Figure, labelled_texts, lines, record, side_by_side, text
from inferplan.reports.plan_measured import PlanFile
from inferplan.serving.flags import Flags
from inferplan.table import SCHEMA_VERSION, Report
from inferplan.traffic.requests import Slo
from inferplan.units import format_time
from inferplan.watching.counters import Span
from inferplan.watching.drift import Drift, Event, Planned
from inferplan.watching.minutes import Minute
from inferplan.watching.summary import Summary
from inferplan.watching.twin import Predicted, Room, Twin


def held_to(plan: PlanFile, servers: int) -> tuple[Twin, Drift]:
    """A plan as so many of its replicas are held to it. Raises what assembling its deployment does."""
    planned, demand = plan.planned, plan.demand
    request = replace(planned.request, parallel=replace(planned.request.parallel, replicas=1))
    flags = Flags(
        max_num_seqs=request.flags.max_sequences,
        max_num_batched_tokens=request.flags.token_budget,
        max_model_len=planned.context,
    )
    twin = Twin(
        deployment=assemble(request),
        demand=demand,
        flags=flags,
        slo=Slo(percentile=plan.percentile, **plan.limits),
        speculation=planned.drafts(request).speculation,
    )
    rate = demand.requests_per_second
    held = Planned(
        rate=None if rate is None else rate * servers / plan.replicas,
        prompt=demand.prompt.average + demand.prefix.tokens,
        output=demand.output.average,
        prompt_spread=demand.prompt.variance**0.5 / demand.prompt.average,
        output_spread=demand.output.variance**0.5 / demand.output.average,
        servers=servers,
    )
    return twin, Drift(planned=held)


NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "end-to-end latency", "load": "the queue, which grows without end"}


def clock(at: float) -> str:
    """A moment as ISO 8601 has it, in UTC. at: seconds since 1970."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def minute_line(minute: Minute) -> list[Figure]:
    """One minute as a row."""
    span, should = minute.span, minute.as_seen
    figures = [
        Figure("at", clock(minute.at), "time", left=True, text=clock(minute.at)[11:19]),
        Figure("requests_per_s", span.rate, "req/s", ",.2f"),
        Figure("prompt_tokens", span.prompt_tokens, "prompt", ",.0f"),
        Figure("output_tokens", span.output_tokens, "output", ",.0f"),
        Figure("prefix_hits", span.hits, "hits", ".0%"),
        Figure("servers", span.servers, "servers"),
        Figure("running", span.running, "run", ",.0f"),
        Figure("waiting", span.waiting, "wait", ",.0f"),
        Figure("kv_cache", span.cache, "KV", ".0%"),
        Figure("ttft_mean_s", span.ttft.mean, "TTFT", format_time),
        Figure("predicted_ttft_mean_s", should and should.ttft, "should be", format_time),
        Figure("gap_mean_s", span.gap.mean, "ITL", format_time),
        Figure("predicted_gap_mean_s", should and should.gap, "should be", format_time),
        Figure("load_left", minute.room and minute.room.times, "load left", _times, absent=_no_room(minute)),
        Figure("breaks_first", minute.room and minute.room.first),
    ]
    for one in minute.limits:
        figures.append(Figure(f"{one.name}_s", one.seen))
        figures.append(Figure(f"predicted_{one.name}_s", should and should.latencies.get(one.name)))
    return figures


def _times(times: float) -> str:
    return f"x {times:.2f}"


def _no_room(minute: Minute) -> str:
    return "-" if minute.load is None else "none"


def minute_record(minute: Minute) -> dict[str, Any]:
    """One minute for programs: its row, what changed, what is off, what was asked."""
    return {
        **record(minute_line(minute)),
        "step_time_ratio": minute.pace.step,
        "first_token_ratio": minute.pace.first,
        "off": list(minute.now),
        "events": [event_record(minute.at, one) for one in minute.events],
        "what_if": {one.text: _predicted(found) for one, found in minute.what_ifs},
    }


def _predicted(found: Predicted) -> dict[str, Any]:
    return {
        "verdict": found.verdict or None,
        "ttft_mean_s": found.ttft,
        "gap_mean_s": found.gap,
        **{f"{name}_s": value for name, value in found.latencies.items()},
        "refused": found.refused or None,
    }


def heading() -> str:
    """The line above the minutes of a terminal."""
    return _row([label for label, _ in labelled_texts(minute_line(_EMPTY))])


def minute_text(minute: Minute) -> str:
    """A minute as a line of a terminal."""
    return _row([shown for _, shown in labelled_texts(minute_line(minute))])


_WIDTHS = (8, 8, 7, 7, 5, 7, 5, 5, 5, 10, 10, 10, 10, 9)


def _row(cells: list[str]) -> str:
    return " ".join(cell.ljust(width) if place == 0 else cell.rjust(width)
                    for place, (cell, width) in enumerate(zip(cells, _WIDTHS)))  # fmt: skip


def what_if_text(minute: Minute) -> list[str]:
    """What was asked of a minute, a line each."""
    found = []
    for asked, should in minute.what_ifs:
        if should.refused:
            said = should.refused
        elif should.overloaded:
            said = "overloaded: the queue would grow without end"
        else:
            parts = [f"{NAMES[name]} {format_time(value)}" for name, value in should.latencies.items()]
            limits: dict[str, float] = {one.name: one.limit for one in minute.limits}
            over = [NAMES[name] for name, value in should.latencies.items() if value > limits.get(name, float("inf"))]
            said = ", ".join(parts) + (f" ({', '.join(over)} over the limit)" if over else "")
        found.append(f"  {asked.text}: {said}")
    return found


def event_text(at: float, event: Event) -> str:
    """An event in one sentence."""
    return f"{clock(at)[11:19]} {_said(event)}"


def _said(event: Event) -> str:
    value, held = event.value, event.held
    again = " again" if event.back else ""
    match event.cause:
        case "load":
            return f"load is {value:,.2f} requests/s{again}, {event.times:.2f} times the planned {held:,.2f}"
        case "prompts":
            return f"prompts are {value:,.0f} tokens{again}, {event.times:.2f} times the planned {held:,.0f}"
        case "answers":
            return f"answers are {value:,.0f} tokens{again}, {event.times:.2f} times the planned {held:,.0f}"
        case "hits":
            return f"prefix hits are {value:.0%} of the prompt tokens{again}; they were {held:.0%}"
        case "steps":
            return f"steps take {value:.2f} times the predicted time{again}; they took {held:.2f} times"
        case "replicas":
            return f"{value:.0f} of {held:.0f} servers answer{again}"
        case "restart":
            return f"{value:.0f} server{'s' if value > 1 else ''} restarted"
        case name:
            word = "under its limit again" if event.back else "over its limit"
            return f"{NAMES[name]} is {format_time(value)}, {word} of {format_time(held)}"


def event_record(at: float, event: Event) -> dict[str, Any]:
    """An event for programs."""
    return {
        "at": clock(at),
        "minute": event.minute,
        "cause": event.cause,
        "value": event.value,
        "held_to": event.held,
        "back": event.back,
        "said": _said(event),
    }


def watched_report(summary: Summary) -> Report:
    """Everything, as watching ends."""
    misses = [_miss(name, summary) for name in summary.misses]
    last = summary.last
    whole = {
        "schema_version": SCHEMA_VERSION,
        "minutes": summary.minutes,
        "idle_minutes": summary.idle,
        "requests": summary.requests,
        "errors": [record(row) for row in misses],
        "events_counted": summary.counted,
        "events": [event_record(at, event) for at, event in summary.events],
        "last": None if last is None else minute_record(last),
    }
    watched = [
        Figure("", summary.minutes, "minutes", ",d"),
        Figure("", summary.requests, "requests", ",.0f"),
        *_state(last),
    ]
    tables = [lines("watched", watched)]
    if any(one.count for one in summary.misses.values()):
        tables.append(side_by_side("predicted against seen, minute by minute", misses))
    notes = [event_text(at, event) for at, event in list(summary.events)[-_SHOWN:]] or ["nothing changed"]
    if summary.counted > _SHOWN:
        notes.append(f"{summary.counted - _SHOWN:,} earlier events: --format json has the last thousand")
    return Report(record=whole, tables=tables, notes=notes, rows=[whole])


_SHOWN = 40


def _state(last: Minute | None) -> list[Figure]:
    """How it stands at the end."""
    if last is None:
        return []
    found = [
        text("step time over the model's", f"x {last.pace.step:.2f}"),
        text("still off at the end", ", ".join(last.now) or "nothing"),
    ]
    if last.room is not None:
        found.append(text("load left under the limits", _room(last.room)))
    return found


def _room(room: Room) -> str:
    if room.more:
        return f"more than {room.times:,.0f} times the present load"
    return f"{room.rate:,.2f} requests/s, {room.times:.2f} times the present load; first to break: {NAMES[room.first]}"


def _miss(name: str, summary: Summary) -> list[Figure]:
    miss = summary.misses[name]
    said = miss.off if miss.count else None
    return [
        Figure("figure", name, "mean", left=True, text="TTFT" if name == "ttft" else "ITL"),
        Figure("minutes", miss.count, "minutes", ",d"),
        Figure("mean_error", said, "error", ".1%"),
        Figure("bias", miss.bias if miss.count else None, "bias", "+.1%"),
    ]


_EMPTY = Minute(number=0, at=0.0, span=Span(seconds=0.0, servers=0))
