"""Plans under a budget of watts: against plans without one, by hand (docs/power.md)."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from math import inf

import pytest

import inferplan
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.energy import EnergyAsked
from inferplan.catalog.price_lists import price_book
from inferplan.errors import InfeasibleError, UsageError
from inferplan.planning.constraints import WithinPower
from inferplan.planning.demand import Demand
from inferplan.planning.option import Sizing
from inferplan.planning.plan import Plan, plan
from inferplan.planning.power import PowerBudget
from inferplan.planning.question import Question
from inferplan.planning.space import Rejections, Space, candidates
from inferplan.reports.plan import plan_report
from inferplan.traffic.requests import Slo, parse_lengths


@cache
def planned(caps: tuple[float, ...] = (), power: PowerBudget | None = None, spare: int = 0) -> Plan:
    """Llama-3.1-8B on single ideal H100s at 3 dollars an hour each, one by one."""
    question = Question(
        space=Space(
            base=Request(model="llama-3.1-8b", gpu="", ideal=True),
            gpus=("h100-sxm",),
            quants=(None,),
            most=1,
            budgets=(2048,),
            disaggregate=False,
            caps=caps,
        ),
        demand=Demand(prompt=parse_lengths("1024"), output=parse_lengths("128"), rate=60.0),
        slo=Slo(ttft=0.4, tpot=0.03, percentile=95.0),
        sizing=Sizing(spare=spare, power=power),
        prices=price_book(stated=["h100-sxm=3"]),
    )
    return plan(question)


CAPS = (700.0, 350.0)


def test_a_budget_takes_the_cheapest_of_the_caps_that_it_has_power_for() -> None:
    """Each cap by itself, without a budget, needs so many GPUs; those within the budget, and of these the fewest."""
    needed = {cap: planned((cap,)).option.replicas for cap in CAPS}
    assert needed[700.0] < needed[350.0], "a slower GPU carries less"
    nameplates = sorted(count * cap for cap, count in needed.items())
    for watts in nameplates:
        within = {cap: count for cap, count in needed.items() if count * cap <= watts}
        found = planned(CAPS, PowerBudget(watts=watts)).option
        cap = 700.0 if found.deployment.cap is None else found.deployment.cap.watts
        assert found.replicas == min(within.values())
        assert found.replicas * cap <= watts
        assert found.cost == pytest.approx(3.0 * found.replicas)
    with pytest.raises(InfeasibleError, match="power-budget"):
        planned(CAPS, PowerBudget(watts=nameplates[0] - 1))


def test_a_budget_that_is_not_reached_changes_nothing() -> None:
    free, bound = planned(), planned((), PowerBudget(watts=1e6))
    assert (free.option.replicas, free.option.cost) == (bound.option.replicas, bound.option.cost)
    assert "power" not in bound.searched.rejections.counts


def test_the_api_asks_the_same() -> None:
    given = {"quants": [None], "most": 1, "ideal": True, "price": {"h100-sxm": 3.0}, "progress": False}
    limits = {"ttft": 0.4, "tpot": 0.03, "rate": 60}
    few = planned((350.0,)).option.replicas
    found = inferplan.make_plan(
        "llama-3.1-8b", "1024", "128", gpus="h100-sxm", power_caps=[350], power_budget=350 * few, **limits, **given
    )
    assert (found.option.replicas, found.option.deployment.cap.watts) == (few, 350.0)


def test_what_there_is_no_power_for_is_counted_and_named() -> None:
    few = planned().option.replicas
    with pytest.raises(InfeasibleError) as refused:
        planned((), PowerBudget(watts=700.0 * (few // 2)))
    assert f"within {0.7 * (few // 2):.3g} kW" in refused.value.what
    assert "--power-cap" in refused.value.hint
    found = planned(CAPS, PowerBudget(watts=planned((350.0,)).option.replicas * 350.0))
    assert found.searched.rejections.counts["power"] > 0
    assert found.option.deployment.cap is not None
    report = plan_report(found)
    assert ["power by nameplate", f"{found.option.replicas * 0.35:,.3g} kW"] == [
        text.partition(",")[0] for text in next(row for row in report.tables[0].rows if row[0] == "power by nameplate")
    ]
    power = report.record["power"]
    assert power["nameplate_w"] == pytest.approx(found.option.replicas * 350.0)
    assert power["mean_w"] == pytest.approx(found.best.watts)
    assert power["j_per_output_token"] == pytest.approx(found.best.watts / (60 * 128))


def test_spare_devices_are_in_the_nameplates() -> None:
    option = replace(planned().option, spare=2)
    whole = 700.0 * (option.replicas + 2)
    assert WithinPower(PowerBudget(watts=1e6)).taken(option) == pytest.approx(whole)
    for watts, allowed in ((whole, True), (whole - 1, False)):
        assert WithinPower(PowerBudget(watts=watts)).allows(option) == allowed
        assert replace(option, limits=(PowerBudget(watts=watts),)).allowed == allowed


def test_a_draw_is_held_to_a_budget_of_means() -> None:
    verified, watts = planned().best, planned().best.watts
    assert watts is not None
    for share, kept in ((0.9, False), (1.1, True)):
        assert WithinPower(PowerBudget(watts=share * watts, provision="mean")).kept(verified) == kept
        assert WithinPower(PowerBudget(watts=share * watts)).kept(verified)


def test_spare_replicas_need_power_too() -> None:
    few = planned().option.replicas
    assert planned((), PowerBudget(watts=700.0 * (few + 1)), 1).option.devices == few + 1
    with pytest.raises(InfeasibleError):
        planned((), PowerBudget(watts=700.0 * few), 1)


def test_nameplates_by_hand() -> None:
    """16 GPUs of 700 W capped at 500 W with 100 W of host each, in a facility of PUE 1.2: 1.2 * 16 * 600 W."""
    capped = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm", power_cap=500.0))
    free = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    beside = EnergyAsked(pue=1.2, host_watts=100.0)
    assert PowerBudget(watts=inf, beside=beside).least([(capped, 16)]) == pytest.approx(11_520)
    assert PowerBudget(watts=inf).least([(free, 2), (capped, 1)]) == pytest.approx(1_900)
    assert PowerBudget(watts=inf, provision="mean").least([(free, 10)]) == pytest.approx(0.164 * 7_000)


def test_mean_draw_is_that_of_the_simulation() -> None:
    """A GPU at this load draws less than its TDP, so that the mean of a plan is within less than its nameplates."""
    free = planned()
    watts = free.best.watts
    assert watts is not None and 0.164 < watts / (700 * free.option.devices) < 1
    found = planned((), PowerBudget(watts=1.02 * watts, provision="mean"))
    assert found.option.replicas == free.option.replicas
    assert found.best.watts == pytest.approx(watts, rel=0.02)
    for share in (0.9, 0.2):  # less than it draws at the load, and for being on
        with pytest.raises(InfeasibleError) as refused:
            planned((), PowerBudget(watts=share * watts, provision="mean"))
        named = re.match(r"--power-budget ([\d.]+)kW", refused.value.hint)
        assert named is not None
        assert planned((), PowerBudget(watts=1e3 * float(named[1]), provision="mean")).option.replicas


def test_a_cap_at_tdp_is_none() -> None:
    space = Space(base=Request(model="llama-3.1-8b", gpu=""), gpus=("h100-sxm",), caps=(800.0, 700.0, 500.0))
    assert space.caps_of("h100-sxm") == (None, 500.0)
    assert space.caps_of("l40s") == (None,)  # 350 W
    found = {
        one.power_cap for one, _ in candidates(Space(**{**vars(space), "most": 1, "quants": (None,)}), Rejections())
    }
    assert found == {None, 500.0}


def test_an_instance_is_filled_as_far_as_there_is_power() -> None:
    """Instances of 8 H100s: 9 replicas are billed as 16, of which 7 kW run 10."""
    tariff = price_book(stated=["h100-sxm=24/8"]).tariff("h100-sxm", 1, 1)
    rented = replace(planned().option, tariff=tariff)
    assert rented.filled(9) == 16
    assert replace(rented, limits=(PowerBudget(watts=7_000.0),)).filled(9) == 10
    assert replace(rented, limits=(PowerBudget(watts=7_000.0, provision="mean"),)).filled(9) == 9


def test_means_of_a_job_are_refused() -> None:
    with pytest.raises(UsageError, match="an offline job"):
        Question(
            space=Space(base=Request(model="llama-3.1-8b", gpu=""), gpus=("h100-sxm",)),
            demand=Demand(prompt=parse_lengths("1024"), output=parse_lengths("128"), requests=100, deadline=1e5),
            slo=Slo(ttft=0.4, percentile=95.0),
            sizing=Sizing(power=PowerBudget(watts=1e4, provision="mean")),
            prices=price_book(stated=["h100-sxm=3"]),
        )
