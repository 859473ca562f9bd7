"""Which experts tokens reach and what the busiest rank gets, against draws of whole routers."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.units import Array
from inferplan.work.routing import Routing, at_most, busiest, distinct_experts, place_in_order, popularity
from tests.cases import for_each


def drawn(experts: int, top_k: int, tokens: int, draws: int, skew: float = 0.0) -> Array:
    """Rows of each expert in independent draws: every token takes ``top_k`` different ones (Gumbel top-k)."""
    generator = np.random.default_rng(7)
    chance = np.exp(
        skew * generator.permutation(np.sort(generator.standard_normal((512, experts)), axis=1).mean(axis=0))
    )
    counts = np.zeros((draws, experts))
    for draw in range(draws):
        order = np.log(generator.permutation(chance)) + generator.gumbel(size=(tokens, experts))
        chosen = np.argpartition(-order, top_k - 1, axis=1)[:, :top_k]
        counts[draw] = np.bincount(chosen.ravel(), minlength=experts)
    return counts


@for_each(
    ("tokens", "draws", "within"),
    [(1, 3000, 0.06), (8, 1500, 0.03), (64, 800, 0.02), (1024, 60, 0.02)],
)
@for_each("ranks", [8, 32])
def test_busiest_rank_of_uniform_routing_is_that_of_draws(tokens: int, draws: int, within: float, ranks: int) -> None:
    """256 experts, 8 of them a token (DeepSeek-V3), over 8 and 32 ranks."""
    shards = drawn(256, 8, tokens, draws).reshape(draws, ranks, -1)
    found = busiest(256, 8, ranks)
    assert found.rows(float(tokens)) == pytest.approx(shards.sum(axis=2).max(axis=1).mean(), rel=within)
    assert found.touched(float(tokens)) == pytest.approx((shards > 0).sum(axis=2).max(axis=1).mean(), rel=within)


@for_each(("experts", "top_k", "ranks"), [(128, 4, 8), (256, 8, 16)])
def test_busiest_rank_of_skewed_routing_is_that_of_draws(experts: int, top_k: int, ranks: int) -> None:
    shards = drawn(experts, top_k, 256, 300, skew=0.8).reshape(300, ranks, -1)
    found = busiest(experts, top_k, ranks, skew=0.8)
    assert found.rows(256.0) == pytest.approx(shards.sum(axis=2).max(axis=1).mean(), rel=0.05)
    assert found.touched(256.0) == pytest.approx((shards > 0).sum(axis=2).max(axis=1).mean(), rel=0.02)


def test_copies_in_order_by_hand() -> None:
    """256 experts and copies of the first 32 on 8 ranks of 36 slots: the first holds experts 0 to 35, 32 of them with
    half of their rows, the next six 36 whole ones, the last 252 to 255 and the copies. The mean is 32 experts' rows."""
    even = place_in_order(256, 8, 8, 32)
    assert even.chances[0].sum(axis=1) * 256 / 8 == pytest.approx([20.0, *[36.0] * 6, 20.0])
    assert even.rows(1e6) == pytest.approx(1e6 * 36 / 32, rel=5e-3)


def test_copies_in_order_are_those_of_draws() -> None:
    """Each of the first 32 experts sends its rows to either of its copies."""
    counts = drawn(256, 8, 256, 300, skew=0.8)
    first = np.random.default_rng(1).binomial(counts[:, :32].astype(int), 0.5)
    slots = np.concatenate([first, counts[:, 32:], counts[:, :32] - first], axis=1).reshape(300, 8, 36)
    found = place_in_order(256, 8, 8, 32, skew=0.8)
    assert found.rows(256.0) == pytest.approx(slots.sum(axis=2).max(axis=1).mean(), rel=0.05)
    assert found.touched(256.0) == pytest.approx((slots > 0).sum(axis=2).max(axis=1).mean(), rel=0.02)


def test_experts_reached_under_skew_are_those_of_draws() -> None:
    for tokens in (4, 64, 512):
        counts = drawn(256, 8, tokens, 200, skew=1.0)
        assert distinct_experts(256, 8, float(tokens), 1.0) == pytest.approx((counts > 0).sum(axis=1).mean(), rel=0.03)


def test_busiest_of_two_experts_by_hand() -> None:
    """One token that takes 1 of 2 experts on 2 ranks: one row on the busiest, always."""
    assert busiest(2, 1, 2).rows(1.0) == pytest.approx(1.0, rel=1e-6)
    assert busiest(2, 1, 2).touched(1.0) == pytest.approx(1.0, rel=1e-6)


def test_distribution_is_the_binomial() -> None:
    """P(X <= x) of 20 trials at 0.3, summed by hand."""
    exact = [sum(comb(20, j) * 0.3**j * 0.7 ** (20 - j) for j in range(x + 1)) for x in range(20)]
    found = at_most(np.arange(20.0), np.array(6.0), np.array(0.7))
    assert np.abs(found - exact).max() < 0.01


def test_the_published_gain_of_balancing_lies_within_the_experts() -> None:
    """Balancing made whole steps of DeepSeek-V3 1.49 (prefill, 32 ranks) and 2.54 times (decode, 72 ranks) as fast
    (https://lmsys.org/blog/2025-05-05-large-scale-ep): the experts, a part of the step, gain more, not much."""
    for ranks, tokens, gain in ((32, 32 * 8192.0, 1.49), (72, 72 * 256.0, 2.54)):
        plain = busiest(256, 8, ranks, 0, 0.8).rows(tokens)
        assert gain < plain / busiest(256, 8, ranks, 32, 0.8).rows(tokens) < 1.25 * gain


routers = st.tuples(st.sampled_from([8, 16, 60, 128, 256]), st.sampled_from([1, 2, 8]), st.sampled_from([2, 4, 8, 16]))


@settings(deadline=None)
@given(router=routers, skew=st.sampled_from([0.0, 0.5, 1.0]), copies=st.integers(0, 3))
def test_laws_of_the_busiest_rank(router: tuple[int, int, int], skew: float, copies: int) -> None:
    """Never less than the mean, never more rows than every token can bring, more tokens never less; and conserved."""
    experts, top_k, ranks = router
    ranks = min(ranks, experts)
    redundant = -experts % ranks + copies * ranks
    tokens = np.geomspace(1.0, 1e7, 200)
    found = busiest(experts, top_k, ranks, redundant, skew)
    rows, distinct = found.rows(tokens), found.touched(tokens)
    assert found.chances.sum(axis=(1, 2)) == pytest.approx(top_k)
    assert np.all(rows >= tokens * top_k / ranks * (1 - 1e-6))
    assert np.all(np.diff(rows) >= 0) and np.all(np.diff(distinct) >= -1e-9)
    assert np.all(distinct <= (experts + redundant) / ranks + 1e-6)
    assert np.all(distinct <= rows + 1e-6)
    assert np.all(distinct >= distinct_experts(experts, top_k, tokens, skew) / ranks * (1 - 0.02))


@settings(deadline=None)
@given(router=routers, skew=st.sampled_from([0.5, 0.8, 1.0]), copies=st.integers(1, 3))
def test_copies_never_make_the_busiest_rank_busier(router: tuple[int, int, int], skew: float, copies: int) -> None:
    """Of many tokens. Of few they can: one token brings no rank two rows where each has one slot, and may with two."""
    experts, top_k, ranks = router
    if experts % ranks:
        return
    tokens = np.geomspace(1e5, 1e7, 20)
    plain = busiest(experts, top_k, ranks, 0, skew).rows(tokens)
    assert np.all(busiest(experts, top_k, ranks, copies * ranks, skew).rows(tokens) <= plain * 1.005)


@for_each("skew", [0.0, 0.5, 1.0, 3.0])
def test_popularity_adds_up_and_no_expert_is_more_than_certain(skew: float) -> None:
    for experts, top_k in ((8, 2), (256, 8), (16, 16), (128, 1)):
        chances = np.array(popularity(experts, top_k, skew))
        assert chances.sum() == pytest.approx(top_k)
        assert chances.max() <= 1.0 + 1e-9


def test_what_is_asked_for_wins_over_what_was_measured() -> None:
    assert Routing(asked=0.3, usual=0.8).skew_of(0.5) == 0.3
    assert Routing(usual=0.8).skew_of(0.5) == 0.5
    assert Routing(usual=0.8).skew_of(None) == 0.8
