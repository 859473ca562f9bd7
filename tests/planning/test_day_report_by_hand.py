"""The report on a day of policies that are written down here: rows, sentences and energy by hand."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.errors import InfeasibleError
from inferplan.figures import record
from inferplan.reports import day as report
from inferplan.serving.autoscaling import Reactive
from inferplan.table import Report
from inferplan.traffic.requests import Slo


@pytest.fixture(autouse=True)
def parts_of_other_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    words: dict[str, Any] = {
        "class_records": [], "error_notes": ["errors"], "outside_band": "", "replay_notes": [], "scattered": False,
        "mix_notes": ["mixes"], "parts_rest_on": {"a": "b"}, "deployment_record": {"model": "m"}, "bill_record": "bill",
        "error_record": "errors", "happened_record": None, "happened_rows": [], "classes_record": None,
        "mixes_record": None, "_hours": ["hours"], "tier_records": None, "episode_records": "episodes",
        "by_class": "kinds", "_times": ["times"], "failure_table": "failures", "error_note": "watts are off",
        "hours_over": None, "_by_hour": "by hour", "by_day": "by day", "alone": "alone", "edge_lines": [],
    }  # fmt: skip
    for name, value in words.items():
        monkeypatch.setattr(report, name, lambda *_, value=value: value)


def policy(**more: Any) -> Any:
    """8 replica-hours a day, of two GPUs each, at 100 EUR; 1 of 20 requests is late, as many as may be."""
    found: dict[str, Any] = {
        "policy": "static", "peak": 3, "device_hours": 16.0, "cost": 100.0, "tier_cost": None, "missed": 0.05,
        "utilisation": 0.625, "taken": 1500, "resent": 2500, "outages": [],
        "result": SimpleNamespace(hit_rate=0.25, counts={"arrived": 9}),
        "percentile": lambda name, percentile: {"ttft": 0.35, "tpot": 0.02}.get(name, 9.0), "scaling": None,
    }  # fmt: skip
    return SimpleNamespace(**found | more)


class Requests(SimpleNamespace):
    def __len__(self) -> int:
        return 7200


def day(*policies: Any, **more: Any) -> Any:
    """A day of 7,200 requests of 1,000 and 3,000 tokens, on replicas of two GPUs: 1/s to noon, 4/s from 18 h on."""
    deployment = SimpleNamespace(
        describe=lambda: "a model", parallel=SimpleNamespace(ranks=2), hardware=SimpleNamespace(name="h100"), cap=None
    )
    design = SimpleNamespace(
        deployment=deployment, rate=2.5, broken="ttft", requests=9.5,
        option=SimpleNamespace(
            slow=SimpleNamespace(step=1.25),
            speculation=SimpleNamespace(length=0),
            deployment=SimpleNamespace(lora=None),
        ),
        flags=SimpleNamespace(max_num_seqs=64, max_num_batched_tokens=2048, queue="fcfs"),
    )  # fmt: skip
    asked: dict[str, Any] = {
        "cold_start": None, "losses": None, "failures": None, "replay": None, "span": 86400.0, "routing": "round-robin",
        "minimum_bill": 0.0, "tiers": (), "autoscaler": SimpleNamespace(target=None), "profile": SimpleNamespace(
            name="day.csv", source="", classes=(), end=86400.0, starts=[0.0, 43200.0, 64800.0], rates=[1, 2, 4],
            peak=4.0, mean=2.0),
    }  # fmt: skip
    demand: dict[str, Any] = {
        "classes": (),
        "media": None,
        "arrivals": "poisson",
        "queue": "fcfs",
        "samples": 1,
        "adapters": None,
        "output": None,
    }
    question = SimpleNamespace(
        slo=Slo(ttft=0.5, percentile=95.0), demand=SimpleNamespace(**demand | more.pop("demand", {})),
        sizing=SimpleNamespace(utilisation=0.8, confidence=0.5),
        prices=SimpleNamespace(remarks=lambda names: [f"prices of {', '.join(names)}"]),
    )  # fmt: skip
    found: dict[str, Any] = {
        "asked": SimpleNamespace(**asked | more.pop("asked", {})), "question": question, "days": 1.0, "undone": {},
        "work": SimpleNamespace(design=design, mixes=[1], confidence=0.5, apart=0.0, unkept=None),
        "policies": list(policies) or [policy()],
        "tariff": SimpleNamespace(currency="EUR", bill=lambda count: SimpleNamespace(remarks=["a remark"])),
        "requests": Requests(hashes=None, prompt=np.array([1000, 3000]), output=np.array([100, 200]), media=None,
                             sessions=None, samples=1),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def cells(row: Any) -> dict[str, str]:
    return {one.label: one.shown for one in row if one.label and one.seen}


def test_a_policy_as_a_row() -> None:
    """Two GPUs for 8 hours; over half a day twice that. A tenth less is saved."""
    whole = day()
    row = report._row(whole, whole.policies[0])
    assert cells(row) == {
        "policy": "static", "peak replicas": "3", "GPU-hours": "16.0", "EUR per day": "100.00", "saving": "",
        "miss": "5.00%", "TTFT p95": "350 ms", "used": "62%",
    }  # fmt: skip
    found = record(row)
    assert (found["meets"], found["tpot_s"], found["prefix_cache_hit_rate"]) == (True, 0.02, None)
    assert (found["taken_away"], found["begun_anew"], found["requests"]) == (1500, 2500, {"arrived": 9})
    spot = day(policy(), asked={"losses": "losses"}, days=2.0)
    spot.requests.hashes = "hashes"
    other = policy(cost=90.0, missed=0.0501)
    shown = cells(report._row(spot, other))
    assert (shown["GPU-hours"], shown["EUR per day"], shown["saving"], shown["miss"]) == (
        "32.0", "180.00", "10.0%", "5.01% !"
    )  # fmt: skip
    assert (shown["taken"], shown["restarted"], shown["hits"]) == ("1,500", "2,500", "25.0%")
    assert cells(report._row(whole, other, policy(cost=180.0)))["saving"] == "50.0%"
    free = day(policy(cost=0.0))
    assert cells(report._row(free, other))["saving"] == ""


def test_classes_of_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own limits: latencies of all together say nothing; nobody of a class misses nothing."""
    for found, meets in (([True, None], True), ([True, False], False)):
        monkeypatch.setattr(report, "class_records", lambda one, found=found: [{"meets": of} for of in found])
        whole = day()
        row = report._row(whole, policy(missed=0.9))
        assert record(row)["meets"] is meets and record(row)["ttft_s"] is None and "TTFT p95" not in cells(row)


def test_a_class_as_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of four in time; TTFT at the percentile of the class, 0.4 s, and nothing of what is not limited."""
    kind = SimpleNamespace(name="chat", slo=Slo(ttft=0.5, percentile=80.0))
    part = SimpleNamespace(counts={"arrived": 4}, attained=[True, True, True, False], at={"ttft": 0.005})
    monkeypatch.setattr(report, "at_percentile", lambda part, name, q: part.at.get(name, inf) * q)
    row = report._class(policy(parts=[(kind, part)]), 0, {"ttft"})
    found = record(row)
    assert (found["name"], found["requests"], found["missed"], found["meets"]) == ("chat", 4, 0.25, False)
    assert (found["ttft_s"], found["tpot_s"]) == (pytest.approx(0.4), None) and cells(row)["miss"] == "25.00% !"
    part.counts["arrived"], part.attained = 0, []
    assert record(report._class(policy(parts=[(kind, part)]), 0))["meets"] is None


def test_titles_of_a_day() -> None:
    assert report._title(day()) == "a model: 24 h, profile day.csv, TTFT 500 ms at p95"
    sure = day()
    sure.work.confidence = 0.8
    assert report._title(sure).endswith(" at p95, replicas for a confidence of 0.8")
    replayed = day(asked={"replay": SimpleNamespace(dated=False, began=0.0), "span": 5400.0})
    assert report._what(replayed).startswith("1.5 h of day.csv from ")
    morning, evening = day(asked={"span": 43200.0}), day(asked={"span": 64801.0})
    alone = "the first 12 h alone, with 1 requests/s at most, not the peak of 4"
    assert report._what(morning) == f"{alone}, profile day.csv"
    assert report._what(evening) == "18 h, profile day.csv"


def test_a_profile_that_is_no_day() -> None:
    assert report._no_day(day()) == []
    short = day()
    short.asked.profile.end = 3600.0
    (said,) = report._no_day(short)
    assert said.startswith("no day: profile day.csv lasts ") and "repeats, with no night in it" in said
    short.asked.span = 3600.0
    assert report._no_day(short) == []
    short.asked.span, short.asked.replay = 86400.0, "log"
    assert report._no_day(short) == []
    long = day(asked={"span": 7 * 86400.0})
    assert report._no_day(long) == []
    long.asked.profile.end = 86399.0
    assert len(report._no_day(long)) == 1


def test_confidences_of_a_day() -> None:
    counted = report._counted(day())
    assert counted == "replicas are counted as predicted; plan keeps a confidence of 0.8 where the error is known"
    asked = day()
    asked.question.sizing.confidence = 0.9
    for what in ("a replica keeps them under no load", "the error is not known"):
        asked.work.unkept = InfeasibleError(what)
        assert report._counted(asked) == f"replicas are counted as predicted, for at a confidence of 0.9 {what}"
    asked.work.unkept = InfeasibleError("no day at a confidence of 0.9: the error is not known")
    assert report._counted(asked).endswith("confidence of 0.9 the error is not known")
    asked.work.confidence = 0.9
    assert report._counted(asked).startswith(
        "replicas are counted at a confidence of 0.9, as in plan: for steps x 1.25 of"
    )


CARRIED = (
    "a replica carries 2.5 requests/s within the limits (the limit on TTFT breaks first), by simulation, and is loaded "
    "to 80% of that; it runs with --max-num-seqs 64 --max-num-batched-tokens 2048"
)


def test_sentences_below_a_day() -> None:
    first, second, third, *rest = report._notes(day(), [])
    assert first == CARRIED and third.startswith("replicas are counted as predicted")
    assert second.startswith(
        "7,200 requests in 24 h, of 2,000 tokens in and 150 out on average, poisson arrivals, the same for every "
        "policy; round-robin routing;"
    )
    assert rest == [
        "a replica is billed from its order until its last request is done, by the second", "errors", "a remark",
        "prices of h100",
    ]  # fmt: skip
    mixes = day(demand={"classes": ("a", "b")})
    mixes.work.mixes, mixes.work.design.broken = [1, 2], "else"
    first, *rest = report._notes(mixes, ["h100", "l4"])
    assert first.startswith(
        "a replica carries 2.5 requests/s of the most demanding mix within the limits, by simulation"
    )
    assert "mixes" in rest and rest[-1] == "prices of h100, l4"


def test_sentences_of_some_days(monkeypatch: pytest.MonkeyPatch) -> None:
    some = day(asked={"minimum_bill": 600.0, "span": 43200.0}, undone={"spot": 0.25, "late": 0.0})
    some.asked.profile.source, some.asked.profile.classes = "a log", ("chat", "batch")
    assert report._notes(some, [])[3:7] == [
        "profile: a log", "the rates of chat, batch are added: all have the lengths stated here",
        "interrupted: not simulated to the end, and lost: spot (25% was), late",
        "GPU-hours and cost are per day, over 12 h simulated; all of it costs static 100.00 EUR",
    ]  # fmt: skip
    assert any(line.endswith("by the second, at least 600 s") for line in report._notes(some, []))
    of_calls = day(demand={"samples": 3})
    of_calls.requests.sessions, of_calls.requests.samples = [0] * 1800, 3
    assert report._notes(of_calls, [])[3:5] == [
        "1,800 sessions of 4 calls; the profile counts calls, each a request here",
        "3 answers per prompt, each a request here; the profile states prompts",
    ]
    monkeypatch.setattr(report, "_loss_notes", lambda asked: ["taken away"] if asked.losses else [])
    assert report._notes(day(asked={"losses": 1}), [])[3] == "taken away"
    late = report._notes(day(policy(missed=0.0501)), [])
    assert late[3] == "! more than 5 % of the requests miss a limit"
    monkeypatch.setattr(report, "class_records", lambda one: [{"meets": None}, {"meets": one.missed < 0.1}])
    kinds = {"classes": ("a",)}
    assert not any(line.startswith("!") for line in report._notes(day(demand=kinds), []))
    missed = report._notes(day(policy(), policy(missed=0.9), demand=kinds), [])
    assert [line[:36] for line in missed if line.startswith("!")] == ["! more requests of a class miss a li"]
    monkeypatch.setattr(report, "scattered", lambda asked, question: True)
    assert report._scattered(day())[0].startswith("round-robin routing sends later turns to any replica")


def test_cold_starts_in_words() -> None:
    def said(**more: Any) -> str:
        told = {"weights": 16e9, "rate": 2e9, "bandwidth": 2e9, "start": 0.0, "loader": "", "rest": 68.0,
                "seconds": 76.0, "measured": "", "part": "part"}  # fmt: skip
        start = SimpleNamespace(**told | more)
        (line,) = [one for one in report._notes(day(asked={"cold_start": start}), []) if one.startswith("cold start")]
        return line

    read = "16.00 GB of weights at 2.000 GB/s, and 68.0 s"
    assert said() == f"cold start: 76.0 s = {read}"
    assert said(start=3.0, loader="a loader") == f"cold start: 76.0 s = 3.00 s before a loader reads, {read}"
    assert said(bandwidth=inf, start=3.0) == "cold start: 76.0 s"
    assert said(measured="vllm") == f"cold start: 76.0 s = {read} of vllm, by its log: no pod, no image"
    start = SimpleNamespace(part="published")
    assert report._rests_on(day(asked={"cold_start": start})) == {"a": "b", "cold_start": "published"}
    assert report._rests_on(day()) == {"a": "b"}


def test_what_an_autoscaler_does() -> None:
    rule = Reactive.__new__(Reactive)
    told = {"target": 12.5, "interval": 15.0, "tolerance": 0.1, "stabilisation": 300.0, "least": 1, "most": 9}
    for name, value in told.items():
        object.__setattr__(rule, name, value)
    whole = day(policy(), policy(scaling=rule))
    said = (
        "reactive: 12.5 requests in a replica{}; checked every 15 s, tolerance 0.1, 300 s before fewer, 1 to 9 replicas"
    )
    assert said.format(", as many as a replica has at its share of its capacity") in report._notes(whole, [])
    whole.asked.autoscaler.target = 12.5
    assert said.format("") in report._notes(whole, [])


def test_tokens_of_media() -> None:
    carried = day(demand={"media": SimpleNamespace(tokens=500)})
    assert report._of_media(carried) == report._of_media(day()) == ""
    carried.requests.media = np.array([2, 4])
    assert report._of_media(carried) == " (1,500 of them media)"
    plain = day()
    plain.requests.media = np.array([2, 4])
    assert report._of_media(plain) == ""
    assert (
        report._arrivals(day()) == "poisson arrivals" and report._arrivals(day(asked={"replay": 1})) == "as they came"
    )


def test_a_day_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = report.day_report(day())
    assert whole.record["slo"] == {"ttft_s": 0.5} and whole.record["percentile"] == 95.0
    assert whole.record["replica"] == {
        "requests_per_s": 2.5, "breaks_first": "ttft", "confidence": 0.5, "step_times": 1.25, "utilisation": 0.8,
        "requests_in_it": 9.5, "max_num_seqs": 64, "max_num_batched_tokens": 2048, "queue": "fcfs", "bill": "bill",
        "draft_tokens": None,
    }  # fmt: skip
    assert whole.record["profile"] == {
        "name": "day.csv", "source": "", "classes": [], "steps": 3, "period_s": 86400.0, "peak_requests_per_s": 4.0,
        "mean_requests_per_s": 2.0, "simulated_s": 86400.0, "requests": 7200,
    }  # fmt: skip
    assert whole.record["preemptions"] is whole.record["failures"] is None and whole.tables[1:] == ["times"]
    (one,) = whole.record["policies"]
    assert (one["hours"], one["classes"], "failures" in one) == (["hours"], None, False)
    lost = {"losses": SimpleNamespace(rate=2 / 3600, notice=30.0), "failures": SimpleNamespace(mode="cut", per_node=2)}
    some = report.day_report(day(asked=lost, undone={"spot": 0.5}))
    assert some.record["preemptions"] == {"per_replica_hour": 2.0, "notice_s": 30.0} and some.record["undone"] == [
        "spot"
    ]
    assert some.record["failures"] == {"mode": "cut", "replicas_per_node": 2}
    assert some.tables[1:] == ["failures", "times"] and some.record["policies"][0]["failures"] == "episodes"
    monkeypatch.setattr(report, "class_records", lambda one: [{"name": "a", "meets": True}])
    kind = SimpleNamespace(name="a", slo=Slo(percentile=95.0))
    kinds = report.day_report(day(asked=lost, demand={"classes": (kind,)}))
    assert (
        kinds.tables[1:] == ["kinds", "failures", "times"] and kinds.record["slo"] is kinds.record["percentile"] is None
    )
    assert kinds.rows[0]["classes"] == {"a": {"name": "a", "meets": True}}


TIMES = report._times


def test_hours_or_days(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TIMES(day()) == ["by hour"] and TIMES(day(asked={"span": 86401.0})) == ["by day"]
    assert TIMES(day(asked={"replay": 1})) == ["by hour"]
    monkeypatch.setattr(report, "hours_over", lambda day: "over")
    assert TIMES(day(asked={"replay": 1})) == ["by hour", "over"] and TIMES(day()) == ["by hour"]


def test_designs_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows save against the first policy of the first design."""
    monkeypatch.setattr(report, "day_report", lambda day, priced: Report(record={"priced": priced}))
    monkeypatch.setattr(report, "with_day_energy", lambda report, day, asked: Report(record={"energy": asked}))
    monkeypatch.setattr(report, "with_designs", lambda reports, days, rows: (reports, rows))
    first, other = day(policy(cost=200.0)), day(policy(cost=150.0), policy(cost=50.0))
    other.work.design.deployment.hardware.name = "l4"
    assert report.days_report([first]).record == {"priced": ["h100"]}
    assert report.days_report([first], "asked").record == {"energy": "asked"}  # type: ignore[arg-type]
    reports, rows = report.days_report([first, other, first])  # type: ignore[misc]
    assert [one.record["priced"] for one in reports] == [["h100", "l4"]] * 3
    assert [cells(row)["saving"] for row in rows][:3] == ["", "25.0%", "75.0%"]


def joules_of(name: str, grams: Any) -> Any:
    """2 and 6 kWh in two hours."""
    carbon = None if grams is None else SimpleNamespace(grams=400.0, source="a grid")
    asked = SimpleNamespace(scope="GPUs", pue=1.0, host_watts=0.0, carbon=carbon)
    return SimpleNamespace(
        policy=policy(policy=name), kwh=[2.0, 6.0], grams=grams, idle_share=0.25, per_output_token=0.5, asked=asked
    )


def test_energy_of_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 kWh and 3,200 g over half of a day: 16 and 6.4 kg a day; 3,200 g over 7,200 requests."""
    first, second = joules_of("static", [800.0, 2400.0]), joules_of("spot", [400.0, 1200.0])
    second.kwh = [1.0, 3.0]
    half = day(days=2.0)
    assert cells(report._energy(half, first, first)) == {
        "policy": "static", "kWh per day": "16.00", "saving": "", "for being on": "25%", "per output token": "500.0 mJ",
        "kg CO2 per day": "6.400", "g/kWh": "400.0", "CO2 per request": "444 mg",
    }  # fmt: skip
    assert cells(report._energy(half, second, first))["saving"] == "50.0%"
    dark = report._energy(half, joules_of("static", None), first)
    assert not {"kg CO2 per day", "g/kWh", "CO2 per request"} & cells(dark).keys()
    assert record(dark)["carbon_g_per_kwh"] is record(dark)["request_g"] is None
    assert report._energy_by_hour(first) == [
        {"hour": 0, "kwh": 2.0, "carbon_g": 800.0}, {"hour": 1, "kwh": 6.0, "carbon_g": 2400.0}
    ]  # fmt: skip
    assert report._energy_by_hour(joules_of("x", None))[1] == {"hour": 1, "kwh": 6.0, "carbon_g": None}
    monkeypatch.setattr(report, "DayEnergy", lambda day, policy, asked: first)
    shares = SimpleNamespace(standing=0.123, standing_source="a source")
    monkeypatch.setattr(report, "power_shares", lambda hardware: shares)
    before = Report(record={"rests_on": {"a": "b"}}, tables=["table"], notes=["note"])  # type: ignore[list-item]
    whole = report.with_day_energy(before, half, first.asked)
    assert whole.notes == [
        "note", "watts are off",
        "a GPU without work draws 12.3% of TDP, from the order of its replica on (a source)",
        "CO2: 400 g/kWh, a grid; operation only, manufacture not counted",
    ]  # fmt: skip
    assert whole.tables[1].title == "Energy (GPUs)" and whole.record["rests_on"] == {"a": "b", "energy": report.WATTS}
    assert len(whole.record["energy"]["policies"][0]["hours"]) == 2
    for holds, count in ((True, 5), (False, 4)):
        half.work.design.deployment.cap = SimpleNamespace(holds=holds, watts=500.0)
        notes = report.with_day_energy(before, half, first.asked).notes
        assert len(notes) == count and (notes[-1] == f"cap of 500 W: {report.UNMEASURED}") is holds
