"""What changes in a service is named by its cause, soon and once; nothing is named that did not change."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferplan.errors import UsageError
from inferplan.reports.plan_measured import PlanFile
from inferplan.reports.watching import held_to
from inferplan.watching.counters import read_counters
from inferplan.watching.drift import Event
from inferplan.watching.exporter import dashboard, exposition
from inferplan.watching.minutes import Minute, Minutes, Scrapes
from inferplan.watching.summary import Summary
from inferplan.watching.twin import Load, Predicted, Twin
from inferplan.watching.what_if import WhatIf
from tests.watching.planned import plan_file
from tests.watching.service import Does, Service

USUAL = Does(rate=20.0)


class Known(Twin):
    """A twin that knows the service's own arithmetic, but takes its steps for a tenth shorter than they are."""

    def _simulated(self, each: Load, slow: float) -> Predicted:
        does = Does(rate=each.rate, prompt=each.prompt, output=each.output, hits=each.hits)
        gap, ttft = does.gap / 1.1 * slow, does.ttft * slow
        return Predicted(verdict="stable", latencies={"ttft": 2 * ttft, "tpot": 1.1 * gap}, ttft=ttft, gap=gap)


def minutes_of(folder: Path, *what_ifs: str) -> Minutes:
    twin, drift = held_to(PlanFile(str(plan_file(folder))), 2)
    twin.__class__ = Known
    return Minutes(twin=twin, drift=drift, what_ifs=[WhatIf.parse(one) for one in what_ifs])


def watched(minutes: Minutes, service: Service, number: int) -> Iterator[Minute]:
    scrapes = Scrapes(servers=("a", "b"))
    for at, texts in service.scrapes(number):
        found = {name: None if text is None else read_counters(text, name) for name, text in zip("ab", texts)}
        ended = scrapes.add(at, found)
        if ended is not None:
            yield minutes.add(ended[0], at, ended[1])


def events(minutes: Minutes, service: Service, number: int) -> list[Event]:
    return [event for minute in watched(minutes, service, number) for event in minute.events]


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_named_in_a_steady_day(tmp_path: Path, seed: int) -> None:
    assert events(minutes_of(tmp_path), Service(seed=seed), 120) == []


@pytest.mark.parametrize(
    ("change", "cause", "times"),
    [
        (replace(USUAL, prompt=2000.0), "prompts", 2.0),
        (replace(USUAL, output=400.0), "answers", 2.0),
        (replace(USUAL, hits=0.0), "hits", 0.0),
        (replace(USUAL, slow=1.5), "steps", 1.5),
        (replace(USUAL, rate=30.0), "load", 1.5),
    ],
)
def test_a_change_is_named_within_five_minutes_and_its_end_too(
    tmp_path: Path, change: Does, cause: str, times: float
) -> None:
    found = events(minutes_of(tmp_path), Service(changes={60: change, 90: USUAL}), 120)
    named = [one for one in found if one.cause not in ("ttft", "tpot")]
    assert [(one.cause, one.back) for one in named] == [(cause, False), (cause, True)]
    began, ended = named
    assert 61 <= began.minute <= 65
    assert 91 <= ended.minute <= 95
    assert min(times, 1.0) - 0.05 <= began.times <= max(times, 1.0) + 0.05


def test_a_replica_that_is_lost_and_comes_back(tmp_path: Path) -> None:
    """The other one has all of the load, and no request is counted twice as counters begin anew."""
    minutes = minutes_of(tmp_path)
    found = list(watched(minutes, Service(lost=(60, 90)), 120))
    named = [event for minute in found for event in minute.events]
    assert [(one.cause, one.value, one.back) for one in named] == [("replicas", 1, False), ("replicas", 2, True)]
    assert named[0].minute == 61
    assert named[1].minute <= 92
    assert {minute.span.servers for minute in found[61:88]} == {1}
    rates = [minute.span.rate for minute in found]
    assert all(17 < rate < 23 for rate in rates[:59] + rates[62:89] + rates[92:])


def test_a_limit_that_is_broken_and_kept_again(tmp_path: Path) -> None:
    """Steps of 9.5 ms are 33 when all takes 3.5 times as long; TPOT is limited to 30."""
    found = events(minutes_of(tmp_path), Service(changes={30: replace(USUAL, slow=3.5), 60: USUAL}), 90)
    tpot = [one for one in found if one.cause == "tpot"]
    assert [one.back for one in tpot] == [False, True]
    assert 32 <= tpot[0].minute <= 36
    assert tpot[0].value > 0.03 == tpot[0].held


def test_steps_are_as_slow_as_the_first_minutes_say(tmp_path: Path) -> None:
    """The twin takes steps to be a tenth shorter than they are; from the eleventh minute on it says what they are, and
    when first tokens come, of which it knows the rest."""
    found = list(watched(minutes_of(tmp_path), Service(), 30))
    assert found[5].pace.step == 1.0
    assert found[20].pace.step == pytest.approx(1.1, rel=0.03)
    seen, should = found[20].span.gap.mean, found[20].as_seen
    assert should is not None
    assert should.gap == pytest.approx(seen, rel=0.06)
    assert should.ttft == pytest.approx(found[20].span.ttft.mean, rel=0.08)


def test_how_much_load_is_left(tmp_path: Path) -> None:
    """TPOT breaks first, where the gap of half the load is 30 ms by the service's own arithmetic; the rate is found
    within 6 %, and lengths are told apart by as much."""
    minute = list(watched(minutes_of(tmp_path), Service(), 3))[-1]
    load, room = minute.load, minute.room
    assert load is not None and room is not None
    assert room.first == "tpot"
    own = Does(rate=room.rate / 2, prompt=load.prompt, output=load.output, hits=load.hits)
    assert own.gap < 0.031
    assert replace(own, rate=own.rate * 1.12).gap > 0.03


def test_what_if(tmp_path: Path) -> None:
    minute = list(watched(minutes_of(tmp_path, "replicas=-1", "prompt=x2", "hits=0", "replicas=-2"), Service(), 2))[-1]
    assert [one.text for one, _ in minute.what_ifs] == ["replicas=-1", "prompt=x2", "hits=0"]  # none would be left
    usual = minute.as_seen
    assert usual is not None and usual.gap is not None
    assert all(found.gap is not None and found.gap > usual.gap for _, found in minute.what_ifs)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("replicas", "not a change of the load"),
        ("colour=x2", "not a change of the load"),
        ("prompt=+100", "only replicas"),
        ("prompt=0", "more than 0"),
        ("hits=1", "is a share"),
        ("replicas=1.5", "whole"),
        ("rate=xnan", "--what-if"),
    ],
)
def test_what_if_that_is_none(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        WhatIf.parse(text)
    assert said in str(refused.value)


def test_memory_does_not_grow_with_minutes(tmp_path: Path) -> None:
    """An hour more takes no more than is kept of predictions: a tenth of a megabyte."""
    minutes, summary = minutes_of(tmp_path), Summary()
    stream = watched(minutes, Service(), 90)
    tracemalloc.start()
    try:
        sizes: list[int] = []
        for minute in stream:
            summary.add(minute)
            if minute.number in (30, 90):
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert summary.minutes == 90
    assert sizes[1] - sizes[0] < 100_000


def test_metrics_of_its_own(tmp_path: Path) -> None:
    """What the exporter says is read by the reader of exports, and the dashboard asks for nothing else."""
    import json

    from inferplan.measuring.exposition import samples
    from inferplan.watching.exporter import METRICS

    minute = list(watched(minutes_of(tmp_path), Service(changes={5: replace(USUAL, prompt=3000.0)}), 20))[-1]
    found = {(one.name, one.labels): float(one.value) for one in samples(exposition(minute))}
    assert found["inferplan_requests_per_second", ""] == pytest.approx(minute.span.rate, rel=1e-6)
    assert found["inferplan_latency_limit_seconds", '{latency="tpot"}'] == 0.03
    assert found["inferplan_drift", '{cause="prompts"}'] == 1.0
    assert {name for name, _ in found} <= set(METRICS)
    asked: set[Any] = {target["expr"] for panel in json.loads(dashboard())["panels"] for target in panel["targets"]}
    assert asked <= set(METRICS)
