"""How rows are dealt to experts and to adapters."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from inferplan.work.routing import popularity


def rows_of_experts(rows: int, experts: int, touched: int, skew: float = 0.0) -> list[int]:
    """Rows of each expert of a rank: ``rows`` in all, over exactly ``touched`` of them.

    skew 0 deals them evenly over the first ones. Otherwise it is the standard deviation of the logarithm of the
    experts' popularity (:mod:`inferplan.work.routing`): the most popular are touched, each gets its share by largest
    remainder and at least one row, and where they stand among the others is shuffled, the same way every time.
    """
    touched = max(1, min(touched, experts, rows))
    if skew == 0.0:
        ends = [round(rows * i / touched) for i in range(touched + 1)]
        return [b - a for a, b in pairwise(ends)] + [0] * (experts - touched)
    chances = np.array(popularity(experts, 1, skew)[:touched])
    shares = (rows - touched) * chances / chances.sum()
    dealt = np.floor(shares).astype(int)
    left = rows - touched - int(dealt.sum())
    dealt[np.argsort(dealt - shares, kind="stable")[:left]] += 1
    found = np.zeros(experts, dtype=int)
    found[np.random.default_rng(0).permutation(experts)[:touched]] = dealt + 1
    return [int(count) for count in found]
