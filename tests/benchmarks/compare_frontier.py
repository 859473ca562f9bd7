"""Does the model pick what measured best? python -m tests.benchmarks.compare_frontier FILE.csv [--gpu gb200].

The newest rows of a campaign (``measured/serving_inferencex.csv``) are forms that somebody deployed: pools, divisions,
formats, drafts. At a speed a user must get (tokens a second), the form is picked that is predicted to give the most
tokens a second and GPU among those predicted to keep the speed; what it was measured at is held against the best that
was measured to keep the speed. A pick that misses the speed when measured counts with nothing. No row is fitted to here.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from inferplan.validation.importers import read_file
from inferplan.validation.rows import Figures, Run
from inferplan.validation.run import Pricing, price_rows
from inferplan.validation.score import Scored

SPEEDS = (20.0, 30.0, 45.0, 70.0, 100.0)
"""Tokens a second of one user: a reader, and what services sell as fast."""


def keeps(figures: Figures, speed: float) -> bool:
    """Whether a user gets ``speed`` tokens a second, in the mean."""
    return figures.tpot is not None and figures.tpot <= 1.0 / speed


def pick(forms: Sequence[Scored], speed: float) -> Scored | None:
    """The form that is predicted best; ``None`` where none is predicted to be fast enough."""
    fast = [one for one in forms if one.prediction is not None and keeps(one.prediction, speed)]
    return max(fast, key=lambda one: one.prediction.at("throughput") or 0.0 if one.prediction else 0.0, default=None)


def form(one: Scored) -> str:
    """A form in short."""
    run = one.row.run
    assert isinstance(run, Run)
    apart = f", prompts {run.prefill.workers} x tp {run.prefill.tp} dp {run.prefill.dp}" if run.prefill else ""
    drafts = f", {run.draft_tokens} drafts" if run.draft else ""
    return f"{run.label}, {run.workers} x tp {run.tp} dp {run.dp}{apart}{drafts}, {run.concurrency} users"


def compare(forms: Sequence[Scored], speed: float) -> float | None:
    """What the pick was measured at as a share of the best measured; prints both. ``None`` where nothing was as fast."""
    fast = [one for one in forms if keeps(one.row.measured, speed)]
    if not fast:
        return None
    best = max(one.row.measured.at("throughput") or 0.0 for one in fast)
    chosen = pick(forms, speed)
    kept = chosen is not None and keeps(chosen.row.measured, speed)
    got = chosen.row.measured.at("throughput") or 0.0 if chosen is not None and kept else 0.0
    what = (
        "no form is predicted to keep it" if chosen is None else form(chosen) + ("" if kept else ": MISSES the speed")
    )
    print(f"  {speed:5.0f} tokens/s a user: {got:8.0f} of {best:8.0f} tokens/s/GPU ({got / best:4.0%})  {what}")
    return got / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--gpu", default="gb200")
    given = parser.parse_args()
    rows = [row for row in read_file(given.file, {})[1] if row.cells["gpu"] == given.gpu and row.cells["newest"] == "1"]
    usable = [
        row for row in rows if row.run and not row.run.suspect and row.measured.tpot and row.measured.at("throughput")
    ]
    groups: dict[tuple[float, float], list[Scored]] = defaultdict(list)
    for one in price_rows(usable, Pricing()):
        if one.row.run is not None:
            groups[one.row.run.prompt, one.row.run.output].append(one)
    shares = []
    for (prompt, output), forms in sorted(groups.items()):
        print(f"{prompt:.0f}/{output:.0f}: {len(forms)} measured forms", flush=True)
        shares += [share for speed in SPEEDS if (share := compare(forms, speed)) is not None]
    near = sum(share >= 0.9 for share in shares)
    print(f"within 10 % of the best measured: {near} of {len(shares)} picks")


if __name__ == "__main__":
    main()
