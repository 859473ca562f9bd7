"""A day of several kinds of traffic: their rates, the mixes that replicas are counted for, and their own limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferplan.catalog.assemble import Request, assemble
from inferplan.catalog.price_lists import price_book
from inferplan.planning.day import Day, DayAsked, PolicyDay, day_requests, simulate_day
from inferplan.planning.day_work import DayWork, spread_mixes, work_of
from inferplan.planning.demand import Demand, lengths_of_classes, screened_by
from inferplan.planning.option import Sizing
from inferplan.planning.question import Question
from inferplan.planning.space import Space
from inferplan.reports.day import day_report
from inferplan.serving.autoscaling import Schedule
from inferplan.serving.cold_start import ColdStart
from inferplan.serving.flags import Flags
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.records import FINISHED, Records
from inferplan.serving.result import SimulationResult
from inferplan.serving.simulator import simulate
from inferplan.serving.waiting import QueueOrder
from inferplan.traffic.profile import Profile
from inferplan.traffic.reasoning import outputs_of
from inferplan.traffic.requests import Lengths, OpenLoop, Slo, Traffic, TrafficClass
from inferplan.traffic.thoughts import ThoughtsAsked
from inferplan.work.parallel import Parallelism

REQUEST = Request(model="llama-3.1-8b", gpu="h100-sxm", ideal=True)
CHAT = TrafficClass(
    name="chat", share=0.5, prompt=Lengths(mean=256), output=Lengths(mean=24), slo=Slo(ttft=0.5, tpot=0.015)
)
BATCH = TrafficClass(
    name="batch", share=0.5, prompt=Lengths(mean=2000), output=Lengths(mean=64), slo=Slo(e2el=4.0), priority=1
)
NAMES = ("chat", "batch")
SHIFTS = Profile(
    name="shifts",
    starts=(0.0, 300.0, 600.0),
    rates=(25.0, 12.0, 10.0),
    end=900.0,
    classes=NAMES,
    of_class=((24.0, 6.0, 0.0), (1.0, 6.0, 10.0)),
)


def of_mix(profile: Profile, span: float = 900.0, queue: QueueOrder = "priority") -> Question:
    """A day of both, in the shares that the profile has."""
    classes = tuple(
        replace(one, share=share) for one, share in zip((CHAT, BATCH), profile.shares_until(span), strict=True)
    )
    prompt, output = lengths_of_classes(classes)
    return Question(
        space=Space(base=REQUEST, gpus=("h100-sxm",)),
        demand=Demand(prompt=prompt, output=output, rate=1.0, classes=classes, queue=queue),
        slo=screened_by(classes),
        sizing=Sizing(utilisation=0.8),
        prices=price_book(stated=["h100-sxm=2.00"]),
    )


@pytest.fixture(scope="module")
def day() -> Day:
    asked = DayAsked(profile=SHIFTS, policies=("static", "scheduled"), cold_start=ColdStart(rest=20.0), span=900.0)
    return simulate_day(REQUEST, assemble(REQUEST), of_mix(SHIFTS), asked)


def test_constant_rates_are_the_load_of_simulate_to_the_last_bit() -> None:
    """8 requests/s in shares of 3 and 1: the requests of ``simulate --classes``, and its run, whoever is next."""
    flat = Profile(name="flat", starts=(0.0,), rates=(8.0,), classes=NAMES, of_class=((6.0,), (2.0,)))
    span, made, waits = 120.0, assemble(REQUEST), {}
    for queue in ("fcfs", "priority", "fair"):
        question = of_mix(flat, span, queue)  # type: ignore[arg-type]
        requests = day_requests(question, DayAsked(profile=flat, policies=("static",), span=span))
        recipe = Traffic(
            arrivals=OpenLoop(rate=8.0),
            prompt=Lengths(),
            output=Lengths(),
            requests_count=len(requests),
            classes=question.demand.classes,
        )
        same, flags = recipe.requests(), Flags(max_num_seqs=1, queue=queue)  # type: ignore[arg-type]
        for name in ("arrival", "of", "prompt", "output"):
            assert np.array_equal(getattr(same, name), getattr(requests, name))
        scaling = Schedule(changes=((0.0, 2),))
        elastic = simulate(made, requests, flags, Options(fleet=Fleet(routing="least-loaded", scaling=scaling)))
        fixed = replace(made, parallel=Parallelism(replicas=2))
        plain = simulate(fixed, same, flags, Options(fleet=Fleet(routing="least-loaded")))
        for name in ("admitted", "first", "finish"):
            assert np.array_equal(getattr(plain.records, name), getattr(elastic.records, name))
        waits[queue] = float(np.mean(elastic.wait[np.asarray(elastic.records.of) == 0]))
    assert waits["priority"] < 0.9 * waits["fcfs"] and waits["fair"] < waits["fcfs"]


def test_classes_come_at_the_rates_of_the_moment() -> None:
    """Counts of both in every step, over 40 days: Poisson with the means of the profile, within five deviations."""
    edges = [0, 300, 600, 900]
    counts = np.zeros((40, 2, 3))
    for seed in range(40):
        asked = DayAsked(profile=SHIFTS, policies=("static",), span=900.0, seed=seed)
        requests = day_requests(of_mix(SHIFTS), asked)
        for place in range(2):
            counts[seed, place] = np.histogram(requests.arrival[requests.of == place], edges)[0]  # type: ignore[index]
        assert set(requests.prompt[requests.of == 0]) == {256} and set(requests.output[requests.of == 1]) == {64}
    means = 300 * np.array(SHIFTS.of_class)
    assert np.all(np.abs(counts.mean(axis=0) - means) <= 5 * np.sqrt(means / 40))
    assert np.all(counts[:, 0, 2] == 0)
    busy = means > 0
    assert counts.var(axis=0, ddof=1)[busy] == pytest.approx(means[busy], rel=5 * np.sqrt(2 / 39))


def test_shares_of_a_span_by_hand() -> None:
    """Of 450 s: 24 x 300 + 6 x 150 of chat, 1 x 300 + 6 x 150 of batch; of 1200 s the first step comes twice."""
    assert SHIFTS.shares_until(450.0) == pytest.approx([8100 / 9300, 1200 / 9300])
    assert SHIFTS.shares_until(1200.0) == pytest.approx([16_200 / 21_600, 5400 / 21_600])
    turned = SHIFTS.ordered(("batch", "chat"))
    assert (turned.classes, turned.of_class) == (("batch", "chat"), (SHIFTS.of_class[1], SHIFTS.of_class[0]))
    halved = replace(SHIFTS, classes=(), of_class=()).divided(NAMES, (0.75, 0.25))
    assert halved.of_class == (pytest.approx((18.75, 9.0, 7.5)), pytest.approx((6.25, 3.0, 2.5)))
    assert SHIFTS.scaled(50.0).of_class == (pytest.approx((48.0, 12.0, 0.0)), pytest.approx((2.0, 12.0, 20.0)))


def test_mixes_are_chosen_farthest_first() -> None:
    """By hand: the mean is nearest to 0.5; then 1.0 (0.5 away), 0.0, and 0.7 (0.2 away from 0.5); 0.505 is 0.5."""
    first = np.array([0.5, 0.505, 0.6, 0.7, 1.0, 0.0])
    shares, mean = np.column_stack([first, 1 - first]), np.array([0.52, 0.48])
    chosen, near, apart = spread_mixes(shares, mean, most=4)
    assert chosen == [1, 5, 4, 3]
    assert near.tolist() == [0, 0, 0, 3, 2, 1]
    assert apart == pytest.approx(0.095)
    everything, _, rest = spread_mixes(shares, mean, most=6)
    assert len(everything) == 5 and rest == pytest.approx(0.005)  # 0.5 and 0.505 are one


def test_each_mix_is_held_to_the_limits_of_its_classes(day: Day) -> None:
    """Independent runs of every mix at 4 % less and 7 % more than a replica is said to carry of it: each class at its
    own percentile. Batch alone carries what it likes of TPOT.
    """
    work, worst = day.work, {}
    assert sorted(mix.shares for mix in work.mixes) == [(0.0, 1.0), (0.5, 0.5), (0.96, 0.04)]
    for mix in work.mixes:
        kinds = tuple(replace(one, share=share) for one, share in zip((CHAT, BATCH), mix.shares) if share)
        held = [one for one in kinds if one.share >= 0.05]
        for factor in (0.96, 1.07):
            recipe = Traffic(
                arrivals=OpenLoop(rate=mix.design.rate * factor, exact=True),
                prompt=Lengths(),
                output=Lengths(),
                requests_count=12_000,
                classes=kinds,
            )
            run = simulate(mix.design.deployment, recipe, mix.design.flags, Options(trim=True))
            of, shares = np.asarray(run.records.of)[run.counted], []
            for one in held:
                mine = of == kinds.index(one)
                at = {name: np.percentile(getattr(run, name)[mine], 90) for name in one.slo.limits}
                shares += [at[name] / limit for name, limit in one.slo.limits.items()]
            worst[mix.shares, factor] = np.inf if run.verdict == "overloaded" else max(shares)
    for mix in work.mixes:
        assert worst[mix.shares, 0.96] <= 1.02
        assert worst[mix.shares, 1.07] > 0.98


def test_replicas_by_mix_by_hand(day: Day) -> None:
    """Every step takes the requests that come over 0.8 of what a replica carries of its mix."""
    rates = {mix.shares: mix.design.rate for mix in day.work.mixes}
    loads = [25 / rates[0.96, 0.04], 12 / rates[0.5, 0.5], 10 / rates[0.0, 1.0]]
    assert day.work.load.rates == pytest.approx(loads)
    wanted = [int(np.ceil(load / 0.8)) for load in loads]
    static, scheduled = day.policies
    assert static.scaling == Schedule(changes=((0.0, max(wanted)),), cold_start=20.0)
    assert isinstance(scheduled.scaling, Schedule)
    assert dict(scheduled.scaling.changes)[0.0] == wanted[0]
    assert scheduled.scaling.changes[-1][1] == wanted[2]
    expected = 300 * sum(loads)
    assert day.work.seconds(len(day.requests), SHIFTS, 900.0) == pytest.approx(
        expected * len(day.requests) / (300 * (25 + 12 + 10))
    )


def test_late_is_who_misses_the_limits_of_his_class(day: Day) -> None:
    """From the times of the requests alone."""
    for one in day.policies:
        records = one.result.records
        of, output = np.asarray(records.of), np.asarray(records.output)
        arrival, first, finish = (np.asarray(getattr(records, name)) for name in ("arrival", "first", "finish"))
        late = np.zeros(len(of), dtype=bool)
        late[of == 0] = ((first - arrival > 0.5) | ((finish - first) / (output - 1) > 0.015))[of == 0]
        late[of == 1] = (finish - arrival > 4.0)[of == 1]
        assert one.missed == pytest.approx(np.mean(late))
        record = next(row for row in day_report(day).record["policies"] if row["policy"] == one.policy)
        for place, name in enumerate(NAMES):
            found = record["classes"][place]
            assert found["name"] == name and found["requests"] == np.sum(of == place)
            assert found["missed"] == pytest.approx(np.mean(late[of == place]))
            assert found["ttft_s"] == pytest.approx(np.percentile((first - arrival)[of == place], 90))
        assert record["meets"] is bool(max(one["missed"] for one in record["classes"]) <= 0.1)
        (hour,) = record["hours"]
        assert hour["of_class"] == {name: np.sum(of == place) / 900 for place, name in enumerate(NAMES)}


def test_what_is_said_of_classes(day: Day) -> None:
    """Tables for people, columns for programs."""
    report = day_report(day)
    summary, classes, hours = report.tables
    assert "chat TTFT p90 < 500 ms, TPOT p90 < 15.0 ms; batch end-to-end latency p90 < 4.00 s" in summary.title
    assert "miss" in summary.columns and not any(name.startswith("TTFT") for name in summary.columns)
    assert [row[:2] for row in classes.rows] == [
        ["static", "chat"],
        ["", "batch"],
        ["scheduled", "chat"],
        ["", "batch"],
    ]
    assert ["p90 < 500 ms" in row[4] for row in classes.rows] == [True, False, True, False]
    assert hours.columns == ["hour", "requests/s", "chat", "batch", "static", "scheduled"]
    assert any(
        "queue per replica: priority; vLLM is started with --scheduling-policy priority" in n for n in report.notes
    )
    assert any("limits of batch" in note for note in report.notes)
    flat = report.flat_rows()[0]
    assert flat["classes.batch.missed"] == report.record["policies"][0]["classes"][1]["missed"]


def test_each_step_has_the_replicas_of_its_mix() -> None:
    """Of batch alone a replica carries less than half as many requests as of chat."""
    two = replace(SHIFTS, starts=(0.0, 300.0), rates=(20.0, 20.0), of_class=((20.0, 0.0), (0.0, 20.0)), end=600.0)
    work = work_of(REQUEST, assemble(REQUEST), of_mix(two, 600.0), two)
    chat, batch = work.load.rates
    assert batch > 2 * chat
    assert work.busiest.shares == (0.0, 1.0)


def test_requests_of_classes_think_before_they_answer() -> None:
    """200 tokens and a marker before answers of 24 and 64: a replica carries half as many of either mix."""
    two = replace(SHIFTS, starts=(0.0, 300.0), rates=(20.0, 20.0), of_class=((20.0, 0.0), (0.0, 20.0)), end=600.0)
    plain = of_mix(two, 600.0)
    output = outputs_of(ThoughtsAsked(tokens="200"), plain.demand.output)
    thinking = replace(plain, demand=replace(plain.demand, output=output))
    sent = day_requests(thinking, DayAsked(profile=two, span=600.0, policies=("static",)))
    assert sent.of is not None and sent.before is not None
    assert set(sent.before.tolist()) == {201}
    assert {(of, total) for of, total in zip(sent.of.tolist(), sent.output.tolist())} == {(0, 225), (1, 265)}
    loads = [work_of(REQUEST, assemble(REQUEST), one, two).load.rates for one in (plain, thinking)]
    assert all(1.8 * less < more < 2.4 * less for less, more in zip(*loads))


def test_late_by_hand() -> None:
    """Chat in 0.4 s and 0.6 s to its first token, batch in 3 s and 5 s in all: one of each is late. Two more of chat
    were never sent, and count nowhere."""
    records = Records(arrival=[0.0] * 6, prompt=[8] * 6, output=[11] * 6)
    records.classed((CHAT, BATCH), np.array([0, 0, 1, 1, 0, 0]))
    for request, (first, finish) in enumerate([(0.4, 0.5), (0.6, 0.7), (2.0, 3.0), (2.0, 5.0)]):
        records.first[request], records.finish[request], records.status[request] = first, finish, FINISHED
    slo = Slo(ttft=0.5, tpot=0.015, e2el=4.0)
    result = SimulationResult(records=records, meters=[], closed=False, slo=slo, cooldown=2)
    tariff = price_book(stated=["h100-sxm=2.00"]).require("h100-sxm", 1)
    scaling = Schedule(changes=((0.0, 1),))
    one = PolicyDay(policy="static", scaling=scaling, result=result, span=60.0, tariff=tariff, work=1.0)
    assert one.late.tolist() == [False, True, False, True]
    assert one.missed == pytest.approx(0.5)
    assert [float(np.mean(part.attained)) for _, part in one.parts] == [0.5, 0.5]


def test_one_mix_is_simulated_once() -> None:
    flat = replace(SHIFTS, starts=(0.0, 300.0), rates=(8.0, 16.0), of_class=((6.0, 12.0), (2.0, 4.0)))
    work = work_of(REQUEST, assemble(REQUEST), of_mix(flat), flat)
    assert isinstance(work, DayWork)
    ((mix,), busiest) = work.mixes, work.busiest
    assert mix is busiest and mix.shares == pytest.approx((0.75, 0.25))
    assert work.load.rates == pytest.approx((8 / mix.design.rate, 16 / mix.design.rate))
    assert (work.apart, mix.design.flags.queue) == (0.0, "priority")
