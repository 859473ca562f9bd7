"""Replicas on machines: the programme against brute force, and by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import ceil, inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inferplan.catalog.bills import Offer
from inferplan.planning.machines import Bought, Need, Size, machines


def offer(gpus: int | None, price: float) -> Offer:
    return Offer(gpu="chip", gpus=gpus, per_hour=price, currency="USD", term="on-demand", source="test")


def size(devices: int, together: int) -> Size:
    return Size("chip", devices, together)


def pack(
    needed: Mapping[Size, int], sold: Sequence[Offer], stock: float = inf, owned: tuple[int, float] = (0, 0.0)
) -> Bought | None:
    """The machines for so many replicas of each size. owned: GPUs that are there, and what an hour of one costs."""
    sizes = [one for one, count in needed.items() if count]
    mine = [offer(None, owned[1])] if owned[0] else []
    return Need(
        machines=[one for kind, of in enumerate((sold, mine)) if of and sizes for one in machines(kind, of, sizes)],
        stocks=(stock, owned[0]),
        devices={one: one.devices for one in sizes},
        fewest={one: count for one, count in needed.items() if count},
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
def brute(sizes: tuple[int, ...], left: tuple[int, ...], machines: tuple[tuple[int, float], ...]) -> tuple[float, int]:
    """The least cost and the fewest GPUs at it, over every content of every next machine."""
    if not any(left):
        return 0.0, 0
    best = (inf, 0)
    for room, price in machines:
        for content in contents(sizes, left, room):
            if any(content):
                cost, gpus = brute(sizes, tuple(a - b for a, b in zip(left, content)), machines)
                best = min(best, (price + cost, room + gpus))
    return best


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 5)), min_size=1, max_size=3, unique_by=lambda p: p[0]
    ),
    st.lists(
        st.tuples(st.sampled_from([8, 9, 12]), st.integers(8, 80)), min_size=1, max_size=2, unique_by=lambda p: p[0]
    ),
)
@example(demand=[(1, 1), (2, 5)], machines=[(8, 8), (9, 8)])  # two machines of equal price, of which one is smaller
def test_the_programme_and_brute_force_agree(demand: list[tuple[int, int]], machines: list[tuple[int, int]]) -> None:
    """Instances of at least eight GPUs, so that each holds a replica of any size. Prices are multiples of 1/8."""
    sold = tuple((gpus, price / 8) for gpus, price in machines)
    found = pack({size(devices, 1): count for devices, count in demand}, [offer(*one) for one in sold])
    least = brute(tuple(size for size, _ in demand), tuple(count for _, count in demand), sold)
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
