"""Cache tiers in a plan: what they cost and are worth by hand, and that the rest of a plan is as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inferplan.catalog.assemble import Request
from inferplan.catalog.price_lists import price_book
from inferplan.errors import UsageError
from inferplan.planning import finalists
from inferplan.planning import verify as verified
from inferplan.planning.demand import Demand, sharing
from inferplan.planning.option import PlanOption, Sizing
from inferplan.planning.plan import Plan, plan
from inferplan.planning.question import MOST_CHAINS, Question, chains_of_sizes
from inferplan.planning.search import search
from inferplan.planning.space import Space
from inferplan.planning.tiering import Tiered, beside, cheapest
from inferplan.planning.verify import SHOWN, Verified, verify
from inferplan.reports.cost import cost_record
from inferplan.reports.plan_figures import cost_of
from inferplan.reports.plan_file import planned_of
from inferplan.reports.plan_record import launch_record
from inferplan.reports.plan_tiers import tier_lines, tiers_record, tiers_table
from inferplan.serving.batch_means import RunPrecision
from inferplan.serving.options import Options
from inferplan.serving.techniques.tiers import CacheTier, TierPrice, parse_sizes
from inferplan.traffic.conversations import ThinkTime
from inferplan.traffic.requests import Lengths, SharedPrefix, Slo
from tests.cases import for_each
from tests.json_page import listed

OWN, ANSWER = Lengths(mean=1024), Lengths(mean=16)
TALK = SharedPrefix(turns=4, think=ThinkTime(kind="exponential", mean=8.0))
HOST = CacheTier(name="host", capacity=20e9, bandwidth=25e9, price=TierPrice(0.004, "USD"))


def asked(chains: tuple[tuple[CacheTier, ...], ...] = (), **more: Any) -> Question:
    whole, cached = sharing(OWN, ANSWER, TALK, 1)
    demand = Demand(prompt=whole, output=ANSWER, own=OWN, prefix=TALK, cached=cached, rate=6.0)
    given: dict[str, Any] = {
        "space": Space(
            base=Request(model="llama-3.1-8b", gpu="", ideal=True),
            gpus=("l4",),
            quants=(None,),
            most=1,
            disaggregate=False,
        ),
        "demand": demand,
        "slo": Slo(ttft=1.0, percentile=95.0),
        "sizing": Sizing(),
        "prices": price_book(stated=["l4=2"]),
    }
    return Question(chains=chains, **{**given, **more})


@pytest.fixture(scope="module")
def options() -> list[PlanOption]:
    question = asked()
    return search(question.space, question.stream, question.prices).options


def test_a_bill_is_gpus_and_tiers(options: list[PlanOption]) -> None:
    """3 replicas and a spare one at 2 USD/h are 8; 4 x 20 GB at 0.004 are 0.32; a store of 5 TB at 0.001 is 5 once."""
    store = CacheTier(name="store", capacity=5e12, bandwidth=1e9, shared=True, price=TierPrice(0.001, "USD"))
    tiered = beside([replace(options[0], spare=1)], (HOST, store))[0]
    sized = tiered.sized(3)
    assert sized.cost == pytest.approx(8 + 0.32 + 5) and sized.tier_cost == pytest.approx(5.32)
    assert sized.gpu_cost == pytest.approx(8) and sized.purchases[0].per_hour == 8
    assert tiered.bound == pytest.approx(options[0].bound + 0.08 + 5)
    free = replace(HOST, price=None)
    assert beside(options[:1], (free,))[0].sized(3).cost == options[0].sized(3).cost == 6
    assert [one.cost for one in beside(options, ())] == [one.cost for one in options]


def test_replicas_with_tiers_of_their_own_are_not_more_than_needed(options: list[PlanOption]) -> None:
    """3 of 8 GPUs of an instance: 8 replicas cost the same, but not with 20 GB each; a store is there anyway."""
    boxed = replace(options[0], tariff=price_book(stated=["l4=16/8"]).tariff("l4", 1, 1))
    assert boxed.filled(3) == 8
    assert replace(boxed, tiers=(HOST,)).filled(3) == 3
    assert replace(boxed, tiers=(replace(HOST, price=None),)).filled(3) == 8
    assert replace(boxed, tiers=(replace(HOST, shared=True),)).filled(3) == 8


def side(options: list[PlanOption], replicas: int, *chain: CacheTier) -> Tiered:
    option = beside(options[:1], chain)[0].sized(replicas)
    return Tiered(chain=chain, best=Verified(option=option, slots=8, achieved={}))


def test_the_break_even_price_by_hand(options: list[PlanOption]) -> None:
    """Five GPUs at 2 USD/h without tiers and three with them: 4 USD/h saved. 3 x 20 GB cost 3 x 20 x 0.004 = 0.24, 2 TB
    of an SSD each at 0.0001 0.6: the host may cost (4 - 0.6)/60 GB, the SSD (4 - 0.24)/6,000 GB an hour.
    """
    ssd = CacheTier(name="ssd", capacity=2e12, bandwidth=6e9, price=TierPrice(0.0001, "USD"))
    without, both = side(options, 5), side(options, 3, HOST, ssd)
    assert both.saved(without) == pytest.approx(4.0) and both.tier_cost == pytest.approx(0.84)
    assert both.break_even(HOST, without) == pytest.approx(3.4 / 60)
    assert both.break_even(ssd, without) == pytest.approx(3.76 / 6000)
    free = replace(ssd, price=None)
    other = side(options, 3, HOST, free)
    assert other.break_even(free, without) == pytest.approx(3.76 / 6000) and other.break_even(HOST, without) is None
    assert other.tier_cost is None and not other.priced
    alone = side(options, 3, replace(HOST, price=None))
    assert alone.break_even(alone.chain[0], without) == pytest.approx(4.0 / 60)


def test_the_cheapest_is_of_those_that_have_a_price(options: list[PlanOption]) -> None:
    """10 USD/h without, 6.24 with 60 GB of a host; one without a price takes two GPUs, and nobody knows what."""
    none, priced, free = side(options, 5), side(options, 3, HOST), side(options, 2, replace(HOST, price=None))
    assert cheapest([none, priced, free]) is priced and cheapest([none, free]) is none
    assert cheapest([Tiered(chain=(), best=None), free]) is free and cheapest([Tiered(chain=(), best=None)]) is None


def test_sizes_become_chains() -> None:
    """Two tiers of two sizes each, of which 0 is none: three chains beside none."""
    given = [parse_sizes("host:0,20GB:25GB/s:0.004USD/GB-hour"), parse_sizes("ssd:0,1TB:6GB/s:100us:shared")]
    chains = chains_of_sizes(given)
    assert [[(tier.name, tier.capacity) for tier in chain] for chain in chains] == [
        [("ssd", 1e12)],
        [("host", 20e9)],
        [("host", 20e9), ("ssd", 1e12)],
    ]
    assert chains[1][0] == HOST and chains[0][0].shared
    with pytest.raises(UsageError, match="more than a plan tries"):
        chains_of_sizes([parse_sizes(f"host:{','.join(f'{n}GB' for n in range(1, MOST_CHAINS + 2))}:25GB/s")])


@pytest.fixture(scope="module")
def found() -> Plan:
    with pytest.MonkeyPatch.context() as patch:  # a quotation of 24,000 requests takes most of a plan's time
        patch.setattr(finalists, "QUOTED", RunPrecision(tolerance=0.2, fewest=1000, most=2000))
        return plan(asked(((HOST,), (replace(HOST, capacity=0.05e9),))))


def test_a_tier_takes_the_place_of_gpus(found: Plan) -> None:
    """The plan has the host's memory, its cost is GPUs and tier, and fewer GPUs than the plan without."""
    without, host, little = found.tiered
    assert found.best is host.best and found.option.tiers == (HOST,)
    gpus = found.option.devices
    assert without.best is not None and without.best.option.devices > gpus
    assert found.option.cost == pytest.approx(2 * gpus + 20 * 0.004 * gpus)
    assert host.saved(without) == 2 * (without.best.option.devices - gpus)
    assert host.hit_rates["device"] + host.hit_rates["host"] > without.hit_rates["device"]
    assert sum(host.hit_rates.values()) > sum(little.hit_rates.values())
    assert found.best.result is not None
    assert found.best.result.conditions["cache_tiers"][0]["capacity_bytes"] == 20e9


def test_without_tiers_a_plan_is_as_it_was(found: Plan, options: list[PlanOption]) -> None:
    """The side without tiers is what a question that asks for none simulates, to the bit."""
    without = found.tiered[0].best
    assert without is not None and without.result is not None
    bare = replace(options[0], tiers=()).sized(without.option.replicas)
    assert verify(bare, asked(), precision=SHOWN).achieved == without.achieved and bare.cost == without.option.cost
    assert without.option.tiers == () and without.result.conditions["cache_tiers"] is None


def test_the_report_says_what_they_are_worth(found: Plan) -> None:
    none, host, _ = tiers_record(found) or []
    assert sorted(none) == sorted(host) == sorted(listed("plan", "cache_tiers[]"))
    gpus, saved = host["devices"], none["gpu_cost_per_hour"] - host["gpu_cost_per_hour"]
    assert host["chosen"] and not none["chosen"] and none["tiers"] == []
    assert host["saved_on_gpus_per_hour"] == saved == 2 * (none["devices"] - gpus) > 0
    assert host["cost_per_hour"] == pytest.approx(2.08 * gpus) and none["cost_per_hour"] == 2 * none["devices"]
    assert host["tiers"][0]["break_even_per_gb_month"] == pytest.approx(saved / (20 * gpus) * 730)
    assert host["tiers"][0]["price_per_gb_month"] == pytest.approx(2.92)
    assert host["tiers"][0]["paid_bytes"] == 20e9 * gpus
    bill = cost_of(found)
    assert bill is not None and cost_record(bill)["per_hour"] == pytest.approx(2.08 * gpus)
    assert cost_record(bill)["cache_tiers_per_hour"] == pytest.approx(0.08 * gpus)
    line = tier_lines(found)[0]
    fewer = none["devices"] - gpus
    assert line.startswith(f"host 20.00 GB saves {fewer} GPU{'' if fewer == 1 else 's'} (+{saved:.2f} USD/h of GPUs)")
    assert f"break-even price {saved / (20 * gpus) * 730:,.4g} USD/GB-month" in line
    rows = tiers_table(found).rows
    assert [row[0] for row in rows] == ["none", "host 20.00 GB (the plan)", "host 50.00 MB"]
    assert rows[1][-3:] == [f"{2 * gpus:.2f}", f"{0.08 * gpus:.2f}", f"{2.08 * gpus:.2f}"]
    assert tiers_record(replace(found, tiered=())) is None and tier_lines(replace(found, tiered=())) == []


def test_a_plan_with_tiers_is_not_started_without_them(found: Plan) -> None:
    deployment = {**launch_record(found), "options": {}}
    assert deployment["cache_tiers"][0]["capacity_bytes"] == 20e9
    with pytest.raises(UsageError, match="a plan with cache tiers"):
        planned_of({"plan": {"deployment": deployment}}, "plan.json")
    assert planned_of({"plan": {"deployment": {**deployment, "cache_tiers": None}}}, "plan.json").request.gpu == "l4"


def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Options]]:
    """Deployments and options of the simulations that a verification runs."""
    seen: list[tuple[Any, Options]] = []

    def run(deployment: Any, traffic: Any, flags: Any, options: Options, *more: Any) -> Any:
        seen.append((deployment, options))
        return simulated(deployment, traffic, flags, options, *more)

    simulated: Callable[..., Any] = verified.simulate
    monkeypatch.setattr(verified, "simulate", run)
    return seen


def test_a_store_that_replicas_share_is_simulated_with_all_of_them(
    options: list[PlanOption], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conversations stay where they began; one replica stands for all where nothing connects them."""
    seen = calls(monkeypatch)
    store = replace(HOST, shared=True)
    for chain, replicas, routing in (((HOST,), 1, "round-robin"), ((store,), 3, "sticky")):
        verify(beside(options[:1], chain)[0].sized(3), asked((chain,)))
        deployment, given = seen[-1]
        assert (deployment.parallel.replicas, given.fleet.routing) == (replicas, routing)
        assert given.tiers == chain
    verify(options[0].sized(3), asked(routing="prefix-aware"))
    assert (seen[-1][0].parallel.replicas, seen[-1][1].fleet.routing) == (3, "prefix-aware")


def test_tiers_and_users_are_no_slower_where_devices_are(
    options: list[PlanOption], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second of the run lasts 1.25: a tier reads so much more in it, and a user thinks so much less of it."""
    seen = calls(monkeypatch)
    slow = options[0].slow._replace(step=1.25)
    tier = replace(HOST, latency=1e-3)
    option = replace(beside(options[:1], (tier,))[0].sized(4), slow=slow)
    verify(option, asked(((tier,),)))
    assert seen[-1][1].tiers[0].bandwidth == 25e9 * 1.25 and seen[-1][1].tiers[0].latency == 1e-3 / 1.25
    traffic = verified.traffic_of(asked().demand, option)
    assert traffic.prefix.think.mean == 8.0 / 1.25  # type: ignore[union-attr]


def test_a_run_of_many_texts_is_longer_than_it_takes_to_compute_each() -> None:
    """At first five requests a second of 4,400 tokens are to be computed, later 400 of most: in 600 requests the queue
    of the first of 100 texts is not over (TTFT 6.2 s at p95), in 1,200 it is 0.43 s, and 0.36 s in 16,000 (`inferplan
    simulate`, one of two replicas at 10 requests/s)."""
    own, output, prefix = Lengths(mean=400), Lengths(mean=120), SharedPrefix(tokens=4000, distinct=100)
    whole, cached = sharing(own, output, prefix, 1)
    demand = Demand(prompt=whole, output=output, own=own, prefix=prefix, cached=cached, rate=8.0)
    space = Space(base=Request(model="llama-3.1-8b", gpu=""), gpus=("l40s",), quants=("fp8",), most=1, budgets=(512,))
    space = replace(space, disaggregate=False)
    chain = (replace(HOST, capacity=64e9, bandwidth=20e9),)
    question = asked((chain,), space=space, demand=demand, slo=Slo(ttft=0.7, tpot=0.05, percentile=95.0))
    (option,) = search(question.space, question.stream, price_book(stated=["l40s=1"])).options[:1]
    two = beside([option], chain)[0].sized(2)
    assert verify(two, question, 1.25).achieved["ttft"] == pytest.approx(0.36, rel=0.25)
    many = replace(demand, prefix=replace(prefix, distinct=5000))
    counts = [verified.traffic_of(one, two, fewest=600).requests_count for one in (demand, many)]  # type: ignore[union-attr]
    assert counts == [1200, 12_000]
    assert verified.traffic_of(demand, two, fewest=600, whole=True).requests_count == 2400  # type: ignore[union-attr]


def test_users_of_a_whole_fleet_are_counted_once(options: list[PlanOption]) -> None:
    """Two replicas simulated together answer as fast as one of them with half of the users, and so as much."""
    demand = replace(asked().demand, rate=None, users=12, prefix=replace(TALK, think=ThinkTime()))
    one, all_of = (
        verify(options[0].sized(2), asked(demand=demand, routing=routing)).response for routing in (None, "sticky")
    )
    assert one is not None and all_of == pytest.approx(one, rel=0.1)


@for_each(
    ("given", "said"),
    [
        ({"demand": Demand(prompt=OWN, output=ANSWER, rate=1.0)}, "these share none"),
        ({"demand": Demand(prompt=OWN, output=ANSWER, rate=1.0, cached=8)}, "with a given hit rate"),
        ({"demand": Demand(prompt=OWN, output=ANSWER, requests=10, deadline=9.0)}, "an offline job"),
        ({"prices": price_book(stated=["l4=2"], currency="EUR")}, "is in USD and those of GPUs are in EUR"),
        ({"chains": ((HOST, HOST),)}, "a name of its own"),
    ],
)
def test_what_tiers_cannot_be_planned_for_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asked(**{"chains": ((HOST,),), **given})


def test_separate_pools_and_a_routing_of_nothing_are_refused() -> None:
    apart = replace(asked().space, disaggregate=True)
    plain = Demand(prompt=OWN, output=ANSWER, rate=1.0)
    job = Demand(prompt=OWN, output=ANSWER, requests=10, deadline=9.0)
    for given in (
        {"chains": ((HOST,),), "space": apart},
        {"routing": "least-loaded", "space": apart},
        {"routing": "sticky", "demand": plain},
        {"routing": "least-loaded", "demand": job},
    ):
        with pytest.raises(UsageError):
            asked(**given)
