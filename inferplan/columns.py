"""Rows of a result by column: what they share is kept once, numbers are arrays, rows are made when asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from inferplan.decimals import float_texts

Row = dict[str, Any]
Column = npt.NDArray[Any]
ROWS_AT_ONCE = 16384
"""Rows that are turned into Python objects at a time."""
_ROWS_A_PIECE = 512
"""Rows whose text is put together at a time: few enough that it stays in the cache of a core."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """Rows with the same columns, over axes of which the last changes fastest.

    shape: rows along each axis. columns: by name an array with as many axes, as long as ``shape`` along those that it
    depends on and of length one along the others; float64 (not finite: no value, ``None`` in a row), int64 or objects.
    """

    shape: tuple[int, ...]
    columns: dict[str, Column]

    @property
    def size(self) -> int:
        """Rows."""
        return math.prod(self.shape)

    def full(self, name: str) -> Column:
        """A column with a value for each row."""
        return np.broadcast_to(self.columns[name], self.shape).reshape(-1)

    def rows(self) -> Iterator[Row]:
        """Every row, with values as JSON holds them."""
        names = list(self.columns)
        for part in self.parts(names, plain_values):
            yield from (dict(zip(names, row, strict=True)) for row in zip(*part, strict=True))

    def parts(self, names: Sequence[str], convert: Callable[[Column], list[Any]]) -> Iterator[list[list[Any]]]:
        """Chosen columns, :data:`ROWS_AT_ONCE` rows at a time: a list of values for each column.

        convert: from values of a column to a list of the same length; called once where they are few, whatever the
        rows.
        """
        few = [name for name in names if self.columns[name].size <= ROWS_AT_ONCE]
        small = {name: _objects(convert(self.columns[name].reshape(-1))) for name in few}
        for first in range(0, self.size, ROWS_AT_ONCE):
            where = np.unravel_index(np.arange(first, min(first + ROWS_AT_ONCE, self.size)), self.shape)
            part = []
            for name in names:
                column = self.columns[name]
                if column.size == 1:
                    part.append(small[name].tolist() * len(where[0]))
                    continue
                places, step = 0 * where[0], 1
                for length, index in zip(column.shape[::-1], where[::-1], strict=True):
                    places, step = places + (index * step if length > 1 else 0), step * length
                known = small.get(name)
                part.append(_chosen(column, places, convert) if known is None else known[places].tolist())
            yield part


def _chosen(column: Column, places: Column, convert: Callable[[Column], list[Any]]) -> list[Any]:
    """Values of a column at some places, converted; those that lie close together are converted once."""
    flat, first, last = column.reshape(-1), int(np.min(places)), int(np.max(places)) + 1
    if last - first >= len(places):
        return convert(flat[places])
    found: list[Any] = _objects(convert(flat[first:last]))[places - first].tolist()
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """Blocks of rows one after another; what one has no column for is missing from its rows."""

    blocks: Sequence[Block]

    def __len__(self) -> int:
        return sum(block.size for block in self.blocks)

    def __iter__(self) -> Iterator[Row]:
        for block in self.blocks:
            yield from block.rows()

    @property
    def names(self) -> list[str]:
        """Every column of any block, in the order in which they first come."""
        return list(dict.fromkeys(name for block in self.blocks for name in block.columns))

    def full(self) -> dict[str, Column]:
        """Every column with a value for each row; NaN where a row has none."""
        return {
            name: np.concatenate(
                [block.full(name) if name in block.columns else np.full(block.size, np.nan) for block in self.blocks]
            )
            for name in self.names
        }

    def texts(self, text: Callable[[Any], str], pattern: Callable[[dict[str, str]], str]) -> Iterator[str]:
        """Every row as text, many rows to a piece.

        text: of one value. pattern: the text of a row from the texts of its values, put together once for each block.
        """
        for block in self.blocks:
            one = {name: text(plain_values(column)[0]) for name, column in block.columns.items() if column.size == 1}
            shared = {name: value.replace("\0", r"\x00") for name, value in one.items()}
            slots = {name: shared.get(name, f"\0{name}\0") for name in block.columns}
            first, *others = pattern(slots).split("\0")
            if not others:
                yield first * block.size
                continue
            names, between = others[::2], [repeat(literal) for literal in others[1::2]]
            for part in block.parts(names, lambda column: _texts(column, text)):
                rows = zip(repeat(first), *chain.from_iterable(zip(part, between, strict=True)), strict=False)
                while piece := "".join(chain.from_iterable(islice(rows, _ROWS_A_PIECE))):
                    yield piece


def blocks_of(rows: Iterable[Row]) -> list[Block]:
    """Rows as blocks: a new one wherever the columns change."""
    blocks = []
    for names, group in groupby(rows, key=tuple):
        found = list(group)
        columns = {name: compact(_column([row[name] for row in found])) for name in names}
        blocks.append(Block(shape=(len(found),), columns=columns))
    return blocks


def one_value(value: Any, axes: int) -> Column:
    """A column of a block with so many axes in which every row has the same value."""
    return _column([value]).reshape((1,) * axes)


def compact(column: Column) -> Column:
    """The same column with length one along every axis along which nothing changes."""
    for axis in range(column.ndim):
        first = np.take(column, [0], axis)
        if column.shape[axis] == 1 or np.any(_differs(np.take(column, [1], axis), first)):
            continue
        if not np.any(_differs(column, first)):
            column = first
    return column


def _differs(some: Column, others: Column) -> Any:
    """Where values are not the same; a missing number is the same as another."""
    if some.dtype.kind != "f":
        return some != others
    return (some != others) & ~(np.isnan(some) & np.isnan(others))


def plain_values(column: Column) -> list[Any]:
    """Values as JSON holds them: what is no finite number is ``None``."""
    values: list[Any] = column.reshape(-1).tolist()
    if column.dtype.kind == "f" and not np.all(np.isfinite(column)):
        return [value if math.isfinite(value) else None for value in values]
    return values


def _column(values: list[Any]) -> Column:
    """Values of the rows as an array: of whole numbers, of numbers some of which may be missing, or of objects."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return np.array(values, dtype=np.int64)
    if float in kinds and kinds <= {float, type(None)}:
        return np.array([math.nan if value is None else value for value in values])
    return _objects(values)


def _objects(values: list[Any]) -> Column:
    return np.array([*values, None], dtype=object)[:-1]  # with None at the end numpy never takes it for numbers


def _texts(column: Column, text: Callable[[Any], str]) -> list[str]:
    """The texts of a column's values; numbers as Python writes them, which JSON and CSV read."""
    if column.dtype.kind == "f":
        written = float_texts(column.reshape(-1))
        for place in np.flatnonzero(~np.isfinite(column)).tolist():
            written[place] = text(None)
        return written
    values = plain_values(column)
    if column.dtype.kind == "i":
        return list(map(str, values))
    if set(map(type, values)) <= {str}:
        known = {value: text(value) for value in set(values)}
        return [known[value] for value in values]
    return list(map(text, values))
