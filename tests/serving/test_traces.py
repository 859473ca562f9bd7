"""Trace readers: the published statistics of real traces, and a clear word about broken ones."""

from __future__ import annotations

from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from inferplan.errors import InputFileError
from inferplan.traffic import traces
from tests.cases import for_each


def test_azure_conversation(shared: Path) -> None:
    trace = traces.read_trace(shared / "traces" / "azure_llm_2023_conv.csv")
    assert len(trace) == 19366
    assert trace.arrival is not None and trace.arrival[0] == 0
    assert trace.arrival[-1] == pytest.approx(3502, abs=1)
    assert float(trace.prompt.mean()) == pytest.approx(1154.7, abs=0.05)
    assert float(trace.output.mean()) == pytest.approx(211.1, abs=0.05)
    gaps = np.diff(trace.arrival)
    assert gaps.std() / gaps.mean() == pytest.approx(1.094, abs=0.002)


def test_mooncake_conversation(shared: Path) -> None:
    trace = traces.read_trace(shared / "traces" / "mooncake_conversation.jsonl")
    assert len(trace) == 12031
    assert float(trace.prompt.mean()) == pytest.approx(12035, abs=0.5)
    assert trace.arrival is not None and trace.hashes is not None
    assert np.all(np.diff(trace.arrival) > 0)  # bins of about 3 s are spread
    gaps = np.diff(trace.arrival)
    assert gaps.std() / gaps.mean() < 1.2  # 3.03 in the file, an artefact of its bins
    seen: set[int] = set()
    hits = 0
    for names, prompt in zip(trace.hashes, trace.prompt):
        leading = next((i for i, name in enumerate(names) if name not in seen), len(names))
        hits += min(leading * traces.MOONCAKE_BLOCK, int(prompt))
        seen.update(names)
    assert hits / float(trace.prompt.sum()) == pytest.approx(0.366, abs=0.01)  # with an unlimited cache


def test_plain_csv_is_sorted_and_counted_from_zero(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("arrival_s,prompt,output\n5,100,10\n\n3.5,200,20\n")
    trace = traces.read_trace(path)
    assert trace.arrival is not None
    assert list(trace.arrival) == [0.0, 1.5]
    assert list(trace.prompt) == [200, 100]


@for_each("end", ["", "\n", ",extra\n"])
def test_azure_rows_by_hand(tmp_path: Path, end: str) -> None:
    """As published, and with a blank line or a further column, which takes the way by single rows."""
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.5000000,374,44\n"
        f"2023-11-17 00:00:01.7500009,396,109{end}"
    )
    requests = traces.read_trace(path)
    assert requests.arrival is not None and requests.arrival.tolist() == pytest.approx([0.0, 2.25])
    assert requests.prompt.tolist() == [374, 396] and requests.output.tolist() == [44, 109]
    path.write_text(path.read_text().replace("11-17", "11-31"))
    with pytest.raises(InputFileError, match="3: TIMESTAMP is '2023-11-31"):
        traces.read_trace(path)


def test_a_bin_is_spread_until_the_next() -> None:
    assert list(traces.spread_in_bins(np.array([0.0, 0.0, 0.0, 3.0, 3.0]))) == [0.0, 1.0, 2.0, 3.0, 4.5]


@for_each(
    ("text", "line", "reason"),
    [
        ("arrival_s,prompt,output\n0,10,10\n-1,10,10\n", 3, "negative time"),
        ("arrival_s,prompt,output\n0,10,10\nnan,10,10\n", 3, "not a finite time"),
        ("arrival_s,prompt,output\n0,ten,10\n", 2, "prompt is 'ten'"),
        ("arrival_s,prompt,output\n0,10,0\n", 2, "output is 0"),
        ("arrival_s,prompt,output\n0,10\n", 2, "cut off"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,10,10\n", 2, "not a date"),
        ('{"timestamp": 0, "input_length": 10, "output_length": 1}\n{"timestamp": 1, "inp\n', 2, "not JSON"),
        ('{"timestamp": 0, "input_length": 10}\n', 1, "no output_length"),
        ('{"timestamp": 0, "input_length": 10, "output_length": 1}\n5\n', 2, "not an object"),
        ("arrival_s,prompt,output\n0,10,10\n" + "x" * 200_000 + ",1,1\n", 3, "not CSV"),
        ("hello\n", 1, "not a trace"),
    ],
)
def test_broken_traces_name_the_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    path = tmp_path / "broken.csv"
    path.write_text(text)
    with pytest.raises(InputFileError, match=reason) as caught:
        traces.read_trace(path)
    assert f"{path}:{line}:" in caught.value.what
    assert caught.value.exit_code == 4


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt,output\n1,10,10\n3,20,10\n", encoding="utf-8-sig")
    assert list(traces.read_trace(path).arrival) == [0.0, 2.0]


@for_each("content", [b"", b"\n\n", b"\xff\xfe\x00"])
def test_empty_and_binary_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InputFileError):
        traces.read_trace(path)
    with pytest.raises(InputFileError, match="cannot read"):
        traces.read_trace(tmp_path / "absent")


def test_columns_may_have_the_names_of_usage(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(
        "timestamp,prompt_tokens,completion_tokens\n2026-11-20T10:00:05Z,200,30\n2026-11-20T10:00:00Z,100,20\n"
    )
    found = traces.read_trace(log)
    assert (found.prompt.tolist(), found.output.tolist()) == ([100, 200], [20, 30])
    assert found.arrival is not None
    assert found.arrival.tolist() == [0.0, 5.0]


class _Line(str):
    """A line that says how many of its kind there are, and how many there ever were at once."""

    there = most = 0

    def __new__(cls, text: str) -> _Line:
        cls.there += 1
        cls.most = max(cls.most, cls.there)
        return super().__new__(cls, text)

    def __del__(self) -> None:
        _Line.there -= 1


@for_each(
    "header, row, most",
    [
        ("arrival_s,prompt,output,ttft_s,latency_s", "{0},100,{0},0.5,1.5", 4),
        ("timestamp,prompt,output", "2026-05-04T00:{1:02}:{2:02}Z,100,{0}", 4),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:{1:02}:{2:02}.0000000,100,{0}", 104),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", '"2023-11-16 18:{1:02}:{2:02}.0000000",100,{0}', 104),
    ],
)
def test_lines_are_not_held(header: str, row: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 lines a few are there at once, of Azure's as many as are read at a time; requests are the same."""
    monkeypatch.setattr(traces, "_PIECE", 50)
    _Line.there = _Line.most = 0
    seconds = [*range(1, 1001)]
    rows = (row.format(at, at // 60, at % 60) for at in seconds)
    found = traces._recorded(Path("log.csv"), (_Line(f"{text}\n") for text in chain([header], rows))).requests
    assert _Line.most <= most
    assert found.arrival is not None
    assert found.arrival.tolist() == [at - 1.0 for at in seconds]
    assert found.output.tolist() == seconds and set(found.prompt.tolist()) == {100}


def test_a_long_log_lies_in_files_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows as they are written here, in and out of order, with some that are not plain numbers among them."""
    rows = [(10.5 + 0.25 * row, row % 7 + 1, row % 5 + 1) for row in range(100)]
    text = "arrival_s,prompt,output\n" + "".join(f"{time},{prompt},{output}\n" for time, prompt, output in rows)
    swapped = "output,arrival_s,prompt\n" + "".join(f"{output},{time},{prompt}\n" for time, prompt, output in rows)
    quoted = text.replace("\n20.5,", '\n"20.5",')
    late = text + "10.25,9,9\n"
    for most in (traces._LONG, 16):
        monkeypatch.setattr(traces, "_LONG", most)
        monkeypatch.setattr(traces, "_PIECE", 8)
        for said in (text, swapped, quoted, late):
            path = tmp_path / "log.csv"
            path.write_text(said, encoding="utf-8")
            found = traces.read_recorded(path)
            expected = [(0.25 * row, row % 7 + 1, row % 5 + 1) for row in range(100)]
            if said is late:
                expected = [(0.0, 9, 9), *((time + 0.25, prompt, output) for time, prompt, output in expected)]
            requests = found.requests
            assert requests.arrival is not None
            assert list(zip(requests.arrival.tolist(), requests.prompt.tolist(), requests.output.tolist())) == expected
            assert found.began == (10.25 if said is late else 10.5)
        path.write_text(text + "36.5,0,3\n", encoding="utf-8")
        with pytest.raises(InputFileError, match=r"log\.csv:102: prompt is 0"):
            traces.read_recorded(path)


CELLS = ("1e3", " 5", "5\t", "+5", "5.", "0012", "1.5", "2.0", "1e-400", '"5"', "1_0", "0x1f", "1k", "1 2", "1d3", "1j")
ERRORS = ("", "nan", "inf", "1e400", "-0", "-1", "#5", "(5)", "five", "\x0c7", "\u0663")
"""Five in Arabic digits is not ASCII."""


@for_each("cell", [*CELLS, *ERRORS])
def test_many_lines_at_once_say_what_each_says_alone(
    cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers, and errors with their line, in every column."""

    def said(row: str) -> object:
        path = tmp_path / "log.csv"
        path.write_text(f"arrival_s,prompt,output\n0,1,1\n{row}\n", encoding="utf-8")
        try:
            found = traces.read_trace(path)
        except InputFileError as error:
            return str(error)
        assert found.arrival is not None
        return found.arrival.tolist(), found.prompt.tolist(), found.output.tolist()

    rows = [f"{cell},5,5", f"1,{cell},5", f"1,5,{cell}"]
    at_once = [said(row) for row in rows]
    monkeypatch.setattr(traces._Columns, "add_numbers", lambda *_: False)
    assert [said(row) for row in rows] == at_once


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_a_disk_without_room_is_not_blamed_on_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.csv"
    path.write_text("arrival_s,prompt,output\n" + "1,2,3\n" * 20, encoding="utf-8")
    monkeypatch.setattr(traces, "_LONG", 8)
    monkeypatch.setattr(traces, "unnamed_file", partial(Path("/dev/full").open, "wb"))
    with pytest.raises(InputFileError) as refused:
        traces.read_trace(path)
    assert refused.value.what == "no room for a log" and "TMPDIR" in refused.value.hint


def test_a_long_log_is_read_where_no_file_may_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the processes of the page, which write none."""
    path = tmp_path / "log.csv"
    path.write_text("arrival_s,prompt,output\n" + "".join(f"{time},2,3\n" for time in range(20)), encoding="utf-8")
    monkeypatch.setattr(traces, "_LONG", 8)
    tried = list[None]()

    def refuse() -> None:
        tried.append(None)
        raise PermissionError

    monkeypatch.setattr(traces, "unnamed_file", refuse)
    arrival = traces.read_trace(path).arrival
    assert arrival is not None and arrival.tolist() == list(range(20))
    assert len(tried) == 1
