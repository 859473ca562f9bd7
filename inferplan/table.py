"""Results as people and programs read them.

Rich tables, JSON, JSON lines, CSV, Markdown. No arithmetic beyond units. A report comes out in pieces, so that the
text of a million rows is never held at once.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.columns import ROWS_AT_ONCE, Columns
from inferplan.errors import UsageError, printable
from inferplan.extras import require

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 2
FORMATS = ("table", "json", "jsonl", "csv", "markdown")
_MARKUP = re.compile(r"<(?=[A-Za-z/!?])|(?<=\])[(\[]")
"""What begins a tag, and the target of a link or a picture."""
_FORMULA = re.compile(r"[=+\-@\t\r\n＝＋－＠]")
"""What begins a cell that a spreadsheet may compute (https://owasp.org/www-community/attacks/CSV_Injection)."""
_HARMLESS = re.compile(r"-|[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
"""Nothing, as tables have it, and a number."""
_SUFFIXES = {".json": "json", ".jsonl": "jsonl", ".csv": "csv", ".md": "markdown", ".txt": "table"}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A titled table of text cells; ``right`` names the columns that hold numbers.

    rows may be made anew each time they are gone through. spare: columns that a terminal too narrow for all of them
    goes without, the first of them first.
    """

    title: str
    columns: Sequence[str]
    rows: Collection[Sequence[str]]
    right: frozenset[str] = frozenset()
    spare: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """One result.

    ``record`` for JSON, in which a value may be :class:`Columns`; ``rows`` for CSV and JSON lines (by default the
    record, flattened); ``opening`` (lines before all), ``tables`` and notes for people; ``headline`` is said where the
    rest goes into a file. ``ends``, called once the report is written, raises the error with which the command ends.
    """

    record: dict[str, Any]
    opening: Sequence[str] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    rows: Sequence[dict[str, Any]] | Columns = field(default_factory=tuple)
    headline: str = ""
    of: Any = None
    """The result itself, where one object holds it: for programs that ask it for more than the record."""
    ends: Callable[[], None] | None = None

    def flat_rows(self) -> list[dict[str, Any]]:
        return [flatten(row) for row in self.rows] if self.rows else [flatten(self.record)]


def frame(rows: Sequence[dict[str, Any]] | Columns) -> pd.DataFrame:
    """Flat records as a pandas table, one row each. Raises ``MissingExtraError`` without pandas."""
    require("frame", "a data frame")
    import pandas as pd

    return pd.DataFrame(rows.full() if isinstance(rows, Columns) else rows)


_LEAVES = {int, str, bool, type(None)}


def plain(value: Any) -> Any:
    """A value JSON can hold: numpy to Python, NaN and infinity to null."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes)):
        kinds = {*map(type, value)}
        if kinds <= _LEAVES:
            return [*value]
        if kinds == {float} and all(map(math.isfinite, value)):  # curves have thousands
            return [*value]
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def flatten(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined with dots, for CSV columns; lists are left out."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, str) or not isinstance(value, Sequence):
            flat[f"{prefix}{key}"] = value
    return flat


def format_of(output: str | None, chosen: str | None) -> str:
    """The format asked for, else the one the output file's suffix names, else a table.

    Raises ``UsageError`` for a suffix that names none.
    """
    if chosen:
        return chosen
    if output is None:
        return "table"
    suffix = Path(output).suffix.lower()
    if suffix not in _SUFFIXES:
        raise UsageError(f"cannot tell the format of {output}", hint=f"--format, or a suffix of {', '.join(_SUFFIXES)}")
    return _SUFFIXES[suffix]


def render(report: Report, style: str, width: int | None = None, colour: bool = False) -> str:
    """The report as text in one of :data:`FORMATS`."""
    return "".join(pieces(report, style, width, colour))


def pieces(report: Report, style: str, width: int | None = None, colour: bool = False) -> Iterator[str]:
    """The same piece by piece, without control characters: a file of somebody else's may be quoted in it."""
    if style == "table" and (colour or width):
        return iter([_rich(report, width, colour)])
    return map(printable, _pieces(report, style))


def _pieces(report: Report, style: str) -> Iterator[str]:
    if style == "json":
        return _json({"schema_version": SCHEMA_VERSION, **report.record})
    if style == "jsonl":
        return _json_lines(report)
    if style == "csv":
        return _csv(report)
    if style == "markdown":
        return _markdown(report)
    return _text(report)


def _json(record: dict[str, Any]) -> Iterator[str]:
    """What ``json.dumps`` writes with two spaces for each level; rows by column are written as the list of the rows."""
    for index, (name, value) in enumerate(record.items()):
        yield ("," if index else "{") + f"\n  {json.dumps(name)}: "
        if isinstance(value, Columns):
            yield from _json_list(value)
        else:
            yield json.dumps(plain(value), indent=2).replace("\n", "\n  ")
    yield "\n}\n"


def _json_list(rows: Columns) -> Iterator[str]:
    """The rows as the elements of a list, four spaces in."""

    def pattern(slots: dict[str, str]) -> str:
        fields = ",".join(f"\n      {json.dumps(name)}: {slot}" for name, slot in slots.items())
        return ",\n    {" + fields + "\n    }"

    written = rows.texts(json.dumps, pattern)
    yield "[" + next(written, "").removeprefix(",")
    yield from written
    yield "\n  ]" if len(rows) else "]"


def _json_lines(report: Report) -> Iterator[str]:
    start = f'{{"schema_version": {SCHEMA_VERSION}, '
    if isinstance(report.rows, Columns):

        def pattern(slots: dict[str, str]) -> str:
            return start + ", ".join(f"{json.dumps(name)}: {slot}" for name, slot in slots.items()) + "}\n"

        yield from report.rows.texts(json.dumps, pattern)
        return
    for row in report.rows or [report.record]:
        yield json.dumps({"schema_version": SCHEMA_VERSION, **plain(row)}) + "\n"


def _csv(report: Report) -> Iterator[str]:
    import csv

    if isinstance(report.rows, Columns):
        names, cell = report.rows.names, partial(_csv_cell, csv.writer)
        yield ",".join(map(cell, names)) + "\n"
        yield from report.rows.texts(cell, lambda slots: ",".join(slots.get(name, "") for name in names) + "\n")
        return
    rows = report.flat_rows()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writerow({column: csv_value(column) for column in columns})
    writer.writerows({name: csv_value(plain(value)) for name, value in row.items()} for row in rows)
    yield buffer.getvalue()


def csv_value(value: Any) -> Any:
    """The value of a cell; a text that a spreadsheet might compute begins with an apostrophe, a number is left alone.

    As https://owasp.org/www-community/attacks/CSV_Injection advises: a name may come from somebody else's file.
    """
    formula = isinstance(value, str) and _FORMULA.match(value) and not _HARMLESS.fullmatch(value)
    return f"'{value}" if formula else value


def _csv_cell(writer: Callable[..., Any], value: Any) -> str:
    """One value as CSV has it, quoted where it must be, by a ``writer`` of CSV."""
    buffer = io.StringIO()
    writer(buffer, lineterminator="\n").writerow([csv_value(value), None])
    return buffer.getvalue().removesuffix(",\n")


def _markdown(report: Report) -> Iterator[str]:
    between = ""
    for line in report.opening:
        yield between + markdown_text(line)
        between = "\n\n"
    for table in report.tables:
        rule = ["---:" if column in table.right else "---" for column in table.columns]
        yield f"{between}### {markdown_text(table.title)}\n\n{_row(table.columns)}\n{_row(rule)}"
        for rows in _batches(table.rows):
            yield "".join("\n" + _row(row) for row in rows)
        between = "\n\n"
    for note in report.notes:
        yield between + markdown_text(note)
        between = "\n\n"
    yield "\n"


def markdown_text(text: str) -> str:
    """Text that is no markup in Markdown either: a name of somebody else's file makes no HTML, no link and no picture.

    By references to characters, which a backslash before them does not undo
    (https://spec.commonmark.org/0.31.2/#entity-and-numeric-character-references).
    """
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", text)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(markdown_text(cell).replace("|", "\\|") for cell in cells) + " |"


def _batches(rows: Iterable[Sequence[str]]) -> Iterator[list[Sequence[str]]]:
    """Rows, so many at a time."""
    left = iter(rows)
    while batch := list(islice(left, ROWS_AT_ONCE)):
        yield batch


def _text(report: Report) -> Iterator[str]:
    """What :func:`_rich` draws without colour on a wide enough page, without loading rich."""
    if report.opening:
        yield "\n".join(report.opening) + "\n\n"
    for table in report.tables:
        widths = [len(column) for column in table.columns]
        for rows in _batches(table.rows):
            found = (max(map(len, cells)) for cells in zip(*rows, strict=True))
            widths = [max(pair) for pair in zip(widths, found, strict=True)]
        places = [(width, column in table.right) for column, width in zip(table.columns, widths, strict=True)]
        yield f"{table.title}\n" if table.title else ""
        for rows in _batches(chain([table.columns], table.rows)):
            yield "".join(_aligned(row, places) for row in rows)
        yield "\n"
    if report.notes or not report.tables:
        yield "\n".join(line.rstrip() for note in report.notes for line in note.split("\n")) + "\n"


def _aligned(row: Sequence[str], places: Sequence[tuple[int, bool]]) -> str:
    texts = zip(map(str.rstrip, row), places, strict=True)
    cells = (text.rjust(width) if right else text.ljust(width) for text, (width, right) in texts)
    return "  ".join(cells).rstrip() + "\n"


_SQUEEZED = 24
"""Characters below which no column of a table is wrapped; a word is never cut."""


def _left_out(table: Table, width: int) -> list[str]:
    """The spare columns that a page of so many characters has no room for."""
    needs = {}
    for index, column in enumerate(table.columns):
        cells = _column(table, index)
        needs[column] = max(*map(_longest_word, cells), min(max(map(len, cells)), _SQUEEZED)) + 2
    left_out: list[str] = []
    for column in table.spare:
        if sum(needs.values()) - 2 > width and column in needs:
            left_out.append(column)
            del needs[column]
    return left_out


def _column(table: Table, index: int) -> list[str]:
    return [table.columns[index], *(row[index] for row in table.rows)]


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def _rich(report: Report, width: int | None, colour: bool) -> str:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width or 110,
        force_terminal=colour,
        no_color=not colour,
        color_system="standard" if colour else None,
        highlight=False,
        emoji=False,
    )
    for line in report.opening:
        console.print(Text(printable(line), style="bold"), soft_wrap=True)
    if report.opening:
        console.print()
    for table in report.tables:
        if table.title:
            console.print(Text(printable(table.title), style="bold"), soft_wrap=True)
        drawn, left_out = RichTable(box=None, pad_edge=False), _left_out(table, console.width)
        kept = [index for index, column in enumerate(table.columns) if column not in left_out]
        words = [max(map(_longest_word, _column(table, index))) for index in kept]
        whole = sum(max(map(len, _column(table, index))) + 2 for index in kept) - 2
        for index, width_of_words in zip(kept, words):
            column = table.columns[index]
            # (rich below 15 adds the padding to a least width, so that none is asked for where all has room)
            drawn.add_column(
                Text(column, style="dim"),
                justify="right" if column in table.right else "left",
                min_width=width_of_words if whole > console.width else None,
            )
        for row in table.rows:
            drawn.add_row(*(Text(printable(row[index])) for index in kept))
        console.print(drawn, width=max(console.width, sum(words) + 2 * len(words)), crop=False)
        if left_out:
            said = f"left out for {console.width} columns: {', '.join(left_out)} (a wider terminal, or --format csv)"
            console.print(Text(said, style="dim"), soft_wrap=True)
        console.print()
    for note in report.notes:
        console.print(Text(printable(note)), soft_wrap=True)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
