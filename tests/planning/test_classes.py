"""A plan for several kinds of traffic: every one of them keeps its own limits, and nothing smaller does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferplan.catalog.assemble import Request
from inferplan.catalog.classes import load_classes
from inferplan.catalog.price_lists import price_book
from inferplan.errors import InfeasibleError, UsageError
from inferplan.planning.demand import Demand, lengths_of_classes, ruling, screened_by
from inferplan.planning.option import Sizing, Stream
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import Question
from inferplan.planning.search import point, search
from inferplan.planning.space import Space
from inferplan.planning.verify import Kept, Verified, traffic_of
from inferplan.reports.plan import plan_report
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import simulate
from inferplan.serving.waiting import QueueOrder
from inferplan.traffic.requests import Lengths, Slo, Traffic, TrafficClass
from inferplan.work.parallel import Parallelism
from tests.cases import for_each
from tests.cli.conftest import Run, run

__all__ = ["run"]  # a fixture

RATE, UTILISATION = 100.0, 0.8
SHORT = TrafficClass(
    name="short", share=0.85, prompt=Lengths(mean=300), output=Lengths(mean=60), slo=Slo(tpot=0.03, percentile=95)
)
LONG = TrafficClass(
    name="long", share=0.15, prompt=Lengths(mean=6000), output=Lengths(mean=40), slo=Slo(ttft=0.33, percentile=90)
)


def asked(*classes: TrafficClass, queue: QueueOrder = "fcfs", rate: float = RATE) -> Question:
    """One kind of replica, sold singly at 1 USD: the plan is their number."""
    prompt, output = lengths_of_classes(classes)
    space = Space(
        base=Request(model="llama-3.1-8b", gpu=""),
        gpus=("h100-sxm",),
        quants=(None,),
        most=1,
        budgets=(2048,),
        disaggregate=False,
    )
    return Question(
        space=space,
        demand=Demand(prompt=prompt, output=output, rate=rate, classes=classes, queue=queue),
        slo=screened_by(classes),
        sizing=Sizing(utilisation=UTILISATION),
        prices=price_book(stated=["h100-sxm=1"]),
    )


def fleet(found: Plan, replicas: int, load: float, seed: int = 5) -> SimulationResult:
    """So many replicas of a plan, all of them simulated under a multiple of the load."""
    best, demand = found.best, found.question.demand
    deployment = replace(best.option.deployment, parallel=Parallelism(replicas=replicas))
    traffic = demand.traffic(RATE * load, 20_000, seed=seed)
    flags = Flags(max_num_seqs=best.slots, max_num_batched_tokens=best.option.budget, queue=demand.queue)
    return simulate(deployment, traffic, flags, Options(trim=True))


def kept(run: SimulationResult) -> list[float]:
    """The worst latency of each class over its limit, from the times of its requests alone."""
    records = run.records
    of, arrival, first, finish, output = (
        np.asarray(getattr(records, name))[run.counted] for name in ("of", "arrival", "first", "finish", "output")
    )
    found = []
    for place, one in enumerate(records.classes):
        mine = of == place
        times = {
            "ttft": (first - arrival)[mine],
            "tpot": ((finish - first) / (output - 1))[mine],
            "e2el": (finish - arrival)[mine],
        }
        shares = [np.percentile(times[name], one.slo.percentile) / limit for name, limit in one.slo.limits.items()]
        found.append(float(max(shares)))
    return found


@pytest.fixture(scope="module")
def found() -> Plan:
    return plan(asked(SHORT, LONG))


def test_every_class_keeps_its_limits_and_one_replica_less_does_not(found: Plan) -> None:
    """Brute force: the whole fleet at the load that it is sized for, one replica fewer, and as it is bought."""
    replicas = found.option.replicas
    assert max(kept(fleet(found, replicas, 1 / UTILISATION))) < 1.03
    assert max(kept(fleet(found, replicas - 1, 1 / UTILISATION))) > 0.97
    assert max(kept(fleet(found, replicas, 1.0))) < 1.0


def test_the_mix_alone_would_be_content_with_less(found: Plan) -> None:
    """Long prompts are 15 of 100 requests: the 95th percentile of all is theirs, the 80th is not."""
    one = replace(found.question, demand=replace(found.question.demand, classes=(), queue="fcfs"))
    careless = plan(replace(one, slo=Slo(ttft=0.33, tpot=0.03, percentile=80)))
    assert careless.option.replicas < found.option.replicas
    assert max(kept(fleet(found, careless.option.replicas, 1 / UTILISATION))) > 1.0


def test_what_the_plan_says_of_a_class_is_what_the_fleet_does(found: Plan) -> None:
    long = {one.name: one.achieved for one in found.best.classes}
    run = fleet(found, found.option.replicas, 1.0)
    of = np.asarray(run.records.of)[run.counted]
    ttft = (np.asarray(run.records.first) - np.asarray(run.records.arrival))[run.counted][of == 1]
    assert long["long"]["ttft"] == pytest.approx(float(np.percentile(ttft, 90)), rel=0.05)
    report = plan_report(found)
    assert [one["name"] for one in report.record["plan"]["classes"]] == ["short", "long"]
    assert report.record["question"]["queue"] == "fcfs"
    text = "\n".join(" ".join(cell for cell in row) for table in report.tables for row in table.rows)
    assert "short: TPOT p95 (simulated)" in text and "long: TTFT p90 (simulated)" in text


def test_short_prompts_that_must_not_wait_for_long_ones_take_many_replicas() -> None:
    """In closed form, which sees the mix under the loosest limit, a few replicas do; ten times as many are needed, for
    95 of 100 short prompts have to come where no long one is on the way."""
    quick = replace(SHORT, share=0.9, prompt=Lengths(mean=200), slo=Slo(ttft=0.15, percentile=95))
    huge = replace(LONG, share=0.1, prompt=Lengths(mean=12_000), slo=Slo(ttft=6.0, percentile=95))
    many = plan(asked(quick, huge))
    screened = asked(quick, huge)
    (priced, *_) = search(screened.space, screened.stream, screened.prices).options
    assert many.option.replicas > 4 * priced.replicas + 2
    assert max(kept(fleet(many, many.option.replicas, 1 / UTILISATION))) < 1.03
    assert max(kept(fleet(many, round(0.9 * many.option.replicas), 1 / UTILISATION))) > 1.0


def test_two_equal_classes_are_one() -> None:
    kinds = [replace(SHORT, name=name, share=share) for name, share in (("a", 0.5), ("b", 0.5))]
    two, one = plan(asked(*kinds, rate=100.0)), plan(asked(replace(SHORT, share=1.0), rate=100.0))
    none = asked(replace(SHORT, share=1.0), rate=100.0)
    none = replace(none, demand=replace(none.demand, classes=(), prompt=SHORT.prompt, output=SHORT.output))
    assert two.option.replicas == one.option.replicas == plan(none).option.replicas


def test_traffic_of_a_demand_has_its_classes(found: Plan) -> None:
    traffic = traffic_of(found.question.demand, found.option)
    assert isinstance(traffic, Traffic) and traffic.classes == (SHORT, LONG)
    prompt, output = lengths_of_classes((SHORT, LONG))
    assert prompt.average == pytest.approx(0.85 * 300 + 0.15 * 6000, rel=1e-3)
    assert output.average == pytest.approx(0.85 * 60 + 0.15 * 40, rel=1e-3)


def test_the_closed_form_is_held_to_what_the_mix_can_keep() -> None:
    a, b = replace(SHORT, slo=Slo(ttft=1, tpot=0.03, percentile=90)), replace(LONG, slo=Slo(ttft=3, tpot=0.05))
    assert screened_by((a, b)) == Slo(ttft=3, tpot=0.03, percentile=90)
    assert screened_by((a, replace(b, slo=Slo()))) == Slo(ttft=1, tpot=0.03, percentile=90)


def test_the_closed_form_does_not_rule_out_what_every_class_can_keep() -> None:
    """Half of ``a`` may be late at all: its 10 s are no limit on the 99th percentile of a mix of which it is most."""
    a = replace(SHORT, share=0.9, slo=Slo(ttft=10, percentile=50))
    b = replace(LONG, share=0.1, slo=Slo(ttft=0.5, percentile=99))
    ttft = {"a": np.linspace(0.1, 19.0, 9000), "b": np.full(1000, 0.3)}  # both keep theirs
    assert np.percentile(ttft["a"], 50) < 10 and np.percentile(ttft["b"], 99) < 0.5
    screen = screened_by((a, b))
    assert np.percentile(np.concatenate(list(ttft.values())), screen.percentile) <= (screen.ttft or 0)


def test_no_limit_of_the_mix_where_a_class_has_none() -> None:
    """One class may be as late as it likes: no TTFT of the mix is too late; TPOT at the loosest that all have."""
    a, b = replace(SHORT, slo=Slo(ttft=0.1, tpot=0.03)), replace(LONG, slo=Slo(tpot=0.05, e2el=9.0))
    slo = screened_by((a, b))
    assert slo.limits == {"ttft": 0.1, "tpot": 0.03, "e2el": 9.0}
    assert ruling(slo, (a, b)) == replace(slo, ttft=None, tpot=0.05, e2el=None)
    assert ruling(slo, (a, a)).limits == {"ttft": 0.1, "tpot": 0.03}
    assert ruling(slo, ()) is slo


def test_a_class_without_limits_rules_no_fleet_out() -> None:
    """Prompts of 12,000 tokens take 0.6 s alone and half of all are as long: no mix has a TTFT of 0.1 s. They may be as
    late as they like, and where few are on a replica the short ones keep their 0.1 s.
    """
    batch = replace(LONG, share=0.5, prompt=Lengths(mean=12_000), slo=Slo(), priority=1)
    short = replace(SHORT, share=0.5, slo=Slo(ttft=0.1, percentile=90))
    question = asked(short, batch, queue="priority", rate=1.0)
    slo, demand = question.slo, question.demand
    searched = search(question.space, Stream(demand, slo, question.sizing), question.prices)
    assert [option.screened for option in searched.options] == [False]
    fleets = plan(question)
    grid = point(fleets.option.deployment, demand, slo.percentile, 1, 2048)
    assert float(grid.ttft[0, 0]) > 2.0 * 0.1  # the mix is late even one request at a time
    replicas = fleets.option.replicas
    assert max(kept_at(fleets, replicas, 1.0)) < 1.0
    assert max(kept_at(fleets, replicas, 1 / UTILISATION)) < 1.03
    assert fleets.question.demand.queue == "priority"
    record = plan_report(fleets).record
    assert record["question"]["slo"] == {"short": {"ttft_s": 0.1}, "long": {}}
    assert record["plan"]["deployment"]["queue"] == "priority"
    assert "--scheduling-policy priority" in record["plan"]["launch"]


def kept_at(found: Plan, replicas: int, load: float) -> list[float]:
    """As :func:`kept`, of a plan at its own rate, of the classes with limits."""
    best, demand = found.best, found.question.demand
    deployment = replace(best.option.deployment, parallel=Parallelism(replicas=replicas))
    traffic = demand.traffic((demand.rate or 0.0) * load, 3_000, seed=5)
    flags = Flags(max_num_seqs=best.slots, max_num_batched_tokens=best.option.budget, queue=demand.queue)
    run = simulate(deployment, traffic, flags, Options(trim=True))
    records, of = run.records, np.asarray(run.records.of)[run.counted]
    ttft = (np.asarray(records.first) - np.asarray(records.arrival))[run.counted]
    return [
        float(np.percentile(ttft[of == place], one.slo.percentile)) / one.slo.ttft
        for place, one in enumerate(records.classes)
        if one.slo.ttft is not None
    ]


def test_the_worst_class_decides() -> None:
    classes = (
        Kept("a", Slo(ttft=1.0, tpot=0.1), {"ttft": 0.5, "tpot": 0.09, "e2el": 9.0}),
        Kept("b", Slo(ttft=4.0, e2el=10.0), {"ttft": 5.0, "tpot": 0.5, "e2el": 8.0}),
    )
    checked = Verified(option=None, slots=8, achieved={}, verdict="stable", classes=classes)  # type: ignore[arg-type]
    slo = Slo(ttft=4.0, tpot=0.1, e2el=10.0)
    assert checked.shares(slo) == pytest.approx({"ttft": 1.25, "tpot": 0.9, "e2el": 0.8})
    assert checked.violations(slo) == pytest.approx({"ttft": 1.25})
    assert not checked.meets(slo)


def test_a_class_that_no_fleet_can_serve_says_so() -> None:
    with pytest.raises(InfeasibleError) as raised:
        plan(asked(SHORT, replace(LONG, slo=Slo(ttft=0.05, percentile=90))))
    assert "long TTFT p90 < 50.0 ms" in raised.value.what


def test_a_class_that_is_too_rare_is_refused() -> None:
    """1,000 values for a 95th percentile (docs/serving.md): at 2 of 1,000 requests no run of 200,000 holds as many."""
    with pytest.raises(UsageError, match="too rare for its percentile"):
        asked(replace(SHORT, share=0.998), replace(LONG, share=0.002, slo=Slo(ttft=1.0, percentile=95)))
    asked(replace(SHORT, share=0.998), replace(LONG, share=0.002, slo=Slo()))


PLAN = "plan llama-3.1-8b --gpu h100-sxm --classes chat-and-batch"


@for_each(
    ("more", "said"),
    [
        ("--rate 5 --ttft 1s", "--ttft and --classes exclude each other"),
        ("--rate 5 --percentile 99", "--percentile and --classes exclude each other"),
        ("--rate 5 --cached-prefix 100", "--cached-prefix and --classes exclude each other"),
        ("--requests 1000 --deadline 1h", "--deadline and --classes exclude each other"),
        ("--rate 5 --report plan.html", "such a page is not drawn yet"),
        ("", "a plan needs one kind of demand"),
    ],
)
def test_what_a_plan_of_classes_refuses(more: str, said: str, run: Run) -> None:
    answer = run(*f"{PLAN} {more}".split())
    assert answer.code == 2 and said in answer.err


def test_requests_of_classes_share_text_and_think(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """320 tokens before every prompt, of which all but the first request find all; 200 tokens of thought and its end
    before every answer; two answers of a prompt are two requests, the second of which finds the prompt."""
    asked_for: list[Demand] = []

    def caught(question: Question, progress: object = None) -> None:
        asked_for.append(question.demand)
        raise InfeasibleError("seen")

    monkeypatch.setattr("inferplan.cli.plan.plan", caught)
    for more in ("--shared-prefix 320 --thinking-tokens 200", "--samples 2"):
        assert run(*f"{PLAN} --rate 4 {more}".split()).code == 3
    shared, twice = asked_for
    prompt, output = lengths_of_classes(shared.classes)
    assert shared.prompt.average == pytest.approx(prompt.average + 320, rel=0.05)
    assert shared.cached in (319, 320) and shared.output.average == pytest.approx(output.average + 201)
    assert (twice.rate, twice.samples) == (8.0, 2)
    assert twice.cached == pytest.approx(prompt.average / 2, rel=0.05)


def test_a_class_of_messages_makes_the_load_chat() -> None:
    """The file says it of its class chat, and of no other."""
    classes = load_classes("chat-and-batch").classes
    assert {one.name: one.chat for one in classes} == {"chat": True, "batch": False}
    prompt, output = lengths_of_classes(classes)
    assert Demand(prompt=prompt, output=output, rate=5.0, classes=classes).of_messages
    quiet = tuple(replace(one, chat=False) for one in classes)
    assert not Demand(prompt=prompt, output=output, rate=5.0, classes=quiet).of_messages


def test_a_queue_without_classes_is_refused(run: Run, tmp_path: Path) -> None:
    answer = run(*["plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--workload", "chat", "--rate", "5", "--queue", "fair"])
    assert answer.code == 2 and "--queue fair needs several classes of traffic" in answer.err
