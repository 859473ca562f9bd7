"""The batch that decodes, against a replay that knows each token and each block of each request by itself."""

from __future__ import annotations

from collections import Counter
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.serving.decode_batch import DecodeBatch
from inferplan.serving.records import Records

PAGE = 4
RUNS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), max_size=3),  # who joins: context, tokens to write
        st.integers(1, 5),  # steps at once
        st.integers(1, 8),  # eighths of a second for each
        st.integers(0, 8),  # eighths of a second in which others have the engine
    ),
    max_size=12,
)


class Replay:
    """Token by token: when each request wrote what, and how many blocks of the cache hold it."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.context: dict[int, int] = {}
        self.seen: dict[int, float] = {}
        self.gaps: Counter[float] = Counter()

    def step(self, time: float) -> int:
        """Each request writes a token at ``time``: gives the blocks that this takes."""
        before = sum(ceil(tokens / PAGE) for tokens in self.context.values())
        for request in self.left:
            self.gaps[time - self.seen[request]] += 1
            self.seen[request] = time
            self.left[request] -= 1
            self.context[request] += 1
        return sum(ceil(tokens / PAGE) for tokens in self.context.values()) - before


@settings(deadline=None)
@given(RUNS, st.booleans())
def test_gaps_and_blocks_are_those_of_every_token(runs: list, at_its_end: bool) -> None:
    """Requests join, wait while others compute, and decode; ``at_its_end``: each step is told by when its tokens are
    there, as a pipeline does, else by when the first begins and how long each takes. All times are whole eighths.
    """
    batch, replay = DecodeBatch(1.0, False, True, PAGE), Replay()
    records, now, number = Records(arrival=[], prompt=[], output=[]), 0.0, 0
    for joining, most, eighths, idle in runs:
        for context, output in joining:
            batch.enter(number, float(context), output, now)
            replay.left[number], replay.context[number], replay.seen[number] = output, context, now
            number += 1
        if not replay.left:
            continue
        now, price, steps = now + idle / 8, eighths / 8, min(most, batch.steps_left())
        assert batch.steps_left() == min(replay.left.values())
        blocks = sum(replay.step(now + price * (step + 1)) for step in range(steps))
        if at_its_end:
            taken = 0.0
            for step in range(steps):
                taken += batch.make(now + price * (step + 1), 1, 0.0, records.gaps, records.gap_weights)
                batch.token_time = now + price * (step + 1)
        else:
            taken = batch.make(now, steps, price, records.gaps, records.gap_weights)
            batch.token_time = now + price * steps
        now += price * steps
        assert taken == blocks * PAGE
        assert (batch.size, batch.context) == (len(replay.left), sum(replay.context.values()))
        done = {request for request, left in replay.left.items() if not left}
        assert {request for request, _, _ in batch.done()} == done
        for request in done:
            del replay.left[request], replay.context[request]
    found: Counter[float] = Counter()
    for gap, weight in zip(records.gaps, records.gap_weights):
        found[gap] += weight
    assert {gap: weight for gap, weight in found.items() if weight} == pytest.approx(dict(replay.gaps))
