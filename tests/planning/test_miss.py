"""What a plan is expected to cost, misses included, and the cost at each confidence."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from inferplan.catalog.assemble import Request
from inferplan.catalog.price_lists import price_book
from inferplan.estimate.bands import serving_bands
from inferplan.planning import miss
from inferplan.planning.beside import STEPS
from inferplan.planning.confidence import Slowness
from inferplan.planning.demand import Demand
from inferplan.planning.miss import Miss, least_expected, miss_of, repaired_at
from inferplan.planning.option import Sizing
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.planning.space import Space
from inferplan.planning.verify import TOO_SHORT, Verified
from inferplan.reports.plan import confidence_table
from inferplan.reports.plan_notes import answer
from inferplan.reports.plan_record import miss_record, plan_record
from inferplan.traffic.requests import Lengths, Slo
from tests.cases import for_each


def asked(**sizing: object) -> Question:
    return Question(
        space=Space(
            base=Request(model="llama-3.1-8b", gpu=""),
            gpus=("h100-sxm",),
            quants=("fp8",),
            most=1,
            disaggregate=False,
        ),
        demand=Demand(prompt=Lengths(mean=700), output=Lengths(mean=200), rate=100.0),
        slo=Slo(tpot=0.012, percentile=95.0),
        sizing=Sizing(**({"confidence": 0.8, "insists": False} | sizing)),  # type: ignore[arg-type]
        prices=price_book(stated=["h100-sxm=3"]),
    )


def over(gpus: tuple[str, ...], rate: float, **sizing: object) -> Plan:
    """The plan for a rate over some GPUs, within two limits."""
    question = asked(**sizing)
    return plan(
        replace(
            question,
            space=replace(question.space, gpus=gpus),
            demand=Demand(prompt=Lengths(mean=1155), output=Lengths(mean=211), rate=rate),
            slo=Slo(ttft=0.3, tpot=0.03, percentile=95.0),
            prices=price_book(stated=["h100-sxm=3.49", "b200-hgx=6.79"]),
        )
    )


def full(**sizing: object) -> Question:
    """Six times the load, on replicas that are loaded to the brim."""
    question = asked(utilisation=1.0, **sizing)
    return replace(question, demand=replace(question.demand, rate=600.0))


@pytest.fixture(scope="module")
def planned() -> Plan:
    return plan(asked())


TPOT, BOTH = frozenset({"tpot"}), frozenset({"ttft", "tpot"})


def test_a_plan_for_slow_devices_is_repaired_for_slower_ones(planned: Plan) -> None:
    """At 0.97 for those at 0.985, of 40 replicas; quantiles of a normal at 0.985, 0.97, 0.9: 2.1701, 1.8808, 1.2816."""
    slow_end = serving_bands(planned.option.deployment, 700.0)["tpot"][1]
    option = replace(planned.option, slow=Slowness(slow_end ** (1.8808 / 1.2816)), replicas=40, cost=120.0)
    more = ceil(40 * slow_end ** ((2.1701 - 1.8808) / 1.2816)) - 40
    found = miss_of(option, planned.question.at(0.97), lambda option: planned.best)
    assert more >= 1 and found is not None and found.cost == pytest.approx(3.0 * more)
    assert repaired_at(0.5) == repaired_at(0.9) == 0.95


@for_each(
    "limits, metrics",
    [
        ({"tpot": 0.012}, TPOT),
        ({"ttft": 0.4, "tpot": 0.012}, BOTH),
        ({"e2el": 5.0}, BOTH),  # one limit, to which both errors add
        ({"tpot": 0.012, "session": 60.0}, BOTH),
    ],
)
def test_the_chance_of_a_miss_is_no_less_than_that_of_its_union(
    planned: Plan, limits: dict[str, float], metrics: frozenset[str]
) -> None:
    """Errors that are never large together: of evenly drawn u TPOT is slower than its 0.99 quantile for u > 0.99, and
    TTFT for u < 0.01. Where both count, one of them is so in 2 of 100."""
    question = replace(planned.question, slo=Slo(percentile=95.0, **limits))
    fast = replace(planned.best, achieved=dict.fromkeys([*planned.best.achieved, "session"], 0.0))
    found = miss_of(planned.option, question, lambda option: fast)
    assert found is not None and found.metrics == metrics and found.held == 0.99
    drawn = (np.arange(10_000) + 0.5) / 10_000
    slow = (drawn > 0.99) | ((drawn < 0.01) & ("ttft" in metrics))
    assert found.chance == pytest.approx(np.mean(slow))
    assert found.expected == pytest.approx(np.mean(slow) * found.cost)


def test_a_chance_is_never_more_than_one() -> None:
    """At the prediction itself each of two metrics is as likely slower as not: 0.5 + 0.5."""
    assert Miss(held=0.5, metrics=BOTH, cost=8.0).expected == 8.0


def test_a_miss_costs_the_replicas_that_would_keep_the_limit(planned: Plan) -> None:
    """The band's slow end is its 90 % quantile; quantiles of a normal at 0.95, 0.9, 0.8: 1.6449, 1.2816, 0.8416."""
    slow_end = serving_bands(planned.option.deployment, 700.0)["tpot"][1]
    slower = slow_end ** ((1.6449 - 0.8416) / 1.2816)
    more = ceil(planned.option.replicas * slower) - planned.option.replicas
    assert more >= 1 and planned.miss is not None
    assert planned.miss.cost == pytest.approx(3.0 * more)
    assert planned.miss.expected == pytest.approx(planned.miss.chance * 3.0 * more)


def test_the_cost_of_a_miss_may_be_stated() -> None:
    """A dear miss buys a higher confidence: what it costs more is less than the chance that it takes away is worth."""
    dear = plan(full(miss_cost=4000.0))
    assert dear.miss is not None and dear.miss.cost == 4000.0 and dear.confidence == 0.95
    said = miss_record(dear)
    assert said is not None and said["expected_per_h"] == pytest.approx(4000.0 * said["chance_at_most"])
    assert plan(full(miss_cost=0.0)).confidence == 0.8


def test_more_gpus_to_choose_from_never_raise_the_bill() -> None:
    """The plan over two GPUs costs what the cheaper of the plans over each does, at each confidence of its curve too:
    at 38 requests a second one B200 does for 6.79, and two H100 for 6.98 miss less often."""
    both = over(("h100-sxm", "b200-hgx"), 38.0)
    alone = [over((gpu,), 38.0) for gpu in ("h100-sxm", "b200-hgx")]
    assert both.option.cost == min(one.option.cost or 0.0 for one in alone)
    least = [min(costs) for costs in zip(*([step.cost for step in one.curve] for one in alone), strict=True)]
    assert [step.cost for step in both.curve] == least


def test_a_dear_miss_buys_what_misses_less_often_and_its_curve_still_has_the_least_bill() -> None:
    """One B200 for 6.79 may miss twice as often as two H100 for 6.98; at 1,000 an hour that is worth more than 0.19."""
    found = over(("h100-sxm", "b200-hgx"), 38.0, miss_cost=1000.0)
    assert (found.option.deployment.hardware.name, found.option.cost) == ("h100-sxm", 6.98)
    assert {step.confidence: step.cost for step in found.curve}[found.confidence] == 6.79


def test_a_stated_miss_decides_by_its_cost_and_chance(planned: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 + 0.2 x 20 = 14 is more than 12 + 0.01 x 20 = 12.2; at 10 + 0.2 x 5 = 11 the first is cheaper. What costs more
    than the least so far is not looked at. Of a derived one the bill decides."""
    plans = [replace(planned.best, option=replace(planned.option, cost=cost)) for cost in (10.0, 12.0, 13.0)]
    for cost, best in ((20.0, 1), (5.0, 0)):
        looked_at: list[float] = []

        def risk(option: object, *_: object, cost: float = cost, looked_at: list[float] = looked_at) -> Miss:
            looked_at.append(option.cost)  # type: ignore[attr-defined]
            held = 0.8 if option.cost == 10.0 else 0.99  # type: ignore[attr-defined]
            return Miss(held=held, metrics=TPOT, cost=cost)

        monkeypatch.setattr(miss, "miss_of", risk)
        assert least_expected(plans, asked(miss_cost=cost), lambda option: planned.best) is plans[best]
        assert looked_at == [10.0, 12.0][: best + 1]
        assert least_expected(plans, asked(), lambda option: planned.best) is plans[0]


@for_each(
    "risks, best",
    [
        ([4.0, None], 0),  # 10 + 4 is known, 12 and more is not
        ([None, 4.0], 1),
        ([None, None], 0),
        ([None, 4.0, 0.5], 2),  # 12 + 4 is more than 13 + 0.5
    ],
)
def test_what_is_not_known_is_no_better_than_what_is(
    planned: Plan, monkeypatch: pytest.MonkeyPatch, risks: list[float | None], best: int
) -> None:
    """Of plans at 10, 12 and 13 with these expected costs of a miss; None where it is not known."""
    plans = [replace(planned.best, option=replace(planned.option, cost=cost)) for cost in (10.0, 12.0, 13.0)]
    plans = plans[: len(risks)]
    known = {
        one.option.cost: None if risk is None else Miss(held=0.0, metrics=TPOT, cost=risk)
        for one, risk in zip(plans, risks, strict=True)
    }
    monkeypatch.setattr(miss, "miss_of", lambda option, *_: known[option.cost])
    assert least_expected(plans, asked(miss_cost=1.0), lambda option: planned.best) is plans[best]


def test_a_run_that_is_too_short_leaves_what_was_seen_before(planned: Plan) -> None:
    """The band's slow end is its 90 % quantile: beyond it no run is long enough, up to it the limits are kept."""
    slow_end = serving_bands(planned.option.deployment, 700.0)["tpot"][1]
    kept = replace(planned.best, achieved=dict.fromkeys(planned.best.achieved, 0.0))
    unsure = replace(kept, verdict=TOO_SHORT)
    found = miss_of(
        planned.option, planned.question, lambda option: kept if option.slow.step < slow_end * 1.001 else unsure
    )
    assert found is not None and found.held == 0.9 and found.chance == pytest.approx(0.1)


def test_a_larger_chance_of_a_miss_where_the_devices_have_less_to_spare(planned: Plan) -> None:
    """Of a plan loaded to 99 % of its capacity devices that are slower than planned for miss; of one at 80 % few do."""
    brim = plan(full())
    assert brim.miss is not None and planned.miss is not None
    assert brim.miss.chance > planned.miss.chance
    # the chance is under the load itself, the curve under what fills 80 % of the capacity with it: 1/0.8
    title = "Cost of safety: each limit kept at p95 with this confidence"
    assert confidence_table(planned).title == f"{title}, at 125% of the load"
    assert confidence_table(brim).title == title


def test_the_curve_is_what_plans_at_each_confidence_cost(planned: Plan) -> None:
    costs = {step.confidence: step.cost for step in planned.curve}
    assert tuple(costs) == STEPS
    assert list(costs.values()) == sorted(costs.values())
    for confidence in (0.5, 0.95):
        alone = plan(asked(confidence=confidence))
        assert costs[confidence] == pytest.approx(alone.option.cost, abs=3.0)  # short runs decide: one H100 either way
    assert costs[0.95] > costs[0.5]
    rows = plan_record(planned)["confidence_curve"]
    assert [row["cost"] for row in rows] == list(costs.values())
    assert rows[0]["step_times"] == 1.0 and rows[3]["step_times"] == pytest.approx(planned.option.slow.step)


def test_the_headline_says_its_confidence_and_the_prediction_stands_beside_it(planned: Plan) -> None:
    assert planned.confidence == 0.8 and planned.unkept is None
    assert "at a confidence of 0.8" in answer(planned)
    assert planned.other is not None and planned.other.option.slow.step == 1.0
    record = plan_record(planned)
    assert record["plan"]["confidence"] == 0.8
    assert record["at_the_other_confidence"]["confidence"] == 0.5
    assert record["at_the_other_confidence"]["cost"] <= record["plan"]["cost"]


def test_a_plan_that_refuses_requests_or_makes_them_queue_is_not_bought(planned: Plan) -> None:
    kept: Verified = planned.best
    assert kept.sound(planned.question.slo)
    for verdict in ("rejecting", "saturated", "overloaded"):
        assert not replace(kept, verdict=verdict).sound(planned.question.slo), verdict
