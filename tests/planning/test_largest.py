"""The most that GPUs, or a bill per hour, serve: held to the question whether they serve a given load."""

from __future__ import annotations

import re
from typing import Any

import pytest

from inferplan.api import make_plan
from inferplan.catalog.price_lists import price_book
from inferplan.errors import InfeasibleError, UsageError
from inferplan.fields import question_of
from inferplan.money import Money
from inferplan.planning import largest
from inferplan.planning.asked import SizingAsked, _spent
from inferplan.planning.option import PlanOption
from inferplan.planning.plan import Plan
from inferplan.planning.question import Question
from inferplan.reports.plan import plan_report
from tests.cases import for_each

ASKED: dict[str, Any] = {
    "quants": None,
    "price": {"l40s": 2.0},
    "ttft": 1.0,
    "tpot": 0.06,
    "most": 1,
    "confidence": 0.5,
    "progress": False,
}


def planned(**more: Any) -> Plan:
    return make_plan("llama-3.1-8b", 512, 64, **{"gpus": "l40s", **ASKED, **more})


def test_no_more_is_served_than_the_most_and_no_less() -> None:
    """One GPU serves what was found, and not a tenth more."""
    found = planned(gpus="1x-l40s", rate="most")
    rate = found.question.demand.rate
    assert rate is not None
    assert (found.option.devices, planned(gpus="1x-l40s", rate=rate).option.devices) == (1, 1)
    with pytest.raises(InfeasibleError) as refused:
        planned(gpus="1x-l40s", rate=1.1 * rate)
    said = re.search(r"--rate ([0-9.]+),", refused.value.hint)  # what it does serve
    assert said is not None
    assert float(said[1]) == pytest.approx(rate, rel=0.05)


def test_a_bill_buys_the_gpus_that_it_pays_for() -> None:
    """At 2 USD an hour 5 USD buy two GPUs, which carry at least twice what one does."""
    two, one = planned(rate="most", max_cost=5.0), planned(gpus="1x-l40s", rate="most")
    assert (two.option.cost, two.option.devices) == (4.0, 2)
    assert 1.9 < (two.question.demand.rate or 0.0) / (one.question.demand.rate or 1.0) < 2.6
    with pytest.raises(InfeasibleError) as refused:
        planned(rate=4 * (two.question.demand.rate or 0.0), max_cost=5.0)
    assert "--max-cost" in refused.value.hint and "--rate" in refused.value.hint


def test_the_other_gpus_for_a_bill_carry_what_their_own_plans_say() -> None:
    """For 4 USD an hour there are two L40S at 2 or one A100 at 4: beside the plan for the one stands the other, within
    the 15 % that simulation takes from the closed form, of the most that is found where it alone is asked for."""
    price = {"l40s": 2.0, "a100-80gb-sxm": 4.0}
    both = planned(gpus="l40s,a100-80gb-sxm", price=price, rate="most", max_cost=4.0)
    (other,) = both.runners
    name, own = other.option.deployment.hardware.name, both.option.deployment.hardware.name
    assert {name, own} == set(price) and other.option.cost == 4.0
    assert other.amount == pytest.approx(planned(gpus=name, price=price, rate="most", max_cost=4.0).rate, rel=0.15)
    shown = plan_report(both)
    table = next(one for one in shown.tables if one.title.startswith("other GPUs for 4.00 USD/h"))
    assert [row[0] for row in table.rows] == [name]
    assert shown.record["other_gpus"][0]["carried"] == other.amount


def test_a_gpu_on_which_simulation_finds_no_load_is_not_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = largest._simulated

    def none_on_one(option: PlanOption, question: Question) -> float:
        return 0.0 if option.deployment.hardware.name == "l40s" else simulated(option, question)

    monkeypatch.setattr(largest, "_simulated", none_on_one)
    monkeypatch.setattr(largest, "_WORTH", 0.0)  # all are simulated
    found = planned(gpus="l40s,a100-80gb-sxm", price={"l40s": 2.0, "a100-80gb-sxm": 4.0}, rate="most", max_cost=4.0)
    assert found.option.deployment.hardware.name == "a100-80gb-sxm"
    assert found.runners == () and plan_report(found).record["other_gpus"] == []


def test_a_bill_that_buys_nothing_says_what_the_least_costs() -> None:
    """One GPU costs 2 USD an hour; no limit on latency is in the way."""
    with pytest.raises(InfeasibleError) as refused:
        planned(rate="most", max_cost=1.0)
    assert "at 2.00 USD/h" in refused.value.because
    assert refused.value.hint.startswith("--max-cost 2.00")


def test_the_most_needs_a_bound() -> None:
    with pytest.raises(UsageError):
        planned(rate="most")


SPENT = {
    "20": 20.0,
    "48/day": 2.0,
    "3000/month": 3000 / 730,
    "8760/year": 1.0,
    "5M/Year": 5e6 / 8760,
    **dict.fromkeys(("20USD/h", "$20/h", "20/hr", "20 USD per hour", "USD 20", "20$"), 20.0),
    **dict.fromkeys(("3,000USD/month", "$3000/mo", "3000 $ a month", "3k/month"), 3000 / 730),
}


@for_each("text, hourly", SPENT.items())
def test_a_cost_is_of_an_hour_or_of_a_longer_span(text: str, hourly: float) -> None:
    spent = question_of(SizingAsked, {"max_cost": text}).max_cost
    assert isinstance(spent, Money) and spent.per_hour == pytest.approx(hourly)
    with pytest.raises(UsageError):
        question_of(SizingAsked, {"max_cost": f"{text}/fortnight"})


@for_each("text", ["20 per", "20 day", "20 XXX", "5M fee"])
def test_three_letters_that_are_no_currency_are_refused(text: str) -> None:
    """ISO 4217 names money of no country PER, DAY or FEE; XXX is its code for none."""
    with pytest.raises(UsageError, match="is no cost"):
        question_of(SizingAsked, {"max_cost": text})


def test_money_of_an_api_stands_beside_no_hours_of_gpus() -> None:
    """Hours of GPUs are counted where none has a price: 3 USD for a million tokens are none of these."""
    hours = price_book().counting(["of-our-own"])
    assert hours.currency == "GPU hours"
    with pytest.raises(UsageError, match="--api-price is in USD"):
        hours.require_currency("--api-price", "USD")
    hours.require_currency("--api-price", None)


def test_a_cost_is_in_the_currency_of_the_prices() -> None:
    with pytest.raises(UsageError) as refused:
        planned(gpus="2x-l40s", rate="most", max_cost="3 EUR")
    assert "--currency EUR" in refused.value.hint


def test_a_job_costs_a_sum() -> None:
    """A job has no month: 3000/month is not 4.11 in all."""
    assert _spent(Money(9.0), price_book(), offline=True) == 9.0
    with pytest.raises(UsageError):
        _spent(Money(3000.0, None, 730.0), price_book(), offline=True)


def test_the_most_for_a_bill_costs_no_more() -> None:
    """Two GPUs are there and cost 2 USD an hour each; 3 USD pay for one."""
    found = planned(gpus="2x-l40s", rate="most", max_cost=3.0)
    assert (found.option.cost, found.option.devices) == (2.0, 1)
    assert found.question.bound == "2 x l40s and 3.00 USD/h"
