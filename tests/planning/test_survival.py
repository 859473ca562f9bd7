"""Plans that keep their limits while replicas are lost: a linear search by hand, and what to expect in years."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest

import inferplan
from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.price_lists import price_book
from inferplan.errors import UsageError
from inferplan.planning.confidence import Slowness
from inferplan.planning.demand import Demand
from inferplan.planning.option import PlanOption, Sizing
from inferplan.planning.plan import plan
from inferplan.planning.question import Question
from inferplan.planning.redundancy import YEAR, Survive
from inferplan.planning.space import Space
from inferplan.planning.survival import smallest_survivor, survival
from inferplan.planning.verify import slots_for, slots_of
from inferplan.reports.plan import sensitivity_table
from inferplan.reports.plan_page import screening
from inferplan.reports.plan_record import plan_record
from inferplan.serving.autoscaling import Schedule
from inferplan.serving.cold_start import ColdStart, weights_of
from inferplan.serving.failures import Failure, Failures
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.traffic.conversations import ThinkTime
from inferplan.traffic.requests import Lengths, SharedPrefix, Slo
from inferplan.work.parallel import Parallelism

REQUEST = Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True)
PLAIN: dict[str, Any] = {"most": 1, "disaggregate": False, "budgets": (8192,)}
LIMIT = 0.5
RESTART = 12.0


def question(rate: float = 55.0, survive: Survive | None = None, **demand: object) -> Question:
    return Question(
        space=Space(base=replace(REQUEST, gpu=""), gpus=("h100-sxm",), quants=(None,), **PLAIN),
        demand=Demand(prompt=Lengths(mean=2048), output=Lengths(mean=32), **({"rate": rate} | demand)),
        slo=Slo(ttft=LIMIT, percentile=95.0),
        sizing=Sizing(survive=survive),
        prices=price_book(stated=["h100-sxm=2"]),
    )


def asked(replicas: int | None = 1, seconds: float = RESTART, mtbf: float | None = None) -> Survive:
    return Survive(start=ColdStart(rest=seconds), replicas=replicas, mtbf=mtbf)


def option(replicas: int, **changes: object) -> PlanOption:
    values = {
        "request": REQUEST,
        "deployment": assemble(REQUEST),
        "budget": 8192,
        "batch": 64,
        "concurrency": 64.0,
        "ttft": 0.1,
        "tpot": 0.02,
        "e2el": 1.0,
        "answer_ttft": 0.1,
        "rate": 20.0,
        "output": 32.0,
        "replicas": replicas,
        "spare": 0,
        "tariff": None,
        "cost": None,
    }
    return PlanOption(**(values | changes))  # type: ignore[arg-type]


def by_hand(replicas: int, lost: int, rate: float, runs: int) -> tuple[float, int]:
    """The 95th percentile of TTFT of those that arrive while replicas are missing, by ``simulate`` and numpy, and how
    many they are: the failure is after five requests' time of a second, and two more follow the restart.
    """
    deployment = assemble(REQUEST)
    deployment = replace(deployment, parallel=Parallelism(replicas=replicas))
    held = max(rate / (replicas - lost) * 1.3, 1.0)
    slots = ceil((held + 3 * held**0.5) / 8) * 8
    flags = Flags(max_num_seqs=slots, max_num_batched_tokens=8192)
    fleet = Fleet(
        scaling=Schedule(changes=((0.0, replicas),), cold_start=RESTART),
        failures=Failures(at=(Failure(at=5.0, replicas=lost),)),
    )
    found, demand = [], question(rate).demand
    for seed in range(runs):
        traffic = demand.traffic(rate, ceil(rate * (5.0 + RESTART + 2.0)) + 1, 0.0, seed)
        records = simulate(deployment, traffic, flags, Options(fleet=fleet)).records
        arrival, first = np.asarray(records.arrival), np.asarray(records.first)
        meanwhile = (arrival >= 5.0) & (arrival < 5.0 + RESTART)
        found.append((first - arrival)[meanwhile])
    return float(np.percentile(np.concatenate(found), 95.0)), sum(len(one) for one in found)


def test_the_smallest_fleet_that_survives_is_that_of_a_linear_search() -> None:
    """Two of a fleet are lost: sizes by ``simulate`` alone, one after another, until the limit is kept."""
    rate, whom = 55.0, question(survive=asked(2))
    kept = {}
    for size in range(3, 12):
        kept[size], count = by_hand(size, 2, rate, 6)
        if kept[size] <= LIMIT:
            break
    fewest = max(kept)
    assert fewest > 3 and kept[fewest - 1] > LIMIT  # fewer do not do
    found = smallest_survivor(option(2), whom, option)
    assert found is not None
    chosen, seen = found
    assert chosen.replicas == fewest
    assert (seen.failures, seen.judged) == (6, count)
    assert seen.kept[0].achieved["ttft"] == pytest.approx(kept[fewest], rel=1e-12)
    assert seen.worst == pytest.approx(kept[fewest] / LIMIT) and seen.meets
    assert (seen.lost, seen.restart) == (2, RESTART)
    assert seen.anew > 0 and seen.late == 0  # at full speed elsewhere: none of those in flight is late


def test_slower_devices_are_lost_for_as_long() -> None:
    """At half the speed a fleet under half the load is the same, in twice the time: twice the latency."""
    quick = survival(option(4), question(40.0, asked(seconds=10.0)))
    slowly = survival(option(4, e2el=2.0, slow=Slowness(2.0, 1.0)), question(20.0, asked(seconds=20.0)))
    assert slowly.judged == quick.judged
    assert slowly.kept[0].achieved["ttft"] == pytest.approx(2 * quick.kept[0].achieved["ttft"], rel=1e-9)
    assert slowly.kept[0].achieved["tpot"] == pytest.approx(2 * quick.kept[0].achieved["tpot"], rel=1e-9)


def test_what_is_lost_for_good_leaves_a_smaller_fleet() -> None:
    """Without an end to it the rest is judged in its steady state: that of a fleet with one replica less, by
    ``simulate``."""
    found = survival(option(4), question(40.0, asked(seconds=float("inf"))))
    deployment = replace(assemble(REQUEST), parallel=Parallelism(replicas=3))
    traffic = question(40.0).demand.traffic(40.0, 8_000, 0.0, 5)
    records = simulate(deployment, traffic, Flags(max_num_seqs=64, max_num_batched_tokens=8192), Options()).records
    alone = np.percentile(np.asarray(records.first) - np.asarray(records.arrival), 95.0)
    assert found.judged >= 10_000 and found.restart == float("inf")
    assert found.kept[0].achieved["ttft"] == pytest.approx(alone, rel=0.1)


def test_users_think_no_faster_beside_slower_devices() -> None:
    """The same with a second turn, whose user thinks twice as long."""

    def talking(seconds: float) -> dict[str, Any]:
        prefix = SharedPrefix(turns=2, think=ThinkTime(mean=seconds))
        return {"own": Lengths(mean=1008), "prefix": prefix, "cached": 1024}

    quick = survival(option(4), question(40.0, asked(seconds=10.0), **talking(1.0)))
    slow = option(4, e2el=2.0, slow=Slowness(2.0, 1.0))
    slowly = survival(slow, question(20.0, asked(seconds=20.0), **talking(2.0)))
    assert slowly.judged == quick.judged
    assert slowly.kept[0].achieved["ttft"] == pytest.approx(2 * quick.kept[0].achieved["ttft"], rel=1e-9)


def test_a_plan_that_survives_and_what_it_costs_more() -> None:
    """Two carry 40 requests/s with a fifth to spare, one does not carry them at all."""
    lucky = plan(question(40.0))
    safe = plan(question(40.0, survive=asked(mtbf=1e8)))
    assert safe.failure_free is not None and safe.best.survival is not None
    assert safe.failure_free.option.replicas == lucky.option.replicas
    assert (lucky.option.replicas, safe.option.replicas) == (2, 3)
    assert safe.option.cost == 2.0 * safe.option.replicas
    record = plan_record(safe)["plan"]["survival"]
    assert (record["asked"], record["replicas_lost"], record["restart_s"]) == (1, 1, RESTART)
    assert record["kept"][0]["ttft_s"] <= LIMIT
    assert record["failure_free"]["cost"] == lucky.option.cost
    assert record["expected"]["failures_per_year"] == pytest.approx(safe.option.replicas * YEAR / (1e8 + RESTART))
    assert plan_record(lucky)["plan"]["survival"] is None
    assert "needs 2 replicas; the plan runs 3: the limits are kept" in screening(safe)
    needed = {row["load"]: row["replicas_needed"] for row in safe.sensitivity}
    assert needed[1.1] < 3 and "none were lost" in sensitivity_table(safe).title  # the plan of the load itself is of 3
    assert "lost" not in sensitivity_table(lucky).title
    assert survival(safe.option.sized(safe.option.replicas - 1), safe.question).worst > 1.0


def test_from_python() -> None:
    found = inferplan.make_plan(
        *("llama-3.1-8b", 2048, "32", "h100-sxm"), progress=False, ideal=True, rate=5, ttft=LIMIT, most=1,
        quants=["bf16"], price={"h100-sxm": 2.0}, survive=1, restart="12s", mtbf="100d",
    )  # fmt: skip
    assert found.question.sizing.survive == asked(1, 12.0, 100 * 86400.0)
    assert found.option.replicas == 2 and found.failure_free.option.replicas == 1


def test_who_has_replicas_to_spare_pays_nothing_more() -> None:
    """At a fifth of its capacity a fleet of six does with five: nothing is bought."""
    roomy = replace(question(survive=asked()), sizing=Sizing(utilisation=0.2, survive=asked()))
    found = plan(roomy)
    assert found.failure_free is not None
    assert found.option.replicas == found.failure_free.option.replicas >= 3


def test_users_wait_through_it() -> None:
    """A hundred users of three replicas: those who send while one is missing, at most a hundred at a time."""
    found = survival(option(3), question(survive=asked(), rate=None, users=100))
    assert found.judged >= 4000 and found.failures >= 4
    assert found.kept[0].achieved["ttft"] > 0


def test_replicas_that_are_left_have_places_for_the_load_of_all() -> None:
    """Four replicas of which two may be lost are started as two would be."""
    whom = question(survive=asked(2))
    assert slots_of(option(4), whom) == slots_for(option(2), whom.demand, 0.8) > slots_for(option(4), whom.demand, 0.8)
    assert slots_of(option(1), whom) == slots_for(option(1), whom.demand, 0.8)


def test_what_to_expect_by_hand() -> None:
    """Three replicas of two GPUs, 100 h between failures of one, an hour to restart: up 50 h, down 1 h of 51."""
    deployment = assemble(replace(REQUEST, parallel=Parallelism(tp=2)))
    expected = asked(1, 3600.0, 100 * 3600.0).availability(deployment, 3)
    assert expected is not None
    up, down = 50 / 51, 1 / 51
    assert expected.failures == pytest.approx(3 * 365.25 * 24 / 51)
    assert expected.degraded == pytest.approx(1 - up**3)
    assert expected.beyond == pytest.approx(1 - up**3 - 3 * down * up**2)
    node = asked(None, 3600.0, 100 * 3600.0)
    assert node.lost(deployment) == 4 and node.units(deployment, 6) == [8, 4]  # a node of eight, and half of one
    both = node.availability(deployment, 6)
    assert both is not None
    assert both.beyond == pytest.approx((1 / 13.5) * (1 / 26))  # 12.5 h up and 1 h down; 25 h and 1 h
    assert both.failures == pytest.approx(8766 / 13.5 + 8766 / 26)
    assert asked().availability(deployment, 3) is None


def test_the_interruptions_of_llama_3() -> None:
    """419 in 54 days on 16,384 GPUs (arXiv:2407.21783, Table 5): 2,111.5 days between those of one."""
    days = 16_384 * 54 / 419
    assert days == pytest.approx(2111.5, abs=0.05)
    deployment = assemble(replace(REQUEST, parallel=Parallelism(tp=8)))
    expected = asked(1, 1.0, days * 86400.0).availability(deployment, 2048)
    assert expected is not None
    assert expected.failures * 54 / 365.25 == pytest.approx(419, rel=1e-4)


def test_a_restart_may_depend_on_the_weights() -> None:
    deployment = assemble(REQUEST)
    survive = Survive(start=ColdStart(rest=45.0, bandwidth=2e9))
    assert survive.restart(deployment) == pytest.approx(45.0 + weights_of(deployment) / 2e9)


def test_what_is_not_planned() -> None:
    with pytest.raises(UsageError, match="more than 0"):
        Survive(start=ColdStart(rest=0.0))
    with pytest.raises(UsageError, match="1 or more replicas"):
        asked(0)
    with pytest.raises(UsageError, match="--mtbf"):
        asked(mtbf=0.0)
    whom = question(survive=asked())
    with pytest.raises(UsageError, match="pools of their own"):
        replace(whom, space=replace(whom.space, disaggregate=True))
    with pytest.raises(UsageError, match="--spare"):
        replace(whom, sizing=replace(whom.sizing, spare=1))
    with pytest.raises(UsageError, match="an offline job"):
        question(survive=asked(), rate=None, requests=100, deadline=1e5)
    card = assemble(replace(REQUEST, gpu="l4"))
    with pytest.raises(UsageError, match="the number of l4 per node is not known"):
        asked(None).lost(card)
