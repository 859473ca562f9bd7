"""Parts of a plan's JSON and tables, of a plan that is written down here: survival, tiers, records of alternatives."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from inferplan.figures import record
from inferplan.planning.demand import Demand
from inferplan.planning.plan import Plan
from inferplan.planning.redundancy import Survive
from inferplan.planning.tiering import Tiered
from inferplan.planning.verify import Kept, Survival
from inferplan.reports import plan_record, plan_survival, plan_tiers
from inferplan.serving.cold_start import ColdStart
from inferplan.serving.techniques.tiers import CacheTier, TierPrice
from inferplan.traffic.requests import Slo
from tests.planning.test_plan_notes import FP8, LENGTHS, on, plan, verified
from tests.planning.test_report_rows import cells
from tests.planning.test_sizing import P95, asked, option

MONTHLY = 730.0


def test_a_step_of_the_curve() -> None:
    step = SimpleNamespace(confidence=0.9, exact=False, option=option(request=FP8))
    assert plan_record.step_record(step) == {  # type: ignore[arg-type]
        "confidence": 0.9, "cost": 6.0, "currency": "USD", "exact": False, "devices": 3, "gpu": "h100-sxm",
        "quant": "fp8", "parallel": step.option.deployment.parallel.describe(), "replicas": 3, "step_times": 1.0,
    }  # fmt: skip
    step.option = None
    found = plan_record.step_record(step)  # type: ignore[arg-type]
    assert {name for name, value in found.items() if value is not None} == {"confidence", "exact"}


def test_what_a_miss_costs() -> None:
    risk = SimpleNamespace(held=0.9, chance=0.1, cost=20.0, expected=2.0)
    assert plan_record.miss_record(plan()) is None
    assert plan_record.miss_record(plan(miss=risk)) == {
        "held_at": 0.9, "chance_at_most": 0.1, "cost_per_h": 20.0, "expected_per_h": 2.0
    }  # fmt: skip


def test_a_checkpoint_in_another_format(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SimpleNamespace(checkpoint="org/own", shares={}, against="", lowest=None, source="page")
    like = SimpleNamespace(model="llama-3-8b")
    monkeypatch.setattr(plan_record, "quality_of", lambda model, quant: "good")
    monkeypatch.setattr(plan_record, "quantised_checkpoint", lambda model, quant: known)
    monkeypatch.setattr(plan_record, "sister", lambda model, quant: like)
    assert plan_record.quality_record(plan()) is None
    found = {
        "quant": "fp8", "checkpoint": "org/own", "recovered": None, "against": None, "lowest": None, "source": "page",
        "sister": "llama-3-8b", "said": "good",
    }  # fmt: skip
    assert plan_record.quality_record(plan(option(request=FP8))) == found
    known.shares, known.against, known.lowest, known.checkpoint = {"MMLU": 0.99}, "bf16", 0.99, ""
    own = {"checkpoint": None, "recovered": {"MMLU": 0.99}, "against": "bf16", "lowest": 0.99, "sister": None}
    assert plan_record.quality_record(plan(option(request=FP8))) == found | own
    monkeypatch.setattr(plan_record, "quantised_checkpoint", lambda model, quant: None)
    monkeypatch.setattr(plan_record, "sister", lambda model, quant: None)
    none = plan_record.quality_record(plan(option(request=FP8)))
    assert none == found | {"checkpoint": None, "source": None, "sister": None}


def test_what_a_fleet_carries_for_programs() -> None:
    found = SimpleNamespace(factor=1.5, open=True)
    assert plan_record.capacity_record(plan()) is None
    carried = plan_record.capacity_record(plan(capacity=found, load=33.0))
    assert carried == {"requests_per_s": 49.5, "sessions_per_s": None, "times_the_load": 1.5, "at_least": True}
    users = plan(capacity=found, load=40.0, question=asked(demand=Demand(**LENGTHS, users=40)))
    assert plan_record.capacity_record(users) == {
        "users": 60.0, "sessions_per_s": None, "times_the_load": 1.5, "at_least": True
    }  # fmt: skip


def test_the_frontier_and_the_limits() -> None:
    """TTFT 400 ms and TPOT 20 ms: a latency at its limit keeps it."""
    points = [option(), option(ttft=0.4, tpot=0.02, tariff=None), option(ttft=0.41), option(tpot=0.021)]
    rows = plan_record.frontier_rows(plan(searched=SimpleNamespace(frontier=points)))
    assert [row["meets_the_limits"] for row in rows] == [True, True, False, False]
    assert [row["priced"] for row in rows] == [True, False, True, True]
    first = rows[0]
    assert (first["gpu"], first["batch"], first["output_tokens_per_s_per_user"]) == ("h100-sxm", 64, 100.0)
    assert first["output_tokens_per_s_per_device"] == 1010.0


def test_the_next_cheaper_candidate() -> None:
    assert plan_record._cheaper_record(plan()) is None
    cheap = on({}, cost=4.0, replicas=2, violations=lambda slo: {"ttft": inf, "tpot": 1.5})
    closed = plan_record._cheaper_record(plan(cheaper_verified=verified(cheap)))
    assert closed == {
        "deployment": "the deployment", "replicas": 2, "cost": 4.0, "relax": {"ttft": None, "tpot": 1.5},
        "simulated": False,
    }  # fmt: skip
    seen = verified(cheap, result=object(), violations=lambda slo: {"ttft": 2.0})
    found = plan_record._cheaper_record(plan(cheaper_verified=seen))
    assert found is not None and (found["relax"], found["simulated"]) == ({"ttft": 2.0}, True)
    kept = plan_record._cheaper_record(plan(cheaper_verified=verified(cheap, result=object())))
    assert kept is not None and kept["simulated"] is False


def test_bases_of_a_finalist() -> None:
    assert plan_record.bases_of(verified(on({}))) == ("measured",)
    assert plan_record.bases_of(verified(result=SimpleNamespace(bases=("a", "b")))) == ("a", "b")


def test_classes_of_a_plan() -> None:
    best = verified(classes=[Kept("chat", Slo(ttft=0.5, percentile=90.0), {"ttft": 0.25})])
    assert plan_record._classes(plan(best=best)) == [
        {"name": "chat", "percentile": 90.0, "slo": {"ttft_s": 0.5}, "ttft_s": 0.25}
    ]  # fmt: skip
    assert plan_record._classes(plan(best=verified(classes=()))) is None
    assert plan_record._limits(P95) == {"ttft_s": 0.4, "tpot_s": 0.02}


def test_runs_that_correct_a_plan() -> None:
    system = SimpleNamespace(describe=lambda: "a server")
    runs = SimpleNamespace(system=system, rows=[1, 2], model_dump=lambda mode: {"provenance": mode})
    question = SimpleNamespace(space=SimpleNamespace(runs=runs))
    said = {"system": "a server", "runs": 2, "corrects_the_plan": False, "provenance": "json"}
    assert plan_record.anchor_record(plan()) is None
    assert plan_record.anchor_record(plan(on({}), question=question)) == said
    own = plan(on({"anchor": object()}), question=question)
    assert plan_record.anchor_record(own) == said | {"corrects_the_plan": True}


def test_what_computes_prompts() -> None:
    """Of pools that are alike the spare replica is either's; of two kinds each has its own."""
    assert plan_record._prefill_record(option()) is None
    alike = plan_record._prefill_record(option(pools=(2, 3), prompt_budget=8192, spare=1))
    assert alike is not None and (alike["parallel"]["replicas"], alike["token_budget"]) == (2, 8192)
    assert (alike["gpu"], alike["quant"]) == ("h100-sxm", None)
    first = SimpleNamespace(request=FP8, deployment=option().deployment)
    own = plan_record._prefill_record(option(pools=(2, 3), spare=1, prompts=first))
    assert own is not None and (own["parallel"]["replicas"], own["quant"]) == (3, "fp8")


def survived(**more: Any) -> Survival:
    kept = (Kept("chat", Slo(ttft=0.5, percentile=90.0), {"ttft": 0.25}),)
    found: dict[str, Any] = {
        "lost": 1,
        "restart": 60.0,
        "failures": 4,
        "judged": 1200,
        "kept": kept,
        "anew": 10,
        "late": 3,
    }
    return Survival(**found | more)


def surviving(**more: Any) -> Any:
    survive = more.pop("survive", Survive(start=ColdStart(rest=60.0), replicas=1))
    best = verified(survival=more.pop("survival", survived()))
    question = SimpleNamespace(sizing=SimpleNamespace(survive=survive))
    return plan(best=best, question=question, **{"failure_free": None} | more)


def test_what_a_plan_survives() -> None:
    """Ten requests began anew in four failures, three of them late; two GPUs would do without failures for 4 USD."""
    free = verified(option(replicas=2, cost=4.0))
    table = plan_survival.survival_table(surviving(failure_free=free))
    assert dict(map(tuple, table.rows)) == {
        "lost at a time": "1 of 3 replicas (1 GPU), back after 60.00 s",
        "chat: TTFT p90 meanwhile": "250.0 ms, limit 500 ms",
        "judged": "1,200 requests that arrive meanwhile, over 4 failures",
        "in flight when they are lost": "2.5 requests per failure restart, 30% of them over a limit",
        "without failures": "2 x h100-sxm: 2 x (1 device) at 4.00 USD/h",
        "surviving costs more": "2.00 USD/h (50.0%)",
    }
    found = plan_survival.survival_record(surviving(failure_free=free))
    assert found is not None
    assert (found["asked"], found["replicas_lost"], found["restart_s"], found["failures_simulated"]) == (1, 1, 60.0, 4)
    assert (found["began_anew_each"], found["began_anew_late"], found["mtbf_s"], found["expected"]) == (
        2.5,
        0.3,
        None,
        None,
    )
    assert found["kept"] == [{"name": "chat", "percentile": 90.0, "ttft_s": 0.25}]
    row = found["failure_free"]
    assert (row["replicas"], row["devices"], row["cost"]) == (2, 2, 4.0)


def test_what_nobody_asks_to_survive() -> None:
    assert plan_survival.survival_record(surviving(survive=None)) is None
    nobody = surviving(survival=survived(anew=0, late=0, kept=(Kept("", P95, {"ttft": inf, "tpot": 0.01}),)))
    found = plan_survival.survival_record(nobody)
    assert found is not None and found["began_anew_late"] is None and found["failure_free"] is None
    assert found["kept"][0] == {"name": None, "percentile": 95.0, "ttft_s": None, "tpot_s": 0.01}
    said = dict(map(tuple, plan_survival.survival_table(nobody).rows))
    assert said["in flight when they are lost"] == "0.0 requests per failure restart"
    assert "TPOT p95 meanwhile" in said and "without failures" not in said
    assert plan_survival.survival_record(plan(question=surviving().question, failure_free=None)) is None


def test_nodes_that_are_lost() -> None:
    lost = plan_survival._lost(Survive(start=ColdStart(rest=60.0), replicas=None), survived(lost=2), option())
    assert lost == "one node: 2 of 3 replicas (2 GPUs), back after 60.00 s"


def test_how_often_replicas_are_lost() -> None:
    """Each of three is up for 300 days on average and down for 60 s: 365.25/300 times three a year, and missing for
    60/(300 x 86,400) of the time each."""
    known = surviving(survive=Survive(start=ColdStart(rest=60.0), replicas=1, mtbf=300 * 86400.0))
    rows = {one.key: one for one in plan_survival._expected(known)}
    assert rows["failures_per_year"].value == pytest.approx(3 * 365.25 / 300, rel=1e-5)
    assert rows["failures_per_year"].label == "expected, at 300 days between failures of a GPU"
    assert rows["failures_per_year"].shown == "3.65 replicas lost per year"
    share = 60 / (300 * 86400.0)
    assert rows["degraded_share"].value == pytest.approx(3 * share, rel=1e-4)
    assert rows["degraded_share"].shown == f"{plan_survival._a_year(3 * share)} (6.9e-06 of it)"
    assert rows["beyond_share"].value == pytest.approx(3 * share**2, rel=1e-3)
    assert plan_survival._expected(surviving()) == []
    assert plan_survival._a_year(1e-6) == "31.6 s"


HOST = CacheTier(name="host", capacity=256e9, bandwidth=25e9, price=TierPrice(0.004 / MONTHLY, "USD"))
STORE = CacheTier(name="store", capacity=20e12, bandwidth=5e9, shared=True)


def tiered(*sides: Any, **more: Any) -> Any:
    return plan(tiered=list(sides), **more)


def side(chain: tuple[CacheTier, ...], replicas: int | None, **more: Any) -> Tiered:
    """A plan with tiers on so many GPUs at 2 USD an hour, whose cache is not simulated."""
    if replicas is None:
        return Tiered(chain=chain, best=None)
    priced = [tier for tier in chain if tier.price is not None]
    return Tiered(
        chain=chain, best=verified(option(replicas=replicas, cost=2.0 * replicas, tiers=tuple(priced), **more))
    )


def test_lines_of_cache_tiers() -> None:
    """Five GPUs without, three with 256 GB each at 0.004 USD a GB and month: 4 USD an hour less, 0.0042 for the
    tier."""
    without, host = side((), 5), side((HOST,), 3)
    paid = 3 * 256 * 0.004 / 730
    even = 4.0 / (3 * 256) * 730
    first, last = plan_tiers.tier_lines(tiered(without, host))
    assert first == (
        f"host 256.0 GB saves 2 GPUs (+4.00 USD/h of GPUs); it costs {paid:,.2f} USD/h, so the total is "
        f"{4 - paid:,.2f} less; break-even price {even:,.4g} USD/GB-month (768.0 GB are paid for)"
    )
    assert last == "planned without separate pools for prompts, which do not combine with cache tiers"
    (line, *_) = plan_tiers.tier_lines(tiered(side((), 3), side((HOST,), 4)))
    assert line.startswith(
        "host 256.0 GB takes 1 GPU more (-2.00 USD/h of GPUs); it costs 0.01 USD/h, so the total is 2.01 more"
    )
    assert "break-even price 0 USD/GB-month" in line
    (line, *_) = plan_tiers.tier_lines(tiered(side((), 3), side((STORE,), 3)))
    assert line.startswith(
        "store 20.00 TB, shared saves no GPU (+0.00 USD/h of GPUs); its cost is not known without a price"
    )
    (line, *_) = plan_tiers.tier_lines(tiered(without, side((HOST,), None)))
    assert line == "host 256.0 GB: no plan keeps the limits with it"
    (line, *_) = plan_tiers.tier_lines(tiered(side((), None), host))
    assert line == "host 256.0 GB: no plan keeps the limits without it"
    (line, *_) = plan_tiers.tier_lines(tiered(without, side((HOST, STORE), 3)))
    assert "break-even price of store" in line and "break-even price of host" not in line
    chosen = plan_tiers.tier_lines(tiered(without, host, which=option(tiers=(HOST,))))
    assert chosen[1] == "the command below starts no cache tiers: add the options of your engine for them"


def test_tiers_side_by_side() -> None:
    without, host, none = side((), 5), side((HOST,), 3, spare=1), side((STORE,), None)
    found = tiered(without, host, none, best=host.best)
    rows = [cells(plan_tiers._side(one, found)) for one in (without, host, none)]
    paid = 4 * 256 * 0.004 / 730
    assert rows[0]["tiers per device"] == "none" and rows[0]["devices"] == "5 x h100-sxm" and rows[0]["replicas"] == "5"
    assert rows[1]["tiers per device"] == "host 256.0 GB (the plan)" and rows[1]["replicas"] == "3 + 1 spare"
    assert rows[1]["GPUs, USD/h"] == "8.00" and rows[1]["tiers, USD/h"] == f"{paid:,.2f}"
    assert rows[1]["together, USD/h"] == f"{8 + paid:,.2f}"
    assert (
        rows[2]["devices"] == "no plan"
        and rows[2]["replicas"] == rows[2]["GPUs, USD/h"] == rows[2]["tiers, USD/h"] == ""
    )
    unpriced = cells(plan_tiers._side(side((STORE,), 3), tiered(without, side((STORE,), 3))))
    assert unpriced["tiers, USD/h"] == "not priced" and unpriced["together, USD/h"] == "-"
    tier = record(plan_tiers._side(host, found))["tiers"][0]
    assert (tier["name"], tier["shared"], tier["paid_bytes"]) == ("host", False, 4 * 256e9)
    assert tier["price_per_gb_month"] == pytest.approx(0.004)
    assert tier["break_even_per_gb_month"] == pytest.approx(2.0 / (4 * 256) * 730)
    assert plan_tiers.tiers_record(plan()) is None


def test_candidates_of_a_job_have_their_own_pace() -> None:
    """Two million requests of 200 tokens in 14.26 h are 7,792 tokens/s, in 21.15 h 5,253."""
    asked = SimpleNamespace(question=SimpleNamespace(demand=SimpleNamespace(requests=2e6, users=None)), rate=1.0)
    for hours, tokens in ((14.26, 7792), (21.15, 5253)):
        served = Plan.served(asked, SimpleNamespace(option=SimpleNamespace(hours=hours)))  # type: ignore[arg-type]
        assert round(200 * served) == tokens
