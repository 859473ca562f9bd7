"""What a choice among measured configurations is worth that looks at predictions alone.

Under each pair of limits the configuration is chosen that is predicted to make most output tokens/s per GPU (or an AWS
dollar) among those predicted to keep the limits, at a confidence: what is chosen may break a limit when measured, or
make less than the best measured one. Bands have the configuration's system left out; without a band nothing is chosen
at a confidence above 0.5. Of equal engine, GPU and formats the simpler form wins as in a plan. Then the form that is
predicted to be the best at a speed for each user, its frontier interpolated.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import exp, inf, log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from inferplan.catalog.price_lists import price_book
from inferplan.estimate.bands import quantile
from inferplan.estimate.support import DRAFTS, POOLS, forms_of
from inferplan.planning.confidence import MIDDLE
from inferplan.planning.forms import outranked_among
from inferplan.validation.deploy import deployment_of
from inferplan.validation.score import Scored
from tests.benchmarks.decisions_coverage import RUNS
from tools.fitting.bands import METRICS, Spread, deviation, left_out, read_deviations, spreads_of
from tools.fitting.forms import Configuration, configurations
from tools.fitting.priced import priced_rows

TPOT_LIMITS = (0.010, 0.015, 0.020, 0.030, 0.040, 0.060, 0.100)
TTFT_LIMITS = (0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
SPEEDS = (10, 20, 30, 40, 50, 75, 100, 150, 200)
"""Output tokens per second for each user at which forms are compared."""


class Choice(NamedTuple):
    """A configuration to choose; ``slow``: the factors that its latencies stay below at a confidence."""

    one: Configuration
    forms: frozenset[str]
    price: float | None
    slow: dict[float, tuple[float, float]]


def figures(folder: Path) -> None:
    """The table of choices under limits by question and confidence, and that of forms at a speed."""
    every = choices_of(priced_rows(folder / "measured"))
    for label, known in (("all rows", every), ("without doubted rows", [one for one in every if not one.one.suspect])):
        print(f"{label}: {len(known)} configurations")
        for name, (key, priced) in QUESTIONS.items():
            for confidence, ruled in ((MIDDLE, False), (MIDDLE, True), (0.8, True), (0.9, True)):
                text = under_limits(known, key, priced, able_at(confidence, ruled), confidence)
                print(f"  {name}, {confidence:g}{', simpler form wins' if ruled else ''}: {text}")
        for ruled in (False, True):
            print(f"  form at a speed{', simpler form wins' if ruled else ''}: {at_a_speed(known, ruled)}")


QUESTIONS: dict[str, tuple[Callable[[Choice], Any], bool]] = {
    "one GPU and engine": (lambda one: (one.one.run.gpu, one.one.run.engine), False),
    "one GPU, any engine": (lambda one: one.one.run.gpu, False),
    "any GPU": (lambda one: None, False),
    "any GPU, by AWS dollars": (lambda one: None, True),
}
"""What a question leaves open beside the division, the format and the users: by what configurations are grouped, and
whether they are compared by the dollar."""


def choices_of(rows: Iterable[Scored]) -> list[Choice]:
    """The configurations of rows, with bands that their systems have no part in."""
    spreads = spreads_of(read_deviations(RUNS))
    return [_choice(one, spreads) for one in configurations(rows)]


def _choice(one: Configuration, spreads: dict[str, Spread]) -> Choice:
    deployment, slow = deployment_of(one.run)[0], {MIDDLE: (1.0, 1.0)}
    bands = left_out(deviation(one.run, np.full(2, np.nan)), spreads)
    if len(bands) == len(METRICS):
        ttft, tpot = bands["ttft"], bands["tpot"]
        slow |= {confidence: (quantile(ttft, confidence), quantile(tpot, confidence)) for confidence in (0.8, 0.9)}
    forms = {*forms_of(deployment), *([DRAFTS] if one.run.draft else []), *([POOLS] if one.run.prefill else [])}
    return Choice(one, frozenset(forms), _price(deployment.hardware.name), slow)


@cache
def _price(gpu: str) -> float | None:
    """What one device of eight costs an hour at AWS; ``None`` where it is not rented there."""
    tariff = price_book().tariff(gpu, 8, 8)
    return None if tariff is None else float(tariff.cost(1)) / 8


def grouped(known: Iterable[Choice], key: Callable[[Choice], Any]) -> list[list[Choice]]:
    """Configurations of one model and one kind of requests, and of what the question fixes."""
    groups: dict[Any, list[Choice]] = defaultdict(list)
    for one in known:
        run = one.one.run
        groups[one.one.model, run.prompt, run.output, run.ratio_min, key(one)].append(one)
    return [group for group in groups.values() if len(group) > 1]


Chooser = Callable[[Sequence[Choice], tuple[float, float], Callable[[Choice], float]], Choice | None]
"""Chooses from a group under limits on TTFT and TPOT, in seconds, by what each is worth; ``None`` for nothing."""


def able_at(confidence: float, ruled: bool = False) -> Chooser:
    """What is worth most of those that keep both limits at a confidence; forms may be ruled."""

    def choose(group: Sequence[Choice], limits: tuple[float, float], worth: Callable[[Choice], float]) -> Choice | None:
        able = [one for one in group if _within(one, *limits, confidence)]
        return pick(able, worth, ruled) if able else None

    return choose


def under_limits(
    known: Sequence[Choice], key: Callable[[Choice], Any], priced: bool, choose: Chooser, confidence: float = MIDDLE
) -> str:
    """One line of the table; confidence: at which an error has to be known of what it is compared with."""
    known = [one for one in known if one.price is not None] if priced else known
    lost: list[float] = []
    lost_known: list[float] = []
    broken, far, none, asked, otherwise = 0, 0, 0, 0, 0
    for group in grouped(known, key):
        for tpot, ttft in itertools.product(TPOT_LIMITS, TTFT_LIMITS):
            keep = [one for one in group if one.one.latencies[0] <= ttft and one.one.latencies[1] <= tpot]
            if not keep:
                continue
            asked += 1
            chosen = choose(group, (ttft, tpot), lambda one: _worth(one, one.one.predicted, priced))
            if chosen is None:
                none += 1
                continue
            over = max(chosen.one.latencies[0] / ttft, chosen.one.latencies[1] / tpot)
            broken, far = broken + (over > 1), far + (over > 1.1)
            best = max(keep, key=lambda one: _worth(one, one.one.measured, priced))
            if over <= 1:
                value, most = (_worth(one, one.one.measured, priced) for one in (chosen, best))
                lost.append(1 - value / most)
                known_best = max(_worth(one, one.one.measured, priced) for one in keep if confidence in one.slow)
                lost_known.append(1 - value / known_best)
                otherwise += chosen.forms != best.forms
    made = asked - none
    return (
        f"{asked} questions, none found {none}, breaks a limit {broken / made:.1%} (by > 10 % {far / made:.1%}), "
        f"loss mean {np.mean(lost):.1%} p90 {np.quantile(lost, 0.9):.1%}, against the best whose error is known "
        f"{np.mean(lost_known):.1%}, other form {otherwise / len(lost):.1%}"
    )


def _within(one: Choice, ttft: float, tpot: float, confidence: float) -> bool:
    slow = one.slow.get(confidence, (inf, inf))
    return one.one.said[0] * slow[0] <= ttft and one.one.said[1] * slow[1] <= tpot


def _worth(one: Choice, value: float, priced: bool) -> float:
    return value / (one.price or inf) if priced else value


def pick(able: Sequence[Choice], worth: Callable[[Choice], float], ruled: bool) -> Choice:
    """The one that is worth most; where forms are ruled, of those that no simpler one outranks, as in a plan."""

    def ratio(place: int, twin: int) -> float:
        return worth(able[place]) / worth(able[twin])

    found = outranked_among([one.forms for one in able], [_alike(one) for one in able], ratio) if ruled else ()
    lost = {one.place for one in found}
    return max((one for place, one in enumerate(able) if place not in lost), key=worth)


def _alike(one: Choice) -> tuple[Any, ...]:
    return one.one.run.gpu, one.one.run.engine, one.one.run.label


def at_a_speed(known: Sequence[Choice], ruled: bool) -> str:
    """The regret of the form that is predicted to be best at a speed for each user, on one GPU."""
    regrets: list[float] = []
    right = unreached = 0
    for group in grouped(known, lambda one: one.one.run.gpu):
        lines: dict[Any, list[Choice]] = defaultdict(list)
        for one in group:
            run = one.one.run
            division = run.tp, run.pp, run.ep, run.dp, run.draft, run.prefill is not None
            lines[run.engine, run.label, run.kv, *division].append(one)
        curves = {form: some for form, some in lines.items() if len({one.one.run.concurrency for one in some}) > 1}
        for speed in SPEEDS:
            real = {form: rate for form, some in curves.items() if (rate := _at(some, speed, False)) is not None}
            said = {form: rate for form, some in curves.items() if (rate := _at(some, speed, True)) is not None}
            if len(real) < 2 or not said:
                continue
            chosen_of = {form: curves[form][0] for form in said}
            worths = {id(chosen_of[form]): rate for form, rate in said.items()}
            picked = pick([*chosen_of.values()], lambda one: worths[id(one)], ruled)  # noqa: B023
            form = next(name for name, one in chosen_of.items() if one is picked)
            if form not in real:
                unreached += 1
                continue
            regret = 1 - real[form] / max(real.values())
            right, regrets = right + (regret == 0), [*regrets, regret]
    return (
        f"{len(regrets) + unreached} questions, {unreached} cannot reach it, mean regret {np.mean(regrets):.1%}, "
        f"median {np.median(regrets):.1%}, best form {right / len(regrets):.1%}"
    )


def _at(some: Sequence[Choice], speed: float, predicted: bool) -> float | None:
    """Output tokens/s a GPU of a form at a speed for each user, between its runs; ``None`` outside them."""
    points: dict[float, list[float]] = defaultdict(list)
    for one in some:
        tpot, rate = (one.one.said[1], one.one.predicted) if predicted else (one.one.latencies[1], one.one.measured)
        points[log(1 / tpot)].append(log(rate))
    speeds = sorted(points)
    if not speeds[0] <= log(speed) <= speeds[-1]:
        return None
    return exp(float(np.interp(log(speed), speeds, [max(points[one]) for one in speeds])))
