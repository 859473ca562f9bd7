"""What follows from a plan that is written down here, in words, rows and pictures: by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.errors import UsageError
from inferplan.figures import record
from inferplan.reports import plan_figures as report
from inferplan.reports import plan_pictures as pictures
from inferplan.traffic.requests import Slo
from inferplan.units import HOURS_PER_MONTH


def deployed(gpu: str = "h100", watts: float | None = None, **more: Any) -> Any:
    """tp 2 in pp 4, under vLLM."""
    found: dict[str, Any] = {
        "hardware": SimpleNamespace(name=gpu, tdp=700.0),
        "cap": None if watts is None else SimpleNamespace(watts=watts),
        "division": f"tp2 on {gpu}", "formats": f"formats of {gpu}", "lora": None, "elsewhere": (),
        "parallel": SimpleNamespace(tp=2, pp=4, ep=6, dp=8, redundant=10, describe=lambda: "tp2, pp4"),
        "model": SimpleNamespace(encodes=False), "two_batches": None, "calibration": SimpleNamespace(described="table"),
        "engine": SimpleNamespace(describe=lambda: "vllm 0.33", name="vllm"),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def option(of: Any = None, **more: Any) -> Any:
    """Three replicas on 24 GPUs for 60 USD an hour."""
    of = of or deployed()
    found: dict[str, Any] = {
        "deployment": of, "kinds": [(of, 24)], "request": SimpleNamespace(quant="fp8"), "prompts": None, "pools": None,
        "replicas": 3, "spare": 1, "devices": 24, "speculation": SimpleNamespace(length=0), "output": 200.0,
        "cost": 60.0, "tariff": SimpleNamespace(currency="USD"), "hours": None, "purchases": [bill()],
        "budget": 2048, "rate": 2.5,
        "prompt_budget": None, "per_device": 99.0, "per_user": 40.0, "concurrency": 8.0,
        "violations": lambda slo: "own",
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def bill(per_hour: float = 60.0, seller: str = "a list", date: str | None = None, age: str = "", **more: Any) -> Any:
    offer = {"seller": seller, "date": date, "age": age, "source": f"{seller} file", "what": "a box", "currency": "USD",
             "most_days": None}  # fmt: skip
    found = {"per_hour": per_hour, "units": 1500, "bought": 32}
    return SimpleNamespace(offer=SimpleNamespace(**offer | more.pop("offer", {})), **found | more)


def verified(of: Any = None, **more: Any) -> Any:
    found = {
        "option": of or option(), "achieved": {"ttft": 0.35, "tpot": 0.02, "e2el": 4.5}, "verdict": "stable",
        "slots": 64, "watts": 12_000.0, "violations": lambda slo: {},
    }  # fmt: skip
    return SimpleNamespace(**found | more)


def plan(of: Any = None, **more: Any) -> Any:
    """12 requests/s of 700 tokens with 200 in return."""
    demand: dict[str, Any] = {
        "users": None, "people": None, "samples": 1, "think": 0.0, "chat": True, "sessions": None, "offline": False,
        "prompt": SimpleNamespace(average=700.0), "output": SimpleNamespace(average=200.0), "describe": lambda: "load",
        "counted": "requests",
    }  # fmt: skip
    demand |= more.pop("demand", {})
    sizing = SimpleNamespace(power=None, survive=None, utilisation=0.8)
    question = SimpleNamespace(
        demand=SimpleNamespace(**demand), slo=Slo(ttft=0.4, percentile=95.0), sizing=sizing,
        space=SimpleNamespace(drafting=()), prices=None,
    )  # fmt: skip
    of = of or option()
    found: dict[str, Any] = {
        "option": of, "question": question, "best": verified(of), "rate": 12.0, "response": 2.5, "waiting": None,
        "alternatives": [], "served": lambda found: 11.0, "runners": [], "other": None, "other_confidence": 0.5,
        "native": None, "unknown": None, "confidence": 0.8, "curve": [], "binding": "ttft", "load": 12.0,
        "capacity": "capacity", "sensitivity": [], "searched": SimpleNamespace(grids=[], options=[]),
    }  # fmt: skip
    return SimpleNamespace(**found | more)


# --- words


def test_gpus_in_words() -> None:
    """Of two kinds those that compute prompts first; the same kind twice is one."""
    both = option(kinds=[(deployed("l4", 60.0), 4), (deployed("h100"), 8), (deployed("l4", 60.0), 2)])
    assert (report.devices(both), report.gpus(both)) == ("6 x l4 at 60 W + 8 x h100", "l4 at 60 W + h100")
    assert report.formats(both) == "formats of l4 + formats of h100"
    assert report.devices(option()) == "24 x h100"


def test_formats_in_words() -> None:
    native = option(request=SimpleNamespace(quant=None))
    apart = option(prompts=SimpleNamespace(request=SimpleNamespace(quant="int8")))
    alike = option(prompts=SimpleNamespace(request=SimpleNamespace(quant="fp8")))
    assert [report.quants(one) for one in (option(), native, apart, alike)] == ["fp8", "native", "int8 + fp8", "fp8"]
    assert report.other_format(option(), alike) == ""
    assert report.other_format(native, option()) == ", in the checkpoint's format"
    assert report.other_format(apart, option()) == ", in int8 + fp8"


def test_replicas_in_words() -> None:
    assert report.shape(option()) == "3 x (tp2 on h100)"
    elsewhere = (SimpleNamespace(describe=lambda: "20 layers on the host"),)
    full = deployed(lora=SimpleNamespace(slots=4), elsewhere=elsewhere)
    drafted = {"speculation": SimpleNamespace(length=3)}
    said = "tp2 on h100, 3 drafts, 4 adapter slots, 20 layers on the host"
    assert report.shape(option(full, **drafted)) == f"3 x ({said})"
    assert report.shape(option(full, pools=(2, 5), **drafted)) == f"2 prefill + 5 decode, each {said}"
    prompts = SimpleNamespace(deployment=deployed("l4"))
    assert report.shape(option(full, pools=(2, 5), prompts=prompts, **drafted)) == (
        f"2 prefill (tp2 on l4) + 5 decode ({said})"
    )
    lost = plan()
    assert report.replicas_given(lost) == "replicas for each load"
    lost.question.sizing.survive = "a node"
    assert report.replicas_given(lost) == "replicas for each load, if none were lost"


def test_money_in_words() -> None:
    """The age of the oldest price that has one."""
    assert report.money(option(cost=1234.5)) == "1,234.50 USD/h" and report.money(option(hours=9.0)) == "60.00 USD"
    assert report.money(option(cost=None)) == report.money(option(tariff=None)) == "no price"
    dated = [bill(date="2026-05-01", age="80 days old"), bill(date="2026-01-01", age="200 days old"), bill()]
    assert report.dated_money(option(purchases=dated)) == "60.00 USD/h (prices 200 days old)"
    assert report.dated_money(option(purchases=[bill(date="2026-05-01")])) == "60.00 USD/h"


def test_users_in_words() -> None:
    assert [report._users(number) for number in (0.99, 1.0, 1.49, 1.51, 1234.0)] == [
        "fewer than 1 user", "1 user", "1 user", "2 users", "1,234 users"
    ]  # fmt: skip
    assert report.load_of_users(plan()) == ""
    assert report.load_of_users(plan(waiting=130.0)) == "12 requests/s, 130 users waiting for an answer at a time"
    assert report.load_of_users(plan(waiting=130.0, demand={"samples": 4, "counted": "answers"})).startswith(
        "12 answers/s"
    )
    people = SimpleNamespace(lines=lambda *words: [f"people {words}"], record=lambda *words: {"people": words})
    crowd = plan(waiting=130.0, demand={"people": people})
    assert report.load_of_users(crowd) == "" and report.people_record(plan()) is None
    assert report.opening(crowd) == ["people (12.0, 30.0, None)"] and report.people_record(crowd) == {
        "people": (12.0, 30.0)
    }  # fmt: skip
    assert report.opening(plan()) == report.opening(plan(demand={"users": 40, "think": 5.0})) == []
    assert len(report.opening(plan(demand={"users": 40}))) == 1


def test_what_is_served() -> None:
    rates = report.rates_of(plan())
    assert (rates.requests, rates.prompt, rates.output) == (12.0, 700.0, 200.0)
    encoder = option(deployed(model=SimpleNamespace(encodes=True)))
    assert report.rates_of(plan(encoder, rate=0.0)).output == 0.0 < report.rates_of(plan(rate=0.0)).requests
    assert report.session_rate(plan()) is report.session_time(plan()) is None
    sessions = SimpleNamespace(arrivals=SimpleNamespace(rate=0.5))
    assert report.session_rate(plan(demand={"sessions": sessions})) == 0.5


def test_how_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """65 sequences on two attention ranks are 33 on each."""
    calls: list[Any] = []
    monkeypatch.setattr(report, "launch", lambda request, drafts=None: calls.append((request, drafts)) or "launch")
    monkeypatch.setattr(report, "replace", lambda value, **new: SimpleNamespace(value=value, **new))
    flags = SimpleNamespace(model_copy=lambda update: update)
    drafts = SimpleNamespace(length=3, beside=lambda deployment: f"beside {deployment.hardware.name}")
    of = option(deployed(), request=SimpleNamespace(flags=flags), speculation=drafts)
    of.deployment.parallel.dp = 2
    asked = plan(of, demand={"queue": "priority", "of_messages": True})
    asked.best.slots = 65
    asked.question.space.drafting_of = lambda speculation: None
    started = report.launch_of(asked)
    assert (started.value, started.queue, started.chat) == ("launch", "priority", True)
    request, told = calls[0]
    assert request.flags == {"token_budget": 2048, "max_sequences": 33} and told == (drafts, "", None)
    asked.question.space.drafting_of = lambda speculation: SimpleNamespace(model="small")
    report.launch_of(asked)
    assert calls[1][1].model == "small"
    assert report.prompts_launch_of(asked) is None
    of.pools, of.prompt_budget = (1, 2), 8192
    assert report.prompts_launch_of(asked).value == "launch"  # type: ignore[union-attr]
    assert calls[2][0].flags == {"token_budget": 8192} and calls[2][1].speculation == "beside h100"
    of.prompts = SimpleNamespace(request=SimpleNamespace(flags=flags, own=True), deployment=deployed("l4"))
    report.prompts_launch_of(asked)
    assert calls[3][0].value.own and calls[3][1].speculation == "beside l4"


def test_the_line_that_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "launch_of", lambda plan: "launch")
    monkeypatch.setattr(report, "command_line", lambda launch: f"start {launch}")
    assert report.launch_line(plan()) == "start launch" and report.launch_line(plan(option(pools=(1, 2)))) is None

    def refused(launch: Any) -> str:
        raise UsageError("no flags")

    monkeypatch.setattr(report, "command_line", refused)
    assert report.launch_line(plan()) is None


# --- rows


def test_a_finalist_as_a_row() -> None:
    """11 requests/s of 200 tokens on 24 GPUs: 91.7 tokens/s each; a user has 1/0.02 = 50."""
    row = report.candidate(plan(), verified())
    assert {one.label: one.shown for one in row if one.label and one.seen} == {
        "GPU": "h100", "GPUs": "24", "replicas": "3 x (tp2 on h100)", "format": "fp8", "TTFT": "350 ms",
        "TPOT": "20.0 ms", "tokens/s/GPU": "92", "cost": "60.00 USD/h", "at": "a list",
    }  # fmt: skip
    found = record(row)
    assert [found[name] for name in ("tp", "pp", "ep", "dp", "redundant_experts")] == [2, 4, 6, 8, 10]
    assert (found["two_batch_overlap"], found["prefill_replicas"], found["decode_replicas"]) == (False, None, None)
    assert (found["output_tokens_per_s_per_user"], found["screened_output_tokens_per_s_per_device"]) == (50.0, 99.0)
    nothing = ("answer_ttft_s", "draft_tokens", "on_host", "max_loras", "power_cap_w", "prefill_gpu", "hours")
    assert [found[name] for name in nothing] == [None] * len(nothing) and found["currency"] == "USD"
    assert found["prefill_two_batch_overlap"] is None and found["max_num_seqs"] == 64


def test_a_finalist_of_two_pools() -> None:
    elsewhere = (SimpleNamespace(describe=lambda: "a host"),)
    of = deployed("h100", 500.0, two_batches=True, lora=SimpleNamespace(slots=4), elsewhere=elsewhere)
    first = deployed("l4")
    full = option(
        of, kinds=[(first, 6), (of, 24)], pools=(2, 5),
        prompts=SimpleNamespace(deployment=first, request=SimpleNamespace(quant=None)), prompt_budget=8192,
        speculation=SimpleNamespace(length=3), tariff=None,
        purchases=[bill(), bill(seller="another"), bill()],
    )  # fmt: skip
    found = record(report.candidate(plan(full), verified(full, achieved={
        "ttft": 0.35, "tpot": 0.02, "e2el": 4.5, "answer_ttft": 1.5,
    })))  # fmt: skip
    assert (found["prefill_replicas"], found["decode_replicas"], found["draft_tokens"]) == (2, 5, 3)
    assert (found["prefill_gpu"], found["prefill_devices"], found["prefill_precision"]) == ("l4", 6, "formats of l4")
    assert (found["prefill_tp"], found["prefill_redundant_experts"], found["prefill_token_budget"]) == (2, 10, 8192)
    assert (found["two_batch_overlap"], found["prefill_two_batch_overlap"]) == (True, False)
    assert (found["max_loras"], found["on_host"], found["power_cap_w"]) == (4, ["a host"], 500.0)
    assert (found["currency"], found["answer_ttft_s"]) == (None, 1.5)
    row = {one.label: one.shown for one in report.candidate(plan(full), verified(full)) if one.label}
    assert row["at"] == "a list + another" and row["GPU"] == "l4 + h100 at 500 W"


def test_a_finalist_that_generates_nothing() -> None:
    encoder = option(deployed(model=SimpleNamespace(encodes=True)), output=1.0)
    row = report.candidate(plan(encoder), verified(encoder))
    shown = {one.label: one.shown for one in row if one.label and one.seen}
    assert shown["latency"] == "350 ms" and shown["requests/s/GPU"] == "0" and "TPOT" not in shown
    found = record(row)
    assert found["output_tokens_per_s_per_user"] is found["screened_output_tokens_per_s_per_device"] is None


def test_rows_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "candidate", lambda plan, found: found)
    monkeypatch.setattr(report, "runner", lambda plan, found: found)
    whole = plan(best="best", alternatives=["a", "b"], runners=list(range(9)))
    assert report.candidates(whole) == ["best", "a", "b"] and report.runners(whole) == list(range(8))


def test_another_gpu_as_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "rounded_down", lambda demand, amount: round(amount))
    monkeypatch.setattr(report, "in_words", lambda demand, amount: f"{amount} requests/s")
    row = report.runner(plan(), SimpleNamespace(option=option(), amount=9.4, share=0.876))  # type: ignore[arg-type]
    assert [one.shown for one in row] == [
        "h100", "24", "3 x (tp2 on h100)", "fp8", "9 requests/s", "closed form x 0.88", "60.00 USD/h"
    ]  # fmt: skip
    assert record(row)["simulated"] is False and record(row)["carried"] == 9.4
    run = report.runner(plan(), SimpleNamespace(option=option(), amount=9.4, share=None))  # type: ignore[arg-type]
    assert run[5].shown == "simulation" and record(run)["simulated"] is True


class Book:
    """Two sellers of h100; l4 is sold on demand alone, for one length."""

    def __init__(self, term: str = "on-demand") -> None:
        self.term = term

    def on(self, term: str) -> Book:
        return Book(term)

    def tariff(self, gpu: str, ranks: int, together: int) -> Any:
        assert (ranks, together) == (16, 8)
        if gpu == "l4" and self.term != "on-demand":
            return None
        lengths = ["1 year", "3 years"] if self.term == "reserved" else [""]
        name = f"{gpu} {self.term}"
        return SimpleNamespace(
            lengths=lengths,
            lasting=lambda length: SimpleNamespace(bill=lambda count: bill(4.0 * count, f"{name} {length}".strip())),
        )


def test_terms_that_it_is_sold_on() -> None:
    """Two replicas at 4 an hour each: 8, 5,840 a month of 730 h; over 32 GPUs 0.25 each."""

    def sold(*names: str, **more: Any) -> list[dict[str, str]]:
        parallel = SimpleNamespace(ranks=16, tp=8)
        each = [(SimpleNamespace(hardware=SimpleNamespace(name=name), parallel=parallel), None, 2) for name in names]
        of = plan(option(sold=each, **more))
        of.question.prices = Book()
        return [{str(one.label): one.shown for one in row if one.label} for row in report.terms_of(of)]

    rows = sold("h100")
    assert rows[0] == {
        "terms": "on-demand", "USD/h": "8.00", "USD per month": "5,840", "bought": "1,500 x a box", "GPUs paid": "32",
        "USD/h per GPU": "0.25", "seller": "h100 on-demand", "date": "None",
    }  # fmt: skip
    terms = [row["terms"] for row in rows]
    assert {"reserved, 1 year", "reserved, 3 years"} < set(terms) and len(terms) == len(set(terms))
    (both,) = sold("h100", "l4")
    assert (both["USD/h"], both["seller"], both["GPUs paid"], both["USD/h per GPU"]) == (
        "16.00", "h100 on-demand + l4 on-demand", "64", "0.25"
    )  # fmt: skip
    assert sold("h100", purchases=[bill(), bill(offer={"source": report.STATED})]) == []
    owned = plan(option(sold=[]))
    owned.question.prices = Book("owned")
    assert report.terms_of(owned) == []
    short = report._on_terms("spot", [bill(offer={"most_days": 7})])
    assert record(short)["per_month"] is None and short[2].shown == "7 days at most"


def test_watts_of_a_plan() -> None:
    """24 x 700 W are 16.8 kW; 12 kW on average over 2,400 tokens/s are 5 J each."""
    rows = report.power(plan())
    assert rows is not None and {one.label: one.shown for one in rows if one.label and one.seen} == {
        "power by nameplate": "16.8 kW", "mean draw at this load": "12 kW, 5.000 J per output token",
    }  # fmt: skip
    assert record(rows)["j_per_output_token"] == 5.0 and record(rows)["budget_w"] is record(rows)["provision"] is None
    silent = report.power(plan(best=verified(watts=None)))
    assert silent is not None and [one.label for one in silent if one.label and one.seen] == ["power by nameplate"]
    idle = report.power(plan(rate=0.0))
    assert idle is not None and idle[1].shown == "12 kW, - per output token"


def test_limits_that_would_be_kept() -> None:
    """By simulation where it sees a miss, else by formulas."""
    assert report.relaxation(plan(), verified()) == "own"
    assert report.relaxation(plan(), verified(violations=lambda slo: {"ttft": 1.5})) == {"ttft": 1.5}
    assert report.break_even_batch(plan(), None) is report.break_even_batch(plan(), verified()) is None


# --- pictures


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each picture is given."""
    found: list[Any] = []
    for name in ("bars", "steps", "against_load", "memory_stack", "frontier_figure"):
        monkeypatch.setattr(pictures.plots, name, lambda *words, name=name: found.append((name, *words)) or name)
    return found


def test_bills_beside_each_other(drawn: list[Any]) -> None:
    """60 an hour are 43,800 a month; one of the same devices and format is told by its division."""
    alike = verified(option(cost=70.0, replicas=6))
    other = verified(option(deployed("l4"), cost=80.0))
    unpriced = verified(option(cost=None))
    whole = plan(
        other=alike,
        native=verified(option(request=SimpleNamespace(quant=None))),
        unknown=unpriced,
        alternatives=[other],
    )
    assert pictures._costs(whole) == "bars"
    month = HOURS_PER_MONTH
    assert drawn == [("bars", [
        ("the plan: 24 x h100 in fp8", 60 * month),
        ("at confidence 0.5: 24 x h100 in fp8, 6 x (tp2 on h100)", 70 * month),
        ("in its own format: 24 x h100 in native", 60 * month),
        ("alternative: 24 x l4 in fp8", 80 * month),
    ], "USD per month")]  # fmt: skip
    job = plan(option(hours=9.0), alternatives=[other])
    pictures._costs(job)
    assert drawn[1][1:] == (
        [("the plan: 24 x h100 in fp8", 60.0), ("alternative: 24 x l4 in fp8", 80.0)],
        "USD in total",
    )
    assert pictures._costs(plan()) is None and pictures._costs(plan(unknown=unpriced)) is None
    assert pictures._costs(plan(option(tariff=None), alternatives=[other])) is None


def step(confidence: float, cost: float | None) -> Any:
    return SimpleNamespace(confidence=confidence, cost=cost, option=None if cost is None else option(cost=cost))


def test_the_cost_of_safety(monkeypatch: pytest.MonkeyPatch, drawn: list[Any]) -> None:
    """The bar of the plan's confidence is marked, the first where there is none."""
    alike = [[step(0.5, 30.0), step(0.6, 30.0)], [step(0.8, 60.0)], [step(0.9, None)]]
    monkeypatch.setattr(pictures, "alike_steps", lambda plan: alike)
    assert pictures._safety(plan()) == "bars"
    month = HOURS_PER_MONTH
    bars = [("up to 0.6: 24 x h100", 30 * month), ("up to 0.8: 24 x h100", 60 * month)]
    assert drawn == [("bars", bars, "USD per month, by confidence", 1)]
    pictures._safety(plan(confidence=0.6))
    pictures._safety(plan(confidence=0.95))
    assert [one[3] for one in drawn[1:]] == [0, 0]
    assert pictures._safety(plan(option(tariff=None))) is None
    for few in (alike[1:], alike[2:]):
        monkeypatch.setattr(pictures, "alike_steps", lambda plan, few=few: few)
        assert pictures._safety(plan()) is None
    monkeypatch.setattr(pictures, "alike_steps", lambda plan: alike[:1])
    assert pictures._safety(plan()) == "bars"


def row(load: float, verdict: str = "stable", needed: int = 2) -> dict[str, Any]:
    return {"load": load, "ttft_s": load / 2, "replicas_needed": needed, "verdict": verdict}


def test_other_loads_in_pictures(drawn: list[Any]) -> None:
    """At half of the load and twice; what is overloaded has no point."""
    whole = plan(sensitivity=[row(2.0, "overloaded", 6), row(0.5)], replicas_for=lambda factor: 4 if factor > 1 else 3)
    (steps, latency) = list(pictures._under_load(whole))
    _, (loads, counts), marked, own, labels = drawn[0]
    assert (loads[0], loads[-1], len(loads), counts[0], counts[-1]) == (6.0, 18.0, 201, 3.0, 4.0)
    assert (marked, own, labels) == ([(24.0, 6.0), (6.0, 2.0)], 3.0, ("requests per second", "replicas"))
    assert steps[:2] == (
        "Replicas against load",
        "Replicas for each load, so that they are at most 80% busy; the line across is the plan, the dots are in the "
        "table.",
    )
    _, curve, limit, labels = drawn[1]
    assert (curve.label, list(curve.x), list(curve.y)) == ("simulated", [6.0, 12.0], [0.25, 0.35])
    assert (limit, labels) == (0.4, ("requests per second", "TTFT"))
    assert latency[:2] == (
        "TTFT against load",
        "TTFT p95 of the plan's 3 x (tp2 on h100), simulated at the loads of the table; the dashed line is the limit "
        "of 400 ms. At 1 of them it is overloaded.",
    )
    users = plan(option(pools=(2, 5)), demand={"users": 40}, replicas_for=lambda factor: 3)
    (_, latency) = list(pictures._under_load(users))
    assert drawn[2][3:] == (7.0, ("users", "replicas")) and drawn[3][3] == ("users", "TTFT")
    assert latency[1].endswith("limit of 400 ms.")
    for other in ({"capacity": None}, {"replicas_for": lambda factor: None if factor > 1.4 else 3}):
        ((title, *_),) = list(pictures._under_load(plan(**{"replicas_for": lambda factor: 3} | other)))
        assert title == "TTFT against load"


def test_memory_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A free twentieth is nothing; the fullest of an array counts."""

    def words(total: float) -> str:
        return pictures._memory_words(plan(), SimpleNamespace(total=np.array([1.0, total]), usable=80e9))  # type: ignore[arg-type]

    start = "One device of the plan at its capacity: {} of 80.00 GB are used."
    assert words(76e9) == start.format("76.00 GB")
    assert words(60e9) == start.format("60.00 GB") + (
        " The other 20.00 GB stay free: the first limit reached is the limit on TTFT."
    )
    monkeypatch.setattr(pictures, "Footprint", SimpleNamespace)
    found = pictures._footprint(option(), plan())
    assert (found.batch, found.prompt, found.context) == (8.0, 700.0, 800.0)


def grid(gpu: str, basis: str, *points: tuple[float, float, bool]) -> Any:
    """(requests/s, seconds a token, whether it can be) on two devices."""
    rate, tpot, possible = (np.array(column) for column in zip(*points))
    of = SimpleNamespace(hardware=SimpleNamespace(name=gpu), calibration=SimpleNamespace(basis=basis))
    return SimpleNamespace(deployment=of, possible=possible, rate=rate, tpot=tpot, devices=2)


def test_the_frontier_by_gpu() -> None:
    """1 request/s of 200 tokens on two devices are 100 tokens/s each. What is slower in both is left out."""
    grids = [
        (
            "",
            grid("h100", "measured", (1.0, 0.02, True), (2.0, 0.04, True), (1.5, 0.05, True), (9.0, 0.01, False)),
            "t",
        ),
        ("", grid("h100", "measured", (0.5, 0.01, True)), "t"),
        ("", grid("l4", "roofline", (4.0, 0.02, True)), None),
        ("", grid("t4", "measured", (9.0, 0.02, False)), "t"),
    ]
    curves = pictures.frontier_curves(plan(searched=SimpleNamespace(grids=grids)))
    assert [(one.label, np.asarray(one.x).tolist(), np.asarray(one.y).tolist()) for one in curves] == [
        ("l4, no price, roofline", [50.0], [400.0]), ("h100", [100.0, 50.0, 25.0], [50.0, 100.0, 200.0]),
    ]  # fmt: skip
    many = [("", grid(f"g{place}", "measured", (float(place + 1), 0.02, True)), "t") for place in range(7)]
    curves = pictures.frontier_curves(plan(searched=SimpleNamespace(grids=many)))
    assert [one.label for one in curves] == [f"g{place}" for place in (6, 5, 4, 3, 2, 1)]


def test_which_pictures_a_plan_has(monkeypatch: pytest.MonkeyPatch, drawn: list[Any]) -> None:
    monkeypatch.setattr(pictures, "_footprint", lambda option, plan: "footprint")
    monkeypatch.setattr(pictures, "_memory_words", lambda plan, footprint: "words")
    monkeypatch.setattr(pictures, "frontier_curves", lambda plan: "curves")
    monkeypatch.setattr(pictures, "_under_load", lambda plan: iter([("Load", "", "figure")]))
    for name in ("_costs", "_safety"):
        monkeypatch.setattr(pictures, name, lambda plan: None)
    assert [title for title, *_ in pictures._figures(plan())] == ["Load", "Memory", "Frontier"]
    assert drawn == [
        ("memory_stack", {"h100": "footprint"}), ("frontier_figure", "curves", (40.0, 99.0), "load")
    ]  # fmt: skip
    encoder = option(deployed(model=SimpleNamespace(encodes=True)))
    assert [title for title, *_ in pictures._figures(plan(encoder, demand={"offline": True}))] == ["Memory"]
    for name in ("_costs", "_safety"):
        monkeypatch.setattr(pictures, name, lambda plan: "figure")
    titles = {title: caption for title, caption, _ in pictures._figures(plan())}
    assert list(titles)[:2] == ["Cost", "Cost of safety"] and titles["Cost"].startswith("The bill per month")
    job = {title: caption for title, caption, _ in pictures._figures(plan(option(hours=9.0)))}
    assert job["Cost"] == "The bill of the whole job, by formulas."
    assert dict(pictures.plan_figures_by_name(plan()))["cost of safety"] == "figure"
    monkeypatch.setattr(pictures.plots, "svg", lambda figure: f"<{pictures.plots.INK.upper()}>")
    assert pictures.drawings(plan())[0].svg == "<currentColor>"
