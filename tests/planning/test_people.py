"""Plans for people who think between an answer and the next request."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferplan.answers.emit.checkpoint import repository
from inferplan.answers.fit import FitAsked
from inferplan.api import deploy, estimate_batch, fit, make_plan
from inferplan.catalog.assemble import Request
from inferplan.catalog.files import names
from inferplan.catalog.people import asked_people
from inferplan.catalog.price_lists import price_book
from inferplan.catalog.workloads import load_workload
from inferplan.errors import UsageError
from inferplan.planning.demand import Demand
from inferplan.planning.fleet import _at_the_rate_of_people
from inferplan.planning.option import Sizing, Stream, bill
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.planning.search import search
from inferplan.planning.sizing import Capacity
from inferplan.planning.space import Space
from inferplan.reports.fit import memory_report
from inferplan.reports.plan import plan_report
from inferplan.reports.plan_figures import launch_of, load_of_users, opening
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.traffic.conversations import ThinkTime, parse_think_time
from inferplan.traffic.people import People
from inferplan.traffic.requests import ClosedLoop, Lengths, SharedPrefix, Slo
from inferplan.work.parallel import Parallelism
from tests.benchmarks.decisions_people import compared
from tests.cases import for_each
from tests.serving.replay_cases import SHARED

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
    known = {"capacity": Capacity(factor=1.3, broken="ttft"), "sensitivity": [], "curve": []}
    known |= dict.fromkeys(("cheaper", "cheaper_verified", "miss", "other", "measured", "unknown", "native"))
    vars(people).update(known)  # what takes simulations of its own
    report = plan_report(people)
    first = report.tables[0]
    assert "400 users who think 30 s between an answer and the next request" in first.title
    load = dict(map(tuple, first.rows))["load"]
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
    assert demand.loaded() == "400 requests in flight at all times"
    assert demand.waiting_share(5.0) == 1.0
    spread = replace(demand, prefix=SharedPrefix(think=ThinkTime(kind="exponential", mean=30.0)))
    assert spread.loaded() == "400 users who think 30 s on average between an answer and the next request"


def test_the_load_of_users_keeps_the_response_time_law_whatever_a_run_draws() -> None:
    """N = X (R + Z) with the mean Z that is asked for, of which a run draws another mean from such a tail: never more
    than N/Z = 3.33 requests/s.
    """
    spread = SharedPrefix(think=ThinkTime(kind="lognormal", mean=30.0, spread=3.0))
    found = plan(asked(Demand(users=100, prefix=spread, **LENGTHS)))
    response = found.best.response or 0.0
    assert found.rate * (response + 30.0) == pytest.approx(100, rel=1e-12)
    assert found.waiting == pytest.approx(found.rate * response, rel=1e-12)
    assert found.best.result is not None
    assert found.rate < 100 / 30.0


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
    with pytest.raises(UsageError, match="depends on the time per answer"):
        fit("llama-3.1-8b", "h100-sxm", users=2000, think_time=60)
    with pytest.raises(UsageError, match="at most 30 days"):
        fit("llama-3.1-8b", "h100-sxm", users=2000, think_time=1e300, answer_time="4s")
    with pytest.raises(UsageError, match="a think time needs users"):
        make_plan("llama-3.1-8b", 1024, 64, gpus="l40s", rate=1, think_time="60s", ttft=1, progress=False)
    with pytest.raises(UsageError, match="a think time needs users"):
        Demand(prompt=Lengths(mean=1024), output=Lengths(mean=64), rate=1.0, prefix=THINK)


def test_people_are_a_closed_loop_or_begin_sessions() -> None:
    """2000/(60 + 4) = 31.25 requests/s, of which 4 s each are 125 in flight; 200 x 12 x 0.15/3600 = 0.1 sessions/s."""
    people = People(count=2000, think=ThinkTime(mean=60.0))
    assert people.rate(4.0) == 31.25
    assert people.lines(31.25, 125.0)[0] == "2,000 people = 31 requests/s = 125 answers in flight at the busy hour"
    assert people.lines(31.25, 125.0, most=True)[0].startswith("2,000 people = at most 31 requests/s")
    agents = People(count=200, turns=10.0, sessions_a_day=12.0, busy_hour=0.15)
    assert agents.session_rate == pytest.approx(0.1)
    assert agents.rate(4.0) == pytest.approx(1.0)
    said = agents.lines(1.0, 4.0, session=90.0)[-1]
    assert "0.1 sessions begin per second" in said and "so 9 are in progress at a time (0.045 per person)" in said
    with pytest.raises(UsageError, match="a think time of 0 s leaves no time"):
        People(count=3, think=ThinkTime())


def test_a_person_is_in_one_conversation_at_a_time() -> None:
    """3 requests with 60 s between take 120 s and their answers: 3600/120 = 30 an hour, which are 0.15 of 200 a day;
    with answers of 10 s each 3600/150 = 24 an hour, 160 a day. Agents work in several sessions."""
    chat: dict[str, Any] = {"turns": 3.0, "busy_hour": 0.15, "think": ThinkTime(mean=60.0)}
    People(count=10, sessions_a_day=160.0, **chat).require_one_each(10.0)
    for daily, answer, most in ((201.0, 0.0, "200"), (161.0, 10.0, "160")):
        with pytest.raises(UsageError) as told:
            People(count=10, sessions_a_day=daily, **chat).require_one_each(answer)
        assert f"--sessions-a-day {most}," in told.value.hint
    People(count=10, turns=3.0, sessions_a_day=1e4, busy_hour=0.15).require_one_each(10.0)


def test_a_plan_in_python_is_refused_to_people_in_several_conversations_at_a_time() -> None:
    """2.54 requests of chat with 60 s between: 0.15 of 259 a day leave 3600/38.85 = 92.66 s for each, of which 92.4 are
    thought: its answers take longer."""
    chat: dict[str, Any] = {"people": 2, "sessions_a_day": 259.0, "workload": "chat", "ttft": 1}
    with pytest.raises(UsageError, match="one person cannot have 259 conversations per day, one after another") as told:
        make_plan("llama-3.1-8b", 1024, 64, gpus="l40s", quants=["fp8"], progress=False, **chat)
    assert "without its answers" not in str(told.value)


def test_the_think_time_of_a_head_count_says_how_long_a_conversation_takes() -> None:
    """1.54 times 60 s between 2.54 requests of chat: nothing of the load, which does not rest on it."""
    chat = load_workload("chat").people
    found = asked_people({"people": 500, "sessions_a_day": 3.0}, chat, "workload chat")
    assert found is not None and [one.name for one in found.figures] == ["turns", "sessions a day", "busy-hour share"]
    assert "each takes 92.4 s with think time exponential:60s (assumed" in found.lines(1.0, 0.0)[-1]
    turned = asked_people({"people": 500, "sessions_a_day": 3.0, "turns": 2, "think_time": "9s"}, chat, "chat")
    assert turned is not None and turned.figures[0].said() == "think time 9s (--think-time)"
    single = asked_people({"people": 5, "sessions_a_day": 3.0, "turns": 1}, None, "")
    assert single is not None and single.rate(0.0) == pytest.approx(5 * 3 * 0.15 / 3600)


@for_each("name", [name for name in names("workloads") if load_workload(name).people])
def test_figures_about_people_have_sources_and_assumptions_are_said(name: str) -> None:
    spec = load_workload(name).people
    assert spec is not None
    found = asked_people({"people": 10, "sessions_a_day": None}, spec, f"workload {name}")
    assert found is not None and found.think is not None and found.usual is not None
    assert found.think.mean > 0 and found.turns >= 1 and found.usual > 0
    for one in (spec.think_time, spec.turns, spec.sessions_a_day):
        assert one is not None and one.source
    assumed = spec.think_time is not None and spec.think_time.assumed
    assert ("(assumed; " in found.lines(1.0, 1.0)[1]) == assumed
    assert any("think time" in line for line in found.notes())


def test_eight_workloads_say_what_people_do() -> None:
    wanted = {"chat", "long-chat", "code", "rag", "agent", "support", "reasoning", "summarise"}
    assert {name for name in names("workloads") if load_workload(name).people} == wanted


def test_the_pace_of_long_chat_is_that_of_its_trace() -> None:
    """A prompt whose first blocks are all those of an earlier, shorter prompt goes on from it."""
    path = SHARED / "traces" / "mooncake_conversation.jsonl"
    if not path.is_file():
        pytest.skip("the trace is not here")
    known: dict[tuple[int, ...], tuple[int, int]] = {}
    gaps, begun = [], 0
    for line in path.read_text().splitlines():
        row = json.loads(line)
        at, tokens = row["timestamp"], row["input_length"]
        full = row["hash_ids"][: tokens // 512]
        heads = (known.get(tuple(full[:length])) for length in range(len(full), 1, -1))
        before = next((one for one in heads if one is not None and one[0] < at), None)
        if before is not None and before[1] < tokens:
            gaps.append((at - before[0]) / 1000)
        else:
            begun += 1
        if len(full) > 1:
            known[tuple(full)] = at, tokens
    spec = load_workload("long-chat").people
    assert spec is not None and spec.think_time is not None and spec.turns is not None
    think = parse_think_time(str(spec.think_time.value))
    assert think.mean == pytest.approx(np.mean(gaps) - 1.0 - 342 * 0.04, rel=0.02)
    assert think.spread == pytest.approx(np.std(gaps) / np.mean(gaps), rel=0.01)
    assert spec.turns.value == pytest.approx((len(gaps) + begun) / begun, rel=0.01)


def test_who_meant_people_is_told_so_first(people: Plan) -> None:
    flight = Demand(users=400, chat=True, **LENGTHS)
    meant = replace(people, question=replace(people.question, demand=flight))
    said = "400 requests in flight at all times; for 400 people who read and type: --people 400"
    assert opening(meant) == [said]
    assert opening(people) == []  # a think time was given


def test_a_plan_for_people_agrees_with_a_simulation_and_a_replay() -> None:
    """All at 95 %: the plan against ``simulate --people`` with another seed, and a replica's share of the people in a
    replay of vLLM's scheduler against a simulation of the same without the front end, which the replay has not."""
    found = compared("code", people=300, fewest=2000)
    assert found.off["simulate"] == pytest.approx((0.0, 0.0, 0.0), abs=0.05)
    assert found.off["replay"] == pytest.approx((0.0, 0.0, 0.0), abs=0.01)
    assert found.plan[0] < 300 / 20.0  # no more than those who only think would send
    assert found.plan[0] == pytest.approx(found.replayed[0], rel=0.05)


def test_python_plans_and_fits_for_people() -> None:
    """At its limits a chat takes 0.3 + 210 x 0.03 = 6.6 s: 2000/66.6 = 30.03 requests/s, of which 198.2 are held."""
    found = fit("llama-3.1-8b", "h100-sxm", people=2000, workload="chat")
    assert (found.users, found.context) == (199, 1155 + 211)
    assert found.asked is not None and found.asked.rate == pytest.approx(2000 / 66.6)
    assert "199 x 1,366 tokens" in str(fit("llama-3.1-8b", have="1x-h100", people=2000, workload="chat"))
    users = fit("llama-3.1-8b", "h100-sxm", users=200, think_time="60s", workload="chat")  # 200 x 6.6/66.6 = 19.8
    assert users.users == 20 and "(workload chat at its limits)" in str(memory_report(users).tables[0].rows)
    agents = fit("llama-3.1-8b", "h100-sxm", people=200, sessions="coding-agent", answer_time="2s", sessions_a_day=12)
    assert agents.asked is not None and agents.asked.people is not None
    assert agents.asked.people.session_rate == pytest.approx(0.1)
    options: dict[str, Any] = {"gpus": "l40s", "ttft": 1, "progress": False}
    for more, match in (
        ({"people": 3}, "the think time between"),
        ({"people": 3, "rate": 1.0, "think_time": "3s"}, "both state the load"),
        ({"workload": "chat", "rate": 1.0}, "workload says what people do"),
        ({"sessions_a_day": 3.0, "rate": 1.0}, "--sessions-a-day belongs to people"),
    ):
        with pytest.raises(UsageError, match=match):
            make_plan("llama-3.1-8b", 64, 4, **options, **more)


def test_a_fleet_is_asked_for_the_most_that_people_send() -> None:
    """An answer takes no shorter than alone: here a prefill and 63 steps of the mean context, of one sequence."""
    demand = Demand(rate=1.0, people=People(count=400, think=ThinkTime(mean=30.0)), **LENGTHS)
    deployment = deploy("llama-3.1-8b", "l40s", quant="fp8")
    design: Any = SimpleNamespace(deployment=deployment)
    alone = estimate_batch(deployment, batch=1, prompt=1024, output=64)
    rate = _at_the_rate_of_people(asked(demand), [design]).demand.rate
    assert rate == pytest.approx(400 / (30.0 + float(alone.ttft) + 63 * float(alone.tpot)))


def test_one_of_several_replicas_gets_conversations_in_turn() -> None:
    """Sums of four exponential gaps have a coefficient of variation of 1/2: a replica of four that are fed in turn gets
    every fourth conversation, and at a quarter of the rate."""
    demand = Demand(
        prompt=Lengths(mean=400), output=Lengths(mean=50), own=Lengths(mean=100), rate=8.0, prefix=SharedPrefix(turns=4)
    )
    traffic = demand.one_of(4).traffic(2.0, 40_000)
    starts = np.unique(traffic.requests(16).arrival)
    gaps = np.diff(starts[~np.isnan(starts)])
    assert float(gaps.mean()) == pytest.approx(4 / 2.0, rel=0.03)
    assert float(gaps.std() / gaps.mean()) == pytest.approx(0.5, rel=0.05)
