"""Numbers at a few loads as a polynomial of the load: exact, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from inferplan.models.layers.traced import MONOMIALS
from inferplan.models.tracing.passes import TracedPoint


def _points(*sizes: tuple[int, int, int]) -> tuple[TracedPoint, ...]:
    return tuple(TracedPoint(*one) for one in sizes)


FEW = _points((1, 2, 0), (2, 3, 0), (1, 1, 3), (2, 1, 5), (2, 2, 3), (1, 3, 4), (3, 1, 2), (3, 4, 0))
"""Loads that are run first: two more than the six terms that nearly every size is made of."""
MORE = _points((1, 5, 0), (2, 5, 3), (1, 2, 5), (3, 1, 7), (3, 4, 2), (2, 1, 3))
"""Loads that are run too where those terms are not enough."""
NO_PAST = _points((1, 2, 0), (2, 2, 0), (1, 3, 0), (2, 3, 0), (1, 5, 0), (2, 5, 0), (3, 7, 0))
"""Those of a model that keeps nothing."""


def powers(name: str, point: TracedPoint) -> int:
    """A monomial at a point."""
    sizes = {"b": point.batch, "n": point.new, "p": point.past}
    found = 1
    for letter in name.replace("1", ""):
        found *= sizes[letter]
    return found


def fit(points: Sequence[TracedPoint], values: Sequence[int]) -> dict[str, int] | None:
    """The polynomial through all points with the fewest terms of :data:`MONOMIALS`; ``None`` where none goes through.

    Integer coefficients only: a size of a tensor that needs a half is no polynomial of its load.
    """
    if len(set(values)) == 1:
        return {"1": values[0]} if values[0] else {}
    for names in _BASES:
        if any("p" in name for name in names) and not any(point.past for point in points):
            continue
        if len(names) >= len(points):
            continue
        solved = _solve([[powers(name, point) for name in names] for point in points], values)
        if solved is not None and all(one.denominator == 1 for one in solved):
            return {name: int(one) for name, one in zip(names, solved) if one}
    return None


_BASES = (
    ("1", "bn"),
    ("1", "b", "n", "bn", "nn", "bnn"),
    ("1", "b", "n", "p", "bn", "bp"),
    MONOMIALS,
)


def _solve(rows: list[list[int]], values: Sequence[int]) -> list[Fraction] | None:
    """The one solution of more equations than unknowns; ``None`` where there is none, or more than one."""
    table = [[Fraction(one) for one in (*row, value)] for row, value in zip(rows, values, strict=True)]
    width = len(rows[0])
    for column in range(width):
        pivot = next((i for i in range(column, len(table)) if table[i][column]), None)
        if pivot is None:
            return None
        table[column], table[pivot] = table[pivot], table[column]
        head = table[column]
        table[column] = [one / head[column] for one in head]
        for index, row in enumerate(table):
            if index != column and row[column]:
                table[index] = [one - row[column] * other for one, other in zip(row, table[column])]
    if any(row[width] for row in table[width:]):
        return None
    return [table[index][width] for index in range(width)]
