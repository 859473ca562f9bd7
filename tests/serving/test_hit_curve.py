"""Curves of hit rates against caches that are replayed one size at a time, and by hand."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest

from inferplan.errors import UsageError
from inferplan.serving.flags import Flags
from inferplan.serving.options import Options
from inferplan.serving.simulator import simulate
from inferplan.serving.techniques.tiers import SHARES, CacheTier, TierPrice, curve_records
from inferplan.traffic import traces
from inferplan.traffic.requests import OpenLoop, Requests, SharedPrefix, Traffic, parse_lengths
from inferplan.traffic.reuse import hit_curve
from tests.cases import for_each
from tests.serving.plain_time import KV_BYTES, plain, requests
from tests.serving.test_cache_tiers import BLOCK, MOONCAKE, chats, endless, replayed


def lru(sent: Requests, blocks: int) -> int:
    """Tokens that a cache of so many blocks finds, one request after another."""
    assert sent.hashes is not None
    held: OrderedDict[object, None] = OrderedDict()
    found = 0
    for index, names in enumerate(sent.hashes):
        prompt, output = int(sent.prompt[index]), int(sent.output[index])
        for name in names[: (prompt - 1) // sent.hash_block]:
            if name not in held:
                break
            found += sent.hash_block
        full = (prompt + output - 1) // sent.hash_block
        answer = [(index, place) for place in range(len(names), full)]
        for name in [*answer, *reversed(names[:full])]:
            held[name] = None
            held.move_to_end(name)
            if len(held) > blocks:
                held.popitem(last=False)
    return found


def test_by_hand() -> None:
    """Blocks (1, 2), (3,), (1, 2), (1, 3): from the last to the first block, the uses are 2 1 | 3 | 2 1 | 3 1.

    When the third request comes, the list of last uses is 3, 1, 2: block 1 takes a cache of two blocks, block 2 one of
    three. When the fourth comes it is 1, 2, 3: block 1 takes one block, block 3 three.
    """
    sent = requests(
        *((0.0, 16 * count + 1, 1) for count in (2, 1, 2, 2)), hashes=((1, 2), (3,), (1, 2), (1, 3)), hash_block=BLOCK
    )
    curve = hit_curve(sent)
    assert curve.distances.tolist() == [1, 2, 3, 3]
    assert [curve.found(16 * blocks) for blocks in range(5)] == [0, 16, 32, 64, 64]
    assert curve.found(47.9) == 32
    assert curve.hit_rate(32) == 32 / (33 + 17 + 33 + 33) and curve.most == 64 / 116
    assert [curve.tokens_for(share) for share in (0.25, 0.26, 0.75, 1.0)] == [16, 32, 48, 48]
    late = hit_curve(sent, np.array([True, True, True, False]))
    assert late.distances.tolist() == [2, 3] and late.prompt_tokens == 83


@for_each("seed", range(4))
def test_every_size_is_that_of_a_replay(seed: int) -> None:
    """Texts that share their first block, and answers that nobody looks for, which take their room."""
    sent = chats(150, seed)
    curve = hit_curve(sent)
    for blocks in range(60):
        assert curve.found(blocks * BLOCK) == lru(sent, blocks)
    assert curve.most == pytest.approx(endless(sent) / sent.prompt.sum()) and curve.most > 0.2


@pytest.mark.skipif(not MOONCAKE.exists(), reason="the traces are not here")
def test_a_real_trace_is_found_as_in_a_replay() -> None:
    """Mooncake's 12,031 conversations at five sizes, block by block.

    The device of the other replay gives a request room for its last tokens too. With one token behind the last whole
    block of each prompt, and room for one more, that is an LRU cache of so many blocks.
    """
    sent = traces.read_trace(MOONCAKE)
    curve = hit_curve(sent)
    for blocks in (1_000, 20_000):
        assert curve.found(blocks * 512) == lru(sent, blocks)
    assert sent.hashes is not None
    whole = np.array([512 * len(names) + 1 for names in sent.hashes])
    cut = replace(sent, prompt=whole, output=np.ones(len(sent), dtype=np.int64))
    curve = hit_curve(cut)
    for blocks in (300, 5_000, 60_000):
        assert [curve.found(blocks * 512)] == replayed(cut, 512 * blocks + 1, 1, 512, [])
    assert curve.found(300 * 512) < curve.found(5_000 * 512) < curve.found(60_000 * 512)


def test_more_capacity_never_finds_less_and_the_last_size_finds_all() -> None:
    curve = hit_curve(chats(200, 9))
    found = [curve.found(tokens) for tokens in range(0, 2000, 7)]
    assert found == sorted(found) and found[0] == 0
    assert curve.hit_rate(curve.tokens_for(1.0)) == curve.most > curve.hit_rate(curve.tokens_for(1.0) - 1)


def test_prompts_that_share_nothing_are_refused_and_found_nowhere() -> None:
    alone = requests((0.0, 33, 1), (1.0, 33, 1))
    with pytest.raises(UsageError, match="share no text"):
        hit_curve(alone)
    curve = hit_curve(replace(alone, hashes=((1, 2), (3, 4)), hash_block=BLOCK))
    assert (curve.most, curve.hit_rate(1e9), curve.tokens_for(1.0)) == (0.0, 0.0, 0)


def test_a_run_of_conversations_finds_what_the_curve_says() -> None:
    """A device that holds everything, in the order in which the turns came: the last size is its hit rate."""
    traffic = Traffic(
        arrivals=OpenLoop(rate=0.02),
        prompt=parse_lengths("160"),
        output=parse_lengths("32"),
        requests_count=120,
        prefix=SharedPrefix(turns=4),
    )
    made = plain(capacity=1_000_000, prefix_caching=True)
    found = simulate(made, traffic, Flags(), Options(trim=True))
    curve = curve_records(found, (made, None), made.engine.defaults.block_size)
    assert len(curve) == len(SHARES) and curve[-1]["hit_rate"] == pytest.approx(found.hit_rate) and found.hit_rate > 0.4
    assert [size["hit_rate"] for size in curve] == sorted(size["hit_rate"] for size in curve)
    assert curve[0]["capacity_bytes"] == curve[0]["capacity_tokens"] * KV_BYTES


def test_who_is_refused_is_not_in_the_curve() -> None:
    """Prompts of 33 tokens twice and one of 4,000 between them, for which 1,000 are no room: of 66 tokens the second
    finds 32. With the one that never ran it would be 32 of 4,066."""
    sent = requests((0.0, 33, 1), (1.0, 4_000, 1), (2.0, 33, 1), hashes=((1, 2), (1, 2), (1, 2)), hash_block=BLOCK)
    made = plain(capacity=1_000, prefix_caching=True)
    found = simulate(made, sent, Flags(), Options())
    assert found.counts["rejected"] == 1
    curve = curve_records(found, (made, None), BLOCK)
    assert curve[-1]["hit_rate"] == pytest.approx(32 / 66) == pytest.approx(found.hit_rate)


def test_each_device_pays_for_its_own_tier_and_a_store_is_paid_for_once() -> None:
    """512 GB at 0.004 USD an hour beside 8 devices: 16.384 USD/h; a store of them 2.048."""
    price = TierPrice(0.004, "USD")
    own, store, free = (
        CacheTier(name="x", capacity=512e9, bandwidth=1e9, shared=shared, price=paid)
        for shared, paid in ((False, price), (True, price), (False, None))
    )
    assert own.cost(8) == pytest.approx(16.384) and store.cost(8) == pytest.approx(2.048) and free.cost(8) is None
