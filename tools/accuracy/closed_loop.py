"""Closed-loop serving rows: unseen pairs, systems with measured runs, coverage of the printed band."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from inferplan.catalog.files import load, load_model
from inferplan.devices.engine import EngineSpec
from inferplan.devices.releases import release_number
from inferplan.errors import InferplanError
from inferplan.estimate.support import lacking
from inferplan.models.layers.moe import MoeLayer
from inferplan.validation.deploy import deployment_of
from inferplan.validation.importers import read_file
from inferplan.validation.predict import Prediction, client_of, impossible
from inferplan.validation.rows import Run
from inferplan.validation.score import Scored
from tools.accuracy.anchors import anchors_section
from tools.accuracy.scores import HEADS, Line, markdown, pairs_of, scored_lines
from tools.fitting.bands import deviation, deviations, left_out, spreads_of


@dataclass(frozen=True, kw_only=True, eq=False)
class ClosedLoop:
    """Measured rows with their held-out predictions; a sample of them with two more of each.

    held_out: with bands that did not see their pair. shipped: a sample by the constants on file. roofline: ideal.
    apart: rows of systems that no constant was fitted to, by the constants on file.
    """

    held_out: list[Scored]
    shipped: list[Scored]
    roofline: list[Scored]
    apart: list[Scored]


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


@lru_cache(maxsize=1024)
def _traits(model: str, engine: str) -> tuple[bool, bool]:
    """Whether a model routes tokens to experts, and whether its latent attention has a constant of the engine's own."""
    layers = [layer for layer, _ in load_model(model).distinct]
    latent = any(part.kind == "mla" for layer in layers for part in layer.parts)
    own = load("engines", engine, EngineSpec).serving.eager_latent != 1.0
    return any(isinstance(layer.ffn, MoeLayer) for layer in layers), latent and own


def seen(run: Run, metric: str) -> bool:
    """Whether a constant beside those of the folds was chosen on rows like this one.

    The popularity of experts on TPOT of the mixtures of experts (configs/routing.yaml); the eager floor of latent
    attention under SGLang and TensorRT-LLM on the first tokens of DeepSeek-R1 (``eager_latent`` of configs/engines).
    """
    routed, latent = _traits(run.model, run.engine)
    return routed if metric == "tpot" else latent


METRICS = {"ttft": "TTFT", "tpot": "TPOT"}
"""The figures of a row that are scored, as the page names them."""
PEER = {
    "tpot": "| the strongest peer, with its tables (its rows differ) | 70 % answered | 25.1 | 16.7 | | |",
    "ttft": "| the strongest peer, with its tables (its rows differ) | 70 % answered | 41.7 | 39.1 | | |",
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
    held = serving.held_out
    answered = sum(one.prediction is not None for one in held)
    return "\n".join(
        [
            "## Serving, closed loop\n",
            "The last two columns: how many of the measurements lie inside the 80 % band, which did not see their "
            "(model, GPU) pair either; and how many of the rows are *in sample* for a constant that was chosen on such "
            "rows as a whole, beside those of the folds: the popularity of experts (TPOT of mixtures of experts) and "
            "the eager floor of latent attention (TTFT of DeepSeek-R1 under SGLang and TensorRT-LLM).\n",
            *_metric_tables(serving, "tpot"),
            *_metric_tables(serving, "ttft"),
            f"Rows answered: {answered} of {len(held)}.\n",
            _impossible(held),
            *_kept_apart(serving.apart),
            "### Coverage of the 80 % band\n",
            _coverage(without_suspects(held)),
            anchors_section(without_suspects(held)),
        ]
    )


def _kept_apart(scored: Sequence[Scored]) -> list[str]:
    """Errors on the systems that no constant was fitted to, together and one by one."""
    parts = [
        "### Systems that no constant was fitted to\n",
        "Rows opened on 2026-11-23 (`KEPT_APART` in `tools/fitting/serving.py`), predicted by the shipped constants. "
        "No fit takes them.\n",
    ]
    for metric, name in METRICS.items():
        clean = without_suspects(scored)
        groups = {"**all**": clean, **_grouped(clean, lambda run: f"{run.model}, {run.gpu}, {run.engine}")}
        inside = {title: coverage(rows, metric) for title, rows in groups.items()}
        shares = {title: f"{share:.0%}" if count else "" for title, (share, count) in inside.items()}
        pairs = {title: pairs_of(rows, metric) for title, rows in groups.items()}
        lines = [[*line, shares[line[0]]] for line in scored_lines(pairs)]
        parts.append(markdown((name, *HEADS, "inside"), lines))
    return parts


def _metric_tables(serving: ClosedLoop, metric: str) -> list[str]:
    """The errors of one figure: under each treatment of the rows, then by what was run."""
    name, held, clean = METRICS[metric], serving.held_out, without_suspects(serving.held_out)
    table = {
        "**unseen (model, GPU), without suspect rows**": clean,
        "the same, suspect rows too": held,
        "without suspect rows and physically impossible ones": [one for one in clean if not one.impossible],
        "without suspect rows and the campaign of an unknown client": [
            one for one in clean if one.row.run and one.row.run.campaign != "verification"
        ],
    }
    others = {
        "**in sample**: shipped constants (rows of the fit; a sample)": serving.shipped,
        "datasheet roofline, same simulation (a sample)": serving.roofline,
    }
    lines = [*_lines(table, metric)]
    lines += [
        [*line, "", line[1] if line[0].startswith("**in sample") else "0"]
        for line in scored_lines({name: pairs_of(without_suspects(rows), metric) for name, rows in others.items()})
    ]
    heads = (*HEADS, "inside", "in sample")
    parts = [f"### {name}\n", markdown((name, *heads), lines).rstrip() + "\n" + PEER[metric] + "\n"]
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
    """Errors of each group with the share inside its bands, and the rows that a constant was chosen on."""
    found: list[Line] = []
    for line in scored_lines({name: pairs_of(rows, metric) for name, rows in groups.items()}):
        rows = groups[line[0]]
        share, count = coverage(rows, metric)
        chosen = sum(one.row.run is not None and seen(one.row.run, metric) for one in rows)
        found.append([*line, f"{share:.0%}" if count else "", str(chosen)])
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
        "Held-out rows, neither suspect nor of a client that is not recorded; groups by GPU, engine, software, format "
        "and division. The bands here leave out the system (model, GPU, engine) of each row; those on file are of all. "
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
        "Physically impossible rows, faster than the roofline of what they state or with more requests at a time than "
        f"its memory holds: {len(fast)} ({listed or 'none'}). "
        "They are in the scores above and in no fit.\n"
    )
