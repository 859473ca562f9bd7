"""Plans for people who think between an answer and the next request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inferplan.answers.emit.checkpoint import repository
from inferplan.answers.fit import FitAsked
from inferplan.api import fit, make_plan
from inferplan.catalog.assemble import Request
from inferplan.catalog.price_lists import price_book
from inferplan.errors import UsageError
from inferplan.planning.demand import Demand
from inferplan.planning.option import Sizing, Stream, bill
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.planning.search import search
from inferplan.planning.sizing import Capacity
from inferplan.planning.space import Space
from inferplan.reports.fit import memory_report
from inferplan.reports.plan import plan_report
from inferplan.reports.plan_figures import launch_of, load_of_users
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.traffic.conversations import ThinkTime
from inferplan.traffic.requests import ClosedLoop, Lengths, SharedPrefix, Slo
from inferplan.work.parallel import Parallelism
from tests.cases import for_each

THINK = SharedPrefix(think=ThinkTime(mean=30.0))
LENGTHS: dict[str, Any] = {"prompt": Lengths(mean=1024), "output": Lengths(kind="lognormal", mean=64, spread=0.8)}
SLO = Slo(ttft=0.5, tpot=0.05, percentile=95.0)


def asked(demand: Demand) -> Question:
    """One GPU, one format, one token budget."""
    space = Space(
        base=Request(model="llama-3.1-8b", gpu=""),
        gpus=("l40s",),
        quants=("fp8",),
        most=1,
        budgets=(2048,),
        disaggregate=False,
    )
    return Question(space=space, demand=demand, slo=SLO, sizing=Sizing(), prices=price_book(stated=["l40s=1"]))


@pytest.fixture(scope="module")
def people() -> Plan:
    return plan(asked(Demand(users=400, prefix=THINK, **LENGTHS)))


def test_a_replica_carries_those_who_wait_and_those_who_think() -> None:
    """N = X (R + Z): a point of the grid with X requests/s and C in the system carries C + 30 X users, so that it takes
    ceil(400 / (0.8 (C + 30 X))) replicas; as many as the rate 400/(C/X + 30) takes."""
    question = asked(Demand(users=400, prefix=THINK, **LENGTHS))
    found = search(question.space, Stream(question.demand, SLO, question.sizing), question.prices)
    priced = found.grids[0]
    rate, held = priced.grid.rate, priced.grid.concurrency
    expected = np.maximum(np.ceil(400 / (0.8 * (held + 30 * rate)) - 1e-9), 1)
    np.testing.assert_array_equal(bill(question.demand, question.sizing, priced).replicas, expected)
    at = np.unravel_index(int(np.argmax(rate)), rate.shape)
    open_rate = 400 / (held[at] / rate[at] + 30)
    same = bill(Demand(rate=float(open_rate), **LENGTHS), question.sizing, priced, at).replicas
    assert float(same) == expected[at]
    at_once = bill(Demand(users=400, **LENGTHS), question.sizing, priced, at).replicas
    assert float(at_once) == max(np.ceil(400 / (0.8 * held[at]) - 1e-9), 1)


def test_the_whole_fleet_under_the_people_does_what_the_plan_says(people: Plan) -> None:
    option = people.option
    served = replace(option.deployment, parallel=Parallelism(replicas=option.replicas))
    flags = Flags(max_num_seqs=people.best.slots, max_num_batched_tokens=option.budget)
    loop = ClosedLoop(concurrency=400, burst=False, ramp=None)
    load = replace(people.question.demand.traffic(400, 4000, seed=5), arrivals=loop)
    run = simulate(served, load, flags, Options(trim=True))
    assert people.rate == pytest.approx(400 / (float(run.e2el.mean()) + 30), rel=0.05)
    assert people.rate == pytest.approx(run.request_rate, rel=0.05)
    assert people.waiting == pytest.approx(400 - 30 * people.rate, abs=0.05 * 400)
    for name in ("ttft", "tpot"):
        assert people.best.achieved[name] == pytest.approx(float(np.percentile(getattr(run, name), 95)), rel=0.1), name


def test_what_a_user_is_stands_in_the_first_lines(people: Plan) -> None:
    known = {"capacity": Capacity(factor=1.3, broken="ttft"), "holds_at_the_slow_end": True, "sensitivity": []}
    vars(people).update(known | {"cheaper": None, "cheaper_verified": None})  # what takes simulations of its own
    report = plan_report(people)
    first = report.tables[0]
    assert "400 users who think 30 s between an answer and the next request" in first.title
    name, load = next(iter(first.rows))
    assert name == "load"
    assert f"{people.rate:.4g} requests/s, {people.waiting:.0f} users waiting" in load
    assert report.headline is not None and "400 users who think 30 s" in report.headline
    record = report.record
    assert (record["question"]["users"], record["question"]["think_time_s"]) == (400, 30.0)
    assert record["plan"]["requests_per_s"] == people.rate
    assert record["plan"]["users_waiting"] == people.waiting
    alone = replace(people, question=replace(people.question, demand=replace(people.question.demand, users=1)))
    assert 0.0 < (alone.waiting or 0.0) < 0.1
    assert "fewer than 1 user waiting for an answer at a time" in load_of_users(alone)
    demand = Demand(users=400, **LENGTHS)
    assert demand.loaded() == "400 requests in flight at every moment"
    assert demand.waiting_share(5.0) == 1.0
    spread = replace(demand, prefix=SharedPrefix(think=ThinkTime(kind="exponential", mean=30.0)))
    assert spread.loaded() == "400 users who think 30 s on average between an answer and the next request"


def test_the_load_of_users_keeps_the_response_time_law_whatever_a_run_draws() -> None:
    """N = X (R + Z) with the mean Z that is asked for. The run draws think times of a shorter mean from such a
    tail and serves more than N/Z = 3.33 requests/s, the most that there can be.
    """
    spread = SharedPrefix(think=ThinkTime(kind="lognormal", mean=30.0, spread=3.0))
    found = plan(asked(Demand(users=100, prefix=spread, **LENGTHS)))
    response = found.best.response or 0.0
    assert found.rate * (response + 30.0) == pytest.approx(100, rel=1e-12)
    assert found.waiting == pytest.approx(found.rate * response, rel=1e-12)
    assert found.best.result is not None
    assert found.rate < 100 / 30.0 < found.best.result.request_rate


def test_users_who_think_are_served_by_a_checkpoint_tuned_on_instructions(people: Plan) -> None:
    """They read and write messages; users who do not think are a load test. The repositories are the hub's."""
    started = launch_of(people)
    assert repository("llama-3.1-8b", people.deployment.model, started.chat) == "meta-llama/Llama-3.1-8B-Instruct"
    assert plan_report(people).record["plan"]["deployment"]["chat"] is True
    assert not Demand(users=400, **LENGTHS).of_messages


def test_slots_are_for_those_who_wait(people: Plan) -> None:
    """400 people, of whom a twentieth wait at a time, do not take 400 slots."""
    assert people.best.slots < 100


@for_each(("answer", "held", "rate"), [(4.0, 125, 31.25), (None, 2000, None), (2.0, 65, 32.258)])
def test_fit_holds_those_who_wait(answer: float | None, held: int, rate: float | None) -> None:
    """2000 * 4/(4 + 60) = 125 at 2000/64 requests/s; 2000 * 2/62 = 64.5."""
    asked = FitAsked(users=2000, think_time=60.0 if answer else None, answer_time=answer)
    assert asked.held == held
    assert asked.rate == (None if rate is None else pytest.approx(rate, rel=1e-4))


def test_an_answer_takes_time() -> None:
    """0 s is not the same as nothing said; one user whose answers take 5 s sends 1/5 of a request per second."""
    for think in (None, 60.0):
        with pytest.raises(UsageError, match="--answer-time is more than 0 s, not 0 s"):
            FitAsked(users=20, think_time=think, answer_time=0.0)
    report = memory_report(fit("llama-3.1-8b", "h100-sxm", answer_time="5s"))
    assert report.tables[0].title == "the load"
    assert ["requests/s", "0.2, where an answer takes 5 s"] in report.tables[0].rows


def test_python_takes_think_times() -> None:
    found = fit("llama-3.1-8b", "h100-sxm", users=2000, think_time="1min", answer_time="4s")
    assert found.users == 125
    with pytest.raises(UsageError, match="depends on how long an answer takes"):
        fit("llama-3.1-8b", "h100-sxm", users=2000, think_time=60)
    with pytest.raises(UsageError, match="at most 30 days"):
        fit("llama-3.1-8b", "h100-sxm", users=2000, think_time=1e300, answer_time="4s")
    with pytest.raises(UsageError, match="a think time needs users"):
        make_plan("llama-3.1-8b", 1024, 64, gpus="l40s", rate=1, think_time="60s", ttft=1, progress=False)
    with pytest.raises(UsageError, match="a think time needs users"):
        Demand(prompt=Lengths(mean=1024), output=Lengths(mean=64), rate=1.0, prefix=THINK)
