"""A fleet of owned and rented kinds: against the plan of one kind, and what must hold of its cost."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest

from inferplan.answers.drafting import Drafting
from inferplan.catalog.assemble import Request
from inferplan.catalog.price_lists import price_book
from inferplan.errors import InfeasibleError, MissingFactError, UsageError
from inferplan.models.media import MediaAsked
from inferplan.planning.demand import Demand
from inferplan.planning.design import Design
from inferplan.planning.fleet import FleetAsked, FleetPlan, ReplicaGroup, designs_of, plan_fleet
from inferplan.planning.machines import Kind
from inferplan.planning.option import Sizing
from inferplan.planning.plan import plan
from inferplan.planning.question import Question
from inferplan.planning.space import Space
from inferplan.planning.verify import limited
from inferplan.reports.fleet import fleet_report
from inferplan.serving.fleet import Fleet
from inferplan.serving.options import Options
from inferplan.serving.result import SimulationResult
from inferplan.serving.run_length import steady
from inferplan.serving.simulator import simulate
from inferplan.traffic.popularity import Popularity
from inferplan.traffic.reasoning import ReasoningLengths
from inferplan.traffic.requests import Lengths, Media, OpenLoop, SharedPrefix, Slo, Traffic, TrafficClass
from inferplan.work.adapters import LoraAsked
from tests.cases import for_each

PRICES = price_book(stated=["l40s=1.00", "h100-sxm=32/8"])
OWN = Kind(gpu="l4", owned=True, most=4)
L40S, H100 = Kind(gpu="l40s", owned=False), Kind(gpu="h100-sxm", owned=False)


def question(rate: float = 150.0, **space: object) -> Question:
    return Question(
        space=Space(
            base=Request(model="llama-3.1-8b", gpu="", ideal=True),
            gpus=("l4", "l40s", "h100-sxm"),
            quants=(None,),
            most=1,
            budgets=(2048,),
            **({"disaggregate": False} | space),  # type: ignore[arg-type]
        ),
        demand=Demand(prompt=Lengths(mean=256), output=Lengths(mean=64), rate=rate),
        slo=Slo(percentile=95.0, ttft=0.5, tpot=0.08),
        sizing=Sizing(utilisation=0.8),
        prices=PRICES,
    )


def fleet(*kinds: Kind, rate: float = 150.0, own_price: float = 0.0) -> FleetPlan:
    return plan_fleet(question(rate), FleetAsked(kinds=kinds, own_price=own_price, designs=1))


@pytest.fixture(scope="module")
def mixed() -> FleetPlan:
    return fleet(OWN, L40S, H100)


def test_the_mix_by_hand(mixed: FleetPlan) -> None:
    """All L4 that are owned, and of what is rented the cheaper of so many L40S or one box of eight H100."""
    each = {way.kind.name: way.rate for way in mixed.ways}
    rest = 150.0 - 4 * each["l4"]
    assert 0 < each["l4"] < each["l40s"] < each["h100-sxm"]
    assert {part.way.kind.name: part.replicas for part in mixed.parts} == {"l4": 4, "l40s": ceil(rest / each["l40s"])}
    assert mixed.cost == pytest.approx(ceil(rest / each["l40s"]) * 1.00)
    assert sum(part.share for part in mixed.parts) == pytest.approx(1.0)
    first, second = mixed.parts
    assert first.share == pytest.approx(4 * each["l4"] / (4 * each["l4"] + second.replicas * each["l40s"]))
    assert (mixed.taken(OWN), mixed.taken(L40S), mixed.taken(H100)) == (4, second.replicas, 0)


def test_a_mix_that_misses_in_every_run_is_not_sold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine runs; in the last each replica is given 0.97^8 = 0.784 of what it keeps alone."""
    runs = list[float]()

    def misses(run: SimulationResult, question: Question) -> bool:
        runs.append(question.sizing.utilisation)
        return False

    monkeypatch.setattr("inferplan.planning.fleet._keeps", misses)
    with pytest.raises(InfeasibleError, match="no mix was found whose replicas on l40s keep") as told:
        fleet(L40S, rate=20.0)
    assert len(runs) == 9
    assert "9 were run; in the last each replica was loaded to 22% less" in str(told.value.because)


def test_the_mix_keeps_the_limits_behind_one_router(mixed: FleetPlan) -> None:
    assert mixed.keeps(mixed.run)
    by = np.asarray(mixed.run.records.served_by)
    for member, part in enumerate(mixed.parts):
        assert mixed.keeps(part.run)
        assert np.mean(by == member) == pytest.approx(part.share, abs=0.01)
    finished = [part.run.counts["finished"] for part in mixed.parts]
    assert sum(finished) == mixed.run.counts["finished"]


def alone(part: ReplicaGroup, factor: float, shape: float) -> SimulationResult:
    """One replica of a part that gets every ``shape``-th request of the stream, under so many times its load."""
    each = factor * part.load / part.replicas
    loop = OpenLoop(rate=each, kind="gamma", burstiness=shape)
    traffic = Traffic(arrivals=loop, prompt=Lengths(mean=256), output=Lengths(mean=64), requests_count=16_000, seed=7)
    return simulate(part.way.design.deployment, traffic, part.way.design.flags, Options(trim=True))


def test_what_is_quoted_of_a_part_is_what_one_of_its_replicas_says_in_a_long_run(mixed: FleetPlan) -> None:
    for part in mixed.parts:
        one = alone(part, 1.0, mixed.given / part.way.rate)
        for name, value in mixed.at_percentile(part.run).items():
            assert value == pytest.approx(np.percentile(getattr(one, name), 95.0), rel=0.03)


def test_a_capacity_that_is_too_large_is_found_out_at_the_load_it_is_sized_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With designs that are said to carry a tenth more than they do, the mix still has its headroom."""

    def boasted(*given: Any) -> list[Design]:
        return [replace(one, rate=1.1 * one.rate) for one in designs_of(*given)]

    monkeypatch.setattr("inferplan.planning.fleet.designs_of", boasted)
    found = fleet(OWN, L40S, rate=140.0)
    for part in found.parts:
        late = alone(part, 1 / 0.8, found.given / part.way.rate)
        assert np.percentile(late.ttft, 95.0) <= 0.5 * 1.02
        assert np.percentile(late.tpot, 95.0) <= 0.08 * 1.02


CLASSES = tuple(
    TrafficClass(name=name, share=0.5, prompt=Lengths(mean=prompt), output=Lengths(mean=40), slo=Slo(ttft=limit))
    for name, prompt, limit in (("short", 200, 0.5), ("long", 600, 0.6))
)
OF_ONE: dict[str, dict[str, Any]] = {
    "media": {
        "model": "qwen2.5-vl-3b",
        "base": {"media": MediaAsked(images=1, image_size=(640, 480), text=200.0)},
        "demand": {"prompt": Lengths(mean=591), "text": Lengths(mean=200), "media": Media(tokens=391)},
    },
    "conversations": {
        "demand": {"own": Lengths(mean=256), "prefix": SharedPrefix(tokens=100, distinct=2, turns=3)},
        "options": {"fleet": Fleet(routing="sticky")},
    },
    "classes": {"demand": {"classes": CLASSES, "prompt": Lengths(mean=400), "output": Lengths(mean=40)}},
    "thoughts": {"demand": {"output": ReasoningLengths(thought=Lengths(mean=100), answer=Lengths(mean=30))}},
    "adapters": {
        "base": {"lora": LoraAsked(rank=16, slots=4)},
        "space": {"slots": (4,)},
        "demand": {"adapters": Popularity(count=8, skew=1.0), "lora_bandwidth": 25e9},
        "options": {"lora_bandwidth": 25e9},
    },
    "drafts": {"space": {"drafting": (Drafting(model=None, length=5, acceptance=1.0),)}, "demand": {"rate": 90.0}},
    "samples": {"demand": {"samples": 4, "own": Lengths(mean=256), "rate": 240.0}},
}
"""What a load has, as a question and its requests do."""


def loaded(name: str, rate: float = 60.0) -> Question:
    asked, of = question(rate), OF_ONE[name]
    base = replace(asked.space.base, model=of.get("model", "llama-3.1-8b"), **of.get("base", {}))
    return replace(
        asked,
        space=replace(asked.space, base=base, **of.get("space", {})),
        demand=replace(asked.demand, **of.get("demand", {})),
    )


@for_each("name", OF_ONE)
def test_a_fleet_of_one_kind_is_so_many_replicas(name: str) -> None:
    """To the last bit what ``simulate`` says of them behind the same router."""
    found = plan_fleet(loaded(name), FleetAsked(kinds=(L40S,), designs=1))
    (part,) = found.parts
    for slo, of in limited(run := found.run, found.question.slo):
        assert all(np.percentile(getattr(of, limit), slo.percentile) <= most for limit, most in slo.limits.items())
    assert (part.way.design.option.speculation.length > 0) == (name == "drafts")
    assert part.replicas > 1 and found.keeps(found.run)
    design = part.way.design
    served = replace(design.deployment, parallel=replace(design.deployment.parallel, replicas=part.replicas))
    count = len(run.records.prompt) // found.question.demand.samples
    traffic = steady(found.question.demand.traffic(found.question.demand.rate or 0.0, 1), count)
    alone = simulate(
        served,
        traffic,
        design.flags,
        Options(trim=True, speculation=design.option.speculation, **OF_ONE[name].get("options", {})),
    )
    for column in ("arrival", "admitted", "first", "finish"):
        assert bytes(getattr(run.records, column)) == bytes(getattr(alone.records, column))


def test_one_kind_alone_costs_more(mixed: FleetPlan) -> None:
    costs = {single.gpu: single for single in mixed.singles}
    assert costs["l4"].bought is None
    assert costs["l4"].most == pytest.approx(4 * next(w.rate for w in mixed.ways if w.kind is OWN))
    assert costs["h100-sxm"].cost == 32.0
    assert mixed.best_single is not None
    assert mixed.best_single.gpu == "l40s"
    assert mixed.cost < mixed.best_single.cost


def test_without_a_stock_it_is_the_plan_of_the_cheapest_kind() -> None:
    """The plan is sized by simulation of whole fleets, the mix by what a replica carries, which is known to 3 %."""
    found = fleet(L40S, H100)
    asked = question()
    best = plan(replace(asked, space=replace(asked.space, gpus=("l40s", "h100-sxm"))))
    assert best.option.deployment.hardware.name == found.parts[0].way.kind.name == "l40s"
    assert found.cost == pytest.approx(best.option.cost)


def test_enough_that_is_owned_costs_nothing_and_its_power_what_is_said() -> None:
    plenty = replace(OWN, most=64)
    free = fleet(plenty, L40S)
    assert free.cost == 0.0
    assert [part.way.kind for part in free.parts] == [plenty]
    assert free.taken(plenty) == free.parts[0].devices < 64
    paid = fleet(plenty, own_price=0.25)
    assert paid.cost == pytest.approx(0.25 * free.devices)
    dear = fleet(plenty, L40S, own_price=100.0)
    assert [part.way.kind for part in dear.parts] == [L40S]


def test_a_least_quality_says_which_formats_it_leaves_out(mixed: FleetPlan) -> None:
    """Published evaluations of int4 keep 93 % of Arena-Hard (configs/quality.yaml)."""
    space = replace(mixed.question.space, quants=(None, "int4"), quality=0.99)
    notes = fleet_report(replace(mixed, question=replace(mixed.question, space=space))).notes
    assert "--quality 0.99 leaves out int4 (93.0% of Arena-Hard)" in notes
    assert not [note for note in fleet_report(mixed).notes if "--quality" in note]


def test_what_is_not_answered() -> None:
    with pytest.raises(InfeasibleError, match="4 l4 carry"):
        fleet(OWN)
    with pytest.raises(UsageError, match="needs GPUs"):
        FleetAsked(kinds=())
    with pytest.raises(UsageError, match="--own l4 is given twice"):
        FleetAsked(kinds=(OWN, replace(OWN, most=2)))
    with pytest.raises(UsageError, match="--own-price"):
        FleetAsked(kinds=(L40S,), own_price=0.1)
    with pytest.raises(UsageError, match="smallest instance has 8 GPUs"):
        fleet(replace(H100, most=4))
    unsold = Kind(gpu="m1-pro", owned=False)
    with pytest.raises(MissingFactError, match="no price of"):
        fleet(unsold)
    late = replace(question(), slo=Slo(percentile=95.0, tpot=1e-5))
    with pytest.raises(InfeasibleError, match=r"no replica of .* runs on l4 within"):
        plan_fleet(late, FleetAsked(kinds=(OWN,)))
