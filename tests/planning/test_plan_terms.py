"""The formulas on the plan's page give the plan's own numbers, evaluated again from what is put in."""

from __future__ import annotations

import pytest

from inferplan.answers.cost import OUTPUT_TO_INPUT
from inferplan.answers.drafting import Drafting
from inferplan.catalog.assemble import Request
from inferplan.catalog.price_lists import price_book
from inferplan.estimate.phase import run_step
from inferplan.planning.demand import Demand
from inferplan.planning.option import Sizing
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.planning.search import point
from inferplan.planning.space import Space
from inferplan.reports.plan_terms import plan_terms
from inferplan.traffic.requests import Lengths, Slo
from inferplan.work.step import decode
from tests.cases import for_each

LENGTHS = {"prompt": Lengths(mean=700), "output": Lengths(mean=200)}
DEMANDS = {
    "rate": Demand(**LENGTHS, rate=10.0),
    "users": Demand(**LENGTHS, users=100),
    "offline": Demand(**LENGTHS, requests=100_000, deadline=7200.0),
}


def planned(demand: Demand, slo: Slo, **changes: object) -> Plan:
    values = {"base": Request(model="llama-3.1-8b", gpu=""), "gpus": ("h100-sxm",), "most": 2, "disaggregate": False}
    space = Space(**(values | changes))  # type: ignore[arg-type]
    prices = price_book(stated=["h100-sxm=2.5"])
    return plan(Question(space=space, demand=demand, slo=slo, sizing=Sizing(), prices=prices))


@for_each(
    ("demand", "changes"),
    [("rate", {}), ("rate", {"engines": ("sglang",), "most": 1}), ("users", {"most": 1}), ("offline", {})],
)
def test_evaluated_again_they_are_the_plans_numbers(demand: str, changes: dict[str, object]) -> None:
    found = planned(DEMANDS[demand], Slo(tpot=0.03, percentile=95.0), **changes)
    terms = {term.name: float(term.evaluate()) for term in plan_terms(found)}
    option = found.option
    assert terms["time per output token"] == pytest.approx(option.tpot, rel=1e-12)
    assert terms["capacity per replica, closed form"] == pytest.approx(option.rate, rel=1e-12)
    assert terms["requests per replica"] == pytest.approx(option.concurrency, rel=1e-12)
    assert terms["replicas"] <= option.replicas  # whole instances hold more
    tokens = found.rate * (700 / OUTPUT_TO_INPUT + 200)  # a second, in output tokens
    assert terms["per million output tokens"] == pytest.approx(option.devices * 2.5 / 3600 / tokens * 1e6, rel=1e-9)


def test_with_drafts_a_round_yields_several_tokens() -> None:
    found = planned(
        DEMANDS["rate"], Slo(tpot=0.012, percentile=95.0), drafting=(Drafting(model=None, length=3, acceptance=0.9),)
    )
    terms = {term.name: term for term in plan_terms(found)}
    assert found.option.speculation.length
    assert float(terms["time per output token"].evaluate()) == pytest.approx(found.option.tpot, rel=1e-12)
    yielded = (1 - 0.9**4) / (1 - 0.9)  # Leviathan et al., equation 1
    assert float(terms["mean round"].evaluate()) == pytest.approx(found.option.tpot * yielded, rel=1e-9)


def test_pools_apart_show_the_decode_pool() -> None:
    demand = Demand(prompt=Lengths(mean=4000), output=Lengths(mean=200), rate=30.0)
    found = planned(demand, Slo(ttft=0.5, tpot=0.008, percentile=95.0), disaggregate=True)
    assert found.option.pools is not None
    terms = {term.name: float(term.evaluate()) for term in plan_terms(found)}
    assert terms["capacity per replica, closed form"] == pytest.approx(
        found.option.batch / (199 * found.option.tpot), rel=1e-9
    )
    assert terms["decode replicas, before simulation"] <= found.option.pools[1]


def test_the_operator_is_that_of_the_step() -> None:
    """Its time times its runs is its part of the decode step, and no other operator has a larger one."""
    found = planned(DEMANDS["rate"], Slo(tpot=0.03, percentile=95.0), pp=(1,))
    option = found.option
    (largest,) = [term for term in plan_terms(found) if "largest operator" in term.name]
    phase = run_step(option.deployment, decode(float(option.batch * option.deployment.parallel.dp), 700 + 100.0))
    costs = [cost for stage in phase.stages for cost in stage]
    top = max(costs, key=lambda cost: float(cost.total))
    assert top.op.name in largest.name
    assert float(largest.evaluate()) * top.op.count == pytest.approx(float(top.total), rel=1e-9)


def test_the_grid_keeps_what_the_formulas_need() -> None:
    found = planned(DEMANDS["rate"], Slo(tpot=0.03, percentile=95.0))
    option = found.option
    grid = point(option.deployment, DEMANDS["rate"], 95.0, option.batch, option.budget)
    share, ttft = float(grid.share[0, 0]), float(grid.ttft_mean[0, 0])
    assert 0 < share <= 1
    assert ttft <= float(grid.ttft[0, 0])
    steps = 199 * float(grid.tpot[0, 0])
    assert option.concurrency == pytest.approx(option.rate * (ttft + steps), rel=1e-12)
