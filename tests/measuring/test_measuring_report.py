"""The report on a measured server, of loads and verdicts that are written down here: cells and sentences by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inferplan.figures import record
from inferplan.measuring.figures import LoadFigures
from inferplan.measuring.loads import Bounds, UsersLoad
from inferplan.measuring.planned import PlannedLoad
from inferplan.measuring.server import Server
from inferplan.reports import measuring as report
from inferplan.validation.held_out import HeldOutLatency, Judged

CLOSED = UsersLoad(users=4, prompt=1000, output=128, requests=40, head_tokens=250)
OPEN = PlannedLoad(prompts=(900, 1100), outputs=(100, 300), arrivals=(0.0, 0.5), rate=2.5)


def figures(**more: Any) -> LoadFigures:
    found: dict[str, Any] = {
        "requests": 38, "failed": 2, "isl": 1001.4, "osl": 127.6, "osl_spread": 0.0, "rate": 1234.56, "hits": 0.25,
        "pieces": 1.0, "at_once": 1.0, "refused": 0, "late": 0.0, "latencies": {
            "ttft": {"mean": 0.25, "p90": 0.5}, "tpot": {"mean": 0.02}, "e2el": {"mean": 2.75}
        },
    }  # fmt: skip
    return LoadFigures(**found | more)


def reply(**more: Any) -> Any:
    return SimpleNamespace(**{"error": "", "cached": None} | more)


def load(of: Any = CLOSED, replies: int = 40, **more: Any) -> Any:
    found: dict[str, Any] = {"load": of, "replies": [reply()] * replies, "suspect": [], "failed": [], "good": []}
    return SimpleNamespace(**found | more)


def session(*loads: Any, **more: Any) -> Any:
    found: dict[str, Any] = {
        "loads": list(loads), "round_trip": None, "left_out": [], "ended": "", "warmed": 12, "dialect": None,
        "server": None, "before": SimpleNamespace(running=0.0),
        "budget": SimpleNamespace(requests=1234, tokens=56_789),
        "settings": SimpleNamespace(
            address=SimpleNamespace(root="http://host:8000", encrypted=False, loopback=False), key="", bounds=Bounds()
        ),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def cells(row: Any) -> dict[str, str]:
    return {str(one.label): one.shown for one in row if one.label is not None and one.seen}


def test_a_load_as_it_was_measured() -> None:
    row = report._measured(load(suspect=["one", "two"]), figures())
    assert cells(row) == {
        "users": "4", "requests/s": "", "prompt": "1001", "cached": "25%", "output": "128", "requests": "38",
        "failed": "2", "TTFT": "250.0 ms", "TTFT p90": "500.0 ms", "TPOT": "20.00 ms", "TPOT p90": "-",
        "end to end": "2.750 s", "tokens/s": "1,234.6", "suspect": "one; two",
    }  # fmt: skip
    shared = UsersLoad(users=4, prompt=1000, output=128, requests=40)
    assert cells(report._measured(load(shared), figures()))["cached"] == ""
    assert cells(report._measured(load(OPEN, replies=2), None)) == {
        "users": "", "requests/s": cells(report._measured(load(OPEN), figures()))["requests/s"], "prompt": "900",
        "cached": "", "output": "300", "requests": "0", "failed": "2", "TTFT": "-", "TTFT p90": "-", "TPOT": "-",
        "TPOT p90": "-", "end to end": "-", "tokens/s": "-", "suspect": "",
    }  # fmt: skip
    assert report._rate(OPEN) == OPEN.requests_per_s and report._rate(CLOSED) is None
    assert report._rate(PlannedLoad(prompts=(9,), outputs=(1,), users=3)) is None


def test_columns_that_say_nothing_are_left_out() -> None:
    plain = UsersLoad(users=4, prompt=1000, output=128, requests=40)
    rows = [report._measured(load(plain), figures(failed=0)), report._measured(load(plain), figures(failed=0))]
    assert not {"cached", "failed", "suspect", "requests/s"} & cells(report._telling(rows)[0]).keys()
    rows = [rows[0], report._measured(load(suspect=["x"]), figures(failed=1))]
    assert all({"cached", "failed", "suspect"} <= cells(row).keys() for row in report._telling(rows))
    assert all("requests/s" not in cells(row) for row in report._telling(rows))


def test_titles() -> None:
    assert report._title(session()) == "http://host:8000"
    server = Server(model="m", id="id", engine="vllm", version="0.9")
    assert report._title(session(server=server)) == "measured: m at http://host:8000 under vllm 0.9"
    bare = session(server=Server(model="m", id="id", engine="vllm"))
    assert report._title(bare) == "measured: m at http://host:8000 under vllm"
    assert report._title(session(server=Server(model="m", id="id", version="1"))) == "measured: m at http://host:8000"


def scored(**more: Any) -> Any:
    """TTFT predicted a fifth too short, TPOT a tenth too long."""
    run = SimpleNamespace(concurrency=4, rate=None, prompt=1000.0, output=128.0, gpu="g")
    predicted = {"ttft": 0.2, "tpot": 0.022}
    found: dict[str, Any] = {
        "row": SimpleNamespace(run=run, where="row 1", measured=SimpleNamespace(at={"ttft": 0.25, "tpot": 0.02}.get)),
        "prediction": SimpleNamespace(at=predicted.get), "error": {"ttft": -0.2, "tpot": 0.1}.get, "refused": "",
        "impossible": (), "above_uncertain": (),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def test_a_load_beside_its_prediction() -> None:
    row = report._predicted(scored())
    assert cells(row) == {
        "users": "4", "requests/s": "", "prompt": "1000", "output": "128", "TTFT predicted": "200.0 ms",
        "error": "-20.0%", "TPOT predicted": "22.00 ms", "error ": "+10.0%", "": "",
    }  # fmt: skip
    fast = scored(impossible=("ttft",), above_uncertain=("tpot",))
    assert cells(report._predicted(fast))[""] == "ttft faster than an ideal device, tpot above uncertain peaks"
    nothing = cells(report._predicted(scored(refused="why", prediction=None, impossible=("ttft",))))
    assert (nothing[""], nothing["TTFT predicted"], nothing["TPOT predicted"]) == ("why", "-", "-")
    lost = scored(row=SimpleNamespace(run=None))
    assert cells(report._predicted(lost))["users"] == cells(report._predicted(lost))["prompt"] == "-"
    assert report._scored_record(scored()) == {
        "row": "row 1", "refused": None, "ttft": {"measured_s": 0.25, "predicted_s": 0.2, "error": -0.2},
        "tpot": {"measured_s": 0.02, "predicted_s": 0.022, "error": 0.1},
    }  # fmt: skip
    refused = report._scored_record(scored(refused="why", prediction=None))
    assert (refused["refused"], refused["ttft"]["predicted_s"]) == ("why", None)


def held(*latencies: HeldOutLatency, rate: float | None = None, users: int | None = 4, clipped: int = 0) -> Any:
    """Of six loads in the anchor ``clipped`` are farther off than the half that it takes in."""
    run = SimpleNamespace(concurrency=users, rate=rate, prompt=1000.0, output=128.0)
    errors = [-0.75] * clipped + [0.5] * (6 - clipped)
    anchor = SimpleNamespace(rows=[0] * 6, measured=lambda metric: ([], errors), process=SimpleNamespace(clip=0.5))
    return SimpleNamespace(
        row=SimpleNamespace(run=run, where="row 9"), figures=latencies,
        fitted=SimpleNamespace(anchor=anchor, left_out=[("row 3", "it failed")]),
        mean_error={"ttft": (0.3, 0.125)},
    )  # fmt: skip


FIRST = HeldOutLatency(metric="ttft", measured=0.5, predicted=0.4, anchored=0.55, band=(0.45, 0.6))
LATER = HeldOutLatency(metric="tpot", measured=0.02, predicted=0.03, anchored=0.025, band=None)


def test_the_load_that_was_held_out() -> None:
    verdict = held(FIRST, LATER)
    assert [cells(report._held(one)) for one in verdict.figures] == [
        {"": "TTFT", "measured": "500.0 ms", "predicted": "400.0 ms", "error": "-20.0%", "anchored": "550.0 ms",
         "error ": "+10.0%", "80 % band": "450.0 ms to 600.0 ms", "inside": "yes"},
        {"": "TPOT", "measured": "20.00 ms", "predicted": "30.00 ms", "error": "+50.0%", "anchored": "25.00 ms",
         "error ": "+25.0%", "80 % band": "unknown", "inside": "-"},
    ]  # fmt: skip
    outside = HeldOutLatency(metric="ttft", measured=0.7, predicted=0.4, anchored=0.55, band=(0.45, 0.6))
    assert cells(report._held(outside))["inside"] == "no"
    low = record(report._held(FIRST))
    assert (low["low_s"], low["high_s"]) == (0.45, 0.6) and record(report._held(LATER))["low_s"] is None
    title = "held out: 4 users, 1000 tokens in, 128 out"
    assert report.held_lines(verdict) == [
        f"{title}: TTFT measured 500.0 ms, predicted 400.0 ms (-20.0%), by the other loads 550.0 ms (+10.0%)",
        f"{title}: TPOT measured 20.00 ms, predicted 30.00 ms (+50.0%), by the other loads 25.00 ms (+25.0%)",
    ]
    whole = report.held_record(verdict)
    assert (whole["row"], whole["loads_in_anchor"], list(whole)) == (
        "row 9", 6, ["row", "loads_in_anchor", "ttft", "tpot"]
    )  # fmt: skip
    assert report._held_title(held(users=1)) == "held out: 1 user, 1000 tokens in, 128 out"
    assert report._held_title(held(users=None, rate=2.3456)) == "held out: 2.35 requests/s, 1000 tokens in, 128 out"
    assert report._held_title(held(users=1, rate=5.0)) == "held out: 5 requests/s, 1000 tokens in, 128 out"
    lost = held()
    lost.row.run = None
    assert report._held_title(lost) == "held out: row 9"


def test_what_was_anchored() -> None:
    assert report._verdict(Judged(why="too few")) == ["nothing held out: too few"] and report._verdict(Judged()) == []
    start = [
        "anchored: corrected by the other 6 loads, without the one held out",
        "TTFT of those: mean error 30.0% as predicted, 12.5% if corrected by the others",
    ]
    last = ["left out of the anchor: row 3: it failed"]
    assert report._verdict(Judged(held=held(FIRST))) == [*start, *last]
    assert report._verdict(Judged(held=held(FIRST, clipped=2))) == [
        *start, "TTFT of 2 loads is off by more than an anchor corrects: look for facts that are not stated (formats, "
        "slots, another device)", *last,
    ]  # fmt: skip


def said(*loads: Any, known: Any = (), **more: Any) -> list[str]:
    """What stands below the sentences of every run."""
    found = list(loads or [load()])
    pairs = list(zip(found, [*known, *[None] * len(found)]))
    return report._notes(session(*found, **more), pairs)[2:]


def test_sentences_of_every_run() -> None:
    first, second = report._notes(session(), [])
    assert first == (
        "means over requests; sent: 1,234 requests, of them 12 to warm up and to learn sizes, left out; at most 56,789 "
        "tokens"
    )
    assert second == "network: no handshake could be timed"
    assert report._notes(session(round_trip=0.005), [])[1] == (
        "network: a round trip takes 5.000 ms, included in every latency"
    )


def test_sentences_of_some_runs() -> None:
    assert said() == []
    dialect = SimpleNamespace(left_out=["ignore_eos", "seed"], api="completions")
    assert said(dialect=dialect) == ["the server does not accept ignore_eos, seed"]
    assert said(dialect=SimpleNamespace(left_out=[], api="chat")) == []
    (unknown,) = said(before=SimpleNamespace(running=None))
    assert unknown.startswith("whether the server had other work is not known")
    for key, encrypted, loopback, count in (
        ("k", False, False, 1), ("", False, False, 0), ("k", True, False, 0), ("k", False, True, 0)
    ):  # fmt: skip
        address = SimpleNamespace(root="r", encrypted=encrypted, loopback=loopback)
        assert len(said(settings=SimpleNamespace(address=address, key=key))) == count
    left = [(SimpleNamespace(describe=lambda: "8 users"), "too long")]
    assert said(left_out=left, ended="the time was over") == [
        "left out: 8 users: too long", "ended early: the time was over"
    ]  # fmt: skip


def test_sentences_about_replies() -> None:
    silent, counted = reply(), reply(cached=0)
    (hits,) = said(load(good=[silent, silent]))
    assert hits.startswith("the server does not count hits in its prefix cache")
    assert said(load(good=[silent, counted])) == said(load(good=[])) == []
    plain = UsersLoad(users=4, prompt=1000, output=128, requests=40)
    assert said(load(plain, good=[silent])) == []
    assert said(load(), load(), known=[figures(), figures(osl_spread=99.0)]) == [
        "outputs differ in length: the server ends them itself; rows hold their mean"
    ]
    assert said(load(), load(), known=[figures(pieces=1.02), figures(pieces=1.02)]) == []
    assert said(load(), load(), known=[figures(pieces=1.5), figures(pieces=2.125)]) == [
        "up to 2.12 tokens come at once: gaps between pieces are not gaps between tokens"
    ]
    assert said(load(), load(), known=[figures(refused=1000), figures(refused=234)]) == [
        "1,234 requests were turned away at first and sent again; their times count from the last sending"
    ]
    failed = [reply(error=f"error {place}") for place in (1, 1, 2, 3, 4, 5, 6)]
    assert said(load(failed=failed)) == [f"failed: error {place}" for place in (1, 2, 3, 4, 5)]


def test_a_client_that_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twentieth of the mean TTFT, 12.5 ms of 250, or of the 126.6 gaps of 1 ms, 6.3 ms; of no gaps of the TTFT."""
    assert report._late([figures(late=0.0125)]) == ""
    late = "this machine was too slow a client: time stamps up to"
    assert report._late([figures(late=0.013), figures(late=0.02)]) == f"{late} 20.00 ms late"
    quick = {"ttft": {"mean": 0.25}, "tpot": {"mean": 0.001}}
    assert report._late([figures(late=0.0062, latencies=quick)]) == ""
    assert report._late([figures(late=0.0065, latencies=quick)]) == f"{late} 6.500 ms late"
    single = {"ttft": {"mean": 0.25}, "tpot": {}}
    assert report._late([figures(late=0.0125, latencies=single, osl=1.0)]) == ""
    assert report._late([figures(late=0.013, latencies=single, osl=1.0)])
    assert report._decoding(figures(osl=1.5, latencies=quick)) == 0.001
    assert report._decoding(figures(osl=3.0, latencies=quick)) == 0.002
    assert said(load(), known=[figures(late=0.013)]) == [f"{late} 13.00 ms late"]
    monkeypatch.setattr(report, "load_figures", lambda one: one)
    assert report.late_client([None, figures(late=0.013)]) == f"{late} 13.00 ms late"  # type: ignore[list-item]


def test_a_run_as_programs_see_it() -> None:
    server = Server(model="m", id="secret", engine="vllm", context=4096)
    failed = [reply(error="one"), reply(error="one"), reply(error="two")]
    run = session(
        load(failed=failed, suspect=["x"]), server=server, round_trip=0.5, left_out=[(OPEN, "too long")],
        dialect=SimpleNamespace(api="chat", left_out=["seed"]), ended="over", before=SimpleNamespace(running=2.0),
    )  # fmt: skip
    found = report._record(run, [(run.loads[0], figures())])
    asked = {
        "users": 4, "requests_per_s": None, "prompt": 1000, "output": 128, "requests": 40, "prefix_hit_rate": 0.25,
    }  # fmt: skip
    (one,) = found.pop("loads")
    assert one.pop("measured")["requests"] == 38 and one == {"asked": asked, "suspect": ["x"], "errors": ["one", "two"]}
    (left,) = found.pop("left_out")
    assert left == {
        "users": None, "requests_per_s": OPEN.requests_per_s, "prompt": 900, "output": 300, "requests": 2,
        "prefix_hit_rate": 0.0, "reason": "too long",
    }  # fmt: skip
    shown = found.pop("server")
    assert (shown["model"], shown["source"], shown["context"], "id" in shown) == ("m", None, 4096, False)
    assert found.pop("bounds")["requests"] == Bounds().requests
    assert found == {
        "url": "http://host:8000", "api": "chat", "options_refused": ["seed"], "requests_running_before": 2.0,
        "round_trip_s": 0.5, "requests_sent": 1234, "requests_of_warmup": 12, "ended": "over",
    }  # fmt: skip
    bare = report._record(session(load()), [(load(), None)])
    assert (bare["server"], bare["api"], bare["options_refused"], bare["ended"]) == (None, None, [], None)
    assert bare["loads"][0]["measured"] is None


def test_the_whole_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "load_figures", lambda one: figures())
    plain = report.measured_report(session(load()), [{"a": "b"}], Judged(why="none"))
    assert len(plain.tables) == 1 and plain.rows == [{"a": "b"}] and plain.notes[-1] == "nothing held out: none"
    assert (plain.record["held_out"], plain.record["not_predicted"], plain.record["defined_by"]) == (None, "none", None)
    assert "predicted" not in plain.record
    replies = [SimpleNamespace(number=1)]
    monkeypatch.setattr(report, "counted_replies", lambda one: replies)
    definition = ("ttft", "t1 - s", lambda replies: [(0.25, 1.0), (0.75, 1.0)])
    monkeypatch.setattr(report, "DEFINITIONS", {"vllm": (definition, ("tpot", "a token", lambda replies: []))})
    judged = Judged([scored(above_uncertain=("ttft",))], held(FIRST))
    whole = report.measured_report(session(load(OPEN)), [], judged, "vllm")
    assert [table.title for table in whole.tables] == [
        "http://host:8000", "predicted, without an anchor", "held out: 4 users, 1000 tokens in, 128 out",
        "the same replies by the definitions of vllm",
    ]  # fmt: skip
    assert whole.record["not_predicted"] is None and whole.record["held_out"]["row"] == "row 9"
    assert whole.notes[-1].startswith("peaks of g are measured lower bounds")
    assert [one["name"] for one in whole.record["defined_by"]["rows"]] == ["ttft", "tpot"]
    first, second = whole.record["defined_by"]["rows"]
    assert (first["mean_s"], first["median_s"], first["users"], first["prompt_tokens"]) == (0.5, 0.5, None, 900)
    assert first["requests_per_s"] == OPEN.requests_per_s and second["mean_s"] is None
    assert next(iter(whole.tables[3].rows))[-1] == "t1 - s"
