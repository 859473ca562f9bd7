"""Months to come out of a log, against arithmetic by hand and the textbook's formula in matrices."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from inferplan.errors import InputFileError, UsageError
from inferplan.horizon.forecast import forecast

BEGIN = datetime(2026, 1, 5, tzinfo=UTC)
"""A Monday."""


def log(path: Path, weeks: list[int], busy: int = 0) -> Path:
    """So many requests in each hour of each week, twice as many in the first hours of it."""
    lines = ["timestamp"]
    for week, requests in enumerate(weeks):
        for hour in range(168):
            start = BEGIN + timedelta(hours=week * 168 + hour)
            count = requests * (2 if hour < busy else 1)
            lines += [(start + timedelta(seconds=one * 3000 / count)).isoformat() for one in range(count)]
    lines.append((BEGIN + timedelta(weeks=len(weeks), seconds=1)).isoformat())
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_load_that_doubles_every_week_goes_on_doubling(tmp_path: Path) -> None:
    """1, 2, 4 and 8 requests an hour. The middle of February is 27 + 365/24 days after the first Monday, and the middle
    of week ``w`` is ``w + 1/2`` weeks after it. Nothing is off the line, so that all quantiles are the same."""
    found = forecast(log(tmp_path / "log.csv", [1, 2, 4, 8]), "2026-02", 2, [0.1, 0.9], [1.0])
    week = (27 + 365 / 24) / 7 - 0.5
    assert found[:, 0, 0] == pytest.approx([2**week / 3600, 2 ** (week + 730 / 168) / 3600], rel=1e-6)
    assert found[:, 1] == pytest.approx(found[:, 0], rel=1e-6)


def test_levels_have_the_rates_of_their_busiest_hours(tmp_path: Path) -> None:
    """Of 168 hours 24 have twice the requests. The first level has 12 hours, the second 24, the third the rest."""
    found = forecast(log(tmp_path / "log.csv", [3] * 5, busy=24), "2026-03", 1, [0.5], [12 / 168, 24 / 168, 132 / 168])
    assert found[0, 0] == pytest.approx(np.array([6, 6, 3]) / 3600)


def test_quantiles_are_those_of_a_prediction_by_least_squares(tmp_path: Path) -> None:
    weeks = [3, 4, 3, 5, 6, 5]
    found = forecast(log(tmp_path / "log.csv", weeks), "2026-03", 3, [0.1, 0.5, 0.9], [1.0])
    design = np.stack([np.ones(6), np.arange(6)], axis=1)
    logs = np.log(np.array(weeks) * 168.0)
    solution, left, *_ = np.linalg.lstsq(design, logs, rcond=None)
    for month in range(3):
        at = np.array([1.0, (55 + (month + 0.5) * 365 / 12) / 7 - 0.5])
        error = np.sqrt(left[0] / 4 * (1 + at @ np.linalg.inv(design.T @ design) @ at))
        expected = at @ solution + error * stats.t.ppf([0.1, 0.5, 0.9], 4)
        assert found[month, :, 0] == pytest.approx(np.exp(expected) / 168 / 3600, rel=1e-9)


def test_logs_that_say_too_little(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="3 whole weeks"):
        forecast(log(tmp_path / "log.csv", [1] * 3), "2026-03", 1, [0.5], [1.0])
    with pytest.raises(UsageError, match="after the middle of the first month"):
        forecast(log(tmp_path / "log.csv", [1] * 6), "2026-01", 1, [0.5], [1.0])
    with pytest.raises(UsageError, match="without requests"):
        forecast(log(tmp_path / "log.csv", [1, 0, 1, 1]), "2026-03", 1, [0.5], [1.0])
    (tmp_path / "seconds.csv").write_text("timestamp\n0\n90000000\n")
    with pytest.raises(UsageError, match="no dates"):
        forecast(tmp_path / "seconds.csv", "2026-03", 1, [0.5], [1.0])
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputFileError):
        forecast(tmp_path / "other.csv", "2026-03", 1, [0.5], [1.0])
