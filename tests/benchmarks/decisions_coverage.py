"""How many measured runs are slower than their error band says, each with its system left out of the band."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np

from inferplan.units import Array
from tools.fitting.bands import METRICS, Deviation, Spread, beyond_the_slow_end, read_deviations

RUNS = Path(__file__).parents[1] / "fixtures" / "served_deviations.csv"
"""How far measured runs were off what the rows of other models say (``python -m tools.fitting bands``)."""

FEW = 10
"""Cells of fewer runs say nothing on their own."""


def figures(_: Path) -> None:
    """The share beyond the slow end at both confidences, over all and by cell; nothing of the folder is read."""
    found = read_deviations(RUNS)
    for metric in METRICS:
        for confidence in (0.8, 0.9):
            counted = beyond_the_slow_end(found, metric, confidence)
            beyond, runs = (sum(getattr(one, name) for one in counted.values()) for name in ("beyond", "runs"))
            print(f"{metric} at {confidence:g}: {beyond} of {runs} runs beyond the slow end, {beyond / runs:.1%}")
            for cell, one in sorted(counted.items()):
                if one.runs >= FEW:
                    forms = " and ".join(cell.forms) or "one pool"
                    share = f"{one.beyond / one.runs:.1%} of {one.runs}, {one.systems} systems"
                    print(f"  {cell.device}, {cell.engine}, {forms}: {share}")
        print(of_right_bands(found, metric))


DRAWS = 20_000
CONFIDENCE = 0.9


def of_right_bands(found: Sequence[Deviation], metric: str) -> str:
    """How the shares beyond the slow end would vary if the band were right: systems are drawn as far apart, and rows of
    a system as far from its mean, as those that were measured are (both normal), and each kind has as many of both."""
    spread = Spread.of(found, metric)
    kinds = [[len(logs) for logs in spread.logs[cell].values()] for cell in spread.known]
    systems = [logs for cell in spread.known for logs in spread.logs[cell].values()]
    between = float(np.std([np.mean(logs) for logs in systems], ddof=1))
    within = float(np.sqrt(np.mean([np.var(logs) for logs in systems])))
    end = NormalDist(0.0, float(np.hypot(between, within))).inv_cdf(CONFIDENCE)
    generator = np.random.default_rng(1)

    def late(count: int) -> Array:
        """Rows beyond the end of a system of so many, in each draw."""
        chances = [beyond.cdf(mean - end) for mean in generator.normal(0.0, between, DRAWS)]
        return generator.binomial(count, chances)

    beyond = NormalDist(0.0, within)
    drawn = np.array([np.sum([late(count) for count in rows], axis=0) for rows in kinds])
    sizes = np.array([sum(rows) for rows in kinds])
    overall, most = drawn.sum(axis=0) / sizes.sum(), (drawn / sizes[:, None]).max(axis=0)
    low, high = np.quantile(overall, (0.1, 0.9))
    return (
        f"{metric} of a band that is right at {CONFIDENCE:g}: {low:.1%} to {high:.1%} beyond it in 8 of 10 draws, "
        f"8 to 12 % in {np.mean((overall >= 0.08) & (overall <= 0.12)):.0%}, "
        f"no kind above 15 % in {np.mean(most <= 0.15):.0%}"
    )
