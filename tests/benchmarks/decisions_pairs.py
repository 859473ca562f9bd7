"""Whether the better of two measured runs that differ in one thing is predicted, and by how much their ratio is off."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tools.fitting.forms import DIFFERENCES, FORMS, Ratios, Rule, configurations, pairs
from tools.fitting.priced import priced_rows


def figures(folder: Path) -> None:
    """A line for each difference and for each system of a form; what the rule of the simpler form makes of them."""
    every = configurations(priced_rows(folder / "measured"))
    for label, known in (("without doubted rows", [one for one in every if not one.suspect]), ("all rows", every)):
        print(f"{label}: {len(known)} configurations")
        for name, difference in DIFFERENCES.items():
            found = list(pairs(known, difference))
            if not found:
                print(f"  {name}: no pair")
                continue
            print(f"  {name}: {_line(Ratios.of(found))}")
            for system in sorted({one.system for one in found}) if name in FORMS else ():
                print(f"      {system}: {_line(Ratios.of([one for one in found if one.system == system]))}")
            rule = Rule.of(found) if name in FORMS else None
            if rule is not None:
                print(
                    f"      by the errors of other models: {rule.pairs} pairs, better form by the prediction "
                    f"{rule.right}, by the rule {rule.ruled}; lost {rule.lost:.1%} and {rule.ruled_lost:.1%}"
                )


def _line(found: Ratios) -> str:
    sizes = ", ".join(f"{np.expm1(size):.1%}" for size in (found.median, found.error, found.p90))
    return (
        f"{found.pairs} pairs of {found.models} models, ordered rightly {found.right} of {found.apart}; "
        f"ratio off by (median, p80, p90) {sizes}; bias {np.expm1(found.bias):+.1%}"
    )
