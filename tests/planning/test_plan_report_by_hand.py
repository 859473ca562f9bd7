"""The tables of a plan that is written down here: each row by hand, and which tables there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.figures import Figure
from inferplan.planning.infeasible import REASONS
from inferplan.planning.verify import TOO_SHORT
from inferplan.reports import plan as report
from inferplan.traffic.requests import Slo


def option(**more: Any) -> Any:
    """Three replicas of 8 GPUs that answer with 200 tokens."""
    deployment = SimpleNamespace(
        model=SimpleNamespace(encodes=False), engine=SimpleNamespace(describe=lambda: "vllm 0.33"), lora=None
    )
    found: dict[str, Any] = {
        "deployment": deployment, "spare": 0, "tiers": (), "hours": None, "devices": 24, "budget": 2048,
        "prompt_budget": None, "per_device": 1234.5, "pools": None, "replicas": 3, "output": 200.0, "batch": 16,
        "name": "plan", "slow": SimpleNamespace(step=1.25),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def demand(**more: Any) -> Any:
    found = {
        "classes": (), "users": None, "people": None, "think": 0.0, "samples": 1, "structured": None,
        "describe": lambda: "12 requests/s", "sessions": None, "counted": "requests",
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def plan(**more: Any) -> Any:
    """12 requests/s, TTFT at 350 of 400 ms; half of the load is carried on top."""
    slo = Slo(ttft=0.4, percentile=95.0)
    question = SimpleNamespace(
        demand=more.pop("demand", demand()), slo=slo, prices=SimpleNamespace(term="on-demand", named=False),
        space=SimpleNamespace(base=SimpleNamespace(model="m"), caps=()), bound="24 GPUs",
        sizing=SimpleNamespace(utilisation=0.8, power=None),
    )  # fmt: skip
    kept = [SimpleNamespace(name="", slo=slo, achieved={"ttft": 0.35})]
    best = SimpleNamespace(result=None, slots=64, kept=lambda slo: kept, survival=None)
    rejections = SimpleNamespace(counts=SimpleNamespace(most_common=lambda: [(next(iter(REASONS)), 1234)]))
    found: dict[str, Any] = {
        "option": option(), "question": question, "best": best, "supported": True, "has_confidences": True,
        "confidence": 0.8, "miss": None, "capacity": SimpleNamespace(factor=1.5, open=False), "load": 12.0,
        "rate": 12.0, "binding": "ttft", "curve": [],
        "tiered": [], "alternatives": [], "runners": [], "sensitivity": [],
        "searched": SimpleNamespace(evaluated=56_789, structures=1200, rejections=rejections),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


@pytest.fixture(autouse=True)
def parts_of_other_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    words: dict[str, Any] = {
        "error_unknown": "", "load_of_users": "", "devices": "24 x h100", "formats": "fp8", "dated_money": "60 USD/h",
        "quality_headline": "", "power": None, "session_rate": None, "terms_of": [], "cost_of": None, "energy_of": None,
        "plan_record": {}, "limit_line": "", "served_line": "", "opening": [], "notes": [], "answer": "the answer",
        "beside_api": None, "candidates": [[Figure("a", 1, "a")]], "survival_table": "survival", "tiers_table": "tiers",
        "load_cost_table": "costs", "cost_energy_table": "energy", "chain_text": "a chain", "replicas_given": "fewest",
    }  # fmt: skip
    for name, value in words.items():
        monkeypatch.setattr(report, name, lambda *_, value=value: value)
    for name in ("shape", "money", "quants"):
        monkeypatch.setattr(report, name, lambda option, name=name: f"{name} of {option.name}")
    monkeypatch.setattr(report, "runners", lambda plan: [[Figure("b", 1, "b")]])


def rows(of: Any) -> dict[str, str]:
    return dict(map(tuple, report.summary_table(of).rows))  # type: ignore[arg-type]


def test_a_plan_in_one_table() -> None:
    """12 x 1.5 = 18 requests/s, 6 a replica; the load is 67 % of it; 12 x 200 / 24 = 100 tokens/s a GPU."""
    table = report.summary_table(plan())
    assert table.title == "m: 12 requests/s; TTFT p95 < 400 ms"
    assert list(table.rows) == [
        ["deployment", "24 x h100, fp8"], ["replicas", "shape of plan"],
        ["engine", "vllm 0.33, 2,048 tokens per step, 64 sequences"], ["cost", "60 USD/h"],
        ["TTFT p95 (closed form)", "350.0 ms, limit 400 ms"], ["confidence", "0.8 for each limit by itself"],
        ["capacity of these settings (simulated, within "
         f"{100 * report.CAPACITY_TOLERANCE:g} %)", "18.0 requests/s, 6.00 per replica"],
        ["load over capacity", "67% (limit 80%)"], ["output tokens/s per GPU at this load", "100"],
        ["bottleneck", "the limit on TTFT"],
    ]  # fmt: skip
    free = plan()
    free.question.slo = Slo(percentile=95.0)
    assert report.summary_table(free).title == "m: 12 requests/s"


def test_rows_that_not_every_plan_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "error_unknown", lambda plan: "its error is not known")
    monkeypatch.setattr(report, "load_of_users", lambda plan: "31 requests/s")
    monkeypatch.setattr(report, "quality_headline", lambda plan: "quality: it keeps 99%: of all")
    some = plan(option=option(spare=2, tiers=("host",), hours=1234.5, prompt_budget=8192))
    some.best.result = "run"
    found = rows(some)
    assert list(found)[:3] == ["caution", "load", "deployment"]
    assert (found["caution"], found["load"]) == ("its error is not known", "31 requests/s")
    assert (found["replicas"], found["quality"]) == ("shape of plan + 2 spare", "it keeps 99%: of all")
    assert found["engine"] == "vllm 0.33, 8,192 (prefill) and 2,048 (decode) tokens per step, 64 sequences"
    assert found["cache tiers per device"] == "a chain"
    assert found["time, GPU-hours"] == "1,234.50 h, 29,628.0"  # 24 of them
    assert found["TTFT p95 (simulated)"] == "350.0 ms, limit 400 ms"
    for change in ({"supported": False}, {"has_confidences": False}):
        assert "confidence" not in rows(plan(**change))
    classes = plan()
    slow = SimpleNamespace(name="batch", slo=Slo(tpot=0.05, percentile=90.0), achieved={"tpot": 0.02})
    classes.best.kept = lambda slo: [slow]
    assert rows(classes)["batch: TPOT p90 (closed form)"] == "20.00 ms, limit 50.0 ms"


def test_the_chance_of_a_miss() -> None:
    """A chance that is written as 100 % says nothing."""
    start = "0.8 for each limit by itself"
    for chance, said in (
        (0.01, "; under the load itself the chance of missing any of them is at most 1%"),
        (0.995, ""),
    ):
        assert report._confidence(plan(miss=SimpleNamespace(chance=chance))) == start + said
    assert report._confidence(plan(miss=SimpleNamespace(chance=0.994))).endswith("at most 99%")


def test_what_replicas_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    def capacity(**more: Any) -> str:
        return report.capacity_rows(plan(**more))[0][1]

    assert capacity(capacity=SimpleNamespace(factor=1.5, open=True)) == (
        "at least 18.0 requests/s, at least 6.00 per replica"
    )
    assert capacity(demand=demand(samples=4, counted="answers")) == "18.0 answers/s, 6.00 per replica"
    assert capacity(option=option(pools=(1, 2))) == "18.0 requests/s"
    for more, unit in (({"people": "people"}, "people"), ({"think": 5.0}, "users"), ({}, "in flight")):
        assert capacity(demand=demand(users=1000, **more), load=1000.0) == f"1,500 {unit}, 500 per replica"
    monkeypatch.setattr(report, "session_rate", lambda plan: 0.125)
    assert capacity() == "18.0 requests/s (0.188 sessions/s), 6.00 per replica"
    assert report.capacity_rows(plan(capacity=None)) == [["output tokens/s per GPU, closed form", "1,234"]]
    encoder = option()
    encoder.deployment.model.encodes = True
    assert report.capacity_rows(plan(capacity=None, option=encoder)) == [["requests/s per GPU, closed form", "1,234"]]


def test_adapters_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    assert report._adapters(plan()) == []
    some = plan()
    some.option.deployment.lora = SimpleNamespace(rank=16, slots=4)
    slots = [["LoRA adapters", "rank 16 in 4 slots per replica"]]
    assert report._adapters(some) == slots
    some.best.result = "run"
    monkeypatch.setattr(report, "adapters_found", lambda result: found)
    found: Any = None
    assert report._adapters(some) == slots
    found = {"hit_rate": None}
    assert report._adapters(some) == slots
    found = {"hit_rate": 0.875, "loaded": 1500, "load_s": 0.02}
    assert report._adapters(some) == [
        ["LoRA adapters", "rank 16; 87.50% found in 4 slots; 1,500 loaded, 20.00 ms each"]
    ]


def test_masks_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of 21 ms where one of 20 has none."""
    calls: list[Any] = []

    def point(deployment: Any, demand: Any, *at: Any) -> Any:
        calls.append(at)
        return SimpleNamespace(tpot=[[0.02 if demand.structured is None else 0.021]])

    monkeypatch.setattr(report, "point", lambda *words: SimpleNamespace(tpot=np.array(point(*words).tpot)))
    monkeypatch.setattr(report, "mask_filling", lambda engine: 0.25)
    monkeypatch.setattr(report, "replace", lambda value, **new: SimpleNamespace(**vars(value) | new))
    assert report._masks(plan()) == []
    masks = SimpleNamespace(each=lambda filling: filling / 1000, cores=8, share=0.5)
    assert report._masks(plan(demand=demand(structured=masks))) == [[
        "structured decoding", "50% of the requests, 250.0 us per mask, 8 cores; adds 1.000 ms on 20.00 ms a step of "
        "16 sequences, closed form",
    ]]  # fmt: skip
    assert calls == [(95.0, 16, 2048)] * 2


def test_watts_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "power", lambda plan: [Figure("w", 5.0, "watts", ".0f")])
    asked, capped = plan(), plan()
    asked.question.sizing.power, capped.question.space.caps = "a budget", (500.0,)
    assert report.power_rows(asked) == report.power_rows(capped) == [["watts", "5"]]
    assert report.power_rows(plan()) == []
    monkeypatch.setattr(report, "power", lambda plan: None)
    assert report.power_rows(asked) == []


def test_terms_that_it_is_sold_on(monkeypatch: pytest.MonkeyPatch) -> None:
    one = [Figure("term", "reserved, 1 year", "term")]
    other = [Figure("term", "on-demand", "term")]
    monkeypatch.setattr(report, "terms_of", lambda plan: sold)
    sold = [one]
    assert report.terms_tables(plan()) == []
    sold = [one, other]
    (table,) = report.terms_tables(plan())
    assert table.title == report._TERMS and len(table.rows) == 2
    few = "; without --term the best plan may need fewer than these 24 GPUs"

    def beside(term: str, named: bool, *rows: Any) -> str:
        of = plan()
        of.question.prices = SimpleNamespace(term=term, named=named)
        return report._beside_terms(of, list(rows))

    assert beside("on-demand", False) == "" and beside("spot", False) == few
    assert beside("reserved", False, one, other) == f"{few}; no 3-year price on file"
    assert beside("reserved", True, other) == f"{few}; no 1-year or 3-year price in the lists asked"
    three = [Figure("term", "reserved, 3 years"), Figure("other", "reserved, 1 year")]
    assert beside("reserved", False, one, three) == few
    assert beside("reserved", False, three) == f"{few}; no 1-year price on file"


def step(confidence: float, cost: float | None, name: str = "a", exact: bool = True) -> Any:
    of = None if cost is None else option(name=name, cost=cost, kinds=[])
    return SimpleNamespace(confidence=confidence, cost=cost, option=of, exact=exact)


def test_the_cost_of_safety(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours that buy the same are one line; half of the dearest has half of a bar of twelve. A reserve of a fifth
    is a load of 1/0.8 = 125 %; without a reserve no load is named."""
    curve = [step(0.5, 30.0), step(0.6, 30.0), step(0.8, 60.0, "b", exact=False), step(0.9, None)]
    monkeypatch.setattr(report, "alike_steps", lambda plan: [curve[:2], curve[2:3], curve[3:]])
    table = report.confidence_table(plan(curve=curve))
    title = "Cost of safety: each limit kept at p95 with this confidence"
    assert table.title == f"{title}, at 125% of the load"
    whole = plan(curve=curve)
    whole.question.sizing.utilisation = 1.0
    assert report.confidence_table(whole).title == title
    assert [list(row) for row in table.rows] == [
        ["0.5 to 0.6", "money of a", "#" * 6, "as predicted to x 1.25", "24 x h100", "shape of a", "quants of a"],
        ["0.8", "at most money of b", "#" * 12, "x 1.25", "24 x h100", "shape of b", "quants of b"],
        ["0.9", "-", "", "", "no option meets the limits", "", ""],
    ]
    monkeypatch.setattr(report, "alike_steps", lambda plan: [[step(0.5, 0.0)]])
    (row,) = report.confidence_table(plan(curve=[step(0.5, 0.0)])).rows
    assert row[2] == ""


def test_other_loads_of_a_plan() -> None:
    entry = {"load": 0.5, "verdict": "stable", "meets": True, "ttft_s": 0.3, "replicas_needed": 2}
    found = {one.label: one.shown for one in report._load(plan(), entry)}
    assert found == {"load": "50%", "TTFT": "300 ms", "meets": "yes", "replicas for this load": "2"}
    for change, meets, ttft in (
        ({"meets": False}, "no", "300 ms"), ({"meets": False, "verdict": TOO_SHORT}, TOO_SHORT, "300 ms"),
        ({"meets": False, "verdict": "overloaded"}, "overloaded", "-"),
    ):  # fmt: skip
        row = {one.label: one.shown for one in report._load(plan(), entry | change)}
        assert (row["meets"], row["TTFT"]) == (meets, ttft)
    assert {one.label: one.shown for one in report._load(plan(), entry | {"replicas_needed": 0})}[
        "replicas for this load"
    ] == "-"
    title = "the same replicas under other loads (simulated), and the fewest"
    assert report.sensitivity_table(plan(sensitivity=[entry])).title == title
    classes = plan(sensitivity=[entry], demand=demand(classes=("a",)))
    assert report.sensitivity_table(classes).title == f"{title}; p95 of all classes together"


def test_titles_and_reasons() -> None:
    table = report.rejections_table(plan())
    assert table.title == "56,789 candidates in 1,200 structures; ruled out, by first reason"
    assert list(table.rows) == [[next(iter(REASONS.values())), "1,234"]]
    assert report.alternatives_table(plan()).title.endswith("that meet the limits (p95)")
    assert report.runners_table(plan()).title.startswith("other GPUs for 24 GPUs, at the same limits (closed form")


def test_the_tables_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that say something, in their order."""
    bare = report.plan_report(plan())
    assert [table.title[:9] for table in bare.tables] == ["m: 12 req", "56,789 ca"]
    assert bare.opening == [] and bare.headline == "the answer" and bare.rows == [{"a": 1}]
    for name, value in {"cost_of": "cost", "energy_of": "energy", "limit_line": "limit", "opening": ["people"]}.items():
        monkeypatch.setattr(report, name, lambda plan, value=value: value)
    monkeypatch.setattr(report, "terms_tables", lambda plan: ["terms"])
    for name in ("confidence", "alternatives", "runners", "sensitivity", "rejections", "summary"):
        monkeypatch.setattr(report, f"{name}_table", lambda plan, name=name: name)
    whole = plan(curve=["step"], tiered=["tier"], alternatives=["other"], runners=["other"], sensitivity=["load"])
    whole.best.survival = "survival"
    assert report.plan_report(whole).tables == [
        "summary", "survival", "tiers", "confidence", "costs", "terms", "energy", "alternatives", "runners",
        "sensitivity", "rejections",
    ]  # fmt: skip
    assert report.plan_report(whole).opening == ["limit", "people"]
