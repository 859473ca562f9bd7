"""Joules and CO2 of a day: by hand from the replicas' lives, and hour by hour (docs/power.md)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from inferplan.answers.power import run_energy
from inferplan.catalog.assemble import assemble
from inferplan.catalog.carbon import Carbon, grid_of
from inferplan.catalog.energy import EnergyAsked
from inferplan.errors import InputFileError
from inferplan.planning.day import Day, DayAsked, DayEnergy, simulate_day
from inferplan.serving.cold_start import ColdStart
from inferplan.traffic.profile import Profile
from tests.cases import for_each
from tests.planning.test_day import REQUEST, question

TWO_HOURS = Profile(name="two", starts=(0.0, 3600.0), rates=(1.0, 4.0), end=7200.0)


@cache
def day() -> Day:
    """Two hours, of which the second has four times the requests, all day and on a timetable."""
    start = ColdStart(rest=100.0)
    asked = DayAsked(profile=TWO_HOURS, policies=("static", "scheduled"), cold_start=start, span=7200.0)
    return simulate_day(REQUEST, assemble(REQUEST), question(), asked)


def energy(asked: EnergyAsked | None = None, policy: int = 0) -> DayEnergy:
    return DayEnergy(day=day(), policy=day().policies[policy], asked=asked or EnergyAsked())


@for_each("policy", [0, 1])
def test_a_replica_is_on_from_its_order_until_it_is_gone(policy: int) -> None:
    """0.164 of 700 W for every second that is paid for, 0.393 while steps run, and what their kernels add."""
    found, of = energy(policy=policy), day().policies[policy]
    whole = run_energy(day().work.design.deployment, of.result)
    assert whole is not None
    on = 700 * (0.164 * 3600 * of.replica_hours + (0.393 - 0.164) * whole.busy)
    assert sum(hour[0] for hour in found.hours) == pytest.approx(on, rel=1e-9)
    worked = whole.prompts + whole.decodes + whole.idle - whole.on
    assert sum(hour[1] for hour in found.hours) == pytest.approx(worked, rel=1e-9)
    assert sum(found.kwh) == pytest.approx((on + worked) / 3.6e6, rel=1e-9)
    assert found.idle_share == pytest.approx(on / (on + worked), rel=1e-9)
    tokens = float(np.sum(day().requests.output))
    assert found.per_output_token == pytest.approx((on + worked) / tokens, rel=1e-9)


def test_work_is_in_the_hours_of_its_requests() -> None:
    first, second = (worked for _, worked in energy().hours)
    came = int(np.searchsorted(day().requests.arrival, 3600.0))
    assert first / (first + second) == pytest.approx(came / len(day().requests), rel=1e-9)
    assert 0.15 < first / (first + second) < 0.25  # one of five


def test_host_and_facility_of_a_day_by_hand() -> None:
    """100 W beside every GPU that is there, and half as much again for the building."""
    plain, whole = energy(), energy(EnergyAsked(pue=1.5, host_watts=100.0))
    seconds = 3600 * day().policies[0].replica_hours
    assert sum(whole.kwh) == pytest.approx(1.5 * (sum(plain.kwh) + 100 * seconds / 3.6e6), rel=1e-9)


def test_every_hour_emits_by_its_own_grid(tmp_path: Path) -> None:
    """400 g/kWh, from half past midnight on 200: the first hour has 300 on average, the second 200."""
    (tmp_path / "grid.csv").write_text("time,grams\n0,400\n00:30,200\n", encoding="utf-8")
    grid = grid_of(tmp_path / "grid.csv")
    assert grid.grams == pytest.approx((0.5 * 400 + 23.5 * 200) / 24)
    found = energy(EnergyAsked(carbon=grid))
    assert found.grams == pytest.approx([300 * found.kwh[0], 200 * found.kwh[1]], rel=1e-9)
    same = energy(EnergyAsked(carbon=Carbon(grams=250.0, source="by hand")))
    assert same.grams == pytest.approx([250 * kwh for kwh in same.kwh], rel=1e-12)
    assert energy().grams is None


@for_each(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("time,rate\n0,1\n", "its first line is 'time,rate'"),
        ("time,grams\n", "its first line is 'time,grams'"),
        ("time,grams\n01:00,300\n", "2: time 01:00 is not 0"),
        ("time,grams\n0,300\n0,200\n", "3: time 0 is not after the one before it"),
        ("time,grams\n0,many\n", "2: grams is 'many', not a number"),
        ("time,grams\n0,-1\n", "2: grams is -1, not 0 or more"),
        ("time,grams\n0,nan\n", "2: grams is nan, not 0 or more"),
        ("time,grams\n0,1,2\n", "2: has 3 columns"),
        ("time,grams\n25:00,1\n", "is not within a day"),
    ],
)
def test_a_grid_that_is_none_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "grid.csv").write_text(text, encoding="utf-8")
    with pytest.raises(InputFileError) as refused:
        grid_of(tmp_path / "grid.csv")
    assert said in str(refused.value)
