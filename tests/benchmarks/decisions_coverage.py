"""How many measured runs are slower than their error band says, each with its system left out of the band."""

from __future__ import annotations

from pathlib import Path

from tools.fitting.bands import METRICS, beyond_the_slow_end, read_deviations

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
