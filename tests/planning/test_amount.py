"""How much load, in the unit that it was asked in: units, options and numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inferplan.planning.amount import (
    amount_of,
    asks_for,
    carried_in_closed_form,
    in_words,
    is_whole,
    lengths_in_words,
    most_replicas,
    option_of,
    rounded_down,
    unit_of,
    with_amount,
)
from inferplan.planning.demand import Demand
from inferplan.planning.largest import _carried
from inferplan.planning.option import OwnedGpus, Sizing
from inferplan.planning.question import Question
from inferplan.traffic.conversations import ThinkTime
from inferplan.traffic.people import People
from inferplan.traffic.requests import ClosedLoop, Lengths, OpenLoop, SharedPrefix
from inferplan.traffic.sessions import SessionTraffic
from tests.cases import for_each
from tests.planning.test_sizing import asked, option

LENGTHS: dict[str, Any] = {"prompt": Lengths(mean=1000), "output": Lengths(mean=101)}
THINKING = SharedPrefix(think=ThinkTime(mean=30.0))
OFFICE = People(count=40, think=ThinkTime(mean=30.0), sessions_a_day=2.0, busy_hour=0.25)


def sessions(rate: float) -> SessionTraffic:
    return SessionTraffic(kinds=(object(),), arrivals=OpenLoop(rate=rate), name="agents")  # type: ignore[arg-type]


DEMANDS = {
    "rate": Demand(**LENGTHS, rate=8.0),
    "prompts": Demand(**LENGTHS, rate=8.0, samples=4),
    "in flight": Demand(**LENGTHS, users=40),
    "users": Demand(**LENGTHS, users=40, prefix=THINKING),
    "people": Demand(**LENGTHS, users=30, prefix=THINKING, people=replace(OFFICE, sessions_a_day=None)),
    "people by rate": Demand(**LENGTHS, rate=2.0, people=OFFICE),
    "sessions": Demand(**LENGTHS, rate=6.0, sessions=sessions(0.5)),
}
SAID = {
    "rate": (8.0, "requests/s", "--rate", "8 requests/s", "--rate 8"),
    "prompts": (2.0, "prompts/s", "--rate", "2 prompts/s", "--rate 2"),
    "in flight": (40.0, "requests in flight", "--in-flight", "40 requests in flight", "--in-flight 40"),
    "users": (40.0, "users", "--in-flight", "40 users", "--in-flight 40"),
    "people": (40.0, "people", "--people", "40 people", "--people 40"),
    "people by rate": (40.0, "people", "--people", "40 people", "--people 40"),
    "sessions": (0.5, "sessions/s", "--session-rate", "0.5 sessions/s", "--session-rate 0.5"),
}
WHOLE = ("in flight", "users", "people", "people by rate")


@for_each("name", SAID)
def test_an_amount_in_its_unit(name: str) -> None:
    demand, (amount, unit, words, said, option_and_amount) = DEMANDS[name], SAID[name]
    assert (amount_of(demand), unit_of(demand), option_of(demand)) == (amount, unit, words)
    assert (in_words(demand, amount), asks_for(demand, amount)) == (said, option_and_amount)
    assert is_whole(demand) == (name in WHOLE)


def test_one_is_said_as_one() -> None:
    assert in_words(DEMANDS["people"], 1.0) == "1 person"
    assert in_words(DEMANDS["people"], 12345.0) == "12,345 people"
    assert in_words(DEMANDS["users"], 1.0) == "1 users"
    assert in_words(DEMANDS["rate"], 4.2512) == "4.25 requests/s"
    assert (asks_for(DEMANDS["rate"], 4.2512), asks_for(DEMANDS["people"], 330.0)) == ("--rate 4.25", "--people 330")


def test_a_load_of_any_size_in_words() -> None:
    assert lengths_in_words(DEMANDS["rate"]) == "any number of requests/s, 1,000 tokens in, 101 out"
    assert lengths_in_words(DEMANDS["people"]) == "any number of people, 1,000 tokens in, 101 out"
    assert lengths_in_words(DEMANDS["sessions"]) == "any number of sessions/s, 1,000 tokens in, 101 out"


ROUNDED = {4.2567: 4.25, 0.0123456: 0.0123, 98765.0: 98700.0, 10.0: 10.0, 1000.0: 1000.0, 0.3: 0.3, 1.019999: 1.01}


@for_each("amount, rounded", ROUNDED.items())
def test_a_rate_is_rounded_down_to_three_digits(amount: float, rounded: float) -> None:
    assert rounded_down(DEMANDS["rate"], amount) == pytest.approx(rounded, rel=1e-12)


def test_people_are_rounded_down_to_whole_ones() -> None:
    assert [rounded_down(DEMANDS["people"], amount) for amount in (1234.9, 7.0)] == [1234.0, 7.0]
    assert rounded_down(DEMANDS["in flight"], 99.99) == 99.0


def to(name: str, amount: float) -> Demand:
    return with_amount(asked(demand=DEMANDS[name], sizing=Sizing(utilisation=0.5)), amount).demand


def test_the_same_question_about_another_amount() -> None:
    """40 people are 30 requests in flight, or 2 requests/s; 0.5 sessions/s are 6 calls/s; a prompt has four answers."""
    assert (to("rate", 3.0).rate, to("prompts", 3.0).rate) == (3.0, 12.0)
    assert (to("in flight", 10.9).users, to("users", 100.0).users) == (10, 100)
    office = to("people", 80.7)
    assert office.people is not None and (office.people.count, office.users) == (80, 60)
    office = to("people by rate", 10.0)
    assert office.people is not None and (office.people.count, office.rate, office.users) == (10, 0.5, None)
    agents = to("sessions", 2.0)
    assert agents.sessions is not None and agents.sessions.arrivals == OpenLoop(rate=2.0) and agents.rate == 24.0


def test_one_is_the_least_of_what_is_counted() -> None:
    assert (to("in flight", 0.4).users, to("users", 0.0).users) == (1, 1)
    office = to("people", 0.2)
    assert office.people is not None and office.people.count == 1


def test_what_replicas_carry_in_closed_form() -> None:
    """10 requests/s and 100 in flight of each of three replicas, half of it given: 15 requests/s, 3.75 prompts/s of
    four answers, 150 in flight; who thinks 30 s is away while 300 others are served, which makes 400 and 600. The
    people are 4 for 3 users, or 20 for a request/s; a session has 12 calls."""
    carried = {
        "rate": 15.0, "prompts": 3.75, "in flight": 150.0, "users": 600.0, "people": 800.0, "people by rate": 300.0,
        "sessions": 1.25,
    }  # fmt: skip
    for name, amount in carried.items():
        question = asked(demand=DEMANDS[name], sizing=Sizing(utilisation=0.5))
        assert carried_in_closed_form(option(), 3, question) == pytest.approx(amount), name


def most(**sizing: Any) -> int:
    return most_replicas(option(**sizing.pop("option", {})), asked(sizing=Sizing(**sizing)))


def test_the_most_replicas_for_a_bill() -> None:
    """A replica is a GPU at 2 USD an hour, a spare one too; the bill may be spent to the cent."""
    assert [most(max_cost=cost) for cost in (1.99, 2.0, 3.99, 4.0, 14.0, 15.9, 16.0, 17.0)] == [0, 1, 1, 2, 7, 7, 8, 8]
    assert most(max_cost=10.0, option={"spare": 2}) == 3
    assert most(max_cost=10.0, option={"hours": 2.0}) == 2


def test_the_most_replicas_of_the_gpus_that_there_are() -> None:
    for owned in (1, 2, 3, 8, 13):
        assert most(option={"limits": (OwnedGpus({"h100-sxm": owned}),)}) == owned
    assert most(option={"limits": (OwnedGpus({"h100-sxm": 0}),)}) == 0
    assert most(max_cost=9.0, option={"limits": (OwnedGpus({"h100-sxm": 13}),)}) == 4


def test_what_nobody_sells_has_no_replicas() -> None:
    assert most(max_cost=10.0, option={"tariff": None, "cost": None}) == 0
    assert most() == (1 << 20) - 1  # nothing bounds it


CAPACITIES = {10.0: 16.0, 9.0: 11.0, 8.0: 19.0, 4.0: 7.9, 3.0: 100.0}
"""Of the requests/s of one replica in closed form: what two of them carry by simulation."""


def tried(monkeypatch: pytest.MonkeyPatch, rates: list[float], **found: float) -> tuple[list[float], Any]:
    """The rates whose structures are simulated, in order, and what is the best of it."""
    seen: list[float] = []

    def simulated(one: Any, question: Question) -> float:
        seen.append(one.rate)
        assert one.replicas == 2 and question.demand.rate == 2 * one.rate  # each at all of its capacity
        return found.get(f"of_{one.rate:g}", CAPACITIES.get(one.rate, 0.0))

    monkeypatch.setattr("inferplan.planning.largest._simulated", simulated)
    monkeypatch.setattr("inferplan.planning.largest.too_long_alone", lambda one, question: one.rate == 77.0)
    bounded = (OwnedGpus({"h100-sxm": 2}),)
    options = [option(rate=rate, limits=bounded) for rate in rates]
    options += [
        option(rate=99.0, limits=bounded, pools=(1, 1)),
        option(rate=88.0, limits=(OwnedGpus({"h100-sxm": 0}),)),
    ]
    question = asked(sizing=Sizing(utilisation=1.0))
    return seen, _carried(options, question)


def test_structures_that_may_carry_more_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The closed form of two replicas says 20, 18, 16, 8 and 6. The first carries 16 (0.8 of it), the second 11; the
    third might carry 0.85 x 16, which is less than 16: it is not tried."""
    seen, best = tried(monkeypatch, [8.0, 10.0, 3.0, 9.0, 77.0])
    assert seen == [10.0] and (best.amount, best.confidence) == (16.0, 0.5)


def test_a_share_that_was_found_is_expected_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 in closed form carry 12 alone: 0.85 x 18 is 1.03 times 12 and more, and carries 17, nearly all of it. Then 16
    might carry 15.2, which is less than 17."""
    seen, best = tried(monkeypatch, [8.0, 10.0, 9.0], of_10=12.0, of_9=17.0)
    assert seen == [10.0, 9.0] and best.amount == 17.0
    seen, best = tried(monkeypatch, [8.0, 10.0, 9.0], of_10=12.0, of_9=11.0)
    assert seen == [10.0, 9.0, 8.0] and best.amount == 19.0


def test_no_more_than_four_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {f"of_{rate}": 0.0 for rate in (5, 6, 7, 8, 9)}
    seen, best = tried(monkeypatch, [5.0, 6.0, 7.0, 8.0, 9.0], **nothing)
    assert seen == [9.0, 8.0, 7.0, 6.0] and best is None


def test_a_closed_loop_has_no_rate_of_sessions() -> None:
    closed = replace(sessions(1.0), arrivals=ClosedLoop(concurrency=3))
    with pytest.raises(AssertionError):
        amount_of(Demand(**LENGTHS, rate=6.0, sessions=closed))
