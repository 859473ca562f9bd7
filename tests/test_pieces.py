"""Means over the steps of a generation, against the sum of every step, counted position by position in the test."""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import pytest

from inferplan.estimate.pieces import kinks, pieces_of_steps, quadrature_pair, stairs
from inferplan.work.ops import Mask
from tests.cases import for_each


def seen(mask: Mask, past: int) -> int:
    """Positions and entries that the token after ``past`` others looks at, one by one."""
    window = min(past + 1, mask.size)
    if mask.kind == "compressed":
        entries = sum(1 for end in range(1, past + 2) if end % mask.rate == 0)
        return window + (min(entries, mask.top) if mask.top else entries)
    assert mask.kind == "blocks"
    if past < mask.size * mask.top:
        return past + 1
    return (mask.top - 1) * mask.size + past % mask.size + 1


def sampled(masks: list[Mask], prompt: int, steps: int) -> tuple[float, int]:
    """The sum over the steps by the pieces, and how many pieces it took."""
    at = [kink - prompt for kink in kinks(masks, prompt, prompt + steps)]
    climbed, _ = stairs(masks)
    where = np.asarray(float(prompt))
    edges = [np.asarray(float(edge)) for edge in (0, *at, steps)]
    found, pieces = 0.0, 0
    for low, high in chain.from_iterable(pieces_of_steps(where, *ends, climbed) for ends in pairwise(edges)):
        if high > low:
            places = quadrature_pair(where, low, high, climbed)
            found += float(high - low) * sum(float(np.mean(mask.pairs(1.0, places))) for mask in masks)
            pieces += 1
    return found, pieces


SLIDING = Mask(kind="compressed", size=5, rate=4, top=6)
HEAVY = Mask(kind="compressed", size=5, rate=16)
ODD = Mask(kind="compressed", rate=6)
BLOCKS = Mask(kind="blocks", size=8, top=3)


@for_each(
    "masks",
    [[SLIDING], [HEAVY], [SLIDING, HEAVY], [SLIDING, ODD], [BLOCKS], [BLOCKS, HEAVY]],
    ids=["chosen entries", "all entries", "both", "periods that do not divide", "blocks", "blocks beside entries"],
)
@for_each("prompt", [1, 2, 3, 7, 15, 16, 30])
@for_each("steps", [1, 2, 3, 5, 17, 64, 131])
def test_pieces_add_up_to_every_step(masks: list[Mask], prompt: int, steps: int) -> None:
    ours, _ = sampled(masks, prompt, steps)
    assert ours == pytest.approx(sum(seen(mask, prompt + step) for mask in masks for step in range(steps)), rel=1e-12)


def test_a_long_generation_takes_few_pieces() -> None:
    """10,000 steps over entries of 4 and of 128 tokens: at most five pieces between kinks, not 2,500."""
    light, heavy = Mask(kind="compressed", size=128, rate=4, top=512), Mask(kind="compressed", size=128, rate=128)
    assert sampled([light, heavy], 1001, 10_000)[1] <= 10
