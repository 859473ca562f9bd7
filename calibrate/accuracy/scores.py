"""Errors of predictions, as fractions, and as lines of tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from inferplan.validation.score import Scored

Line = Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Errors of predictions, as fractions."""

    n: int
    mape: float
    median: float
    p90: float
    bias: float

    def cells(self) -> list[str]:
        """The cells under :data:`HEADS`: a count, and percentages."""
        return [str(self.n), *(f"{100 * v:.1f}" for v in (self.mape, self.median, self.p90)), f"{100 * self.bias:+.1f}"]


HEADS = ("rows", "MAPE %", "median %", "p90 %", "bias %")


def figures(pairs: Iterable[tuple[float, float]]) -> Figures | None:
    """The errors of (predicted, measured) pairs; ``None`` without any."""
    table = np.array([pair for pair in pairs if np.all(np.isfinite(pair))])
    if not len(table):
        return None
    off = table[:, 0] / table[:, 1] - 1.0
    size = np.abs(off)
    middle, high = np.quantile(size, (0.5, 0.9))
    return Figures(n=len(off), mape=float(size.mean()), median=float(middle), p90=float(high), bias=float(np.mean(off)))


def markdown(heads: Sequence[str], lines: Iterable[Line]) -> str:
    """A Markdown table; all columns but the first are aligned to the right."""
    rule = ["---", *("---:" for _ in heads[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, rule, *lines)) + "\n"


def scored_lines(groups: dict[str, list[tuple[float, float]]]) -> list[Line]:
    """A line of a table for each named group of (predicted, measured) pairs; groups without pairs have none."""
    found = {name: figures(pairs) for name, pairs in groups.items()}
    return [[name, *value.cells()] for name, value in found.items() if value is not None]


def pairs_of(scored: Iterable[Scored], metric: str, statistic: str | None = None) -> list[tuple[float, float]]:
    """Predicted and measured ``metric`` (SI units) of the rows that have both; at their headline by default."""
    found = []
    for one in scored:
        name = statistic or one.row.measured.statistic
        predicted = one.prediction.at(metric, name) if one.prediction is not None else None
        measured = one.row.measured.at(metric, name)
        if predicted is not None and measured is not None:
            found.append((predicted, measured))
    return found
