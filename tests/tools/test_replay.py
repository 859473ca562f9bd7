"""The stand-in for the public run of Mooncake's trace, by what the run's source states of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.accuracy.parts.replay import COUNT, DEVICE, HOST, stand_in


def test_the_stand_in_has_the_prompt_tokens_of_the_run(shared: Path) -> None:
    """The source: 46,542,292 prompt tokens of 5,000 requests. A chat more or less moves them by a few thousand."""
    sent = stand_in(shared, 46_542_292)
    assert len(sent.prompt) == COUNT == 5000
    assert int(sent.prompt.sum()) == pytest.approx(46_542_292, rel=1e-3)


def test_places_hold_the_blocks_that_the_source_states() -> None:
    """8,192 and 16,384 blocks of 32 tokens."""
    assert (DEVICE, HOST) == (262_144, 524_288)
