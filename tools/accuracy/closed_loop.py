"""Closed-loop serving rows: unseen pairs, systems with measured runs, coverage of the printed band."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from inferplan.devices.releases import release_number
from inferplan.estimate.support import lacking
from inferplan.validation.deploy import deployment_of
from inferplan.validation.predict import client_of
from inferplan.validation.rows import Run
from inferplan.validation.score import Scored
from tools.accuracy.anchors import anchors_section
from tools.accuracy.scores import HEADS, Line, markdown, pairs_of, scored_lines
from tools.fitting.bands import deviation, deviations, left_out, spreads_of
from tools.fitting.serving import is_kept_apart


@dataclass(frozen=True, kw_only=True, eq=False)
class ClosedLoop:
    """Measured rows with what the rows of other models predict for them, and with three more predictions of each.

    unseen: with bands that their system had no part in. scripted: the same where the flags of run scripts are known.
    shipped: by the constants on file. roofline: ideal.
    """

    unseen: list[Scored]
    scripted: list[Scored]
    shipped: list[Scored]
    roofline: list[Scored]


_UNKNOWN = np.full(2, np.nan)
"""Deviations of a run of which only the kind matters."""


def with_bands(scored: Sequence[Scored]) -> list[Scored]:
    """Held-out predictions with bands that did not see their system either.

    Rows of a kind of which too few systems were measured have none, as no estimate of them has.
    """
    spreads = spreads_of(deviations(scored))

    def banded(one: Scored) -> Scored:
        if one.row.run is None or one.prediction is None or lacking(deployment_of(one.row.run)[0]):
            return one
        bands = {
            metric: (low * predicted, high * predicted)
            for metric, (low, high) in left_out(deviation(one.row.run, _UNKNOWN), spreads).items()
            if (predicted := one.prediction.at(metric, "mean")) is not None
        }
        return replace(one, prediction=replace(one.prediction, bands=bands))

    return [banded(one) for one in scored]


def without_suspects(scored: Iterable[Scored]) -> list[Scored]:
    """Rows whose source does not doubt them."""
    return [one for one in scored if not one.suspect]


def coverage(scored: Sequence[Scored], metric: str) -> tuple[float, int]:
    """The share of measurements inside the band, and of how many."""
    inside = [
        band[0] <= getattr(one.row.measured, metric) <= band[1]
        for one in scored
        if one.prediction is not None and (band := one.prediction.bands.get(metric)) is not None
    ]
    return (float(np.mean(inside)) if inside else float("nan")), len(inside)


METRICS = {"ttft": "TTFT", "tpot": "TPOT"}
"""The figures of a row that are scored, as the page names them."""
PEER = {
    "tpot": "| the strongest peer, with its tables (its rows differ) | 70 % answered | 25.1 | 16.7 | | | |",
    "ttft": "| the strongest peer, with its tables (its rows differ) | 70 % answered | 41.7 | 39.1 | | | |",
}


def _form(run: Run) -> str:
    """How a model is divided."""
    parts = [f"TP{run.tp}"] + [f"{name}{size}" for name, size in (("PP", run.pp), ("EP", run.ep)) if size > 1]
    return ", ".join([*parts, *([run.form] if run.form != "aggregated" else [])])


def _vintage(run: Run) -> str:
    """Its engine with the release, without candidates and patches."""
    library, _, release = run.library.partition("@")
    found = release_number(release if library == run.engine else run.engine_version)
    return f"{run.engine} {found}" if found else f"{run.engine}, release not known"


BY: dict[str, Callable[[Run], str]] = {
    "model": lambda run: run.model,
    "GPU": lambda run: run.gpu,
    "engine": lambda run: run.engine,
    "software": _vintage,
    "format": lambda run: run.label,
    "division": _form,
    "campaign": lambda run: run.campaign or "none",
}
"""What was run, by which rows are grouped."""
WIDE = ("GPU", "engine", "software", "format", "division")
"""The groupings in which the coverage of bands is held to its goal."""
GOAL = (0.75, 0.88)
"""Between which shares a band that says 80 % should hold a group of :data:`MANY` rows or more."""
MANY = 30


def closed_loop_section(serving: ClosedLoop) -> str:
    """Errors of TPOT and TTFT, how many rows are answered, and how often the printed band holds the measurement."""
    unseen = serving.unseen
    answered = sum(one.prediction is not None for one in unseen)
    return "\n".join(
        [
            "## Serving, closed loop\n",
            "The last column: how many of the measurements lie inside the 80 % band that their system (model, GPU, "
            "engine) had no part in.\n",
            *_metric_tables(serving, "tpot"),
            *_metric_tables(serving, "ttft"),
            f"Rows answered: {answered} of {len(unseen)}.\n",
            _impossible(unseen),
            "### Coverage of the 80 % band\n",
            _coverage(without_suspects(unseen)),
            anchors_section(without_suspects(unseen)),
        ]
    )


def _metric_tables(serving: ClosedLoop, metric: str) -> list[str]:
    """The errors of one figure: under each treatment of the rows, then by what was run."""
    name, unseen, clean = METRICS[metric], serving.unseen, without_suspects(serving.unseen)
    table = {
        "**unseen model, without suspect rows**": clean,
        "the same, with the flags of run scripts": without_suspects(serving.scripted),
        "of these, systems that no fit takes": [one for one in clean if is_kept_apart(one.row)],
        "the same, suspect rows too": unseen,
        "without suspect rows and physically impossible ones": [one for one in clean if not one.impossible],
        "without suspect rows and the campaign of an unknown client": [
            one for one in clean if one.row.run and one.row.run.campaign != "verification"
        ],
        "**in sample**: shipped constants and choices": without_suspects(serving.shipped),
        "datasheet roofline, same simulation": without_suspects(serving.roofline),
    }
    heads = (*HEADS, "inside")
    parts = [f"### {name}\n", markdown((name, *heads), _lines(table, metric)).rstrip() + "\n" + PEER[metric] + "\n"]
    for title, key in BY.items():
        parts.append(markdown((f"{name} by {title}", *heads), _lines(_grouped(clean, key), metric)))
    return parts


def _grouped(scored: Sequence[Scored], key: Callable[[Run], str]) -> dict[str, list[Scored]]:
    groups: dict[str, list[Scored]] = defaultdict(list)
    for one in scored:
        if one.row.run is not None:
            groups[key(one.row.run)].append(one)
    return dict(sorted(groups.items()))


def _lines(groups: dict[str, list[Scored]], metric: str) -> list[Line]:
    """Errors of each group with the share inside its bands."""
    found: list[Line] = []
    for line in scored_lines({name: pairs_of(rows, metric) for name, rows in groups.items()}):
        share, count = coverage(groups[line[0]], metric)
        found.append([*line, f"{share:.0%}" if count else ""])
    return found


def _coverage(clean: Sequence[Scored]) -> str:
    """How many groups of many rows the band fits, and which it does not."""
    known = [one for one in clean if one.row.run is not None and client_of(one.row.run).start != "spread"]
    lines = []
    for metric, name in METRICS.items():
        groups = {f"{title} {group}": rows for title in WIDE for group, rows in _grouped(known, BY[title]).items()}
        shares = {group: coverage(rows, metric) for group, rows in groups.items()}
        many = {group: share for group, (share, count) in shares.items() if count >= MANY}
        out = [
            f"{group} {share:.0%} ({_systems(groups[group])})"
            for group, share in many.items()
            if not GOAL[0] <= share <= GOAL[1]
        ]
        whole, count = coverage(known, metric)
        fits = f"{len(many) - len(out)} of {len(many)}"
        lines.append([name, f"{whole:.0%}" if count else "-", str(count), fits, "; ".join(out) or "none"])
    heads = ("", "inside", "rows with a band", f"groups of {MANY} rows with {GOAL[0]:.0%} to {GOAL[1]:.0%}", "others")
    return (
        "Rows of unseen models, neither suspect nor of a client that is not recorded; groups by GPU, engine, software, "
        "format and division. The bands here leave out the system (model, GPU, engine) of each row; those on file "
        "include all. "
        "Rows of a kind (GPU, engine and form) of which fewer than three were measured have no band and are not "
        "counted. In brackets the systems (model, GPU, engine, "
        "format) of a group: the rows of one system are off together, so that a group of few holds more or fewer than "
        "80 %.\n\n" + markdown(heads, lines)
    )


def _systems(scored: Sequence[Scored]) -> int:
    return len({(run.model, run.gpu, run.engine, run.label) for one in scored if (run := one.row.run) is not None})


def _impossible(scored: Sequence[Scored]) -> str:
    fast = [one for one in scored if one.impossible]
    groups: dict[str, int] = defaultdict(int)
    for one in fast:
        run = one.row.run
        assert run is not None
        groups[f"{run.model} on {run.gpu} under {run.engine}" + (f" ({run.suspect})" if run.suspect else "")] += 1
    listed = "; ".join(f"{name}: {count}" for name, count in sorted(groups.items()))
    return (
        "Physically impossible rows, faster than the roofline of their statements or with more requests at a time than "
        f"its memory holds: {len(fast)} ({listed or 'none'}). "
        "They are in the scores above and in no fit.\n"
    )
