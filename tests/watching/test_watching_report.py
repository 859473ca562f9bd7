"""Minutes, events and the end of watching as people and programs read them: of values that are written down here."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from inferplan.catalog.assemble import Request
from inferplan.devices.engine import EngineFlags
from inferplan.figures import record
from inferplan.planning.demand import Demand
from inferplan.reports import watching as report
from inferplan.serving.techniques.speculation import PLAIN
from inferplan.traffic.requests import Lengths, SharedPrefix
from inferplan.watching.counters import Histogram, Span
from inferplan.watching.drift import Event
from inferplan.watching.minutes import Limit, Minute
from inferplan.watching.summary import Miss, Summary
from inferplan.watching.twin import Load, Pace, Predicted, Room
from inferplan.watching.what_if import WhatIf
from inferplan.work.parallel import Parallelism

AT = 1_800_000_000.0  # 2027-01-15T08:00:00 UTC
SPAN = Span(
    seconds=60.0, servers=3, ttft=Histogram(count=120.0, total=30.0), gap=Histogram(count=1000.0, total=20.0),
    done=100.0, prompts=50.0, prompt=60_000.0, output=25_600.0, cached=15_000.0, running=1234.0, waiting=5.0,
    cache=0.75,
)  # fmt: skip
MINUTE = Minute(
    number=7, at=AT, span=SPAN, load=Load(rate=2.0, prompt=1200.0, output=256.0, hits=0.25, servers=3),
    predicted=Predicted(verdict="stable", ttft=9.0, gap=9.0, latencies={"ttft": 9.0}),
    as_seen=Predicted(verdict="stable", ttft=0.125, gap=0.016, latencies={"ttft": 0.5}), pace=Pace(1.25, 1.5),
    room=Room(rate=1234.5, times=1.5, first="tpot"), limits=(Limit("ttft", 0.4, 0.3), Limit("e2el", 5.0, None)),
    now=("steps", "ttft"),
)  # fmt: skip


def shown(minute: Minute) -> dict[str, str]:
    """The last of two columns ``should be`` is of gaps."""
    return {str(one.label): one.shown for one in report.minute_line(minute) if one.label and one.seen}


def test_a_minute_as_people_see_it() -> None:
    """120 requests in 60 s; 60,000 tokens of 50 prompts, a quarter of them found; 25,600 of 100 answers; 30 s over 120
    first tokens, 20 s over 1,000 gaps. What it is beside is the model at the pace of the servers."""
    assert [one.shown for one in report.minute_line(MINUTE) if one.label] == [
        "08:00:00", "2.00", "1,200", "256", "25%", "3", "1,234", "5", "75%", "250.0 ms", "125.0 ms", "20.00 ms",
        "16.00 ms", "x 1.50",
    ]  # fmt: skip
    assert report.minute_text(MINUTE) == (
        "08:00:00     2.00   1,200     256   25%       3 1,234     5   75%   250.0 ms   125.0 ms   20.00 ms   16.00 ms"
        "    x 1.50"
    )
    assert report.heading() == (
        "time        req/s  prompt  output  hits servers   run  wait    KV       TTFT  should be        ITL  should be"
        " load left"
    )
    assert shown(replace(MINUTE, room=None))["load left"] == "none"
    idle = shown(Minute(number=1, at=AT, span=Span(seconds=60.0, servers=0)))
    assert idle["load left"] == idle["should be"] == idle["TTFT"] == idle["KV"] == "-"


def test_a_minute_as_programs_see_it() -> None:
    event = Event(minute=7, cause="load", value=3.0, held=2.0)
    asked = (
        WhatIf("rate=x2", "rate", "x", 2.0),
        Predicted(verdict="overloaded", ttft=1.5, gap=0.25, latencies={"e2el": 7.0}),
    )
    no_room = (WhatIf("rate=x9", "rate", "x", 9.0), Predicted(verdict="", refused="too long"))
    found = report.minute_record(replace(MINUTE, events=(event,), what_ifs=(asked, no_room)))
    assert found == {
        "at": "2027-01-15T08:00:00+00:00", "requests_per_s": 2.0, "prompt_tokens": 1200.0, "output_tokens": 256.0,
        "prefix_hits": 0.25, "servers": 3, "running": 1234.0, "waiting": 5.0, "kv_cache": 0.75, "ttft_mean_s": 0.25,
        "predicted_ttft_mean_s": 0.125, "gap_mean_s": 0.02, "predicted_gap_mean_s": 0.016, "load_left": 1.5,
        "breaks_first": "tpot", "ttft_s": 0.3, "predicted_ttft_s": 0.5, "e2el_s": None, "predicted_e2el_s": None,
        "step_time_ratio": 1.25, "first_token_ratio": 1.5, "off": ["steps", "ttft"],
        "events": [{
            "at": "2027-01-15T08:00:00+00:00", "minute": 7, "cause": "load", "value": 3.0, "held_to": 2.0,
            "back": False, "said": "load is 3.00 requests/s, 1.50 times the planned 2.00",
        }],
        "what_if": {
            "rate=x2": {
                "verdict": "overloaded", "ttft_mean_s": 1.5, "gap_mean_s": 0.25, "e2el_s": 7.0, "refused": None,
            },
            "rate=x9": {"verdict": None, "ttft_mean_s": None, "gap_mean_s": None, "refused": "too long"},
        },
    }  # fmt: skip
    unseen = record(report.minute_line(replace(MINUTE, as_seen=None, room=None)))
    assert unseen["predicted_ttft_s"] is unseen["load_left"] is unseen["breaks_first"] is None


def test_what_was_asked_of_a_minute() -> None:
    """A latency at its limit keeps it; one without a limit cannot break one."""

    def said(should: Predicted) -> str:
        (line,) = report.what_if_text(replace(MINUTE, what_ifs=((WhatIf("prompt=x2", "prompt", "x", 2.0), should),)))
        return line

    assert said(Predicted(verdict="", refused="too long")) == "  prompt=x2: too long"
    assert said(Predicted(verdict="overloaded")) == "  prompt=x2: overloaded: the queue would grow without end"
    kept = Predicted(verdict="stable", latencies={"ttft": 0.4, "tpot": 99.0, "e2el": 5.0})
    assert said(kept) == "  prompt=x2: TTFT 400.0 ms, TPOT 99.00 s, end-to-end latency 5.000 s"
    over = Predicted(verdict="stable", latencies={"ttft": 0.41, "e2el": 5.5})
    assert said(over) == (
        "  prompt=x2: TTFT 410.0 ms, end-to-end latency 5.500 s (TTFT, end-to-end latency over the limit)"
    )
    assert report.what_if_text(MINUTE) == []


@pytest.mark.parametrize(
    ("cause", "value", "held", "sentence", "again"),
    [
        ("load", 1234.5, 2.0, "load is 1,234.50 requests/s{}, 617.25 times the planned 2.00", " again"),
        ("prompts", 3000.0, 1500.0, "prompts are 3,000 tokens{}, 2.00 times the planned 1,500", " again"),
        ("answers", 1500.0, 3000.0, "answers are 1,500 tokens{}, 0.50 times the planned 3,000", " again"),
        ("hits", 0.25, 0.5, "prefix hits are 25% of the prompt tokens{}; they were 50%", " again"),
        ("steps", 1.5, 1.25, "steps take 1.50 times the predicted time{}; they took 1.25 times", " again"),
        ("replicas", 2.0, 3.0, "2 of 3 servers answer{}", " again"),
        ("restart", 1.0, 0.0, "1 server restarted", ""),
        ("restart", 2.0, 0.0, "2 servers restarted", ""),
        ("ttft", 0.5, 0.4, "TTFT is 500.0 ms, over its limit of 400.0 ms", None),
    ],
)
def test_sentences_of_events(cause: Any, value: float, held: float, sentence: str, again: str | None) -> None:
    event = Event(minute=3, cause=cause, value=value, held=held)
    assert report.event_text(AT, event) == f"08:00:00 {sentence.format('')}"
    back = report.event_record(AT, replace(event, back=True))
    assert back["said"] == (
        "TTFT is 500.0 ms, under its limit again of 400.0 ms" if again is None else sentence.format(again)
    )
    assert (back["back"], back["value"], back["held_to"], back["minute"]) == (True, value, held, 3)


def summary(events: int = 0, counted: int = 0, **more: Any) -> Summary:
    found = Summary(minutes=1500, idle=3, requests=12_345.0, counted=counted or events, **more)
    for place in range(events):
        found.events.append((AT + 60 * place, Event(minute=place, cause="restart", value=1.0, held=0.0)))
    return found


def test_the_end_of_watching() -> None:
    misses = {"ttft": Miss(count=1200, off=0.125, bias=-0.0625), "gap": Miss()}
    whole = report.watched_report(summary(events=2, misses=misses, last=MINUTE))
    watched, errors = whole.tables
    assert list(watched.rows) == [
        ["minutes", "1,500"], ["requests", "12,345"], ["step time over the model's", "x 1.25"],
        ["still off at the end", "steps, ttft"],
        ["load left under the limits", "1,234.50 requests/s, 1.50 times the present load; first to break: TPOT"],
    ]  # fmt: skip
    assert (list(errors.columns), list(errors.rows)) == (
        ["mean", "minutes", "error", "bias"], [["TTFT", "1,200", "12.5%", "-6.2%"], ["ITL", "0", "-", "-"]]
    )  # fmt: skip
    assert whole.notes == ["08:00:00 1 server restarted", "08:01:00 1 server restarted"]
    assert whole.record["last"]["at"] == "2027-01-15T08:00:00+00:00" and len(whole.record["events"]) == 2
    assert whole.record["errors"] == [
        {"figure": "ttft", "minutes": 1200, "mean_error": 0.125, "bias": -0.0625},
        {"figure": "gap", "minutes": 0, "mean_error": None, "bias": None},
    ]
    assert (whole.record["minutes"], whole.record["idle_minutes"], whole.record["events_counted"]) == (1500, 3, 2)


def test_the_end_of_watching_nothing_or_much() -> None:
    """Forty events are printed; the last thousand are kept."""
    bare = report.watched_report(summary())
    assert [len(table.rows) for table in bare.tables] == [2] and bare.notes == ["nothing changed"]
    assert bare.record["last"] is None
    quiet = replace(MINUTE, now=(), room=Room(rate=9000.0, times=1234.0, first="", more=True))
    (watched,) = report.watched_report(summary(events=40, last=quiet)).tables
    assert list(watched.rows)[3:] == [
        ["still off at the end", "nothing"],
        ["load left under the limits", "more than 1,234 times the present load"],
    ]
    (watched,) = report.watched_report(summary(last=replace(MINUTE, room=None))).tables
    assert len(watched.rows) == 4
    assert len(report.watched_report(summary(events=40)).notes) == 40
    one = report.watched_report(summary(events=41)).notes
    assert one[40:] == ["1 earlier events: --format json has the last thousand"]
    many = report.watched_report(summary(events=41, counted=3041)).notes
    assert many[0].startswith("08:01:00") and many[40:] == ["3,001 earlier events: --format json has the last thousand"]


def test_a_plan_as_its_replicas_are_held_to_it() -> None:
    """Two of the three replicas of a plan of 12 requests/s: 8. Lognormal lengths have the spread that they state."""
    prompt = Lengths(kind="lognormal", mean=1000.0, spread=0.5)
    output = Lengths(kind="lognormal", mean=200.0, spread=0.25)
    demand = Demand(prompt=prompt, output=output, rate=12.0, prefix=SharedPrefix(tokens=300))
    flags = EngineFlags(max_sequences=64, token_budget=2048)
    asked = Request(model="llama-3.2-1b", gpu="l4", parallel=Parallelism(replicas=3), flags=flags)
    planned = SimpleNamespace(request=asked, context=8192, drafts=lambda request: SimpleNamespace(speculation=PLAIN))
    plan: Any = SimpleNamespace(
        planned=planned, demand=demand, percentile=95.0, replicas=3, limits={"ttft": 0.5, "tpot": 0.05}
    )
    twin, drift = report.held_to(plan, 2)
    assert (drift.planned.rate, drift.planned.prompt, drift.planned.output) == (8.0, 1300.0, 200.0)
    assert drift.planned.servers == 2
    assert (drift.planned.prompt_spread, drift.planned.output_spread) == (pytest.approx(0.5), pytest.approx(0.25))
    assert (twin.flags.max_num_seqs, twin.flags.max_num_batched_tokens, twin.flags.max_model_len) == (64, 2048, 8192)
    assert twin.deployment.parallel.replicas == 1 and twin.slo.limits == {"ttft": 0.5, "tpot": 0.05}
    assert twin.slo.percentile == 95.0
    closed = SimpleNamespace(**vars(plan) | {"demand": replace(demand, rate=None, users=7)})
    assert report.held_to(closed, 2)[1].planned.rate is None  # type: ignore[arg-type]
