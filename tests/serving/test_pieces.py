"""Figures of a long run in pieces: those of numpy over all values, to the last bit."""

from __future__ import annotations

import os
from functools import partial
from math import inf

import numpy as np
import pytest

from inferplan import mapped
from inferplan.mapped import Spool, spool_for
from inferplan.serving.class_results import percentile_beside
from inferplan.serving.pieces import percentile_of


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101, 5000])
@pytest.mark.parametrize("percentile", [0.0, 1.0, 50.0, 90.0, 95.0, 99.0, 99.9, 100.0])
def test_a_percentile_of_pieces_is_that_of_numpy(count: int, percentile: float) -> None:
    """Of latencies, of many that are the same, of some below 0, in pieces of any size."""
    rng = np.random.default_rng(count)
    for values in (rng.lognormal(0, 2, count), rng.integers(0, 3, count) / 7, rng.normal(0, 1, count)):
        parts = np.array_split(values, 3)
        assert percentile_of(partial(iter, parts), percentile) == np.percentile(values, percentile)


def test_a_percentile_of_pieces_beside_lost_requests() -> None:
    values = np.random.default_rng(0).lognormal(0, 1, 1000)
    for lost in (1, 40, 60, 2000):
        found = percentile_of(lambda: iter(np.array_split(values, 7)), 95.0, lost)
        assert found == percentile_beside(values, 95.0, lost)
    assert percentile_of(lambda: iter([np.zeros(0)]), 95.0) == inf


def test_columns_of_a_run_in_a_file_are_read_by_their_values() -> None:
    """Whatever their width: 3 and 5 in 32 bits are no number of 64."""
    given = [np.array([0.5, 1.5], np.float32), np.array([3, 5], np.int32), np.array([7, 9], np.int64)]
    spool = Spool(given)
    assert [list(column) for column in spool.given] == [[0.5, 1.5], [3, 5], [7, 9]]
    spool.clear()
    assert all(np.isnan(column).all() for column in spool.times) and list(spool.codes) == [0, 0]


def test_a_file_has_its_whole_size_where_the_system_reserves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has no posix_fallocate: zeros are written, in blocks, the last of them smaller."""
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    monkeypatch.setattr(mapped, "_BLOCK", 1000)
    for size in (1, 999, 1000, 2500):
        assert bytes(mapped.mapped(size)) == bytes(size)


def test_where_no_file_can_be_made_somebody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mapped, "mapped", full)
    said: list[str] = []
    times = np.zeros(mapped.FEWEST)
    assert spool_for([times, times, times], said.append) is None
    assert len(said) == 1 and "No space left on device" in said[0] and "65,536" in said[0]
    assert spool_for([times[1:]] * 3, said.append) is spool_for([times, None, times], said.append) is None
    assert len(said) == 1
