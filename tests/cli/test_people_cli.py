"""What commands make of ``--people``."""

from __future__ import annotations

import pytest

from inferplan.errors import InfeasibleError
from inferplan.planning.question import Question
from tests.cases import for_each
from tests.cli.conftest import Run

PLAN = "plan llama-3.1-8b --gpu l40s --quant fp8 --most 1 --aggregated"


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """What plans are asked; none is made."""
    asked: list[Question] = []

    def search(question: Question, _: object) -> None:
        asked.append(question)
        raise InfeasibleError("as far as a search")

    monkeypatch.setattr("inferplan.cli.plan.plan", search)
    return asked


def test_a_plan_is_asked_for_a_closed_loop_a_rate_or_sessions(run: Run, questions: list[Question]) -> None:
    """chat: 60 s and 2.54 requests a conversation; 2000 x 3 x 0.15/3600 x 2.54 = 0.635 requests/s. Agents:
    200 x 12 x 0.15/3600 = 0.1 sessions/s."""
    assert run(*PLAN.split(), "--workload", "chat", "--people", "2000").code == 3
    demand = questions[-1].demand
    assert (demand.users, demand.think, demand.prefix.think.kind) == (2000, 60.0, "exponential")
    assert run(*f"{PLAN} --workload chat --people 2000 --think-time 30s".split()).code == 3
    assert questions[-1].demand.think == 30.0
    assert run(*f"{PLAN} --workload chat --people 2000 --sessions-a-day 3".split()).code == 3
    demand = questions[-1].demand
    assert demand.users is None and demand.rate == pytest.approx(0.635)
    assert run(*f"{PLAN} --workload chat --people 2000 --turns 3".split()).code == 3
    demand = questions[-1].demand
    assert (demand.users, demand.prefix.turns) == (2000, 3)
    words = "--sessions coding-agent --people 200 --sessions-a-day 12 --ttft 1s"
    assert run(*PLAN.split(), *words.split()).code == 3
    sessions = questions[-1].demand.sessions
    assert sessions is not None and getattr(sessions.arrivals, "rate", 0.0) == pytest.approx(0.1)


@for_each(
    ("words", "meant"),
    [
        ("plan llama-3.1-8b --people 9 --prompt 64 --output 4 --ttft 1s", "no --workload says it"),
        ("plan llama-3.1-8b --people 9 --workload evaluation --ttft 1s", "workload evaluation does not say it"),
        ("plan llama-3.1-8b --people 9 --rate 1 --workload chat", "--people and --rate both state"),
        ("plan llama-3.1-8b --people 9 --rate 1 --prompt 64 --output 4 --ttft 1s", "--people and --rate both state"),
        ("plan llama-3.1-8b --people 9 --workload chat --arrivals gamma", "--arrivals and --people exclude"),
        ("plan llama-3.1-8b --people 1 --workload chat --sessions-a-day 0.01", "hint: more --people"),
        (f"{PLAN} --people 1000000000 --workload chat", "hint: fewer --people"),
        (
            "day llama-3.1-8b --gpu l4 --profile nope --workload chat --people 9 --peak 2",
            "--people and --peak",
        ),
        ("plan llama-3.1-8b --people 9 --in-flight 1 --workload chat", "--people and --in-flight both state"),
        ("plan llama-3.1-8b --sessions-a-day 3 --rate 1 --workload chat", "the number of people is missing"),
        ("plan llama-3.1-8b --people 9 --workload chat --think-time 0s", "leaves no time for it"),
        (
            "simulate llama-3.1-8b --gpu l40s --people 9 --trace x.csv --workload chat",
            "--people and --trace both state",
        ),
        ("fit llama-3.1-8b --gpu l40s --people 9 --think-time 60s", "--answer-time 5s"),
        ("fit llama-3.1-8b --gpu l40s --people 9 --in-flight 3 --workload chat", "--people and --in-flight both state"),
        ("fit llama-3.1-8b --gpu l40s --sessions coding-agent", "--people 200"),
        ("fleet llama-3.1-8b --own l40s=2 --people 9 --rate 3 --workload chat", "--people and --rate both state"),
        (f"{PLAN} --workload chat --people 9 --sessions-a-day 3 --think-time 9s", "--turns 3 as well"),
        (f"{PLAN} --sessions coding-agent --people 9 --think-time 9s", "--think-time changes nothing"),
        ("fit llama-3.1-8b --people 9 --sessions coding-agent --think-time 9s --answer-time 1s", "changes nothing"),
        ("fit llama-3.1-8b --people 9 --workload chat --sessions-a-day 3 --think-time 9s", "changes nothing"),
    ],
)
def test_what_is_refused(words: str, meant: str, run: Run) -> None:
    refused = run(*words.split())
    assert refused.code == 2 and meant in refused.err


def test_an_overload_of_people_is_of_fewer_people(run: Run) -> None:
    load = "--gpu l4 --workload chat --people 20000 --sessions-a-day 200 --requests 500"
    ran = run("simulate", "llama-3.1-8b", *load.split())
    assert ran.code == 3 and "hint: fewer --people" in ran.err and "--rate" not in ran.err


def test_the_load_is_said_first_and_in_json(run: Run) -> None:
    """40 people with 20 s between: fewer than 2 requests/s, as N/(R + Z) with the R of the run."""
    words = "simulate llama-3.1-8b --gpu l40s --prompt 64 --output 4 --people 40 --think-time 20s --requests 400"
    said = run(*words.split()).out.splitlines()
    assert said[0].startswith("40 people = 2 requests/s = 0.") and said[0].endswith(" in flight at the busy hour")
    assert said[1] == "think time 20s (--think-time)"
    record = run(*words.split(), "--format", "json").json
    people, response = record["people"], record["e2el_s"]["mean"]
    assert people["requests_per_s"] == pytest.approx(40 / (20 + response))
    assert people["answers_in_flight"] == pytest.approx(people["requests_per_s"] * response)
    assert people["figures"] == [
        {"name": "think time", "value": "20s", "of": "--think-time", "source": "", "assumed": False}
    ]
    benchmark = "simulate llama-3.1-8b --gpu l40s --workload chat --users 2 --requests 8"
    flight = run(*benchmark.split()).out
    first = "2 requests in flight at all times; for 2 people who read and type: --people 2"
    assert flight.splitlines()[0] == first


def test_the_load_of_agents_is_expected_and_not_what_a_run_drew(run: Run, questions: list[Question]) -> None:
    """Calls of a session by hand from the file, where the second number of a uniform length is the least of it as a
    share: 10 turns, each but the last with 0.08 x 2 sub-agents of 4 calls, 0.7 of the time; 2 turns else. 200 people
    begin 200 x 25 x 0.15/3600 = 0.208 sessions a second. The mean of 1,000 sessions is known to 5 %."""
    calls = 0.7 * (10 + 9 * 0.08 * 2 * 4) + 0.3 * 2
    load = "--sessions coding-agent --people 200"
    words = f"simulate llama-3.1-8b --gpu h100-sxm {load} --session-count 200 --seed"
    records = [run(*f"{words} {seed} --format json".split()).json for seed in (0, 1)]
    rates = [record["people"]["requests_per_s"] for record in records]
    assert rates[0] == rates[1] == pytest.approx(0.2083 * calls, rel=0.1)
    fitted = run(*f"fit llama-3.1-8b --gpu h100-sxm {load} --answer-time 3s --format json".split()).json
    assert fitted["people"]["requests_per_s"] == rates[0]
    assert run(*PLAN.split(), *load.split(), "--ttft", "1s").code == 3
    assert questions[-1].demand.requests_per_second == rates[0]
    said, drawn = run(*f"{words} 0".split()).out.splitlines(), records[0]["throughput"]["requests_per_s"]
    assert said[0].startswith(f"200 people = {rates[0]:.2g} requests/s")
    own = f"the sessions that this run drew (--seed 0) make {drawn:.2g} requests/s"
    assert own in said and drawn != rates[0]


def test_a_day_has_people_at_its_peak(run: Run) -> None:
    """At most 60/(60 s + R) requests/s: fewer than one, and more than with an R of 30 s."""
    words = (
        "day llama-3.1-8b --gpu l4 --profile azure-2023-code --workload chat --ttft 3s --tpot 150ms --policy static "
        "--people 60 --duration 10min --format json"
    )
    found = run(*words.split()).json
    assert 60 / 90 < found["profile"]["peak_requests_per_s"] < 1.0
    assert found["people"]["requests_per_s"] == found["profile"]["peak_requests_per_s"]
