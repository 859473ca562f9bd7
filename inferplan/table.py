"""Results as people and programs read them.

Rich tables, JSON, JSON lines, CSV, Markdown. No arithmetic beyond units.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.errors import UsageError
from inferplan.extras import require

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1
FORMATS = ("table", "json", "jsonl", "csv", "markdown")
_SUFFIXES = {".json": "json", ".jsonl": "jsonl", ".csv": "csv", ".md": "markdown", ".txt": "table"}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A titled table of text cells; ``right`` names the columns that hold numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Report:
    """One result.

    ``record`` for JSON, ``rows`` for CSV (by default the record flattened), ``tables`` and notes for people.
    """

    record: dict[str, Any]
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    rows: Sequence[dict[str, Any]] = field(default_factory=tuple)

    def flat_rows(self) -> list[dict[str, Any]]:
        return [flatten(row) for row in self.rows] if self.rows else [flatten(self.record)]


def frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Flat records as a pandas table, one row each. Raises ``MissingExtraError`` without pandas."""
    require("frame", "a data frame")
    import pandas as pd

    return pd.DataFrame(rows)


def plain(value: Any) -> Any:
    """A value JSON can hold: numpy to Python, NaN and infinity to null."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
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
        elif not isinstance(value, (list, tuple)):
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
    if style == "json":
        return json.dumps({"schema_version": SCHEMA_VERSION, **plain(report.record)}, indent=2) + "\n"
    if style == "jsonl":
        rows = report.rows or [report.record]
        return "".join(json.dumps({"schema_version": SCHEMA_VERSION, **plain(row)}) + "\n" for row in rows)
    if style == "csv":
        return _csv(report.flat_rows())
    if style == "markdown":
        return _markdown(report)
    return _rich(report, width, colour) if width or colour else _text(report)


def _csv(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain(row) for row in rows)
    return buffer.getvalue()


def _markdown(report: Report) -> str:
    parts: list[str] = []
    for table in report.tables:
        rule = ["---:" if column in table.right else "---" for column in table.columns]
        lines = [f"### {table.title}", "", _row(table.columns), _row(rule), *(_row(row) for row in table.rows)]
        parts.append("\n".join(lines))
    parts += list(report.notes)
    return "\n\n".join(parts) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _text(report: Report) -> str:
    """What :func:`_rich` draws without colour on a wide enough page, without loading rich."""
    lines: list[str] = []
    for table in report.tables:
        rows = [table.columns, *table.rows]
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        places = [(width, column in table.right) for column, width in zip(table.columns, widths, strict=True)]
        lines += [table.title] if table.title else []
        for row in rows:
            texts = zip(map(str.rstrip, row), places, strict=True)
            cells = (text.rjust(width) if right else text.ljust(width) for text, (width, right) in texts)
            lines.append("  ".join(cells).rstrip())
        lines.append("")
    return "\n".join([*lines, *(line.rstrip() for note in report.notes for line in note.split("\n"))]) + "\n"


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
    for table in report.tables:
        if table.title:
            console.print(Text(table.title, style="bold"), soft_wrap=True)
        drawn = RichTable(box=None, pad_edge=False)
        for column in table.columns:
            drawn.add_column(Text(column, style="dim"), justify="right" if column in table.right else "left")
        for row in table.rows:
            drawn.add_row(*(Text(cell) for cell in row))
        console.print(drawn)
        console.print()
    for note in report.notes:
        console.print(Text(note), soft_wrap=True)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
