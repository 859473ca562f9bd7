"""Machines that are bought: the programme against brute force, by hand, and what must hold of any.

First a mix of designs that carries a load together, then numbers of replicas on machines that they share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import ceil, inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inferplan.catalog.bills import Offer
from inferplan.planning.domains import Placed, Placing, Wanted
from inferplan.planning.machines import Bought, Machine, Need, Size, machines

TRIALS = settings(max_examples=60, deadline=None)


def offer(gpus: int | None, price: float) -> Offer:
    return Offer(gpu="chip", gpus=gpus, per_hour=price, currency="USD", term="on-demand", source="test")


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
    return Need(
        machines=[Machine(one.kind, offer(one.gpus, one.price), 1, {n: one.room}) for n, one in enumerate(found)],
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


def cheapest_by_hand(found: list[Column], stocks: tuple[float, ...], load: float) -> tuple[float, int] | None:
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
def test_a_mix_is_the_one_that_brute_force_finds(found: list[Column], stocks: tuple[float, ...], load: float) -> None:
    mix, least = cheapest_mix(found, stocks, load), cheapest_by_hand(found, stocks, load)
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


def size(devices: int, together: int) -> Size:
    return Size("chip", devices, together)


def pack(
    needed: Mapping[Size, int], sold: Sequence[Offer], stock: float = inf, owned: tuple[int, float] = (0, 0.0)
) -> Placed | None:
    """The machines for so many replicas of each size. owned: GPUs that are there, and what an hour of one costs."""
    sizes = [one for one, count in needed.items() if count]
    mine = [offer(None, owned[1])] if owned[0] else []
    return Placing(
        machines=[one for kind, of in enumerate((sold, mine)) if of and sizes for one in machines(kind, of, sizes)],
        stocks=(stock, owned[0]),
        wanted={one: Wanted(one, count) for one, count in needed.items()},
    ).cheapest()


def contents(sizes: tuple[int, ...], left: tuple[int, ...], room: int) -> Iterator[tuple[int, ...]]:
    """Every number of the replicas that are left which fit into ``room`` GPUs together."""
    if not sizes:
        yield ()
        return
    for count in range(min(left[0], room // sizes[0]) + 1):
        for rest in contents(sizes[1:], left[1:], room - count * sizes[0]):
            yield (count, *rest)


@cache
def packed_by_hand(
    sizes: tuple[int, ...], left: tuple[int, ...], machines: tuple[tuple[int, float], ...]
) -> tuple[float, int]:
    """The least cost and the fewest GPUs at it, over every content of every next machine."""
    if not any(left):
        return 0.0, 0
    best = (inf, 0)
    for room, price in machines:
        for content in contents(sizes, left, room):
            if any(content):
                cost, gpus = packed_by_hand(sizes, tuple(a - b for a, b in zip(left, content)), machines)
                best = min(best, (price + cost, room + gpus))
    return best


@TRIALS
@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 5)), min_size=1, max_size=3, unique_by=lambda p: p[0]
    ),
    st.lists(
        st.tuples(st.sampled_from([8, 9, 12]), st.integers(8, 80)), min_size=1, max_size=2, unique_by=lambda p: p[0]
    ),
)
@example(demand=[(1, 1), (2, 5)], machines=[(8, 8), (9, 8)])  # two machines of equal price, of which one is smaller
def test_a_packing_is_the_one_that_brute_force_finds(
    demand: list[tuple[int, int]], machines: list[tuple[int, int]]
) -> None:
    """Instances of at least eight GPUs, so that each holds a replica of any size. Prices are multiples of 1/8."""
    sold = tuple((gpus, price / 8) for gpus, price in machines)
    found = pack({size(devices, 1): count for devices, count in demand}, [offer(*one) for one in sold])
    least = packed_by_hand(tuple(size for size, _ in demand), tuple(count for _, count in demand), sold)
    assert found is not None
    assert (found.cost, found.gpus) == (pytest.approx(least[0], abs=1e-9), least[1])
    assert found.gap == 0.0
    for devices, needed in demand:
        held = sum(machine.holds.get(size(devices, 1), 0) * count for machine, count in found.used)
        assert held >= needed


def test_replicas_of_different_sizes_share_a_machine() -> None:
    """Three of two GPUs and two of one fill one instance of eight; apart they would be two."""
    found = pack({size(2, 2): 3, size(1, 1): 2}, [offer(8, 55.04)])
    assert found is not None
    assert (found.cost, found.gpus) == (55.04, 8)
    found = pack({size(2, 2): 3, size(1, 1): 3}, [offer(8, 55.04)])
    assert found is not None
    assert found.gpus == 16


def test_the_cheaper_of_two_instances_holds_the_rest() -> None:
    """Nine replicas of one GPU: an instance of eight at 8 and one of one at 1.5, not two of eight, nor nine of one."""
    found = pack({size(1, 1): 9}, [offer(8, 8.0), offer(1, 1.5)])
    assert found is not None
    assert found.cost == 9.5
    assert sorted((machine.gpus, count) for machine, count in found.used) == [(1, 1), (8, 1)]


def test_a_replica_larger_than_an_instance_has_instances_of_its_own() -> None:
    """Sixteen GPUs are two instances of eight, and a replica of one GPU a third: none of the two has room."""
    found = pack({size(16, 8): 1, size(1, 1): 1}, [offer(8, 10.0)])
    assert found is not None
    assert (found.cost, found.gpus) == (30.0, 24)


def test_gpus_one_by_one_and_owned_ones() -> None:
    """Seven GPUs' worth: four owned ones hold the large replica, at half a dollar each; three are rented at two."""
    demand = {size(4, 4): 1, size(1, 1): 3}
    found = pack(demand, [offer(None, 2.0)], owned=(4, 0.5))
    assert found is not None
    assert found.cost == pytest.approx(4 * 0.5 + 3 * 2.0)
    assert pack(demand, [offer(None, 2.0)], stock=2, owned=(4, 0.5)) is None
    assert pack(demand, [], stock=0.0, owned=(6, 0.0)) is None
    free = pack(demand, [], stock=0.0, owned=(7, 0.0))
    assert free is not None
    assert (free.cost, free.gpus) == (0.0, 7)


def test_a_stock_of_instances_counts_whole_ones() -> None:
    assert pack({size(8, 8): 2}, [offer(8, 1.0)], stock=15) is None
    found = pack({size(8, 8): 2}, [offer(8, 1.0)], stock=16)
    assert found is not None
    assert found.gpus == 16


def test_nothing_to_pack_costs_nothing() -> None:
    found = pack({size(1, 1): 0}, [offer(8, 1.0)])
    assert found is not None
    assert (found.cost, found.used) == (0.0, ())


def test_patterns_are_full() -> None:
    """Sizes 3 and 2 on eight GPUs: 2 + 1, 1 + 2 and 0 + 4; with 1 x 3 and 1 x 2 another 3 or 2 would fit."""
    sizes = [size(3, 1), size(2, 1)]
    found = {tuple(one.holds.get(each, 0) for each in sizes) for one in machines(0, [offer(8, 1.0)], sizes)}
    assert found == {(2, 1), (1, 2), (0, 4)}


def test_many_replicas_are_solved_to_the_bound() -> None:
    """700 of one GPU, 300 of two and 150 of four are 1,900 GPUs: 238 instances of eight, no fewer."""
    found = pack({size(1, 1): 700, size(2, 2): 300, size(4, 4): 150}, [offer(8, 55.04)])
    assert found is not None
    assert found.cost == pytest.approx(ceil(1900 / 8) * 55.04)


def spread_by_hand(wanted: Sequence[Wanted], sold: tuple[tuple[int, float], ...], domains: int, surge: int) -> float:
    """The least cost over all numbers of replicas, and of places left free, of each model in each domain."""
    sizes = tuple(dict.fromkeys(one.size.devices for one in wanted))
    most = max(max(one.needed, one.left) for one in wanted)
    best = inf
    for free in product(range(surge + 1), repeat=len(sizes) * domains):
        places = [free[at * domains : (at + 1) * domains] for at in range(len(sizes))]
        if any(
            sum(large // small * sum(places[at]) for at, large in enumerate(sizes) if large >= small) < surge
            for small in sizes
        ):
            continue
        for flat in product(range(most + 1), repeat=len(wanted) * domains):
            held = [flat[at * domains : (at + 1) * domains] for at in range(len(wanted))]
            if any(
                sum(counts) < one.needed or (domains > 1 and sum(counts) - max(counts) < one.left)
                for one, counts in zip(wanted, held)
            ):
                continue
            cost = 0.0
            for domain in range(domains):
                standing = [
                    sum(counts[domain] for one, counts in zip(wanted, held) if one.size.devices == devices)
                    + places[at][domain]
                    for at, devices in enumerate(sizes)
                ]
                cost += packed_by_hand(sizes, tuple(standing), sold)[0]
            best = min(best, cost)
    return best


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 2), st.integers(0, 2)), min_size=1, max_size=2),
    st.sampled_from([((4, 32),), ((4, 30), (8, 48)), ((5, 40), (4, 36))]),
    st.sampled_from([(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0)]),
)
@example(models=[(2, 2, 1), (1, 1, 1)], sold=((4, 32),), spread=(2, 1))
def test_what_may_be_lost_costs_what_brute_force_finds(
    models: list[tuple[int, int, int]], sold: tuple[tuple[int, int], ...], spread: tuple[int, int]
) -> None:
    """Machines of at least four GPUs, so that each holds a replica of any size. Prices are multiples of 1/8."""
    domains, surge = spread
    wanted = [Wanted(size(devices, 1), needed, min(left, needed)) for devices, needed, left in models]
    offers = tuple((gpus, price / 8) for gpus, price in sold)
    sizes = list(dict.fromkeys(one.size for one in wanted))
    found = Placing(
        machines=machines(0, [offer(*one) for one in offers], sizes),
        stocks=(inf,),
        wanted=dict(enumerate(wanted)),
        domains=domains,
        surge=surge,
    ).cheapest()
    assert found is not None
    assert found.gap == 0.0
    assert found.cost == pytest.approx(spread_by_hand(wanted, offers, domains, surge), abs=1e-9)
    for model, one in enumerate(wanted):
        assert found.replicas(model) >= one.needed
        assert domains == 1 or found.least_left(model) >= one.left
    for domain in found.domains:
        for of in sizes:
            room = sum(machine.holds.get(of, 0) * count for machine, count in domain.used)
            assert sum(domain.replicas[model] for model, one in enumerate(wanted) if one.size == of) <= room


def test_a_zone_of_three_is_lost() -> None:
    """Four replicas of which three have to be left: 2 + 1 + 1 leaves two, so that a fifth is bought: 2 + 2 + 1. In two
    zones it takes six, in four zones the four that are needed anyway."""
    for domains, replicas in ((1, 4), (2, 6), (3, 5), (4, 4)):
        found = Placing(
            machines=machines(0, [offer(1, 1.0)], [size(1, 1)]),
            stocks=(inf,),
            wanted={"model": Wanted(size(1, 1), 4, 3)},
            domains=domains,
        ).cheapest()
        assert found is not None
        assert (found.replicas("model"), found.cost) == (replicas, float(replicas))


def test_a_rollout_needs_room_for_the_largest_model_alone() -> None:
    """A replica of four GPUs and four of one fill an instance of eight. One more of either is a second instance; the
    place of four holds four of one, so that four more of the small model need no third."""
    for surge, gpus in ((0, 8), (1, 16), (2, 16), (3, 24)):
        found = Placing(
            machines=machines(0, [offer(8, 8.0)], [size(4, 4), size(1, 1)]),
            stocks=(inf,),
            wanted={"large": Wanted(size(4, 4), 1), "small": Wanted(size(1, 1), 4)},
            surge=surge,
        ).cheapest()
        assert found is not None
        assert found.gpus == gpus


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 2)), min_size=1, max_size=2, unique=True),
        min_size=1,
        max_size=2,
    ),
    st.sampled_from([((4, 32),), ((4, 30), (8, 48)), ((5, 40), (4, 36))]),
    st.sampled_from([(1, 0), (1, 1), (2, 0), (2, 1)]),
)
@example(models=[[(2, 1), (1, 1)], [(4, 1), (2, 2)]], sold=((4, 32),), spread=(2, 1))
def test_the_kinds_that_are_taken_are_those_of_brute_force(
    models: list[list[tuple[int, int]]], sold: tuple[tuple[int, int], ...], spread: tuple[int, int]
) -> None:
    """One kind of each model: the least cost over all choices."""
    domains, surge = spread
    kinds = [[Wanted(size(devices, 1), needed, needed) for devices, needed in kinds] for kinds in models]
    offers = tuple((gpus, price / 8) for gpus, price in sold)
    wanted = {(model, kind): one for model, of in enumerate(kinds) for kind, one in enumerate(of)}
    found = Placing(
        machines=machines(0, [offer(*one) for one in offers], list(dict.fromkeys(one.size for one in wanted.values()))),
        stocks=(inf,),
        wanted=wanted,
        domains=domains,
        surge=surge,
        one_of=[[(model, kind) for kind in range(len(of))] for model, of in enumerate(kinds)],
    ).cheapest()
    assert found is not None
    least = min(spread_by_hand(choice, offers, domains, surge) for choice in product(*kinds))
    assert found.cost == pytest.approx(least, abs=1e-9)
    for model, of in enumerate(kinds):
        taken = [kind for kind in range(len(of)) if found.replicas((model, kind)) >= of[kind].needed]
        assert taken
