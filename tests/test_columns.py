"""Rows by column: the same rows, and the same text, as rows held as records."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inferplan import columns
from inferplan.columns import Block, Columns, blocks_of, compact
from inferplan.errors import printable
from inferplan.table import Report, frame, plain, render

ROWS: list[dict[str, Any]] = [
    {"name": 'a "b", c', "count": 1, "seconds": 0.1, "rate": None, "status": "ok"},
    {"name": 'a "b", c', "count": 2, "seconds": 1e-300, "rate": 2.5, "status": "100 % of\nit"},
    {"name": 'a "b", c', "count": 3, "status": "no"},
    {"name": "", "count": 4, "seconds": 3.0, "rate": None, "status": None, "fits": True},
]


@pytest.fixture(params=[1, 2, 16384])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "ROWS_AT_ONCE", request.param)


@pytest.mark.usefixtures("at_once")
def test_rows_come_back_as_they_were() -> None:
    found = Columns(blocks=blocks_of(ROWS))
    assert list(found) == ROWS
    assert [list(row) for row in found] == [list(row) for row in ROWS]
    assert [[type(value) for value in row.values()] for row in found] == [
        [type(value) for value in row.values()] for row in ROWS
    ]
    assert len(found) == 4


@pytest.mark.usefixtures("at_once")
def test_text_is_what_the_standard_library_writes() -> None:
    found = Columns(blocks=blocks_of(ROWS))
    report = Report(record={"points": found, "more": {"a": [1, 2]}}, rows=found)
    record = {"schema_version": 2, "points": ROWS, "more": {"a": [1, 2]}}
    assert render(report, "json") == json.dumps(record, indent=2) + "\n"
    lines = [json.dumps({"schema_version": 2, **row}) + "\n" for row in ROWS]
    assert render(report, "jsonl") == "".join(lines)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [*ROWS[0], "fits"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(ROWS)
    assert render(report, "csv") == buffer.getvalue()


def test_a_later_block_with_columns_between_keeps_each_value_under_its_name() -> None:
    """A structure that cannot exist has no figures, so that ``status`` comes before the figures of others."""
    rows = [{"batch": 1, "status": "no"}, *({"batch": n, "ttft_s": n / 7, "status": f"s{n}"} for n in range(1, 4))]
    found = Columns(blocks=blocks_of(rows))
    text = render(Report(record={}, rows=found), "csv")
    read = [{name: value for name, value in row.items() if value} for row in csv.DictReader(io.StringIO(text))]
    assert read == [{name: str(value) for name, value in row.items()} for row in rows]


AWKWARD = [float("nan"), float("inf"), -0.0, 0.0, 1e-7, 1e16, 1e22, -2.5, 0.1, 3.0, 1 / 3, 123456789.0]


def test_a_large_grid_is_written_as_the_standard_library_writes_its_rows() -> None:
    """Every kind of column and axis, numbers of all kinds, more rows than are turned into text at once."""
    shape = (40, 3, 300)
    draw = np.random.default_rng(0)

    def numbers(*shape: int) -> npt.NDArray[np.float64]:
        return draw.choice([*AWKWARD, *(10 ** draw.uniform(-6, 18, 500))], shape)

    block = Block(
        shape=shape,
        columns={
            "model": np.full((1, 1, 1), "m, 100 %s\0", dtype=object),
            "count": np.arange(40).reshape(40, 1, 1) - 20,
            "every": numbers(*shape),
            "name": np.array(["a", 'b"', "=c"], dtype=object).reshape(1, 3, 1),
            "first_last": numbers(40, 1, 300),
            "first": numbers(40, 1, 1),
            "last": numbers(1, 1, 300),
            "fits": draw.choice(np.array([True, False, None], dtype=object), shape),
            "whole": draw.integers(-(2**60), 2**60, shape),
            "none": np.full((1, 1, 1), np.nan),
        },
    )
    found, rows = Columns(blocks=[block]), list(block.rows())
    assert len(rows) == 36_000
    assert render(Report(record={"points": found}), "json") == printable(
        json.dumps({"schema_version": 2, "points": rows}, indent=2) + "\n"
    )
    assert render(Report(record={}, rows=found), "csv") == render(Report(record={}, rows=rows), "csv")


def test_no_rows_are_an_empty_list() -> None:
    none = Columns(blocks=[])
    assert json.loads(render(Report(record={"points": none}, rows=none), "json")) == {"schema_version": 2, "points": []}


@pytest.mark.usefixtures("at_once")
def test_a_column_is_kept_along_the_axes_that_it_depends_on() -> None:
    first, second, third = np.array([1.0, 2.0]), np.array([10, 20, 30]), np.array([np.nan, 5.0])
    every = first[:, None, None] * second[None, :, None] + third[None, None, :]
    block = Block(
        shape=(2, 3, 2),
        columns={
            "first": compact(np.broadcast_to(first[:, None, None], (2, 3, 2))),
            "second": compact(np.broadcast_to(second[None, :, None], (2, 3, 2))),
            "third": compact(np.broadcast_to(third[None, None, :], (2, 3, 2))),
            "every": compact(every),
            "none": compact(np.full((2, 3, 2), np.nan)),
        },
    )
    shapes = {name: column.shape for name, column in block.columns.items()}
    assert shapes == {
        "first": (2, 1, 1),
        "second": (1, 3, 1),
        "third": (1, 1, 2),
        "every": (2, 3, 2),
        "none": (1, 1, 1),
    }
    expected = [
        {"first": a, "second": b, "third": c, "every": a * b + c, "none": np.nan}
        for a in first.tolist()
        for b in second.tolist()
        for c in third.tolist()
    ]
    assert list(block.rows()) == plain(expected)


def test_a_frame_has_every_column_of_any_block() -> None:
    pytest.importorskip("pandas")
    found = frame(Columns(blocks=blocks_of(ROWS)))
    assert list(found.columns) == [*ROWS[0], "fits"]
    assert found["count"].tolist() == [1, 2, 3, 4]
    assert found["rate"].isna().tolist() == [True, False, True, True]
