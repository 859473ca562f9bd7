"""Closed-loop serving rows: unseen pairs, systems with measured runs, coverage of the printed band."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibrate.accuracy.anchors import anchors_section
from calibrate.accuracy.scores import HEADS, markdown, pairs_of, scored_lines
from inferplan.errors import InferplanError
from inferplan.validation.deploy import deployment_of
from inferplan.validation.importers import read_file
from inferplan.validation.predict import Prediction, impossible
from inferplan.validation.rows import Run
from inferplan.validation.score import Scored


@dataclass(frozen=True, kw_only=True, eq=False)
class ClosedLoop:
    """Measured rows with their held-out predictions; a sample of them with two more of each.

    banded: the sample's held-out predictions with their bands. shipped: by the constants on file. roofline: ideal.
    """

    held_out: list[Scored]
    banded: list[Scored]
    shipped: list[Scored]
    roofline: list[Scored]


def read_held_out(path: Path) -> list[Scored]:
    """Rows with predictions of constants that did not see their pair."""
    with path.open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    rows = read_file(path, {})[1]
    found = []
    for row, given in zip(rows, cells):
        fast: tuple[str, ...] = ()
        if row.run is not None:
            with suppress(InferplanError):
                fast = impossible(deployment_of(row.run)[0], row.run, row.measured)
        ttft, tpot = (float(given[f"{name}_predicted_ms"]) * 1e-3 for name in ("ttft", "tpot"))
        known = np.isfinite(ttft) and np.isfinite(tpot)
        figures = {("ttft", "mean"): ttft, ("tpot", "mean"): tpot}
        prediction = Prediction(figures=figures, impossible=fast) if known else None
        found.append(Scored(row=row, prediction=prediction))
    return found


def with_bands(scored: Sequence[Scored], source: Sequence[Scored]) -> list[Scored]:
    """Held-out predictions with the relative bands that the shipped ones carry."""
    result = []
    for one, other in zip(scored, source):
        if one.prediction is None or other.prediction is None:
            result.append(one)
            continue
        bands = {}
        for name, (low, high) in other.prediction.bands.items():
            centre, own = getattr(other.prediction, name), getattr(one.prediction, name)
            if own is not None:
                bands[name] = (low / centre * own, high / centre * own)
        result.append(replace(one, prediction=replace(one.prediction, bands=bands)))
    return result


def without_suspects(scored: Iterable[Scored]) -> list[Scored]:
    """Rows whose source does not doubt them."""
    return [one for one in scored if not one.suspect]


def _grouped(scored: Sequence[Scored], key: Callable[[Run], str], metric: str) -> dict[str, list[tuple[float, float]]]:
    groups: dict[str, list[Scored]] = defaultdict(list)
    for one in scored:
        if one.row.run is not None:
            groups[key(one.row.run)].append(one)
    return {name: pairs_of(members, metric) for name, members in sorted(groups.items())}


def coverage(scored: Sequence[Scored], metric: str) -> tuple[float, int]:
    """The share of measurements inside the printed band, and of how many."""
    inside = [
        band[0] <= getattr(one.row.measured, metric) <= band[1]
        for one in scored
        if one.prediction is not None and (band := one.prediction.bands.get(metric)) is not None
    ]
    return (float(np.mean(inside)) if inside else float("nan")), len(inside)


METRICS = {"ttft": "TTFT", "tpot": "TPOT"}
"""The figures of a row that are scored, as the page names them."""
PEER = {
    "tpot": "| the strongest peer, with its tables (its rows differ) | 70 % answered | 25.1 | 16.7 | | |",
    "ttft": "| the strongest peer, with its tables (its rows differ) | 70 % answered | 41.7 | 39.1 | | |",
}


def closed_loop_section(serving: ClosedLoop) -> str:
    """Errors of TPOT and TTFT, how many rows are answered, and how often the printed band holds the measurement."""
    held = serving.held_out
    answered = sum(one.prediction is not None for one in held)
    lines = []
    for metric, name in METRICS.items():
        share, count = coverage(without_suspects(serving.banded), metric)
        lines.append([name, f"{share:.0%}", str(count)])
    return "\n".join(
        [
            "## Serving, closed loop\n",
            *_metric_tables(serving, "tpot"),
            *_metric_tables(serving, "ttft"),
            f"Rows answered: {answered} of {len(held)}.\n",
            _impossible(held),
            "### Coverage of the 80 % band\n",
            "Held-out rows without suspect ones, inside the band that the estimate prints:\n",
            markdown(("", "inside", "rows with a band"), lines),
            anchors_section(without_suspects(held)),
        ]
    )


def _metric_tables(serving: ClosedLoop, metric: str) -> list[str]:
    """The errors of one figure: under each treatment of the rows, then by what was run."""
    name, held, clean = METRICS[metric], serving.held_out, without_suspects(serving.held_out)
    known_client = [one for one in clean if one.row.run and one.row.run.campaign != "verification"]
    possible = [one for one in clean if not one.impossible]
    table = {
        "**unseen (model, GPU), without suspect rows**": pairs_of(clean, metric),
        "the same, suspect rows too": pairs_of(held, metric),
        "without suspect rows and physically impossible ones": pairs_of(possible, metric),
        "without suspect rows and the campaign of an unknown client": pairs_of(known_client, metric),
        "shipped constants (rows of the fit; a sample)": pairs_of(without_suspects(serving.shipped), metric),
        "datasheet roofline, same simulation (a sample)": pairs_of(without_suspects(serving.roofline), metric),
    }
    lines = scored_lines(table)
    parts = [f"### {name}\n", markdown((name, *HEADS), lines).rstrip() + "\n" + PEER[metric] + "\n"]
    by: dict[str, Callable[[Run], str]] = {
        "model": lambda run: run.model,
        "GPU": lambda run: run.gpu,
        "engine": lambda run: run.engine,
        "format": lambda run: run.label,
        "campaign": lambda run: run.campaign or "none",
    }
    for title, key in by.items():
        parts.append(markdown((f"{name} by {title}", *HEADS), scored_lines(_grouped(clean, key, metric))))
    return parts


def _impossible(scored: Sequence[Scored]) -> str:
    fast = [one for one in scored if one.impossible]
    groups: dict[str, int] = defaultdict(int)
    for one in fast:
        run = one.row.run
        assert run is not None
        groups[f"{run.model} on {run.gpu} under {run.engine}" + (f" ({run.suspect})" if run.suspect else "")] += 1
    listed = "; ".join(f"{name}: {count}" for name, count in sorted(groups.items()))
    return (
        f"Physically impossible rows, faster than the roofline of what they state: {len(fast)} ({listed or 'none'}). "
        "They are in the scores above and in no fit.\n"
    )
