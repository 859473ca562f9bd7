"""Times of logs: every reader of a column ``timestamp`` takes the same, told by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferplan.errors import InputFileError
from inferplan.traffic.request_log import read_log, read_replicas
from inferplan.traffic.traces import read_recorded
from tests.cases import for_each


def written(tmp_path: Path, times: list[str], more: str = "", cell: str = "") -> Path:
    path = tmp_path / "log.csv"
    path.write_text(f"timestamp{more}\n" + "".join(f"{time}{cell}\n" for time in times))
    return path


@for_each(
    "times, began, gaps, dated",
    [
        (["86400", "86410.5"], 86400.0, [0.0, 10.5], False),
        (["1.7e9", "1700000001"], 1.7e9, [0.0, 1.0], False),
        # 2026-05-04 is day 20,577 after 1970: 56 years of 365 days, 14 leap days, 31 + 28 + 31 + 30 + 3 of this one
        (["2026-05-04T00:00:00", "2026-05-04 00:01:00"], 20577 * 86400.0, [0.0, 60.0], True),
        (["20260504T000000", "20260504T00:01"], 20577 * 86400.0, [0.0, 60.0], True),
        (["20260504", "20269901"], 20260504.0, [0.0, 9397.0], False),  # there is no month 99: seconds
        (["20260504.0", "20260505.0"], 20260504.0, [0.0, 1.0], False),
        (["2026-05-04T02:00:00+02:00", "2026-05-04T00:01:00Z"], 20577 * 86400.0, [0.0, 60.0], True),
    ],
)
def test_all_readers_agree(tmp_path: Path, times: list[str], began: float, gaps: list[float], dated: bool) -> None:
    log = read_log(written(tmp_path, times))
    assert log is not None
    assert (log.seconds - began).tolist() == gaps
    trace = read_recorded(written(tmp_path, times, ",prompt,output", ",10,5"))
    assert (trace.began, trace.dated) == (began, dated)
    assert trace.requests.arrival is not None and trace.requests.arrival.tolist() == gaps
    ran = read_replicas(written(tmp_path, times[:1], ",replicas", ",3"), trace.began, trace.dated)
    assert ran == ((0.0, 3),)


@for_each(
    "times, said",
    [
        (["1", "-1"], ":3: timestamp is -1"),
        (["1", "inf"], ":3: timestamp is inf"),
        (["1", "noon"], ":3: timestamp is 'noon'"),
        (["1", ""], ":3: timestamp is ''"),
        (["1", "1700000000000"], ":3: timestamp is 1700000000000, seconds after the year 2999: milliseconds"),
        (["0001-01-01T00:00:00+05:00"], ":2: .* not of the years 1970 to 2999"),
        (["1", "2026-05-04"], "some times are dates"),
        (["20260504", "20260505"], "each timestamp is a date without dashes, or seconds"),
        (["20260504101500"], ":2: .*20260504101500, a date and time without signs"),
        (["202605041015"], ":2: .*202605041015, a date and time without signs"),
        (["2026_05_04"], ":2: timestamp is '2026_05_04', neither"),
        (["20260504", "20260505T101500"], "some times are dates"),
        (["2026-05-04T00:00", "2026-05-04T00:00Z"], "have an offset"),
    ],
)
def test_all_readers_refuse_the_same(tmp_path: Path, times: list[str], said: str) -> None:
    with pytest.raises(InputFileError, match=said):
        read_log(written(tmp_path, times, ",class", ",a"))
    with pytest.raises(InputFileError, match=said):
        read_recorded(written(tmp_path, times, ",prompt,output", ",10,5"))
