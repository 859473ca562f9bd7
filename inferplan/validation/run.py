"""A file of measurements from end to end: rows, predictions, what is refused."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from inferplan.catalog.assemble import load_anchor
from inferplan.errors import InferplanError, NotFiniteError
from inferplan.estimate.anchoring import with_anchor
from inferplan.fields import Switch, Text, Whole, ask
from inferplan.serving.options import MOST_PROCESSES
from inferplan.validation.deploy import deployment_of
from inferplan.validation.predict import Prediction, for_row, predict_run
from inferplan.validation.rows import Row
from inferplan.validation.score import Scored

_FEW = 24
"""Below so many rows a pool of processes costs more than it saves."""


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """With which constants rows are priced. ``calibration``: a file instead of the device's own; ``ideal``: none;
    ``anchor``: a file of measured runs of the rows' system. processes: ``None`` for all cores.
    """

    calibration: str | None = ask(
        "--calibration", Text(), "Fitted constants [per row, for its GPU].", None, metavar="FILE"
    )
    anchor: str | None = ask(
        "--anchor",
        Text(),
        "Measured runs of this system, which correct it (inferplan anchor fit).",
        None,
        metavar="FILE",
    )
    ideal: bool = ask(
        "--ideal", Switch(), "Price without fitted constants: every efficiency 1, every overhead 0.", False
    )
    processes: int | None = ask("--jobs", Whole(most=MOST_PROCESSES), "Processes that simulate rows [all cores].", None)


def price_row(row: Row, pricing: Pricing) -> Scored:
    """A row with its prediction, or the reason why there is none."""
    return price_alike([row], pricing)[0]


def price_alike(rows: Sequence[Row], pricing: Pricing) -> list[Scored]:
    """Rows of one and the same run, measured on several days: simulated once."""
    run = rows[0].run
    if run is None:
        return [Scored(row=row, prediction=None, refused=row.refused) for row in rows]
    try:
        deployment, notes = deployment_of(run, pricing.calibration, pricing.ideal)
        if pricing.anchor is not None:
            deployment = with_anchor(deployment, load_anchor(pricing.anchor), pricing.anchor)
        found = predict_run(run, deployment)
        scored = [for_row(found, deployment, run, row.measured, (*row.notes, *notes)) for row in rows]
    except NotFiniteError:
        raise
    except InferplanError as error:
        reason = f"{error.what}: {error.because}" if error.because else error.what
        return [Scored(row=row, prediction=None, refused=" ".join(reason.split())) for row in rows]
    if found.ttft is None and found.tpot is None:
        return [Scored(row=row, prediction=None, refused="no request finishes in the simulation") for row in rows]
    return [Scored(row=row, prediction=prediction) for row, prediction in zip(rows, scored)]


def price_rows(
    rows: Sequence[Row], pricing: Pricing | None = None, progress: Callable[[int], None] | None = None
) -> list[Scored]:
    """Every row priced, in order, on all cores. ``progress`` is called with the number of rows that are done."""
    pricing = pricing or Pricing()
    if pricing.anchor is not None:
        load_anchor(pricing.anchor)  # one that cannot be read is an error, not a reason against every row
    groups: dict[object, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[row.run if row.run is not None else index].append(index)
    alike = [[rows[index] for index in members] for members in groups.values()]
    found: list[Scored | None] = [None] * len(rows)
    done = 0
    for members, part in zip(groups.values(), _priced(alike, pricing)):
        for index, one in zip(members, part):
            found[index] = one
        done += len(members)
        if progress is not None:
            progress(done)
    return [one for one in found if one is not None]


def _priced(groups: Sequence[Sequence[Row]], pricing: Pricing) -> Iterator[list[Scored]]:
    """Each group priced, in order: here where there are few, else in processes."""
    workers = pricing.processes or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    if len(groups) < _FEW or workers == 1:
        yield from (price_alike(group, pricing) for group in groups)
        return
    with ProcessPoolExecutor(max_workers=workers) as pool:
        yield from pool.map(price_alike, groups, [pricing] * len(groups), chunksize=8)


def prediction_cells(scored: Scored) -> dict[str, str]:
    """What ``--rows`` adds to a row of the input."""
    found = scored.prediction or Prediction()

    def milliseconds(value: float | None) -> str:
        return "" if value is None else f"{value * 1e3:.6g}"

    return {
        "ttft_predicted_ms": milliseconds(found.ttft),
        "tpot_predicted_ms": milliseconds(found.tpot),
        "refused": scored.refused,
    }
