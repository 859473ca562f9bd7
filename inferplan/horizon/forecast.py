"""Months to come out of a log of requests: a season of the week and a trend with its uncertainty.

The number of requests of week ``w`` is ``exp(a + b w + e)``, with ``a`` and ``b`` by ordinary least squares and ``e``
normal: the ``q`` quantile of a week to come is ``exp(a + b w + t_q s sqrt(1 + 1/n + (w - mean)^2/sum((w - mean)^2)))``
with Student's ``t`` of ``n - 2`` degrees of freedom (Draper and Smith, Applied Regression Analysis, 3rd edition, 1998,
section 3.1). An hour of the week has its mean share of a week's requests (classical multiplicative decomposition).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from inferplan.errors import InputFileError, UsageError
from inferplan.traffic.request_log import read_log
from inferplan.units import HOURS_PER_MONTH, Array

_WEEK, _HOUR = 7 * 86400.0, 3600.0
_FEWEST = 4
"""Weeks: a line through two has no error, and one of three hardly any degrees of freedom."""


def forecast(path: Path, begin: str, months: int, quantiles: Sequence[float], shares: Sequence[float]) -> Array:
    """Requests a second by month, quantile and level.

    begin: the first month. shares: of the hours of a week in each level, the busiest first: a level has the rate of
    the busiest of its hours. Raises ``InputFileError`` for a file that is no log, ``UsageError`` for one that is too
    short, or has seconds where dates are needed.
    """
    log = read_log(path)
    if log is None:
        raise InputFileError(f"{path} is no log of requests", because="its columns are not timestamp[,class]")
    if not len(log.seconds) or log.seconds[0] < _WEEK * 52:
        raise UsageError(
            f"{path.name} says no dates", because="months are counted from them", hint="timestamp: ISO 8601"
        )
    start = np.ceil(log.seconds[0] / _HOUR) * _HOUR
    weeks = int((np.floor(log.seconds[-1] / _HOUR) * _HOUR - start) // _WEEK)
    if weeks < _FEWEST:
        raise UsageError(
            f"{path.name} has {weeks} whole weeks",
            because=f"a trend with its uncertainty takes {_FEWEST}",
            hint="rate:",
        )
    hours = ((log.seconds - start) // _HOUR).astype(np.int64)
    counts = np.bincount(hours[(hours >= 0) & (hours < weeks * 168)], minlength=weeks * 168).reshape(weeks, 168)
    totals = counts.sum(axis=1).astype(float)
    if np.any(totals == 0):
        raise UsageError(f"{path.name} has a week without requests", hint="a log without gaps, or rate:")
    at, season = np.arange(weeks, dtype=float), np.sort((counts / totals[:, None]).mean(axis=0))[::-1]
    first = datetime(int(begin[:4]), int(begin[5:]), 1, tzinfo=UTC).timestamp()
    to_come = (first - start + (np.arange(months) + 0.5) * HOURS_PER_MONTH * _HOUR) / _WEEK - 0.5
    if to_come[0] < weeks - 1:
        raise UsageError(
            f"{path.name} goes on after the middle of the first month", hint="begin: a month after the log"
        )
    level = _trend(at, np.log(totals), to_come, quantiles)
    busiest = season[np.round(np.cumsum([0.0, *shares[:-1]]) * 168).astype(int)]
    found: Array = np.exp(level)[:, :, None] * busiest[None, None, :] / _HOUR
    return found


def _trend(at: Array, logs: Array, to_come: Array, quantiles: Sequence[float]) -> Array:
    """Quantiles of the logarithm of weeks to come, by week and quantile."""
    from scipy.special import stdtrit

    count, middle = len(at), at.mean()
    around = float(((at - middle) ** 2).sum())
    slope = float(((at - middle) * logs).sum()) / around
    left = logs - logs.mean() - slope * (at - middle)
    deviation = np.sqrt(float(left @ left) / (count - 2))
    error = deviation * np.sqrt(1 + 1 / count + (to_come - middle) ** 2 / around)
    found: Array = (logs.mean() + slope * (to_come - middle))[:, None] + error[:, None] * stdtrit(
        count - 2, np.asarray(quantiles)
    )
    return found
