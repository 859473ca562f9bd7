"""Rows of masks in docs/accuracy-parts.md, by hand from the quoted figures."""

from pathlib import Path

import pytest

from inferplan.catalog.masks import mask_libraries
from tests.cases import for_each
from tools.accuracy.parts.masks import _behind, _quoted, hidden_part


def test_what_masks_behind_the_pass_save() -> None:
    """vllm 26866: 69.36 and 85.28 requests of 128 tokens per second; 50 pieces of 16 on 8 threads are 7 rounds."""
    row = _behind(_quoted()["vllm 26866"], "1")
    assert row.measured == pytest.approx((14.41753 - 11.72608) / 128 * 1e3, rel=1e-5)
    usual = (0.375 + 1.5 + 6 + 10.35 + 14.95 + 123.72) / 0.99
    assert row.predicted == pytest.approx(usual * 7 * 16 / 800, rel=1e-9)
    assert not row.fitted


def test_masks_behind_the_pass_hardly_show() -> None:
    """GRID under vLLM 0.26: 0.71 % with 32 sequences; had masks of 25 us come before the pass, 13 % of its 6.24 ms."""
    for row in hidden_part(Path()).rows:
        assert 1 <= row.predicted < 1.01
        assert row.factor < 1.01


@for_each("library", ["xgrammar", "llguidance", "outlines"])
def test_the_usual_mask_lies_between_median_and_mean(library: str) -> None:
    times = mask_libraries()[library]
    assert times.median < times.usual <= times.mean
