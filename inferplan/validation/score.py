"""How far predictions are off: mean, median and 90th percentile of the relative error, and its bias, by group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferplan.units import Array
from inferplan.validation.predict import Prediction
from inferplan.validation.rows import LATENCIES, STATISTICS, Measured, Row

METRICS = ("ttft", "tpot", "e2el", "rate")
"""What rows are scored in; by group TTFT and TPOT."""
NAMES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "gap between tokens",
    "e2el": "end-to-end",
    "rate": "output rate",
    "throughput": "tokens/s per GPU",
    "output": "output tokens/s per GPU that decodes",
    "power": "watts per GPU",
    "energy": "J per output token",
}


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A row, its prediction, and why there is none."""

    row: Row
    prediction: Prediction | None
    refused: str = ""

    def error(self, metric: str, statistic: str | None = None) -> float | None:
        """Predicted over measured, less one; ``None`` where either is missing. By default at the row's headline."""
        if self.prediction is None:
            return None
        statistic = statistic or self.row.measured.statistic
        measured, predicted = self.row.measured.at(metric, statistic), self.prediction.at(metric, statistic)
        return None if not measured or predicted is None else predicted / measured - 1.0

    @property
    def impossible(self) -> tuple[str, ...]:
        """The metrics that are measured faster than an ideal device runs the row."""
        return self.prediction.impossible if self.prediction else ()

    @property
    def above_uncertain(self) -> tuple[str, ...]:
        """The metrics that are faster than peaks that may be too low: measured, or of low confidence."""
        return self.prediction.above_uncertain if self.prediction else ()

    @property
    def suspect(self) -> bool:
        """Whether its source doubts it, a row that cannot be interpreted too."""
        return bool(self.row.cells.get("suspect") if self.row.run is None else self.row.run.suspect)


@dataclass(frozen=True, kw_only=True)
class Score:
    """Errors as fractions. coverage: the share of measurements inside the printed band."""

    n: int
    mape: float
    median: float
    p90: float
    bias: float
    coverage: float | None = None

    @classmethod
    def of(cls, errors: Array, coverage: float | None = None) -> Score:
        """The score of errors of predictions, predicted over measured less one; there is one at least."""
        size = np.abs(errors)
        return cls(
            n=len(errors),
            mape=float(np.mean(size)),
            median=float(np.median(size)),
            p90=float(np.quantile(size, 0.9)),
            bias=float(np.mean(errors)),
            coverage=coverage,
        )

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("n", "mape", "median", "p90", "bias", "coverage")}

    @property
    def text(self) -> str:
        """``MAPE / median / p90`` in percent."""
        return f"{self.mape:.1%} / {self.median:.1%} / {self.p90:.1%}"


def score(scored: Iterable[Scored], metric: str, statistic: str | None = None) -> Score | None:
    """The score of a metric over rows; ``None`` when no row has both figures.

    ``statistic``: of the latency; by default the headline of each row.
    """
    pairs = [(s, error) for s in scored if (error := s.error(metric, statistic)) is not None]
    if not pairs:
        return None
    errors = np.array([error for _, error in pairs])
    inside = [_inside(s.row.measured, s.prediction, metric, statistic) for s, _ in pairs if s.prediction is not None]
    known = [value for value in inside if value is not None]
    return Score.of(errors, sum(known) / len(known) if known else None)


def statistics(scored: Sequence[Scored], metric: str) -> list[tuple[str, Score]]:
    """The score of a metric at each statistic that any row has it at."""
    names = STATISTICS if metric in LATENCIES else ("mean",)
    found = ((name, score(scored, metric, name)) for name in names)
    return [(name, value) for name, value in found if value is not None]


def _inside(measured: Measured, prediction: Prediction, metric: str, statistic: str | None) -> bool | None:
    other = None if statistic == measured.statistic else statistic  # of the headline the prediction's own band
    band, value = prediction.band(metric, other), measured.at(metric, other)
    return None if band is None or value is None else bool(band[0] <= value <= band[1])


Key = Callable[[Scored], str]
GROUPS: dict[str, Key] = {
    "model": lambda s: s.row.run.model if s.row.run else "",
    "gpu": lambda s: s.row.run.gpu if s.row.run else "",
    "engine": lambda s: s.row.run.engine if s.row.run else "",
    "format": lambda s: s.row.run.label if s.row.run else "",
    "form": lambda s: s.row.run.form if s.row.run else "",
}


def by(scored: Sequence[Scored], key: Key, metric: str) -> dict[str, Score]:
    """The score of each group that has one, by name."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for one in scored:
        if one.prediction is not None:
            groups[key(one)].append(one)
    found = {name: score(rows, metric) for name, rows in sorted(groups.items())}
    return {name: value for name, value in found.items() if value is not None}
