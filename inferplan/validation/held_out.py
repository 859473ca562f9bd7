"""One measured load kept from the anchor: how far the anchored model is from a load that it has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path

from inferplan.devices.anchors import METRICS, Metric
from inferplan.errors import InferplanError
from inferplan.estimate.anchoring import with_anchor
from inferplan.validation.anchor import Fitted, anchor_of, left_over
from inferplan.validation.deploy import deployment_of
from inferplan.validation.importers import plain
from inferplan.validation.predict import Band, Prediction, for_row, predict_run
from inferplan.validation.rows import Row
from inferplan.validation.run import Pricing, price_rows
from inferplan.validation.score import Scored

FEWEST = 2
"""Loads that an anchor is fitted to at the least."""


@dataclass(frozen=True, kw_only=True)
class HeldOutLatency:
    """A mean latency of the load that was held out, in seconds: as measured, as predicted from constants alone, as
    corrected by the other loads, and the band in which 80 % of measurements lie around that (``None``: not known)."""

    metric: Metric
    measured: float
    predicted: float
    anchored: float
    band: Band | None

    @property
    def error(self) -> float:
        """Of the anchored figure, as a share of the measured one; the predicted one's is :attr:`error_before`."""
        return self.anchored / self.measured - 1.0

    @property
    def error_before(self) -> float:
        return self.predicted / self.measured - 1.0

    @property
    def inside(self) -> bool | None:
        """Whether the measured figure lies in the band."""
        return None if self.band is None else self.band[0] <= self.measured <= self.band[1]


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The verdict. row: the load that was held out; fitted: the anchor of the others; mean_error: by latency the mean
    absolute error of those, as predicted and each corrected by the rest."""

    row: Row
    figures: tuple[HeldOutLatency, ...]
    fitted: Fitted
    mean_error: dict[Metric, tuple[float, float]]


def choose(scored: Sequence[Scored]) -> int | None:
    """Which row to hold out: the last but one of those with several users or a rate; where only one has, the last of
    the others; where none has, the last but one.

    It lies between others, as most loads do that an anchor is asked about, and the most extreme one stays with the
    anchor. ``None`` where too few rows have a prediction.
    """
    usable = [index for index, one in enumerate(scored) if _usable(one)]
    if len(usable) <= FEWEST:
        return None
    crowds = [index for index in usable if (run := scored[index].row.run) and (run.rate or (run.concurrency or 1) > 1)]
    if len(crowds) == 1:  # it alone says what users beside each other do
        return next(index for index in reversed(usable) if index not in crowds)
    return crowds[-2] if crowds else usable[-2]


def _usable(one: Scored) -> bool:
    return one.prediction is not None and not one.suspect and not one.impossible


def hold_out(scored: Sequence[Scored], index: int, pricing: Pricing, source: str) -> HeldOut:
    """Fit an anchor to every row but one and predict that one with it; ``source`` says where the rows are from.

    Raises ``UsageError`` where the others are of several systems, or none of them can be used.
    """
    one = scored[index]
    run = one.row.run
    if run is None or one.prediction is None:
        raise InferplanError("the load that is held out has no prediction", because=one.refused or one.row.refused)
    others = [other for place, other in enumerate(scored) if place != index]
    fitted = anchor_of(others, pricing, source)
    deployment, notes = deployment_of(run, pricing.calibration, pricing.ideal)
    corrected = with_anchor(deployment, fitted.anchor, source)
    found = for_row(predict_run(run, corrected), corrected, run, one.row.measured, notes)
    crossed = {metric: left_over(fitted.anchor, metric) for metric in METRICS}
    return HeldOut(
        row=one.row,
        figures=_figures(one, one.prediction, found),
        fitted=fitted,
        mean_error={metric: value for metric, value in crossed.items() if value is not None},
    )


def _figures(one: Scored, before: Prediction, after: Prediction) -> tuple[HeldOutLatency, ...]:
    figures = []
    for metric in METRICS:
        measured, predicted, corrected = one.row.measured.at(metric), before.at(metric), after.at(metric)
        if measured is not None and predicted is not None and corrected is not None:
            figures.append(
                HeldOutLatency(
                    metric=metric, measured=measured, predicted=predicted, anchored=corrected, band=after.band(metric)
                )
            )
    return tuple(figures)


def count_clipped(held: HeldOut, metric: Metric) -> int:
    """How many of the anchor's loads are farther off than it takes in (``clip``): it corrects them in part only."""
    errors = held.fitted.anchor.measured(metric)[1]
    return sum(abs(float(error)) > held.fitted.anchor.process.clip for error in errors)


class Judged:
    """What predictions say of the measured rows: each row with its own, the load that was held out, or why neither."""

    def __init__(self, scored: Sequence[Scored] = (), held: HeldOut | None = None, why: str = "") -> None:
        self.scored, self.held, self.why = scored, held, why


def judge(where: str, text: str, pricing: Pricing, facts: Mapping[str, str]) -> Judged:
    """The rows of a CSV as `validate` reads them, predicted, and one of them held out; or why not."""
    read = plain.read(Path(where), text, facts)
    why = _unpriced(read)
    if why:
        return Judged(why=why)
    scored = price_rows(read, pricing)
    index = choose(scored)
    if index is None:
        refused = next((one.refused for one in scored if one.prediction is None), "")
        return Judged(scored, why=refused or f"it takes more than {FEWEST} loads that are not suspect")
    try:
        return Judged(scored, hold_out(scored, index, pricing, where))
    except InferplanError as error:
        return Judged(scored, why=f"{error.what}: {error.because}")


def _unpriced(read: Sequence[Row]) -> str:
    """Why no row can be predicted: facts that are missing, or that the server contradicts."""
    opposed = [words for row in read for words in row.opposed]
    if opposed:
        return f"the server says {opposed[0]}"
    if all(row.run is None for row in read):
        said = "; the server does not say it, --model, --gpu, --engine, --quant and --tp do"
        return f"{read[0].refused}{said if 'empty' in read[0].refused else ''}"
    return ""


def worse(held: HeldOut) -> HeldOutLatency | None:
    """The latency of the load that was held out which the anchor made worse; ``None`` where it did so of neither.

    Two runs of one load differ by the noise of the process: an anchored figure no farther from the measured one is as
    good as it.
    """
    for one in held.figures:
        before, after = abs(log(1.0 + one.error_before)), abs(log(1.0 + one.error))
        if after > before and after > held.fitted.anchor.process.kernel(one.metric).noise:
            return one
    return None


def beyond(held: HeldOut) -> HeldOutLatency | None:
    """The latency of which most loads are farther off than an anchor takes in; ``None`` for neither."""
    for one in held.figures:
        if 2 * count_clipped(held, one.metric) > len(held.fitted.anchor.measured(one.metric)[1]):
            return one
    return None
