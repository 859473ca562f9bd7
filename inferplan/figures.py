"""Figures of a result, each said once: its key in JSON and CSV, its value, its label, how it is written.

A list of figures is a row: :func:`record` is what programs read of it, :func:`lines` the table of one and
:func:`side_by_side` that of several for people. A new column or line of a report is one more figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from math import isfinite
from typing import Any

from inferplan.table import Table
from inferplan.units import format_time


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a result.

    key: in JSON and CSV, with the unit (``ttft_s``); empty where only people see it. value: in SI units. label: heading
    of its column or line; none where only programs see it, and so where it is not ``seen``. written: how people see the
    value, as a format of Python (``",.2f"``), with its unit (``"{:,.0f} W"``), or a function; ``text`` where they see
    something else; ``absent`` for no value. left: a column of text.
    """

    key: str
    value: Any
    label: str | None = None
    written: str | Callable[[Any], str] = ""
    _: KW_ONLY
    text: str | None = None
    absent: str = "-"
    left: bool = False
    seen: bool = True

    @property
    def shown(self) -> str:
        """The text for people."""
        if self.text is not None:
            return self.text
        if self.value is None:
            return self.absent
        if callable(self.written):
            return self.written(self.value)
        return self.written.format(self.value) if "{" in self.written else format(self.value, self.written)


def text(label: str, said: str, left: bool = False, seen: bool = True) -> Figure:
    """A figure that only people see."""
    return Figure("", None, label, text=said, left=left, seen=seen)


def record(row: Iterable[Figure]) -> dict[str, Any]:
    """The figures by key."""
    return {figure.key: figure.value for figure in row if figure.key}


def labelled_texts(row: Iterable[Figure]) -> list[list[str]]:
    """Label and text of each figure that people see: the lines of a table of one result."""
    return [[figure.label, figure.shown] for figure in row if figure.seen and figure.label is not None]


def lines(title: str, row: Iterable[Figure], heading: str = "") -> Table:
    """One result from top to bottom, a line for each figure; ``heading`` stands above the labels."""
    return Table(title=title, columns=[heading, "value"], rows=labelled_texts(row), right=frozenset({"value"}))


def side_by_side(title: str, rows: Sequence[Iterable[Figure]], spare: Sequence[str] = ()) -> Table:
    """Rows with the same labels as a table; without rows its title alone. spare: as in :class:`Table`."""
    shown = [labelled_texts(row) for row in rows]
    if not shown:
        return Table(title=title, columns=[], rows=[])
    columns = [label for label, _ in shown[0]]
    assert all([label for label, _ in row] == columns for row in shown), columns
    right = frozenset(figure.label for figure in rows[0] if figure.label is not None and not figure.left)
    return Table(
        title=title, columns=columns, rows=[[cell for _, cell in row] for row in shown], right=right, spare=spare
    )


def bar(share: float, width: int = 20) -> str:
    """A bar of text as long as a share of ``width`` letters, one at least: a terminal of any alphabet shows it."""
    return "#" * max(round(share * width), 1)


def bars(sizes: Mapping[str, float], written: Callable[[float], str], width: int = 50) -> str:
    """Sizes of one kind as bars under each other, each with its name and as it is ``written``; nothing has no bar."""
    most, column = max(sizes.values()), max(map(len, sizes))
    drawn = {name: bar(size / most, width) if size > 0 else "" for name, size in sizes.items()}
    return "\n".join(f"  {name:<{column}}  {drawn[name]:<{width}}  {written(size)}" for name, size in sizes.items())


def short_time(value: float) -> str:
    """Seconds in three digits."""
    return format_time(value, 3)


def finite(value: float) -> float | None:
    """A value of JSON: ``None`` for what is infinite or no number."""
    return float(value) if isfinite(value) else None
