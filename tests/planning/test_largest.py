"""The most that GPUs, or a bill per hour, serve: held to the question whether they serve a given load."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
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


DRAWN = ["1x-l40s", "2x-l40s", "1x-h100-sxm", "2x-a100-80gb-sxm"]


@for_each("seed", range(4))
def test_a_load_that_is_hinted_is_accepted(seed: int) -> None:
    """The load that an error names is the most, and whoever asks for it gets a plan that is not told it is too much: at
    most its share of capacity."""
    rng = np.random.default_rng(seed)
    tokens, limits = (int(rng.choice([256, 512])), int(rng.choice([64, 211]))), (0.3, 0.05)
    people = {"think_time": 10.0} if rng.random() < 0.3 else {}
    load = "users" if people else "rate"
    sure = {"confidence": 0.5} if rng.random() < 0.5 else {}
    fixed = {"quants": None, "ttft": limits[0], "tpot": limits[1], "most": 2, "progress": False, **people, **sure}

    def asked(amount: Any) -> Plan:
        return make_plan("llama-3.1-8b", *tokens, gpus=DRAWN[rng_gpu], **{**fixed, load: amount})

    rng_gpu = int(rng.integers(len(DRAWN)))
    most = asked("most").question
    amount = most.demand.users if people else most.demand.rate
    assert amount is not None
    with pytest.raises(InfeasibleError) as refused:
        asked(float(f"{1.5 * amount:.3g}") if load == "rate" else round(1.5 * amount))
    said = re.match(r"--(?:rate|in-flight) ([0-9.]+), or", refused.value.hint)
    assert said is not None and float(said[1]) == amount
    found = asked(int(said[1]) if people else float(said[1]))
    assert found.confidence == most.sizing.confidence
    assert found.capacity is not None and found.capacity.factor >= 1.25 / 1.03


def test_a_load_between_the_most_and_an_even_chance_is_no_plain_yes() -> None:
    """One H100 keeps limits for more people if the prediction is right than with a chance of 80 %."""
    known = {"gpus": "1x-h100-sxm", "quants": None, "ttft": 0.3, "tpot": 0.03, "most": 1, "progress": False}
    sure = make_plan("llama-3.1-8b", 512, 64, rate="most", **known)
    even = make_plan("llama-3.1-8b", 512, 64, rate="most", confidence=0.5, **known)
    assert sure.confidence == 0.8 and even.question.demand.rate > 1.03 * sure.question.demand.rate
    first = plan_report(make_plan("llama-3.1-8b", 512, 64, rate=even.question.demand.rate, **known)).opening[0]
    assert first.startswith("not at a confidence of 0.8;")
    kept = plan_report(make_plan("llama-3.1-8b", 512, 64, rate=sure.question.demand.rate, **known)).opening[0]
    assert kept.startswith("yes, at a confidence of 0.8:")


def test_what_may_be_spent_bounds_both_confidences() -> None:
    """For 1.50 USD/h there is one L40S, whose error nobody knows, and no H100 at 4: whoever asks for the most that is
    found gets it, and it is no plain yes."""
    both = {"price": {"l40s": 1.0, "h100-sxm": 4.0}, "max_cost": 1.5, "quants": None, "most": 1, "progress": False}
    limits = {"gpus": "l40s,h100-sxm", "ttft": 1.0, "tpot": 0.06}
    most = make_plan("llama-3.1-8b", 512, 64, rate="most", **both, **limits)
    assert (most.option.cost, most.confidence) == (1.0, 0.5)
    rate = most.question.demand.rate
    again = make_plan("llama-3.1-8b", 512, 64, rate=rate, **both, **limits)
    assert again.option.cost == 1.0 and again.unkept is not None
    assert again.unkept.hint.startswith("--max-cost 4.00")
    with pytest.raises(InfeasibleError) as refused:
        make_plan("llama-3.1-8b", 512, 64, rate=2 * rate, **both, **limits)
    assert refused.value.hint.startswith(f"--rate {rate:g}, or --max-cost 4.00")


def test_a_size_that_a_short_run_called_enough_is_seen_in_a_long_one() -> None:
    """211 users who think for 30 s: a run of 760 requests finds two L40S enough at 1.25 times the load, one of 4,000
    finds their capacity at 1.13 times it."""
    limits = {"ttft": 1.0, "tpot": 0.05, "think_time": 30.0, "confidence": 0.5, "quants": None, "progress": False}
    found = make_plan("llama-3.1-8b", 1155, 211, gpus="l40s", price={"l40s": 1.0}, users=211, most=2, **limits)
    assert found.capacity is not None and found.capacity.factor >= 1.25 / 1.03


def test_a_hint_of_looser_limits_and_a_smaller_load_is_accepted() -> None:
    """No load is small enough for a TTFT of 10 ms on one L40S: the limits and the load that are named are kept."""
    tight = {"gpus": "1x-l40s", "quants": None, "tpot": 0.05, "most": 1, "progress": False}
    with pytest.raises(InfeasibleError) as refused:
        make_plan("llama-3.1-8b", 512, 256, rate=5.0, ttft=0.01, **tight)
    said = re.match(r"relax to --ttft ([0-9.]+)ms for .* [(]--rate ([0-9.]+)[)]", refused.value.hint)
    assert said is not None
    assert (
        make_plan("llama-3.1-8b", 512, 256, rate=float(said[2]), ttft=float(said[1]) / 1e3, **tight).option.devices == 1
    )


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
