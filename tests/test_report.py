"""Reports: the two renderers of a table agree, and what JSON cannot hold is null."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np

from inferplan.catalog.assemble import Request, assemble
from inferplan.columns import Columns, blocks_of
from inferplan.estimate.load import StaticLoad
from inferplan.estimate.run import estimate
from inferplan.reports.estimate import estimate_report
from inferplan.table import SCHEMA_VERSION, Report, Table, plain, render
from tests.cases import for_each


def reports() -> list[Report]:
    deployment = assemble(Request(model="llama-3.1-8b", gpu="h100-sxm"))
    odd = Table(title="", columns=["a", "b "], rows=[["  indented", "1"], ["", "22 "]], right=frozenset({"b "}))
    empty = Table(title="nothing", columns=["only a head"], rows=[])
    return [
        estimate_report(estimate(deployment, StaticLoad(batch=8.0))),
        Report(record={}, tables=[odd, empty], notes=["one note", "two\nlines"]),
    ]


@for_each("report", reports(), ids=["estimate", "odd"])
def test_plain_text_is_the_terminal_without_colour(report: Report) -> None:
    """Without a terminal no rich is loaded; what is drawn is the same as on a terminal that is wide enough."""
    assert render(report, "table") == render(report, "table", width=10_000)


def test_json_has_no_nan_and_no_numpy() -> None:
    record = {"a": np.float64("nan"), "b": [np.int64(3), float("inf")], "c": {"d": np.array([1.0, np.nan])}}
    assert plain(record) == {"a": None, "b": [3, None], "c": {"d": [1.0, None]}}
    assert json.loads(render(Report(record=record), "json")) == {"schema_version": 2, **plain(record)}


@for_each("by_column", [False, True])
def test_a_spreadsheet_computes_no_cell_of_csv(by_column: bool) -> None:
    """Texts that begin as formulas do get an apostrophe (OWASP, CSV Injection); numbers, and numbers as text, stay."""
    texts = ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "＝1", "-", "a=b", "-5", "+1.5e-3", "", "'=1"]
    rows = [{"name": text, "value": -0.5 * index, "=head": -index} for index, text in enumerate(texts)]
    report = Report(record={}, rows=Columns(blocks=blocks_of(rows)) if by_column else rows)
    header, *cells = csv.reader(io.StringIO(render(report, "csv")))
    assert header == ["name", "value", "'=head"]
    apart = ["'=1+1", "'+cmd", "'-2+3", "'@SUM(A1)", "'\t=1", "'＝1", "-", "a=b", "-5", "+1.5e-3", "", "'=1"]
    assert [cell[0] for cell in cells] == apart
    assert [(float(cell[1]), int(cell[2])) for cell in cells] == [(-0.5 * i, -i) for i in range(len(texts))]


def test_the_page_of_json_says_the_version() -> None:
    page = (Path(__file__).parents[1] / "docs" / "json.md").read_text("utf-8")
    assert f"`schema_version`\nis {SCHEMA_VERSION};" in page
    assert f"| `schema_version` | {SCHEMA_VERSION} |" in page
    assert f"finds different in version {SCHEMA_VERSION}:" in page


def test_names_of_files_are_no_markup_in_markdown() -> None:
    """Character references stand for themselves in CommonMark, so that there is no tag, no link and no picture left;
    what is below and above, as people write it, stays."""
    name = "<img src=x onerror=alert(1)> \\<script>a</script> [x](javascript:1) ![y](http://z/) <http://z>"
    table = Table(title=name, columns=["a < 5", name], rows=[["TTFT < 3 ms", name]])
    text = render(Report(record={}, tables=[table], notes=[name]), "markdown")
    assert re.findall(r"<[A-Za-z/!?]|\]\(|\]\[", text) == []
    assert "&#60;img src=x" in text and "[x]&#40;javascript" in text
    assert "a < 5" in text and "TTFT < 3 ms" in text
