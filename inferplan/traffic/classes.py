"""Several kinds of traffic on one service: their names differ, and their shares make a whole."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose

from inferplan.errors import UsageError
from inferplan.traffic.requests import TrafficClass

SUM_TOLERANCE = 1e-3
"""Shares may miss a sum of 1 by so much: three decimals are as many as people write."""


def require_whole(classes: Sequence[TrafficClass]) -> None:
    """Raise ``UsageError`` for names that are not told apart, and for shares that do not make a whole."""
    names = [one.name for one in classes]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"two classes of traffic are named {twice[0]!r}", hint="a name of its own for each")
    total = sum(one.share for one in classes)
    if not isclose(total, 1.0, rel_tol=0.0, abs_tol=SUM_TOLERANCE):
        raise UsageError(
            f"the shares of the classes add up to {total:.6g}, not to 1",
            because=" + ".join(f"{one.share:g}" for one in classes),
            hint="share: of all requests; or rate: requests per second, for every class",
        )
