"""A day: what is paid and missed by hand, timetables by hand, and policies that must agree."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.offload import OffloadAsked
from inferplan.catalog.price_lists import price_book
from inferplan.errors import InfeasibleError, UsageError
from inferplan.planning import day_work
from inferplan.planning.agents import demand_of_sessions
from inferplan.planning.confidence import Slowness
from inferplan.planning.day import (
    ROUTINGS,
    Autoscaler,
    DayAsked,
    PolicyDay,
    day_requests,
    replicas_for,
    scaling_of,
    scattered,
    simulate_day,
)
from inferplan.planning.day_work import work_of
from inferplan.planning.demand import Demand, sharing
from inferplan.planning.design import best_point, design_at
from inferplan.planning.option import Sizing
from inferplan.planning.question import Question
from inferplan.planning.space import Space
from inferplan.serving import pieces as run_pieces
from inferplan.serving.autoscaling import Life, Reactive, Schedule
from inferplan.serving.cold_start import ColdStart, start_line, weights_of
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.records import FINISHED, Records
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.tiers import parse_tier
from inferplan.traffic.conversations import ThinkTime
from inferplan.traffic.profile import Profile
from inferplan.traffic.requests import Lengths, OpenLoop, SharedPrefix, Slo, Traffic
from inferplan.traffic.sessions import SessionTraffic
from tests.serving.test_composition import chat

REQUEST = Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True)
PEAKS = Profile(name="peaks", starts=(0.0, 600.0, 1200.0), rates=(4.0, 20.0, 8.0), end=1800.0)
FLAT = Profile(name="flat", starts=(0.0,), rates=(6.0,))
SMALL = {"prompt": Lengths(mean=256), "output": Lengths(mean=32)}


def question(price: str = "h100-sxm=2.00", **slo: float) -> Question:
    return Question(
        space=Space(base=REQUEST, gpus=("h100-sxm",)),
        demand=Demand(**SMALL, rate=1.0),
        slo=Slo(percentile=95.0, **(slo or {"ttft": 0.5, "tpot": 0.02})),
        sizing=Sizing(utilisation=0.8),
        prices=price_book(stated=[price]),
    )


def busy(profile: Profile, rate: float) -> Profile:
    """The replicas that a profile would keep busy, each of so many requests per second."""
    return profile.weighted([1 / rate] * len(profile.rates))


def policy_day(lives: list[Life], span: float = 7200.0, price: str = "h100-sxm=2.00") -> PolicyDay:
    """Three requests: two in time, one that never finished."""
    records = Records(arrival=[0.0, 1.0, 2.0], prompt=[8, 8, 8], output=[11, 11, 11])
    for request, (first, finish) in enumerate([(0.2, 0.3), (1.2, 1.3)]):
        records.first[request], records.finish[request], records.status[request] = first, finish, FINISHED
    result = SimulationResult(records=records, meters=[], closed=False, slo=Slo(ttft=0.5, tpot=0.02), lives=lives)
    tariff = price_book(stated=[price]).require("h100-sxm", 1)
    return PolicyDay(
        policy="reactive", scaling=Schedule(changes=((0.0, 1),)), result=result, span=span, tariff=tariff, work=1.5
    )


def test_what_is_paid_by_hand() -> None:
    """One replica all of two hours, one from 0.5 h to 1.25 h, one ordered at 1.5 h, one after the end."""
    lives = [
        Life(0.0, 0.0),
        Life(1800.0, 1900.0, 4000.0, 4500.0),
        Life(5400.0, 5500.0),
        Life(7300.0, 7400.0),
    ]
    day = policy_day(lives)
    assert day.replica_hours == pytest.approx(2 + 0.75 + 0.5)
    assert day.cost == pytest.approx(3.25 * 2.00)
    assert day.peak == 2
    assert day.mean_replicas(0, 3600) == pytest.approx(1 + 0.5)
    assert day.mean_replicas(3600, 7200) == pytest.approx(1 + 0.25 + 0.5)
    assert day.missed == pytest.approx(1 / 3)
    assert day.utilisation == pytest.approx(3 / (3.25 * 3600 * 2.0))


def test_a_replica_is_paid_for_its_minimum() -> None:
    """One for 30 s counts a minute, one for 90 s is paid as long as it was, one that comes 10 s before the end 10 s.
    The minute of one that is taken away as it starts, after 40 s, begins with its order, too."""
    lives = [
        Life(0.0, 0.0, 20.0, 30.0),
        Life(1000.0, 1010.0, 1080.0, 1090.0),
        Life(2000.0, 2040.0, 2045.0, 2045.0),
        Life(7190.0, 7195.0, 7196.0, 7197.0),
    ]
    assert policy_day(lives).replica_hours * 3600 == pytest.approx(30 + 90 + 45 + 7)
    least = replace(policy_day(lives), minimum_bill=60.0)
    assert least.replica_hours * 3600 == pytest.approx(60 + 90 + 60 + 10)
    assert least.cost == pytest.approx(220 / 3600 * 2.00)


def test_tiers_are_paid_for_by_hand() -> None:
    """Lives of 3.25 hours in two, of replicas of two devices: 6.5 hours of 100 GB at 0.01 an hour each, and two hours
    of a shared store of 1 TB at 2 an hour, which nobody has a second one of. A tier without a price costs nothing."""
    lives = [Life(0.0, 0.0), Life(1800.0, 1900.0, 4000.0, 4500.0), Life(5400.0, 5500.0)]
    host, free, store = map(
        parse_tier, ("host:100GB:50GB/s:0.01USD/GB-hour", "ssd:1TB:5GB/s", "store:1TB:5GB/s:2USD/TB-hour:shared")
    )
    plain = policy_day(lives)
    assert plain.tier_cost is None and replace(plain, tiers=(free,)).tier_cost is None
    day = replace(plain, ranks=2, tiers=(host, free, store))
    assert day.tier_cost == pytest.approx(6.5 * 100 * 0.01 + 2 * 2)
    assert day.cost == pytest.approx(3.25 * 2.00 + 6.5 + 4)
    night = replace(policy_day([]), tiers=(host, store))
    assert night.cost == night.tier_cost == pytest.approx(2 * 2)  # the store waits for replicas that never come


def test_instances_are_paid_for_whole() -> None:
    """Nine replicas of one GPU for half an hour of two, four else: two instances of eight, then one, at 16 an hour."""
    lives = [Life(0.0, 0.0)] * 4 + [Life(0.0, 0.0, 1800.0, 1800.0)] * 5
    assert policy_day(lives, price="h100-sxm=16/8").cost == pytest.approx(0.5 * 32 + 1.5 * 16)


def test_calls_that_are_never_sent_are_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third call whose user gave up before it, where requests are looked at by twos: one of two sent is late."""
    day = policy_day([Life(0.0, 0.0)])
    records = day.result.records
    records.arrival[2], records.first[1], records.finish[1] = np.nan, 1.9, 2.0
    for size in (2, 100):
        monkeypatch.setattr(run_pieces, "PIECE", size)
        one = replace(day, result=replace(day.result, cooldown=1))
        assert one.late.tolist() == [False, True] and one.missed == 0.5
        assert one.within(0.0, 7200.0) == slice(0, 2)
        assert one.percentile("ttft", 100.0) == pytest.approx(0.9)


def test_none_is_paid_for_nothing() -> None:
    day = policy_day([Life(3600.0, 3700.0, 5000.0, 5400.0)])
    assert day.cost == pytest.approx(0.5 * 2.00)
    assert day.mean_replicas(0, 3600) == 0.0


def test_timetables_by_hand() -> None:
    """2.5 requests/s a replica, 2 of them used: 2, 10 and 4 replicas. 100 s ahead: 10 from 500 s on; 4 from 1200 s on;
    the 2 of the next period only once it has begun, and its 10 at 2300 s.
    """
    asked = DayAsked(profile=PEAKS, cold_start=ColdStart(rest=100.0), span=3600.0)
    found = scaling_of("scheduled", asked, question(), busy(PEAKS, 2.5), 3.0)
    assert found == Schedule(
        changes=((0.0, 2), (500.0, 10), (1200.0, 4), (1800.0, 2), (2300.0, 10), (3000.0, 4)), cold_start=100.0
    )
    assert scaling_of("static", asked, question(), busy(PEAKS, 2.5), 3.0) == Schedule(
        changes=((0.0, 10),), cold_start=100.0
    )
    short = replace(asked, span=600.0)  # the peak begins when it is over
    assert scaling_of("static", short, question(), busy(PEAKS, 2.5), 3.0).first == 2
    long = replace(asked, cold_start=ColdStart(rest=700.0))  # longer than a step: nobody leaves who would come back
    assert scaling_of("scheduled", long, question(), busy(PEAKS, 2.5), 3.0) == Schedule(
        changes=((0.0, 10), (1200.0, 4), (1700.0, 10), (3000.0, 4), (3500.0, 10)), cold_start=700.0
    )


def test_bounds_of_replicas() -> None:
    asked = DayAsked(profile=FLAT, cold_start=ColdStart(rest=1.0), least=0, most=3)
    counts = [replicas_for(rate / 2.5, asked, question()) for rate in (0.0, 0.1, 2.0, 2.1, 100.0)]
    assert counts == [0, 1, 1, 2, 3]
    reactive = scaling_of(
        "reactive", replace(asked, autoscaler=Autoscaler(interval=5.0)), question(), busy(FLAT, 2.5), 7.0
    )
    assert reactive == Reactive(target=7.0, first=3, cold_start=1.0, least=0, most=3, interval=5.0, until=86_400.0)


def test_a_cold_start_is_the_weights_and_the_rest() -> None:
    """Llama-3.1-8B: 8,030,261,248 parameters of two bytes, the norms of 33 layers' worth once more with two devices."""
    deployment = assemble(REQUEST)
    assert weights_of(deployment) == 2 * 8_030_261_248
    two = assemble(replace(REQUEST, parallel=replace(REQUEST.parallel, tp=2)))
    assert weights_of(two) == pytest.approx(2 * 8_030_261_248, rel=1e-3)
    assert ColdStart(rest=45.0, weights=16e9, bandwidth=2e9).seconds == 53.0
    assert ColdStart(rest=90.0).seconds == 90.0
    assert start_line(deployment) == (
        "cold start: a new replica reads 16.06 GB of weights; seconds take the rate of your storage: inferplan day "
        "--storage-bandwidth with --engine-start (docs/day.md#cold-start)"
    )


def test_a_cold_start_reads_what_lies_on_the_host() -> None:
    """The checkpoint of gpt-oss-120b is 65.25 GB wherever its experts lie; Llama-3.1-70B has 70.55e9 parameters."""
    host = {"host": "epyc-9654", "host_memory": "384GB"}
    experts = OffloadAsked(cpu_moe_layers=36, **host)
    found = assemble(Request(model="gpt-oss-120b", gpu="rtx-4090", engine="llama.cpp", offload=experts))
    assert weights_of(found) == pytest.approx(65.25e9, rel=1e-3)
    streamed = OffloadAsked(cpu_offload_gb=60.0, **host)
    lent = assemble(Request(model="llama-3.1-70b", gpu="gh200-96gb", ideal=True, offload=streamed))
    assert weights_of(lent) == pytest.approx(2 * 70.554e9, rel=1e-3)


def test_capacity_is_the_largest_rate_within_the_limits() -> None:
    """By independent runs at 4 % less and 6 % more: capacities are bisected to 3 %."""
    asked = question()
    found = design_at(best_point(REQUEST, assemble(REQUEST), asked), asked)
    worst = {}
    for factor in (0.96, 1.06):
        recipe = Traffic(arrivals=OpenLoop(rate=found.rate * factor, exact=True), **SMALL, requests_count=40_000)
        run = simulate(found.deployment, recipe, found.flags, Options(slo=asked.slo, trim=True))
        late = {name: np.percentile(getattr(run, name), 95) / limit for name, limit in asked.slo.limits.items()}
        worst[factor] = inf if run.verdict == "overloaded" else max(late.values())
    assert worst[0.96] <= 1.0 < worst[1.06]


def test_slower_devices_carry_less_by_the_law_of_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every second lasts 1.25 times as long, the same run keeps limits that are 1.25 times as long, at a rate
    that is 1.25 times smaller. Capacities are bisected to 3 %."""
    asked = question()
    tight = Slo(percentile=asked.slo.percentile, **{name: one / 1.25 for name, one in asked.slo.limits.items()})
    fast = work_of(REQUEST, assemble(REQUEST), replace(asked, slo=tight), FLAT)
    monkeypatch.setattr(day_work, "slowness", lambda *given: Slowness(step=1.25))
    at = replace(asked, sizing=replace(asked.sizing, confidence=0.8, insists=False))
    slow = work_of(REQUEST, assemble(REQUEST), at, FLAT)
    assert slow.design.rate == pytest.approx(fast.design.rate / 1.25, rel=0.04)
    assert (slow.confidence, fast.confidence) == (0.8, 0.5)
    monkeypatch.setattr(day_work, "slowness", lambda *given: None if given[3] > 0.5 else Slowness())
    assert work_of(REQUEST, assemble(REQUEST), at, FLAT).confidence == 0.5  # as predicted, as nobody insists
    real = replace(asked.space, base=replace(REQUEST, ideal=False))
    insists = replace(asked, space=real, sizing=replace(asked.sizing, confidence=0.8))
    with pytest.raises(InfeasibleError, match=r"at a confidence of 0\.8"):
        work_of(REQUEST, assemble(REQUEST), insists, FLAT)


def test_limits_that_nobody_keeps() -> None:
    with pytest.raises(InfeasibleError, match="under no load"):
        asked = question(ttft=1e-4)
        design_at(best_point(REQUEST, assemble(REQUEST), asked), asked)


def test_constant_load_and_no_cold_start_make_all_policies_alike() -> None:
    """Static and scheduled are the same run to the last bit, and cost peak x 24 h x price."""
    asked = DayAsked(
        profile=FLAT,
        policies=("static", "scheduled"),
        cold_start=ColdStart(rest=0.0),
        span=900.0,
        routing="round-robin",
    )
    day = simulate_day(REQUEST, assemble(REQUEST), question(), asked)
    static, scheduled = day.policies
    assert np.array_equal(static.result.records.finish, scheduled.result.records.finish)
    assert (static.cost, static.missed) == (scheduled.cost, scheduled.missed)
    peak = max(int(np.ceil(6.0 / (0.8 * day.work.design.rate))), 1)
    assert static.peak == peak
    assert static.cost * day.days == pytest.approx(peak * 24 * 2.00)


def test_a_day_that_rises_and_falls() -> None:
    """More replicas where more comes; less is paid than for the peak all day; every request is there once."""
    slow, asks = replace(REQUEST, gpu="l4"), question("l4=2.00", ttft=1.0, tpot=0.1)
    profile = PEAKS.scaled(60.0)
    asked = DayAsked(
        profile=profile, cold_start=ColdStart(rest=20.0), span=1800.0, autoscaler=Autoscaler(stabilisation=60.0)
    )
    day = simulate_day(slow, assemble(slow), asks, asked)
    static, scheduled, reactive = day.policies
    for one in day.policies:
        assert one.result.counts["finished"] == len(day.requests)
    assert static.peak > 1
    assert scheduled.cost < static.cost
    assert static.missed <= 0.05
    assert scheduled.missed <= 0.05
    assert scheduled.mean_replicas(700, 1100) > 2 * scheduled.mean_replicas(0, 400)
    assert reactive.mean_replicas(800, 1100) > 2 * reactive.mean_replicas(0, 400)
    assert scheduled.cost == pytest.approx(
        2.00 / 3600 * sum((min(life.gone, 1800.0) - life.ordered) for life in scheduled.result.lives), rel=1e-12
    )


def test_requests_are_those_of_the_profile() -> None:
    asked = DayAsked(profile=PEAKS, cold_start=ColdStart(rest=1.0), span=1800.0)
    requests = day_requests(question(), asked)
    assert requests.arrival is not None
    counts = np.histogram(requests.arrival, [0, 600, 1200, 1800])[0]
    assert counts == pytest.approx([2400, 12_000, 4800], rel=0.1)
    with pytest.raises(UsageError, match="no request arrives"):
        day_requests(question(), replace(asked, profile=FLAT.scaled(1e-5), span=10.0))


def test_what_a_day_needs() -> None:
    with pytest.raises(UsageError, match="start-up time"):
        DayAsked(profile=FLAT)
    assert DayAsked(profile=FLAT, policies=("static",)).cold_start is None
    with pytest.raises(UsageError, match="at most 24h"):
        DayAsked(profile=FLAT, policies=("static",), span=1e6)
    with pytest.raises(UsageError, match="more than a run can hold"):
        DayAsked(profile=FLAT.scaled(1e4), policies=("static",))
    with pytest.raises(UsageError, match="a number of replicas"):
        many = assemble(replace(REQUEST, parallel=replace(REQUEST.parallel, replicas=2)))
        simulate_day(REQUEST, many, question(), DayAsked(profile=FLAT, policies=("static",)))


def test_text_that_prompts_begin_with_is_found_as_in_a_simulation() -> None:
    """Three texts of 200 tokens, 12 blocks of 16 each: all but the first request of each text finds 192 tokens, for the
    cache forgets none, on one replica; and the run is that of the same requests with other names for the same blocks.
    """
    own = Lengths(kind="uniform", mean=256, spread=0.5)
    prefix = SharedPrefix(tokens=200, distinct=3)
    whole, cached = sharing(own, SMALL["output"], prefix, 1)
    asks = question()
    demand = Demand(prompt=whole, own=own, output=SMALL["output"], prefix=prefix, cached=cached, rate=1.0)
    asked = DayAsked(profile=FLAT, span=300.0, policies=("static",))
    day = simulate_day(REQUEST, assemble(REQUEST), replace(asks, demand=demand), asked)
    (static,) = day.policies
    requests = day.requests
    assert static.peak == 1 and requests.hashes is not None
    texts = [names[0] for names in requests.hashes]
    assert len(set(texts)) == 3 and requests.hash_block == 16
    later = np.array([text in texts[:place] for place, text in enumerate(texts)])
    found = static.result.records.cached
    assert [found.get(place, 0) for place in range(len(texts))] == np.where(later, 192, 0).tolist()
    named = [
        tuple((text, block) if block < 12 else (place, block) for block in range((prompt + output - 1) // 16))
        for place, (text, prompt, output) in enumerate(zip(texts, requests.prompt.tolist(), requests.output.tolist()))
    ]
    codes = {name: code for code, name in enumerate(dict.fromkeys(name for names in named for name in names))}
    same = replace(requests, hashes=[tuple(codes[name] for name in names) for names in named])
    again = simulate(assemble(REQUEST), same, day.work.design.flags)
    assert again.ttft.tolist() == static.result.ttft.tolist()


def test_conversations_of_a_day_are_those_of_a_simulation() -> None:
    """A rate of 4, 20 and 8 requests/s in ten minutes each, in conversations of four turns: 1, 5 and 2 begin a second,
    8,000 requests from 2,400 + 12,000 + 4,800 turns within four standard deviations. The static day is the simulation
    of these requests on as many replicas, to the last bit; under each policy every request comes in one of its hours,
    but for the turns after the end."""
    prefix = SharedPrefix(turns=4, think=ThinkTime(kind="exponential", mean=20.0))
    whole, cached = sharing(SMALL["prompt"], SMALL["output"], prefix, 1)
    demand = Demand(prompt=whole, own=SMALL["prompt"], output=SMALL["output"], cached=cached, prefix=prefix, rate=1.0)
    asked = DayAsked(
        profile=PEAKS,
        span=1800.0,
        policies=("static", "scheduled"),
        cold_start=ColdStart(rest=60.0),
        routing="sticky",
    )
    made = assemble(REQUEST)
    day = simulate_day(REQUEST, made, replace(question(ttft=0.2, tpot=0.008), demand=demand), asked)
    static, scheduled = day.policies
    sent = day.requests
    assert sent.arrival is not None and sent.follows is not None
    begins = sent.arrival[sent.follows < 0]
    expected = np.array([600, 3000, 1200])
    found = np.histogram(begins, [0, 600, 1200, 1800])[0]
    assert np.all(np.abs(found - expected) < 4 * np.sqrt(expected)) and len(sent) == 4 * len(begins)
    count = static.scaling.first
    fixed = replace(made, parallel=replace(made.parallel, replicas=count))
    alone = simulate(fixed, sent, day.work.design.flags, Options(fleet=Fleet(routing="sticky"), trim=False))
    for name in ("arrival", "first", "finish"):
        assert np.array_equal(getattr(static.result.records, name), getattr(alone.records, name)), name
    assert static.result.hit_rate == alone.hit_rate > 0.4
    for one in (static, scheduled):
        came = np.asarray(one.result.records.arrival)
        assert one.within(0.0, 600.0).stop == one.within(600.0, 1200.0).start == int(np.sum(came < 600.0))
        assert one.within(1200.0, 1800.0).stop == int(np.sum(came < 1800.0)) < len(sent)
        assert one.result.counts["finished"] == len(sent)


def test_answers_of_a_prompt_in_a_day() -> None:
    """Four answers each: a quarter of 12, 60 and 24 requests/s begin, in two minutes each. All four go to one replica,
    where those after the first find all full blocks of the prompt but that of its last token. The static day is the
    simulation of these requests on as many replicas, to the last bit."""
    own = Lengths(kind="uniform", mean=256, spread=0.5)
    whole, cached = sharing(own, SMALL["output"], SharedPrefix(), 4)
    demand = Demand(prompt=whole, own=own, output=SMALL["output"], cached=cached, samples=4, rate=1.0)
    short = Profile(name="short", starts=(0.0, 120.0, 240.0), rates=(12.0, 60.0, 24.0), end=360.0)
    asked = DayAsked(profile=short, span=360.0, policies=("static", "scheduled"), cold_start=ColdStart(rest=20.0))
    slow = replace(REQUEST, gpu="l4")
    made = assemble(slow)
    day = simulate_day(slow, made, replace(question("l4=2.00", ttft=1.0, tpot=0.07), demand=demand), asked)
    static, scheduled = day.policies
    sent = day.requests
    assert sent.arrival is not None and sent.samples == 4
    assert np.all(sent.arrival.reshape(-1, 4) == sent.arrival[::4, None])
    expected = np.array([360, 1800, 720])
    found = np.histogram(sent.arrival[::4], [0, 120, 240, 360])[0]
    assert np.all(np.abs(found - expected) < 4 * np.sqrt(expected))
    later = np.where(np.arange(len(sent)) % 4 > 0, (sent.prompt - 1) // 16 * 16, 0)
    assert static.peak > 1 and len(scheduled.result.lives) > 1
    for one in (static, scheduled):
        cached_tokens = one.result.records.cached
        assert [cached_tokens.get(place, 0) for place in range(len(sent))] == later.tolist()
    fixed = replace(made, parallel=replace(made.parallel, replicas=static.scaling.first))
    alone = simulate(fixed, sent, day.work.design.flags, Options(fleet=Fleet(routing="least-loaded"), trim=False))
    for name in ("arrival", "first", "finish"):
        assert np.array_equal(getattr(static.result.records, name), getattr(alone.records, name)), name


def test_sessions_of_a_day() -> None:
    """Three calls each, at 1.2, 6 and 2.4 calls/s in two minutes each: a third begin. The static day is the simulation
    of the same sessions on as many replicas, to the last bit; scheduled, all are served."""
    sessions = SessionTraffic(kinds=(chat(),), arrivals=OpenLoop(rate=1.0))
    demand = demand_of_sessions(sessions)
    assert demand.rate == 3.0
    short = Profile(name="short", starts=(0.0, 120.0, 240.0), rates=(1.2, 6.0, 2.4), end=360.0)
    asked = DayAsked(
        profile=short,
        span=360.0,
        policies=("static", "scheduled"),
        cold_start=ColdStart(rest=20.0),
        routing="sticky",
        least=2,
    )
    slow = replace(REQUEST, gpu="l4")
    made = assemble(slow)
    day = simulate_day(slow, made, replace(question("l4=2.00", ttft=1.0, tpot=0.07), demand=demand), asked)
    static, scheduled = day.policies
    sent = day.requests
    assert sent.arrival is not None and sent.follows is not None and sent.sessions is not None
    begins = sent.arrival[sent.follows < 0]
    expected = np.array([48, 240, 96])
    assert np.all(np.abs(np.histogram(begins, [0, 120, 240, 360])[0] - expected) < 4 * np.sqrt(expected))
    assert len(sent) == 3 * len(begins) and scheduled.result.counts["finished"] == len(sent)
    fixed = replace(made, parallel=replace(made.parallel, replicas=static.scaling.first))
    alone = simulate(fixed, sent, day.work.design.flags, Options(fleet=Fleet(routing="sticky"), trim=False))
    for name in ("arrival", "first", "finish"):
        assert np.array_equal(getattr(static.result.records, name), getattr(alone.records, name)), name
    assert static.result.hit_rate == alone.hit_rate > 0.5
    spread = [scattered(replace(asked, routing=way), day.question) for way in ROUTINGS]
    assert dict(zip(ROUTINGS, spread)) == {
        "least-loaded": True, "round-robin": True, "sticky": False, "cache-aware": False
    }  # fmt: skip


def test_sticky_routing_needs_conversations() -> None:
    asked = DayAsked(profile=FLAT, span=60.0, policies=("static",), routing="sticky")
    with pytest.raises(UsageError, match="needs conversations"):
        simulate_day(REQUEST, assemble(REQUEST), question(), asked)
