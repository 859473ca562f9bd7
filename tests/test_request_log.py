"""A day out of many: rates by hand, by the clock, of classes; logs that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inferplan.errors import InputFileError, UsageError
from inferplan.traffic.request_log import Log, fold_days, read_log, way_of
from tests.cases import for_each

HOUR, DAY = 3600.0, 86_400.0


def log_of(*times: float, of: list[int] | None = None, classes: tuple[str, ...] = ()) -> Log:
    """A log of times in any order."""
    order = np.argsort(times, kind="stable")
    return Log(np.array(times)[order], np.array(of or [0] * len(times))[order], classes)


def test_three_days_by_hand() -> None:
    """Ten, twenty and sixty requests in the five minutes after midnight, one at noon of the first day alone."""
    times = [day * DAY + 5.0 * n for day, count in enumerate((10, 20, 60)) for n in range(count)]
    log = log_of(*times, 12 * HOUR + 1, 3 * DAY)
    mean, busy, middle = (fold_days(log, "log", percentile) for percentile in (None, 100.0, 50.0))
    assert len(mean.rates) == 288 and mean.end == DAY
    assert mean.rates[0] == pytest.approx(90 / 3 / 300)
    assert (busy.rates[0], middle.rates[0]) == (pytest.approx(60 / 300), pytest.approx(20 / 300))
    assert (mean.rates[144], middle.rates[144]) == (pytest.approx(1 / 3 / 300), 0.0)
    assert mean.starts[144] == 12 * HOUR
    assert sum(rate > 0 for rate in mean.rates) == 2  # the request at the very end is in a step that is not whole


def test_days_in_part_count_for_their_whole_steps() -> None:
    """From 06:02 to 06:03 two days later: 06:05 to 24:00 is in two days, so is 00:00 to 06:00, 06:00 in one alone."""
    begin, end = 6 * HOUR + 120, 2 * DAY + 6 * HOUR + 180
    at = [DAY + 6 * HOUR + 10.0 * n for n in range(30)]  # 06:00 of the second day
    at += [2 * DAY + HOUR + n for n in range(60)]  # 01:00 of the third, and of no other
    found = fold_days(log_of(begin, end, *at), "log")
    assert found.rates[72] == pytest.approx(30 / 300)
    assert found.rates[12] == pytest.approx(60 / 2 / 300)
    assert sum(rate > 0 for rate in found.rates) == 2


def test_classes_are_folded_each() -> None:
    times = [0.0, 1.0, 2.0, DAY + 1, DAY + 2, DAY + 3, 2 * DAY]
    found = fold_days(log_of(*times, of=[0, 0, 1, 1, 1, 1, 0], classes=("chat", "batch")), "log")
    assert found.classes == ("chat", "batch")
    assert [rates[0] for rates in found.of_class] == [pytest.approx(2 / 2 / 300), pytest.approx(4 / 2 / 300)]
    assert found.rates[0] == pytest.approx(6 / 2 / 300)


def test_times_are_those_of_the_clock(tmp_path: Path) -> None:
    """08:00 in New York is 12:00 UTC in summer; a time without an offset is as it is written."""
    path = tmp_path / "log.csv"
    path.write_text("class,timestamp\nb,2024-05-11 00:00:00+00:00\na,2024-05-10T08:00:00-04:00\n", encoding="utf-8")
    found = read_log(path)
    assert found is not None
    assert (found.seconds % DAY).tolist() == [12 * HOUR, 0.0]
    assert [found.classes[place] for place in found.of] == ["a", "b"]
    path.write_text("timestamp\n2024-05-10 08:00:00\n2024-05-10 07:00:00.5\n\n", encoding="utf-8")
    found = read_log(path)
    assert found is not None and (found.seconds % DAY).tolist() == [7 * HOUR + 0.5, 8 * HOUR]
    path.write_text("timestamp\n90000\n10\n", encoding="utf-8")
    found = read_log(path)
    assert found is not None and found.seconds.tolist() == [10.0, 90_000.0] and not found.classes
    path.write_text("arrival_s,prompt,output\n", encoding="utf-8")
    assert read_log(path) is None


@for_each(
    ("text", "said"),
    [
        ("timestamp\n1\nnoon\n", ":3: timestamp is 'noon', neither"),
        ("timestamp\n-1\n", ":2: timestamp is -1"),
        ("timestamp,class\n1,a\n2\n", ":3: has 1 columns where 2"),
        ("timestamp\n5\n2024-05-10T08:00:00Z\n", "some times are dates and some are seconds"),
    ],
)
def test_bad_logs(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputFileError) as refused:
        read_log(path)
    assert said in str(refused.value)


def test_less_than_a_day_is_no_day() -> None:
    with pytest.raises(UsageError, match="no whole day"):
        fold_days(log_of(10.0, DAY + 5.0), "log")  # of the first and the last step a part each
    with pytest.raises(UsageError, match="no requests"):
        fold_days(log_of(), "log")
    assert fold_days(log_of(0.0, DAY), "log").rates[0] == pytest.approx(1 / 300)
    assert (way_of("mean"), way_of("p95"), way_of("p99.5")) == (None, 95.0, 99.5)
    for text in ("median", "95", "p101", "p"):
        with pytest.raises(UsageError, match="no way to make one day"):
            way_of(text)
