"""How good choices among measured configurations can be: what repeats of a measurement and smaller errors would reach.

Whoever chooses by the figures of another day is wrong as often as two runs of one configuration differ. Errors are then
taken to be as large as those of other models (each system by the root of its number of rows), of whatever kind, so that
nothing is without one: what a rule makes of them, what it would make of smaller ones, and what is left of them behind a
run of one's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from itertools import combinations
from math import log
from pathlib import Path
from typing import NamedTuple

import numpy as np

from inferplan.planning.confidence import MIDDLE
from inferplan.units import Array
from inferplan.validation.rows import Run
from inferplan.validation.score import Scored
from tests.benchmarks.decisions_choices import (
    QUESTIONS,
    Choice,
    Chooser,
    able_at,
    at_a_speed,
    choices_of,
    under_limits,
)
from tools.fitting.bands import METRICS, weighted_quantiles
from tools.fitting.forms import output_rate
from tools.fitting.priced import priced_rows

DRAWS = 10
"""How often other days are drawn."""
WEEK = 7
"""Days within which two runs of one configuration are one and the same engine."""
NO_REPEATS = ("mi355x", "sglang")
"""The GPU and engine whose runs of one week differ by 20 % in the median, in what their rows do not say."""
CONFIDENCES = (0.6, 0.7, 0.8, 0.9)
LOSSES = (0.0, 0.5, 1.0, 2.0)
"""What a broken limit costs beyond what the choice would have been worth, as shares of it."""
SHARES = (1.0, 0.75, 0.5)
ASKED = ("one GPU and engine", "any GPU")
"""The narrowest question and the widest."""
USERS = 16
"""The users of a run of one's own, about."""


def figures(folder: Path) -> None:
    """Repeats, what another day's figures choose, and what rules make of errors of several sizes."""
    rows = priced_rows(folder / "measured")
    known = [one for one in choices_of(rows) if not one.one.suspect]
    logs, weights = repeats(rows)
    for metric, column in zip(METRICS, np.abs(logs).T, strict=True):
        sizes = ", ".join(f"{np.expm1(size):.1%}" for size in weighted_quantiles(column, weights, (0.5, 0.8, 0.9)))
        print(f"{metric} of two runs of one configuration: apart by (median, p80, p90) {sizes}")
    generator = np.random.default_rng(1)
    for draw in range(DRAWS):
        days = another_day(known, logs, weights, generator)
        print(f"another day {draw}: form at a speed: {at_a_speed(days, ruled=False)}")
        for name in ASKED:
            key, priced = QUESTIONS[name]
            print(f"  {name}: {under_limits(days, key, priced, able_at(MIDDLE))}", flush=True)
    for share in SHARES:
        _rules(f"errors {share:g} times as large", smaller(known, share))
    _rules("behind a run of one's own", behind_own_runs(known))


def _rules(label: str, known: Sequence[Choice]) -> None:
    errors = errors_of(known)
    of_others = [one._replace(slow=errors[one.one.model].slow()) for one in known]
    print(f"{label}: {len(known)} configurations")
    for name in ASKED:
        key, priced = QUESTIONS[name]
        for confidence in (MIDDLE, *CONFIDENCES):
            text = under_limits(of_others, key, priced, able_at(confidence, ruled=True))
            print(f"  {name}, {confidence:g}: {text}", flush=True)
        for loss in LOSSES:
            text = under_limits(of_others, key, priced, by_value(errors, loss))
            print(f"  {name}, by value, a break costs {loss:g} more: {text}", flush=True)


def repeats(rows: Iterable[Scored]) -> tuple[Array, Array]:
    """Logarithms of one run over another of the same configuration within a week, TTFT and TPOT, in an array of (pairs,
    2); and weights by which each configuration counts once."""
    found: dict[Run, list[tuple[date, float, float]]] = defaultdict(list)
    for one in rows:
        run, seen = one.row.run, [one.row.measured.at(name) for name in METRICS]
        day = one.row.cells.get("measured") or one.row.cells.get("date")
        if run is None or one.prediction is None or not run.closed or one.suspect or not day:
            continue
        if seen[0] and seen[1] and (run.gpu, run.engine) != NO_REPEATS:
            found[replace(run, suspect="", campaign="")].append((date.fromisoformat(day), seen[0], seen[1]))
    logs, weights = [], []
    for days in found.values():
        near = [(a, b) for a, b in combinations(days, 2) if abs((a[0] - b[0]).days) <= WEEK]
        logs += [np.log(np.divide(a[1:], b[1:])) for a, b in near]
        weights += [1 / len(near) for _ in near]
    return np.array(logs), np.array(weights)


def another_day(known: Sequence[Choice], logs: Array, weights: Array, generator: np.random.Generator) -> list[Choice]:
    """The configurations, predicted by what they took on a day that is drawn for each from the repeats of all."""
    drawn = generator.choice(len(logs), len(known), p=weights / weights.sum())
    signs = generator.choice((-1.0, 1.0), len(known))
    return [_said(one, one.one.latencies * np.exp(sign * logs[at])) for one, at, sign in zip(known, drawn, signs)]


def smaller(known: Sequence[Choice], share: float) -> list[Choice]:
    """The configurations with predictions whose errors are so large a share of ours, in logarithms."""
    return [_said(one, one.one.latencies * np.exp(share * -_off(one))) for one in known]


def behind_own_runs(known: Sequence[Choice]) -> list[Choice]:
    """The configurations but for one of each form and kind of requests: both latencies of the others are corrected by
    the factors that this one was off by."""
    systems: dict[Hashable, list[Choice]] = defaultdict(list)
    for one in known:
        run = one.one.run
        division = run.tp, run.pp, run.ep, run.dp, run.draft, run.prefill is not None
        systems[one.one.model, run.gpu, run.engine, run.label, run.kv, division, run.prompt, run.output].append(one)
    found = []
    for some in systems.values():
        own = min(some, key=lambda one: abs(log((one.one.run.concurrency or 1) / USERS)))
        found += [_said(one, one.one.said * np.exp(_off(own))) for one in some if one is not own]
    return found


def _off(one: Choice) -> Array:
    """Logarithms of measured over predicted."""
    return np.log(np.divide(one.one.latencies, one.one.said))


def _said(one: Choice, latencies: Array) -> Choice:
    """With other predictions."""
    ttft, tpot = (float(value) for value in latencies)
    predicted = output_rate(one.one.run, ttft, tpot)
    return one._replace(one=replace(one.one, said=(ttft, tpot), predicted=predicted))


class Errors(NamedTuple):
    """Logarithms of measured over predicted of other models: (rows, 2), with weights that add up to one."""

    logs: Array
    weights: Array

    def slow(self) -> dict[float, tuple[float, float]]:
        """By confidence, the factors that both latencies stay below; never below one."""
        at = [weighted_quantiles(column, self.weights, CONFIDENCES) for column in self.logs.T]
        slow = {confidence: (float(a), float(b)) for confidence, a, b in zip(CONFIDENCES, *np.exp(np.maximum(at, 0.0)))}
        return {MIDDLE: (1.0, 1.0), **slow}

    def chance(self, one: Choice, limits: tuple[float, float]) -> float:
        """That both limits are kept."""
        room = np.log(np.divide(limits, one.one.said))
        return float(self.weights[np.all(self.logs <= room, axis=1)].sum())


def errors_of(known: Sequence[Choice]) -> Mapping[str, Errors]:
    """By model, the errors of the others."""
    systems: dict[tuple[str, str, str], list[Array]] = defaultdict(list)
    for one in known:
        systems[one.one.model, one.one.run.gpu, one.one.run.engine].append(_off(one))
    found = {}
    for model in {model for model, _, _ in systems}:
        others = [logs for (other, _, _), logs in systems.items() if other != model]
        weights = np.concatenate([np.full(len(logs), len(logs) ** -0.5) for logs in others])
        found[model] = Errors(np.concatenate(others), weights / weights.sum())
    return found


def by_value(errors: Mapping[str, Errors], loss: float) -> Chooser:
    """What is expected to be worth most, where a broken limit is worth nothing and costs a share of the worth more;
    ``None`` where that is nothing."""

    def choose(group: Sequence[Choice], limits: tuple[float, float], worth: Callable[[Choice], float]) -> Choice | None:
        known = errors[group[0].one.model]
        chances = [known.chance(one, limits) for one in group]
        values = [worth(one) * (chance - loss * (1.0 - chance)) for one, chance in zip(group, chances)]
        best = int(np.argmax(values))
        return group[best] if values[best] > 0 else None

    return choose
