"""The cheapest mix against brute force over all small mixes, and what must hold of any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.catalog.bills import Offer
from inferplan.planning.machines import Bought, Machine, Need

TRIALS = settings(max_examples=60, deadline=None)


@dataclass(frozen=True, kw_only=True)
class Column:
    """Replicas of one design on machines of their own. room: replicas of a machine. gpus, price: of one."""

    kind: int
    rate: float
    devices: int
    room: int
    gpus: int
    price: float


def column(
    kind: int = 0, rate: float = 1.0, devices: int = 1, lot: tuple[int, int] | None = None, price: float = 1.0
) -> Column:
    """lot: replicas and GPUs of an instance; ``None``: one replica on its own GPUs."""
    room, gpus = lot or (1, devices)
    return Column(kind=kind, rate=rate, devices=devices, room=room, gpus=gpus, price=price)


def need(found: Sequence[Column], stocks: Sequence[float], load: float) -> Need:
    """Replicas of the designs that carry a load together."""
    sold = [
        Offer(gpu="chip", gpus=one.gpus, per_hour=one.price, currency="USD", term="on-demand", source="test")
        for one in found
    ]
    return Need(
        machines=[Machine(one.kind, offer, 1, {n: one.room}) for n, (one, offer) in enumerate(zip(found, sold))],
        stocks=stocks,
        devices={place: one.devices for place, one in enumerate(found)},
        rates={place: one.rate for place, one in enumerate(found)},
        load=load,
    )


def cheapest_mix(found: Sequence[Column], stocks: Sequence[float], load: float) -> Bought | None:
    return need(found, stocks, load).cheapest()


def counts_of(bought: Bought) -> tuple[int, ...]:
    return tuple(bought.replicas.values())


def cost_of(found: Sequence[Column], bought: Bought) -> float:
    """The bill, worked out again from the replicas: of whole machines, no more than hold them."""
    lots = [ceil(count / one.room) for one, count in zip(found, counts_of(bought))]
    assert [next((n for machine, n in bought.used if place in machine.holds), 0) for place in range(len(found))] == lots
    cost = sum(one.price * lot for one, lot in zip(found, lots))
    assert bought.cost == pytest.approx(cost, abs=1e-9)
    return cost


def rate_of(found: Sequence[Column], bought: Bought) -> float:
    return sum(one.rate * count for one, count in zip(found, counts_of(bought)))


@st.composite
def columns(draw: st.DrawFn, kinds: int = 2) -> list[Column]:
    """Up to three columns. Rates are multiples of 1/4 and prices of 1/8, so that no two sums differ by a rounding."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        devices = draw(st.sampled_from([1, 2, 4]))
        instance = draw(st.booleans())
        found.append(
            column(
                kind=draw(st.integers(0, kinds - 1)),
                rate=draw(st.integers(1, 24)) / 4,
                devices=devices,
                lot=(4 // devices, 4) if instance else None,
                price=draw(st.integers(0, 80)) / 8,
            )
        )
    return found


STOCKS = st.tuples(*[st.one_of(st.integers(0, 12).map(float), st.just(inf))] * 2)
LOADS = st.integers(1, 40).map(lambda quarter: quarter / 4)


def brute(found: list[Column], stocks: tuple[float, ...], load: float) -> tuple[float, int] | None:
    """The least cost, and the fewest GPUs at it, over every number of replicas up to those that carry all alone."""
    best = None
    for counts in product(*(range(ceil(load / one.rate) + 1) for one in found)):
        if sum(one.rate * count for one, count in zip(found, counts)) < load:
            continue
        lots = [ceil(count / one.room) for one, count in zip(found, counts)]
        if any(
            sum(one.gpus * lot for one, lot in zip(found, lots) if one.kind == kind) > stock
            for kind, stock in enumerate(stocks)
        ):
            continue
        cost = sum(one.price * lot for one, lot in zip(found, lots))
        devices = sum(one.devices * count for one, count in zip(found, counts))
        best = min(best or (inf, 0), (cost, devices))
    return best


@TRIALS
@given(columns(), STOCKS, LOADS)
def test_the_programme_and_brute_force_agree(found: list[Column], stocks: tuple[float, ...], load: float) -> None:
    mix, least = cheapest_mix(found, stocks, load), brute(found, stocks, load)
    if mix is None or least is None:
        assert mix is None and least is None
        assert need(found, stocks, load).most_load() < load
        return
    assert cost_of(found, mix) == pytest.approx(least[0], abs=1e-9)
    assert sum(one.devices * count for one, count in zip(found, counts_of(mix))) == least[1]
    assert rate_of(found, mix) >= load
    assert all(mix.taken(kind) <= stock for kind, stock in enumerate(stocks))
    assert mix.gap == 0.0


@TRIALS
@given(columns(), STOCKS, LOADS, st.integers(0, 1), st.integers(0, 6))
def test_more_stock_never_costs_more(
    found: list[Column], stocks: tuple[float, ...], load: float, kind: int, more: int
) -> None:
    before = cheapest_mix(found, stocks, load)
    grown = [stock + more * (index == kind) for index, stock in enumerate(stocks)]
    after = cheapest_mix(found, grown, load)
    if before is not None:
        assert after is not None
        assert cost_of(found, after) <= cost_of(found, before) + 1e-9


@TRIALS
@given(columns(), STOCKS, LOADS, LOADS)
def test_more_load_never_costs_less(found: list[Column], stocks: tuple[float, ...], load: float, more: float) -> None:
    before, after = cheapest_mix(found, stocks, load), cheapest_mix(found, stocks, load + more)
    if after is not None:
        assert before is not None
        assert cost_of(found, after) >= cost_of(found, before) - 1e-9


@TRIALS
@given(columns(), LOADS)
def test_a_mix_costs_no_more_than_any_one_kind(found: list[Column], load: float) -> None:
    mix = cheapest_mix(found, (inf, inf), load)
    assert mix is not None
    alone = [one.price * ceil(ceil(load / one.rate) / one.room) for one in found]
    assert cost_of(found, mix) <= min(alone) + 1e-9


@given(st.integers(1, 10), LOADS)
@TRIALS
def test_enough_that_is_owned_costs_nothing(rate: int, load: float) -> None:
    """And as many replicas work as the load takes, however many there are."""
    found = [column(kind=0, rate=rate / 2, price=0.0), column(kind=1, rate=20.0, price=3.0)]
    mix = cheapest_mix(found, (200.0, inf), load)
    assert mix is not None
    assert counts_of(mix) == (ceil(load / (rate / 2)), 0)
    assert cost_of(found, mix) == 0.0


def test_the_mix_of_the_page_by_hand() -> None:
    """docs/fleet.md: four A100 are given 24 of 30 requests/s; two L40S at 1.861 an hour carry the rest."""
    found = [column(kind=0, rate=6.0, price=0.0), column(kind=1, rate=3.275, price=1.861)]
    mix = cheapest_mix(found, (4.0, inf), 30.0)
    assert mix is not None
    assert counts_of(mix) == (4, 2)
    assert cost_of(found, mix) == pytest.approx(2 * 1.861)
    assert need(found, (4.0, 2.0), 30.0).most_load() == pytest.approx(24 + 6.55)
    assert need(found, (4.0, inf), 30.0).most_load() == inf


def test_whole_instances_are_paid_for() -> None:
    """Nine replicas of one GPU are two instances of eight; six of two GPUs are two as well."""
    one, two = column(rate=1.0, lot=(8, 8), price=16.0), column(rate=1.5, devices=2, lot=(4, 8), price=16.0)
    for found in (cheapest_mix([one], (inf,), 9.0), cheapest_mix([two], (inf,), 9.0)):
        assert found is not None
        assert (found.cost, found.gpus, found.taken(0)) == (32.0, 16, 16)
    mix = cheapest_mix([one, two], (inf,), 8.0)
    assert mix is not None
    assert (counts_of(mix), cost_of([one, two], mix)) == ((8, 0), 16.0)


def test_a_stock_of_no_whole_instance_is_of_no_use() -> None:
    assert cheapest_mix([column(lot=(8, 8))], (7.0,), 1.0) is None
    assert need([column(lot=(8, 8))], (7.0,), 1.0).most_load() == 0.0
    assert cheapest_mix([], (8.0,), 1.0) is None
    assert need([], (8.0,), 1.0).most_load() == 0.0


def test_equals_in_cost_run_on_fewest_gpus() -> None:
    """Ten requests/s: five free pairs, or an instance that is there anyway."""
    found = [column(kind=0, rate=2.0, devices=2, price=0.0), column(kind=1, rate=4.0, lot=(8, 8), price=60.0)]
    mix = cheapest_mix(found, (16.0, inf), 20.0)  # 16 GPUs carry 16, so that an instance is rented, which carries all
    assert mix is not None
    assert counts_of(mix) == (0, 5)


def test_a_large_fleet_is_solved() -> None:
    """10,000 requests/s over six columns with rates and prices of no common measure, to the last of the bill."""
    found = [
        column(kind=kind, rate=rate, devices=devices, lot=(8 // devices, 8) if kind else None, price=price)
        for kind, rate, devices, price in [
            (0, 6.137, 1, 0.31), (0, 12.911, 2, 0.62), (1, 4.094, 1, 30.13), (1, 8.447, 2, 30.13),
            (2, 19.713, 1, 63.296), (2, 41.001, 2, 63.296),
        ]
    ]  # fmt: skip
    mix = cheapest_mix(found, (500.0, 800.0, inf), 10_000.0)
    assert mix is not None
    assert mix.gap < 1e-6
    assert rate_of(found, mix) >= 10_000 * (1 - 1e-6)
    bound = 500 * 0.31 + (10_000 - 250 * 12.911) / (41.001 / 2 * 8) * 63.296  # instances in parts
    assert bound <= cost_of(found, mix) <= bound + 63.296
