"""A public row of one part of a price, what is predicted of it, and their table."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tools.accuracy.scores import markdown

MEDIAN, NINE_IN_TEN = 1.15, 1.4
"""The goal: the median factor between predicted and measured, and the factor that holds for nine rows of ten."""
FEWEST = 10
"""Public rows that a part needs before its figures say something of other rows."""


@dataclass(frozen=True, kw_only=True)
class PartRow:
    """One measured figure. source: as its readers find it again. fitted: constants of the price were taken from it."""

    source: str
    case: str
    measured: float
    predicted: float
    unit: str
    fitted: bool = False

    @property
    def factor(self) -> float:
        """How many times off, 1 or more."""
        ratio = self.predicted / self.measured
        return max(ratio, 1.0 / ratio)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a price. What it rests on, what was seen and which rows cannot be priced is in ``notes.md``, under
    its name."""

    name: str
    rows: Sequence[PartRow]

    def of(self, rows: Sequence[PartRow]) -> list[str]:
        """Count, median factor, the factor of nine in ten, and the median of predicted over measured."""
        if not rows:
            return ["0", "", "", "", ""]
        factors = np.array([row.factor for row in rows])
        ratio = float(np.median([row.predicted / row.measured for row in rows]))
        nine = float(np.quantile(factors, 0.9, method="higher"))
        median = float(np.median(factors))
        kept = median <= MEDIAN and nine <= NINE_IN_TEN
        few = " (few rows)" if len(rows) < FEWEST else ""
        return [str(len(rows)), f"{median:.2f}", f"{nine:.2f}", f"{ratio:.2f}", ("yes" if kept else "no") + few]

    def summary(self) -> list[list[str]]:
        """Its lines of the first table: rows that no constant was taken from, and the others."""
        aside = [row for row in self.rows if not row.fitted]
        fitted = [row for row in self.rows if row.fitted]
        lines = [[f"[{self.name}](#{anchor(self.name)})", *self.of(aside)]]
        return lines + ([[f"{self.name}, rows of the fit", *self.of(fitted)]] if fitted else [])

    def section(self) -> str:
        """Its section: its notes, and every row, the worst first."""
        lines = [
            [
                row.source,
                row.case,
                f"{row.measured:.4g}",
                f"{row.predicted:.4g}",
                row.unit,
                f"{row.factor:.2f}",
                "fit" if row.fitted else "",
            ]
            for row in sorted(self.rows, key=lambda row: -row.factor)
        ]
        heads = ("source", "case", "measured", "predicted", "unit", "factor", "")
        table = markdown(heads, lines) if lines else ""
        return f"## {self.name}\n\n{notes_of(self.name)}\n\n{table}"


def anchor(name: str) -> str:
    """How Markdown links to a heading."""
    return name.lower().replace(",", "").replace(" ", "-")


def notes_of(name: str) -> str:
    """What ``notes.md`` says of a part."""
    text = (Path(__file__).parent / "notes.md").read_text(encoding="utf-8")
    return text.partition(f"## {name}\n")[2].partition("\n## ")[0].strip()


def published(shared: Path, name: str) -> list[dict[str, str]]:
    """The rows of ``measured/published/parts/NAME.csv``."""
    path = shared / "measured" / "published" / "parts" / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def short(source: str) -> str:
    """A source without the commit and the folders of a file, which the table of the data has."""
    head, at, rest = source.partition("@")
    return f"{head}, {rest.rpartition('/')[2].partition(':')[2] or rest.rpartition('/')[2]}" if at else source
