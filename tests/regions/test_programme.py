"""Routings of a day against brute force, against hand arithmetic, and without one of the regions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from math import ceil, inf

import numpy as np
import pytest

from inferplan.errors import InfeasibleError
from inferplan.regions.answer import answer, route, without
from inferplan.regions.question import HOURS, Arc, Question, Site, Sold, Users
from tests.cases import for_each

_BUSY = (3, 9, 17)
"""The hours with requests in random questions."""


def flat(value: float) -> np.ndarray:
    return np.full(HOURS, float(value))


def at(values: dict[int, float]) -> np.ndarray:
    found = np.zeros(HOURS)
    for hour, value in values.items():
        found[hour] = value
    return found


def people(name: str, load: np.ndarray) -> Users:
    return Users(name, load, load)


def place(name: str, *, hired: float | np.ndarray | None = None, held: float | None = None, **more: object) -> Site:
    """A region that lets GPUs one by one, a replica on each."""
    terms = {"hired": hired, "held": held}
    sold = {
        term: (Sold(flat(price) if np.isscalar(price) else np.asarray(price), 1, 1),)
        for term, price in terms.items()
        if price is not None
    }
    return Site(name=name, devices=1, **sold, **more)  # type: ignore[arg-type]


def random_question(seed: int) -> Question:
    """Two regions with users and machines, three busy hours, replicas that carry less for far users in half of the
    cases, a way that is closed in a third."""
    rng = np.random.default_rng(seed)
    users = tuple(people(name, at({hour: rng.integers(1, 30) / 2 for hour in _BUSY})) for name in "ab")
    sites = tuple(
        place(
            name,
            hired=at({hour: rng.integers(3, 9) for hour in _BUSY}),
            held=float(rng.integers(1, 4)) / 10,
            standing=1.0,
            grams=at({hour: rng.integers(100, 600) for hour in _BUSY}),
        )
        for name in "ab"
    )
    far = 3.0 if seed % 2 else 5.0
    arcs = [
        Arc(
            user,
            site,
            0.01 + 0.1 * (user != site),
            5.0 if user == site else far,
            open=user == site or bool(rng.integers(3)),
        )
        for user, site in product(range(2), range(2))
    ]
    return Question(users=users, sites=sites, arcs=tuple(arcs))


def carried(asked: Question, hour: int, pools: dict[tuple[int, float], int]) -> bool:
    """Whether replicas of each pool (site, rate) carry the load: by Hall's condition no group of users has more
    requests than the pools that any of them may use."""
    for size in range(1, len(asked.users) + 1):
        for group in combinations(range(len(asked.users)), size):
            open_to = {
                pool
                for pool in pools
                if any(a.open and (a.users in group) and a.site == pool[0] and a.rate >= pool[1] for a in asked.arcs)
            }
            if sum(asked.users[u].most[hour] for u in group) > sum(p[1] * pools[p] for p in open_to) + 1e-9:
                return False
    return True


def ways(asked: Question, hour: int) -> Iterator[tuple[int, ...]]:
    """Numbers of replicas of the sites that carry an hour, however they are divided among pools."""
    rates = [sorted({a.rate for a in asked.arcs if a.site == site}) for site in range(2)]
    keys = [(site, rate) for site in range(2) for rate in rates[site]]
    most = ceil(sum(one.most[hour] for one in asked.users) / min(rate for _, rate in keys)) + 1
    seen = set()
    for counts in product(range(most + 1), repeat=len(keys)):
        total = tuple(sum(c for c, key in zip(counts, keys) if key[0] == site) for site in range(2))
        if total not in seen and max(total) <= most and carried(asked, hour, dict(zip(keys, counts))):
            seen.add(total)
            yield total


def cheapest(asked: Question) -> float:
    """Over all machines that are held, the least that single hours cost beside them."""
    minimal = {hour: pareto([*ways(asked, hour)]) for hour in _BUSY}
    most = [max(total[site] for some in minimal.values() for total in some) for site in range(2)]
    best = inf
    for held in product(*(range(count + 1) for count in most)):
        cost = sum(count * site.held[0].day for count, site in zip(held, asked.sites))
        for hour in _BUSY:
            cost += min(
                sum(max(n - h, 0) * site.hired[0].price[hour] for n, h, site in zip(total, held, asked.sites))
                for total in minimal[hour]
            )
        best = min(best, cost)
    return best


def pareto(totals: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [t for t in totals if not any(o != t and all(x <= y for x, y in zip(o, t)) for o in totals)]


@for_each("seed", range(10))
def test_the_cheapest_routing_is_that_of_brute_force(seed: int) -> None:
    asked = random_question(seed)
    found = route(asked, "cost")
    assert found is not None
    assert found.whole_cost == pytest.approx(cheapest(asked), rel=1e-3)
    for hour in _BUSY:
        served = [sum(found.flow[p, hour] for p, a in enumerate(asked.paths) if a.users == u) for u in range(2)]
        assert served == pytest.approx([one.most[hour] for one in asked.users], abs=1e-6)
        for site in range(2):
            assert found.needed(site)[hour] <= found.room(site)[hour] + 1e-9


@for_each("seed", range(6))
def test_the_cleanest_routing_is_that_of_brute_force(seed: int) -> None:
    """Requests add nothing here, so grams are those of replicas that are up: for single hours, by any hour's grams."""
    asked = random_question(seed)
    found = route(asked, "carbon")
    assert found is not None
    least = sum(
        min(sum(n * site.grams[hour] for n, site in zip(total, asked.sites)) for total in ways(asked, hour))
        for hour in _BUSY
    )
    assert found.whole_grams == pytest.approx(least, rel=1e-3)


def two(**more: object) -> Question:
    """Day in a is night in b: 40 requests/s for 12 hours, then 10; replicas carry 10."""
    day, night = [40.0] * 12, [10.0] * 12
    users = (people("a", np.array(day + night)), people("b", np.array(night + day)))
    sites = (
        place("a", held=2.0, standing=0.1, request=1e-5, grams=flat(400)),
        place("b", held=3.0, standing=0.1, request=1e-5, grams=flat(100)),
    )
    delays = {(0, 0): 0.01, (0, 1): 0.1, (1, 0): 0.1, (1, 1): 0.01}
    arcs = tuple(Arc(u, s, delay, 10.0) for (u, s), delay in delays.items())
    return Question(**{"users": users, "sites": sites, "arcs": arcs, **more})  # type: ignore[arg-type]


def test_follow_the_sun_by_hand() -> None:
    """At home each region holds 4 replicas for its day: 4 x 24 x (2 + 3) = 480. Together 50 requests/s are always
    there: 5 replicas in a, 5 x 24 x 2 = 240. A request draws 1e-5 kWh beside 0.1 kWh per hour of a replica.

    At home: 50 requests/s x 86,400 s x 1e-5 = 43.2 kWh, half in each; standing 9.6 kWh each. 31.2 x 500 g = 15.6 kg.
    In a alone: 43.2 + 12 = 55.2 kWh x 400 g = 22.08 kg; in b alone, by carbon, 5.52 kg for 5 x 24 x 3 = 360.
    """
    found = {one.routing: one for one in answer(two()).routed}
    assert found["nearest"].whole_cost == pytest.approx(480)
    assert found["nearest"].whole_kwh == pytest.approx(62.4)
    assert found["nearest"].whole_grams == pytest.approx(15_600)
    assert found["nearest"].away == 0
    assert found["nearest"].delay == pytest.approx(0.01)
    assert found["cost"].whole_cost == pytest.approx(240)
    assert found["cost"].whole_grams == pytest.approx(22_080)
    assert found["cost"].delay == pytest.approx((0.01 + 0.1) / 2)
    assert found["carbon"].whole_grams == pytest.approx(5_520)
    assert found["carbon"].whole_cost == pytest.approx(360)


def test_data_that_stay_are_served_at_home_and_their_price_is_said() -> None:
    """b stays: b holds 4 replicas for its day, and 3 of them are free for a's day, which needs 4: 1 more in a, 4 x 24 x
    3 + 1 x 24 x 2 = 336. In a's night a's 10 requests/s need 1, which is there. Without the row it is 240."""
    closed = tuple(arc._replace(open=(arc.users, arc.site) != (1, 0)) for arc in two().arcs)
    asked = answer(two(arcs=closed))
    found = next(one for one in asked.routed if one.routing == "cost")
    assert found.whole_cost == pytest.approx(336)
    assert found.share(1, 1) == pytest.approx(1.0)
    (reason,) = [one for one in asked.reasons if one.routing == "cost"]
    assert (reason.row, reason.name, reason.saved) == ("stays", "b", pytest.approx(96))
    lost = {one.site: one for one in asked.lost if one.routing == "nearest"}
    # b lost: its requests, half of all, may go nowhere; a lost: b's 4 replicas carry 40 of 50 requests/s, all day
    assert (lost[1].missed, lost[1].missed_still, lost[1].more) == (pytest.approx(0.5), pytest.approx(0.5), (0, 0))
    assert (lost[0].missed, lost[0].missed_still) == (pytest.approx(0.2), pytest.approx(0.0, abs=1e-9))
    assert lost[0].more == (0, 1)
    assert lost[0].price == pytest.approx(24 * 3)


def test_a_lost_region_and_a_limit_on_gpus() -> None:
    """Of 50 requests/s b's 4 replicas carry 40. With at most 4 GPUs there, a fifth stays unserved."""
    sites = (two().sites[0], place("b", held=3.0, most=4.0, grams=flat(100)))
    found = route(two(sites=sites), "nearest")
    assert found is not None
    lost = without(found, 0)
    assert not lost.held
    assert (lost.served, lost.missed, lost.missed_most) == (
        pytest.approx(0.5),
        pytest.approx(0.2),
        pytest.approx(0.2),
    )
    assert (lost.more, lost.missed_still) == ((0, 0), pytest.approx(0.2))
    assert without(found, 1).more == (1, 0)


def test_the_limit_on_gpus_is_a_reason_where_it_is_reached() -> None:
    """By carbon 5 replicas would be in b; with 3 there 30 of 50 requests/s are. The other 20 add 2 replicas in a: 24 h
    x (0.2 + 20 x 3600 x 1e-5) kWh x (400 - 100) g = 6,624 g more."""
    sites = (two().sites[0], place("b", held=3.0, standing=0.1, request=1e-5, most=3.0, grams=flat(100)))
    asked = answer(two(sites=sites))
    (reason,) = [one for one in asked.reasons if one.routing == "carbon"]
    assert (reason.row, reason.name, reason.saved) == ("most", "b", pytest.approx(6_624, rel=1e-3))


def test_far_users_have_replicas_that_are_loaded_less() -> None:
    """a has machines for b's users too, 10 requests/s each, but only 4 for those from b. In b's day: a's 10 take 1, b's
    40 take 10: 11 for 12 hours; in a's day 4 and 10/4 = 3: 7. Hired at 1: 12 x 18 = 216."""
    arcs = (Arc(0, 0, 0.01, 10.0), Arc(1, 0, 0.1, 4.0))
    asked = two(sites=(place("a", hired=1.0),), arcs=arcs)
    found = route(asked, "cost")
    assert found is not None
    assert found.whole_cost == pytest.approx(216)
    assert [int(found.up(0)[hour]) for hour in (0, 12)] == [7, 11]
    assert [pool.delay for pool in found.pools(0)] == [0.01, 0.1]
    assert asked.routings == ("nearest", "cost")  # nobody says grams


def test_requests_that_nobody_may_serve_are_an_error() -> None:
    arcs = (Arc(0, 0, 0.01, 10.0), Arc(1, 0, 0.1, 0.0, because="the network leaves 5 ms"))
    with pytest.raises(InfeasibleError) as error:
        answer(two(sites=(place("a", hired=1.0),), arcs=arcs))
    assert "b cannot be served" in error.value.what
    assert "the network leaves 5 ms" in error.value.because
    with pytest.raises(InfeasibleError) as error:
        answer(two(sites=(place("a", hired=1.0, most=4.0),), arcs=two().arcs[::2]))
    assert "limits those in a" in error.value.because


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS has lines for stdout, where data go, when rows are badly scaled."""
    answer(two())
    answer(random_question(1))
    assert capfd.readouterr().out == ""


def test_machines_are_bought_whole_within_the_limit() -> None:
    """Machines of 8 GPUs, replicas of 1 that carry 15, 100 requests/s in each region: 7 replicas on one machine at
    home. With us lost, eu's 8 carry 120 of 200: 0.4 stay unserved, as a second machine would be 16 GPUs of the 12 that
    there may be. Without that row two machines at 8 a hour, 384 a day, do what 20 + 8 an hour, 672, do.
    """
    sites = tuple(
        Site(name=name, devices=1, hired=(Sold(flat(price), 8, 8),), most=most)
        for name, price, most in (("us", 20.0, np.inf), ("eu", 8.0, 12.0))
    )
    users = (people("us", flat(100)), people("eu", flat(100)))
    arcs = tuple(Arc(u, s, 0.02 + 0.01 * (u != s), 15.0) for u in (0, 1) for s in (0, 1))
    asked = answer(Question(users=users, sites=sites, arcs=arcs))
    nearest = next(one for one in asked.routed if one.routing == "nearest")
    assert nearest.delay == pytest.approx(0.02)
    assert nearest.away == 0.0  # exactly: nobody is sent away within the slack of the solver
    us, eu = (one for one in asked.lost if one.routing == "nearest")
    assert (us.missed, us.missed_still, us.more, us.price) == (pytest.approx(0.4), pytest.approx(0.4), (0, 0), 0.0)
    # eu lost: 14 replicas carry 200, of which 8 are there: 6 on one more machine at 20 an hour
    assert (eu.missed_still, eu.more, eu.price) == (pytest.approx(0.0, abs=1e-9), (6, 0), pytest.approx(480))
    (reason,) = asked.reasons
    assert (reason.routing, reason.row, reason.name, reason.saved) == ("cost", "most", "eu", pytest.approx(288))
