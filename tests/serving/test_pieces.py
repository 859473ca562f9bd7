"""Figures of a long run in pieces: those of numpy over all values, to the last bit."""

from __future__ import annotations

from functools import partial
from math import inf

import numpy as np
import pytest

from inferplan.mapped import Spool
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
