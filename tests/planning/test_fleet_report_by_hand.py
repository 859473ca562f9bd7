"""The report on a fleet and on GPUs that somebody has, of answers that are written down here: cells by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.figures import record
from inferplan.reports import fit_owned as owned
from inferplan.reports import fleet as report
from inferplan.traffic.requests import Slo


@pytest.fixture(autouse=True)
def parts_of_other_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "quants", lambda option: option.quant)
    monkeypatch.setattr(report, "bill_record", lambda bill: {"bill": bill.per_hour})
    monkeypatch.setattr(report, "deployment_record", lambda deployment: {"deployment": deployment.hardware.name})
    monkeypatch.setattr(report, "error_record", list)
    monkeypatch.setattr(report, "error_notes", lambda served, unmeasured: [f"errors of {len(served)}: {unmeasured}"])
    monkeypatch.setattr(report, "carried_over", lambda option: option.carried)
    monkeypatch.setattr(report, "floor_line", lambda model, quants, floor: f"floor {floor}" if floor else "")
    monkeypatch.setattr(report, "tier_records", lambda run: run.tiers)
    monkeypatch.setattr(report, "edge_lines", lambda design, question: [])


def design(gpu: str = "h100", quant: str = "fp8", carried: bool = False, broken: str = "ttft") -> Any:
    """Two GPUs that carry 3 requests/s."""
    deployment = SimpleNamespace(
        hardware=SimpleNamespace(name=gpu), parallel=SimpleNamespace(describe=lambda: "tp2"), cap=None, lora=None,
        elsewhere=(), model="m",
    )  # fmt: skip
    option = SimpleNamespace(
        quant=quant, carried=carried, deployment=deployment, speculation=SimpleNamespace(length=0), forgone=None
    )
    return SimpleNamespace(
        gpu=gpu, deployment=deployment, option=option, rate=3.0, broken=broken,
        size=SimpleNamespace(devices=2), flags=SimpleNamespace(max_num_seqs=64, max_num_batched_tokens=2048),
    )  # fmt: skip


def kind(name: str, owned: bool = False, most: int | None = None) -> Any:
    return SimpleNamespace(name=f"{name} x", gpu=name, source="a list", owned=owned, most=most)


def bill(per_hour: float, idle: int = 0, bought: int = 4000, days: int | None = None, **more: Any) -> Any:
    found = {
        "per_hour": per_hour, "idle": idle, "bought": bought, "offer": SimpleNamespace(most_days=days), "line": "",
        "remarks": [],
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def run(ttft: float = 0.4, steady: bool = True, converged: bool | None = True) -> Any:
    return SimpleNamespace(
        ttft=ttft, steady=steady, converged=converged, verdict="stable", counts={"arrived": 5000},
        e2el=np.array([1.0, 3.0]), tiers=None, hit_rate=0.25,
        to_dict=lambda: {"prefix_cache_hit_rate": 0.25, "cache_tiers": None, "classes": None, "other": 1},
    )  # fmt: skip


def part(of: Any, kinds: Any, paid: Any, **more: Any) -> Any:
    found = {
        "way": SimpleNamespace(design=of, kind=kinds), "bill": paid, "replicas": 1500, "devices": 3000, "load": 1234.5,
        "share": 0.625, "run": run(0.3),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


H100, L4 = kind("h100", most=4096), kind("l4", owned=True)


def plan(*parts: Any, **more: Any) -> Any:
    """TTFT at 400 ms of at most 500, TPOT without a limit."""
    parts = parts or (part(design(), H100, bill(6.0)),)
    demand = SimpleNamespace(
        rate=10.0, people=None, describe=lambda: "10 requests/s", prompt=SimpleNamespace(average=700.0),
        counted="requests", classes=(), of_sessions=False, prefix=SimpleNamespace(turns=1), own=None,
    )  # fmt: skip
    question = SimpleNamespace(
        prices=SimpleNamespace(currency="EUR", remarks=lambda names: [f"remark on {one}" for one in names]),
        demand=demand, slo=Slo(ttft=0.5, percentile=95.0), sizing=SimpleNamespace(utilisation=0.8), borrowed=None,
        space=SimpleNamespace(
            base=SimpleNamespace(model="m", roles=()), all_quants=["fp8"], quality=None, drafting=False, placed=False
        ),
    )  # fmt: skip
    found: dict[str, Any] = {
        "question": question, "best_single": SimpleNamespace(cost=9.0), "parts": list(parts), "cost": 6.5,
        "asked": SimpleNamespace(kinds=[H100, L4], own_price=0.0), "devices": 3000, "given": 12.5,
        "bought": SimpleNamespace(gap=0.0), "run": run(), "singles": [], "ways": [one.way for one in parts],
        "unusable": {}, "keeps": lambda run: run.ttft <= 0.5, "taken": lambda kind: 96 if kind.most else 5,
        "at_percentile": lambda run: {"ttft": run.ttft, "tpot": 0.02},
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def cells(row: Any) -> dict[str, str]:
    return {one.label: one.shown for one in row if one.seen and one.label is not None}


def test_a_part_of_the_mix() -> None:
    row = report._part(plan(), part(design(), H100, bill(1234.5, idle=1000)))
    assert cells(row) == {
        "GPU": "h100 x", "from": "a list", "replica": "tp2, fp8", "replicas": "1,500", "GPUs": "3,000 of 4,000",
        "requests/s": "1,234.50", "share": "62.5%", "EUR/h": "1,234.50", "TTFT p95": "300 ms",
    }  # fmt: skip
    assert cells(report._part(plan(), part(design(), H100, bill(1.0))))["GPUs"] == "3,000"
    found = record(row)
    assert found["replica"] == {
        "deployment": "h100", "max_num_seqs": 64, "max_num_batched_tokens": 2048, "draft_tokens": None
    }  # fmt: skip
    drafting = design()
    drafting.option.speculation.length, drafting.deployment.cap = 3, SimpleNamespace(watts=500.0)
    drafted = report._part(plan(), part(drafting, H100, bill(1.0)))
    assert cells(drafted)["replica"] == "tp2, 3 drafts, 500 W, fp8"
    assert record(drafted)["replica"]["draft_tokens"] == 3
    assert (found["max_num_seqs"], found["max_num_batched_tokens"], found["tpot_s"]) == (64, 2048, 0.02)
    assert found["keeps_the_limits"] is True and found["bill"] == {"bill": 1234.5}


def test_limits_of_a_mix() -> None:
    """At its limit a latency keeps it; where the queue grows there is none."""

    def seen(of: Any) -> tuple[str, Any]:
        row = report._latencies(plan(), of)[0]
        return row.shown, row.value

    assert [seen(run(0.5)), seen(run(0.51)), seen(run(0.51, steady=False))] == [
        ("500 ms", 0.5), ("510 ms !", 0.51), ("-", None)
    ]  # fmt: skip
    assert record(report._latencies(plan(), run())) == {
        "ttft_s": 0.4, "tpot_s": 0.02, "e2el_s": None, "answer_ttft_s": None
    }  # fmt: skip
    assert cells(report._latencies(plan(), run())) == {"TTFT p95": "400 ms"}
    slow = plan(at_percentile=lambda run: {"tpot": 9.0})
    assert [one.shown for one in report._latencies(slow, run()) if one.value is not None] == ["9.00 s"]
    kinds = plan()
    kinds.question.demand.classes = ("a class",)
    assert cells(report._latencies(kinds, run(0.51))) == {"TTFT p95": "510 ms"}


def test_the_mix_as_a_whole() -> None:
    two = plan(part(design(), H100, bill(6.0)), part(design("l4"), L4, bill(0.5), replicas=2))
    assert cells(report._whole(two)) == {
        "GPU": "all", "from": "", "replica": "", "replicas": "1,502", "GPUs": "3,000", "requests/s": "10.00",
        "share": "100.0%", "EUR/h": "6.50", "TTFT p95": "400 ms",
    }  # fmt: skip
    title = "m: 10 requests/s; TTFT p95 < 500 ms: 6.50 EUR/h, 4,745 EUR per month"  # 730 h
    assert report._title(two) == title
    assert report._title(plan(part(design(), H100, bill(6.0, days=7)))) == f"{title} (7 days at most)"


def single(gpu: str = "l4", cost: float = 9.0, bought: Any = "bought", most: float = 99.0) -> Any:
    return SimpleNamespace(gpu=gpu, cost=cost, bought=bought, most=most, devices=1234)


def test_one_kind_alone() -> None:
    """Half a cent is no difference."""
    assert cells(report._single(plan(), single(cost=1006.5))) == {
        "fleet": "l4 x alone", "GPUs": "1,234", "EUR/h": "1,006.50", "against the mix": "1,000.00 EUR/h more",
    }  # fmt: skip
    assert cells(report._single(plan(), single(cost=6.504)))["against the mix"] == "the same"
    assert cells(report._single(plan(cost=0.0), single(cost=0.005)))["against the mix"] == "the same"
    assert cells(report._single(plan(), single(cost=6.506)))["against the mix"] == "0.01 EUR/h more"
    assert cells(report._single(plan(), single("h100", bought=None, most=1.2345))) == {
        "fleet": "h100 x alone", "GPUs": "-", "EUR/h": "-", "against the mix": "carries 1.23 requests/s at most",
    }  # fmt: skip


def test_stocks_and_designs() -> None:
    assert [cells(report._stock(plan(), one)) for one in (H100, L4)] == [
        {"GPU": "h100 x", "from": "a list", "stock": "4,096", "taken": "96", "left": "4,000"},
        {"GPU": "l4 x", "from": "a list", "stock": "no limit", "taken": "5", "left": "-"},
    ]
    assert cells(report._design(design(), "requests")) == {
        "GPU": "h100", "replica": "tp2, fp8", "GPUs": "2", "requests/s": "3.000", "per GPU": "1.500",
        "breaks first": "the limit on TTFT",
    }  # fmt: skip
    assert cells(report._design(design(broken=""), "requests"))["breaks first"] == "-"


FIRST = "each replica is loaded to 80% of its capacity: the mix takes 12.50 requests/s"


def test_sentences_below_a_fleet() -> None:
    first, second, *rest = report._notes(plan())
    assert first == FIRST and "over 5,000 requests to the whole mix" in second
    assert rest == ["owned GPUs cost nothing extra (--own-price)", "errors of 1: ", "", "remark on h100 x"]
    bare = plan(asked=SimpleNamespace(kinds=[H100], own_price=0.0))
    assert report._notes(bare)[2:] == ["errors of 1: ", "", "remark on h100 x"]
    priced = plan(asked=SimpleNamespace(kinds=[H100, L4], own_price=0.25))
    assert report._notes(priced)[2] == "an owned GPU costs 0.25 EUR/h while it works"
    unsure = plan(run=run(0.6, converged=False), bought=SimpleNamespace(gap=0.0123), unusable={"t4": "too small"})
    assert report._notes(unsure)[2:7] == [
        "this number of requests does not settle the percentiles: they are less sure than 3 %",
        "! the solver was stopped: a mix that costs up to 1.2% less may exist",
        "! a limit is missed in this run: a lower --utilisation leaves more room",
        "owned GPUs cost nothing extra (--own-price)", "t4 is not used: too small",
    ]  # fmt: skip
    late = plan(part(design(), H100, bill(6.0), run=run(0.6)), asked=bare.asked)
    assert report._notes(late)[2].startswith("! a limit is missed in this run")
    assert "this number" not in " ".join(report._notes(plan(run=run(converged=None))))
    turns, calls = plan(), plan()
    turns.question.demand.prefix.turns, calls.question.demand.of_sessions = 2, True
    turns.question.demand.counted = "answers"
    assert report._notes(turns)[0] == FIRST.replace("requests", "answers")
    assert report._notes(turns)[1].startswith("one router spreads the conversations over")
    assert report._notes(calls)[1].startswith("one router spreads the sessions over")
    assert report._notes(calls)[3] == "found of the prompt tokens: 25.0%"
    calls.run.tiers = [{"name": "device", "hit_rate": 0.125}, {"name": "host", "hit_rate": 0.5}]
    assert report._notes(calls)[3] == "found of the prompt tokens: 12.5% in device, 50.0% in host"
    wishes = plan()
    wishes.question.space.quality, wishes.question.space.drafting, wishes.question.space.placed = 0.98, True, True
    assert report._notes(wishes)[3:6] == [
        "floor 0.98", "h100: a replica carries no more with drafts",
        "h100: a replica carries no more with weights on its host",
    ]  # fmt: skip


def test_sentences_about_unlike_replicas() -> None:
    """What is owned has no bill; equal remarks are said once."""
    mixed = plan(
        part(design(), H100, bill(6.0, line="first bill", remarks=["once", "twice"])),
        part(design("l4", "native", carried=True), L4, bill(0.5, line="own", remarks=["own"])),
        part(design(), H100, bill(7.0, line="second bill", remarks=["once"])),
    )
    assert report._notes(mixed)[3:] == [
        "replicas differ in format (fp8 on h100 x, native on l4 x), so their answers may differ: --quant native "
        "avoids it",
        "l4: not measured, nor is any device of its maker; it may carry less",
        "errors of 2: unlike replicas behind one router", "first bill", "second bill", "once", "twice",
        "remark on h100 x",
    ]  # fmt: skip


def test_the_whole_fleet() -> None:
    """730 h a month; 2.5 an hour are saved. Designs are told apart by what they are, not by how they are bought."""
    one, other = design(), design("l4")
    two = plan(part(one, H100, bill(6.0)), part(other, L4, bill(0.5)))
    two.ways = [SimpleNamespace(design=one), SimpleNamespace(design=other), SimpleNamespace(design=one)]
    two.singles = [single(cost=9.0), single("h100", cost=7.0)]
    whole = report.fleet_report(two)
    assert [table.title for table in whole.tables][1:] == [
        "One kind of GPU alone", "Stock, in GPUs",
        f"What a replica carries within the limits (simulated, within {100 * report.CAPACITY_TOLERANCE:g} %)",
    ]  # fmt: skip
    assert [len(table.rows) for table in whole.tables] == [3, 3, 2, 2]
    assert [row[0] for row in whole.tables[1].rows] == ["the mix", "h100 x alone", "l4 x alone"]
    assert list(next(iter(whole.tables[1].rows))) == ["the mix", "3,000", "6.50", ""]
    found = whole.record
    assert [len(found[name]) for name in ("parts", "alone", "stock", "designs")] == [2, 2, 2, 2]
    assert [row["gpu"] for row in found["alone"]] == ["l4", "h100"]
    assert (found["cost_per_month"], found["saving_per_hour"], found["proven_cheapest"]) == (6.5 * 730, 2.5, True)
    assert (found["slo"], found["known_error"], found["ttft_s"]) == ({"ttft_s": 0.5}, ["h100", "l4"], 0.4)
    assert whole.opening == [] and not {"replica", "bill"} & whole.rows[0].keys()
    assert report._served(two)["l4"] == (other.deployment, 700.0)
    lone = plan(best_single=None, bought=SimpleNamespace(gap=1e-9))
    lone.question.borrowed = SimpleNamespace(choice=lambda: "borrowed")
    bare = report.fleet_report(lone)
    assert (bare.record["saving_per_hour"], bare.record["proven_cheapest"]) == (None, False)
    assert bare.opening == ["borrowed"]


def test_people_who_share_a_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their requests take 2 s on average."""
    calls: list[Any] = []
    monkeypatch.setattr(report, "with_people", lambda *words, **more: calls.append((words[1:], more)))
    report.fleet_report(plan())
    assert calls == [((None, 10.0, 2.0), {"most": True})]


# --- GPUs that somebody has


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("GPU", "GPUs", "KV pool", "per hour", "price of")
    rows = [report.Figure(name.lower(), name, name) for name in names]
    monkeypatch.setattr(owned, "option_figures", lambda option: rows)
    monkeypatch.setattr(owned, "uncounted_notes", lambda spec: ["uncounted"])
    monkeypatch.setattr(owned, "load_record", lambda asked: "load")
    monkeypatch.setattr(owned, "load_tables", lambda asked, context: [])
    monkeypatch.setattr(owned, "quality_notes", lambda spec, options, asked: ["quality"])
    monkeypatch.setattr(owned, "log_lines", lambda fitting, of: fitting.log and [fitting.log + of])
    monkeypatch.setattr(owned, "device_lines", lambda options: ["devices"])
    monkeypatch.setattr(owned, "of_people", lambda report, asked: report)
    monkeypatch.setattr(owned, "engine_notes", lambda fitting: [])


def option(gpu: str, requests: int | None, **more: Any) -> Any:
    """tp 2 of two GPUs, under vLLM."""
    engine = SimpleNamespace(name=more.pop("engine", "vllm"))
    parallel = SimpleNamespace(describe=lambda: "tp2", devices=2, tp=2, pp=1, ranks=2)
    hardware = SimpleNamespace(bridge_line=lambda ranks: f"a bridge of {ranks}" if more.get("bridge") else "")
    deployment = SimpleNamespace(engine=engine, parallel=parallel, hardware=hardware, formats_note=more.pop("note", ""))
    fitting = SimpleNamespace(requests=requests, deployment=deployment, log=more.pop("log", ""))
    found = {
        "gpu": gpu, "quant": "fp8", "fitting": None if requests is None else fitting, "reason": "too small",
        "bill": None, "tpot": None, "roomier": None, "basis": "",
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def owns(*options: Any, count: int = 2, engines: tuple[str, ...] = ("vllm",), engine: Any = None) -> Any:
    made = SimpleNamespace(line="counted", to_dict=lambda: {"counted": 1})
    return SimpleNamespace(
        model=SimpleNamespace(name="m", made_from=made), have="2x-l4", count=count, context=4096, engines=engines,
        asked=SimpleNamespace(held=1500, engine=engine), options=list(options), remarks=["remark"],
        fitting=[one for one in options if one.fitting is not None],
    )  # fmt: skip


LAST = ["quality", "counted", "note: uncounted", "devices", "remark"]
USUAL = "engine: vllm, the usual one there; for another: --engine NAME"
HELD = "requests: how many fit at once, each with the tokens above"


@pytest.mark.usefixtures("figures")
def test_gpus_that_somebody_has() -> None:
    """Most requests first; prices, engines and times where there are some."""
    roomier = SimpleNamespace(
        requests=2000, deployment=SimpleNamespace(parallel=SimpleNamespace(describe=lambda: "pp2", tp=1))
    )
    found = owns(
        option("a", 5, roomier=roomier), option("b", None), option("c", 9, note="as it is"), option("b", None)
    )  # fmt: skip
    whole = owned.owned_report(found)
    (table,) = whole.tables
    assert table.title == "m on 2x-l4: what they hold together, for 1,500 x 4,096 tokens (vllm defaults)"
    assert list(table.columns) == ["GPU", "division", "KV pool"] and len(table.rows) == 2
    assert whole.notes == [
        USUAL, "b, fp8: too small",
        "a, fp8: pp2 holds 2,000 requests, each with a longer time per token (--tp 1)", HELD,
        *LAST[:3], "as it is", *LAST[3:],
    ]  # fmt: skip
    assert whole.record["options"][1] == {"gpu": "b", "quant": "fp8", "fits": False, "reason": "too small"}
    first = whole.record["options"][0]
    assert (first["devices"], first["tp"], first["pp"], first["tpot_s"]) == (2, 2, 1, None)
    assert (whole.record["devices"], whole.record["context_tokens"], whole.record["load"]) == (2, 4096, "load")
    priced = owned.owned_report(owns(option("a", 5, bill="bill", tpot=0.02), option("c", 9, engine="sglang"), count=1))
    assert list(priced.tables[0].columns) == [
        "GPU", "division", "engine", "KV pool", "per hour", "price of", "TPOT"
    ]  # fmt: skip
    rows = [list(row) for row in priced.tables[0].rows]
    assert [(row[2], row[-1]) for row in rows] == [("sglang", "-"), ("vllm", "20.00 ms")]
    assert "what it holds, for" in priced.tables[0].title


@pytest.mark.usefixtures("figures")
def test_engines_and_times_of_gpus_that_somebody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert owned._times(owns(option("a", 5))) == [USUAL]
    assert owned._times(owns(option("a", 5), engine="vllm")) == []
    several = owns(option("a", 5), engines=("vllm", "sglang"), engine="vllm")
    assert owned._times(several) == [
        f"engine: of vllm and sglang, {owned.RULE}; for another: --engine NAME"
    ]  # fmt: skip
    monkeypatch.setattr(owned, "requests_in_words", lambda held, context: f"{held} of {context}")
    timed = owns(
        option("a", 5, basis="measured", bridge=True), option("b", 5, basis="carried"),
        option("c", 5, basis="measured", bridge=True), option("d", None, basis="none"), engine="vllm",
    )  # fmt: skip
    assert owned._times(timed) == [
        "TPOT: predicted for a step of 1500 of 4096 (measured and carried constants; their error: inferplan estimate)",
        "a bridge of 2 (an option of inferplan estimate)",
    ]
    monkeypatch.setattr(owned, "engine_notes", lambda fitting: ["engine: both"])
    assert owned._times(owns(option("a", 5))) == ["engine: both"]


@pytest.mark.usefixtures("figures")
def test_the_first_log_of_gpus_that_somebody_has() -> None:
    logs = [option("a", 5), option("b", 5, log="log"), option("c", 5, log="other")]
    assert owned._logged(logs) == ["log of b in fp8"] and owned._logged(logs[:1]) == []
