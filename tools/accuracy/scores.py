"""Errors of predictions, as fractions, and as lines of tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from inferplan.validation.score import Score, Scored

Line = Sequence[str]


HEADS = ("rows", "MAPE %", "median %", "p90 %", "bias %")


def score_cells(score: Score) -> list[str]:
    """The cells under :data:`HEADS`: a count, and percentages."""
    shares = (f"{100 * value:.1f}" for value in (score.mape, score.median, score.p90))
    return [f"{score.n:.0f}", *shares, f"{100 * score.bias:+.1f}"]


def figures(pairs: Iterable[tuple[float, float]]) -> Score | None:
    """The errors of (predicted, measured) pairs; ``None`` without any."""
    table = np.array([pair for pair in pairs if np.all(np.isfinite(pair))])
    return Score.of(table[:, 0] / table[:, 1] - 1.0) if len(table) else None


def markdown(heads: Sequence[str], lines: Iterable[Line]) -> str:
    """A Markdown table; all columns but the first are aligned to the right."""
    rule = ["---", *("---:" for _ in heads[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, rule, *lines)) + "\n"


def scored_lines(groups: dict[str, list[tuple[float, float]]]) -> list[Line]:
    """A line of a table for each named group of (predicted, measured) pairs; groups without pairs have none."""
    found = {name: figures(pairs) for name, pairs in groups.items()}
    return [[name, *score_cells(value)] for name, value in found.items() if value is not None]


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
